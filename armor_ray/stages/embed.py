"""Stage `embed`: Ray Data shards the corpus over encoder actors; every shard is kept, so a killed run goes on where it was."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import ray
import torch
from ray.data import ActorPoolStrategy
from tqdm import tqdm

from armor_ray.config import EncoderConfig
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.hub import model_fingerprint, resolve_model
from armor_ray.stages.cluster import connect, plan_actors
from armor_ray.stages.context import Context, Plan
from armor_ray.workspace import Draft, Workspace

STAGE = "embed"
_SHARD_BLOCKS = 128


def plans(context: Context) -> list[Plan]:
    encoder = context.config.encoder
    config = {**encoder.model_dump(exclude={"batch_tokens", "model"}), "model": model_fingerprint(resolve_model(encoder.model), encoder.revision)}
    return [Plan("embeddings", STAGE, {"encoder": config}, context.inputs("passages"))]


class EmbedActor:
    """Encodes row ranges of the passages and stores each as one `.npz` block in the workspace."""

    def __init__(self, config: EncoderConfig, workspace_uri: str, blocks: str) -> None:
        self._workspace = Workspace(workspace_uri)
        self._passages = pq.ParquetFile(self._workspace.local("passages") / "passages.parquet", memory_map=True)
        self._encoder = BiEncoder.load(config)
        if torch.cuda.is_available():
            self._encoder.to("cuda")
        self._config = config
        self._blocks = blocks

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for start, stop in zip(batch["start"], batch["stop"], strict=True):
            texts = self._texts(int(start), int(stop))
            vectors = self._encoder.encode(texts, "passage", self._config.batch_tokens, embed_dtype(self._config))
            truncated = self._encoder.count_truncated(texts, "passage")
            self._workspace.write_bytes(f"{self._blocks}/{block_name(int(start))}", _block_bytes(vectors, truncated))
        return {"rows": batch["stop"] - batch["start"]}

    def _texts(self, start: int, stop: int) -> list[str]:
        group_rows = self._passages.metadata.row_group(0).num_rows
        groups = range(start // group_rows, (stop - 1) // group_rows + 1)
        column = self._passages.read_row_groups(list(groups), columns=["text"]).column("text")
        offset = start - groups[0] * group_rows
        return column.slice(offset, stop - start).to_pylist()


def embed_dtype(config: EncoderConfig) -> torch.dtype:
    """The body's arithmetic; `auto` is bf16 on GPUs that have it and fp32 elsewhere."""
    if config.embed_dtype == "auto":
        return torch.bfloat16 if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if config.embed_dtype == "bfloat16" else torch.float32


def block_rows(num_passages: int) -> int:
    """Passages of one unit of work: enough units to keep all actors busy to the end, few enough files for a large corpus."""
    return min(4096, max(128, num_passages // 64))


def run(context: Context, plan: Plan) -> None:
    workspace = context.workspace
    connect(workspace)
    num_passages = workspace.require("passages").rows["passages"]
    blocks = f".work/embeddings-{plan.fingerprint}"
    _embed_missing(context, blocks, num_passages)

    def write(draft: Draft) -> None:
        dimension, truncated = _assemble(workspace, blocks, num_passages, draft.path)
        draft.rows["embeddings"] = num_passages
        draft.details |= {"dimension": dimension, "truncated_passages": truncated, "encoder": encoder_identity(context.config.encoder)}
        if truncated:
            context.say(f"embed: {truncated} passages are longer than encoder.max_length and were cut")

    context.publish(plan, write)
    workspace.delete(blocks)


def encoder_identity(config: EncoderConfig) -> str:
    """Fingerprint of the encoder whose vectors fill the index; queries of another one are refused."""
    return BiEncoder.load(config).identity.fingerprint()


def _embed_missing(context: Context, blocks: str, num_passages: int) -> None:
    done = {os.path.basename(name) for name in context.workspace.files(blocks)}
    size = block_rows(num_passages)
    ranges = [(start, min(start + size, num_passages)) for start in range(0, num_passages, size)]
    todo = [{"start": start, "stop": stop} for start, stop in ranges if block_name(start) not in done]
    if not todo:
        return
    if len(todo) < len(ranges):
        context.say(f"embed: resuming, {len(ranges) - len(todo)} of {len(ranges)} blocks are there")
    actors = plan_actors(context.config.resources, context.config.resources.embed_actors, len(todo))
    dataset = ray.data.from_items(todo, override_num_blocks=len(todo)).map_batches(
        EmbedActor,
        fn_constructor_args=(context.config.encoder, context.workspace.uri, blocks),
        batch_size=1,
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    with tqdm(total=sum(item["stop"] - item["start"] for item in todo), desc="embed", unit=" passages", mininterval=2) as bar:
        for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
            bar.update(int(batch["rows"].sum()))


def _assemble(workspace: Workspace, blocks: str, num_passages: int, folder: Path) -> tuple[int, int]:
    """Joins blocks to shards of `_SHARD_BLOCKS` blocks, one shard in memory at a time; returns (dimension, truncated passages)."""
    dimension = truncated = 0
    starts = range(0, num_passages, block_rows(num_passages))
    for shard, first in enumerate(range(0, len(starts), _SHARD_BLOCKS)):
        parts = []
        for start in starts[first : first + _SHARD_BLOCKS]:
            vectors, cut = _load_block(workspace, f"{blocks}/{block_name(start)}")
            parts.append(vectors)
            truncated += cut
        matrix = np.concatenate(parts)
        dimension = matrix.shape[1]
        np.save(folder / f"part-{shard:05d}.npy", matrix)
    return dimension, truncated


def _load_block(workspace: Workspace, name: str) -> tuple[np.ndarray, int]:
    data = workspace.read_bytes(name)
    assert data is not None, f"{name} was listed as done"
    with np.load(io.BytesIO(data), allow_pickle=False) as block:
        return block["vectors"], int(block["truncated"])


def _block_bytes(vectors: np.ndarray, truncated: int) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, vectors=vectors, truncated=truncated)
    return sink.getvalue()


def block_name(start: int) -> str:
    """File name of the block that begins at this row."""
    return f"rows-{start:012d}.npz"


def open_embeddings(folder: Path) -> np.ndarray:
    """All shards as one fp32 matrix [C, D]; memory-mapped when there is one shard."""
    parts: list[Any] = [np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(folder.glob("part-*.npy"))]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
