"""Steps and tokens of every training run: each recipe with its own settings, and the trials of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from armor_ray.config import Config
from armor_ray.models.size import ModelSize
from armor_ray.stages.estimates.lines import Line, Rates
from armor_ray.stages.estimates.sample import DataSample, pool_pairs
from armor_ray.stages.estimates.tokens import EncoderTokens
from armor_ray.stages.methods import is_swept, recipe_config, trial_config, variants

# Forward and backward; with gradient caching every text is encoded once more beforehand, without a graph.
_PASSES, _CACHED_PASSES = 3, 4


@dataclass(frozen=True, slots=True)
class _Run:
    """A training run to its last epoch, and how many times there is one like it."""

    times: float
    steps: int
    tokens: float
    validation_tokens: float
    shared: bool


def training_lines(config: Config, sample: DataSample, words: EncoderTokens, size: ModelSize | None, rates: Rates) -> Iterator[Line]:
    """Of the stages `sweep` and `train`."""
    trials, rows = _trials(config, sample, words), _rows(config, sample, words)
    runs = [*trials, *rows]
    num_trials, num_runs = (round(sum(run.times for run in part)) for part in (trials, rows))
    yield Line("sweep", "trials", num_trials, "", "all to their last epoch; ASHA stops some early" if trials else "nothing is swept")
    yield Line("train", "runs", num_runs, "", f"{len(rows)} trained rows, {len(config.evaluation.seeds)} seeds")
    fewest, most = min(run.steps for run in runs), max(run.steps for run in runs)
    each = f"{most}" if fewest == most else f"{fewest} to {most}"
    yield Line("train", "optimizer steps", round(sum(run.times * run.steps for run in runs)), "", f"{each} a run, trials included")
    yield from _token_lines(runs, words, size, rates)


def _token_lines(runs: list[_Run], words: EncoderTokens, size: ModelSize | None, rates: Rates) -> Iterator[Line]:
    shared = any(run.shared for run in runs)
    trained = f"{words.question:.0f} a question ({words.how})"
    trained += ", and its pool's passages where both towers are trained" if shared else "; passages are not encoded again"
    yield Line("train", "tokens", sum(run.times * run.tokens for run in runs), "", trained)
    for passes, is_cached in ((_PASSES, False), (_CACHED_PASSES, True)):
        tokens = sum(run.times * run.tokens for run in runs if run.shared == is_cached)
        if tokens:
            yield from rates.hours("train", size, tokens, passes)
    validated = sum(run.times * run.validation_tokens for run in runs)
    judged = "all validation questions at every evaluation"
    judged += ", and the passages of their pools where both towers are trained" if shared else ""
    yield Line("train", "validation tokens", validated, "", judged)
    yield from rates.hours("train", size, validated)


def _rows(config: Config, sample: DataSample, words: EncoderTokens) -> list[_Run]:
    """One entry a trained row. The sweep's winner is taken to be its longest run."""
    seeds = len(config.evaluation.seeds)
    return [
        max(
            (
                _run(recipe_config(config, variant.recipe, config.seed, point), sample, words, seeds)
                for point in (_points(config) if variant.swept else [{}])
            ),
            key=lambda run: run.tokens,
        )
        for variant in variants(config)
    ]


def _trials(config: Config, sample: DataSample, words: EncoderTokens) -> list[_Run]:
    """One entry a point of the grid; of a random subset each counts by its share."""
    if not is_swept(config):
        return []
    points = _points(config)
    count = len(points) if config.sweep.trials is None else min(len(points), config.sweep.trials)
    return [_run(trial_config(config, point), sample, words, count / len(points)) for point in points]


def _points(config: Config) -> list[dict[str, float]]:
    names = sorted(config.sweep.parameters)
    return [dict(zip(names, values, strict=True)) for values in product(*(config.sweep.parameters[name] for name in names))]


def _run(config: Config, sample: DataSample, words: EncoderTokens, times: float) -> _Run:
    training, shared = config.training, config.objective.towers == "shared"
    questions = sample.questions("train")
    steps = questions // training.batch_size * training.epochs
    tokens_each, judged = words.question, sample.questions("validation") * words.question
    if shared:
        tokens_each += words.passage * pool_pairs(config, sample, "train") / questions
        judged += words.passage * min(pool_pairs(config, sample, "validation"), sample.num_passages)
    evaluations = 1 + training.epochs * training.evaluations_per_epoch + len(training.interpolate)
    return _Run(times, steps, steps * training.batch_size * tokens_each, evaluations * judged, shared)
