"""`armor-ray plan` counts what a run would count, says what it assumed, and leaves no trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from huggingface_hub.errors import HTTPError
from pipeline_cases import Tiny
from transformers import AutoModel, AutoTokenizer

from armor_ray.cli import main
from armor_ray.config import load_config
from armor_ray.corpus import streams
from armor_ray.corpus.prepare import prepare
from armor_ray.models import size
from armor_ray.models.size import ModelSize, model_size
from armor_ray.stages.estimates.estimate import estimate
from armor_ray.stages.estimates.judging import curation_lines
from armor_ray.stages.estimates.lines import Rates
from armor_ray.stages.estimates.sample import sample_data

RATES = Rates(gpu=1e12, cpu=1e9)


@pytest.fixture
def case(tiny: Tiny, tmp_path: Path) -> Path:
    return replace(tiny, root=tmp_path).config("case")


def amounts(case: Path, *overrides: str) -> dict[tuple[str, str], float | None]:
    return {(line.stage, line.what): line.amount for line in estimate(load_config(case, list(overrides)), RATES)}


def test_the_amounts_are_those_of_the_run(case: Path, tiny: Tiny) -> None:
    config = load_config(case)
    found = amounts(case)
    prepared = prepare(config.data, config.seed)
    examples, train = prepared.examples, prepared.examples["train"]
    assert found["prepare", "passages"] == len(prepared.passages)
    assert [found["prepare", f"{split} questions"] for split in examples] == [len(table) for table in examples.values()]
    gold = sum(map(len, train["positive_ids"].to_pylist()))
    assert found["score", "pairs"] == 4 * len(train) + gold
    assert found["score", "answer likelihoods"] == 2 * found["score", "pairs"]
    # Two recipes and the sweep's winner, three trials; 6 epochs of whole batches of 4.
    assert (found["train", "runs"], found["sweep", "trials"]) == (3, 3)
    assert found["train", "optimizer steps"] == 6 * 6 * (len(train) // 4)
    assert found["answer", "answers"] == 2 * (2 + 4)  # closed book, Base RAG, and the main recipe's four rows
    tokenizer = AutoTokenizer.from_pretrained(tiny.encoder)
    lengths = [min(24, len(tokenizer(text)["input_ids"])) for text in prepared.passages["text"].to_pylist()]
    assert found["embed", "tokens"] == pytest.approx(sum(lengths))
    body = model_size(str(tiny.encoder))
    assert body is not None
    assert found["embed", "time of one core"] == pytest.approx(2 * body.body * sum(lengths) / 1e9 / 3600)
    assert found["memory", "index in one process"] == pytest.approx(len(prepared.passages) * 32 * 4 / 1e9)


def test_recipes_with_rewards_cost_what_they_add(case: Path, tiny: Tiny) -> None:
    plain = amounts(case)
    overrides = ["evaluation.recipes=[armor, uae]", f"reward.model={tiny.encoder}", "utility.kind=log_ratio"]
    found = amounts(case, *overrides)
    assert ("reward", "training tokens") in found.keys() - plain.keys()
    assert found["score", "pairs"] > plain["score", "pairs"]  # validation pools too


def test_each_recipe_counts_by_its_own_settings(case: Path, tiny: Tiny) -> None:
    """Only `uae` trains both towers, for two epochs of batches of eight; `armor` stays at the run's settings."""
    own = "{uae: {objective.towers: shared, training.epochs: 2, training.batch_size: 8}}"
    common = ["evaluation.recipes=[armor, uae]", "sweep.parameters={}", "evaluation.seeds=[0, 1]", f"reward.model={tiny.encoder}"]
    plain, found = amounts(case, *common), amounts(case, *common, f"evaluation.recipe_settings={own}")
    train, passages = found["prepare", "train questions"], found["prepare", "passages"]
    steps = {"armor": 6 * (train // 4), "uae": 2 * (train // 8)}
    assert plain["train", "optimizer steps"] == 2 * 2 * steps["armor"]
    assert found["train", "optimizer steps"] == 2 * (steps["armor"] + steps["uae"])
    assert found["embed", "tokens"] == 5 * plain["embed", "tokens"]  # and for two seeds of uae, interpolated ones too
    question = plain["train", "tokens"] / (2 * 2 * steps["armor"] * 4)
    passage = plain["embed", "tokens"] / passages
    pool = (4 * train + gold(case)) / train
    assert found["train", "tokens"] == pytest.approx(2 * (4 * steps["armor"] * question + 8 * steps["uae"] * (question + pool * passage)))


def gold(case: Path) -> int:
    config = load_config(case)
    return sum(map(len, prepare(config.data, config.seed).examples["train"]["positive_ids"].to_pylist()))


def test_a_swept_length_of_training_counts_point_by_point(case: Path) -> None:
    found = amounts(case, "sweep.parameters={training.epochs: [1, 3]}", "sweep.trials=null", "evaluation.recipes=[armor]")
    steps = found["prepare", "train questions"] // 4
    assert found["train", "optimizer steps"] == (6 + 1 + 3 + 3) * steps  # the preset, both trials, and the winner at its longest


def test_rewards_cost_priors_picks_and_a_stock_model(case: Path, tiny: Tiny) -> None:
    rewarded = ["evaluation.recipes=[armor, uae]", f"reward.model={tiny.encoder}"]
    plain = amounts(case, *rewarded)
    more = ["reward.priors=[base, bm25]", f"reward.stock={tiny.encoder}", f"candidates.picks={{model: {tiny.encoder}, count: 2, depth: 9}}"]
    found = amounts(case, *rewarded, *more)
    asked = {split: found["prepare", f"{split} questions"] for split in ("train", "validation")}
    assert found["candidates", "pairs to pick from"] == 9 * sum(asked.values())
    assert found["score", "pairs"] == plain["score", "pairs"] + 2 * sum(asked.values())
    assert found["reward", "prior scores"] == 2 * found["score", "pairs"]
    length = plain["reward", "tokens of all rewards"] / plain["score", "pairs"]
    assert found["candidates", "tokens"] == pytest.approx(9 * sum(asked.values()) * length)
    assert found["reward", "tokens of all rewards"] == pytest.approx(found["score", "pairs"] * length)
    assert 0 < found["reward", "tokens of the stock cross-encoder"] < found["reward", "tokens of all rewards"]
    few = amounts(case, f"candidates.picks={{model: {tiny.encoder}, depth: 5000}}")  # more than there are passages
    assert few["candidates", "pairs to pick from"] == few["prepare", "passages"] * sum(asked.values())


def test_an_evaluation_counts_what_it_asks_of_models(case: Path, tiny: Tiny) -> None:
    rewarded = ["evaluation.recipes=[armor, uae]", f"reward.model={tiny.encoder}"]
    plain = amounts(case, *rewarded, "utility.noise_pairs=8")
    asks = [
        "evaluation={recipes: [armor, uae], utility_questions: 3, hard_pool: 7, latency_questions: 2}",
        "utility.noise_pairs=13",
        "judge.model=m",
        "baselines={rerankers: [{kind: listwise, depth: 10, window: 4, step: 2, over: [base, bm25]}, {kind: pointwise, depth: 8}]}",
    ]
    found = amounts(case, *rewarded, *asks)
    assert (found["utility", "pairs scored again"], found["evaluate", "pairs to score"]) == (13, 3 * 7)
    a_pair = (found["score", "tokens"] - plain["score", "tokens"]) / 5
    assert found["evaluate", "tokens"] == pytest.approx(3 * 7 * a_pair)
    test = found["prepare", "test questions"]
    # Ten passages in windows of four that move by two: 10-7, 8-5, 6-3, 4-1; of a pool of seven: 7-4, 5-2, 3-1.
    assert found["evaluate", "bm25>listwise requests"] == found["evaluate", "base>listwise requests"] == (test + 2) * 4 + test * 3
    assert found["evaluate", "base>pointwise requests"] == (test + 2) * 8 + test * 7
    assert not [what for stage, what in plain if stage == "evaluate"]


def test_a_stream_is_estimated_from_its_beginning(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = amounts(case)
    monkeypatch.setattr(streams, "HELD_CHARACTERS", 0)
    assert amounts(case) == whole  # fewer documents than the sample


def test_a_model_out_of_reach_is_said_to_be(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise HTTPError("no network")

    monkeypatch.setattr(size, "get_safetensors_metadata", unreachable)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", unreachable_folder)
    lines = estimate(load_config(case, ["generator.model=nobody/nothing", "encoder.model=nobody/nothing"]), RATES)
    unknown = [line for line in lines if line.amount is None]
    assert {line.stage for line in unknown} >= {"embed", "score", "train", "answer", "all", "memory"}
    assert all("unknown" in line.assumption for line in unknown), unknown
    (tokens,) = [line for line in lines if (line.stage, line.what) == ("score", "tokens")]
    assert "4 characters a token" in tokens.assumption
    assert tokens.amount > 0


def unreachable_folder(*_: object, **__: object) -> None:
    raise OSError("no network")


def test_sizes_are_read_from_headers(tiny_bert: Path) -> None:
    model = AutoModel.from_pretrained(tiny_bert)
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = sum(p.numel() for name, p in model.named_parameters() if name.startswith("embeddings."))
    assert model_size(str(tiny_bert)) == ModelSize(total, total - tables, model.config.hidden_size)


def test_the_command_prints_json_and_writes_nothing(case: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(main, ["plan", "--config", str(case), "--json", "--set", "candidates.pool_size=5"])
    assert result.exit_code == 0, result.output
    lines = json.loads(result.stdout)
    assert {"stage", "what", "amount", "unit", "assumption"} == lines[0].keys()
    assert all(line["assumption"] for line in lines)
    table = CliRunner().invoke(main, ["plan", "--config", str(case)])
    assert "optimizer steps" in table.output
    assert sorted(tmp_path.rglob("*")) == before


def test_judges_are_counted_by_their_own_requests(tmp_path: Path) -> None:
    rows = [{"id": f"d{i}", "text": f"Sensing and communication share beam {i}. " * 20} for i in range(300)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qa.jsonl").write_text("")
    overrides = [
        f"data={{format: jsonl, path: {tmp_path}}}",
        "curation={pipeline: documents, domain: isac, questions: {writer: judge, passages: 50, per_passage: 2}}",
        "judge={model: m, prompt_price: 2, completion_price: 10}",
        f"workspace={tmp_path / 'workspace'}",
    ]
    config = load_config(None, overrides)
    sample = sample_data(config)
    found = {line.what: line.amount for line in curation_lines(config, sample, RATES)}
    # A document each; 50 passages; 100 questions in batches of 20.
    assert [found[f"{step} requests"] for step in ("document_relevance", "question_writing", "example_quality")] == [300, 50, 5]
    assert found["question_writing reply tokens"] == 50 * 900
    assert found["example_quality reply tokens"] == 5 * 900
    assert found["requests to pay"] == 355
    prompts, replies = (sum(v for k, v in found.items() if k.endswith(kind)) for kind in ("prompt tokens", "reply tokens"))
    assert found["money"] == pytest.approx((2 * prompts + 10 * replies) / 1e6)
    assert sample.questions("train") == 0
