"""Documents and questions in, passages and split examples out."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from armor_ray.config import DataConfig
from armor_ray.corpus.alignment import PassageLocator, merge_repeated
from armor_ray.corpus.chunking import TokenOffsets, cut_passages, keep_whole, make_chunker
from armor_ray.corpus.leakage import Leak, separate
from armor_ray.corpus.records import Corpus, QAPair
from armor_ray.corpus.schemas import EXAMPLES
from armor_ray.corpus.sources import read_corpus
from armor_ray.corpus.splitting import grouping, limit_splits, split_pairs
from armor_ray.errors import ArmorError


@dataclass(frozen=True, slots=True)
class Prepared:
    """Tables of one data set.

    `passages` has the schema PASSAGES; `examples` maps train, validation and test to tables with the schema EXAMPLES; `notes`
    counts what was read, merged, dropped and kept; `leaks` lists the duplicates that were moved or dropped, None without
    `data.deduplicate`.
    """

    passages: pa.Table
    examples: dict[str, pa.Table]
    notes: dict[str, int]
    leaks: list[Leak] | None = None


def prepare(config: DataConfig, seed: int, offsets: TokenOffsets | None = None) -> Prepared:
    """Reads a data set, cuts passages, aligns and splits its questions. Deterministic for one `seed`.

    Args:
        config: section `data`.
        seed: of the split.
        offsets: the encoder's tokens, for `data.chunking.mode: tokens`.

    Raises:
        ArmorError: whatever is wrong with the data, with its place and remedy.
    """
    corpus = read_corpus(config)
    passages = cut_passages(corpus.documents, keep_whole if corpus.whole_documents else make_chunker(config, offsets))
    _require_content(passages.num_rows, len(corpus.pairs))
    _require_answers(corpus.pairs)
    locator = PassageLocator(passages)
    merged = merge_repeated(corpus.pairs)
    positives = {pair.example_id: locator.positives(pair) for pair in merged}
    splits = split_pairs(corpus.documents, merged, config, seed)
    num_split = sum(map(len, splits.values()))
    leaks: list[Leak] | None = None
    if config.deduplicate:
        gold = _gold_texts(positives, passages)
        splits, leaks = separate(splits, gold, grouping(corpus.documents, config), config.duplicate_similarity)
    kept = limit_splits(splits, config)
    examples = {name: _example_table(pairs, positives) for name, pairs in kept.items()}
    notes = {
        **_read_notes(corpus, passages.num_rows),
        "repeated_questions_merged": len(corpus.pairs) - len(merged),
        "straddling_questions_dropped": len(merged) - num_split,
        **_leak_notes(leaks),
        "questions_over_limit": sum(map(len, splits.values())) - sum(map(len, kept.values())),
        **{name: len(pairs) for name, pairs in kept.items()},
    }
    return Prepared(passages, examples, notes, leaks)


def _require_content(num_passages: int, num_questions: int) -> None:
    if num_passages < 2:
        raise ArmorError(f"the corpus has {num_passages} passages", where="data", hint="retrieval needs at least 2: add documents")
    if num_questions == 0:
        raise ArmorError("no questions", where="data", hint="add question/answer pairs: training and evaluation need them")


def _require_answers(pairs: list[QAPair]) -> None:
    bare = [pair for pair in pairs if not pair.answers]
    if bare:
        hint = "utilities need reference answers: give them, in BEIR's queries.jsonl as metadata.answers"
        raise ArmorError(f"{len(bare)} of {len(pairs)} questions have no answer", where=bare[0].where, hint=hint)


def _gold_texts(positives: dict[str, list[int]], passages: pa.Table) -> dict[str, list[str]]:
    texts = passages["text"]
    return {example_id: [texts[row].as_py() for row in rows] for example_id, rows in positives.items()}


def _leak_notes(leaks: list[Leak] | None) -> dict[str, int]:
    if leaks is None:
        return {}
    return {f"duplicate_questions_{action}": sum(leak.action == action for leak in leaks) for action in ("moved", "dropped")}


def _read_notes(corpus: Corpus, num_passages: int) -> dict[str, int]:
    counts = {"documents": len(corpus.documents), "passages": num_passages, "questions_read": len(corpus.pairs)}
    return {**counts, **corpus.notes}


def _example_table(pairs: list[QAPair], positives: dict[str, list[int]]) -> pa.Table:
    rows = [
        {
            "example_id": pair.example_id,
            "question": pair.question,
            "answers": list(pair.answers),
            "positive_ids": positives[pair.example_id],
            "doc_id": pair.doc_id,
            "domain": pair.domain,
        }
        for pair in pairs
    ]
    return pa.Table.from_pylist(rows, schema=EXAMPLES)
