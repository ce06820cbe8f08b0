"""The promotion gate and the way back, on a workspace of files written by hand; no model."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from armor_ray.cli import main
from armor_ray.corpus.schemas import EXAMPLES
from armor_ray.workspace import CONFIG, Draft, Workspace

DOMAINS = ["radio"] * 40 + ["core"] * 40 + ["rare"] * 3


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """`armor-seed0` gains in radio and loses in core; `rag-seed0` only gains; `mix-seed0` was trained after the report."""
    workspace = Workspace(str(tmp_path))
    workspace.write_bytes(CONFIG, yaml.safe_dump({"evaluation": {"recipes": ["armor", "rag", "mix"]}}).encode())
    _publish(workspace, "examples", lambda draft: pq.write_table(_examples(), draft.path / "test.parquet"))
    for name in ("armor-seed0", "rag-seed0", "mix-seed0"):
        _publish(workspace, f"retrievers/{name}", lambda draft, name=name: _write_encoder(draft, name))
    inputs = {f"retrievers/{name}": f"print-retrievers/{name}" for name in ("armor-seed0", "rag-seed0")}
    _publish(workspace, "reports", lambda draft: pq.write_table(_results(), draft.path / "results.parquet"), inputs)
    return workspace


def _publish(workspace: Workspace, name: str, write, inputs: dict[str, str] | None = None) -> None:
    workspace.publish(name, stage="stage", fingerprint=f"print-{name}", inputs=inputs or {}, config={}, write=write)


def _write_encoder(draft: Draft, name: str) -> None:
    (draft.path / "weights").write_text(name)
    (draft.path / "golden.json").write_text(json.dumps({"texts": ["a"], "vectors": [[1.0, 0.0]]}))


def _examples() -> pa.Table:
    ids = [f"q{i}" for i in range(len(DOMAINS))]
    rows = [
        {"example_id": i, "question": i, "answers": [], "positive_ids": [0], "doc_id": "d", "domain": domain}
        for i, domain in zip(ids, DOMAINS, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=EXAMPLES)


def _results() -> pa.Table:
    """R@3 by hand: base finds every other question; armor all of radio and none of core and rare; rag what base finds and one more."""
    base = [float(i % 2) for i in range(len(DOMAINS))]
    armor = [float(domain == "radio") for domain in DOMAINS]
    values = {"base": base, "armor": armor, "rag": [1.0, *base[1:]]}
    rows = [
        {"method": method, "seed": 0, "example_id": f"q{i}", "R@3": value}
        for method, found in values.items()
        for i, value in enumerate(found)
    ]
    return pa.Table.from_pylist(rows[::-1])  # the order of rows carries no meaning


def promote(workspace: Workspace, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["promote", workspace.uri, *arguments])
    return result.exit_code, result.output.strip()


def served(workspace: Workspace) -> str:
    return (workspace.local("promoted") / "weights").read_text()


def test_a_loss_in_one_domain_is_refused_although_the_mean_does_not_move_and_force_is_written_down(workspace: Workspace) -> None:
    status, line = promote(workspace, "--retriever", "armor-seed0")
    assert status == 2
    assert "\n" not in line
    assert "'armor-seed0' is significantly worse than base in R@3: core -50.0 points (-6" in line
    assert "radio" not in line
    assert "rare" not in line  # three questions prove nothing
    assert workspace.manifest("promoted") is None

    assert promote(workspace, "--retriever", "armor-seed0", "--force") == (0, "promoted: armor-seed0")
    gate = workspace.require("promoted").details["gate"]
    assert gate["forced"] is True
    assert gate["metric"] == "R@3"
    changes = {change["domain"]: change for change in gate["changes"]}
    assert {name: change["questions"] for name, change in changes.items()} == {"all questions": 83, "core": 40, "radio": 40, "rare": 3}
    assert changes["core"]["change"]["difference"] == pytest.approx(-0.5)


def test_no_loss_is_promoted_and_what_no_report_covers_is_not(workspace: Workspace) -> None:
    assert promote(workspace, "--retriever", "rag-seed0") == (0, "promoted: rag-seed0")
    assert workspace.require("promoted").details["gate"]["forced"] is False
    status, line = promote(workspace, "--retriever", "mix-seed0")
    assert (status, "no report judges 'mix-seed0' as it is now" in line) == (2, True)
    workspace.publish(
        "retrievers/rag-seed0", stage="train", fingerprint="anew", inputs={}, config={}, write=lambda draft: _write_encoder(draft, "anew")
    )
    assert "as it is now" in promote(workspace, "--retriever", "rag-seed0")[1]
    assert served(workspace) == "rag-seed0"


def test_what_learned_beside_bm25_is_judged_fused_with_it(workspace: Workspace) -> None:
    def publish(name: str) -> None:
        workspace.publish(
            f"retrievers/{name}",
            stage="train",
            fingerprint=f"print-retrievers/{name}",
            inputs={},
            config={"objective": {"lexical_weight": 1.0}},
            write=lambda draft: _write_encoder(draft, name),
        )

    publish("armor-seed0")
    fused = pa.Table.from_pylist(
        [
            {"method": f"bm25+{method}", "seed": 0, "example_id": f"q{i}", "R@3": value}
            for method in ("base", "armor")
            for i, value in enumerate([1.0 if method == "armor" else float(i % 2) for i in range(len(DOMAINS))])
        ]
    )
    inputs = {f"retrievers/{name}": f"print-retrievers/{name}" for name in ("armor-seed0", "rag-seed0")}
    results = pa.concat_tables([_results(), fused.select(_results().column_names)])
    workspace.publish(
        "reports",
        stage="evaluate",
        fingerprint="new",
        inputs=inputs,
        config={},
        write=lambda draft: pq.write_table(results, draft.path / "results.parquet"),
    )
    assert promote(workspace, "--retriever", "armor-seed0") == (0, "promoted: armor-seed0")  # alone it loses in core
    gate = workspace.require("promoted").details["gate"]
    assert gate["metric"] == "R@3 fused with BM25"
    assert gate["changes"][0]["change"]["difference"] == pytest.approx(42 / 83)

    publish("rag-seed0")
    status, line = promote(workspace, "--retriever", "rag-seed0")
    assert (status, "no report judges 'rag-seed0' fused with BM25" in line, "evaluation.fused" in line) == (2, True, True)


def test_rollback_returns_to_the_encoder_of_before_even_when_it_was_trained_anew_since(workspace: Workspace) -> None:
    assert "nothing was promoted before" in promote(workspace, "--rollback")[1]
    promote(workspace, "--retriever", "rag-seed0")
    assert "nothing was promoted before" in promote(workspace, "--rollback")[1]
    promote(workspace, "--retriever", "armor-seed0", "--force")
    workspace.publish(
        "retrievers/rag-seed0", stage="train", fingerprint="anew", inputs={}, config={}, write=lambda draft: _write_encoder(draft, "anew")
    )
    assert promote(workspace, "--rollback") == (0, "promoted: rag-seed0")
    assert served(workspace) == "rag-seed0"
    assert promote(workspace, "--rollback") == (0, "promoted: armor-seed0")
    assert served(workspace) == "armor-seed0"
    assert workspace.require("promoted").details["gate"]["forced"] is True
    assert "exclude each other" in promote(workspace, "--rollback", "--retriever", "rag-seed0")[1]
