"""The page's HTTP side: what is open, what the browser is forbidden, and which examples the evaluation gives."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from evaluated_workspace import REPORT, VERSION, publish_evaluation, report_file
from fastapi import FastAPI
from fastapi.testclient import TestClient

from armor_ray.evaluation.labels import method_of
from armor_ray.serving.evaluated import read_examples
from armor_ray.serving.page import build_router
from armor_ray.stages.methods import Variant
from armor_ray.workspace import Workspace

EXAMPLES = {
    "e0": ("same", ["a"], [1], 0.5, 0.5),
    "e1": ("up a little", ["a"], [1], 0.5, 1.0),
    "e2": ("found", ["b", "c"], [2, 3], 0.0, 1 / 3),
    "e3": ("lost", ["d"], [4], 1.0, 0.0),
    "e4": ("down", ["d"], [4], 1 / 2, 1 / 10),
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path / "workspace"))


def client_of(workspace: Workspace) -> TestClient:
    api = FastAPI()
    api.include_router(build_router(workspace, lambda: VERSION))
    return TestClient(api)


def test_examples_are_those_whose_best_gold_passage_moved_most(workspace):
    publish_evaluation(workspace, EXAMPLES)
    found = client_of(workspace).get("/v1/examples").json()
    assert (found["absent"], found["method"], found["depth"]) == (None, "ARMOR", 10)
    assert [example["question"] for example in found["helped"]] == ["up a little", "found"]
    assert found["helped"][1] == {"question": "found", "answers": ["b", "c"], "gold": [2, 3], "before": None, "after": 3}
    assert [(example["question"], example["before"], example["after"]) for example in found["hurt"]] == [("lost", 1, None), ("down", 2, 10)]


def test_a_report_about_another_encoder_gives_no_examples_and_says_so(workspace):
    assert "no evaluation report" in read_examples(workspace, VERSION).absent
    publish_evaluation(workspace, EXAMPLES, fingerprint="of-an-older-training")
    for version in (VERSION, "somebody-elses@print"):
        found = read_examples(workspace, version)
        assert "not about the served encoder" in found.absent
        assert found.helped == found.hurt == []


@pytest.mark.parametrize("interpolated", [False, True])
@pytest.mark.parametrize("variant", [Variant("armor_uae"), Variant("static_reg", swept=True)])
def test_a_retrievers_name_leads_back_to_its_row(variant, interpolated):
    name = variant.artifact(12, interpolated).removeprefix("retrievers/")
    assert method_of(name) == (variant.method + ("/interpolated" if interpolated else ""), 12)
    assert method_of(f"{name}-mine") is None


def test_the_page_may_load_and_run_nothing_but_its_own_files(workspace):
    publish_evaluation(workspace, EXAMPLES)
    client = client_of(workspace)
    page = client.get("/")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    style = re.search("<style>(.*?)</style>", REPORT, re.DOTALL).group(1)
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": f"'self' 'sha256-{allowed}'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    # Nothing inline, nothing from elsewhere, and every file that is named is there.
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert not re.search(r"<style|\bstyle=|<script(?![^>]+src=)|\bon\w+=", page.text)
    assert len(files) == 3
    for file in files:
        answer = client.get(f"/{file}")
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
    for module in re.findall(r'from "\./(\w+\.js)"', client.get("/assets/page.js").text):
        assert client.get(f"/assets/{module}").status_code == 200


def test_no_script_writes_markup():
    """Passage text must never become HTML."""
    for script in (Path(__file__).parents[2] / "armor_ray/serving/assets").glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|localStorage|sessionStorage", script.read_text()
        )


def test_the_report_is_kept_in_a_sandbox(workspace):
    client = client_of(workspace)
    assert client.get("/v1/report").status_code == 404
    publish_evaluation(workspace, EXAMPLES)
    report = client.get("/v1/report")
    assert report.text == REPORT
    assert report.headers["content-security-policy"].endswith("; sandbox")
    assert "default-src 'none'" in report.headers["content-security-policy"]


def test_a_damaged_report_does_not_take_the_page_along(workspace):
    publish_evaluation(workspace, EXAMPLES)
    report_file(workspace).write_text("cut")
    assert client_of(workspace).get("/").status_code == 200


def test_no_path_reaches_the_file_system(workspace):
    client = client_of(workspace)
    for path in ("/assets/page.html", "/assets/../page.py", "/assets/%2e%2e/page.py", "/v1/report/../../config.yaml", "/assets/"):
        assert client.get(path).status_code == 404


def test_examples_are_in_the_api_document_and_the_page_is_not(workspace):
    paths = client_of(workspace).get("/openapi.json").json()["paths"]
    assert set(paths) == {"/v1/examples", "/v1/report"}
    assert json.dumps(paths).count("text/html") == 1
