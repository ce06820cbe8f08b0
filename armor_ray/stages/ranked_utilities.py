"""Metrics by the generator's utility on the first test questions: it scores what the methods rank first, and the hard pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from armor_ray.config import Config
from armor_ray.evaluation.labels import EXPECTED_UTILITY, POOL_PREFIX, UTILITY_PREFIX
from armor_ray.evaluation.metrics import retrieval_metrics
from armor_ray.evaluation.utility import Utilities, calibrated_threshold, expected_utility_at_1, relevant_by_utility
from armor_ray.models.generators.identity import generator_identity
from armor_ray.objectives.utility import NEEDS_CLOSED_BOOK
from armor_ray.stages.arithmetic import scoring_generator
from armor_ray.stages.context import Context
from armor_ray.stages.evaluated import Method, Values
from armor_ray.stages.hard_pool import HardPools
from armor_ray.stages.prepare import load_passages
from armor_ray.stages.rankings import Ranking, SplitQuestions
from armor_ray.stages.score import Pairs, Question, score_missing
from armor_ray.stages.utility import pair_utilities
from armor_ray.stages.utility_cache import UtilityCache


@dataclass(slots=True)
class ByUtility:
    """Metrics by utility, and of what they are means.

    Attributes:
        values: method → `ExpUtil@1` and, with hard pools, `pool:ExpUtil@1` and `utility:R@k`, `utility:MAP`, ….
        expected: questions of ExpUtil@1; `asked` less those where some method's top passage could not be scored.
        relevant: questions with a relevant passage in their pool, over which the `utility:` metrics are means.
        threshold: the utility from which a passage is relevant; None without hard pools.
    """

    asked: int
    values: dict[str, Values] = field(default_factory=dict)
    expected: int = 0
    relevant: int = 0
    threshold: float | None = None

    def facts(self) -> dict[str, float | int | None]:
        """For the manifest."""
        return {"asked": self.asked, "expected": self.expected, "relevant": self.relevant, "threshold": self.threshold}


def measure_utilities(context: Context, split: SplitQuestions, methods: Sequence[Method], pools: HardPools | None) -> ByUtility:
    """Scores what is not in the utility cache, on at most `evaluation.utility_questions` questions."""
    found = ByUtility(min(context.config.evaluation.utility_questions, len(split.questions)))
    wanted = [
        {int(ranking.rows_QK[question, 0]) for method in methods for ranking in (*method.rankings, *method.pooled)}
        | (set(pools.pool_QN[question].tolist()) if pools is not None else set())
        for question in range(found.asked)
    ]
    return metrics_by_utility(found, methods, pools, score_ranked(context, split, wanted), context.config)


def metrics_by_utility(
    found: ByUtility, methods: Sequence[Method], pools: HardPools | None, utilities: Sequence[Utilities], config: Config
) -> ByUtility:
    """`found` with the metrics, given the utilities of the questions asked."""
    _expected(found, methods, utilities)
    if pools is not None:
        _relevance(found, methods, pools, utilities, config.utility.relevant_share, config.evaluation.ks)
    return found


def score_ranked(context: Context, split: SplitQuestions, wanted: Sequence[set[int]]) -> list[Utilities]:
    """Utilities of the first test questions' passages, through the same cache as all others; passages without one are left out.

    Args:
        split: the test split.
        wanted: of each of the first questions, the passage rows to score.

    Raises:
        ArmorError: an engine that cannot score, or not a single pair that could be scored.
    """
    settings = context.config.utility
    questions = [Question(text, tuple(answers)) for text, answers in zip(split.questions, split.answers, strict=True)]
    rows = [(example, row) for example, passages in enumerate(wanted) for row in sorted(passages)]
    pairs = Pairs("test", rows, split.example_ids, questions, load_passages(context.workspace, "text").column("text"))
    generator = scoring_generator(context)
    cache = UtilityCache(context.cache, generator_identity(generator))
    for part in (pairs, pairs.closed_book()) if settings.kind in NEEDS_CLOSED_BOOK else (pairs,):
        score_missing(context, generator, part, cache.load())
    found: list[dict[int, float]] = [{} for _ in wanted]
    for (example, row), value in zip(rows, pair_utilities(pairs, cache.load(), settings).tolist(), strict=True):
        if not math.isnan(value):
            found[example][row] = value
    return list(found)


def _expected(found: ByUtility, methods: Sequence[Method], utilities: Sequence[Utilities]) -> None:
    """A question counts for all methods or for none, so that their means compare."""
    every = [ranking.rows_QK[: found.asked, 0] for method in methods for ranking in (*method.rankings, *method.pooled)]
    kept = [i for i, known in enumerate(utilities) if all(int(top_Q[i]) in known for top_Q in every)]
    found.expected = len(kept)
    if not kept:
        return

    def means(rankings: Sequence[Ranking]) -> np.ndarray:
        return np.stack([expected_utility_at_1(ranking.rows_QK[kept], [utilities[i] for i in kept]) for ranking in rankings])

    for method in methods:
        values = found.values.setdefault(method.name, {})
        values[EXPECTED_UTILITY] = means(method.rankings)
        if method.pooled:
            values[POOL_PREFIX + EXPECTED_UTILITY] = means(method.pooled)


def _relevance(
    found: ByUtility, methods: Sequence[Method], pools: HardPools, utilities: Sequence[Utilities], share: float, ks: Sequence[int]
) -> None:
    """Relevance by utility instead of gold labels, calibrated over all pools; passages that could not be scored are not relevant."""
    pool_QN = pools.pool_QN[: found.asked].tolist()
    in_pool = [{row: known[row] for row in pool if row in known} for known, pool in zip(utilities, pool_QN, strict=True)]
    found.threshold = calibrated_threshold(in_pool, share)
    relevant = relevant_by_utility(in_pool, found.threshold)
    kept = [i for i, rows in enumerate(relevant) if len(rows)]
    found.relevant = len(kept)
    for method in methods:
        per_seed = [retrieval_metrics(ranking.rows_QK[kept], [relevant[i] for i in kept], pools.depths(ks)) for ranking in method.pooled]
        values = {UTILITY_PREFIX + metric: np.stack([seed[metric] for seed in per_seed]) for metric in per_seed[0]}
        found.values.setdefault(method.name, {}).update(values)
