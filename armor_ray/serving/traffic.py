"""A/B and shadow traffic: which encoder answers a request that names none."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from armor_ray.serving.arguments import TrafficArguments
from armor_ray.serving.encoders import Arm


@dataclass(frozen=True, slots=True)
class Traffic:
    """Which encoder answers a request that names none, and which one answers it unseen."""

    arguments: TrafficArguments

    def assign(self, request_id: str | None) -> tuple[Arm, Arm | None]:
        """The encoder that answers, and the one whose answer is only compared; equal ids always get the same."""
        mode, share = self.arguments.mode, self.arguments.base_share
        if mode == "off" or _place(request_id) >= share:
            return "adapted", None
        return ("base", None) if mode == "ab" else ("adapted", "base")


def _place(request_id: str | None) -> float:
    """Where an id falls in [0, 1), evenly; anywhere without one."""
    if request_id is None:
        return random.random()
    return int.from_bytes(hashlib.sha256(request_id.encode("utf-8", "replace")).digest()[:8]) / 2**64
