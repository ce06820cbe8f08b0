"""Exact top-k by inner product over a matrix of frozen passage vectors, block by block: the reference every index is held to."""

from __future__ import annotations

import numpy as np
import torch


@torch.inference_mode()
def exact_top_k(queries: np.ndarray, passages: np.ndarray, k: int, block: int = 65536) -> tuple[np.ndarray, np.ndarray]:
    """Scores fp32 [Q, k] and passage rows int64 [Q, k], best first; ties go to the lower row.

    Args:
        queries: [Q, D] fp32.
        passages: [C, D] fp32 (may be memory-mapped; read one block at a time).
        k: at most C.
    """
    wanted = torch.as_tensor(queries, dtype=torch.float32)
    scores = torch.empty((len(queries), 0))
    rows = torch.empty((len(queries), 0), dtype=torch.int64)
    for start in range(0, len(passages), block):
        part = torch.from_numpy(np.array(passages[start : start + block], dtype=np.float32))
        part_scores = wanted @ part.T
        part_rows = torch.arange(start, start + len(part)).expand(len(queries), -1)
        scores, rows = _best(torch.cat([scores, part_scores], 1), torch.cat([rows, part_rows], 1), k)
    return scores.numpy(), rows.numpy()


def _best(scores: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    # A stable sort keeps the lower row first among equal scores, so results do not depend on the block size.
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, : min(k, scores.shape[1])]
    return scores.gather(1, order), rows.gather(1, order)
