"""Stage `answer`: the frozen LLM answers the first test questions closed book and over each method's retrieved passages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import ActorPoolStrategy
from tqdm import tqdm

from armor_ray.config import GeneratorConfig
from armor_ray.evaluation.labels import BASE_RAG, CLOSED_BOOK
from armor_ray.models.generators import load_generator
from armor_ray.models.generators.identity import generator_identity
from armor_ray.models.generators.protocol import GenerationRequest
from armor_ray.stages.cluster import connect, plan_actors
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.rankings import QueryVectors, Rankers, adapted_query_vectors, base_query_vectors, load_split
from armor_ray.stages.train import Variant, variants
from armor_ray.stages.trials import INTERPOLATED
from armor_ray.workspace import Draft, read_parquet

STAGE = "answer"
_QUESTIONS_A_BATCH = 8


@dataclass(frozen=True, slots=True)
class AnsweredMethod:
    """A row of the generation table: its name, and the retriever behind it (None: base encoder or no retrieval)."""

    method: str
    retriever: str | None

    @property
    def artifact(self) -> str:
        return f"answers/{self.method.replace('/', '-')}"


def methods(context: Context) -> list[AnsweredMethod]:
    """Closed book, Base RAG, and the main recipe's retrievers (first seed)."""
    config = context.config
    if not config.evaluation.generation_questions:
        return []
    found = [AnsweredMethod(CLOSED_BOOK, None), AnsweredMethod(BASE_RAG, None)]
    for variant in variants(config):
        if variant.recipe == config.objective.recipe:
            found += _of_variant(variant, config.evaluation.seeds[0], bool(config.training.interpolate))
    return found


def _of_variant(variant: Variant, seed: int, interpolated: bool) -> list[AnsweredMethod]:
    plain = AnsweredMethod(variant.method, variant.artifact(seed))
    return [plain, AnsweredMethod(f"{variant.method}/interpolated", variant.artifact(seed, True))] if interpolated else [plain]


def plans(context: Context) -> list[Plan]:
    config = context.config
    settings = {
        "generator": generator_identity(config.generator),
        "max_new_tokens": config.generator.max_new_tokens,
        "context_characters": config.generator.context_characters,
        "questions": config.evaluation.generation_questions,
        "top_k": config.evaluation.generation_top_k,
    }
    planned = []
    for method in methods(context):
        inputs = ["examples"] if method.method == CLOSED_BOOK else ["examples", "passages", "candidates", "embeddings"]
        inputs += [method.retriever.removesuffix(INTERPOLATED)] if method.retriever else []
        planned.append(Plan(method.artifact, STAGE, {**settings, "method": method.method}, context.inputs(*inputs)))
    return planned


class AnswerActor:
    """Loads the generator once and answers batches of questions."""

    def __init__(self, config: GeneratorConfig) -> None:
        self._generator = load_generator(config)

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows = batch.to_pylist()
        requests = [GenerationRequest(row["question"], tuple(row["passages"])) for row in rows]
        return pa.table({"number": batch["number"], "answer": self._generator.generate(requests)})


def run_all(context: Context, todo: list[Plan]) -> None:
    """Answers one method after the other; each is published as soon as it is complete."""
    connect(context.workspace)
    wanted = {plan.name: plan for plan in todo}
    chosen = [method for method in methods(context) if method.artifact in wanted]
    rankers = Rankers(context.workspace)
    retrievers = [method.retriever for method in chosen if method.retriever]
    vectors = adapted_query_vectors(context.workspace, retrievers)
    for method in chosen:
        queries = vectors[method.retriever] if method.retriever else base_query_vectors(context.workspace)
        _answer(context, wanted[method.artifact], method, queries, rankers)


def _answer(context: Context, plan: Plan, method: AnsweredMethod, queries: QueryVectors, rankers: Rankers) -> None:
    config = context.config
    split = load_split(context.workspace, "test")
    count = min(config.evaluation.generation_questions, len(split.questions))
    passages: list[list[str]] = [[] for _ in range(count)]
    if method.method != CLOSED_BOOK:
        ranking = rankers.dense(queries["test"][:count])
        passages = [[rankers.texts[row] for row in rows[: config.evaluation.generation_top_k]] for rows in ranking.rows_QK]
    requests = pa.table(
        {
            "number": pa.array(range(count), pa.int64()),
            "question": split.questions[:count],
            "passages": pa.array(passages, pa.list_(pa.string())),
        }
    )
    answers = _generate(context, requests, method.method)

    def write(draft: Draft) -> None:
        pq.write_table(pa.table({"example_id": split.example_ids[:count], "answer": answers}), draft.path / "answers.parquet")
        draft.rows["answers"] = count

    context.publish(plan, write)


def _generate(context: Context, requests: pa.Table, label: str) -> list[str]:
    resources = context.config.resources
    batches = -(-len(requests) // _QUESTIONS_A_BATCH)
    actors = plan_actors(resources, resources.score_actors, batches)
    dataset = ray.data.from_arrow(requests).repartition(batches).map_batches(
        AnswerActor,
        fn_constructor_args=(context.config.generator,),
        batch_size=_QUESTIONS_A_BATCH,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    answers = np.empty(len(requests), object)
    with tqdm(total=len(requests), desc=f"answer {label}", unit=" questions", mininterval=2) as bar:
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            answers[batch["number"].to_numpy()] = batch["answer"].to_pylist()
            bar.update(len(batch))
    return answers.tolist()


def load_answers(context: Context, method: AnsweredMethod) -> list[str]:
    return read_parquet(context.local(method.artifact) / "answers.parquet", STAGE)["answer"].to_pylist()
