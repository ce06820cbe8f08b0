"""Natural-language inference: does one text entail another?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import token_budget_batches
from armor_ray.models.hardware import choose_device
from armor_ray.models.hub import loading, resolve_model


class EntailmentModel:
    """A sequence classifier with a label named "entailment", such as microsoft/deberta-large-mnli."""

    def __init__(self, model: Any, tokenizer: Any, label: int) -> None:
        self._model, self._tokenizer, self._label = model, tokenizer, label

    @classmethod
    def load(cls, model_id: str) -> EntailmentModel:
        """Loads a folder or a Hugging Face id.

        Raises:
            ArmorError: no such model, or none of its labels is entailment.
        """
        source = resolve_model(model_id)
        with loading(model_id):
            tokenizer = AutoTokenizer.from_pretrained(source)
            model = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32)
        labels = {name.lower(): label for label, name in model.config.id2label.items()}
        if "entailment" not in labels:
            raise ArmorError(f"no label 'entailment' among {', '.join(labels)}", where=model_id, hint="name an NLI model")
        return cls(model.to(choose_device()).eval(), tokenizer, labels["entailment"])

    @torch.inference_mode()
    def probabilities(self, pairs: Sequence[tuple[str, str]], batch_tokens: int = 8192) -> np.ndarray:
        """P(premise entails hypothesis), fp32 [P] in [0, 1].

        Args:
            batch_tokens: most tokens of a batch, padding included; a longer pair goes alone.
        """
        rows = self._tokenizer([first for first, _ in pairs], [second for _, second in pairs], truncation=True)
        probabilities = np.empty(len(pairs), np.float32)
        for batch in token_budget_batches([len(ids) for ids in rows["input_ids"]], batch_tokens):
            inputs = self._tokenizer.pad({name: [values[i] for i in batch] for name, values in rows.items()}, return_tensors="pt")
            logits = self._model(**inputs.to(self._model.device)).logits
            probabilities[batch] = logits.softmax(-1)[:, self._label].cpu().numpy()
        return probabilities
