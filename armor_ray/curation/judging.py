"""Running judges one after another, with a record of every verdict, and no silent loss: failures are said, a spent budget ends the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from armor_ray.config import JudgeConfig
from armor_ray.curation.curated import BELOW_THRESHOLD
from armor_ray.errors import ArmorError
from armor_ray.judges.endpoint import has_endpoint
from armor_ray.judges.judge import Judge, Judgement, run_judge
from armor_ray.judges.qa_domain import QADomain
from armor_ray.judges.relevance import DocumentRelevance
from armor_ray.judges.teleqna import TeleQnADomain
from armor_ray.judges.verdicts import Verdict

Item = TypeVar("Item")
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

    Attributes:
        judged: every verdict, in order.
        judgements: summaries per judge, for the manifest.
    """

    def __init__(self, config: JudgeConfig, cache: Path, say: Callable[[str], None]) -> None:
        self.config = config
        self.cache = cache
        self.say = say
        self.judged: list[Judged] = []
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
        with tqdm(total=len(items), desc=judge.name, unit=" items", mininterval=5, disable=not has_endpoint(self.config)) as bar:
            judgement = run_judge(judge, items, self.config, self.cache, advance=lambda done: bar.update(done))
        self.say(f"curate: {judgement}")
        if judgement.stopped_by_budget:
            raise spent_budget(judge.name, judgement.failures.total(), len(items))
        self._warn_of_failures(judgement)
        self.judgements.append(judgement.as_dict())
        self.judged += [Judged(judge.name, *found) for found in zip(subjects, judgement.verdicts, strict=True)]
        return judgement.verdicts

    def _warn_of_failures(self, judgement: Judgement) -> None:
        if judgement.failures:
            self.say(f"curate: {judgement.failures.total()} items were not judged and are dropped; --force curate asks about them again")


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
