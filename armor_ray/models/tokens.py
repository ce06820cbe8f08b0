"""Where an encoder's tokens stand in a text: what token windows are cut by."""

from __future__ import annotations

from collections.abc import Callable

from transformers import AutoTokenizer

from armor_ray.config import EncoderConfig
from armor_ray.errors import ArmorError
from armor_ray.models.hub import loading, resolve_model


def token_offsets(config: EncoderConfig) -> Callable[[str], list[tuple[int, int]]]:
    """A function from a text to the half-open character offsets of its tokens, special tokens excepted, however long the text.

    Raises:
        ArmorError: no such model, or one whose tokenizer does not know offsets.
    """
    source = resolve_model(config.model, config.revision)
    with loading(config.model):
        tokenizer = AutoTokenizer.from_pretrained(source, revision=config.revision, trust_remote_code=config.trust_remote_code)
    if not tokenizer.is_fast:
        raise ArmorError("its tokenizer has no offsets", where=config.model, hint="set data.chunking.mode to characters or sentences")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return lambda text: backend.encode(text, add_special_tokens=False).offsets
