"""The cross-encoder: a Hugging Face sequence classifier that reads question and passage together and returns one score.

It is UAE's reward model R_ψ (METHODS §3) and any stock reranker. Shape legend: P pairs, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import token_budget_batches
from armor_ray.models.hub import loading, resolve_model

PRIORS_FILE = "priors.json"
"""Lies beside a cross-encoder that is one half of a reward model (models.reward_model)."""

Pair = tuple[str, str]
"""Question and passage."""

# As for the bi-encoder: on a CPU the activations of a larger batch leave its caches.
_CACHED_TOKENS_PER_THREAD = 2048


class CrossEncoder(nn.Module):
    """Maps (question, passage) pairs to scores; `forward` keeps the gradient, `score` does not."""

    def __init__(self, body: nn.Module, tokenizer: Any, max_length: int) -> None:
        super().__init__()
        self.body = body
        self.tokenizer = tokenizer
        self.max_length = max_length

    @classmethod
    def load(cls, folder_or_id: str | Path, max_length: int, revision: str | None = None, with_priors: bool = False) -> CrossEncoder:
        """Loads a trained cross-encoder from a folder or the Hugging Face hub.

        Args:
            with_priors: the caller adds the priors of a reward model itself.

        Raises:
            ArmorError: no such model, `max_length` beyond its positions, weights without a classification head (they would score at
                random), a head of more than one output, or one half of a reward model.
        """
        if not with_priors and (Path(folder_or_id) / PRIORS_FILE).is_file():
            message = "this cross-encoder was trained to correct retrieval scores and ranks nothing without them"
            raise ArmorError(message, where=str(folder_or_id), hint="use a reward model that was trained with reward.priors []")
        body, tokenizer, missing = _load_parts(str(folder_or_id), revision, {})
        if missing:
            message = f"not a cross-encoder: its weights lack {missing[0]}"
            raise ArmorError(message, where=str(folder_or_id), hint="name a sequence classifier, or train one (reward.model)")
        if body.config.num_labels != 1:
            message = f"a classifier of {body.config.num_labels} classes, not a cross-encoder with one score"
            raise ArmorError(message, where=str(folder_or_id))
        return cls(body, tokenizer, _checked_length(max_length, body, tokenizer, str(folder_or_id))).eval()

    @classmethod
    def start(cls, model: str, max_length: int, seed: int, revision: str | None = None) -> CrossEncoder:
        """A cross-encoder to be trained: any encoder's weights below a one-output head; a head that is missing is drawn from `seed`.

        Raises:
            ArmorError: no such model, or `max_length` beyond its positions.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            body, tokenizer, _ = _load_parts(model, revision, {"num_labels": 1, "ignore_mismatched_sizes": True})
        return cls(body, tokenizer, _checked_length(max_length, body, tokenizer, model)).eval()

    @property
    def device(self) -> torch.device:
        return next(self.body.parameters()).device

    def tokenize(self, pairs: Sequence[Pair]) -> list[dict[str, list[int]]]:
        """Ids (and segments, where the model has them) per pair; too long a pair loses tokens of its longer text, the passage."""
        questions, passages = [question for question, _ in pairs], [passage for _, passage in pairs]
        rows = self.tokenizer(questions, passages, truncation="longest_first", max_length=self.max_length, verbose=False)
        return [{name: rows[name][i] for name in rows} for i in range(len(pairs))]

    def pad(self, rows: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
        """Right-padded tensors [P, L] on the model's device, by the names that the model takes."""
        longest = max(len(row["input_ids"]) for row in rows)
        fill = {"input_ids": self.tokenizer.pad_token_id or 0}
        padded = {name: torch.full((len(rows), longest), fill.get(name, 0), dtype=torch.long) for name in rows[0]}
        for i, row in enumerate(rows):
            for name, ids in row.items():
                padded[name][i, : len(ids)] = torch.tensor(ids)
        return {name: tensor.to(self.device) for name, tensor in padded.items()}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Scores [P] of padded pairs, in fp32 (fp64 of an fp64 body)."""
        scores_P = self.body(**inputs).logits.squeeze(-1)
        return scores_P.to(torch.promote_types(scores_P.dtype, torch.float32))

    @torch.inference_mode()
    def score(self, pairs: Sequence[Pair], batch_tokens: int = 16384, dtype: torch.dtype = torch.float32) -> np.ndarray:
        """Scores fp32 [len(pairs)] in the pairs' order; higher is better, without a fixed range.

        Args:
            batch_tokens: most tokens of a batch; a CPU takes fewer at once.
            dtype: the arithmetic of the body.
        """
        scores = np.empty(len(pairs), np.float32)
        if not pairs:
            return scores
        if self.device.type == "cpu":
            batch_tokens = min(batch_tokens, _CACHED_TOKENS_PER_THREAD * torch.get_num_threads())
        rows = self.tokenize(pairs)
        training = self.training
        self.eval()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            for batch in token_budget_batches([len(row["input_ids"]) for row in rows], batch_tokens):
                scores[batch] = self(self.pad([rows[i] for i in batch])).cpu().numpy()
        self.train(training)
        return scores

    def save(self, folder: str | Path) -> None:
        """Writes a folder that `load`, AutoModelForSequenceClassification and sentence-transformers' CrossEncoder load."""
        assert isinstance(self.body, PreTrainedModel), "adapters are merged before they are saved (training.lora)"
        self.body.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _load_parts(model: str, revision: str | None, options: dict[str, Any]) -> tuple[Any, Any, list[str]]:
    """(body in fp32, tokenizer, weights that the files lack)."""
    source = resolve_model(model, revision)
    with loading(source):
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
        body, report = AutoModelForSequenceClassification.from_pretrained(
            source, revision=revision, dtype=torch.float32, output_loading_info=True, **options
        )
    return body, tokenizer, sorted(report["missing_keys"])


def _checked_length(max_length: int, body: Any, tokenizer: Any, where: str) -> int:
    positions = min(getattr(body.config, "max_position_embeddings", None) or max_length, tokenizer.model_max_length)
    if max_length > positions:
        raise ArmorError(f"max_length {max_length} exceeds the model's {positions} positions", where=where, hint="lower it")
    return max_length
