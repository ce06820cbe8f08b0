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
        arm: the encoder that read all its texts.
        version: its name and fingerprint.
        vectors: unit query vectors fp32 [n, D].
        tokens: tokens encoded, prefix and special tokens included.
        truncated: whether the text was cut at the encoder's maximum length.
        passages: the k best passages, best first; empty lists where only vectors were wanted.
    """

    arm: Arm
    version: str
    vectors: np.ndarray
    tokens: int
    truncated: tuple[bool, ...]
    passages: tuple[list[Passage], ...]


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
        torch.set_num_threads(arguments.threads)
        faiss.omp_set_num_threads(arguments.threads)
        encoders: dict[Arm, QueryEncoder] = {"adapted": open_adapted(workspace, arguments.retriever)}
        if arguments.compare:
            encoders["base"] = open_base(workspace)
        store = PassageStore.open(workspace, encoders.values(), lexical=arguments.fusion is not None)
        return cls(encoders, store, PassageReranker.open(arguments.reranker) if arguments.reranker else None)

    @property
    def num_passages(self) -> int:
        return self._store.num_passages

    def require_index(self, workspace: Workspace, encoder: QueryEncoder) -> None:
        """See `PassageStore.require_index`."""
        self._store.require_index(workspace, encoder)

    def adopt(self, encoder: QueryEncoder) -> None:
        """Serves another adapted encoder from the next batch on; its index is mapped (`require_index`)."""
        self.encoders = {**self.encoders, "adapted": encoder}

    def extent(self, passage_id: int) -> Extent:
        """See `PassageStore.extent`."""
        return self._store.extent(passage_id)

    def answer(self, jobs: Sequence[Job]) -> list[Answer]:
        """Encodes the texts of each encoder's jobs together, then searches for those that want passages."""
        encoders = self.encoders  # one set for the whole batch, whatever is swapped in meanwhile
        answers: list[Answer | None] = [None] * len(jobs)
        for arm, places in _groups([job.arm for job in jobs]):
            for place, answer in zip(places, self._answer(arm, encoders[arm], [jobs[i] for i in places]), strict=True):
                answers[place] = answer
        return [answer for answer in answers if answer is not None]

    def _answer(self, arm: Arm, encoder: QueryEncoder, jobs: Sequence[Job]) -> list[Answer]:
        started = time.perf_counter()
        texts = [text for job in jobs for text in job.texts]
        encoded = encoder.encode(texts)
        metrics.ENCODE_SECONDS.observe(time.perf_counter() - started)
        metrics.BATCH_TEXTS.observe(len(texts))
        metrics.TRUNCATED.inc(sum(encoded.truncated))
        passages = self._search(encoder, texts, encoded.vectors, [job.wanted for job in jobs for _ in job.texts])
        answers, start = [], 0
        for job in jobs:
            span = slice(start, start + len(job.texts))
            cut = tuple(encoded.truncated[span])
            answers.append(Answer(arm, encoder.version, encoded.vectors[span], sum(encoded.tokens[span]), cut, tuple(passages[span])))
            start = span.stop
        return answers

    def _search(
        self, encoder: QueryEncoder, texts: Sequence[str], vectors: np.ndarray, wanted: Sequence[Wanted | None]
    ) -> list[list[Passage]]:
        found: list[list[Passage]] = [[] for _ in wanted]
        # One search for each kind of wish: an answer must not depend on what other requests of its batch ask for.
        for wish, rows in _groups(wanted):
            if wish is not None:
                passages = self._find(encoder.index, [texts[row] for row in rows], vectors[rows], wish)
                for row, best in zip(rows, passages, strict=True):
                    found[row] = best
        return found

    def _find(self, index: str, texts: Sequence[str], vectors: np.ndarray, wish: Wanted) -> list[list[Passage]]:
        depth = min(max(wish.k, self._reranker.depth), self.num_passages) if wish.rerank and self._reranker else wish.k
        started = time.perf_counter()
        found = self._store.search(index, texts, vectors, replace(wish, k=depth))
        metrics.SEARCH_SECONDS.observe(time.perf_counter() - started)
        if not wish.rerank:
            return found
        assert self._reranker is not None, "requests for a reranker are refused where there is none"
        started = time.perf_counter()
        ordered = [self._reranker.order(text, passages)[: wish.k] for text, passages in zip(texts, found, strict=True)]
        metrics.RERANK_SECONDS.observe(time.perf_counter() - started)
        return ordered


def _groups(keys: Sequence[Key]) -> Iterator[tuple[Key, list[int]]]:
    """Every different key with the places where it stands."""
    places: dict[Key, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    yield from places.items()
