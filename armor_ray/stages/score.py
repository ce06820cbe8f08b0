"""Stage `score`: the frozen LLM's log-likelihood of every answer given every passage of a pool, sharded by Ray Data.

Pairs are grouped by passage, because engines reuse a passage's prefix for all its questions. Actors write finished batches into the
utility cache themselves and return only counts: log-probabilities never travel, and a kill loses only what was in flight.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import ActorPoolStrategy
from tqdm import tqdm

from armor_ray.config import GeneratorConfig
from armor_ray.corpus.schemas import UTILITIES
from armor_ray.errors import ArmorError
from armor_ray.models.generators import load_generator
from armor_ray.models.generators.identity import generator_identity
from armor_ray.models.generators.protocol import ScoreRequest
from armor_ray.objectives.likelihoods import combine_answers
from armor_ray.stages.arithmetic import scoring_generator
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.plans import scored_splits
from armor_ray.stages.prepare import load_passages
from armor_ray.stages.utility_cache import Entry, UtilityCache, answer_key
from armor_ray.workspace import Draft, Workspace, read_parquet

STAGE = "score"
PAIRS_A_BATCH = 256
CLOSED_BOOK = -1
"""In place of a passage id: the answers without any passage."""


@dataclass(frozen=True, slots=True)
class Question:
    """The text side of an example, as scoring sees it."""

    text: str
    answers: tuple[str, ...]


class ScoreActor:
    """Loads the generator once and scores batches of (example number, passage id) pairs.

    Args:
        cache_uri: of the workspace that holds the utility cache.
    """

    def __init__(self, config: GeneratorConfig, workspace_uri: str, cache_uri: str, split: str) -> None:
        workspace = Workspace(workspace_uri)
        self._texts = load_passages(workspace, "text").column("text")
        self._questions = load_questions(workspace.local("examples"), split)
        self._generator = load_generator(config)
        self._cache = UtilityCache(Workspace(cache_uri), generator_identity(config))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        _, cut = self._score(batch["example"].tolist(), batch["passage_id"].tolist())
        return {"pairs": np.array([len(batch["example"])]), "cut": np.array([cut])}

    def score(self, examples: list[int], passage_ids: list[int]) -> dict[bytes, Entry]:
        """Scores pairs and stores them; returns their cache entries."""
        return self._score(examples, passage_ids)[0]

    def _score(self, examples: list[int], passage_ids: list[int]) -> tuple[dict[bytes, Entry], int]:
        """Entries, and how many passages were cut to fit."""
        requests = self._requests(examples, passage_ids)
        results = self._generator.score(requests)
        return self._cache.append(requests, results), sum(result.passage_tokens_cut > 0 for result in results)

    def _requests(self, examples: list[int], passage_ids: list[int]) -> list[ScoreRequest]:
        return [
            ScoreRequest(f"{e}/{p}", self._questions[e].text, _text(self._texts, p), self._questions[e].answers)
            for e, p in zip(examples, passage_ids, strict=True)
        ]


def _text(texts: pa.ChunkedArray, passage_id: int) -> str | None:
    return None if passage_id == CLOSED_BOOK else texts[passage_id].as_py()


def load_questions(examples: Path, split: str) -> list[Question]:
    """Questions of one split of the examples artifact, in its order."""
    table = read_parquet(examples / f"{split}.parquet", "prepare")
    return [Question(q, tuple(a)) for q, a in zip(table["question"].to_pylist(), table["answers"].to_pylist(), strict=True)]


def run_all(context: Context, todo: list[Plan]) -> None:
    """Scores what the cache lacks, then assembles the artifact from it.

    Raises:
        ArmorError: an engine that cannot score, or not a single answer of a split that could be scored.
    """
    [plan] = todo
    if context.config.generator.engine == "openai":
        message = "the openai engine cannot score: its API gives no prompt log-probabilities"
        raise ArmorError(message, where="generator.engine", hint="use hf or vllm for scoring")
    generator = scoring_generator(context)
    cache = UtilityCache(context.cache, generator_identity(generator))
    cache.describe()
    pools = [load_pairs(context, split) for split in scored_splits(context.config)]
    for pairs in pools:
        score_missing(context, generator, pairs, cache.load())
    entries = cache.load()
    tables = {pairs.split: _utilities(pairs, entries) for pairs in pools}
    errors = {split: _count_errors(table, split) for split, table in tables.items()}

    def write(draft: Draft) -> None:
        draft.details["dtype"] = generator.dtype
        for split, table in tables.items():
            pq.write_table(table, draft.path / f"{split}.parquet")
            draft.rows[split] = len(table)
            draft.rows[f"{split} errors"] = errors[split]

    context.publish(plan, write)
    if any(errors.values()):
        total = sum(errors.values())
        context.say(f"score: {total} answers could not be scored; see the error column of {context.workspace.location('utilities')}")


@dataclass(frozen=True, slots=True)
class Pairs:
    """All (example number, passage id) pairs of a split's pools, with their texts."""

    split: str
    pairs: list[tuple[int, int]]
    example_ids: list[str]
    questions: list[Question]
    texts: pa.ChunkedArray

    def keys(self, example: int, passage: int) -> list[bytes]:
        """Cache keys of the pair's answers."""
        question, text = self.questions[example], _text(self.texts, passage)
        return [answer_key(question.text, text, answer) for answer in question.answers]

    def closed_book(self) -> Pairs:
        """Each question once, without a passage."""
        return replace(self, pairs=[(example, CLOSED_BOOK) for example in dict.fromkeys(example for example, _ in self.pairs)])


def load_pairs(context: Context, split: str) -> Pairs:
    """The pools of one split of the candidates artifact."""
    table = read_parquet(context.local("candidates") / f"{split}.parquet", "candidates")
    pairs = [(example, passage) for example, pool in enumerate(table["passage_ids"].to_pylist()) for passage in pool]
    questions = load_questions(context.local("examples"), split)
    return Pairs(split, pairs, table["example_id"].to_pylist(), questions, load_passages(context.workspace, "text").column("text"))


def missing_batches(pairs: Pairs, known: Container[bytes]) -> list[list[tuple[int, int]]]:
    """(passage id, example number) pairs that are not cached, as batches of at most `PAIRS_A_BATCH`.

    The batches are those of a run that has everything to do, less what is cached. An engine's numbers depend, by rounding, on what is
    scored together; so after a kill, which loses whole batches, the others are scored in the company that they would have had.
    """
    # By passage: its questions share the passage's prefix.
    ordered = sorted((p, e) for e, p in pairs.pairs)
    batches = [ordered[start : start + PAIRS_A_BATCH] for start in range(0, len(ordered), PAIRS_A_BATCH)]
    missing = [[(p, e) for p, e in batch if any(key not in known for key in pairs.keys(e, p))] for batch in batches]
    return [batch for batch in missing if batch]


def score_missing(context: Context, generator: GeneratorConfig, pairs: Pairs, known: Container[bytes]) -> None:
    """Scores the pairs that are not `known` on an actor pool, into the cache."""
    todo = missing_batches(pairs, known)
    if not todo:
        return
    count = sum(map(len, todo))
    if count < len(pairs.pairs):
        context.say(f"score: {len(pairs.pairs) - count} of {len(pairs.pairs)} {pairs.split} pairs are cached")
    connect(context.workspace)
    resources = context.config.resources
    actors = plan_actors(resources, resources.score_actors, len(todo))
    blocks = [pa.table({"passage_id": [p for p, _ in batch], "example": [e for _, e in batch]}) for batch in todo]
    dataset = ray.data.from_arrow(blocks).map_batches(
        ScoreActor,
        fn_constructor_args=(generator, context.workspace.uri, context.cache.uri, pairs.split),
        batch_size=None,
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    cut = 0
    with user_errors(), tqdm(total=count, desc=f"score {pairs.split}", unit=" pairs", mininterval=5) as bar:
        for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
            bar.update(int(batch["pairs"].sum()))
            cut += int(batch["cut"].sum())
    if cut:
        context.say(f"score: {cut} passages were cut to fit generator.max_length")


def _utilities(pairs: Pairs, entries: dict[bytes, Entry]) -> pa.Table:
    """One row an answer, pool by pool."""
    rows = [
        (pairs.example_ids[example], passage, number, *entries[key])
        for example, passage in pairs.pairs
        for number, key in enumerate(pairs.keys(example, passage))
    ]
    columns = zip(*rows, strict=True)  # every pool holds passages, so there are rows
    return pa.table([pa.array(c, type=f.type) for c, f in zip(columns, UTILITIES, strict=True)], schema=UTILITIES)


def _count_errors(table: pa.Table, split: str) -> int:
    errors = table["error"].drop_null()
    if len(errors) == len(table):
        message = f"none of {len(table)} {split} answers could be scored ({errors[0].as_py()})"
        raise ArmorError(message, where="score", hint="see generator.max_length and the data")
    return len(errors)


def combined_likelihood(entries: list[Entry], normalised: bool) -> float | None:
    """One value a pair from its answers' entries; None when none of them could be scored."""
    scored = [(value, tokens) for value, tokens, _ in entries if value is not None and tokens]
    if not scored:
        return None
    values, tokens = zip(*scored, strict=True)
    return combine_answers(values, tokens, normalised)
