"""The report's data card: counted from the artifacts, safe to render, complete with and without judges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_cases import DOCUMENTS, QUESTIONS, Tiny

from armor_ray.config import load_config
from armor_ray.curation.files import VERDICTS
from armor_ray.evaluation.data_card import LISTED, CardExample, CurationCard, DataCard, Duplicate, JudgeCounts, Scores
from armor_ray.evaluation.report import ReportData, write_report
from armor_ray.evaluation.summary import Row
from armor_ray.stages.card import load_card
from armor_ray.stages.context import Context
from armor_ray.stages.plans import PLANS
from armor_ray.stages.prepare import SPLITS, load_examples, load_passages, run_all
from armor_ray.workspace import Draft, Workspace

HOSTILE = "<b>x</b> | *y*"


def card() -> DataCard:
    rng = np.random.default_rng(0)
    curation = CurationCard(
        pipeline="tele_eval",
        domain="isac",
        stand_ins=["chunk_alignment"],
        writer="",
        judges=[JudgeCounts("qa_domain", "a-model", 2000, 1701, 3), JudgeCounts("chunk_alignment", "lexical", 90_000, 5103, 0)],
        dropped={"qa_domain/below_threshold": 296, "qa_domain/timeout": 3, "chunk_alignment/no_support": 12},
        scores=[
            Scores("qa_domain", "isac", rng.beta(5, 1, 1701), rng.beta(1, 3, 299)),
            Scores("chunk_alignment", "support", rng.beta(4, 2, 5103), rng.beta(1, 6, 20_000)),
        ],
    )
    leaks = [Duplicate(f"q{i}", "dropped", "train", "test", "passage", 0.91, HOSTILE) for i in range(LISTED + 7)]
    return DataCard(
        counts={"Question-answer pairs": 1701, "Indexed passages": 105_476},
        passage_characters=np.minimum(rng.integers(30, 700, 5000), 384),
        question_words=rng.poisson(14, 1701),
        answer_words=np.append(rng.poisson(30, 1701), 4000),
        duplicates=leaks,
        curation=curation,
        examples=[CardExample("train", HOSTILE, [HOSTILE, "b"], "d", [HOSTILE])],
    )


def written(folder: Path, shown: DataCard | None) -> tuple[str, str]:
    rows = [Row("demo", "base", "R@3", 0.6, 0.5, 0.7, 100)]
    pages = write_report(folder, ReportData(dataset="demo", rows=rows, card=shown))
    return pages[0].read_text(), pages[1].read_text()


def test_both_pages_show_the_card_and_escape_what_it_quotes(tmp_path: Path) -> None:
    html, markdown = written(tmp_path, card())
    assert "<b>x</b>" not in html
    assert "<b>x</b>" not in markdown
    for page in (html, markdown):
        assert "105,476" in page
        assert "No model judged" in page
        assert "below threshold" in page
    assert f"The first {LISTED} of {LISTED + 7}" in html
    for name in ("lengths", "scores"):
        assert f"figures/{name}.png" in markdown
        assert len(np.unique(matplotlib.image.imread(tmp_path / "figures" / f"{name}.png"))) > 10


def test_without_judges_or_duplicates_the_card_says_so(tmp_path: Path) -> None:
    plain = replace(card(), curation=None, duplicates=None)
    html, markdown = written(tmp_path, plain)
    assert "no judge chose from it" in html
    assert "Not looked for" in markdown
    assert "Judges" not in html
    assert "is its like" not in written(tmp_path, replace(plain, duplicates=[]))[0]
    assert "Data card" not in written(tmp_path, None)[0]


@pytest.fixture
def prepared(tiny: Tiny, tmp_path: Path) -> Context:
    config = load_config(replace(tiny, root=tmp_path).config("case"), ["data.deduplicate=true", "data.duplicate_similarity=0.3"])
    context = Context(config, Workspace(config.workspace))
    run_all(context, PLANS["prepare"](context))
    return context


def test_the_card_is_counted_from_the_artifacts(prepared: Context) -> None:
    found = load_card(prepared.workspace, prepared.config)
    tables = {split: load_examples(prepared.workspace, split) for split in SPLITS}
    passages = load_passages(prepared.workspace)
    assert found.counts["Question-answer pairs"] == QUESTIONS
    assert found.counts["Indexed documents"] == DOCUMENTS
    assert found.counts["Indexed passages"] == len(found.passage_characters) == len(passages)
    assert [found.counts[f"Final {split} size"] for split in SPLITS] == [len(table) for table in tables.values()]
    assert found.passage_characters.tolist() == [len(text) for text in passages["text"].to_pylist()]
    listed = (prepared.local("examples") / "duplicates.jsonl").read_text().splitlines()
    assert found.duplicates is not None
    assert len(found.duplicates) == len(listed) > 0
    assert len(found.examples) == 20
    assert found.examples == load_card(prepared.workspace, prepared.config).examples
    rows = {row["question"]: row for table in tables.values() for row in table.to_pylist()}
    for example in found.examples:
        gold = passages["text"].take(pa.array(rows[example.question]["positive_ids"])).to_pylist()
        assert example.passages == gold


def test_judges_are_read_from_what_curate_left(prepared: Context) -> None:
    rows = [{"step": "qa_domain", "id": f"q{i}", "judge": "m", "keep": i > 1, "score_name": "isac", "score": i / 4} for i in range(4)] + [
        {"step": "qa_domain", "id": "q9", "judge": "m", "keep": False, "failure": "timeout"}
    ]

    def write(draft: Draft) -> None:
        pq.write_table(pa.Table.from_pylist(rows, schema=VERDICTS), draft.path / "verdicts.parquet")
        judgement = {"judge": "qa_domain", "by": "m", "items": 5, "kept": 2, "failures": {"timeout": 1}}
        facts = {"pipeline": "tele_eval", "domain": "isac", "stand_ins": [], "writer": None, "judgements": [judgement]}
        draft.details |= {**facts, "dropped": {"qa_domain/timeout": 1}}

    prepared.workspace.publish("curated", stage="curate", fingerprint="x", inputs={}, config={}, write=write)
    settings = load_config(None, ["curation={pipeline: tele_eval, domain: isac}"]).curation
    curation = load_card(prepared.workspace, prepared.config.model_copy(update={"curation": settings})).curation
    assert curation is not None
    assert curation.judges == [JudgeCounts("qa_domain", "m", 5, 2, 1)]
    (scores,) = curation.scores
    assert (scores.judge, scores.score) == ("qa_domain", "isac")
    assert (scores.kept.tolist(), scores.dropped.tolist()) == ([0.5, 0.75], [0.0, 0.25])
    assert json.dumps([[cell.value for cell in row] for row in curation.dropped_table.rows]) == '[["qa domain", "timeout", "1"]]'
