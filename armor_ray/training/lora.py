"""Low-rank adapters on the query encoder, and merging them back into plain weights for export."""

from __future__ import annotations

import copy

from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model

from armor_ray.config import LoraConfig
from armor_ray.models.bi_encoder import BiEncoder


def add_lora(encoder: BiEncoder, config: LoraConfig) -> None:
    """Freezes the body and adds trainable adapters to its linear layers, in place; they start without effect."""
    # The pooler head is no part of the vector; an adapter on it would never get a gradient, which DDP refuses.
    adapters = PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules="all-linear",
        exclude_modules=r"pooler\..*",
    )
    encoder.body = get_peft_model(encoder.body, adapters)


def merged(encoder: BiEncoder) -> BiEncoder:
    """A new encoder with the adapters folded into its weights; `encoder` itself when it has none."""
    if not isinstance(encoder.body, PeftModel):
        return encoder
    body = copy.deepcopy(encoder.body).merge_and_unload()
    return BiEncoder(body, encoder.tokenizer, encoder.identity).eval()
