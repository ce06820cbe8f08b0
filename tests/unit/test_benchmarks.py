"""The benchmarks' races are fair: both sides compute the same numbers, on a toy; and what they report is arithmetic that holds."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pipeline_cases import Tiny, build_tiny_llama, write_corpus

from armor_ray.config import load_config, with_overrides
from armor_ray.models.generators.hf import HfGenerator
from armor_ray.models.generators.protocol import ScoreRequest
from armor_ray.training.host import LocalHost
from armor_ray.training.loop import Trainer
from benchmarks import embedding, sweep, training_step
from benchmarks.__main__ import main
from benchmarks.authors import load_plain, score_one_by_one, score_padded
from benchmarks.inputs import make_inputs, sample_passages
from benchmarks.measure import Cost, race
from benchmarks.ray_overhead import Pass
from benchmarks.report import Outcome, Row, draw, speed_up, write_page, write_summary
from benchmarks.scoring import count_tokens, require_equal, require_like_noise, score_all, tokenized


@pytest.fixture(scope="module")
def inputs(tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    tiny = Tiny(folder, write_corpus(folder / "corpus"), tiny_bert, build_tiny_llama(folder / "llama"))
    return make_inputs(load_config(tiny.config("bench", candidates={"pool_size": 16, "top_k": 16})))


@pytest.fixture(scope="module")
def generator(inputs):
    return HfGenerator(inputs.config.generator)


@pytest.fixture(scope="module")
def plain(inputs):
    return load_plain(inputs.config.generator.model, torch.float32)


class TestScoring:
    def test_all_three_ways_give_the_same_likelihoods(self, inputs, generator, plain):
        requests = [inputs.request(question, passage) for question, passage in sample_passages(inputs.pools, 6).pairs]
        requests.append(ScoreRequest("short", "w1", "w2", ("w3", "w4 w5 w6 w7")))
        ours, paths = score_all(generator, requests), tokenized(generator, requests)
        assert len(ours) == len(paths) > 20
        assert np.std(ours) > 0.1
        np.testing.assert_allclose(score_one_by_one(plain, paths), ours, atol=1e-4)
        np.testing.assert_allclose(score_padded(plain, paths, batch_size=5), ours, atol=1e-4)

    def test_a_race_between_different_numbers_is_void(self):
        assert "at most 0.0005" in require_equal([1.0, 2.0], [1.0, 2.0005])
        with pytest.raises(RuntimeError, match="void"):
            require_equal([1.0, 2.0], [1.0, 2.002])
        assert "engine 0.1 and 0.2, padded batches 0.15 and 0.3" in require_like_noise("bf16", [1.0, 2.2], [1.3, 2.0], [1.0, 2.0])
        with pytest.raises(RuntimeError, match="void"):
            require_like_noise("bf16", [1.0, 3.0], [1.3, 2.0], [1.0, 2.0])

    def test_a_sampled_passage_comes_with_all_its_questions(self):
        pools = [[0, 1], [0, 2], [0, 1], [0, 3]]
        sample = sample_passages(pools, 2)
        assert sample.pairs == [(3, 3), *((question, 0) for question in range(4))]
        assert (sample.whole_pairs, sample.whole_passages) == (8, 4)


class TestEmbedding:
    def test_sentence_transformers_computes_the_same_vectors(self, inputs):
        subset = embedding.heldout_subset(inputs, None)
        vectors = inputs.encoder.encode(subset.texts, "passage")
        np.testing.assert_allclose(embedding.as_sentence_transformer(inputs.encoder).encode_document(subset.texts), vectors, atol=1e-5)

    def test_gold_passages_keep_their_texts_in_the_subset(self, inputs):
        test = inputs.splits["test"]
        for limit in (None, 12):
            subset = embedding.heldout_subset(inputs, limit)
            assert subset.questions
            for question, gold in zip(subset.questions, subset.positives, strict=True):
                wanted = test.positives[test.texts.index(question)]
                assert [subset.texts[i] for i in gold] == [inputs.text(row) for row in wanted]

    def test_recall(self):
        queries, passages = np.eye(8, dtype=np.float32)[:2], np.eye(8, dtype=np.float32)
        passages[5] = passages[0] * 0.5
        assert embedding.recall(queries, passages, [[5], [1, 7]]) == {1: 0.5, 3: 1.0, 5: 1.0}


class TestTrainingStep:
    def test_the_step_with_everything_inside_computes_our_loss(self, inputs, generator, plain, tmp_path):
        config = with_overrides(inputs.config, {"training.batch_size": 4, "training.dropout": False})
        questions = list(range(len(inputs.pools)))
        ours = training_step.build_table(inputs)
        ours.passages_CD[:] = inputs.encoder.encode(inputs.passages["text"].to_pylist(), "passage")
        training_step.cache_likelihoods(inputs, ours, questions, generator)
        theirs = copy.deepcopy(ours)
        theirs.train.log_likelihood_QN[:, : training_step.TOP_K] = -7.0
        theirs.passages_CD[np.unique(theirs.train.pool_QN[:, : training_step.TOP_K])] = 0
        losses = {}
        for name, table in (("ours", ours), ("stale", theirs), ("theirs", theirs)):
            trainer = Trainer(config, table, copy.deepcopy(inputs.encoder), LocalHost(tmp_path / name))
            step = training_step.AuthorsStep(inputs, table, trainer, plain, generator.prompts)
            if name == "theirs":
                step(0, questions)
                assert step.llm_tokens == count_tokens(tokenized(generator, _requests(inputs, training_step.TOP_K)))
            else:
                trainer._train_step(0)
            losses[name] = trainer.progress.history[-1]["loss"]
        assert losses["theirs"] == pytest.approx(losses["ours"], abs=1e-4)
        assert losses["stale"] != pytest.approx(losses["ours"], abs=1e-2)


def _requests(inputs, top_k):
    return [inputs.request(question, passage) for question, pool in enumerate(inputs.pools) for passage in pool[:top_k]]


def test_their_sweep_costs_its_steps_at_the_mean_length(inputs, generator):
    tokens = count_tokens(tokenized(generator, _requests(inputs, 16))) * 4 / len(inputs.pools)
    steps = training_step.Steps(Cost(0.1, 0.1), Cost(40.0, 50.0), tokens / 2, 0.0, None)
    share = sweep._their_trainings(inputs, steps, generator.prompts)
    assert share.seconds == pytest.approx(8 * 2 * (len(inputs.pools) // 4) * 40.0 * 2)


def test_ray_overhead_counts_waiting_and_slower_calls():
    loop, through_ray = Pass(wall=20.0, inside_wall=20.0, inside_cpu=10.0), Pass(wall=33.0, inside_wall=30.0, inside_cpu=10.5)
    assert through_ray.unloaded / loop.unloaded == pytest.approx(1.1 * 1.05)


def test_the_sides_of_a_race_take_turns():
    order = []
    finished = race({"a": lambda: order.append("a") or 1, "b": lambda: order.append("b") or 2}, repeats=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert (finished["a"].value, finished["b"].value) == (1, 2)


class TestReport:
    ROWS = (
        speed_up("faster", 2.0, 13.0, "s", 6.0),
        speed_up("slower", 2.0, 3.0, "s", 2.0),
        Row("little more", 1.2, 1.0, "s", 1.2, 1.1, True),
    )

    def test_met_and_missed(self):
        assert [row.met for row in self.ROWS] == [True, False, False]
        assert Row("", 1.0, 1.0, "s", 1.0, 1.1, at_most=True).met

    def test_summary_rows(self, tmp_path):
        rows = json.loads(write_summary(tmp_path / "summary.json", self.ROWS).read_text())
        assert rows[0] == {"name": "faster", "ours": 2.0, "theirs": 13.0, "unit": "s", "ratio": 6.5, "target": 6.0}
        assert all(row.keys() == rows[0].keys() for row in rows)
        with pytest.raises(ValueError, match="JSON"):
            write_summary(tmp_path / "bad.json", [Row("x", float("nan"), 1.0, "s", 1.0, 1.0)])

    def test_page_and_picture(self, tmp_path):
        page = write_page(tmp_path / "report.md", [Outcome(list(self.ROWS), ["a remark"])], "idle machine").read_text()
        assert "| faster | 2 | 13 | s | 6.5 | ≥ 6 | yes |" in page
        assert "| little more | 1.2 | 1 | s | 1.2 | ≤ 1.1 | no |" in page
        assert "- a remark" in page
        assert draw(tmp_path / "ratios.png", self.ROWS, "idle machine").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--only", "a,x"], "--only: no benchmark 'x'"), (["--only", "b"], "nowhere/telequad")],
)
def test_mistakes_end_in_one_line(tmp_path, arguments, message):
    result = CliRunner().invoke(main, ["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
