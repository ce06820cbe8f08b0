"""Between prompts and numbers: which answers an engine scores, and how its numbers become results."""

from __future__ import annotations

from collections.abc import Sequence

from armor_ray.models.generators.packing import Path
from armor_ray.models.generators.prompts import ScorePrompt
from armor_ray.models.generators.protocol import AnswerScore, ScoreRequest, ScoreResult


def scorable_paths(prompts: Sequence[ScorePrompt]) -> list[Path]:
    """A path for every answer that fits, request by request."""
    return [Path(p.head, p.passage, p.question, answer) for p in prompts for answer in p.answers if answer is not None]


def collect_results(requests: Sequence[ScoreRequest], prompts: Sequence[ScorePrompt], totals: Sequence[float]) -> list[ScoreResult]:
    """One result per request from the log-likelihoods of `scorable_paths(prompts)`."""
    remaining = iter(totals)
    results = []
    for request, prompt in zip(requests, prompts, strict=True):
        scores = tuple(None if ids is None else AnswerScore(next(remaining), len(ids)) for ids in prompt.answers)
        results.append(ScoreResult(request.key, scores, prompt.passage_tokens_cut, prompt.error))
    return results
