"""The stages up to `score` on a real Ray, with a tiny encoder and a tiny random generator."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray
from pipeline_cases import Tiny, manifest

from armor_ray import pipeline
from armor_ray.config import ResourcesConfig, load_config
from armor_ray.corpus.schemas import CANDIDATES, UTILITIES, validate_table
from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.generators import load_generator
from armor_ray.models.generators.protocol import ScoreRequest
from armor_ray.retrieval.index_file import open_index
from armor_ray.stages.cluster import plan_actors, plan_trials, user_errors
from armor_ray.stages.context import Context
from armor_ray.stages.embed import EmbedActor, block_name, open_embeddings
from armor_ray.stages.plans import PLANS
from armor_ray.stages.utility_cache import UtilityCache
from armor_ray.workspace import Workspace


@pytest.fixture
def own(tiny: Tiny, scored: Path, tmp_path: Path) -> Tiny:
    """The miniature with a workspace "w" of its own in which everything up to `score` is done."""
    copy = replace(tiny, root=tmp_path, corpus=Path(shutil.copytree(tiny.corpus, tmp_path / "corpus")))
    copy.copy(scored, "w")
    return copy


class Log:
    """Lines that a run says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    def ran(self) -> list[str]:
        return [line.partition(":")[0] for line in self.lines if ": done in " in line]


def utilities(workspace: Path, split: str = "train") -> list[dict[str, Any]]:
    return pq.read_table(workspace / "utilities" / f"{split}.parquet").to_pylist()


def cached(workspace: Path) -> int:
    """Answers in the utility cache."""
    return sum(pq.read_metadata(path).num_rows for path in workspace.glob("cache/utilities/*/*.parquet"))


# -- what the artifacts hold -----------------------------------------------------------------------------------------------------


def test_vectors_are_the_encoders_in_passage_order(tiny: Tiny, scored: Path) -> None:
    texts = pq.read_table(scored / "passages" / "passages.parquet")["text"].to_pylist()
    vectors = open_embeddings(scored / "embeddings")
    expected = BiEncoder.load(load_config(tiny.config("scored")).encoder).encode(texts, "passage")
    assert isinstance(vectors, np.memmap)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_pools_hold_the_nearest_passages_and_the_gold_ones(scored: Path) -> None:
    vectors = np.asarray(open_embeddings(scored / "embeddings"))
    for split in ("train", "validation", "test"):
        pools = validate_table(pq.read_table(scored / "candidates" / f"{split}.parquet"), CANDIDATES, split).to_pylist()
        gold = pq.read_table(scored / "examples" / f"{split}.parquet")["positive_ids"].to_pylist()
        queries = np.load(scored / "candidates" / f"queries-{split}.npy")
        for pool, query, positives in zip(pools, queries, gold, strict=True):
            nearest = np.argsort(-(vectors @ query), kind="stable")[:4].tolist()
            missed = [] if split == "test" else [row for row in positives if row not in nearest]
            assert pool["passage_ids"] == nearest + missed
            assert pool["is_positive"] == [row in positives for row in nearest + missed]
            np.testing.assert_allclose(pool["scores"], vectors[nearest + missed] @ query, atol=1e-5)


def test_utilities_are_the_generators_log_likelihoods(tiny: Tiny, scored: Path) -> None:
    table = validate_table(pq.read_table(scored / "utilities" / "train.parquet"), UTILITIES, "utilities")
    texts = pq.read_table(scored / "passages" / "passages.parquet")["text"].to_pylist()
    examples = {row["example_id"]: row for row in pq.read_table(scored / "examples" / "train.parquet").to_pylist()}
    generator = load_generator(load_config(tiny.config("scored")).generator)
    for row in table.to_pylist()[::37]:
        example = examples[row["example_id"]]
        request = ScoreRequest("x", example["question"], texts[row["passage_id"]], tuple(example["answers"]))
        (result,) = generator.score([request])
        score = result.scores[row["answer_idx"]]
        assert score is not None
        assert row["log_likelihood"] == pytest.approx(score.log_likelihood, abs=1e-3)
        assert (row["answer_tokens"], row["error"]) == (score.tokens, None)


def test_manifests_tell_where_everything_came_from(scored: Path) -> None:
    embeddings, index = manifest(scored, "embeddings"), manifest(scored, "index")
    assert embeddings["inputs"] == {"passages": manifest(scored, "passages")["fingerprint"]}
    assert index["inputs"] == {"embeddings": embeddings["fingerprint"]}
    assert index["details"]["encoder"] == embeddings["details"]["encoder"]
    assert embeddings["rows"] == {"embeddings": manifest(scored, "passages")["rows"]["passages"]}
    assert not (scored / ".work").exists() or not list((scored / ".work").iterdir())


def test_index_of_another_encoder_is_refused(scored: Path) -> None:
    with pytest.raises(ArmorError, match=r"the index holds vectors of encoder \w+, the queries come from other; use the encoder"):
        open_index(scored / "index", "other")


# -- resuming and reusing --------------------------------------------------------------------------------------------------------


def test_finished_blocks_are_not_embedded_again(own: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(own.config("w"))
    workspace = Workspace(config.workspace)
    context = Context(config, workspace)
    for stage in ("prepare", "embed"):
        (*_, plan) = PLANS[stage](context)
        context.fingerprints.update({p.name: p.fingerprint for p in PLANS[stage](context)})
    monkeypatch.setattr("armor_ray.stages.embed.block_rows", lambda _: 16)
    before = np.array(open_embeddings(workspace.local("embeddings")))
    # A killed run left the first block, here with vectors that only reuse can bring into the artifact.
    actor = EmbedActor(config.encoder, workspace.uri, "scratch")
    actor({"start": np.array([0]), "stop": np.array([16])})
    block = dict(np.load(workspace.path(f"scratch/{block_name(0)}")))
    np.savez(own.root / "block.npz", **{**block, "vectors": block["vectors"][::-1]})
    workspace.delete("embeddings")
    workspace.write_bytes(f".work/embed/{plan.fingerprint}/{block_name(0)}", (own.root / "block.npz").read_bytes())
    log = Log()
    own.run("w", until="embed", say=log)
    assert any("resuming, 1 of 4 blocks are there" in line for line in log.lines)
    after = np.array(open_embeddings(workspace.local("embeddings")))
    np.testing.assert_array_equal(after[:16], block["vectors"][::-1])
    np.testing.assert_allclose(after[16:], before[16:], atol=1e-6)
    assert workspace.files(f".work/embed/{plan.fingerprint}") == []


def test_another_generator_reuses_vectors_and_pools(own: Tiny) -> None:
    log = Log()
    before = cached(own.workspace("w"))
    own.run("w", until="score", say=log, generator={"max_length": 100})
    assert log.ran() == ["score"]
    assert "score: utilities is stale: config generator.window changed" in log.lines
    assert cached(own.workspace("w")) == 2 * before  # under an identity of its own


def test_dtype_auto_shares_the_cache_of_what_it_stands_for_and_no_other(own: Tiny) -> None:
    workspace = own.workspace("w")
    own.run("w", until="score", generator={"dtype": "auto"})
    meant, known = manifest(workspace, "utilities")["details"]["dtype"], cached(workspace)
    identities = [json.loads(path.read_text()) for path in workspace.glob("cache/utilities/*/generator.json")]
    assert {identity["dtype"] for identity in identities} == {"float32", meant}  # "own" was scored in float32
    own.run("w", until="score", generator={"dtype": meant})
    assert cached(workspace) == known
    with pytest.raises(AssertionError):
        UtilityCache(Workspace(str(workspace)), {**identities[0], "dtype": "auto"})


def test_only_new_triples_are_scored(own: Tiny) -> None:
    before, known = utilities(own.workspace("w")), cached(own.workspace("w"))
    example = before[0]["example_id"]
    lines = [json.loads(line) for line in (own.corpus / "qa.jsonl").read_text().splitlines()]
    for row in lines:
        if row["id"] == example:
            row["answers"].append("w1 w2 w3")
    (own.corpus / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    log = Log()
    own.run("w", until="score", say=log)
    after = utilities(own.workspace("w"))
    added = [row for row in after if row["example_id"] == example and row["answer_idx"] == 2]
    assert len(after) == len(before) + len(added) > len(before)
    pairs = len({(row["example_id"], row["passage_id"]) for row in before})
    assert f"score: {pairs - len(added)} of {pairs} train pairs are cached" in log.lines
    # A pair is scored with all its answers, the known ones too; no other pair is touched.
    assert cached(own.workspace("w")) == known + 3 * len(added)
    unchanged = {(r["example_id"], r["passage_id"], r["answer_idx"]): r["log_likelihood"] for r in after}
    assert all(unchanged[r["example_id"], r["passage_id"], r["answer_idx"]] == pytest.approx(r["log_likelihood"], abs=1e-3) for r in before)


def test_workspaces_may_share_their_scored_pairs(own: Tiny, scored: Path) -> None:
    workspace = own.copy(scored, "other")
    shutil.rmtree(workspace / "cache")
    pipeline.run(load_config(own.config("other"), [f"cache={own.workspace('w')}"]), until="score", force="score", say=lambda _: None)
    assert utilities(workspace) == utilities(own.workspace("w"))
    assert not (workspace / "cache").exists()


def test_a_larger_pool_scores_only_what_it_adds(own: Tiny) -> None:
    log = Log()
    own.run("w", until="score", say=log, candidates={"pool_size": 5})
    assert log.ran() == ["candidates", "score"]
    (line,) = [line for line in log.lines if "train pairs are cached" in line]
    cached_pairs, _, all_pairs = line.split()[1:4]
    assert 0 < int(all_pairs) - int(cached_pairs) < int(all_pairs) / 2


def test_forced_score_rebuilds_its_artifact_from_the_cache(own: Tiny) -> None:
    log, known = Log(), cached(own.workspace("w"))
    (own.workspace("w") / "utilities" / "train.parquet").write_bytes(b"PAR1")
    own.run("w", until="score", force="score", say=log)
    assert log.ran() == ["score"]
    assert cached(own.workspace("w")) == known


# -- faults ----------------------------------------------------------------------------------------------------------------------


def test_too_long_prompts_are_counted_and_the_run_goes_on(own: Tiny) -> None:
    lines = [json.loads(line) for line in (own.corpus / "qa.jsonl").read_text().splitlines()]
    victim = utilities(own.workspace("w"))[0]["example_id"]
    for row in lines:
        if row["id"] == victim:
            row["answers"] = ["w1 " * 200, "w2"]
    (own.corpus / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    log = Log()
    workspace = own.run("w", until="score", say=log)
    failed = [row for row in utilities(workspace) if row["error"]]
    assert {(row["example_id"], row["answer_idx"]) for row in failed} == {(victim, 0)}
    assert all(row["log_likelihood"] is None and "the window has" in row["error"] for row in failed)
    assert manifest(workspace, "utilities")["rows"]["train errors"] == len(failed)
    assert any(line.startswith(f"score: {len(failed)} answers could not be scored; see the error column") for line in log.lines)


def test_not_a_single_scorable_answer_is_an_error_and_loses_nothing(own: Tiny) -> None:
    before = manifest(own.workspace("w"), "utilities")
    lines = [json.loads(line) for line in (own.corpus / "qa.jsonl").read_text().splitlines()]
    for row in lines:
        row["answers"] = ["w1 " * 200]
    (own.corpus / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    with pytest.raises(ArmorError, match=r"score: none of \d+ train answers could be scored \(question and answer 0 need \d+ tokens"):
        own.run("w", until="score")
    assert manifest(own.workspace("w"), "utilities") == before


@pytest.mark.parametrize(
    ("damaged", "damage", "message"),
    [
        ("passages/passages.parquet", lambda raw: b"x" * len(raw), r"passages.parquet: not a readable Parquet file .*--force prepare"),
        ("embeddings/part-00000.npy", lambda raw: raw[:-10], r"part-00000.npy: artifact file has \d+ bytes .*--force embed"),
        ("embeddings/part-00000.npy", lambda raw: b"x" * len(raw), r"part-00000.npy: not a readable NumPy file .*--force embed"),
        ("index/index.faiss", lambda raw: b"x" * len(raw), r"index.faiss: not a readable FAISS index .*--force index"),
        ("examples/train.parquet", None, r"train.parquet: artifact file is missing; rerun with --force prepare"),
    ],
)
def test_damaged_inputs_name_the_file_and_the_stage(own: Tiny, damaged: str, damage: Callable[[bytes], bytes] | None, message: str) -> None:
    path = own.workspace("w") / damaged
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    # Another pool size: `candidates` and `score` run again on what is there.
    with pytest.raises(ArmorError, match=message):
        own.run("w", until="score", candidates={"pool_size": 5})


def test_damaged_shard_of_the_cache_costs_only_its_pairs(own: Tiny) -> None:
    shard = next(own.workspace("w").glob("cache/utilities/*/*.parquet"))
    shard.write_bytes(b"PAR1")
    with pytest.raises(ArmorError, match=rf"{shard.name}: not a readable shard; delete it; only its rows are computed again"):
        own.run("w", until="score", force="score")
    shard.unlink()
    own.run("w", until="score", force="score")


def test_faults_of_actors_and_tasks_come_through_as_themselves(own: Tiny) -> None:
    """A model that only its actor finds broken."""
    hollow = Path(shutil.copytree(own.generator, own.root / "hollow"))
    (hollow / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ArmorError, match=r"cannot load the model") as caught:
        own.run("w", until="score", generator={"model": str(hollow)})
    assert "\n" not in str(caught.value)


def test_errors_of_ray_that_are_no_users_fault_keep_their_traceback(local_ray: str) -> None:
    @ray.remote
    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(ArmorError, match=r"^place: a fault; a remedy$") as caught, user_errors():
        ray.get(fail.remote(ArmorError("a fault", where="place", hint="a remedy")))
    assert type(caught.value) is ArmorError
    with pytest.raises(ray.exceptions.RayTaskError, match="a bug"), user_errors():
        ray.get(fail.remote(KeyError("a bug")))


def test_actor_that_cannot_write_is_one_line(own: Tiny, local_ray: str) -> None:
    # A file where the blocks' folder should be: every write of an actor fails.
    workspace = Workspace(str(own.workspace("w")))
    (own.workspace("w") / ".work").mkdir(exist_ok=True)
    (own.workspace("w") / ".work" / "embed").write_text("")
    workspace.delete("embeddings")
    # In a process of its own: the error's traceback keeps the failed pool's other actor, and its CPUs, until it is collected.
    driver = own.start("w", {"RAY_ADDRESS": local_ray}, "--until", "embed")
    assert driver.end() == 2
    assert "cannot read or write it" in driver.output.splitlines()[-1]
    assert "Traceback" not in driver.output
    assert workspace.manifest("embeddings") is None
    wait_for_all_cpus()


def wait_for_all_cpus() -> None:
    """Until no actor of a failed or killed run is left."""
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 2:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"embed_actors": 9}, "resources.cpus_per_actor: 4 actors of 0.5 CPUs leave no CPU for reading data (2 in the cluster)"),
        ({"gpus_per_actor": 1}, "resources.gpus_per_actor: no node has 0.5 CPUs and 1 GPUs for one actor"),
        ({"cpus_per_actor": 64}, "resources.cpus_per_actor: no node has 64 CPUs"),
        ({"cluster_cpus": 8, "gpus_per_actor": 1}, "resources.gpus_per_actor: 1 GPUs asked for, 0 in the cluster"),
    ],
)
def test_impossible_resources_are_refused_up_front(local_ray: str, resources: dict[str, Any], message: str) -> None:
    asked = ResourcesConfig(**resources)
    with pytest.raises(ArmorError) as caught:
        plan_actors(asked, asked.embed_actors, work_items=4)
    assert message in str(caught.value)


def test_impossible_trainers_are_refused_up_front(local_ray: str) -> None:
    with pytest.raises(ArmorError, match=r"training.workers: the cluster \(.*\) never fits 8 trainers"):
        plan_trials(ResourcesConfig(), workers=8, trials=2)


@pytest.mark.parametrize(("cpus", "count"), [(0.5, 2), (1.0, 1), (1.5, 1)])
def test_auto_leaves_room_for_reading(local_ray: str, cpus: float, count: int) -> None:
    assert plan_actors(ResourcesConfig(cpus_per_actor=cpus), "auto", work_items=100).count == count


# -- a killed driver -------------------------------------------------------------------------------------------------------------


def test_killed_while_embedding_it_goes_on(tiny: Tiny, scored: Path, local_ray: str, tmp_path: Path) -> None:
    """SIGKILL of the whole command while actors write blocks; the next run keeps them and ends with the same vectors."""
    own = replace(tiny, root=tmp_path)
    blocks = own.workspace("k") / ".work" / "embed"
    driver = own.start("k", {"RAY_ADDRESS": local_ray}, "--until", "embed")
    driver.wait_for(lambda: blocks.exists() and any(blocks.rglob("rows-*.npz")))
    driver.kill()
    assert driver.process.exitcode == -signal.SIGKILL
    wait_for_all_cpus()
    again = own.start("k", {"RAY_ADDRESS": local_ray}, "--until", "embed")
    assert again.end() == 0, again.output
    vectors = open_embeddings(own.workspace("k") / "embeddings")
    np.testing.assert_allclose(vectors, open_embeddings(scored / "embeddings"), atol=1e-6)
    names = {path.name for path in own.workspace("k").iterdir()}
    assert names - {".work"} == {".lock", "config.yaml", "embeddings", "examples", "passages"}
    assert not list((own.workspace("k") / ".work").rglob("*"))
