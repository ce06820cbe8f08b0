"""Any sentence-transformers bi-encoder by id, with its prompts: BGE, E5, E5-Mistral, NV-Embed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from armor_ray.config_baselines import BiEncoderStageConfig
from armor_ray.models.sentence_encoders import open_bi_encoder
from armor_ray.retrieval.first_stages.vectors import VectorSearch


def build(config: BiEncoderStageConfig, passages: Sequence[str]) -> VectorSearch:
    """Encodes the corpus once; scores are cosines.

    Raises:
        ArmorError: see `open_bi_encoder`.
    """
    model = open_bi_encoder(config)
    options: dict[str, Any] = {"batch_size": config.batch_size, "normalize_embeddings": True, "show_progress_bar": False}

    def encode(questions: Sequence[str]) -> np.ndarray:
        return np.asarray(model.encode_query(list(questions), **options))

    return VectorSearch(encode, np.asarray(model.encode_document(list(passages), **options), np.float32))
