"""Stage `embed`: Ray Data shards the corpus over encoder actors; every shard is kept, so a killed run goes on where it was."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import ray
from ray.data import ActorPoolStrategy
from tqdm import tqdm

from armor_ray.config import EncoderConfig
from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.hardware import choose_device, choose_dtype
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.context import Context, Plan, work_folder
from armor_ray.workspace import Draft, Workspace, open_parquet, read_npy

STAGE = "embed"
FILE = "part-00000.npy"


class EmbedActor:
    """Encodes row ranges of the passages and stores each as one `.npz` block in the workspace.

    Args:
        retriever: artifact of the encoder, where it is a trained one.
    """

    def __init__(self, config: EncoderConfig, workspace_uri: str, blocks: str, retriever: str | None = None) -> None:
        self._workspace = Workspace(workspace_uri)
        self._passages = open_parquet(self._workspace.local("passages") / "passages.parquet", "prepare")
        device = choose_device()
        encoder = BiEncoder.load(config) if retriever is None else BiEncoder.from_folder(self._workspace.local(retriever))
        self._encoder = encoder.to(device)
        self._dtype = choose_dtype(config.embed_dtype, device)
        self._encoder.freeze(self._dtype)
        self._identity = self._encoder.identity.fingerprint()
        self._config = config
        self._blocks = blocks

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for start, stop in zip(batch["start"], batch["stop"], strict=True):
            texts = self._texts(int(start), int(stop))
            vectors = self._encoder.encode(texts, "passage", self._config.batch_tokens, self._dtype)
            truncated = self._encoder.count_truncated(texts, "passage")
            self._workspace.write_bytes(f"{self._blocks}/{block_name(int(start))}", _block_bytes(vectors, truncated, self._identity))
        return {"rows": batch["stop"] - batch["start"]}

    def _texts(self, start: int, stop: int) -> list[str]:
        group_rows = self._passages.metadata.row_group(0).num_rows
        groups = range(start // group_rows, (stop - 1) // group_rows + 1)
        column = self._passages.read_row_groups(list(groups), columns=["text"]).column("text")
        offset = start - groups[0] * group_rows
        return column.slice(offset, stop - start).to_pylist()


def block_rows(num_passages: int) -> int:
    """Passages of one unit of work: enough units to keep all actors busy to the end, few enough files for a large corpus."""
    return min(4096, max(128, num_passages // 64))


def run_all(context: Context, todo: list[Plan]) -> None:
    [plan] = todo
    connect(context.workspace)
    blocks = f"{work_folder(STAGE)}/{plan.fingerprint}"
    embed_missing(context, blocks)

    def write(draft: Draft) -> None:
        facts = assemble(context, blocks, draft)
        if facts.truncated:
            context.say(f"embed: {facts.truncated} passages are longer than encoder.max_length and were cut")

    context.publish(plan, write)


def _num_passages(context: Context) -> int:
    return context.workspace.require("passages").rows["passages"]


def embed_missing(context: Context, blocks: str, retriever: str | None = None) -> None:
    """Embeds the passages that the folder `blocks` lacks, with the base encoder or that of a `retriever` artifact."""
    num_passages = _num_passages(context)
    done = {Path(name).name for name in context.workspace.files(blocks)}
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
        fn_constructor_args=(context.config.encoder, context.workspace.uri, blocks, retriever),
        batch_size=1,
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    rows = sum(item["stop"] - item["start"] for item in todo)
    with user_errors(), tqdm(total=rows, desc="embed", unit=" passages", mininterval=2) as bar:
        for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
            bar.update(int(batch["rows"].sum()))


@dataclass(frozen=True, slots=True)
class Facts:
    """What the vectors are: their dimension, how many passages were cut, and the identity of the encoder that made them."""

    dimension: int
    truncated: int
    encoder: str


def assemble(context: Context, blocks: str, draft: Draft) -> Facts:
    """Writes the vectors of all `blocks` into an artifact that `open_embeddings` opens, with its row count and facts.

    Raises:
        ArmorError: blocks of different encoders.
    """
    num_passages = _num_passages(context)
    facts = _assemble(context.workspace, blocks, num_passages, draft.path / FILE)
    draft.rows["embeddings"] = num_passages
    draft.details |= {"dimension": facts.dimension, "truncated_passages": facts.truncated, "encoder": facts.encoder}
    return facts


def _assemble(workspace: Workspace, blocks: str, num_passages: int, path: Path) -> Facts:
    """Appends block after block to one `.npy` file, one block in memory at a time.

    Raises:
        ArmorError: blocks of different encoders, as when the model changed on its hub between a run and its resumption.
    """
    starts = range(0, num_passages, block_rows(num_passages))
    first, _, encoder = _load_block(workspace, f"{blocks}/{block_name(0)}")
    dimension, cut = first.shape[1], 0
    with path.open("wb") as sink:
        header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": (num_passages, dimension)}
        np.lib.format.write_array_header_1_0(sink, header)
        for start in starts:
            name = f"{blocks}/{block_name(start)}"
            vectors, truncated, made_by = _load_block(workspace, name)
            if made_by != encoder:
                message = f"vectors of encoder {made_by} beside vectors of {encoder}"
                raise ArmorError(message, where=workspace.location(name), hint="rerun with --force embed")
            sink.write(vectors.tobytes())
            cut += truncated
    return Facts(dimension, cut, encoder)


Block = tuple[np.ndarray, int, str]
"""Vectors fp32 [rows, D], how many of their passages were cut, and the encoder's identity."""


def _load_block(workspace: Workspace, name: str) -> Block:
    data = workspace.read_bytes(name)
    assert data is not None, f"{name} was listed as done"
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as block:
            return block["vectors"], int(block["truncated"]), str(block["encoder"])
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile):
        raise ArmorError("not a readable block of vectors", where=workspace.location(name), hint="delete it and rerun") from None


def _block_bytes(vectors: np.ndarray, truncated: int, encoder: str) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, vectors=vectors, truncated=truncated, encoder=encoder)
    return sink.getvalue()


def block_name(start: int) -> str:
    """File name of the block that begins at this row."""
    return f"rows-{start:012d}.npz"


def open_embeddings(folder: Path) -> np.ndarray:
    """The passage vectors fp32 [C, D], memory-mapped."""
    return read_npy(folder / FILE, STAGE)
