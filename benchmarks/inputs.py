"""What benchmarks but (e) and (f) run on: TeleQuAD as `make eval` prepares it, with the base encoder's pools of its training questions.

Shape legend: Q questions, C passages, D embedding dimension.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from armor_ray.config import Config, load_config
from armor_ray.corpus.prepare import prepare
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.generators.protocol import ScoreRequest
from armor_ray.models.hardware import choose_dtype
from armor_ray.retrieval.dense import build_index
from armor_ray.stages.candidates import retrieve_pools
from benchmarks.measure import Cost, timed

CONFIGS = Path(__file__).parents[1] / "jobs" / "configs"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of the data each benchmark takes.

    Attributes:
        groups: passages whose pairs (a) scores.
        passages: of the test specifications that (b) embeds; None: all.
        steps: authors' steps that (c) takes.
        ray_passages: that (e) embeds.
        documents: that (f) prepares, and then ten times as many.
        repeats: of each race; medians count.
    """

    groups: int
    passages: int | None
    steps: int
    ray_passages: int
    documents: int
    repeats: int


SCALES = {
    "small": Scale(groups=4, passages=256, steps=1, ray_passages=1000, documents=8500, repeats=1),
    "full": Scale(groups=8, passages=1000, steps=3, ray_passages=10_000, documents=10_000, repeats=3),
}


@dataclass(frozen=True, slots=True)
class Questions:
    """One split, column by column; `positives` are passage rows."""

    ids: list[str]
    texts: list[str]
    answers: list[tuple[str, ...]]
    positives: list[list[int]]
    doc_ids: list[str]

    @classmethod
    def read(cls, table: pa.Table) -> Questions:
        ids, texts, answers, positives, doc_ids = (
            table[name].to_pylist() for name in ("example_id", "question", "answers", "positive_ids", "doc_id")
        )
        return cls(ids, texts, [tuple(row) for row in answers], positives, doc_ids)


@dataclass(frozen=True, slots=True)
class Inputs:
    """TeleQuAD, split and embedded.

    Attributes:
        vectors_CD: unit vectors of all passages by the base encoder, in the fastest arithmetic the CPU has.
        queries: base query vectors [Q, D] of train and validation.
        query_cost: of computing these.
        pools: base-retrieved and gold passage rows of every training question.
        retrieval_cost: of building the index and searching it.
    """

    config: Config
    encoder: BiEncoder
    passages: pa.Table
    splits: dict[str, Questions]
    vectors_CD: np.ndarray
    queries: dict[str, np.ndarray]
    query_cost: Cost
    pools: list[list[int]]
    retrieval_cost: Cost

    def text(self, passage: int) -> str:
        return self.passages["text"][passage].as_py()

    def request(self, question: int, passage: int) -> ScoreRequest:
        """The scoring request of a training question and a passage."""
        train = self.splits["train"]
        return ScoreRequest(f"{train.ids[question]}/{passage}", train.texts[question], self.text(passage), train.answers[question])


def load_inputs(data: Path) -> Inputs:
    """TeleQuAD below `data` with the settings of `jobs/configs/telequad.yaml`.

    Raises:
        ArmorError: the data set is not there or damaged.
    """
    return make_inputs(load_config(CONFIGS / "telequad.yaml", [f"data.path={data / 'telequad'}"]))


def make_inputs(config: Config) -> Inputs:
    """Reads the configured data set, embeds and retrieves."""
    prepared = prepare(config.data, config.seed)
    splits = {name: Questions.read(table) for name, table in prepared.examples.items()}
    encoder = BiEncoder.load(config.encoder)
    fast = choose_dtype("auto", encoder.device)
    vectors_CD = encoder.encode(prepared.passages["text"].to_pylist(), "passage", config.encoder.batch_tokens, fast)
    query_cost, queries = timed(lambda: {name: encoder.encode(splits[name].texts, "query") for name in ("train", "validation")})
    retrieval_cost, pools = timed(lambda: _pools(config, vectors_CD, queries["train"], splits["train"]))
    return Inputs(config, encoder, prepared.passages, splits, vectors_CD, queries, query_cost, pools, retrieval_cost)


def _pools(config: Config, vectors_CD: np.ndarray, queries_QD: np.ndarray, train: Questions) -> list[list[int]]:
    index = build_index(vectors_CD, config.index)
    return [rows for rows, _, _ in retrieve_pools(index, vectors_CD, queries_QD, train.positives, config.candidates.pool_size, True)]


@dataclass(frozen=True, slots=True)
class PassageSample:
    """Passages with all the questions whose pools hold them, as (question, passage) pairs grouped by passage; and what it stands for."""

    pairs: list[tuple[int, int]]
    num_passages: int
    whole_pairs: int
    whole_passages: int

    def describe(self) -> str:
        here, whole = (len(self.pairs) / self.num_passages, self.whole_pairs / self.whole_passages)
        return (
            f"{len(self.pairs)} pairs of {self.num_passages} passages, {here:.1f} questions a passage; "
            f"all training pools: {self.whole_pairs} pairs of {self.whole_passages} passages, {whole:.1f} questions a passage"
        )


def sample_passages(pools: Sequence[Sequence[int]], count: int) -> PassageSample:
    """`count` passages at even steps through all pooled passages ordered by how many questions share them.

    A passage comes with *all* its questions, so the sample shares passages as a whole run does; single pairs drawn at random would not.
    """
    questions: dict[int, list[int]] = defaultdict(list)
    for question, pool in enumerate(pools):
        for passage in pool:
            questions[passage].append(question)
    ordered = sorted(questions, key=lambda passage: (len(questions[passage]), passage))
    chosen = [ordered[int((i + 0.5) * len(ordered) / count)] for i in range(count)]
    pairs = [(question, passage) for passage in chosen for question in questions[passage]]
    return PassageSample(pairs, count, sum(map(len, pools)), len(questions))
