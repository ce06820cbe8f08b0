"""Stage `answer`: the frozen LLM answers the first test questions closed book and over each method's retrieved passages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import ActorPoolStrategy
from tqdm import tqdm

from armor_ray.config import GeneratorConfig
from armor_ray.evaluation.labels import CLOSED_BOOK
from armor_ray.models.generators import load_generator
from armor_ray.models.generators.protocol import GenerationRequest
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.methods import AnsweredMethod, answered_methods
from armor_ray.stages.rankings import Rankers, adapted_query_vectors, base_query_vectors, load_split
from armor_ray.workspace import Draft, read_parquet

STAGE = "answer"
_QUESTIONS_A_BATCH = 8


class AnswerActor:
    """Loads the generator once and answers batches of questions."""

    def __init__(self, config: GeneratorConfig) -> None:
        self._generator = load_generator(config)

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows = batch.to_pylist()
        requests = [GenerationRequest(row["question"], tuple(row["passages"])) for row in rows]
        return pa.table({"method": batch["method"], "number": batch["number"], "answer": self._generator.generate(requests)})


def run_all(context: Context, todo: list[Plan]) -> None:
    """Answers all methods in one pass, so that the generator is loaded once; each is published as soon as it is complete."""
    connect(context.workspace)
    wanted = {plan.name: plan for plan in todo}
    chosen = {method.method: method for method in answered_methods(context.config) if method.artifact in wanted}
    split = load_split(context.workspace, "test")
    count = min(context.config.evaluation.generation_questions, len(split.questions))
    passages = _retrieved(context, list(chosen.values()), count)
    answers: dict[str, dict[int, str]] = {name: {} for name in chosen}
    with user_errors(), tqdm(total=count * len(chosen), desc="answer", unit=" answers", mininterval=2) as bar:
        for batch in _generate(context, _batches(split.questions[:count], passages)):
            names, numbers, texts = (batch[column].to_pylist() for column in ("method", "number", "answer"))
            for name, number, text in zip(names, numbers, texts, strict=True):
                answers[name][number] = text
            bar.update(len(batch))
            for name in (name for name in set(names) if len(answers[name]) == count):
                found = [answers[name][number] for number in range(count)]
                _publish(context, wanted[chosen[name].artifact], pa.table({"example_id": split.example_ids[:count], "answer": found}))


def _retrieved(context: Context, methods: list[AnsweredMethod], count: int) -> dict[str, list[list[str]]]:
    """Per method, the passages in the prompt of each question; none for a closed book."""
    rankers = Rankers(context.workspace)
    vectors = adapted_query_vectors(context.workspace, [method.retriever for method in methods if method.retriever])
    passages: dict[str, list[list[str]]] = {}
    for method in methods:
        if method.method == CLOSED_BOOK:
            passages[method.method] = [[] for _ in range(count)]
            continue
        queries = vectors[method.retriever] if method.retriever else base_query_vectors(context.workspace)
        own = rankers.of(method.retriever) if method.retriever else rankers
        top_QK = own.dense(queries["test"][:count]).rows_QK[:, : context.config.evaluation.generation_top_k]
        passages[method.method] = [[rankers.text(row) for row in rows] for rows in top_QK]
    return passages


def _batches(questions: list[str], passages: dict[str, list[list[str]]]) -> list[pa.Table]:
    """Method by method, `_QUESTIONS_A_BATCH` questions each. Fixed, as greedy decoding may depend on what is decoded together."""
    tables = []
    for method, contexts in passages.items():
        for start in range(0, len(questions), _QUESTIONS_A_BATCH):
            numbers = range(len(questions))[start : start + _QUESTIONS_A_BATCH]
            columns = {
                "method": [method] * len(numbers),
                "number": pa.array(numbers, pa.int64()),
                "question": [questions[i] for i in numbers],
                "passages": pa.array([contexts[i] for i in numbers], pa.list_(pa.string())),
            }
            tables.append(pa.table(columns))
    return tables


def _generate(context: Context, batches: list[pa.Table]) -> Iterator[pa.Table]:
    """Answered batches, in whatever order they are done."""
    resources = context.config.resources
    actors = plan_actors(resources, resources.score_actors, len(batches))
    dataset = ray.data.from_arrow(batches).map_batches(
        AnswerActor,
        fn_constructor_args=(context.config.generator,),
        batch_size=None,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors.count),
        **actors.options,
    )
    yield from cast("Iterator[pa.Table]", dataset.iter_batches(batch_size=None, batch_format="pyarrow"))


def _publish(context: Context, plan: Plan, answers: pa.Table) -> None:
    def write(draft: Draft) -> None:
        pq.write_table(answers, draft.path / "answers.parquet")
        draft.rows["answers"] = len(answers)

    context.publish(plan, write)


def load_answers(context: Context, method: AnsweredMethod) -> list[str]:
    """A method's published answers, to the first test questions in order."""
    return read_parquet(context.local(method.artifact) / "answers.parquet", STAGE)["answer"].to_pylist()
