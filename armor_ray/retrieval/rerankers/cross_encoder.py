"""A cross-encoder reads question and passage together: BGE reranker v2-m3, a reward model, any one-label classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from armor_ray.config_baselines import CrossEncoderRerankerConfig
from armor_ray.models.cross_encoder import CrossEncoder
from armor_ray.models.hardware import choose_device
from armor_ray.retrieval.rerankers.tools import Tools


class PairScorer(Protocol):
    """What a reranker asks of a cross-encoder."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """fp32 [P], one score a (question, passage)."""


class CrossEncoderReranker:
    """Orders by the classifier's logit."""

    def __init__(self, scorer: PairScorer) -> None:
        self._scorer = scorer

    def rerank(self, question: str, passages: Sequence[str], scores: np.ndarray) -> np.ndarray:
        """See `Reranker.rerank`."""
        return self._scorer.score([(question, passage) for passage in passages])


def build(config: CrossEncoderRerankerConfig, tools: Tools) -> CrossEncoderReranker:
    """Loads the model.

    Raises:
        ArmorError: no such model.
    """
    return CrossEncoderReranker(open_cross_encoder(config.model, config.max_length))


def open_cross_encoder(model: str, max_length: int) -> CrossEncoder:
    """The model on the best device here.

    Raises:
        ArmorError: no such model.
    """
    return CrossEncoder.load(model, max_length).to(choose_device())
