"""(d) A sweep of 8 trials of 2 epochs: everything slow computed once, against 8 trainings that do it in every step. Extrapolated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from armor_ray.models.generators.packing import Path
from armor_ray.models.generators.prompts import PromptBuilder
from armor_ray.models.generators.results import scorable_paths
from armor_ray.models.hardware import choose_dtype
from benchmarks.inputs import Inputs
from benchmarks.measure import timed
from benchmarks.report import Outcome, speed_up
from benchmarks.scoring import Scoring, count_tokens
from benchmarks.training_step import BATCH, TOP_K, Steps

TRIALS, EPOCHS = 8, 2
_SLICE = 256  # passages whose embedding is timed


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a side's bill: CPU-seconds, and how they follow from what was measured."""

    name: str
    seconds: float
    arithmetic: str

    def describe(self) -> str:
        return f"{self.name}: {self.arithmetic} = {self.seconds:,.0f} CPU-s"


def run(inputs: Inputs, scoring: Scoring, steps: Steps) -> Outcome:
    """Multiplies the costs measured on slices by the whole amounts and adds them up."""
    ours = [*_computed_once(inputs, scoring), *_trainings(inputs, steps)]
    theirs = [_their_trainings(inputs, steps, scoring.prompts)]
    our_hours, their_hours = (sum(share.seconds for share in shares) / 3600 for shares in (ours, theirs))
    name = f"(d) sweep of {TRIALS} x {EPOCHS} epochs: vs {TRIALS} trainings as in (c), extrapolated"
    notes = [f"(d) ours: {share.describe()}" for share in ours] + [f"(d) theirs: {share.describe()}" for share in theirs]
    notes.append("(d) left out: process start, model loading, checkpoints; their one embedding of the corpus for the index")
    return Outcome([speed_up(name, our_hours, their_hours, "CPU-h", 50.0)], notes)


def _computed_once(inputs: Inputs, scoring: Scoring) -> list[Share]:
    whole = count_tokens(_paths(inputs, scoring.prompts, inputs.pools))
    rate = scoring.ours.cpu / scoring.tokens
    return [
        _embedding(inputs),
        Share("questions and pools", inputs.query_cost.cpu + inputs.retrieval_cost.cpu, "measured whole"),
        Share("scoring", whole * rate, f"{whole:,} tokens of {scoring.sample.whole_pairs:,} pairs x {1e6 * rate:.0f} CPU-µs (a)"),
    ]


def _embedding(inputs: Inputs) -> Share:
    config = inputs.config.encoder
    texts = inputs.passages["text"].to_pylist()
    chosen = [texts[row] for row in np.linspace(0, len(texts) - 1, _SLICE).astype(int)]
    dtype = choose_dtype(config.embed_dtype, inputs.encoder.device)
    cost, _ = timed(lambda: inputs.encoder.encode(chosen, "passage", config.batch_tokens, dtype))
    each = cost.cpu / len(chosen)
    arithmetic = f"{len(texts):,} passages x {1000 * each:.1f} CPU-ms ({str(dtype).removeprefix('torch.')}, {len(chosen)} measured)"
    return Share("embedding", len(texts) * each, arithmetic)


def _trainings(inputs: Inputs, steps: Steps) -> list[Share]:
    count = _num_steps(inputs)
    cost, _ = timed(lambda: steps.trainer.validator.recall(steps.trainer.module.encoder))
    evaluations = TRIALS * (EPOCHS + 1)
    return [
        Share("training", count * steps.ours.cpu, f"{TRIALS} trials x {EPOCHS} epochs = {count:,} steps x {steps.ours.cpu:.3f} CPU-s (c)"),
        Share("validation", evaluations * cost.cpu, f"{evaluations} evaluations x {cost.cpu:.2f} CPU-s (theirs has none)"),
    ]


def _their_trainings(inputs: Inputs, steps: Steps, prompts: PromptBuilder) -> Share:
    """Their steps cost what their tokens cost: the mean question of the whole set may be longer or shorter than those measured."""
    count = _num_steps(inputs)
    pools = [pool[:TOP_K] for pool in inputs.pools]
    mean_tokens = count_tokens(_paths(inputs, prompts, pools)) * BATCH / len(pools)
    each = steps.theirs.cpu * mean_tokens / steps.llm_tokens
    scaled = f"{steps.theirs.cpu:.1f} CPU-s (c) x {mean_tokens:,.0f} mean tokens a step / {steps.llm_tokens:,.0f} measured"
    return Share("training", count * each, f"{count:,} steps x {scaled}")


def _num_steps(inputs: Inputs) -> int:
    return TRIALS * EPOCHS * (len(inputs.pools) // BATCH)


def _paths(inputs: Inputs, prompts: PromptBuilder, pools: list[list[int]]) -> list[Path]:
    requests = [inputs.request(question, passage) for question, pool in enumerate(pools) for passage in pool]
    return scorable_paths(prompts.score_prompts(requests))
