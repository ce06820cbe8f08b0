"""From likelihoods to a served shared-tower retriever on a real Ray: utilities, reward model, gate, training, the corpus embedded anew,
every protocol of the evaluation, promotion and transfer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pipeline_cases import Tiny, manifest, summary

from armor_ray import pipeline
from armor_ray.cli import main
from armor_ray.config import load_config
from armor_ray.corpus.schemas import NEGATIVES, PAIR_UTILITIES, REWARDS, validate_table
from armor_ray.errors import ArmorError
from armor_ray.evaluation.trec import read_run
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.cross_encoder import CrossEncoder
from armor_ray.models.generators import load_generator
from armor_ray.models.generators.protocol import ScoreRequest
from armor_ray.retrieval.index_file import open_index
from armor_ray.retrieval.pools import hard_pools
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.passages import Wanted
from armor_ray.serving.retriever import Job, Retriever
from armor_ray.stages.embed import open_embeddings
from armor_ray.stages.search import compare
from armor_ray.workspace import Workspace

ASKED, POOL = 4, 6
METHODS = ["base", "uae", "bm25", "bm25+base", "bm25+uae", "listed"]


@pytest.fixture(scope="module")
def own(tiny: Tiny, scored: Path, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The miniature with a workspace "w" in which everything up to `score` is done."""
    found = replace(tiny, root=tmp_path_factory.mktemp("uae"))
    found.copy(scored, "w")
    return found


def sections(tiny: Tiny) -> dict[str, dict[str, Any]]:
    """`uae` with shared towers, every evaluation protocol on; fusions take the dense side alone, so that they rank as it does."""
    return {
        "utility": {"kind": "log_ratio", "noise_pairs": 16},
        "reward": {"model": str(tiny.encoder), "max_length": 24, "learning_rate": 1e-3, "batch_size": 4, "gate_margin": 0.0},
        "objective": {"recipe": "uae", "towers": "shared"},
        "training": {"epochs": 1, "interpolate": []},
        "evaluation": {
            "recipes": ["uae"],
            "ks": [1, 3, 5],
            "fusion_grid": [1.0],
            "hard_pool": POOL,
            "utility_questions": ASKED,
            "latency_questions": 3,
        },
        "baselines": {"first_stages": [{"kind": "fusion", "name": "listed", "of": ["uae", "bm25"]}]},
        "sweep": {"parameters": {}},
    }


@pytest.fixture(scope="module")
def finished(own: Tiny) -> Path:
    """A workspace in which `uae` with shared towers has run up to its own index."""
    return own.run("w", until="reindex", **sections(own))


@pytest.fixture(scope="module")
def reported(own: Tiny, finished: Path) -> Path:
    """The same, answered, evaluated and promoted."""
    return own.run("w", **sections(own))


def rows(workspace: Path, name: str) -> list[dict[str, Any]]:
    schema = {"pair_utilities": PAIR_UTILITIES, "rewards": REWARDS, "negatives": NEGATIVES}[name]
    return validate_table(pq.read_table(workspace / name / "train.parquet"), schema, name).to_pylist()


def test_utilities_are_measured_against_the_closed_book_and_their_noise_is_known(finished: Path) -> None:
    facts = manifest(finished, "pair_utilities")["details"]
    assert 0 <= facts["noise_floor"] < 1e-3  # fp32
    answers = pq.read_table(finished / "utilities" / "train.parquet").to_pylist()
    assert {(row["example_id"], row["passage_id"]) for row in answers} == {
        (row["example_id"], row["passage_id"]) for row in rows(finished, "pair_utilities")
    }


def test_rewards_are_the_models_and_the_gate_follows_them(finished: Path) -> None:
    model = CrossEncoder.load(finished / "reward_model", 24)
    texts = pq.read_table(finished / "passages" / "passages.parquet")["text"].to_pylist()
    questions = {row["example_id"]: row for row in pq.read_table(finished / "examples" / "train.parquet").to_pylist()}
    found = rows(finished, "rewards")
    expected = model.score([(questions[row["example_id"]]["question"], texts[row["passage_id"]]) for row in found])
    np.testing.assert_allclose([row["reward"] for row in found], expected, atol=0.02)  # bf16 where the machine computes in it
    kept = 0
    for pool in rows(finished, "negatives"):
        gold = set(questions[pool["example_id"]]["positive_ids"])
        best = max(r for p, r in zip(pool["passage_ids"], pool["rewards"], strict=True) if p in gold)
        wanted = [i < 4 and p not in gold and best > r for i, (p, r) in enumerate(zip(pool["passage_ids"], pool["rewards"], strict=True))]
        assert pool["gated"] == wanted
        kept += sum(wanted)
    assert manifest(finished, "negatives")["details"]["train"]["kept"] == kept > 0
    methods = [row["method"] for row in manifest(finished, "rewards")["details"]["agreement"]]
    assert methods == ["bm25", "base", "reward"]
    shown = json.loads((finished / "negatives" / "examples.json").read_text(encoding="utf-8"))
    assert all(example["accepted"] and example["rejected"] for example in shown)


def test_a_reward_models_own_picks_join_the_pools(own: Tiny, finished: Path, scored: Path) -> None:
    """Those that the base's best and the gold passages leave out, best reward first; test pools stay the base's."""
    own.copy(scored, "picks")
    picks = {"model": str(finished / "reward_model"), "count": 3, "depth": 12}
    workspace = own.run("picks", until="candidates", **{**sections(own), "candidates": {"pool_size": 5, "top_k": 4, "picks": picks}})
    model, encoder = CrossEncoder.load(finished / "reward_model", 24), BiEncoder.load(load_config(own.config("picks")).encoder)
    texts = pq.read_table(workspace / "passages" / "passages.parquet")["text"].to_pylist()
    vectors = np.asarray(open_embeddings(workspace / "embeddings"))
    for split, added in (("train", 3), ("validation", 3), ("test", 0)):
        examples = pq.read_table(workspace / "examples" / f"{split}.parquet").to_pylist()
        pools = pq.read_table(workspace / "candidates" / f"{split}.parquet").to_pylist()
        for example, pool in zip(examples, pools, strict=True):
            base_C = vectors @ encoder.encode([example["question"]], "query")[0]
            best = np.argsort(-base_C, kind="stable")[:12].tolist()
            first = best[:5] + [row for row in example["positive_ids"] if row not in best[:5] and split != "test"]
            others = [row for row in best if row not in first]
            reward = dict(zip(others, model.score([(example["question"], texts[row]) for row in others]), strict=True))
            found = pool["passage_ids"]
            assert found[: len(first)] == first
            assert len(found) == len(first) + added
            np.testing.assert_allclose([reward[row] for row in found[len(first) :]], sorted(reward.values())[::-1][:added], atol=0.02)
            np.testing.assert_allclose(pool["scores"], base_C[found], atol=1e-5)
            assert pool["is_positive"] == [row in example["positive_ids"] for row in found]


def test_the_corpus_is_embedded_anew_as_encoding_from_scratch_does(finished: Path) -> None:
    encoder = BiEncoder.from_folder(finished / "retrievers" / "uae-seed0")
    texts = pq.read_table(finished / "passages" / "passages.parquet")["text"].to_pylist()
    corpus = finished / "corpora" / "uae-seed0"
    vectors = np.asarray(open_embeddings(corpus))
    np.testing.assert_allclose(vectors, encoder.encode(texts, "passage"), atol=1e-6)
    assert np.abs(vectors - np.asarray(open_embeddings(finished / "embeddings"))).max() > 1e-3
    index = open_index(corpus, encoder.identity.fingerprint())
    np.testing.assert_allclose(index.reconstruct_n(0, len(texts)), vectors, atol=0)
    with pytest.raises(ArmorError, match="the index holds vectors of encoder"):
        open_index(finished / "index", encoder.identity.fingerprint())


# -- what comes after training -------------------------------------------------------------------------------------------------


def questions_of(workspace: Path) -> list[dict[str, Any]]:
    return pq.read_table(workspace / "examples" / "test.parquet").to_pylist()


def run_of(workspace: Path, method: str) -> list[list[int]]:
    """Passage rows by rank, question by question."""
    found = read_run(workspace / "reports" / "runs" / f"{method}-0.trec")
    return [[int(row) for row, _ in found[question["example_id"]]] for question in questions_of(workspace)]


def test_a_shared_retriever_is_searched_in_its_own_corpus_everywhere(reported: Path) -> None:
    """Alone, fused with BM25, and as a first stage of the baselines; the base corpus would give other passages."""
    encoder = BiEncoder.from_folder(reported / "retrievers" / "uae-seed0")
    queries = encoder.encode([question["question"] for question in questions_of(reported)], "query")
    own, base = (queries @ np.asarray(open_embeddings(reported / name)).T for name in ("corpora/uae-seed0", "embeddings"))
    expected = np.argsort(-own, axis=1, kind="stable")[:, :10].tolist()
    assert expected != np.argsort(-base, axis=1, kind="stable")[:, :10].tolist()
    for method in ("uae", "bm25+uae", "listed"):
        assert [row[:10] for row in run_of(reported, method)] == expected, method
    assert run_of(reported, "uae") != run_of(reported, "base")
    assert len(pq.read_table(reported / "answers" / "uae" / "answers.parquet")) == 2


def test_hard_pools_hold_the_base_order_and_the_gold_passages(reported: Path) -> None:
    values = {(row["method"], row["metric"]): row for row in summary(reported)}
    gold = [question["positive_ids"] for question in questions_of(reported)]
    ranks = []
    for ranked, wanted in zip(run_of(reported, "base"), gold, strict=True):
        pool = hard_pools(np.array([ranked]), [np.array(wanted)], POOL)[0].tolist()
        ranks.append(next(rank for rank, row in enumerate(sorted(pool, key=ranked.index), 1) if row in wanted))
    assert values["base", "pool:MRR@10"]["value"] == pytest.approx(np.mean([1 / rank for rank in ranks]))
    assert values["listed", "pool:MAP"]["value"] == values["uae", "pool:MAP"]["value"] == values["bm25+uae", "pool:MAP"]["value"]
    assert all((method, "pool:R@5") in values for method in METHODS)


def test_expected_utility_is_the_generators_own(own: Tiny, reported: Path) -> None:
    """Of `uae`'s top passages, scored here once more: the mean over answers of how much a passage adds to a token's log-likelihood."""
    generator = load_generator(load_config(own.config("w", **sections(own))).generator)
    texts = pq.read_table(reported / "passages" / "passages.parquet")["text"].to_pylist()
    expected = []
    for question, ranked in zip(questions_of(reported)[:ASKED], run_of(reported, "uae"), strict=False):
        asked = [ScoreRequest("", question["question"], text, tuple(question["answers"])) for text in (texts[ranked[0]], None)]
        given, closed = (result.scores for result in generator.score(asked))
        expected.append(np.mean([(a.log_likelihood - b.log_likelihood) / a.tokens for a, b in zip(given, closed, strict=True) if a and b]))
    values = {(row["method"], row["metric"]): row for row in summary(reported)}
    assert values["uae", "ExpUtil@1"]["value"] == pytest.approx(np.mean(expected), abs=1e-4)
    facts = manifest(reported, "reports")["details"]["by utility"]
    assert (facts["asked"], facts["expected"]) == (ASKED, ASKED) == (4, values["base", "ExpUtil@1"]["n"])
    assert 1 <= facts["relevant"] == values["bm25", "utility:MAP"]["n"] <= ASKED


def test_latencies_are_measured_once(own: Tiny, reported: Path) -> None:
    rows = [row for row in summary(reported) if row["metric"] == "latency_ms"]
    assert {row["method"] for row in rows} == set(METHODS)
    assert all(row["n"] == 3 and row["value"] > 0 for row in rows)
    changed = sections(own)
    changed["evaluation"]["bootstrap"] = 150
    stale = {artifact.plan.name for artifact in pipeline.status(load_config(own.config("w", **changed))) if artifact.problem}
    assert stale == {"reports"}


def test_the_report_shows_the_reward_model_and_every_protocol(reported: Path) -> None:
    markdown = (reported / "reports" / "report.md").read_text(encoding="utf-8")
    for heading in ("## Utility and reward model", "### Gate", "### Hard pools", "### By the generator's utility", "### Latency"):
        assert heading in markdown
    counts = manifest(reported, "negatives")["details"]["train"]
    assert f"| train | {manifest(reported, 'negatives')['rows']['train']} | {counts['kept']} | {counts['rejected']} |" in markdown
    pictures = {path.name for path in (reported / "reports" / "figures").iterdir()}
    assert {"utility.png", "agreement.png", "latency.png"} <= pictures


def test_a_promoted_shared_retriever_serves_its_own_index(reported: Path) -> None:
    workspace = Workspace(str(reported))
    assert workspace.require("promoted").details["corpus"] == "corpora/uae-seed0"
    retriever = Retriever.open(workspace, ServingArguments(workspace=workspace.uri, compare=True))
    questions = [question["question"] for question in questions_of(reported)]
    answer, base = retriever.answer([Job(tuple(questions), arm, Wanted(5)) for arm in ("adapted", "base")])
    for given, method in ((answer, "uae"), (base, "base")):
        assert [[p.passage_id for p in passages] for passages in given.passages] == [row[:5] for row in run_of(reported, method)]
    shown = compare(workspace, load_config(reported / "config.yaml"), questions[0], 3)
    assert [adapted.text for _, adapted in shown] == [passage.text for passage in answer.passages[0][:3]]


def test_transfer_embeds_the_other_corpus_anew(own: Tiny, scored: Path, reported: Path) -> None:
    """The other workspace holds the same data, so the same numbers must come out of vectors made afresh."""
    other = own.copy(scored, "other")
    result = CliRunner().invoke(main, ["transfer", str(reported), str(other)])
    assert result.exit_code == 0, result.output
    assert "data (w) (trained on)" in result.output
    found = {
        (row["dataset"], row["method"], row["metric"]): row["value"]
        for row in json.loads((reported / "transfer" / "summary.json").read_text())
    }
    values = {(row["method"], row["metric"]): row["value"] for row in summary(reported)}
    for method in ("base", "uae"):
        for metric in ("R@1", "R@3", "MAP"):
            assert found["data (w)", method, metric] == found["data (other)", method, metric] == pytest.approx(values[method, metric])
    assert (reported / "transfer" / "transfer.png").exists()

    # A run that asks for it takes what is there, and shows it.
    wanted, lines = sections(own), []
    wanted["evaluation"]["transfer_to"] = [str(other)]
    own.run("w", until="evaluate", say=lines.append, **wanted)
    assert "transfer: up to date" in lines
    assert "### Zero-shot transfer" in (reported / "reports" / "report.md").read_text(encoding="utf-8")
    assert {row["dataset"] for row in summary(reported)} == {"data", "data (other)"}

    facts = other / "embeddings" / "manifest.json"
    facts.write_text(facts.read_text().replace(manifest(other, "embeddings")["details"]["encoder"], "f" * 16))
    result = CliRunner().invoke(main, ["transfer", str(reported), str(other)])
    assert result.exit_code == 2
    assert "is not the one that the retrievers of" in result.output
    assert len(result.output.splitlines()) == 1
