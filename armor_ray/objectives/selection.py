"""Which passages take part in a loss: top-k by current scores, and what may serve as a negative.

All functions return boolean masks and no gradient. Shapes: B questions, N pool passages, M passages to judge, K positives.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def top_mask(scores_BN: Tensor, allowed_BN: Tensor, count: int) -> Tensor:
    """Marks the `count` best-scored allowed entries of each row (all of them when there are fewer)."""
    ranked_BN = scores_BN.detach().masked_fill(~allowed_BN, -torch.inf)
    top_BK = ranked_BN.topk(min(count, ranked_BN.shape[-1]), dim=-1).indices
    return torch.zeros_like(allowed_BN).scatter(-1, top_BK, True) & allowed_BN


def pick_negatives(
    scores_BN: Tensor,
    valid_BN: Tensor,
    negative_BN: Tensor,
    *,
    count: int | None,
    order: Literal["hardest", "easiest"],
    top_k: int,
) -> Tensor:
    """Chooses each question's retrieved negatives among the allowed ones (METHODS §2).

    Args:
        scores_BN: current scores.
        valid_BN: False for padding.
        negative_BN: candidates allowed as negatives.
        count: how many, ≥ 1; None takes all of the pool.
        order: `hardest` takes the best-scored; `easiest` the lowest-ranked of the current top-k, as the authors' code does. Without
            that bound a pool that grows (`candidates.refresh`) would give ever easier ones.
        top_k: size of that list, positives included.
    """
    allowed_BN = negative_BN & valid_BN
    if count is None:
        return allowed_BN
    if order == "hardest":
        return top_mask(scores_BN, allowed_BN, count)
    retrieved_BN = top_mask(scores_BN, valid_BN, top_k)
    return top_mask(-scores_BN, allowed_BN & retrieved_BN, count)


def allowed_negatives(text_BM: Tensor, document_BM: Tensor, positive_text_BK: Tensor, positive_document_BK: Tensor) -> Tensor:
    """Says which passages may be negatives of which question: none of its positives, their copies or its documents' passages.

    The same rule serves retrieved and in-batch passages, so another question's positive that is also ours is never a negative.

    Args:
        text_BM: [B, M] or [1, M] integer codes ≥ 0, equal for passages of equal text (hence for a passage and itself).
        document_BM: codes ≥ 0 of the passages' documents, same shape.
        positive_text_BK: text codes of each question's positives, padded with -1.
        positive_document_BK: codes of the positives' documents, padded likewise.

    Returns:
        bool [B, M].
    """
    copy_BM = (text_BM.unsqueeze(-1) == positive_text_BK.unsqueeze(1)).any(dim=-1)
    neighbour_BM = (document_BM.unsqueeze(-1) == positive_document_BK.unsqueeze(1)).any(dim=-1)
    return ~(copy_BM | neighbour_BM)
