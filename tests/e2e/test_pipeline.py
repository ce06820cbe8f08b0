"""The whole pipeline through the command line, with real Ray: what it leaves behind, and that a second run has nothing to do."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pipeline_cases import Finished, Tiny, manifest, summary
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from armor_ray.models.bi_encoder import BiEncoder

TRAINED = ["armor", "armor/interpolated", "replug", "replug/interpolated", "armor/swept", "armor/swept/interpolated"]
FUSED = ["bm25+base", *(f"bm25+{method}" for method in TRAINED if method.startswith("armor"))]
RECALLS = ["R@1", "R@3", "R@5", "R@16"]


def test_every_method_has_a_row_with_an_interval_for_every_metric(finished: Finished):
    rows = summary(finished.workspace)
    questions = pq.read_metadata(finished.workspace / "examples" / "test.parquet").num_rows
    retrieval = {(row["method"], row["metric"]): row for row in rows if row["metric"] in RECALLS}
    assert retrieval.keys() == {(method, metric) for method in ["base", *TRAINED, "bm25", *FUSED] for metric in RECALLS}
    for row in rows:
        assert {"dataset", "method", "metric", "value", "low", "high", "n"} <= row.keys()
        assert row["dataset"] == "data"
        assert all(math.isfinite(row[key]) for key in ("value", "low", "high"))
        if " " not in row["metric"]:
            assert row["low"] <= row["value"] <= row["high"]
        assert row["n"] in (questions, 2)
    for method in ("base", *TRAINED):
        values = [retrieval[method, metric]["value"] for metric in RECALLS]
        assert values == sorted(values)
        assert 0 < values[-1] <= 1
    answered = {row["method"] for row in rows if row["metric"] == "F1"}
    assert answered == {"base_gen", "base_rag", *(method for method in TRAINED if method.startswith("armor"))}


def test_the_run_ends_with_the_table_and_the_places_of_its_results(finished: Finished):
    *_, report, serve, last = finished.output.strip().splitlines()
    assert last == f"summary: {finished.workspace}/reports/summary.json"
    assert report == f"report:  {finished.workspace}/reports/report.html"
    assert serve.startswith("serve:   serve run ")
    assert "armor/interpolated" in finished.output
    assert Path(report.split()[-1]).stat().st_size > 10_000


def test_trials_say_one_line_each_and_tune_says_nothing(finished: Finished):
    lines = finished.output.splitlines()
    for stage, trials in (("sweep", 3), ("train", 3)):
        shown = {line.split("runs, ")[1].split(":")[0] for line in lines if line.startswith(f"{stage}: ") and "runs, " in line}
        assert len(shown) == trials
    for noise in ("Configuration for experiment", "View detailed results", "TensorBoard", "Trial ", "Traceback"):
        assert noise not in finished.output


def test_the_sweep_chose_its_best_trial_on_validation(finished: Finished):
    trials = pq.read_table(finished.workspace / "sweep" / "results.parquet").to_pylist()
    assert [trial["objective.lambda_q"] for trial in trials] == [0.3, 1.0, 3.0]
    details = manifest(finished.workspace, "sweep")["details"]
    best = max(trials, key=lambda trial: trial["R@3"])
    assert details["validation"] == best["R@3"]
    assert details["best"] == {"objective.lambda_q": best["objective.lambda_q"]}


def test_a_second_run_does_nothing_and_is_fast(finished: Finished, tiny: Tiny):
    before = {path: path.stat().st_mtime_ns for path in finished.workspace.rglob("manifest.json")}
    started = time.monotonic()
    # No Ray answers there: nothing to do needs none.
    driver = tiny.start("finished", {"RAY_ADDRESS": "127.0.0.1:1"})
    assert driver.end() == 0, driver.output
    assert time.monotonic() - started < 10
    stages = [line for line in driver.output.splitlines() if line.endswith(": up to date")]
    assert len(stages) == 10
    assert driver.output.strip().splitlines()[-1] == finished.output.strip().splitlines()[-1]
    assert before == {path: path.stat().st_mtime_ns for path in finished.workspace.rglob("manifest.json")}


@pytest.mark.parametrize("artifact", ["promoted", "retrievers/armor-seed0", "retrievers/armor-seed0-interpolated"])
def test_the_encoder_loads_with_other_libraries_and_gives_the_same_vectors(finished: Finished, artifact: str):
    folder = finished.workspace / artifact
    questions = pq.read_table(finished.workspace / "examples" / "test.parquet")["question"].to_pylist()
    ours = BiEncoder.from_folder(folder).encode(questions, "query")
    np.testing.assert_allclose(SentenceTransformer(str(folder), device="cpu").encode(questions), ours, atol=1e-5)
    inputs = AutoTokenizer.from_pretrained(folder)(questions, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(folder)(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    pooled = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    np.testing.assert_allclose(pooled.numpy(), ours, atol=1e-5)


def test_the_index_opens_with_plain_faiss_and_answers_for_the_promoted_encoder(finished: Finished):
    index = faiss.read_index(str(finished.workspace / "index" / "index.faiss"))
    passages = pq.read_table(finished.workspace / "passages" / "passages.parquet")
    assert index.ntotal == len(passages)
    questions = pq.read_table(finished.workspace / "examples" / "test.parquet")["question"].to_pylist()
    queries = SentenceTransformer(str(finished.workspace / "promoted"), device="cpu").encode(questions)
    vectors = np.concatenate([np.load(path) for path in sorted((finished.workspace / "embeddings").glob("part-*.npy"))])
    scores, rows = index.search(queries, 3)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ vectors.T, rows, 1), atol=1e-5)


# -- other ways through the same pipeline ------------------------------------------------------------------------------------------


def test_the_released_preset_with_lora_trains_temperatures_on_scored_validation_pools(tiny: Tiny, scored: Path):
    workspace = tiny.copy(scored, "released")
    tiny.run(
        "released",
        objective={"preset": "released"},
        training={"epochs": 1, "learning_rate": 1e-2, "lora": {"rank": 4, "alpha": 8}},
        sweep={"parameters": {}},
        evaluation={"recipes": ["armor"], "generation_questions": 0},
    )
    assert (workspace / "utilities" / "validation.parquet").exists()
    history = pq.read_table(workspace / "retrievers" / "armor-seed0" / "history.parquet").to_pylist()
    steps = [row for row in history if row["loss"] is not None]
    assert steps[0]["tau_rag"] == pytest.approx(10.0, abs=1e-3)
    assert all(math.isfinite(row["temperature_loss"]) for row in steps)
    base, adapted = (AutoModel.from_pretrained(path) for path in (tiny.encoder, workspace / "retrievers" / "armor-seed0"))
    assert [name for name, _ in base.named_parameters()] == [name for name, _ in adapted.named_parameters()]
    moved = [name for name, weight in base.named_parameters() if not torch.equal(weight, adapted.state_dict()[name])]
    assert moved
    assert all(name.endswith("weight") and "embeddings" not in name and "LayerNorm" not in name for name in moved)
    assert {row["method"] for row in summary(workspace)} >= {"armor", "armor/interpolated"}


def test_replug_is_swept_over_its_teacher_temperature(tiny: Tiny, scored: Path):
    workspace = tiny.copy(scored, "replug")
    betas = [0.1, 10.0]
    sweep = {"parameters": {"objective.kl_temperature": betas}}
    sections = {"objective": {"recipe": "replug"}, "training": {"epochs": 1}, "evaluation": {"recipes": ["replug"]}}
    tiny.run("replug", until="sweep", sweep=sweep, **sections)
    trials = pq.read_table(workspace / "sweep" / "results.parquet").to_pylist()
    assert [trial["objective.kl_temperature"] for trial in trials] == betas
    assert json.loads((workspace / "sweep" / "best.json").read_text()).keys() == sweep["parameters"].keys()
