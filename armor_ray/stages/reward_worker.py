"""What runs inside a Ray Train worker of the reward model, and the actor that applies it; both bring in torch and models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
import ray
import ray.train

from armor_ray.config import Config
from armor_ray.models.cross_encoder import CrossEncoder
from armor_ray.stages.context import Plan
from armor_ray.stages.train_worker import RayHost
from armor_ray.training.history import HistoryWriter, history_table
from armor_ray.training.reward import RewardResult, RewardTrainer
from armor_ray.training.reward_pairs import RewardTable
from armor_ray.workspace import Draft, Workspace


@dataclass(frozen=True, slots=True)
class RewardJob:
    """What a worker needs; pickled, so the table travels as a reference into the object store."""

    config: Config
    plan: Plan
    workspace_uri: str
    table: list[Any]
    log_folder: str | None


def train_reward(job: RewardJob) -> None:
    """Trains from the newest checkpoint on; then rank 0 publishes the model."""
    settings, seed = job.config.reward, job.config.seed
    table: RewardTable = ray.get(job.table[0])
    host = RayHost()
    with HistoryWriter(job.log_folder if host.rank == 0 else None) as sink:
        encoder = CrossEncoder.start(settings.model, settings.max_length, seed, settings.revision)
        result = RewardTrainer(settings, seed, table, encoder, host, sink).run()
    if host.rank == 0:
        _publish(Workspace(job.workspace_uri), job.plan, result)
    ray.train.report({**result.validation, "step": result.progress.step})


def _publish(workspace: Workspace, plan: Plan, result: RewardResult) -> None:
    def write(draft: Draft) -> None:
        result.model.cpu().save(draft.path)
        pq.write_table(history_table(result.progress.history), draft.path / "history.parquet")
        priors = {} if result.model.priors is None else result.model.priors.facts()
        draft.details |= {"validation": result.validation, "best_step": result.progress.best_step, "priors": priors}
        draft.rows["steps"] = result.progress.step

    workspace.publish(plan.name, stage=plan.stage, fingerprint=plan.fingerprint, inputs=plan.inputs, config=plan.config, write=write)
