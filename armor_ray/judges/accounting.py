"""What judging did and what it cost: every request, retry and failure is counted under its class."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from armor_ray.judges.failures import Failure


@dataclass(slots=True)
class Account:
    """Counts of one client's life; money in the currency of the configured prices.

    Attributes:
        paid: replies that this client fetched.
        cached: replies that an earlier run, or an earlier request of this one, had paid for.
        joined: requests that waited for an equal one under way instead of being sent.
        retries: attempts that failed in a transient way and were repeated, by class.
        failures: requests given up, by class.
        readings: how replies were read (`exact`, `clamped`, …); judges count here.
        dropped: parameters that the endpoint refused and that are no longer sent.
    """

    paid: int = 0
    cached: int = 0
    joined: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    retries: Counter[Failure] = field(default_factory=Counter)
    failures: Counter[Failure] = field(default_factory=Counter)
    readings: Counter[str] = field(default_factory=Counter)
    dropped: tuple[str, ...] = ()

    def add(self, later: Account) -> None:
        """Counts what another client of the same endpoint did after this one."""
        self.paid += later.paid
        self.cached += later.cached
        self.joined += later.joined
        self.prompt_tokens += later.prompt_tokens
        self.completion_tokens += later.completion_tokens
        self.cost += later.cost
        self.retries.update(later.retries)
        self.failures.update(later.failures)
        self.readings.update(later.readings)
        self.dropped = later.dropped

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a manifest."""
        return {
            "paid": self.paid,
            "cached": self.cached,
            "joined": self.joined,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": round(self.cost, 6),
            "retries": {str(name): count for name, count in sorted(self.retries.items())},
            "failures": {str(name): count for name, count in sorted(self.failures.items())},
            "readings": dict(sorted(self.readings.items())),
            "dropped": list(self.dropped),
        }

    def __str__(self) -> str:
        """One line for people."""
        parts = [
            f"{self.paid} replies paid ({self.prompt_tokens:,} + {self.completion_tokens:,} tokens, {self.cost:.4f})",
            f"{self.cached} from the cache",
            f"{self.joined} joined",
        ]
        for label, counts in (("retried", self.retries), ("failed", self.failures), ("read", self.readings)):
            if counts:
                parts.append(f"{label}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
        if self.dropped:
            parts.append(f"not sent, the endpoint refuses: {', '.join(self.dropped)}")
        return "; ".join(parts)
