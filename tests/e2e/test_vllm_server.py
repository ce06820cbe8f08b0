"""A real vLLM server, with the demo generator, as the judge of the Tele-Eval pipeline: structured outputs over real HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from armor_ray.config import CurationConfig, JudgeConfig
from armor_ray.corpus.chunking import chunk_characters
from armor_ray.corpus.records import Corpus, Document, QAPair
from armor_ray.curation import tele_eval
from armor_ray.curation.judging import Judging
from armor_ray.judges.domain import load_domain
from armor_ray.models.hub import resolve_model

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
DOCUMENTS = [
    Document(
        "isac",
        "Joint radar and data",
        "Integrated sensing and communication (ISAC) uses one waveform for radar and for data. The range resolution of the radar is half "
        "of the speed of light over the bandwidth: 0.375 m at 400 MHz. Joint beamforming steers one beam at the user and another at the "
        "target, and the Cramér-Rao bound of the angle tells how well it is sensed.",
        "isac",
        "note",
    ),
    Document("bread", "Bread", "A loaf of bread rises for an hour before it is baked. Salt slows the yeast down.", "bread", "note"),
]
PAIR = QAPair("q", "What range resolution does an ISAC radar have at 400 MHz?", ("0.375 m.",), "isac", (), ("isac",), "", "test")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a `vllm serve` on a free loopback port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not `vllm serve`: that command looks for a package named vllm, which the CPU build is not.
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        resolve_model("demo/generator"),
        "--served-model-name",
        "demo",
    ]
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


def chunker(text: str) -> list[tuple[int, int]]:
    return chunk_characters(text, 160)


def test_it_judges_pairs_and_passages(server: str, tmp_path: Path):
    """What a model of 135 million parameters thinks is not tested, only that it is asked, answers, and is understood."""
    judging = Judging(JudgeConfig(base_url=server, model="demo", concurrency=4), tmp_path / "cache", print)
    settings = CurationConfig(pipeline="tele_eval", domain="isac", threshold=0.0)
    tele_eval.curate(Corpus(DOCUMENTS, [PAIR], whole_documents=False), chunker, load_domain("isac"), settings, judging)
    for judgement in judging.judgements:
        assert (judgement["by"], judgement["failures"]) == ("demo", {}), judgement
        assert judgement["account"]["paid"] > 0
    assert judging.stand_ins == []
    assert [judged.step for judged in judging.judged] == ["qa_domain", *["chunk_alignment"] * len(chunker(DOCUMENTS[0].text))]
