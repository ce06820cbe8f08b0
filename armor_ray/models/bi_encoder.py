"""The bi-encoder: a Hugging Face text encoder with pooling, prefixes and l2-normalisation as one identity.

Shape legend: B batch, L tokens, D embedding dimension.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

from armor_ray.config import EncoderConfig
from armor_ray.errors import ArmorError
from armor_ray.models.hub import resolve_model

Kind = Literal["query", "passage"]
_E5_PREFIXES = {"query": "query: ", "passage": "passage: "}


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """All that decides which vector a text gets, apart from the weights."""

    pooling: str
    query_prefix: str
    passage_prefix: str
    max_length: int
    dimension: int
    base_weights: str

    def fingerprint(self) -> str:
        """16 hex digits; an index built under one identity refuses queries of another."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


class BiEncoder(nn.Module):
    """Maps texts to unit vectors; `forward` keeps the gradient, `encode` does not.

    `base_weights` in the identity names the weights whose passage vectors fill the index. It stays the same when the query side is
    adapted, because the adapted encoder searches the index of the base encoder.
    """

    def __init__(self, body: nn.Module, tokenizer: Any, identity: EncoderIdentity) -> None:
        super().__init__()
        self.body = body
        self.tokenizer = tokenizer
        self.identity = identity

    @classmethod
    def load(cls, config: EncoderConfig) -> BiEncoder:
        """Loads a base encoder from a folder, a demo id or the Hugging Face hub.

        Raises:
            ArmorError: no such model, a folder without weights, or `max_length` beyond the model's positions.
        """
        source = resolve_model(config.model, revision=config.revision)
        tokenizer = AutoTokenizer.from_pretrained(source, revision=config.revision, trust_remote_code=config.trust_remote_code)
        remote = config.trust_remote_code
        options = _body_options(source, remote)
        body = AutoModel.from_pretrained(source, revision=config.revision, trust_remote_code=remote, dtype=torch.float32, **options)
        positions = getattr(body.config, "max_position_embeddings", None)
        if positions is not None and config.max_length > positions:
            raise ArmorError(f"max_length {config.max_length} exceeds the model's {positions} positions", where="encoder.max_length")
        is_e5 = "e5" in Path(config.model).name.lower()
        identity = EncoderIdentity(
            pooling=config.pooling,
            query_prefix=config.query_prefix if config.query_prefix is not None else _E5_PREFIXES["query"] * is_e5,
            passage_prefix=config.passage_prefix if config.passage_prefix is not None else _E5_PREFIXES["passage"] * is_e5,
            max_length=config.max_length,
            dimension=int(body.config.hidden_size),
            base_weights=weights_fingerprint(body),
        )
        return cls(body, tokenizer, identity).eval()

    @classmethod
    def from_folder(cls, folder: str | Path) -> BiEncoder:
        """Loads what `save` wrote, identity included."""
        folder = Path(folder)
        source = resolve_model(str(folder))
        try:
            identity = EncoderIdentity(**json.loads((folder / "armor_ray.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise ArmorError("not an encoder exported by armor_ray (armor_ray.json missing or unreadable)", where=str(folder)) from None
        body = AutoModel.from_pretrained(source, dtype=torch.float32, **_body_options(source))
        return cls(body, AutoTokenizer.from_pretrained(source), identity).eval()

    @property
    def dimension(self) -> int:
        return self.identity.dimension

    @property
    def device(self) -> torch.device:
        return next(self.body.parameters()).device

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[list[int]]:
        """Token ids per text, prefix and special tokens included, cut at `max_length`."""
        prefix = self.identity.query_prefix if kind == "query" else self.identity.passage_prefix
        ids = self.tokenizer([prefix + text for text in texts], truncation=True, max_length=self.identity.max_length)["input_ids"]
        return [list(row) for row in ids]

    def count_truncated(self, texts: Sequence[str], kind: Kind) -> int:
        """How many of the texts lose tokens to `max_length`."""
        prefix = self.identity.query_prefix if kind == "query" else self.identity.passage_prefix
        rows = self.tokenizer([prefix + text for text in texts], truncation=False, verbose=False)["input_ids"]
        return sum(len(row) > self.identity.max_length for row in rows)

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Right-pads id rows to (input_ids [B, L], attention_mask [B, L])."""
        length = max(len(row) for row in rows)
        ids = torch.full((len(rows), length), self.tokenizer.pad_token_id or 0, dtype=torch.long)
        mask = torch.zeros((len(rows), length), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.as_tensor(row)
            mask[i, : len(row)] = 1
        return ids.to(self.device), mask.to(self.device)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Unit vectors [B, D] in fp32."""
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.identity.pooling == "cls":
            pooled = hidden[:, 0].float()
        else:
            weights = attention_mask.unsqueeze(-1).float()
            pooled = (hidden.float() * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return nn.functional.normalize(pooled, dim=-1)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], kind: Kind, batch_tokens: int = 16384, dtype: torch.dtype = torch.float32) -> np.ndarray:
        """Unit vectors fp32 [len(texts), D] in the texts' order.

        Texts are sorted by length and batched by token budget, so little is spent on padding. `dtype` is the arithmetic of the body.
        """
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        rows = self.tokenize(texts, kind)
        vectors = np.empty((len(rows), self.dimension), np.float32)
        with self._frozen(), _arithmetic(self.device, dtype):
            for batch in token_budget_batches([len(row) for row in rows], batch_tokens):
                vectors[batch] = self(*self.pad([rows[i] for i in batch])).cpu().numpy()
        return vectors

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(training)

    def save(self, folder: str | Path) -> None:
        """Writes a folder that SentenceTransformer, AutoModel and `from_folder` load; weights as safetensors."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.body.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        identity = self.identity
        pooling = {"word_embedding_dimension": identity.dimension, "include_prompt": True}
        pooling |= {f"pooling_mode_{mode}": mode == _POOLING_NAMES[identity.pooling] for mode in _POOLING_NAMES.values()}
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
        prompts = {"query": identity.query_prefix, "document": identity.passage_prefix}
        settings = {"prompts": prompts, "default_prompt_name": "query", "similarity_fn_name": "cosine"}
        for name, content in (
            ("modules.json", modules),
            ("1_Pooling/config.json", pooling),
            ("sentence_bert_config.json", {"max_seq_length": identity.max_length, "do_lower_case": False}),
            ("config_sentence_transformers.json", settings),
            ("armor_ray.json", asdict(identity)),
        ):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
        (folder / "2_Normalize").mkdir(exist_ok=True)


_POOLING_NAMES = {"mean": "mean_tokens", "cls": "cls_token"}


def weights_fingerprint(module: nn.Module) -> str:
    """16 hex digits over names and values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def token_budget_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Index batches, longest first, whose padded size (rows x longest) stays within `budget` tokens; a longer row goes alone."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * max(lengths[batch[0]], 1) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _arithmetic(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager:
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def _body_options(source: str, trust_remote_code: bool = False) -> dict[str, Any]:
    # BERT-like checkpoints carry a pooler that mean and cls pooling never use; without it DDP sees no unused parameters.
    model_type = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code).model_type
    return {"add_pooling_layer": False} if model_type in {"bert", "roberta", "xlm-roberta", "mpnet"} else {}
