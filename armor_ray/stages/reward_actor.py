"""The actor that applies a reward model; brings in torch and models."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from armor_ray.config import Config
from armor_ray.models.hardware import choose_device, choose_dtype
from armor_ray.models.reward_model import RewardModel
from armor_ray.training.reward import score_pools
from armor_ray.training.reward_pairs import PoolTable


class RewardActor:
    """Loads a reward model once and scores the pools of ranges of questions.

    Args:
        model: folder of the reward model, or folder or id of a stock cross-encoder.
        table: reference to the pools.
    """

    def __init__(self, config: Config, model: str, table: list[Any]) -> None:
        device = choose_device()
        self._settings = config.reward
        self._model = RewardModel.load(model, config.reward.max_length).to(device)
        self._dtype = choose_dtype(config.reward.score_dtype, device)
        self._table: PoolTable = ray.get(table[0])

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        [split], [start], [stop] = (batch[name].tolist() for name in ("split", "start", "stop"))
        pools = self._table.split(split).between(start, stop)
        reward_QN = score_pools(self._model, pools, self._table.texts_C, self._settings.batch_tokens, self._dtype)
        questions, columns = np.nonzero(~np.isnan(reward_QN))
        splits = np.full(len(questions), split)
        return {"split": splits, "question": questions + start, "column": columns, "reward": reward_QN[questions, columns]}
