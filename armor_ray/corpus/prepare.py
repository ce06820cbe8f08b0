"""Documents and questions in, passages and split examples out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from armor_ray.config import DataConfig
from armor_ray.corpus.alignment import PassageLocator, merge_repeated
from armor_ray.corpus.chunking import Chunker, TokenOffsets, cut_passages, keep_whole, make_chunker
from armor_ray.corpus.leakage import Leak, separate
from armor_ray.corpus.records import Corpus, Document, QAPair
from armor_ray.corpus.schemas import EXAMPLES
from armor_ray.corpus.sources import read_corpus
from armor_ray.corpus.splitting import grouping, limit_splits, split_pairs
from armor_ray.corpus.streams import DocumentStream
from armor_ray.errors import ArmorError


@dataclass(frozen=True, slots=True)
class Examples:
    """The questions of one data set, aligned with its passages and split.

    `tables` maps train, validation and test to tables with the schema EXAMPLES; `notes` counts what was read, merged, dropped and
    kept; `leaks` lists the duplicates that were moved or dropped, None without `data.deduplicate`.
    """

    tables: dict[str, pa.Table]
    notes: dict[str, int]
    leaks: list[Leak] | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """All tables of one data set in memory; `passages` has the schema PASSAGES, for the others see `Examples`."""

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
    passages = cut_passages(corpus.documents, choose_chunker(config, corpus.whole_documents, offsets))
    examples = make_examples(corpus, [passages], config, seed)
    return Prepared(passages, examples.tables, examples.notes, examples.leaks)


def choose_chunker(config: DataConfig, whole_documents: bool, offsets: TokenOffsets | None) -> Chunker:
    """The chunker of a corpus whose documents are finished passages, or are to be cut as `data.chunking` says."""
    return keep_whole if whole_documents else make_chunker(config, offsets)


def make_examples(corpus: Corpus, shards: Iterable[pa.Table], config: DataConfig, seed: int) -> Examples:
    """Aligns the questions with the passages and splits them. Deterministic for one `seed`.

    Args:
        corpus: what was read.
        shards: its passages, tables with the schema PASSAGES, in order. Only those of documents that questions name stay in memory.
        config: section `data`.
        seed: of the split.

    Raises:
        ArmorError: too few passages, no questions, or what `separate`, `split_pairs` and `PassageLocator` refuse.
    """
    passages, num_passages = _asked_passages(corpus.pairs, shards, with_text=config.deduplicate)
    _require_content(num_passages, len(corpus.pairs))
    _require_answers(corpus.pairs)
    locator = PassageLocator(passages)
    merged = merge_repeated(corpus.pairs)
    positives = {pair.example_id: locator.positives(pair) for pair in merged}
    documents = _asked_documents(corpus)
    splits = split_pairs(documents, merged, config, seed)
    num_split = sum(map(len, splits.values()))
    leaks: list[Leak] | None = None
    if config.deduplicate:
        gold = _gold_texts(positives, passages)
        splits, leaks = separate(splits, gold, grouping(documents, config), config.duplicate_similarity)
    kept = limit_splits(splits, config)
    notes = {
        **_read_notes(corpus, num_passages),
        "repeated_questions_merged": len(corpus.pairs) - len(merged),
        "straddling_questions_dropped": len(merged) - num_split,
        **_leak_notes(leaks),
        "questions_over_limit": sum(map(len, splits.values())) - sum(map(len, kept.values())),
        **{name: len(pairs) for name, pairs in kept.items()},
    }
    return Examples({name: _example_table(pairs, positives) for name, pairs in kept.items()}, notes, leaks)


def _asked_passages(pairs: list[QAPair], shards: Iterable[pa.Table], with_text: bool) -> tuple[pa.Table, int]:
    """The passages of the documents that questions name, and how many passages there are in all."""
    columns = ["passage_id", "doc_id", "start", "end", *(["text"] if with_text else [])]
    named = pa.array(sorted({name for pair in pairs for name in pair.documents()}), pa.string())
    found, count = [], 0
    for shard in shards:
        found.append(shard.select(columns).filter(pc.is_in(shard["doc_id"], value_set=named)))
        count += len(shard)
    return pa.concat_tables(found), count


def _asked_documents(corpus: Corpus) -> Iterable[Document]:
    return corpus.documents.asked if isinstance(corpus.documents, DocumentStream) else corpus.documents


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
    text_of = dict(zip(passages["passage_id"].to_pylist(), passages["text"].to_pylist(), strict=True))
    return {example_id: [text_of[row] for row in rows] for example_id, rows in positives.items()}


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
