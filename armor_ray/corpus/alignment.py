"""From evidence to gold passages, and repeated questions to one."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa

from armor_ray.corpus.records import QAPair, Span, normalise_question
from armor_ray.errors import ArmorError


def verbatim_spans(doc_id: str, text: str, answers: Iterable[str]) -> tuple[Span, ...]:
    """Every place where an answer stands in `text`, upper and lower case alike.

    An answer that begins or ends in a digit is not found inside a longer number: "5" is not in "15" or "3.5".
    """
    found = {match.span() for answer in answers for match in _answer_pattern(answer).finditer(text)}
    return tuple(Span(doc_id, start, end) for start, end in sorted(found))


def _answer_pattern(answer: str) -> re.Pattern[str]:
    before = r"(?<!\d)(?<!\d[.,])" if answer[:1].isdigit() else ""
    after = r"(?!\d|[.,]\d)" if answer[-1:].isdigit() else ""
    return re.compile(before + re.escape(answer) + after, re.IGNORECASE)


def merge_repeated(pairs: Iterable[QAPair]) -> list[QAPair]:
    """One pair per question (see `normalise_question`): answers and evidence of its repetitions are united.

    The pair with the smallest `example_id` lends its id, wording, document and domain, so the outcome does not depend on the
    order of `pairs`. Answers that differ in case only count once.
    """
    same: dict[str, list[QAPair]] = defaultdict(list)
    for pair in pairs:
        same[normalise_question(pair.question)].append(pair)
    return [_merge(sorted(group, key=lambda pair: pair.example_id)) for group in same.values()]


def _merge(group: list[QAPair]) -> QAPair:
    first = group[0]
    answers: dict[str, str] = {}
    for answer in (answer for pair in group for answer in pair.answers):
        answers.setdefault(answer.casefold(), answer)
    return QAPair(
        example_id=first.example_id,
        question=first.question,
        answers=tuple(answers.values()),
        doc_id=first.doc_id,
        spans=tuple(dict.fromkeys(span for pair in group for span in pair.spans)),
        positive_ids=tuple(dict.fromkeys(name for pair in group for name in pair.positive_ids)),
        domain=first.domain,
        where=first.where,
    )


class PassageLocator:
    """Finds the passages of a document that overlap a span.

    Args:
        passages: a PASSAGES table; the passages of one document ascend by start and by end; windows may overlap.
    """

    def __init__(self, passages: pa.Table) -> None:
        self._starts: dict[str, list[int]] = defaultdict(list)
        self._ends: dict[str, list[int]] = defaultdict(list)
        self._ids: dict[str, list[int]] = defaultdict(list)
        columns = (passages.column(name).to_pylist() for name in ("doc_id", "passage_id", "start", "end"))
        for doc_id, passage_id, start, end in zip(*columns, strict=True):
            self._ids[doc_id].append(passage_id)
            self._starts[doc_id].append(start)
            self._ends[doc_id].append(end)

    def overlapping(self, span: Span) -> list[int]:
        """Ids of the passages that share at least one character with the span.

        A span with the very bounds of a passage is that passage: windows that overlap it were judged apart.
        """
        starts, ends = self._starts[span.doc_id], self._ends[span.doc_id]
        same = bisect_left(starts, span.start)
        if same < len(starts) and (starts[same], ends[same]) == (span.start, span.end):
            return self._ids[span.doc_id][same : same + 1]
        return self._ids[span.doc_id][bisect_right(ends, span.start) : bisect_left(starts, span.end)]

    def positives(self, pair: QAPair) -> list[int]:
        """Gold passages of a pair, ascending.

        Raises:
            ArmorError: there is none, because its evidence is nothing but whitespace.
        """
        ids = {passage_id for span in pair.spans for passage_id in self.overlapping(span)}
        ids.update(passage_id for name in pair.positive_ids for passage_id in self._ids[name])
        if not ids:
            raise ArmorError("question without positives: its evidence is blank text", where=pair.where, hint="correct its evidence spans")
        return sorted(ids)
