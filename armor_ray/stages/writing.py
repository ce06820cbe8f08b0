"""Having questions written: by a local model on a Ray Data actor pool, or by the judge's endpoint within its budget."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy
from tqdm import tqdm

from armor_ray.config import GeneratorConfig, QuestionsConfig
from armor_ray.curation.curated import PROMPT_TOO_LONG
from armor_ray.curation.documents import Prompt, Written
from armor_ray.curation.judging import spent_budget
from armor_ray.judges.asking import ask_all
from armor_ray.judges.failures import Failure
from armor_ray.judges.request import ChatRequest
from armor_ray.judges.writing import TEMPLATE, one_turn, pairs_schema
from armor_ray.models.generators import load_writer
from armor_ray.models.generators.identity import generator_identity
from armor_ray.models.generators.protocol import SampledText, Sampling, WritingRequest
from armor_ray.stages.arithmetic import settled
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.context import Context
from armor_ray.stages.reply_cache import reply_cache
from armor_ray.stages.shards import Shards
from armor_ray.workspace import Workspace

_SCHEMA = pa.schema([("key", pa.binary(16)), ("text", pa.string()), ("cut", pa.bool_())])
_TIMEOUT_SECONDS, _MAX_RETRIES = 120.0, 6

Texts = dict[bytes, SampledText | None]


def write_over_endpoint(context: Context, prompts: Sequence[Prompt], questions: QuestionsConfig) -> Written:
    """Every prompt's reply from the endpoint of the section `judge`; paid replies come from its cache.

    Raises:
        ArmorError: no endpoint (nothing stands in for a writer), the budget is spent, or no request can succeed.
    """
    requests = [
        ChatRequest(
            messages=prompt,
            max_tokens=questions.max_new_tokens,
            temperature=questions.temperature,
            top_p=questions.top_p,
            schema=pairs_schema(questions.per_passage),
            timeout_seconds=_TIMEOUT_SECONDS,
            max_retries=_MAX_RETRIES,
        )
        for prompt in prompts
    ]
    with tqdm(total=len(requests), desc=TEMPLATE, unit=" passages", mininterval=5) as bar:
        asked = ask_all(requests, context.config.judge, reply_cache(context.workspace), advance=lambda done: bar.update(done))
    context.say(f"curate: {TEMPLATE} by {asked.by}: {asked.account}")
    if asked.failures[Failure.BUDGET]:
        raise spent_budget(TEMPLATE, asked.failures[Failure.BUDGET], len(requests))
    if asked.failures:
        context.say(f"curate: {asked.failures.total()} passages have no reply and are dropped; --force curate asks about them again")
    replies = [
        str(reply) if isinstance(reply, Failure) else SampledText(reply.text, reply.finish_reason == "length") for reply in asked.replies
    ]
    facts = {"by": asked.by, "engine": "endpoint", "endpoint": asked.endpoint, "account": asked.account.as_dict()}
    return _written(replies, questions, facts)


def write_on_actors(context: Context, prompts: Sequence[Prompt], questions: QuestionsConfig) -> Written:
    """Every prompt's reply from a local model on an actor pool; a killed run loses only the batches in flight.

    Raises:
        ArmorError: the model cannot be loaded, or the cluster can never hold it.
    """
    configured = questions.generator or context.config.generator
    generator = settled(context, configured)
    sampling = Sampling(questions.temperature, questions.top_p, questions.max_new_tokens)
    cache = WritingCache(context.workspace, generator, sampling)
    requests = [_request(prompt, context.config.seed) for prompt in prompts]
    _write_missing(context, generator, sampling, _missing_batches(requests, cache.load(), questions.batch_size))
    texts = cache.load()
    context.say(f"curate: {TEMPLATE} by {configured.model}: {len(requests)} passages")
    replies = [texts[_key(request)] or PROMPT_TOO_LONG for request in requests]
    return _written(replies, questions, {"by": configured.model, "engine": generator.engine, "dtype": generator.dtype, "account": None})


def _written(replies: Sequence[SampledText | str], questions: QuestionsConfig, facts: dict[str, Any]) -> Written:
    sampling = {"temperature": questions.temperature, "top_p": questions.top_p, "max_new_tokens": questions.max_new_tokens}
    return Written(list(replies), {**facts, **sampling, "replies": sum(isinstance(reply, SampledText) for reply in replies)})


def _request(prompt: Prompt, seed: int) -> WritingRequest:
    """The seed depends on the prompt alone, so what is written about a passage does not depend on other passages."""
    message = one_turn(prompt)
    digest = hashlib.blake2b(f"{seed}\0{message}".encode(), digest_size=8).digest()
    return WritingRequest(message, int.from_bytes(digest, "big") >> 1)  # engines take signed 64 bits


def _key(request: WritingRequest) -> bytes:
    return hashlib.blake2b(f"{request.seed}\0{request.message}".encode(), digest_size=16).digest()


class WritingCache:
    """Texts by request, one folder for each writer and sampling; every written batch is one shard."""

    def __init__(self, workspace: Workspace, generator: GeneratorConfig, sampling: Sampling) -> None:
        identity = [generator_identity(generator), sampling.temperature, sampling.top_p, sampling.max_new_tokens]
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        self._shards = Shards(workspace, f"cache/questions/{name}", _SCHEMA)

    def load(self) -> Texts:
        """All texts; None where the prompt did not fit the window."""
        return {key: None if text is None else SampledText(text, cut) for key, text, cut in self._shards.rows()}

    def append(self, requests: Sequence[WritingRequest], texts: Sequence[SampledText | None]) -> None:
        """Stores one batch."""
        self._shards.append(
            [
                (_key(request), text.text if text else None, text.cut if text else False)
                for request, text in zip(requests, texts, strict=True)
            ]
        )


def _missing_batches(requests: Sequence[WritingRequest], known: Texts, size: int) -> list[list[WritingRequest]]:
    """The batches of a run that has everything to do, less what is cached: an engine's texts may depend, by rounding, on their company."""
    batches = [requests[start : start + size] for start in range(0, len(requests), size)]
    missing = [[request for request in batch if _key(request) not in known] for batch in batches]
    return [batch for batch in missing if batch]


class WritingActor:
    """Loads the writer once, writes batches, and stores them itself: a kill loses only what was in flight."""

    def __init__(self, generator: GeneratorConfig, sampling: Sampling, workspace_uri: str) -> None:
        self._writer = load_writer(generator)
        self._sampling = sampling
        self._cache = WritingCache(Workspace(workspace_uri), generator, sampling)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        requests = [WritingRequest(message, seed) for message, seed in zip(batch["message"].tolist(), batch["seed"].tolist(), strict=True)]
        self._cache.append(requests, self._writer.write(requests, self._sampling))
        return {"written": np.array([len(requests)])}


def _write_missing(context: Context, generator: GeneratorConfig, sampling: Sampling, todo: list[list[WritingRequest]]) -> None:
    if not todo:
        return
    connect(context.workspace)
    resources = context.config.resources
    actors = plan_actors(resources, resources.score_actors, len(todo))
    blocks = [pa.table({"message": [r.message for r in batch], "seed": [r.seed for r in batch]}) for batch in todo]
    dataset = ray.data.from_arrow(blocks).map_batches(
        WritingActor,
        fn_constructor_args=(generator, sampling, context.workspace.uri),
        batch_size=None,
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    with user_errors(), tqdm(total=sum(map(len, todo)), desc=TEMPLATE, unit=" passages", mininterval=5) as bar:
        for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
            bar.update(int(batch["written"].sum()))
