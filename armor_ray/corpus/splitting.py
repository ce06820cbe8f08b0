"""Seeded splits that no document (or source) straddles, whatever the order of the input."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from armor_ray.config import DataConfig
from armor_ray.corpus.records import Document, QAPair, normalise_question
from armor_ray.errors import ArmorError

SPLITS = ("train", "validation", "test")


def split_pairs(documents: Iterable[Document], pairs: list[QAPair], config: DataConfig, seed: int) -> dict[str, list[QAPair]]:
    """Assigns questions to train, validation and test.

    With `split_by: group`, the groups that have questions (documents, or sources) are ranked by a hash of seed and name:
    `test_fraction` of them are test, `validation_fraction` of the rest validation, at least one each. A question whose evidence
    lies in groups of different splits would leak from one to the other and is left out; compare the lengths to count these. With
    `split_by: question` every question is its own group.

    Returns:
        Split name -> questions in a seeded order that does not depend on the order of `pairs`, so that a prefix is a sample.

    Raises:
        ArmorError: a split is empty, or `group_by: source` meets a document without one.
    """
    groups_of = grouping(documents, config)
    names = {name for pair in pairs for name in groups_of(pair)}
    split_of = _assign(names, config, seed)
    splits: dict[str, list[QAPair]] = {name: [] for name in SPLITS}
    for pair in _shuffled(pairs, seed):
        targets = {split_of[name] for name in groups_of(pair)}
        if len(targets) == 1:
            splits[targets.pop()].append(pair)
    _refuse_empty(splits, len(names), config)
    return splits


def limit_splits(splits: dict[str, list[QAPair]], config: DataConfig) -> dict[str, list[QAPair]]:
    """Keeps at most `max_train`, `max_validation` and `max_test` questions: a sample, as `split_pairs` shuffles."""
    limits = {"train": config.max_train, "validation": config.max_validation, "test": config.max_test}
    return {name: pairs[: limits[name]] for name, pairs in splits.items()}


def grouping(documents: Iterable[Document], config: DataConfig) -> Callable[[QAPair], set[str]]:
    """The function from a question to the groups that must not straddle splits.

    Raises:
        ArmorError: `group_by: source` meets a document without one.
    """
    if config.split_by == "question":
        return lambda pair: {normalise_question(pair.question)}
    if config.group_by == "document":
        return QAPair.documents
    source_of = {document.doc_id: document.source for document in documents}
    for doc_id, source in source_of.items():
        if not source:
            raise ArmorError(
                f"document '{doc_id}' has no source",
                where="data.group_by: source",
                hint="fill the field 'source' or set data.group_by: document",
            )
    return lambda pair: {source_of[doc_id] for doc_id in pair.documents()}


def _assign(names: set[str], config: DataConfig, seed: int) -> dict[str, str]:
    ranked = sorted(names, key=lambda name: _rank(seed, name))
    num_test = max(1, round(config.test_fraction * len(ranked)))
    num_validation = max(1, round(config.validation_fraction * (len(ranked) - num_test)))
    bounds = (("test", num_test), ("validation", num_test + num_validation), ("train", len(ranked)))
    return {name: next(split for split, bound in bounds if place < bound) for place, name in enumerate(ranked)}


def _shuffled(pairs: Iterable[QAPair], seed: int) -> list[QAPair]:
    # The example id breaks the tie of repeated questions that a caller has not merged.
    return sorted(pairs, key=lambda pair: (_rank(seed, f"order\0{normalise_question(pair.question)}"), pair.example_id))


def _rank(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest()


def _refuse_empty(splits: dict[str, list[QAPair]], num_groups: int, config: DataConfig) -> None:
    unit = "question" if config.split_by == "question" else config.group_by
    for name, pairs in splits.items():
        if not pairs:
            remedy = "lower data.test_fraction and data.validation_fraction" if name == "train" else f"raise data.{name}_fraction"
            raise ArmorError(
                f"the {name} split is empty: {num_groups} {unit} groups with questions",
                where="data",
                hint=f"{remedy}, or add {unit}s with questions",
            )
