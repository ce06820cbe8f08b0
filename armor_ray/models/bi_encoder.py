"""The bi-encoder: a Hugging Face text encoder with pooling, prefixes and l2-normalisation as one identity.

Shape legend: B batch, L tokens, D embedding dimension.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from armor_ray.config import EncoderConfig
from armor_ray.errors import ArmorError
from armor_ray.models.hub import loading, resolve_model
from armor_ray.models.packed_linear import freeze_linear_layers

Kind = Literal["query", "passage"]
_E5_PREFIXES = {"query": "query: ", "passage": "passage: "}
_IDENTITY_FILE = "armor_ray.json"
# On a CPU the activations of a larger batch leave its caches: 16,384 tokens take 40 % longer than 2,048 (benchmarks/README.md).
_CACHED_TOKENS_PER_THREAD = 2048


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
        body, tokenizer = _load_parts(source, revision=config.revision, trust_remote_code=config.trust_remote_code)
        _require_positions(config.max_length, body, tokenizer)
        is_e5 = "e5" in Path(config.model).name.lower()
        identity = EncoderIdentity(
            pooling=config.pooling,
            query_prefix=config.query_prefix if config.query_prefix is not None else _E5_PREFIXES["query"] * is_e5,
            passage_prefix=config.passage_prefix if config.passage_prefix is not None else _E5_PREFIXES["passage"] * is_e5,
            max_length=config.max_length,
            dimension=body.config.hidden_size,
            base_weights=weights_fingerprint(body),
        )
        return cls(body, tokenizer, identity).eval()

    @classmethod
    def from_folder(cls, folder: str | Path) -> BiEncoder:
        """Loads what `save` wrote, identity included.

        Raises:
            ArmorError: a folder without weights, with damaged ones, or not written by `save`.
        """
        source = resolve_model(str(folder))
        try:
            identity = EncoderIdentity(**json.loads((Path(source) / _IDENTITY_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise ArmorError(f"not an encoder exported by armor_ray ({_IDENTITY_FILE} missing or unreadable)", where=str(folder)) from None
        return cls(*_load_parts(source), identity).eval()

    def with_own_passages(self) -> BiEncoder:
        """The same encoder with an identity of its own: for one whose passage side was trained, too."""
        identity = replace(self.identity, base_weights=weights_fingerprint(self.body))
        return BiEncoder(self.body, self.tokenizer, identity).eval()

    @property
    def dimension(self) -> int:
        return self.identity.dimension

    @property
    def device(self) -> torch.device:
        return next(self.body.parameters()).device

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[list[int]]:
        """Token ids per text, prefix and special tokens included, cut at `max_length`."""
        return self.tokenizer(self._prefixed(texts, kind), truncation=True, max_length=self.identity.max_length)["input_ids"]

    def count_truncated(self, texts: Sequence[str], kind: Kind) -> int:
        """How many of the texts lose tokens to `max_length`."""
        rows = self.tokenizer(self._prefixed(texts, kind), truncation=False, verbose=False)["input_ids"]
        return sum(len(row) > self.identity.max_length for row in rows)

    def _prefixed(self, texts: Sequence[str], kind: Kind) -> list[str]:
        prefix = self.identity.query_prefix if kind == "query" else self.identity.passage_prefix
        return [prefix + text for text in texts]

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Right-pads id rows to (input_ids [B, L], attention_mask [B, L])."""
        lengths = np.array([len(row) for row in rows])
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(mask.shape, self.tokenizer.pad_token_id or 0, np.int64)
        ids[mask] = np.concatenate(rows)
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask.astype(np.int64)).to(self.device)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Unit vectors [B, D] in fp32 (fp64 of an fp64 body)."""
        hidden_BLD = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        wide = torch.promote_types(hidden_BLD.dtype, torch.float32)
        if self.identity.pooling == "cls":
            pooled_BD = hidden_BLD[:, 0].to(wide)
        else:
            weights_BL1 = attention_mask.unsqueeze(-1).to(wide)
            pooled_BD = (hidden_BLD.to(wide) * weights_BL1).sum(1) / weights_BL1.sum(1).clamp(min=1.0)
        return nn.functional.normalize(pooled_BD, dim=-1)

    def encode(self, texts: Sequence[str], kind: Kind, batch_tokens: int = 16384, dtype: torch.dtype = torch.float32) -> np.ndarray:
        """Unit vectors fp32 [len(texts), D] in the texts' order; arguments as of `encode_tokens`."""
        return self.encode_tokens(self.tokenize(texts, kind) if texts else [], batch_tokens, dtype)

    @torch.inference_mode()
    def encode_tokens(self, rows: Sequence[Sequence[int]], batch_tokens: int = 16384, dtype: torch.dtype = torch.float32) -> np.ndarray:
        """Unit vectors fp32 [len(rows), D] of texts that `tokenize` made into rows of ids, in their order.

        Rows are sorted by length and batched by token budget, so little is spent on padding.

        Args:
            batch_tokens: most tokens of a batch; a CPU takes fewer at once.
            dtype: the arithmetic of the body.
        """
        if not rows:
            return np.zeros((0, self.dimension), np.float32)
        if self.device.type == "cpu":
            batch_tokens = min(batch_tokens, _CACHED_TOKENS_PER_THREAD * torch.get_num_threads())
        vectors = np.empty((len(rows), self.dimension), np.float32)
        with self._frozen(), _arithmetic(self.device, dtype):
            for batch in token_budget_batches([len(row) for row in rows], batch_tokens):
                vectors[batch] = self(*self.pad([rows[i] for i in batch])).cpu().numpy()
        return vectors

    def freeze(self, dtype: torch.dtype = torch.float32) -> None:
        """Makes the encoder ready to encode in `dtype` and nothing else: it can neither be trained, saved nor moved any more.

        In bf16 the vectors stay what they were to the bit, in fp32 to rounding. Else the same weights are cast and packed anew for every
        batch, which is half the time of a lone text.
        """
        self.eval()
        freeze_linear_layers(self.body, dtype)

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(training)

    def save(self, folder: str | Path) -> None:
        """Writes a folder that SentenceTransformer, AutoModel and `from_folder` load; weights as safetensors.

        SentenceTransformer's `encode` treats a text as a query unless told otherwise (`encode_document`), as the query side is what
        was adapted.
        """
        assert isinstance(self.body, PreTrainedModel), "adapters are merged before they are saved (training.lora.merged)"
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.body.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        for name, content in {**_sentence_transformers_files(self.identity), _IDENTITY_FILE: asdict(self.identity)}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
        (folder / "2_Normalize").mkdir(exist_ok=True)


def _sentence_transformers_files(identity: EncoderIdentity) -> dict[str, Any]:
    """JSON files by path, with the class and key names that every release since 2.0 reads (6 maps them silently to its own)."""
    module = "sentence_transformers.models."
    pooling_keys = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    return {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": module + "Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": module + "Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": module + "Normalize"},
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": identity.dimension,
            "include_prompt": True,
            **{key: mode == identity.pooling for mode, key in pooling_keys.items()},
        },
        "sentence_bert_config.json": {"max_seq_length": identity.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": identity.query_prefix, "document": identity.passage_prefix},
            "default_prompt_name": "query" if identity.query_prefix else None,
            "similarity_fn_name": "cosine",
        },
    }


def _load_parts(source: str, revision: str | None = None, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """(body in fp32, tokenizer). A pooler head stays, so that exports are complete, but is frozen: no pooling here reads it."""
    with loading(source):
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
        body = AutoModel.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code, dtype=torch.float32)
    for name, parameter in body.named_parameters():
        if _is_pooler(name):
            parameter.requires_grad_(False)
    return body, tokenizer


def _is_pooler(name: str) -> bool:
    return name.startswith("pooler.")


def _require_positions(max_length: int, body: Any, tokenizer: Any) -> None:
    # RoBERTa counts two positions more than its tokenizer may use; a tokenizer without a limit reports a huge one.
    positions = min(getattr(body.config, "max_position_embeddings", None) or max_length, tokenizer.model_max_length)
    if max_length > positions:
        raise ArmorError(f"max_length {max_length} exceeds the model's {positions} positions", where="encoder.max_length", hint="lower it")


def weights_fingerprint(module: nn.Module) -> str:
    """16 hex digits over names and values of all weights that a vector depends on."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not _is_pooler(name):
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
