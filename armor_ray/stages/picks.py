"""What a reward model adds to the candidate pools: the passages below the base's best that it likes most.

A reward model that learns from base-retrieved pools alone is never told about what it overrates elsewhere. With its own picks in the
pools, the generator scores these, too, and the next reward model learns from them (UAE §2.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import faiss
import numpy as np
import ray

from armor_ray.config import PicksConfig
from armor_ray.models.hub import resolve_model
from armor_ray.models.reward_model import prior_names
from armor_ray.retrieval.dense import search
from armor_ray.retrieval.lexical import Bm25
from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context
from armor_ray.stages.prepare import load_passages
from armor_ray.stages.reward_scores import score_table
from armor_ray.training.reward_pairs import PoolTable, RewardPools, prior_scores

PICKED_SPLITS = ("train", "validation")

Pool = tuple[list[int], list[float], list[bool]]
"""Passage rows, base cosines, is-gold flags."""


def add_picks(
    context: Context,
    settings: PicksConfig,
    index: faiss.Index,
    queries: Mapping[str, np.ndarray],
    questions: Mapping[str, Sequence[str]],
    pools: Mapping[str, list[Pool]],
) -> dict[str, list[Pool]]:
    """The training and validation pools, each with up to `settings.count` more passages at its end, best reward first."""
    connect(context.workspace)
    texts = load_passages(context.workspace, "text").column("text").to_pylist()
    model = resolve_model(settings.model)
    names = prior_names(model)
    bm25 = Bm25(texts) if "bm25" in names else None
    wide = {split: _retrieved(index, queries[split], list(questions[split]), settings.depth, names, bm25) for split in PICKED_SPLITS}
    table = PoolTable(**wide, texts_C=texts, priors=names)
    rewards = {split: np.full(found.pool_QN.shape, np.nan, np.float32) for split, found in wide.items()}
    score_table(context, model, table, [ray.put(table)], rewards, "picks")
    return {split: _extended(pools[split], wide[split], rewards[split], settings.count) for split in PICKED_SPLITS}


def _retrieved(
    index: faiss.Index, queries: np.ndarray, questions: list[str], depth: int, names: tuple[str, ...], bm25: Bm25 | None
) -> RewardPools:
    """The base's best `depth` passages of each question as pools without utilities, for a model with these priors."""
    base_QN, pool_QN = search(index, queries, depth)
    return RewardPools(
        example_ids=[""] * len(questions),
        questions=questions,
        pool_QN=pool_QN,
        positive_QN=np.zeros(pool_QN.shape, bool),
        utility_QN=np.full(pool_QN.shape, np.nan, np.float32),
        base_QN=base_QN,
        prior_QNF=prior_scores(names, questions, pool_QN, base_QN, bm25),
    )


def _extended(pools: list[Pool], wide: RewardPools, reward_QN: np.ndarray, count: int) -> list[Pool]:
    extended = []
    for (rows, scores, gold), wide_N, base_N, reward_N in zip(pools, wide.pool_QN, wide.base_QN, reward_QN, strict=True):
        new = [column for column in np.argsort(-reward_N, kind="stable") if wide_N[column] not in rows][:count]
        extended.append((rows + wide_N[new].tolist(), scores + base_N[new].tolist(), gold + [False] * len(new)))
    return extended
