"""A corpus too large to hold is cut by Ray Data into the very passages that one process would cut."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from armor_ray.config import Config, load_config
from armor_ray.corpus import streams
from armor_ray.corpus.prepare import prepare
from armor_ray.corpus.sources import tele_data
from armor_ray.corpus.streams import DocumentStream
from armor_ray.errors import ArmorError
from armor_ray.stages import cutting
from armor_ray.stages.context import Context
from armor_ray.stages.cutting import cut_stream
from armor_ray.stages.plans import PLANS
from armor_ray.stages.prepare import SPLITS, load_examples, load_passages, run_all
from armor_ray.workspace import Workspace

DOCUMENTS, COPIED = 200, 30


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A workspace over documents of many lengths; every question has its like about a copy of its document."""
    root = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    words = np.array(["relay", "beam", "slot", "carrier", "\n\n", "symbol", "grant", "µ"])
    lengths = rng.integers(100, 9000, DOCUMENTS)
    documents = [{"id": f"d{i}", "text": f"number {i} {' '.join(rng.choice(words, n))}"} for i, n in enumerate(lengths)]
    for i in range(COPIED):
        documents[COPIED + i]["text"] = documents[i]["text"]
    evidence = [{"start": 0, "end": 8}]
    pairs = [{"question": f"{rng.bytes(9).hex()}?", "answer": "it", "doc_id": f"d{i}", "evidence": evidence} for i in range(2 * COPIED)]
    for name, rows in (("corpus", documents), ("qa", pairs)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    duplicates = ["data.deduplicate=true", "data.duplicate_similarity=1"]
    return load_config(None, [f"data.path={root}", f"workspace={root / 'workspace'}", "training.batch_size=4", *duplicates])


def test_passages_and_examples_are_those_of_one_process(config: Config, local_ray: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = prepare(config.data, config.seed)
    monkeypatch.setattr(streams, "HELD_CHARACTERS", 100_000)
    monkeypatch.setattr(cutting, "_BLOCK_BYTES", 1 << 20)
    context = Context(config, Workspace(config.workspace))
    run_all(context, PLANS["prepare"](context))
    assert len(context.workspace.files(".work/prepare/shards")) > 2
    assert load_passages(context.workspace).equals(expected.passages)
    assert {split: load_examples(context.workspace, split) for split in SPLITS} == expected.examples
    assert context.workspace.require("passages").details == expected.notes
    assert expected.leaks


def test_files_that_change_under_the_run_are_refused(config: Config, local_ray: str, tmp_path: Path) -> None:
    context = Context(config, Workspace(str(tmp_path / "workspace")))
    path = tmp_path / "tele-data.jsonl"
    stream = DocumentStream(partial(tele_data.documents, [path], Counter()), 3, 18, [])
    path.write_text('{"id": "a", "content": "some text"}\n{"id": "b", "content": "more text"}\n')
    with pytest.raises(ArmorError, match="3 documents at the first reading, 2 at the second"):
        cut_stream(context, stream, config.data, False, "shards")
    path.write_text('{"id": "a", "content": "some text"}\n{"id":')
    with pytest.raises(ArmorError, match=r"tele-data\.jsonl:2: malformed JSON .*; correct this line$"):
        cut_stream(context, stream, config.data, False, "shards")
