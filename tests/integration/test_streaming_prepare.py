"""A corpus too large to hold is cut by Ray Data into the very passages that one process would cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from armor_ray.config import Config, load_config
from armor_ray.corpus.prepare import prepare
from armor_ray.corpus.records import Document
from armor_ray.corpus.streams import HELD_CHARACTERS, DocumentStream
from armor_ray.errors import ArmorError
from armor_ray.stages.context import Context
from armor_ray.stages.cutting import cut_stream
from armor_ray.stages.plans import PLANS
from armor_ray.stages.prepare import SPLITS, load_examples, load_passages, run_all
from armor_ray.workspace import Workspace

DOCUMENTS = 900


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A workspace over documents of many lengths, blank ones among them; questions about a few, duplicates among these."""
    root = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    words = np.array(["relay", "beam", "slot", "carrier", "\n\n", "symbol", "grant", "µ"])
    lengths = rng.integers(1, 9000, DOCUMENTS)
    documents = [{"id": f"d{i}", "text": f"number {i} {' '.join(rng.choice(words, n))}"} for i, n in enumerate(lengths)]
    documents[7]["text"] = documents[3]["text"]
    assert sum(len(document["text"]) for document in documents) > HELD_CHARACTERS
    pairs = [
        {"question": f"What is beam {i}?", "answer": "it", "doc_id": f"d{i}", "evidence": [{"start": 0, "end": 8}]} for i in range(0, 60)
    ]
    for name, rows in (("corpus", documents), ("qa", pairs)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    overrides = [f"data.path={root}", f"workspace={root / 'workspace'}", "data.deduplicate=true", "training.batch_size=4"]
    return load_config(None, overrides)


def test_passages_and_examples_are_those_of_one_process(config: Config, local_ray: str, capfd: pytest.CaptureFixture[str]) -> None:
    context = Context(config, Workspace(config.workspace))
    run_all(context, PLANS["prepare"](context))
    expected = prepare(config.data, config.seed)
    assert load_passages(context.workspace).equals(expected.passages)
    assert {split: load_examples(context.workspace, split) for split in SPLITS} == expected.examples
    assert context.workspace.require("passages").details == expected.notes
    assert expected.leaks
    # More than one task had something to do.
    assert len(context.workspace.files(".work/prepare/shards")) > 1


def read_two() -> list[Document]:
    return [Document("a", "", "some text", "", ""), Document("b", "", "more text", "", "")]


def read_faulty() -> list[Document]:
    raise ArmorError("malformed JSON", where="corpus.jsonl:3", hint="correct this line")


def test_files_that_change_under_the_run_are_refused(config: Config, local_ray: str, tmp_path: Path) -> None:
    context = Context(config, Workspace(str(tmp_path)))
    with pytest.raises(ArmorError, match="3 documents at the first reading, 2 at the second"):
        cut_stream(context, DocumentStream(read_two, 3, 18, []), config.data, False, "shards")
    with pytest.raises(ArmorError, match=r"^corpus\.jsonl:3: malformed JSON; correct this line$"):
        cut_stream(context, DocumentStream(read_faulty, 3, 18, []), config.data, False, "shards")
