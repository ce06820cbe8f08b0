"""Between prompts and numbers: which answers an engine scores, and how its numbers become results."""

from __future__ import annotations

from collections.abc import Sequence

from armor_ray.models.generators.prompts import ScorePrompt
from armor_ray.models.generators.protocol import AnswerScore, ScoreRequest, ScoreResult


def scorable_triples(prompts: Sequence[ScorePrompt]) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """(prefix, suffix, answer) of every answer that fits, request by request."""
    return [(prompt.prefix, prompt.suffix, answer) for prompt in prompts for answer in prompt.answers if answer is not None]


def collect_results(requests: Sequence[ScoreRequest], prompts: Sequence[ScorePrompt], totals: Sequence[float]) -> list[ScoreResult]:
    """One result per request from the log-likelihoods of `scorable_triples(prompts)`."""
    remaining = iter(totals)
    results = []
    for request, prompt in zip(requests, prompts, strict=True):
        scores = tuple(None if ids is None else AnswerScore(next(remaining), len(ids)) for ids in prompt.answers)
        results.append(ScoreResult(request.key, scores, prompt.passage_tokens_cut, prompt.error))
    return results
