"""Retrieval metrics, one value per question, computed by ir_measures."""

from __future__ import annotations

from collections.abc import Sequence

import ir_measures
import numpy as np
from ir_measures import AP, RR, Success, nDCG

from armor_ray.errors import ArmorError


def retrieval_metrics(rows_QK: np.ndarray, gold: Sequence[np.ndarray], ks: Sequence[int]) -> dict[str, np.ndarray]:
    """Metrics of ranked passage rows: name → fp64 [Q] in [0, 1], in the order of the questions.

    - `R@k`: 1 when at least one gold passage is in the top k, else 0. Its mean is recall@k as both papers define it, a share of
      questions; ir_measures calls it Success@k (its own R@k is a share of the gold passages).
    - `MRR@10`: reciprocal rank of the first gold passage, 0 below rank 10 (RR@10).
    - `nDCG@10`: binary gains.
    - `MAP`: average precision over the K passages given; gold passages below rank K count as not found (AP).

    Args:
        rows_QK: passages by rank, best first. The order counts, not scores: the library would order equal scores its own way.
        gold: per question the rows of its gold passages.
        ks: cut-offs of recall, each at most K.

    Raises:
        ArmorError: a question without gold passages, lists of different length, or K below a cut-off.
    """
    _check(rows_QK, gold, ks)
    names = {Success @ k: f"R@{k}" for k in ks} | {RR @ 10: "MRR@10", nDCG @ 10: "nDCG@10", AP: "MAP"}
    depth = rows_QK.shape[1]
    run = {str(q): {str(row): float(depth - rank) for rank, row in enumerate(rows)} for q, rows in enumerate(rows_QK.tolist())}
    qrels = {str(q): {str(row): 1 for row in rows.tolist()} for q, rows in enumerate(gold)}
    values = {name: np.full(len(rows_QK), np.nan) for name in names.values()}
    for found in ir_measures.iter_calc(list(names), qrels, run):
        values[names[found.measure]][int(found.query_id)] = found.value
    return values


def gold_ranks(rows_QK: np.ndarray, gold: Sequence[np.ndarray]) -> np.ndarray:
    """Rank, from 1, of each question's best gold passage, int64 [Q]; 0 where none is among the K passages."""
    hit_QK = np.stack([np.isin(rows, wanted) for rows, wanted in zip(rows_QK, gold, strict=True)])
    return np.where(hit_QK.any(1), hit_QK.argmax(1) + 1, 0)


def _check(rows_QK: np.ndarray, gold: Sequence[np.ndarray], ks: Sequence[int]) -> None:
    if len(rows_QK) != len(gold):
        raise ArmorError(f"{len(rows_QK)} rankings for {len(gold)} questions", where="evaluation")
    if max(ks) > rows_QK.shape[1]:
        raise ArmorError(f"R@{max(ks)} needs more than the {rows_QK.shape[1]} passages ranked", where="evaluation.ks", hint="lower it")
    without = [question for question, rows in enumerate(gold) if len(rows) == 0]
    if without:
        raise ArmorError(f"{len(without)} questions have no gold passage, the first is number {without[0]}", where="evaluation")
