"""The query encoders of one replica: the adapted one, and beside it the base encoder when both are to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from armor_ray.config import parse_yaml, validate_config
from armor_ray.errors import ArmorError
from armor_ray.evaluation.labels import BASE
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.golden import check_golden
from armor_ray.models.hardware import choose_device
from armor_ray.serving.arguments import PROMOTED
from armor_ray.serving.indexes import IndexKey
from armor_ray.workspace import CONFIG, Manifest, Workspace

Arm = Literal["adapted", "base"]

# Tokens that are encoded at once. Questions are short and of uneven length, so on a CPU, which gains little from more, small batches
# of like lengths save more on padding than they cost: 2.2 instead of 2.7 CPU-ms a question at 32 clients (MiniLM, bf16).
_CPU_TOKENS_PER_THREAD = 512
_GPU_TOKENS = 16384


@dataclass(frozen=True, slots=True)
class Encoded:
    """Texts as vectors.

    Attributes:
        vectors: unit query vectors fp32 [n, D].
        tokens: tokens encoded per text, prefix and special tokens included.
        truncated: per text, whether it was cut at the encoder's maximum length.
    """

    vectors: np.ndarray
    tokens: list[int]
    truncated: list[bool]


@dataclass(frozen=True, slots=True)
class QueryEncoder:
    """An encoder under the names that requests know it by.

    Attributes:
        version: name and fingerprint; travels with every answer.
        names: what /v1/embeddings accepts as `model`, the encoder's own name last.
        index: the one that it searches.
        dtype: arithmetic of its body.
        fusion_weight: of its score in the mix with BM25, as the report tuned it on validation; None where it did not.
    """

    model: BiEncoder
    version: str
    names: tuple[str, ...]
    index: IndexKey
    dtype: torch.dtype = torch.float32
    fusion_weight: float | None = None

    @property
    def dimension(self) -> int:
        return self.model.dimension

    @property
    def max_length(self) -> int:
        """Tokens; longer texts are cut."""
        return self.model.identity.max_length

    def encode(self, texts: Sequence[str]) -> Encoded:
        rows = self.model.tokenize(texts, "query")
        lengths = [len(row) for row in rows]
        # A row at the limit may have been cut or may just fit; only those are tokenised again, in full.
        cut = [n >= self.max_length and self.model.count_truncated([text], "query") > 0 for n, text in zip(lengths, texts, strict=True)]
        return Encoded(self.model.encode_tokens(rows, self._batch_tokens, self.dtype), lengths, cut)

    @property
    def _batch_tokens(self) -> int:
        return _CPU_TOKENS_PER_THREAD * torch.get_num_threads() if self.model.device.type == "cpu" else _GPU_TOKENS


def open_adapted(workspace: Workspace, retriever: str, dtype: torch.dtype = torch.float32) -> QueryEncoder:
    """Loads `promoted`, or one of retrievers/ by name; golden vectors are checked in fp32, whatever it is to compute in.

    Raises:
        ArmorError: no such artifact, a damaged one, or an encoder that does not reproduce its golden vectors.
    """
    artifact = PROMOTED if retriever == PROMOTED else f"retrievers/{retriever}"
    manifest = workspace.require(artifact)
    folder = workspace.local(artifact)
    model = BiEncoder.from_folder(folder).to(choose_device())
    check_golden(model, folder)
    model.freeze(dtype)
    names = _names(retriever, manifest)
    fingerprint = manifest.details.get("fingerprint", manifest.fingerprint)
    # An encoder whose passage side was trained, too, searches vectors of its own.
    index = IndexKey(manifest.details.get("corpus", "index"), model.identity.fingerprint())
    return QueryEncoder(model, f"{names[-1]}@{fingerprint}", names, index, dtype, _tuned_weight(workspace, f"retrievers/{names[-1]}"))


def open_base(workspace: Workspace, dtype: torch.dtype = torch.float32) -> QueryEncoder:
    """Loads the encoder that the workspace's configuration started from.

    Raises:
        ArmorError: the workspace has no configuration, or its encoder is not to be had here.
    """
    raw = workspace.read_bytes(CONFIG)
    where = workspace.location(CONFIG)
    if raw is None:
        raise ArmorError("no configuration to load the base encoder from", where=where, hint="serve with compare: false")
    config = validate_config(parse_yaml(raw.decode("utf-8", "replace"), where), where)
    model = BiEncoder.load(config.encoder).to(choose_device())
    model.freeze(dtype)
    identity = model.identity.fingerprint()
    return QueryEncoder(model, f"{BASE}@{identity}", (BASE,), IndexKey("index", identity), dtype, _tuned_weight(workspace, BASE))


def _tuned_weight(workspace: Workspace, encoder: str) -> float | None:
    reports = workspace.manifest("reports")
    return None if reports is None else reports.details.get("fusion_weights", {}).get(encoder)


def _names(retriever: str, manifest: Manifest) -> tuple[str, ...]:
    own = str(manifest.details.get("retriever", retriever))
    return (retriever,) if own == retriever else (retriever, own)
