"""Encoders, indexes and passages of one replica: batches of requests in, vectors and passages out."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import faiss
import numpy as np
import torch

from armor_ray.serving import metrics
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.encoders import Arm, QueryEncoder, open_adapted, open_base
from armor_ray.serving.indexes import IndexKey
from armor_ray.serving.passages import Extent, PassageStore, Wanted
from armor_ray.serving.reranking import PassageReranker
from armor_ray.serving.schemas import Passage
from armor_ray.workspace import Workspace

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Job:
    """The texts of one request, the encoder that reads them, and what is wanted beside their vectors."""

    texts: tuple[str, ...]
    arm: Arm = "adapted"
    wanted: Wanted | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a job, text by text.

    Attributes:
        arm: which encoder read all its texts.
        encoder: that encoder.
        vectors: unit query vectors fp32 [n, D].
        tokens: tokens encoded, prefix and special tokens included.
        truncated: whether the text was cut at the encoder's maximum length.
        passages: the k best passages, best first; empty lists where only vectors were wanted.
        partial: whether passages of some shard are missing.
    """

    arm: Arm
    encoder: QueryEncoder
    vectors: np.ndarray
    tokens: int
    truncated: tuple[bool, ...]
    passages: tuple[list[Passage], ...]
    partial: bool = False


class Retriever:
    """Answers batches of jobs; not to be called by two threads at once."""

    def __init__(self, encoders: Mapping[Arm, QueryEncoder], store: PassageStore, reranker: PassageReranker | None = None) -> None:
        self.encoders = encoders
        self._store = store
        self._reranker = reranker

    @classmethod
    def open(cls, workspace: Workspace, arguments: ServingArguments) -> Retriever:
        """Loads and checks everything that one replica needs.

        Raises:
            ArmorError: an artifact is missing or damaged, the index holds another encoder's vectors or another corpus' passages, or
                the encoder does not reproduce its golden vectors.
        """
        encoders = open_encoders(workspace, arguments)
        store = PassageStore.open(workspace, lexical=arguments.fusion is not None)
        for encoder in encoders.values():
            store.require_index(encoder.index)
        return cls(encoders, store, PassageReranker.open(arguments.reranker) if arguments.reranker else None)

    @property
    def num_passages(self) -> int:
        return self._store.num_passages

    def require_index(self, key: IndexKey) -> None:
        """See `PassageStore.require_index`."""
        self._store.require_index(key)

    def adopt(self, encoder: QueryEncoder) -> None:
        """Serves another adapted encoder from the next batch on; its index was required before (`require_index`)."""
        self.encoders = {**self.encoders, "adapted": encoder}

    async def extent(self, passage_id: int) -> Extent:
        """See `PassageStore.extent`."""
        return self._store.extent(passage_id)

    async def finish(self, job: Job, answer: Answer) -> Answer:
        """What is left to do for a job after its batch: nothing."""
        return answer

    def answer(self, jobs: Sequence[Job]) -> list[Answer]:
        """Encodes the texts of each encoder's jobs together, then searches for those that want passages."""
        answers = encode_jobs(self.encoders, jobs)
        # One search for each kind of wish: an answer must not depend on what other requests of its batch ask for.
        for (index, wanted), places in groups([(answer.encoder.index, job.wanted) for answer, job in zip(answers, jobs, strict=True)]):
            if wanted is None:
                continue
            texts = [text for place in places for text in jobs[place].texts]
            found = iter(self._search(index, texts, np.concatenate([answers[place].vectors for place in places]), wanted))
            for place in places:
                answers[place] = replace(answers[place], passages=tuple(next(found) for _ in jobs[place].texts))
        return answers

    def _search(self, index: IndexKey, texts: Sequence[str], vectors: np.ndarray, wanted: Wanted) -> list[list[Passage]]:
        found = timed_search(self._store, index, texts, vectors, first_stage(wanted, self._reranker, self.num_passages))
        return rerank(self._reranker, texts, found, wanted) if wanted.rerank and self._reranker else found


def open_encoders(workspace: Workspace, arguments: ServingArguments) -> dict[Arm, QueryEncoder]:
    """The adapted encoder, and the base encoder where both are to be compared.

    Raises:
        ArmorError: an artifact is missing or damaged, or the adapted encoder does not reproduce its golden vectors.
    """
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    encoders: dict[Arm, QueryEncoder] = {"adapted": open_adapted(workspace, arguments.retriever, dtype)}
    if arguments.compare:
        encoders["base"] = open_base(workspace, dtype)
    return encoders


def encode_jobs(encoders: Mapping[Arm, QueryEncoder], jobs: Sequence[Job]) -> list[Answer]:
    """Answers without passages; the texts of each encoder's jobs are encoded together."""
    answers: dict[int, Answer] = {}
    for arm, places in groups([job.arm for job in jobs]):
        started = time.perf_counter()
        encoded = encoders[arm].encode([text for place in places for text in jobs[place].texts])
        metrics.ENCODE_SECONDS.observe(time.perf_counter() - started)
        metrics.BATCH_TEXTS.observe(len(encoded.vectors))
        metrics.TRUNCATED.inc(sum(encoded.truncated))
        start = 0
        for place in places:
            span = slice(start, start + len(jobs[place].texts))
            cut = tuple(encoded.truncated[span])
            answers[place] = Answer(arm, encoders[arm], encoded.vectors[span], sum(encoded.tokens[span]), cut, tuple([] for _ in cut))
            start = span.stop
    return [answers[place] for place in range(len(jobs))]


def timed_search(store: PassageStore, index: IndexKey, texts: Sequence[str], vectors: np.ndarray, wanted: Wanted) -> list[list[Passage]]:
    """`PassageStore.search` that shows in the metrics."""
    started = time.perf_counter()
    found = store.search(index, texts, vectors, wanted)
    metrics.SEARCH_SECONDS.observe(time.perf_counter() - started)
    return found


def first_stage(wanted: Wanted, reranker: PassageReranker | None, num_passages: int) -> Wanted:
    """What to search for, so that a reranker that is wanted gets enough to see."""
    return replace(wanted, k=min(max(wanted.k, reranker.depth), num_passages)) if wanted.rerank and reranker else wanted


def rerank(reranker: PassageReranker, texts: Sequence[str], found: Sequence[list[Passage]], wanted: Wanted) -> list[list[Passage]]:
    """The k best of what was found, by the reranker."""
    started = time.perf_counter()
    ordered = [reranker.order(text, passages)[: wanted.k] for text, passages in zip(texts, found, strict=True)]
    metrics.RERANK_SECONDS.observe(time.perf_counter() - started)
    return ordered


def groups(keys: Sequence[Key]) -> Iterator[tuple[Key, list[int]]]:
    """Every different key with the places where it stands."""
    places: dict[Key, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    yield from places.items()
