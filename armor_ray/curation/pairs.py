"""What every pipeline does with questions that the source brings along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from armor_ray.corpus.records import QAPair
from armor_ray.curation.curated import REPEATED, Dropped
from armor_ray.curation.judging import why_dropped
from armor_ray.errors import ArmorError
from armor_ray.judges.verdicts import Verdict

T = TypeVar("T")


def judgeable(pairs: Sequence[QAPair]) -> tuple[list[QAPair], list[Dropped]]:
    """Each example id once, the first one; repetitions are dropped. Said before anything is paid for: a question without an answer.

    Raises:
        ArmorError: a question has no answer, or there is none at all.
    """
    bare = next((pair for pair in pairs if not pair.answers), None)
    if bare is not None:
        raise ArmorError("question without an answer", where=bare.where, hint="judges and utilities need reference answers")
    if not pairs:
        raise ArmorError("no questions", where="data", hint="curation.pipeline: documents writes questions about documents")
    kept = {pair.example_id: pair for pair in reversed(pairs)}
    first = [pair for pair in pairs if kept[pair.example_id] is pair]
    again = [pair for pair in pairs if kept[pair.example_id] is not pair]
    return first, [Dropped("question", pair.example_id, "source", REPEATED, {}, pair.question) for pair in again]


def all_answers(pair: QAPair) -> str:
    """The reference answers as a judge reads them."""
    return "\n".join(pair.answers)


def passed(things: Sequence[T], verdicts: Sequence[Verdict]) -> Iterable[tuple[T, Verdict]]:
    """What a judge keeps."""
    return ((thing, verdict) for thing, verdict in zip(things, verdicts, strict=True) if verdict.keep)


def failed_questions(pairs: Sequence[QAPair], verdicts: Sequence[Verdict], step: str) -> list[Dropped]:
    """What it does not."""
    return [
        Dropped("question", pair.example_id, step, why_dropped(verdict), verdict.scores, pair.question)
        for pair, verdict in zip(pairs, verdicts, strict=True)
        if not verdict.keep
    ]
