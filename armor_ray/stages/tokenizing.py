"""The encoder's tokenizer for cutting passages, loaded once a process."""

from __future__ import annotations

import functools

from armor_ray.config import DataConfig, EncoderConfig
from armor_ray.corpus.chunking import TokenOffsets


def offsets_of(data: DataConfig, encoder: EncoderConfig) -> TokenOffsets | None:
    """Where the encoder's tokens stand in a text; None where passages are not cut by them."""
    return _load(encoder.model_dump_json()) if data.chunking.mode == "tokens" else None


@functools.cache
def _load(encoder: str) -> TokenOffsets:
    from armor_ray.models.tokens import token_offsets  # torch and transformers, which no other mode needs

    return token_offsets(EncoderConfig.model_validate_json(encoder))
