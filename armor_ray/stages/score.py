"""Stage `score`: the frozen LLM's log-likelihood of every answer given every passage of a pool, sharded by Ray Data.

Pairs are grouped by passage, because engines reuse a passage's prefix for all its questions. Actors write finished batches into the
utility cache themselves and return only counts: log-probabilities never travel, and a kill loses only what was in flight.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import ActorPoolStrategy
from tqdm import tqdm

from armor_ray.config import Config, GeneratorConfig
from armor_ray.corpus.schemas import UTILITIES
from armor_ray.errors import ArmorError
from armor_ray.models.generators import load_generator
from armor_ray.models.generators.identity import generator_identity
from armor_ray.models.generators.protocol import ScoreRequest
from armor_ray.objectives.likelihoods import combine_answers
from armor_ray.stages.cluster import connect, plan_actors
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.utility_cache import Entry, UtilityCache, answer_key
from armor_ray.training.table import QuestionPools
from armor_ray.workspace import Draft, Workspace, read_parquet

STAGE = "score"
_PAIRS_A_BATCH = 256


def plans(context: Context) -> list[Plan]:
    identity = generator_identity(context.config.generator)
    config = {"generator": identity, "splits": scored_splits(context.config)}
    return [Plan("utilities", STAGE, config, context.inputs("candidates", "examples", "passages"))]


def scored_splits(config: Config) -> list[str]:
    """Training pools always; validation pools only where the temperature schedule trains on them."""
    return ["train", "validation"] if config.objective.temperature_schedule == "alternating" else ["train"]


@dataclass(frozen=True, slots=True)
class Question:
    """The text side of an example, as scoring sees it."""

    text: str
    answers: tuple[str, ...]


class ScoreActor:
    """Loads the generator once and scores batches of (example number, passage id) pairs."""

    def __init__(self, config: GeneratorConfig, workspace_uri: str, split: str) -> None:
        workspace = Workspace(workspace_uri)
        self._texts = pq.read_table(workspace.local("passages") / "passages.parquet", columns=["text"], memory_map=True).column("text")
        self._questions = load_questions(workspace.local("examples"), split)
        self._generator = load_generator(config)
        self._cache = UtilityCache(workspace, generator_identity(config))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        entries = self.score(batch["example"].tolist(), batch["passage_id"].tolist())
        errors = sum(error is not None for _, _, error in entries.values())
        return {"pairs": np.array([len(batch["example"])]), "errors": np.array([errors]), "cut": np.array([self._cut])}

    def score(self, examples: list[int], passage_ids: list[int]) -> dict[bytes, Entry]:
        """Scores pairs and stores them; returns their cache entries."""
        requests = [
            ScoreRequest(f"{e}/{p}", self._questions[e].text, self._texts[p].as_py(), self._questions[e].answers)
            for e, p in zip(examples, passage_ids, strict=True)
        ]
        results = self._generator.score(requests)
        self._cut = sum(result.passage_tokens_cut > 0 for result in results)
        return self._cache.append(requests, results)


def load_questions(examples: Path, split: str) -> list[Question]:
    table = read_parquet(examples / f"{split}.parquet", "prepare")
    return [Question(q, tuple(a)) for q, a in zip(table["question"].to_pylist(), table["answers"].to_pylist(), strict=True)]


def run(context: Context, plan: Plan) -> None:
    if context.config.generator.engine == "openai":
        message = "the openai engine cannot score: its API gives no prompt log-probabilities"
        raise ArmorError(message, where="generator.engine", hint="use hf or vllm for scoring")
    cache = UtilityCache(context.workspace, generator_identity(context.config.generator))
    cache.describe()
    for split in scored_splits(context.config):
        _score_missing(context, cache, split)
    entries = cache.load()

    def write(draft: Draft) -> None:
        for split in scored_splits(context.config):
            table = _utilities(context, split, entries)
            pq.write_table(table, draft.path / f"{split}.parquet")
            draft.rows[split] = len(table)
            draft.rows[f"{split} errors"] = len(table) - table["error"].null_count

    manifest = context.publish(plan, write)
    errors = sum(rows for name, rows in manifest.rows.items() if name.endswith("errors"))
    if errors:
        context.say(f"score: {errors} answers could not be scored; see the error column of {context.workspace.path('utilities')}")


def _score_missing(context: Context, cache: UtilityCache, split: str) -> None:
    pairs = _pairs(context, split)
    known = cache.load()
    passages = _passage_texts(context)
    questions = load_questions(context.local("examples"), split)
    todo = [
        (p, e)
        for e, p in pairs
        if any(answer_key(questions[e].text, passages[p].as_py(), answer) not in known for answer in questions[e].answers)
    ]
    if not todo:
        return
    if len(todo) < len(pairs):
        context.say(f"score: {len(pairs) - len(todo)} of {len(pairs)} {split} pairs are cached")
    todo.sort()
    connect(context.workspace)
    resources = context.config.resources
    actors = plan_actors(resources, resources.score_actors, -(-len(todo) // _PAIRS_A_BATCH))
    table = pa.table({"passage_id": [p for p, _ in todo], "example": [e for _, e in todo]})
    dataset = ray.data.from_arrow(table).repartition(-(-len(todo) // _PAIRS_A_BATCH)).map_batches(
        ScoreActor,
        fn_constructor_args=(context.config.generator, context.workspace.uri, split),
        batch_size=None,
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    cut = 0
    with tqdm(total=len(todo), desc=f"score {split}", unit=" pairs", mininterval=5) as bar:
        for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
            bar.update(int(batch["pairs"].sum()))
            cut += int(batch["cut"].sum())
    if cut:
        context.say(f"score: {cut} passages were cut to fit generator.max_length")


def _pairs(context: Context, split: str) -> list[tuple[int, int]]:
    pools = read_parquet(context.local("candidates") / f"{split}.parquet", "candidates")["passage_ids"].to_pylist()
    return [(example, passage) for example, pool in enumerate(pools) for passage in pool]


def _passage_texts(context: Context) -> pa.ChunkedArray:
    return pq.read_table(context.local("passages") / "passages.parquet", columns=["text"], memory_map=True).column("text")


def _utilities(context: Context, split: str, entries: dict[bytes, Entry]) -> pa.Table:
    texts = _passage_texts(context)
    questions = load_questions(context.local("examples"), split)
    ids = read_parquet(context.local("candidates") / f"{split}.parquet", "candidates")["example_id"].to_pylist()
    rows: list[tuple[Any, ...]] = []
    for example, passage in _pairs(context, split):
        question = questions[example]
        for i, answer in enumerate(question.answers):
            value, tokens, error = entries[answer_key(question.text, texts[passage].as_py(), answer)]
            rows.append((ids[example], passage, i, value, tokens, error))
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in UTILITIES]
    return pa.table([pa.array(c, type=f.type) for c, f in zip(columns, UTILITIES, strict=True)], schema=UTILITIES)


class RayPairScorer:
    """`PairScorer` for `candidates.refresh`: sends unseen pairs to score actors, remembers every pair of the workspace's cache.

    Args:
        actors: handles of `ScoreActor`s for the split being trained.
        texts: the corpus' passages.
        normalised: divide by answer tokens before combining answers (`objective.length_normalised`).
    """

    def __init__(self, actors: list[Any], workspace_uri: str, config: GeneratorConfig, questions: list[Question], normalised: bool) -> None:
        workspace = Workspace(workspace_uri)
        self._actors = actors
        self._questions = questions
        self._texts = pq.read_table(workspace.local("passages") / "passages.parquet", columns=["text"], memory_map=True).column("text")
        self._known = UtilityCache(workspace, generator_identity(config)).load()
        self._normalised = normalised

    def __call__(self, pools: QuestionPools, questions: list[int], rows: list[int]) -> list[float | None]:
        keys = [self._keys(q, r) for q, r in zip(questions, rows, strict=True)]
        missing = [i for i, pair in enumerate(keys) if any(key not in self._known for key in pair)]
        shares: dict[int, list[int]] = defaultdict(list)
        for i in missing:
            shares[rows[i] % len(self._actors)].append(i)
        calls = [
            self._actors[a].score.remote([questions[i] for i in share], [rows[i] for i in share]) for a, share in shares.items()
        ]
        for entries in ray.get(calls):
            self._known.update(entries)
        return [self._combined(pair) for pair in keys]

    def _keys(self, question: int, row: int) -> list[bytes]:
        passage = self._texts[row].as_py()
        return [answer_key(self._questions[question].text, passage, answer) for answer in self._questions[question].answers]

    def _combined(self, keys: list[bytes]) -> float | None:
        return combined_likelihood([self._known[key] for key in keys], self._normalised)


def combined_likelihood(entries: list[Entry], normalised: bool) -> float | None:
    """One value a pair from its answers' entries; None when none of them could be scored."""
    scored = [(value, tokens) for value, tokens, _ in entries if value is not None and tokens]
    if not scored:
        return None
    values, tokens = zip(*scored, strict=True)
    return combine_answers(np.array(values, np.float64), np.array(tokens), normalised)
