"""What makes which artifact stale, decided without running anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipeline_cases import Tiny

from armor_ray import pipeline
from armor_ray.config import Config, load_config
from armor_ray.errors import ArmorError
from armor_ray.pipeline import STAGE_NAMES, ArtifactStatus
from armor_ray.stages import promote, sweep, train
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.limits import check_sizes
from armor_ray.stages.methods import trial_config
from armor_ray.stages.plans import PLANS
from armor_ray.stages.prepare import SPLITS, load_examples, load_passages
from armor_ray.stages.prepare import run_all as run_prepare_stage
from armor_ray.stages.trials import TrialSpec
from armor_ray.workspace import Draft, Workspace

NUM_PASSAGES, NUM_TRAIN = 60, 25


@pytest.fixture(autouse=True)
def only_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may start a slow stage."""
    run = pipeline._run

    def run_prepare(stage: str, context: Context, todo: list[Plan]) -> None:
        assert stage == "prepare", f"{stage} was started"
        run(stage, context, todo)

    monkeypatch.setattr(pipeline, "_run", run_prepare)


@pytest.fixture
def case(tiny: Tiny, tmp_path: Path) -> Path:
    """A config file over a small corpus."""
    return replace(tiny, root=tmp_path).config("case")


def finish(config: Config) -> None:
    """Publishes an empty artifact under every plan, as a finished run would leave them."""
    context = Context(config, Workspace(config.workspace))

    def write(draft: Draft) -> None:
        draft.rows |= {"passages": NUM_PASSAGES, "train": NUM_TRAIN}

    for plans in PLANS.values():
        for plan in plans(context):
            context.fingerprints[plan.name] = plan.fingerprint
            context.publish(plan, write)


def stale(case: Path, *overrides: str) -> dict[str, str]:
    """Problems by artifact, for the case's config with overrides."""
    return {status.plan.name: status.problem for status in pipeline.status(load_config(case, list(overrides))) if status.problem}


def test_nothing_is_stale_after_a_run_and_all_is_missing_before(case: Path) -> None:
    config = load_config(case)
    before: list[ArtifactStatus] = pipeline.status(config)
    assert {status.problem for status in before} == {"missing"}
    assert not pipeline.is_complete(config)
    finish(config)
    assert stale(case) == {}
    assert pipeline.is_complete(config)


@pytest.mark.parametrize(
    ("override", "first", "untouched"),
    [
        ("encoder.pooling=cls", {"embeddings": "stale: config encoder.pooling changed"}, {"passages", "examples"}),
        ("data.validation_fraction=0.3", {"passages": "stale: config data.validation_fraction changed"}, set()),
        ("data.deduplicate=true", {"examples": "stale: config data.deduplicate changed"}, set()),
        ("data.chunking.mode=sentences", {"passages": "stale: config data.chunking changed"}, set()),
        ("data.chunking.mode=tokens", {"passages": "stale: config data.chunking, encoder changed"}, set()),
        ("candidates.pool_size=5", {"candidates": "stale: config pool_size changed"}, {"embeddings", "index"}),
        ("generator.max_length=64", {"utilities": "stale: config generator.window changed"}, {"embeddings", "index", "candidates"}),
        ("training.epochs=3", {"sweep": "stale: config training.epochs changed"}, {"embeddings", "candidates", "utilities"}),
        (
            "evaluation.recipe_settings={armor: {training.learning_rate: 5.0e-3}}",
            {"sweep": "stale: config training.learning_rate changed"},
            {"embeddings", "candidates", "utilities"},
        ),
        ("evaluation.bootstrap=500", {"reports": "stale: config evaluation.bootstrap changed"}, {"utilities", "sweep", "promoted"}),
        ("evaluation.hard_pool=8", {"reports": "stale: config evaluation.hard_pool changed"}, {"utilities", "promoted"}),
        ("evaluation.latency_questions=8", {"latency": "missing", "reports": "stale: latency changed"}, {"embeddings", "promoted"}),
        ("index.hnsw_ef_search=64", {"index": "stale: config index.hnsw_ef_search changed"}, {"passages", "examples", "embeddings"}),
        ("index.kind=hnsw", {"index": "stale: config index.kind changed"}, {"passages", "examples", "embeddings"}),
    ],
)
def test_a_changed_key_is_named_and_reaches_only_what_depends_on_it(
    case: Path, override: str, first: dict[str, str], untouched: set[str]
) -> None:
    finish(load_config(case))
    found = stale(case, override)
    assert first.items() <= found.items()
    assert not untouched & found.keys()


@pytest.mark.parametrize(
    "override",
    [
        "encoder.batch_tokens=512",
        "generator.batch_tokens=512",
        "resources.embed_actors=1",
        "training.max_failures=0",
        "data.password=x",
    ],
)
def test_what_changes_no_number_makes_nothing_stale(case: Path, override: str) -> None:
    finish(load_config(case))
    assert stale(case, override) == {}


def test_settings_younger_than_the_first_workspaces_do_not_make_these_stale(case: Path) -> None:
    config = load_config(case)
    plan = PLANS["prepare"](Context(config, Workspace(config.workspace)))[0]
    assert not {"chunking", "deduplicate", "duplicate_similarity"} & plan.config["data"].keys()
    finish(config)
    assert "hnsw_ef_search" not in Workspace(config.workspace).require("index").config["index"]
    reports = Workspace(config.workspace).require("reports")
    assert not {"hard_pool", "utility_questions", "latency_questions"} & reports.config["evaluation"].keys()
    assert "generator" not in reports.config


def test_prepare_cuts_by_the_encoders_tokens_and_lists_duplicates(case: Path) -> None:
    overrides = ["data.chunking={mode: tokens, tokens: 8, overlap: 2}", "data.deduplicate=true"]
    config = load_config(case, overrides)
    context = Context(config, Workspace(config.workspace))
    run_prepare_stage(context, PLANS["prepare"](context))
    first, second = load_passages(context.workspace, "doc_id", "start", "end").to_pylist()[:2]
    assert first["doc_id"] == second["doc_id"]
    assert first["start"] < second["start"] < first["end"] < second["end"]
    listed = [json.loads(line) for line in (context.local("examples") / "duplicates.jsonl").read_text().splitlines()]
    questions = {row["example_id"] for split in SPLITS for row in load_examples(context.workspace, split).to_pylist()}
    assert not {entry["example_id"] for entry in listed if entry["action"] == "dropped"} & questions


def test_where_data_and_models_lie_does_not_matter(case: Path, tmp_path: Path, tiny: Tiny) -> None:
    finish(load_config(case))
    parts = {"data.path": tiny.corpus, "encoder.model": tiny.encoder, "generator.model": tiny.generator}
    overrides = [f"{key}={shutil.copytree(path, tmp_path / f'moved-{i}')}" for i, (key, path) in enumerate(parts.items())]
    assert stale(case, *overrides) == {}


@pytest.mark.parametrize(
    ("section", "change", "problems"),
    [
        ("data.path", lambda f: (f / "qa.jsonl").write_text((f / "qa.jsonl").read_text().replace("q00", "q99")), {"passages", "examples"}),
        ("encoder.model", lambda f: (f / "tokenizer_config.json").write_text("{}"), {"embeddings"}),
        ("generator.model", lambda f: (f / "generation_config.json").write_text("{}"), {"utilities"}),
    ],
)
def test_changed_contents_are_noticed(
    case: Path, tmp_path: Path, tiny: Tiny, section: str, change: Callable[[Path], object], problems: set[str]
) -> None:
    finish(load_config(case))
    parts = {"data.path": tiny.corpus, "encoder.model": tiny.encoder, "generator.model": tiny.generator}
    copy = shutil.copytree(parts[section], tmp_path / "copy")
    change(copy)
    found = stale(case, f"{section}={copy}")
    assert problems <= found.keys()
    assert section != "generator.model" or "embeddings" not in found


def test_a_lost_or_old_interpolation_is_noticed_and_trained_again_with_its_plain_one(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(case)
    finish(config)
    workspace = Workspace(config.workspace)
    lost, old = "retrievers/armor-seed0-interpolated", "retrievers/replug-seed0-interpolated"
    workspace.delete(lost)
    plain = workspace.require("retrievers/replug-seed0")
    workspace.publish(
        old, stage="train", fingerprint="old", inputs={**plain.inputs, "utilities": "old"}, config=plain.config, write=lambda _: None
    )
    assert stale(case) == {lost: "missing", old: "stale: utilities changed"}

    specs: list[TrialSpec] = []
    monkeypatch.setattr(pipeline, "_run", lambda stage, context, todo: train.run_all(context, todo))
    monkeypatch.setattr(train, "connect", lambda _: None)
    monkeypatch.setattr(train, "load_table", lambda *_: SimpleNamespace(train=[]))
    monkeypatch.setattr(train, "best_parameters", lambda _: {})
    monkeypatch.setattr(train, "run_trials", lambda _, wanted, *__: specs.extend(wanted))
    pipeline.run(config, until="train", say=lambda _: None)
    assert [spec.name for spec in specs] == ["retrievers/armor-seed0", "retrievers/replug-seed0"]


def test_a_damaged_winner_of_the_sweep_is_one_line(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))

    def write(draft: Draft) -> None:
        (draft.path / "best.json").write_text("{")

    workspace.publish("sweep", stage="sweep", fingerprint="f", inputs={}, config={}, write=write)
    with pytest.raises(ArmorError, match=r"best.json: not a readable JSON file .*; rerun with --force sweep$"):
        sweep.best_parameters(workspace)


def test_what_was_promoted_by_hand_stays_until_it_is_trained_anew_or_promotion_is_forced(
    case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(case)
    finish(config)
    workspace = Workspace(config.workspace)
    source = workspace.require("retrievers/replug-seed0")
    monkeypatch.setattr(promote, "read_golden", lambda _: None)
    promote.promote(workspace, "replug-seed0")
    assert stale(case) == {}
    assert stale(case, "training.epochs=3")["promoted"] == "stale: retrievers/replug-seed0 changed"

    # The chosen one was trained anew: the choice stays, and is said.
    by_hand = workspace.require("promoted")
    finish(load_config(case, ["training.epochs=3"]))
    workspace.publish("promoted", stage="promote", fingerprint="old", inputs={}, config=by_hand.config, write=lambda _: None)
    lines: list[str] = []
    monkeypatch.setattr(pipeline, "_run", lambda stage, context, todo: promote.run_all(context, todo))
    pipeline.run(load_config(case, ["training.epochs=3"]), say=lines.append)
    assert "promote: replug-seed0 again, as it was promoted by hand; --force promote returns to the best on validation" in lines
    assert workspace.require("promoted").inputs["retrievers/replug-seed0"] != source.fingerprint

    monkeypatch.setattr(pipeline, "_run", lambda stage, context, todo: lines.append(f"{stage} {todo[0].config}"))
    pipeline.run(load_config(case, ["training.epochs=3"]), force="promote", say=lambda _: None)
    assert lines[-1] == "promote {'metric': 'R@3'}"


# -- runs that have nothing to do, or cannot --------------------------------------------------------------------------------------


def test_unchanged_rerun_runs_nothing(case: Path) -> None:
    config = load_config(case)
    finish(config)
    lines: list[str] = []
    pipeline.run(config, say=lines.append)
    planned = {plan.stage for plan in (status.plan for status in pipeline.status(config))}
    assert lines == [f"{stage}: up to date" for stage in STAGE_NAMES if stage in planned]
    assert not planned & {"utility", "reward", "mine", "reindex"}  # for recipes with rewards only


def test_force_starts_one_stage_afresh_and_keeps_its_artifact_till_then(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(case)
    finish(config)
    workspace = Workspace(config.workspace)
    workspace.write_bytes(".work/embed/block", b"half")
    workspace.write_bytes(".work/train/checkpoint", b"half")
    ran: list[str] = []

    def run(stage: str, context: Context, todo: list[Plan]) -> None:
        ran.append(stage)
        assert context.workspace.manifest("embeddings") is not None
        assert context.workspace.files(".work/embed") == []
        assert context.workspace.files(".work/train") == [".work/train/checkpoint"]

    monkeypatch.setattr(pipeline, "_run", run)
    pipeline.run(config, force="embed", say=lambda _: None)
    assert ran == ["embed"]


def test_until_stops_there_and_plans_no_further(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(case, ["generator.model=/nowhere"])
    ran: list[str] = []
    monkeypatch.setattr(pipeline, "_run", lambda stage, *_: ran.append(stage))
    monkeypatch.setattr(pipeline, "_check_sizes", lambda *_: None)
    pipeline.run(config, until="index", say=lambda _: None)
    assert ran == ["prepare", "embed", "index"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"until": "trian"}, "--until: no stage 'trian'; stages: curate, prepare, embed"),
        ({"force": "all"}, "--force: no stage 'all'"),
        ({"force": "train", "until": "score"}, "--force: 'train' comes after 'score', where the run stops"),
    ],
)
def test_bad_stage_names(case: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArmorError, match=message):
        pipeline.run(load_config(case), **arguments)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["generator.model=/nowhere"], "/nowhere: no such model folder"),
        (["data.path=/nowhere"], "/nowhere"),
        (["evaluation.recipes=[rag]", "sweep.parameters={}"], "evaluation.recipes: 'armor' is not among the trained recipes"),
    ],
)
def test_what_planning_can_find_is_found_before_the_first_stage(case: Path, overrides: list[str], message: str) -> None:
    config = load_config(case, overrides)
    with pytest.raises(ArmorError, match=message):
        pipeline.run(config)
    assert Workspace(config.workspace).names() == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["candidates.pool_size=999"], r"candidates.pool_size: asks for 999 passages, the corpus has 6\d; choose at most 6\d, or add doc"),
        (["candidates.picks={model: demo/encoder, depth: 100}"], "candidates.picks.depth: asks for 100"),
        (["evaluation.ks=[1, 100]"], "evaluation.ks: asks for 100 passages"),
        (["evaluation.generation_top_k=64"], "evaluation.generation_top_k: asks for 64"),
        (["training.batch_size=100"], r"training.batch_size: a batch of 100 questions, the training split has \d+; choose at most"),
    ],
)
def test_k_or_batch_larger_than_the_data_is_refused_before_anything_is_published(case: Path, overrides: list[str], message: str) -> None:
    config = load_config(case, overrides)
    with pytest.raises(ArmorError, match=message):
        pipeline.run(config, say=lambda _: None)
    assert Workspace(config.workspace).names() == []


def test_a_workspace_is_up_to_date_by_its_own_copy_of_the_config(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other workspaces, there or not yet, are named by their whole paths there."""
    monkeypatch.chdir(case.parent)
    other = load_config(case, ["workspace=other"])
    finish(other)
    config = load_config(case, ["cache=elsewhere", "evaluation.transfer_to=[other]"])
    finish(config)
    copy = case.parent / "copy.yaml"
    copy.write_text(pipeline.resolved_config(config), encoding="utf-8")
    found = load_config(copy)
    assert (found.cache, found.evaluation.transfer_to) == (str(case.parent / "elsewhere"), [str(case.parent / "other")])
    assert pipeline.is_complete(found)


def test_a_trial_is_the_main_recipe_with_its_own_settings_but_for_what_is_tried() -> None:
    own = "{armor: {training.learning_rate: 1.0e-3, objective.lambda_q: 5.0}, rag: {training.epochs: 9}}"
    trial = trial_config(load_config(None, [f"evaluation.recipe_settings={own}"]), {"objective.lambda_q": 0.5})
    assert (trial.training.learning_rate, trial.objective.lambda_q, trial.training.epochs) == (1e-3, 0.5, 1)
    assert trial.training.interpolate == []


def test_k_as_large_as_the_corpus_is_fine(case: Path) -> None:
    config = load_config(case, ["candidates.pool_size=60", "evaluation.ks=[60]", "evaluation.generation_top_k=60"])
    check_sizes(config, NUM_PASSAGES, NUM_TRAIN)
    with pytest.raises(ArmorError, match="pool_size"):
        check_sizes(config, NUM_PASSAGES - 1, NUM_TRAIN)


def test_k_is_checked_against_a_corpus_that_was_prepared_before(case: Path) -> None:
    finish(load_config(case))
    with pytest.raises(ArmorError, match=r"evaluation.ks: asks for 100"):
        pipeline.run(load_config(case, ["evaluation.ks=[100]"]), say=lambda _: None)


REWARD_STAGES = ("utility", "reward", "mine", "reindex")


def planned(case: Path, *overrides: str) -> dict[str, Plan]:
    """Every plan of a config, by artifact."""
    return {status.plan.name: status.plan for status in pipeline.status(load_config(case, list(overrides)))}


def test_only_recipes_with_rewards_need_a_reward_model(case: Path) -> None:
    plain = planned(case)
    assert not [plan for plan in plain.values() if plan.stage in REWARD_STAGES]
    extended = planned(case, "evaluation.recipes=[armor, replug, uae, armor_uae]", f"reward.model={load_config(case).encoder.model}")
    added = {name for name in extended if extended[name].stage in REWARD_STAGES}
    assert added == {"pair_utilities", "reward_model", "rewards", "negatives"}
    # What was trained without a reward model stays as it is.
    kept = {name: plan.fingerprint for name, plan in plain.items() if plan.stage in ("score", "sweep", "train")}
    assert kept == {name: extended[name].fingerprint for name in kept}
    assert "negatives" in extended["retrievers/uae-seed0"].inputs


def test_shared_towers_have_a_corpus_a_retriever(case: Path) -> None:
    model = load_config(case).encoder.model
    shared = ["objective.recipe=uae", "objective.towers=shared", f"reward.model={model}", "sweep.parameters={}"]
    plans = planned(case, "evaluation.recipes=[armor, uae]", *shared)
    corpora = {name for name, plan in plans.items() if plan.stage == "reindex"}
    assert corpora == {"corpora/uae-seed0", "corpora/uae-seed0-interpolated"}
    assert corpora <= plans["reports"].inputs.keys()


def test_towers_may_be_shared_by_one_recipe_alone(case: Path) -> None:
    settings = "evaluation.recipe_settings={uae: {objective.towers: shared}}"
    recipes = "evaluation.recipes=[armor, uae, armor_uae]"
    plans = planned(case, recipes, settings, f"reward.model={load_config(case).encoder.model}", "sweep.parameters={}")
    assert {name for name, plan in plans.items() if plan.stage == "reindex"} == {"corpora/uae-seed0", "corpora/uae-seed0-interpolated"}
