"""A cross-encoder over the passages that a search found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from armor_ray.retrieval.protocols import Reranker
from armor_ray.retrieval.rerankers.cross_encoder import CrossEncoderReranker, open_cross_encoder
from armor_ray.serving.arguments import RerankerArguments
from armor_ray.serving.schemas import Passage


class PassageReranker:
    """Orders found passages anew.

    Args:
        depth: how many passages of the first search it should get to see.
    """

    def __init__(self, reranker: Reranker, depth: int) -> None:
        self._reranker = reranker
        self.depth = depth

    @classmethod
    def open(cls, arguments: RerankerArguments) -> PassageReranker:
        """Raises ArmorError when there is no such model."""
        return cls(CrossEncoderReranker(open_cross_encoder(arguments.model, arguments.max_length)), arguments.depth)

    def order(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """The same passages with new scores and ranks; equal scores keep their order."""
        if not passages:
            return []
        scores = self._reranker.rerank(question, [passage.text for passage in passages], np.array([passage.score for passage in passages]))
        order = np.argsort(-scores, kind="stable")
        return [passages[i].model_copy(update={"rank": rank, "score": float(scores[i])}) for rank, i in enumerate(order, start=1)]
