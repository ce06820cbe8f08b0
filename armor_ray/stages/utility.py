"""Stage `utility`: what every passage of a pool is worth to the generator, and the noise below which two passages are equal.

Runs only where a recipe learns from the reward model. It scores what `score` left out (validation pools, the closed book), measures
how much a utility changes when the same pair is scored in other company, and publishes one utility a pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import ActorPoolStrategy

from armor_ray.config import GeneratorConfig, UtilityConfig
from armor_ray.corpus.schemas import PAIR_UTILITIES
from armor_ray.errors import ArmorError
from armor_ray.models.generators.identity import generator_identity
from armor_ray.objectives.utility import NEEDS_CLOSED_BOOK, utility
from armor_ray.stages.arithmetic import scoring_generator
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.score import CLOSED_BOOK, Pairs, ScoreActor, load_pairs, score_missing
from armor_ray.stages.utility_cache import Entry, UtilityCache
from armor_ray.workspace import Draft

STAGE = "utility"
SPLITS = ("train", "validation")
# Not the batches of `score`: other sizes, and neither sorted nor grouped by passage.
_RESCORED_A_BATCH = 13


class RescoreActor(ScoreActor):
    """Scores pairs once more and keeps the results out of the cache."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        examples, passage_ids = batch["example"].tolist(), batch["passage_id"].tolist()
        results = self._generator.score(self._requests(examples, passage_ids))
        rows = [
            (e, p, a, score.log_likelihood)
            for e, p, result in zip(examples, passage_ids, results, strict=True)
            for a, score in enumerate(result.scores)
            if score is not None
        ]
        return {
            name: np.array(column)
            for name, column in zip(("example", "passage_id", "answer", "value"), zip(*rows, strict=True), strict=True)
        }


def run_all(context: Context, todo: list[Plan]) -> None:
    """Scores what is missing, measures the noise, publishes.

    Raises:
        ArmorError: not a single pair of a split has a utility.
    """
    [plan] = todo
    settings = context.config.utility
    generator = scoring_generator(context)
    cache = UtilityCache(context.cache, generator_identity(generator))
    pools = {split: load_pairs(context, split) for split in SPLITS}
    for pairs in pools.values():
        for wanted in (pairs, pairs.closed_book()) if settings.kind in NEEDS_CLOSED_BOOK else (pairs,):
            score_missing(context, generator, wanted, cache.load())
    entries = cache.load()
    values = {split: pair_utilities(pairs, entries, settings) for split, pairs in pools.items()}
    noise = _measure_noise(context, generator, pools["train"], entries)

    def write(draft: Draft) -> None:
        for split, pairs in pools.items():
            pq.write_table(_to_table(pairs, values[split]), draft.path / f"{split}.parquet")
            draft.rows[split] = len(pairs.pairs)
        draft.details |= {"kind": settings.kind, **noise.facts(), **_distribution(values["train"])}
        draft.details["relevance_threshold"] = relevance_threshold(values["validation"], settings.relevant_share)

    context.publish(plan, write)
    context.say(
        f"utility: noise floor {noise.floor:.2g} over {noise.pairs} pairs scored twice, median utility {np.nanmedian(values['train']):.3g}"
    )


def pair_utilities(pairs: Pairs, entries: dict[bytes, Entry], settings: UtilityConfig) -> np.ndarray:
    """fp32, one a pair in the order of `pairs`; NaN where no answer could be scored.

    Raises:
        ArmorError: that holds for all of them.
    """
    values = np.array([_pair_utility(pairs, entries, settings, example, passage) for example, passage in pairs.pairs], np.float32)
    if np.isnan(values).all():
        raise ArmorError(
            f"none of {len(values)} {pairs.split} pairs has a utility", where=STAGE, hint="see generator.max_length and the data"
        )
    return values


def _pair_utility(pairs: Pairs, entries: dict[bytes, Entry], settings: UtilityConfig, example: int, passage: int) -> float:
    """The mean over the answers that could be scored."""
    found = [entries[key] for key in pairs.keys(example, passage)]
    closed = [entries[key] for key in pairs.keys(example, CLOSED_BOOK)] if settings.kind in NEEDS_CLOSED_BOOK else found
    usable = [
        (value, tokens, without)
        for (value, tokens, _), (without, _, _) in zip(found, closed, strict=True)
        if value is not None and tokens and without is not None
    ]
    if not usable:
        return float("nan")
    values, tokens, without = zip(*usable, strict=True)
    return utility(settings.kind, values, tokens, without)


def _to_table(pairs: Pairs, values: np.ndarray) -> pa.Table:
    examples = [pairs.example_ids[example] for example, _ in pairs.pairs]
    utilities = pa.array(values, mask=np.isnan(values))
    return pa.table([pa.array(examples), pa.array([p for _, p in pairs.pairs], pa.int64()), utilities], schema=PAIR_UTILITIES)


def relevance_threshold(values: np.ndarray, share: float) -> float:
    """The utility that the best `share` of pairs reach (UAE §3: the top 10 % of the scores)."""
    return float(np.nanquantile(values, 1.0 - share))


def _distribution(values: np.ndarray) -> dict[str, float]:
    """Quantiles of the utilities: the heavy tail of UAE's Figure 3."""
    return {f"utility_q{share:g}": float(np.nanquantile(values, share / 100)) for share in (1, 25, 50, 75, 90, 99)}


@dataclass(frozen=True, slots=True)
class Noise:
    """How much utilities change between two batchings of the same pairs: the largest and the mean absolute change."""

    floor: float
    mean: float
    pairs: int

    def facts(self) -> dict[str, float]:
        """For the manifest."""
        return {"noise_floor": self.floor, "noise_mean": self.mean, "noise_pairs": self.pairs}


def _measure_noise(context: Context, generator: GeneratorConfig, pairs: Pairs, entries: dict[bytes, Entry]) -> Noise:
    """Scores a sample of pairs again, shuffled into small batches."""
    settings = context.config.utility
    random = np.random.default_rng([context.config.seed, 1])
    chosen = random.choice(len(pairs.pairs), min(settings.noise_pairs, len(pairs.pairs)), replace=False)
    sample = Pairs(pairs.split, [pairs.pairs[i] for i in chosen], pairs.example_ids, pairs.questions, pairs.texts)
    wanted = (sample, sample.closed_book()) if settings.kind in NEEDS_CLOSED_BOOK else (sample,)
    again = dict(entries)
    for part in wanted:
        again.update(_rescored(context, generator, part, entries))
    change = np.abs(pair_utilities(sample, again, settings) - pair_utilities(sample, entries, settings))
    return Noise(float(np.nanmax(change)), float(np.nanmean(change)), int((~np.isnan(change)).sum()))


def _rescored(context: Context, generator: GeneratorConfig, pairs: Pairs, entries: dict[bytes, Entry]) -> dict[bytes, Entry]:
    connect(context.workspace)
    starts = range(0, len(pairs.pairs), _RESCORED_A_BATCH)
    batches = [pairs.pairs[start : start + _RESCORED_A_BATCH] for start in starts]
    blocks = [pa.table({"example": [e for e, _ in batch], "passage_id": [p for _, p in batch]}) for batch in batches]
    actors = plan_actors(context.config.resources, context.config.resources.score_actors, len(blocks))
    dataset = ray.data.from_arrow(blocks).map_batches(
        RescoreActor,
        fn_constructor_args=(generator, context.workspace.uri, context.cache.uri, pairs.split),
        batch_size=None,
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    found: dict[bytes, Entry] = {}
    with user_errors():
        for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
            for example, passage, answer, value in zip(
                *(batch[name].tolist() for name in ("example", "passage_id", "answer", "value")), strict=True
            ):
                key = pairs.keys(example, passage)[answer]
                found[key] = (value, entries[key][1], None)
    return found
