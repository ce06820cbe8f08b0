"""Small data sets in the published form of every format, large enough to be split: what `jobs/configs/` is tried on.

`python tests/set_cases.py FOLDER` writes them all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDS = 8
_SUBJECTS = ("relay", "beam", "carrier", "grant", "symbol", "pilot", "paging", "handover")


def _text(i: int) -> str:
    return f"The {_SUBJECTS[i]} of cell {i} lasts {10 + i} slots. Nothing else is known about it."


def _question(i: int) -> str:
    return f"How long does the {_SUBJECTS[i]} last?"


def _answer(i: int) -> str:
    return f"{10 + i} slots"


def _start(i: int) -> int:
    return _text(i).index(_answer(i))


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _beir(folder: Path) -> None:
    _lines(folder / "corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": _text(i)} for i in range(RECORDS)])
    _lines(folder / "queries.jsonl", [{"_id": f"q{i}", "text": _question(i), "metadata": {"answer": _answer(i)}} for i in range(RECORDS)])
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\td{i}\t1\n" for i in range(RECORDS)))


def _documents(folder: Path) -> None:
    folder.mkdir(parents=True)
    for i in range(RECORDS):
        (folder / f"{i}.md").write_text(f"# {_SUBJECTS[i]}\n\n{_text(i)}\n")
    _lines(folder / "qa.jsonl", [{"question": _question(i), "answer": _answer(i), "doc_id": f"{i}.md"} for i in range(RECORDS)])


def _hotpotqa(folder: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        context = [[f"{_SUBJECTS[j]} {j}", [_text(j)]] for j in (i, (i + 1) % RECORDS)]
        return {
            "_id": f"h{i}",
            "question": _question(i),
            "answer": _answer(i),
            "supporting_facts": [[context[0][0], 0]],
            "context": context,
        }

    _json(folder / "hotpot_dev_distractor_v1.json", [row(i) for i in range(RECORDS)])


def _jsonl(folder: Path) -> None:
    _lines(folder / "corpus.jsonl", [{"id": f"d{i}", "text": _text(i)} for i in range(RECORDS)])
    _lines(folder / "qa.jsonl", [{"question": _question(i), "answer": _answer(i), "doc_id": f"d{i}"} for i in range(RECORDS)])


def _newsqa(folder: Path) -> None:
    def story(i: int) -> dict[str, Any]:
        questions = [{"q": _question(i), "consensus": {"s": _start(i), "e": _start(i) + len(_answer(i))}}]
        return {"storyId": f"{i}.story", "text": _text(i), "type": "train", "questions": questions}

    _json(folder / "combined-newsqa-data-v1.json", {"version": "1", "data": [story(i) for i in range(RECORDS)]})


def _qasper(folder: Path) -> None:
    def paper(i: int) -> dict[str, Any]:
        answer = {"unanswerable": False, "extractive_spans": [_answer(i)], "free_form_answer": "", "evidence": [_text(i)]}
        questions = [{"question": _question(i), "question_id": f"q{i}", "answers": [{"answer": answer}]}]
        sections = [{"section_name": "Results", "paragraphs": [_text(i)]}]
        return {"title": _SUBJECTS[i], "abstract": "An abstract.", "full_text": sections, "qas": questions}

    _json(folder / "qasper-train-v0.3.json", {f"0001.{i}": paper(i) for i in range(RECORDS)})


def _scifact(folder: Path) -> None:
    _lines(folder / "corpus.jsonl", [{"doc_id": i, "title": _SUBJECTS[i], "abstract": [_text(i)]} for i in range(RECORDS)])
    claims = [{"id": i, "claim": _text(i), "evidence": {str(i): [{"sentences": [0], "label": "SUPPORT"}]}} for i in range(RECORDS)]
    _lines(folder / "claims_train.jsonl", claims)


def _squad(folder: Path, name: str = "dev-v2.0.json") -> None:
    def entry(i: int) -> dict[str, Any]:
        answers = [{"text": _answer(i), "answer_start": _start(i)}]
        questions = [{"id": f"q{i}", "question": _question(i), "answers": answers, "is_impossible": False}]
        return {"title": f"{_SUBJECTS[i]}#{i}", "paragraphs": [{"context": _text(i), "qas": questions}]}

    _json(folder / name, {"version": "v2.0", "data": [entry(i) for i in range(RECORDS)]})


def _tele_eval(folder: Path) -> None:
    _lines(folder / "tele-eval.json", [{"Statement": _question(i), "Answer": _answer(i), "id": f"wiki_{i}"} for i in range(RECORDS)])
    data = [{"id": f"wiki_{i}", "category": "wiki", "content": _text(i), "metadata": "{}"} for i in range(RECORDS)]
    _lines(folder / "tele-data" / "wiki.jsonl", data)


def _teleqna(folder: Path) -> None:
    def row(i: int) -> dict[str, str]:
        options = {"option 1": _answer(i), "option 2": "Two years"}
        return {"question": _question(i), **options, "answer": f"option 1: {_answer(i)}", "explanation": _text(i), "category": "Lexicon"}

    _json(folder / "TeleQnA.txt", {f"question {i}": row(i) for i in range(RECORDS)})


def _telequad_tables(folder: Path) -> None:
    def row(i: int) -> dict[str, str]:
        place = {"document_name": f"{i}.docx", "table_name": "Table 1", "question_type": "Data Extraction"}
        return {"id": f"t{i}", "question": _question(i), "answer": _answer(i), **place, "context": _text(i)}

    _json(folder / "TeleQuAD-v1-full-Tabular.json", {"version": "own", "data": [{"questions": [row(i) for i in range(RECORDS)]}]})


WRITERS: dict[str, Callable[[Path], None]] = {
    "beir": _beir,
    "documents": _documents,
    "hotpotqa": _hotpotqa,
    "jsonl": _jsonl,
    "newsqa": _newsqa,
    "qasper": _qasper,
    "scifact": _scifact,
    "squad": _squad,
    "tele_eval": _tele_eval,
    "teleqna": _teleqna,
    "telequad": lambda folder: _squad(folder, "TeleQuAD-v4-full.json"),
    "telequad_tables": _telequad_tables,
}
"""By format: writes a data set of `RECORDS` questions about as many documents."""

if __name__ == "__main__":
    for _name, _write in WRITERS.items():
        _write(Path(sys.argv[1]) / _name)
