"""A real vLLM server, with the demo generator, as writer and judge of both curation pipelines."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from armor_ray import pipeline
from armor_ray.config import validate_config
from armor_ray.models.hub import resolve_model
from armor_ray.workspace import Workspace

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
DOCUMENTS = {
    "isac": "Integrated sensing and communication (ISAC) uses one waveform for radar and for data. The range resolution of the radar is "
    "half of the speed of light over the bandwidth: 0.375 m at 400 MHz. Joint beamforming steers one beam at the user and another at the "
    "target, and the Cramér-Rao bound of the angle tells how well it is sensed.",
    "ntn": "A satellite in low Earth orbit at 600 km is in view for a few minutes. The propagation delay of its link varies, and so does "
    "its Doppler shift, so the terminal compensates both before it sends. Handover to the next satellite is frequent.",
}
QUESTIONS = {"isac": ("What range resolution does an ISAC radar have at 400 MHz?", "0.375 m.")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a `vllm serve` on a free loopback port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", resolve_model("demo/generator"), "--served-model-name", "demo"]
    options = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096", "--enforce-eager", "--dtype", "bfloat16"]
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, *options], stdout=output, stderr=output, env={**os.environ, **CPU}, start_new_session=True)
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"no server after 300 s:\n{log.read_text()[-3000:]}")


def write_source(folder: Path) -> Path:
    documents = [{"id": name, "category": "arxiv", "content": text, "metadata": ""} for name, text in DOCUMENTS.items()]
    questions = [{"id": name, "Statement": question, "Answer": answer} for name, (question, answer) in QUESTIONS.items()]
    for name, rows in (("tele-data", documents), ("tele-eval", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def curate(folder: Path, server: str, **sections: Any) -> Workspace:
    """Thresholds of 0: what a model of 135 million parameters thinks of a question is not what is tested."""
    judge = {"base_url": server, "model": "demo", "concurrency": 4}
    return pipeline.run(validate_config({"workspace": str(folder / "w"), "judge": judge, **sections}), until="curate")


def test_it_judges_pairs_and_passages(server, tmp_path):
    workspace = curate(
        tmp_path,
        server,
        data={"format": "tele_eval", "path": str(write_source(tmp_path)), "passage_characters": 160},
        curation={"pipeline": "tele_eval", "domain": "isac", "threshold": 0.0},
    )
    details = workspace.require("curated").details
    assert [(judgement["by"], judgement["failures"]) for judgement in details["judgements"]] == [("demo", {}), ("demo", {})]
    assert details["judgements"][0]["account"]["paid"] >= 1
    print(json.dumps(details["judgements"], indent=1))


def test_it_writes_questions_and_judges_them(server, tmp_path):
    questions = {"writer": "judge", "max_new_tokens": 96, "technical_threshold": 0.0, "clarity_threshold": 0.0, "per_passage": 1}
    workspace = curate(
        tmp_path,
        server,
        data={"format": "tele_data", "path": str(write_source(tmp_path) / "tele-data.jsonl"), "passage_characters": 300},
        curation={"pipeline": "documents", "domain": "isac", "threshold": 0.0, "questions": questions},
    )
    details = workspace.require("curated").details
    assert details["stand_ins"] == []
    assert details["writer"]["replies"] == details["writer"]["passages"] > 0
    print(json.dumps(details, indent=1))
    print((workspace.local("curated") / "qa.jsonl").read_text())
    print((workspace.local("curated") / "dropped.jsonl").read_text())
