"""(a) Utility scoring: the `hf` engine against one sequence at a time in fp32, and against padded batches of 16 in its own arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike

from armor_ray.models.generators.hf import HfGenerator
from armor_ray.models.generators.packing import Path
from armor_ray.models.generators.prompts import PromptBuilder
from armor_ray.models.generators.protocol import ScoreRequest
from armor_ray.models.generators.results import scorable_paths
from benchmarks.authors import load_plain, score_one_by_one, score_padded
from benchmarks.inputs import Inputs, PassageSample, Scale, sample_passages
from benchmarks.measure import Cost, race
from benchmarks.report import Outcome, speed_up

_FP32_TOLERANCE = 1e-3  # nats, largest difference
_BF16_EXCESS = 1.5  # the engine's mean error in bf16 over that of the padded batches in bf16, both against fp32


@dataclass(frozen=True, slots=True)
class Scoring:
    """The measured race.

    Attributes:
        ours, one_by_one, padded: cost of scoring the sample.
        sequences: answers scored; tokens: of their prompts and answers, none shared.
        dtype: of ours and of the padded side.
        agreement: sentences about the differences between the sides' numbers.
        prompts: how all sides tokenise.
    """

    sample: PassageSample
    ours: Cost
    one_by_one: Cost
    padded: Cost
    sequences: int
    tokens: int
    dtype: str
    agreement: list[str]
    prompts: PromptBuilder


def measure(inputs: Inputs, scale: Scale) -> Scoring:
    """Scores the same pairs in three ways and compares times and log-likelihoods.

    Raises:
        RuntimeError: the sides do not compute the same numbers, so their times say nothing.
    """
    sample = sample_passages(inputs.pools, scale.groups)
    requests = [inputs.request(question, passage) for question, passage in sample.pairs]
    ours = HfGenerator(inputs.config.generator)
    exact = HfGenerator(inputs.config.generator.model_copy(update={"dtype": "float32"}))
    plain_fp32 = load_plain(inputs.config.generator.model, torch.float32)
    plain = load_plain(inputs.config.generator.model, ours.dtype)
    sides = {
        "ours": lambda: score_all(ours, requests),
        "one by one": lambda: score_one_by_one(plain_fp32, tokenized(ours, requests)),
        "padded": lambda: score_padded(plain, tokenized(ours, requests)),
    }
    warm = tokenized(ours, requests[:2])
    ours.score(requests[:2]), score_one_by_one(plain_fp32, warm), score_padded(plain, warm)
    finished = race(sides, scale.repeats)
    values = {name: np.array(finish.value) for name, finish in finished.items()}
    dtype = str(ours.dtype).removeprefix("torch.")
    agreement = [
        require_equal(score_all(exact, requests), values["one by one"]),
        require_like_noise(dtype, values["ours"], values["padded"], values["one by one"]),
    ]
    return Scoring(
        sample,
        finished["ours"].cost,
        finished["one by one"].cost,
        finished["padded"].cost,
        sequences=len(values["ours"]),
        tokens=count_tokens(tokenized(ours, requests)),
        dtype=dtype,
        agreement=agreement,
        prompts=ours.prompts,
    )


def score_all(generator: HfGenerator, requests: Sequence[ScoreRequest]) -> list[float]:
    """The engine's log-likelihoods, answer by answer."""
    return [score.log_likelihood for result in generator.score(requests) for score in result.scores if score is not None]


def tokenized(generator: HfGenerator, requests: Sequence[ScoreRequest]) -> list[Path]:
    """Prompt and answer ids of every answer: all sides score the same tokens."""
    return scorable_paths(generator.prompts.score_prompts(requests))


def count_tokens(paths: Sequence[Path]) -> int:
    """Tokens of all sequences, each counted in full."""
    return sum(len(path.head) + len(path.passage) + len(path.question) + len(path.answer) for path in paths)


def require_equal(values: ArrayLike, others: ArrayLike) -> str:
    """A sentence about the differences between two sides in fp32, which must agree in every value."""
    differences = np.abs(np.asarray(values) - np.asarray(others))
    sentence = f"fp32 engine against one sequence at a time: at most {differences.max():.2g} nats apart"
    if differences.max() > _FP32_TOLERANCE:
        raise RuntimeError(f"the race is void: {sentence}")
    return sentence


def require_like_noise(dtype: str, values: ArrayLike, others: ArrayLike, exact: ArrayLike) -> str:
    """A sentence about two sides in low precision: `values` must not be further from the `exact` ones than its rounding explains."""
    ours, theirs = (np.abs(np.asarray(side) - np.asarray(exact)) for side in (values, others))
    sentence = (
        f"{dtype} against fp32, mean and largest difference in nats: engine {ours.mean():.2g} and {ours.max():.2g}, "
        f"padded batches {theirs.mean():.2g} and {theirs.max():.2g}"
    )
    if ours.mean() > _BF16_EXCESS * theirs.mean() + _FP32_TOLERANCE:
        raise RuntimeError(f"the race is void: {sentence}")
    return sentence


def outcome(scoring: Scoring) -> Outcome:
    """Rows and remarks of (a)."""
    per_pair = 1000 / len(scoring.sample.pairs)
    ours, one, padded = (cost.cpu * per_pair for cost in (scoring.ours, scoring.one_by_one, scoring.padded))
    rows = [
        speed_up(f"(a) scoring: {scoring.dtype} vs one sequence at a time, fp32", ours, one, "CPU-ms a pair", 6.0),
        speed_up(f"(a) scoring: {scoring.dtype} vs padded batches of 16, {scoring.dtype}", ours, padded, "CPU-ms a pair", 2.0),
    ]
    walls = ", ".join(f"{cost.wall * per_pair:.0f}" for cost in (scoring.ours, scoring.one_by_one, scoring.padded))
    notes = [f"(a) {scoring.sample.describe()}", f"(a) wall ms a pair (ours, one at a time, padded): {walls}"]
    return Outcome(rows, notes + [f"(a) {sentence}" for sentence in scoring.agreement])
