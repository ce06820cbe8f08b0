"""What the stages `utility`, `reward` and `mine` published, gathered for the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from armor_ray.evaluation.reward_report import GateExample, GatePassage, RewardReport
from armor_ray.stages.mine import COUNTED, load_gate_examples
from armor_ray.stages.mine import NAME as NEGATIVES
from armor_ray.stages.reward import REWARDS_NAME, SPLITS, load_reward_table, load_rewards
from armor_ray.training.table import PADDING
from armor_ray.workspace import Workspace


def load_reward_results(workspace: Workspace) -> RewardReport:
    """Pools, agreements and the gate's decisions.

    Raises:
        ArmorError: one of the stages has not run.
    """
    table = load_reward_table(workspace, ())
    rewards, gate = workspace.require(REWARDS_NAME), workspace.require(NEGATIVES)
    pools = table.validation
    reward_QN = np.full(pools.pool_QN.shape, np.nan, np.float32)
    # Rewards are listed pool by pool, so they fill the pools' entries row by row.
    reward_QN[pools.pool_QN != PADDING] = load_rewards(workspace, "validation")["reward"].to_numpy()
    return RewardReport(
        kind=workspace.require("pair_utilities").details["kind"],
        utility_QN=pools.utility_QN,
        reward_QN=np.where(np.isnan(pools.utility_QN), np.nan, reward_QN),
        positive_QN=pools.positive_QN,
        noise_floor=table.noise_floor,
        agreements=rewards.details["agreement"],
        gold_accuracy=rewards.details["gold_accuracy_of_utilities"],
        counts={split: {"questions": gate.rows[split], **{name: gate.details[split][name] for name in COUNTED}} for split in SPLITS},
        margin=gate.config["margin"],
        examples=[_gate_example(row) for row in load_gate_examples(workspace)],
    )


def _gate_example(row: dict[str, Any]) -> GateExample:
    groups = {role: [GatePassage(**passage) for passage in row[role]] for role in ("gold", "accepted", "rejected")}
    return GateExample(question=row["question"], **groups)
