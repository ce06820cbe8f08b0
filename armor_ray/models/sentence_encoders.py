"""Published encoders as sentence-transformers loads them: one vector a text, term weights, or one vector a token.

The product's own bi-encoder (`bi_encoder`) trains and exports; these are only compared with it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from armor_ray.config_baselines import EncoderStageConfig
from armor_ray.errors import ArmorError
from armor_ray.models.hub import loading, resolve_model

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder

Encoder = TypeVar("Encoder")
_LIBRARY = "sentence_transformers"


def open_bi_encoder(config: EncoderStageConfig) -> SentenceTransformer:
    """An encoder to one vector a text.

    Raises:
        ArmorError: sentence-transformers is not installed, or there is no such model.
    """
    return _open("SentenceTransformer", config)


def open_sparse_encoder(config: EncoderStageConfig) -> SparseEncoder:
    """An encoder to term weights `max over tokens of log(1 + relu(logit))` of the masked-language-model head.

    Raises:
        ArmorError: as `open_bi_encoder`, or a model without such a head (the library would invent a random one).
    """
    made_of = _declared(config)
    if "SparseEncoder" not in made_of and not any(name.endswith("ForMaskedLM") for name in made_of):
        raise ArmorError("no masked-language-model head, so no term weights", where=config.model, hint="name a SPLADE model")
    return _open("SparseEncoder", config)


def open_late_interaction_encoder(config: EncoderStageConfig) -> MultiVectorEncoder:
    """An encoder to one unit vector a token.

    Raises:
        ArmorError: as `open_bi_encoder`, or a model without a trained projection (the library would invent a random one).
    """
    made_of = _declared(config)
    known = {"MultiVectorEncoder", "ColBERT", "HF_ColBERT"}
    if not made_of & known and not any(name.endswith("ForRetrieval") for name in made_of):
        raise ArmorError("not a late-interaction model: it has no token projection", where=config.model, hint="name a ColBERT model")
    return _open("MultiVectorEncoder", config)


def _open(kind: str, config: EncoderStageConfig) -> Any:
    library = _library()
    prompts = {"query": config.query_prompt, "document": config.passage_prompt}
    with loading(config.model):
        model = getattr(library, kind)(
            resolve_model(config.model, config.revision),
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            model_kwargs={"use_safetensors": True},
        )
    model.prompts.update({name: prompt for name, prompt in prompts.items() if prompt is not None})
    if config.max_length is not None:
        model.max_seq_length = config.max_length
    return model.eval()


def _library() -> Any:
    try:
        import sentence_transformers
    except ImportError:
        hint = "pip install 'armor-ray[baselines]'"
        raise ArmorError("published encoders need sentence-transformers", where="baselines.first_stages", hint=hint) from None
    logging.getLogger(_LIBRARY).setLevel(logging.ERROR)
    return sentence_transformers


def _declared(config: EncoderStageConfig) -> set[str]:
    """What the model's files say it is: Hugging Face architectures and the sentence-transformers model type."""
    from transformers.utils import cached_file

    source = resolve_model(config.model, config.revision)
    found: set[str] = set()
    for name in ("config.json", "config_sentence_transformers.json"):
        with loading(config.model):
            path = cached_file(source, name, revision=config.revision, _raise_exceptions_for_missing_entries=False)
        if path is not None:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            found |= {*(content.get("architectures") or []), content.get("model_type") or ""}
    return found
