"""Requests made from the API's own description, valid and hostile ones, are answered as it says; a tiny encoder behind ASGI, no Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from evaluated_workspace import publish_evaluation
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from serving_workspace import QUESTIONS, Served, build_workspace

from armor_ray.serving.api import build_api
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.feedback import FeedbackLog
from armor_ray.serving.retriever import Retriever
from armor_ray.serving.schemas import Passage
from armor_ray.serving.service import Service
from armor_ray.workspace import Workspace

# What the description cannot know: with it, most valid requests are answered.
SETTLED: dict[str, dict[str, Any]] = {
    "/v1/retrieve": {"query": QUESTIONS[0], "queries": None, "k": 3},
    "/v1/embeddings": {"model": "tiny", "dimensions": None},
    "/v1/answer": {"k": 3, "filter": None},
    "/v1/feedback": {"passage_id": 3},
}
OK_OR_REFUSED = {200, 201, 400, 404, 405, 413, 422}
CHECKS = [content_type_conformance, negative_data_rejection, response_schema_conformance, status_code_conformance, unsupported_method]


class FirstPassage:
    """A generator that cites the best passage and says no more."""

    model = "first-passage"

    async def stream(self, question: str, passages: Sequence[Passage]) -> AsyncIterator[str]:
        yield f"[{passages[0].passage_id}]"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Served:
    return build_workspace(tmp_path_factory.mktemp("openapi") / "workspace", tiny_bert)


@pytest.fixture(scope="module")
def description(served: Served) -> Any:
    """The API with every route that there is."""
    workspace = Workspace(str(served.folder))
    publish_evaluation(workspace, {"e0": (QUESTIONS[0], ["w1"], [0], 0.1, 0.5)})
    arguments = ServingArguments.model_validate({"workspace": workspace.uri, "compare": True, "fusion": {"weight": 0.5}})
    service = Service(Retriever.open(workspace, arguments), arguments)
    api = build_api(service, FirstPassage(), FeedbackLog(served.folder / "qa.jsonl"))  # type: ignore[arg-type]
    return schemathesis.openapi.from_asgi("/openapi.json", api)


def ask(description: Any, method: str, path: str, mode: GenerationMode, count: int, settled: dict[str, Any] | None = None) -> Counter[int]:
    """Makes and checks up to `count` requests, the same every time; how they were answered.

    Args:
        settled: fields of every body.
    """
    statuses: Counter[int] = Counter()

    @settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=description[path][method].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        if settled is not None:
            assert isinstance(case.body, dict)
            case.body.update(settled)
        answer = case.call_and_validate(checks=CHECKS)
        statuses[answer.status_code] += 1
        assert not any(inside in answer.text for inside in ("Traceback", "/workspace", ".py"))

    check()
    assert set(statuses) <= OK_OR_REFUSED
    return statuses


@pytest.mark.parametrize("path", SETTLED)
def test_requests_against_the_description_are_refused_as_it_says(description: Any, path: str) -> None:
    assert ask(description, "POST", path, GenerationMode.NEGATIVE, 80)[422] > 30


@pytest.mark.parametrize("path", SETTLED)
def test_requests_after_the_description_are_answered_as_it_says(description: Any, path: str) -> None:
    statuses = ask(description, "POST", path, GenerationMode.POSITIVE, 60, SETTLED[path])
    assert statuses[200] + statuses[201] > 5


@pytest.mark.parametrize("path", ["/health", "/ready", "/info", "/metrics", "/v1/examples", "/v1/report"])
def test_what_takes_no_body_answers_as_described(description: Any, path: str) -> None:
    assert set(ask(description, "GET", path, GenerationMode.POSITIVE, 3)) == {200}
