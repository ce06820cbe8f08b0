"""Low-rank adapters on the query encoder, and merging them back into plain weights for export."""

from __future__ import annotations

from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model

from armor_ray.config import LoraConfig
from armor_ray.models.bi_encoder import BiEncoder


def add_lora(encoder: BiEncoder, config: LoraConfig) -> None:
    """Freezes the body and adds trainable adapters to its linear layers, in place."""
    adapters = PeftLoraConfig(r=config.rank, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules="all-linear")
    encoder.body = get_peft_model(encoder.body, adapters)


def merged(encoder: BiEncoder) -> BiEncoder:
    """The encoder with adapters folded into its weights; itself when it has none."""
    if not isinstance(encoder.body, PeftModel):
        return encoder
    return BiEncoder(encoder.body.merge_and_unload(), encoder.tokenizer, encoder.identity).eval()
