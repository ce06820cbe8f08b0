"""Encoder, index and passages of one replica: texts in, vectors and passages out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import torch

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.golden import check_golden
from armor_ray.retrieval.dense import search
from armor_ray.retrieval.index_file import open_index
from armor_ray.serving import metrics
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.schemas import Passage
from armor_ray.workspace import Manifest, Workspace, read_parquet

_COLUMNS = ("passage_id", "doc_id", "title", "text")


@dataclass(frozen=True, slots=True)
class Job:
    """The texts of one request; `k` is None when only their vectors are wanted."""

    texts: tuple[str, ...]
    k: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a job, text by text.

    Attributes:
        vectors: unit query vectors fp32 [n, D].
        tokens: tokens encoded, prefix and special tokens included.
        truncated: whether the text was cut at the encoder's maximum length.
        passages: the k best passages, best first; empty lists for a job without k.
    """

    vectors: np.ndarray
    tokens: int
    truncated: tuple[bool, ...]
    passages: tuple[list[Passage], ...]


class Retriever:
    """Answers batches of jobs; not to be called by two threads at once."""

    def __init__(self, encoder: BiEncoder, index: faiss.Index, passages: pa.Table, names: Sequence[str], fingerprint: str) -> None:
        self.encoder = encoder
        self.names = tuple(names)
        self.fingerprint = fingerprint
        self.num_passages = int(index.ntotal)
        self._index = index
        self._columns: dict[str, pa.ChunkedArray] = {name: passages.column(name) for name in _COLUMNS}

    @classmethod
    def open(cls, workspace: Workspace, arguments: ServingArguments) -> Retriever:
        """Loads and checks everything that one replica needs.

        Raises:
            ArmorError: an artifact is missing or damaged, the index holds another encoder's vectors or another corpus' passages, or
                the encoder does not reproduce its golden vectors.
        """
        torch.set_num_threads(arguments.threads)
        faiss.omp_set_num_threads(arguments.threads)
        manifest = workspace.require(arguments.artifact)
        # An encoder whose passage side was trained, too, searches vectors of its own.
        index_artifact = manifest.details.get("corpus", "index")
        check_same_corpus(workspace, index_artifact)
        folder = workspace.local(arguments.artifact)
        encoder = BiEncoder.from_folder(folder)
        if torch.cuda.is_available():
            encoder.to("cuda")
        check_golden(encoder, folder)
        index_folder = workspace.local(index_artifact)
        index = open_index(index_folder, encoder.identity.fingerprint())
        passages = read_parquet(workspace.local("passages") / "passages.parquet", "prepare")
        if len(passages) != index.ntotal:
            message = f"the index holds {index.ntotal} vectors, the corpus has {len(passages)} passages"
            raise ArmorError(message, where=str(index_folder), hint="rerun with --force embed")
        return cls(encoder, index, passages, _names(arguments, manifest), manifest.details.get("fingerprint", manifest.fingerprint))

    @property
    def version(self) -> str:
        """Name and fingerprint of the encoder; travels with every answer."""
        return f"{self.names[-1]}@{self.fingerprint}"

    def answer(self, jobs: list[Job]) -> list[Answer]:
        """Encodes the texts of all jobs together, then searches for those that want passages."""
        started = time.perf_counter()
        texts = [text for job in jobs for text in job.texts]
        tokens, truncated = self._measure(texts)
        vectors = self.encoder.encode(texts, "query")
        metrics.ENCODE_SECONDS.observe(time.perf_counter() - started)
        metrics.BATCH_TEXTS.observe(len(texts))
        metrics.TRUNCATED.inc(sum(truncated))
        passages = self._search(vectors, [job.k for job in jobs for _ in job.texts])
        answers, start = [], 0
        for job in jobs:
            span = slice(start, start + len(job.texts))
            answers.append(Answer(vectors[span], sum(tokens[span]), tuple(truncated[span]), tuple(passages[span])))
            start = span.stop
        return answers

    def _measure(self, texts: list[str]) -> tuple[list[int], list[bool]]:
        """Tokens per text after the cut, and whether there was one."""
        lengths = [len(row) for row in self.encoder.tokenize(texts, "query")]
        limit = self.encoder.identity.max_length
        # A row at the limit may have been cut or may just fit; only those are tokenised again, in full.
        cut = [n >= limit and self.encoder.count_truncated([text], "query") > 0 for n, text in zip(lengths, texts, strict=True)]
        return lengths, cut

    def _search(self, vectors: np.ndarray, ks: list[int | None]) -> list[list[Passage]]:
        found: list[list[Passage]] = [[] for _ in ks]
        wanted = {k for k in ks if k is not None}
        if not wanted:
            return found
        started = time.perf_counter()
        # One search per k: an answer must not depend on what other requests of its batch ask for.
        for k in wanted:
            rows = [i for i, other in enumerate(ks) if other == k]
            scores, ids = search(self._index, vectors[rows], k)
            for row, row_scores, row_ids in zip(rows, scores, ids, strict=True):
                found[row] = self._passages(row_scores, row_ids)
        metrics.SEARCH_SECONDS.observe(time.perf_counter() - started)
        return found

    def _passages(self, scores: np.ndarray, ids: np.ndarray) -> list[Passage]:
        return [
            Passage.model_construct(rank=rank, score=float(score), **self._passage(int(row)))
            for rank, (score, row) in enumerate(zip(scores, ids, strict=True), start=1)
        ]

    def _passage(self, row: int) -> dict[str, Any]:
        return {name: column[row].as_py() for name, column in self._columns.items()}


def check_same_corpus(workspace: Workspace, index_artifact: str = "index") -> None:
    """Refuses an index that was built from other passages than the workspace holds now.

    Raises:
        ArmorError: an artifact is missing, or the chain passages - embeddings - index is broken (an interrupted rerun).
    """
    passages, index = workspace.require("passages"), workspace.require(index_artifact)
    embeddings = workspace.manifest("embeddings") if index_artifact == "index" else index
    if embeddings is None:  # not needed for serving; a slim copy of a workspace leaves it out
        return
    links = [(embeddings, passages)] if index is embeddings else [(index, embeddings), (embeddings, passages)]
    for product, source in links:
        if product.inputs.get(source.name) != source.fingerprint:
            message = f"'{product.name}' was made of other '{source.name}' than the workspace holds"
            raise ArmorError(message, where=workspace.uri, hint="finish the run with `armor-ray run`")


def _names(arguments: ServingArguments, manifest: Manifest) -> tuple[str, ...]:
    """Names that /v1/embeddings accepts as `model`, the retriever's own last."""
    own = str(manifest.details.get("retriever", arguments.retriever))
    return (arguments.retriever,) if own == arguments.retriever else (arguments.retriever, own)
