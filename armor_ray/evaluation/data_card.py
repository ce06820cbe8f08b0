"""What the report says of the data set itself: counts as in the ARMOR paper's Table 1, lengths, judges, duplicates, some questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from armor_ray.evaluation.tables import Cell, Table

LISTED = 50
"""Duplicates that the page lists; all of them are in `examples/duplicates.jsonl`."""


@dataclass(frozen=True, slots=True)
class CardExample:
    """A question as it will be trained or tested on, with the texts of its gold passages."""

    split: str
    question: str
    answers: Sequence[str]
    document: str
    passages: Sequence[str]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A question that was moved or dropped, because another split holds the like of it (see `corpus.leakage.Leak`)."""

    example_id: str
    action: str
    origin: str
    target: str
    reason: str
    similarity: float
    twin: str


@dataclass(frozen=True, slots=True)
class Scores:
    """All values of one score that a judge gave, in [0, 1], by what became of the item."""

    judge: str
    score: str
    kept: np.ndarray
    dropped: np.ndarray


@dataclass(frozen=True, slots=True)
class JudgeCounts:
    """One judge's run: who judged (a model, `keywords` or `lexical`), how many items, how many passed, how many could not be judged."""

    judge: str
    by: str
    items: int
    kept: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationCard:
    """How judges made the data set.

    Attributes:
        pipeline: `curation.pipeline`.
        domain: its name.
        stand_ins: judges for which no model judged.
        writer: of the questions, where they were written; empty where they came with the data.
        judges: in their order.
        dropped: `step/reason` → count.
        scores: for the histograms.
    """

    pipeline: str
    domain: str
    stand_ins: Sequence[str]
    writer: str
    judges: Sequence[JudgeCounts]
    dropped: Mapping[str, int]
    scores: Sequence[Scores]

    @property
    def judges_table(self) -> Table:
        rows = [
            [Cell(_words(judge.judge)), Cell(judge.by), *(Cell(f"{count:,}") for count in (judge.items, judge.kept, judge.failed))]
            for judge in self.judges
        ]
        return Table(["Judge", "Judged by", "Items", "Kept", "Not judged"], rows)

    @property
    def dropped_table(self) -> Table:
        """What went, step by step and why."""
        rows = [[Cell(_words(step)), Cell(_words(reason)), Cell(f"{count:,}")] for (step, reason), count in self._reasons()]
        return Table(["Step", "Reason", "Dropped"], rows)

    def _reasons(self) -> list[tuple[tuple[str, str], int]]:
        return [((name.partition("/")[0], name.partition("/")[2]), count) for name, count in self.dropped.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """A prepared data set.

    Attributes:
        counts: statistic → number, in the order of the table.
        passage_characters: of every passage.
        question_words, answer_words: of every question and reference answer of all splits.
        duplicates: across splits; None where they were not looked for.
        curation: None where the data was used as it came.
        examples: drawn at random.
    """

    counts: Mapping[str, int]
    passage_characters: np.ndarray
    question_words: np.ndarray
    answer_words: np.ndarray
    duplicates: Sequence[Duplicate] | None
    curation: CurationCard | None
    examples: Sequence[CardExample]

    @property
    def counts_table(self) -> Table:
        return Table(["Statistic", "Count"], [[Cell(name), Cell(f"{count:,}")] for name, count in self.counts.items()])

    @property
    def duplicates_table(self) -> Table:
        """How many were moved and dropped, from where to where and why."""
        found = Counter((leak.action, leak.origin, leak.target, leak.reason) for leak in self.duplicates or ())
        rows = [[*map(Cell, key), Cell(f"{count:,}")] for key, count in sorted(found.items())]
        return Table(["What", "From", "Its like in", "Same", "Questions"], rows)

    @property
    def duplicates_listed(self) -> Table:
        """The first of them one by one."""
        rows = [
            [
                *map(Cell, (leak.example_id, leak.action, leak.origin, leak.target, leak.reason)),
                Cell(f"{leak.similarity:.2f}"),
                Cell(leak.twin),
            ]
            for leak in (self.duplicates or ())[:LISTED]
        ]
        return Table(["Question", "What", "From", "Its like in", "Same", "Similarity", "Its like"], rows)


def _words(name: str) -> str:
    return name.replace("_", " ")
