"""Running judges one after another, with a record of every verdict, and no silent loss: failures are said, a spent budget ends the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from armor_ray.config import JudgeConfig
from armor_ray.curation.curated import BELOW_THRESHOLD
from armor_ray.errors import ArmorError
from armor_ray.judges.endpoint import has_endpoint
from armor_ray.judges.judge import Judge, Judgement, judge_without_endpoint, run_judge, warn_of_stand_in
from armor_ray.judges.qa_domain import QADomain
from armor_ray.judges.relevance import DocumentRelevance
from armor_ray.judges.summary import Summary
from armor_ray.judges.teleqna import TeleQnADomain
from armor_ray.judges.verdicts import Verdict

BLOCK = 2048
"""Things that are judged together where not all are held: many times what an endpoint is asked at once, and a few megabytes."""

Item = TypeVar("Item")
Thing = TypeVar("Thing")
Thresholded = TypeVar("Thresholded", QADomain, DocumentRelevance, TeleQnADomain)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a verdict is about: a document or question by id, or a chunk [start, end) of the question's document."""

    id: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """One verdict and what it is about."""

    step: str
    subject: Subject
    verdict: Verdict


class Judging:
    """The judges of one curation.

    Args:
        config: section `judge`; without an endpoint the judges' stand-ins judge, which is said and recorded.
        cache: file of paid replies, on a local disk.
        say: takes one line per judge.
        record: takes every verdict, in order.

    Attributes:
        judgements: summaries per judge, for the manifest.
    """

    def __init__(self, config: JudgeConfig, cache: Path, say: Callable[[str], None], record: Callable[[Sequence[Judged]], None]) -> None:
        self.config = config
        self.cache = cache
        self.say = say
        self._record = record
        self.judgements: list[dict[str, Any]] = []

    @property
    def stand_ins(self) -> list[str]:
        """Names of the judges for which no model judged."""
        return [judgement["judge"] for judgement in self.judgements if judgement["endpoint"] is None]

    def run(self, judge: Judge[Item], subjects: Sequence[Subject], items: Sequence[Item]) -> list[Verdict]:
        """Verdicts in the order of the items.

        Raises:
            ArmorError: the budget is spent, or no request can succeed; what was paid for is kept, and a rerun goes on from there.
        """
        with self._begin(judge, len(items)) as bar:
            judgement = self._judge(judge, subjects, items, bar)
        self._end(judgement.summary, len(items))
        return judgement.verdicts

    def each(
        self, judge: Judge[Item], things: Iterable[Thing], total: int, describe: Callable[[Thing], tuple[Subject, Item]]
    ) -> Iterator[tuple[Thing, Verdict]]:
        """The things with their verdicts, in order, of which only `BLOCK` are held at once; for judges that judge each thing for itself.

        Args:
            total: how many things there are.
            describe: a thing's subject, and the item that the judge sees.

        Raises:
            ArmorError: see `run`.
        """
        for thing, [verdict] in self.each_group(judge, things, total, lambda thing: [describe(thing)]):
            yield thing, verdict

    def each_group(
        self, judge: Judge[Item], things: Iterable[Thing], total: int, describe: Callable[[Thing], Sequence[tuple[Subject, Item]]]
    ) -> Iterator[tuple[Thing, list[Verdict]]]:
        """The things, in order, each with the verdicts of all its items, which are judged together; some `BLOCK` items are held at once.

        Args:
            total: how many items there are.
            describe: subjects and items of a thing.

        Raises:
            ArmorError: see `run`.
        """
        with self._begin(judge, total) as bar:
            summary = self._judge(judge, [], [], bar).summary
            for block in _blocks(things, describe):
                if summary.stopped_by_budget:
                    break
                described = [one for _, group in block for one in group]
                judgement = self._judge(judge, [subject for subject, _ in described], [item for _, item in described], bar)
                summary.add(judgement.summary)
                verdicts = iter(judgement.verdicts)
                for thing, group in block:
                    yield thing, list(islice(verdicts, len(group)))
        self._end(summary, total)

    def _begin(self, judge: Judge[Any], total: int) -> tqdm:
        is_asked = has_endpoint(self.config)
        if not is_asked:
            warn_of_stand_in(judge)
        return tqdm(total=total, desc=judge.name, unit=" items", mininterval=5, disable=not is_asked)

    def _judge(self, judge: Judge[Item], subjects: Sequence[Subject], items: Sequence[Item], bar: tqdm) -> Judgement:
        if has_endpoint(self.config):
            judgement = run_judge(judge, items, self.config, self.cache, advance=lambda done: bar.update(done))
        else:
            judgement = judge_without_endpoint(judge, items)
        self._record([Judged(judge.name, *found) for found in zip(subjects, judgement.verdicts, strict=True)])
        return judgement

    def _end(self, summary: Summary, total: int) -> None:
        self.say(f"curate: {summary}")
        if summary.stopped_by_budget:
            raise spent_budget(summary.judge, summary.failures.total() + total - summary.items, total)
        if summary.failures:
            self.say(f"curate: {summary.failures.total()} items were not judged and are dropped; --force curate asks about them again")
        self.judgements.append(summary.as_dict())


def _blocks(
    things: Iterable[Thing], describe: Callable[[Thing], Sequence[tuple[Subject, Item]]]
) -> Iterator[list[tuple[Thing, Sequence[tuple[Subject, Item]]]]]:
    """Things with what describes them, as many together as have `BLOCK` items."""
    block: list[tuple[Thing, Sequence[tuple[Subject, Item]]]] = []
    held = 0
    for thing in things:
        block.append((thing, describe(thing)))
        held += len(block[-1][1])
        if held >= BLOCK:
            yield block
            block, held = [], 0
    if block:
        yield block


def with_threshold(judge: Thresholded, threshold: float | None) -> Thresholded:
    """The judge with another threshold than the paper's, where one is set."""
    return judge if threshold is None else replace(judge, threshold=threshold)


def spent_budget(step: str, missing: int, total: int) -> ArmorError:
    """The end of a run whose judge (or writer) may spend no more."""
    message = f"the budget is spent: {missing} of {total} items of {step} are left"
    return ArmorError(message, where="judge.budget", hint="raise it and rerun: paid replies are kept")


def why_dropped(verdict: Verdict) -> str:
    """The reason in one word."""
    return str(verdict.failure) if verdict.failure is not None else BELOW_THRESHOLD
