"""What a judge did, in numbers, however many blocks it was done in."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from armor_ray.judges.accounting import Account
from armor_ray.judges.cache import Ledger
from armor_ray.judges.failures import Failure


@dataclass(slots=True)
class Summary:
    """Counts of a judgement.

    Attributes:
        judge: name of the judge.
        by: who judged: the model's name, or the stand-in's.
        items, kept: things judged, and those that passed.
        failures: things without a judgement, by class.
        endpoint, account, ledger: where, what this run did, and what the cache cost so far; None where no model judged.
    """

    judge: str
    by: str
    items: int = 0
    kept: int = 0
    failures: Counter[Failure] = field(default_factory=Counter)
    endpoint: str | None = None
    account: Account | None = None
    ledger: Ledger | None = None

    @property
    def stopped_by_budget(self) -> bool:
        """Whether items were left out because the budget was spent; a rerun with a larger one judges only those."""
        return Failure.BUDGET in self.failures

    def add(self, block: Summary) -> None:
        """Counts a later block of the same judge and judging party."""
        self.items += block.items
        self.kept += block.kept
        self.failures.update(block.failures)
        self.ledger = block.ledger
        if self.account is not None and block.account is not None:
            self.account.add(block.account)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a manifest."""
        return {
            "judge": self.judge,
            "by": self.by,
            "items": self.items,
            "kept": self.kept,
            "failures": {str(name): count for name, count in sorted(self.failures.items())},
            "stopped_by_budget": self.stopped_by_budget,
            "endpoint": self.endpoint,
            "account": self.account.as_dict() if self.account else None,
            "ledger": asdict(self.ledger) if self.ledger else None,
        }

    def __str__(self) -> str:
        """One line for people."""
        failed = f", {self.failures.total()} failed" if self.failures else ""
        stopped = "; stopped by the budget" if self.stopped_by_budget else ""
        cost = f"; {self.account}" if self.account else "; no model judged"
        return f"{self.judge} by {self.by}: kept {self.kept} of {self.items}{failed}{stopped}{cost}"
