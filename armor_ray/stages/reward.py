"""Stage `reward`: trains the reward model with Ray Train (DDP), then rewards every pair of the pools with a Ray Data actor pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.train
import torch

from armor_ray.config import Prior
from armor_ray.corpus.schemas import CANDIDATES, PAIR_UTILITIES, REWARDS, validate_table
from armor_ray.errors import ArmorError
from armor_ray.evaluation.agreement import agreement, gold_accuracy
from armor_ray.models.hub import resolve_model
from armor_ray.retrieval.lexical import Bm25
from armor_ray.stages.cluster import connect, plan_trials, user_errors
from armor_ray.stages.context import Context, Plan, work_folder
from armor_ray.stages.prepare import load_examples, load_passages
from armor_ray.stages.reward_scores import score_table
from armor_ray.stages.train_runs import discard_damaged_run, fault_of, torch_run
from armor_ray.training.reward_pairs import RewardPools, RewardTable, prior_scores
from armor_ray.training.reward_priors import fit_priors
from armor_ray.training.table import PADDING, pad_pools
from armor_ray.workspace import Draft, Workspace, read_parquet

STAGE = "reward"
SPLITS = ("train", "validation")
MODEL, REWARDS_NAME = "reward_model", "rewards"


def run_all(context: Context, todo: list[Plan]) -> None:
    """Trains what is missing; a killed training resumes from its checkpoint."""
    connect(context.workspace)
    plans = {plan.name: plan for plan in todo}
    table = load_reward_table(context.workspace, tuple(context.config.reward.priors))
    reference = [ray.put(table)]
    if MODEL in plans:
        _train(context, plans[MODEL], reference)
        facts = context.workspace.require(MODEL).details["validation"]
        context.say(f"reward: validation {', '.join(f'{name} {value:.3f}' for name, value in facts.items())}")
    if REWARDS_NAME in plans:
        _reward_all(context, plans[REWARDS_NAME], table, reference)


# -- data --------------------------------------------------------------------------------------------------------------------------


def load_reward_table(workspace: Workspace, priors: tuple[Prior, ...]) -> RewardTable:
    """Pools and utilities of both splits, with the passages' texts and the scores that the reward model corrects."""
    facts = workspace.require("pair_utilities").details
    texts = load_passages(workspace, "text").column("text").to_pylist()
    bm25 = Bm25(texts) if "bm25" in priors else None
    pools = {split: _load_pools(workspace, split, bm25, priors) for split in SPLITS}
    return RewardTable(
        train=pools["train"],
        validation=pools["validation"],
        texts_C=texts,
        priors=priors,
        noise_floor=facts["noise_floor"],
        threshold=facts["relevance_threshold"],
    )


def _load_pools(workspace: Workspace, split: str, bm25: Bm25 | None, priors: tuple[Prior, ...]) -> RewardPools:
    candidates = workspace.local("candidates") / f"{split}.parquet"
    pools = validate_table(read_parquet(candidates, "candidates"), CANDIDATES, str(candidates))
    path = workspace.local("pair_utilities") / f"{split}.parquet"
    rows = validate_table(read_parquet(path, "utility"), PAIR_UTILITIES, str(path))
    pool_QN = pad_pools([np.asarray(ids, np.int64) for ids in pools["passage_ids"].to_pylist()])
    valid_QN = pool_QN != PADDING
    # Both tables list the pools in the same order, so the flat columns fill the valid entries row by row.
    columns = {
        "utility": rows["utility"].to_numpy(zero_copy_only=False),
        "scores": pools["scores"].combine_chunks().flatten().to_numpy(),
        "is_positive": pools["is_positive"].combine_chunks().flatten().to_numpy(zero_copy_only=False),
    }
    if rows["passage_id"].to_pylist() != pool_QN[valid_QN].tolist():
        raise ArmorError("utilities of other pools than the workspace holds", where=str(path), hint="rerun with --force utility")
    filled = {name: _fill(valid_QN, values) for name, values in columns.items()}
    questions = load_examples(workspace, split)["question"].to_pylist()
    return RewardPools(
        example_ids=pools["example_id"].to_pylist(),
        questions=questions,
        pool_QN=pool_QN,
        positive_QN=filled["is_positive"] == 1,
        utility_QN=filled["utility"],
        base_QN=filled["scores"],
        prior_QNF=prior_scores(priors, questions, pool_QN, filled["scores"], bm25),
    )


def _fill(valid_QN: np.ndarray, values: np.ndarray) -> np.ndarray:
    filled_QN = np.full(valid_QN.shape, np.nan, np.float32)
    filled_QN[valid_QN] = values
    return filled_QN


# -- training ----------------------------------------------------------------------------------------------------------------------


def _train(context: Context, plan: Plan, table: list[Any]) -> None:
    """One Ray Train job; its workers publish the model.

    Raises:
        ArmorError: the cluster never fits the workers, or a worker met a fault.
    """
    run = f"{work_folder(STAGE)}/reward-{plan.fingerprint}"
    discard_damaged_run(context.workspace, run)
    try:
        with user_errors():
            _trainer(context, plan, table, run).fit()
    except ray.train.TrainingFailedError as error:
        raise (fault_of(error) or error) from None


def _trainer(context: Context, plan: Plan, table: list[Any], run: str) -> Any:
    from armor_ray.stages.reward_worker import RewardJob

    settings = context.config.reward
    resources = plan_trials(context.config.resources, settings.workers, 1)
    log_folder = context.workspace.path("logs/reward_model") if context.workspace.is_local else None
    job = RewardJob(context.config, plan, context.workspace.uri, table, log_folder)
    return torch_run(_work, job, context.workspace, run, workers=settings.workers, resources=resources, max_failures=settings.max_failures)


def _work(arguments: dict[str, Any]) -> None:
    from armor_ray.stages.reward_worker import train_reward

    train_reward(arguments["job"])


# -- rewards -----------------------------------------------------------------------------------------------------------------------


def _reward_all(context: Context, plan: Plan, table: RewardTable, reference: list[Any]) -> None:
    """Rewards of both splits, and how the reward model agrees with the generator beside BM25, the base and a stock cross-encoder."""
    config = context.config
    rewards = {split: np.full(table.split(split).pool_QN.shape, np.nan, np.float32) for split in SPLITS}
    score_table(context, str(context.local(MODEL)), table, reference, rewards, "reward")
    pools = table.validation
    methods = {"bm25": _validation_bm25(table), "base": pools.base_QN, "reward": rewards["validation"]}
    priors = fit_priors(table, config.seed)
    if priors is not None:  # what the cross-encoder adds to them
        methods["priors"] = priors(torch.from_numpy(pools.prior_QNF)).detach().numpy()
    if config.reward.stock is not None:
        stock = {"validation": np.full_like(rewards["validation"], np.nan)}
        score_table(context, resolve_model(config.reward.stock), table, reference, stock, "stock")
        methods["cross_encoder"] = stock["validation"]
    agreements = [{"method": name, **_agreement(scores_QN, table)} for name, scores_QN in methods.items()]
    generator = gold_accuracy(pools.utility_QN, pools.positive_QN, ~np.isnan(pools.utility_QN))

    def write(draft: Draft) -> None:
        for split, reward_QN in rewards.items():
            pq.write_table(_to_table(table.split(split), reward_QN), draft.path / f"{split}.parquet")
            draft.rows[split] = int((~np.isnan(reward_QN)).sum())
        pq.write_table(pa.Table.from_pylist(agreements), draft.path / "agreement.parquet")
        draft.details |= {"agreement": agreements, "gold_accuracy_of_utilities": generator}

    context.publish(plan, write)
    for row in agreements:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in row.items() if not isinstance(value, str))
        context.say(f"reward: {row['method']}: {numbers}")


def _validation_bm25(table: RewardTable) -> np.ndarray:
    if "bm25" in table.priors:
        return table.validation.prior_QNF[..., table.priors.index("bm25")]
    return Bm25(table.texts_C).score_pools(table.validation.questions, table.validation.pool_QN)


def _agreement(scores_QN: np.ndarray, table: RewardTable) -> dict[str, float]:
    pools = table.validation
    known_QN = ~np.isnan(pools.utility_QN)
    found = agreement(scores_QN, pools.utility_QN, table.noise_floor, table.threshold)
    return {**found, "gold_accuracy": gold_accuracy(scores_QN, pools.positive_QN, known_QN)}


def _to_table(pools: RewardPools, reward_QN: np.ndarray) -> pa.Table:
    questions, columns = np.nonzero(pools.pool_QN != PADDING)
    examples = [pools.example_ids[question] for question in questions.tolist()]
    return pa.table([pa.array(examples), pools.pool_QN[questions, columns], reward_QN[questions, columns]], schema=REWARDS)


def load_rewards(workspace: Workspace, split: str) -> pa.Table:
    """Rewards of every pair of a split's pools, pool by pool."""
    path = workspace.local(REWARDS_NAME) / f"{split}.parquet"
    return validate_table(read_parquet(path, STAGE), REWARDS, str(path))
