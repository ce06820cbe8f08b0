"""An evaluation published by hand beside `serving_workspace`: per-question results of a retriever, and a report that must be kept in."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.workspace import Draft, Workspace

RETRIEVER = "armor-seed3"
FINGERPRINT = f"print-retrievers/{RETRIEVER}"  # as serving_workspace publishes it
VERSION = f"{RETRIEVER}@{FINGERPRINT}"
# Its style is allowed by its hash; its script and its picture from elsewhere must do nothing.
PICTURE = "https://example.invalid/tracker.png"
REPORT = f"""<!doctype html><title>report</title><style>h1 {{ color: rgb(1, 2, 3); }}</style>
<h1>What changed</h1><script>document.querySelector("h1").textContent = "script ran";</script>
<img src="{PICTURE}" alt="">"""
# Example id → question, answers, gold passages, reciprocal rank with the base encoder and with the retriever.
Examples = dict[str, tuple[str, list[str], list[int], float, float]]


def publish_evaluation(workspace: Workspace, examples: Examples, fingerprint: str = FINGERPRINT, picture: str = PICTURE) -> None:
    """Publishes `examples` and `reports`; the retriever was trained with the second of two seeds.

    Args:
        picture: address of the report's picture.
    """

    def write_split(draft: Draft) -> None:
        rows = [
            {"example_id": example, "question": question, "answers": answers, "positive_ids": gold}
            for example, (question, answers, gold, _, _) in examples.items()
        ]
        pq.write_table(pa.Table.from_pylist(rows), draft.path / "test.parquet")

    def write_report(draft: Draft) -> None:
        rows = [
            {"method": method, "seed": place, "example_id": example, "MRR@10": value}
            for example, (*_, before, after) in examples.items()
            for method, place, value in (("base", 0, before), ("armor", 0, 1.0), ("armor", 1, after))
        ]
        pq.write_table(pa.Table.from_pylist(rows), draft.path / "results.parquet")
        (draft.path / "report.html").write_text(REPORT.replace(PICTURE, picture), encoding="utf-8")

    settings = {"evaluation": {"seeds": [0, 3]}}
    inputs = {f"retrievers/{RETRIEVER}": fingerprint}
    workspace.publish("examples", stage="prepare", fingerprint="print-examples", inputs={}, config={}, write=write_split)
    workspace.publish("reports", stage="evaluate", fingerprint="print-reports", inputs=inputs, config=settings, write=write_report)


def report_file(workspace: Workspace) -> Path:
    return Path(workspace.path("reports/report.html"))
