"""Rewards of whole pools on a Ray Data actor pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
from ray.data import ActorPoolStrategy
from tqdm import tqdm

from armor_ray.stages.cluster import plan_actors, user_errors
from armor_ray.stages.context import Context
from armor_ray.training.reward_pairs import PoolTable
from armor_ray.training.table import PADDING

_QUESTIONS_A_BATCH = 16


def score_table(context: Context, model: str, table: PoolTable, reference: list[Any], into: dict[str, np.ndarray], label: str) -> None:
    """Fills the arrays fp32 [Q, N] of the named splits with R of their pools.

    Args:
        model: folder of the reward model, or folder or id of a stock cross-encoder.
        reference: to the same table in the object store, in a list, which Ray leaves as it is.
        label: of the progress bar.
    """
    from armor_ray.stages.reward_actor import RewardActor

    todo = [
        {"split": split, "start": start, "stop": min(start + _QUESTIONS_A_BATCH, len(table.split(split)))}
        for split in into
        for start in range(0, len(table.split(split)), _QUESTIONS_A_BATCH)
    ]
    actors = plan_actors(context.config.resources, context.config.resources.reward_actors, len(todo))
    dataset = ray.data.from_items(todo, override_num_blocks=len(todo)).map_batches(
        RewardActor,
        fn_constructor_args=(context.config, model, reference),
        batch_size=1,
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    total = sum(int((table.split(split).pool_QN != PADDING).sum()) for split in into)
    with user_errors(), tqdm(total=total, desc=label, unit=" pairs", mininterval=2) as bar:
        for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
            for split in into:
                rows = batch["split"] == split
                into[split][batch["question"][rows], batch["column"][rows]] = batch["reward"][rows]
            bar.update(len(batch["split"]))
