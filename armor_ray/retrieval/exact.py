"""Exact top-k by inner product over a matrix of frozen passage vectors, block by block: the reference every index is held to.

Shape legend: Q queries, C passages, D embedding dimension, M passages of one block.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

_QUERIES_AT_ONCE = 1024


@torch.inference_mode()
def exact_top_k(queries: np.ndarray, passages: np.ndarray, k: int, block: int = 16384) -> tuple[np.ndarray, np.ndarray]:
    """Scores fp32 [Q, k] and passage rows int64 [Q, k], best first; ties go to the lower row.

    Args:
        queries: [Q, D].
        passages: [C, D] (may be memory-mapped; each block is read once).
        k: 1 ≤ k ≤ C.
        block: passages scored at once; bounds the memory, changes nothing else.
    """
    assert 1 <= k <= len(passages), f"top {k} of {len(passages)} passages"
    scores_QK = np.empty((len(queries), k), np.float32)
    rows_QK = np.empty((len(queries), k), np.int64)
    query_QD = _read(queries)
    shares = [slice(start, start + _QUERIES_AT_ONCE) for start in range(0, len(queries), _QUERIES_AT_ONCE)]
    best: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0, dtype=torch.int64))] * len(shares)
    for start in range(0, len(passages), block):
        block_DM = _read(passages[start : start + block]).T
        for i, share in enumerate(shares):
            best[i] = _merge(*best[i], query_QD[share] @ block_DM, start, k)
    for share, (scores, rows) in zip(shares, best, strict=True):
        scores_QK[share], rows_QK[share] = scores.numpy(), rows.numpy()
    return scores_QK, rows_QK


def _read(array: np.ndarray) -> Tensor:
    """The array as an fp32 tensor, without a copy where it is fp32 already."""
    with warnings.catch_warnings():
        # Memory maps and shared arrays are read-only; nothing here writes to the tensor.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array, dtype=np.float32))


def _merge(scores: Tensor, rows: Tensor, block_scores_QM: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """The best k of those known so far and of a block that begins at passage `start`."""
    columns = _top_columns(block_scores_QM, k)
    block_scores = block_scores_QM.gather(1, columns)
    if not scores.numel():
        return block_scores, columns + start
    # Known rows are lower than the block's and stand first, so that a stable sort keeps ties in row order.
    scores, rows = torch.cat([scores, block_scores], 1), torch.cat([rows, columns + start], 1)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return scores.gather(1, order), rows.gather(1, order)


def _top_columns(scores_QM: Tensor, k: int) -> Tensor:
    """Columns of the k best scores of each row (all of them when there are fewer), best first, ties by column."""
    width = scores_QM.shape[1]
    if width <= k:
        return scores_QM.sort(dim=1, descending=True, stable=True).indices
    values, columns = scores_QM.topk(k + 1, dim=1)
    # `topk` orders ties as it likes: sort by column, then stably by score.
    columns = columns[:, :k].sort(dim=1).values
    columns = columns.gather(1, scores_QM.gather(1, columns).sort(dim=1, descending=True, stable=True).indices)
    # Where the tie runs across the border, which columns are in is open too.
    open_Q = values[:, k - 1] == values[:, k]
    if open_Q.any():
        columns[open_Q] = scores_QM[open_Q].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return columns
