"""Scoring for `candidates.refresh`: actors that hold the generator while trials train, and what a trial asks them through.

The actors know every pair of the workspace's utility cache and add to it. Trials that train at the same time share them, and a pair
always goes to the same actor, so no pair is scored twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import ray

from armor_ray.config import GeneratorConfig
from armor_ray.stages.score import PAIRS_A_BATCH, ScoreActor, combined_likelihood
from armor_ray.stages.utility_cache import Entry, answer_key
from armor_ray.training.table import QuestionPools


class RefreshActor(ScoreActor):
    """A score actor that looks pairs up before it scores them."""

    def __init__(self, config: GeneratorConfig, workspace_uri: str, cache_uri: str, split: str) -> None:
        super().__init__(config, workspace_uri, cache_uri, split)
        self._known = self._cache.load()

    def entries(self, examples: list[int], passage_ids: list[int]) -> list[list[Entry]]:
        """Cache entries of every answer of each (example number, passage id) pair, scored now where they are new."""
        keys = [self._keys(e, p) for e, p in zip(examples, passage_ids, strict=True)]
        new = [i for i, pair in enumerate(keys) if any(key not in self._known for key in pair)]
        if new:
            self._known.update(self.score([examples[i] for i in new], [passage_ids[i] for i in new]))
        return [[self._known[key] for key in pair] for pair in keys]

    def _keys(self, example: int, passage_id: int) -> list[bytes]:
        question, passage = self._questions[example], self._texts[passage_id].as_py()
        return [answer_key(question.text, passage, answer) for answer in question.answers]


class RayPairScorer:
    """The training loop's `PairScorer` over refresh actors.

    Args:
        actors: handles of `RefreshActor`s for the split being trained.
        normalised: divide by answer tokens before combining answers (`objective.length_normalised`).
    """

    def __init__(self, actors: list[Any], normalised: bool) -> None:
        self._actors = actors
        self._normalised = normalised

    def __call__(self, pools: QuestionPools, questions: list[int], rows: list[int]) -> list[float | None]:
        shares: dict[int, list[int]] = defaultdict(list)
        # By passage: its questions are scored together, behind one shared prefix.
        for i in sorted(range(len(rows)), key=lambda i: (rows[i], questions[i])):
            shares[rows[i] % len(self._actors)].append(i)
        batches = [(a, share[s : s + PAIRS_A_BATCH]) for a, share in shares.items() for s in range(0, len(share), PAIRS_A_BATCH)]
        calls = [self._actors[a].entries.remote([questions[i] for i in batch], [rows[i] for i in batch]) for a, batch in batches]
        values: list[float | None] = [None] * len(rows)
        for (_, batch), found in zip(batches, ray.get(calls), strict=True):
            for i, entries in zip(batch, found, strict=True):
                values[i] = combined_likelihood(entries, self._normalised)
        return values
