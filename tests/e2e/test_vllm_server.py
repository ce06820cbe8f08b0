"""A real vLLM server, with the demo generator, as judge and as writer of questions: structured outputs over real HTTP.

What a model of 135 million parameters thinks is not tested, only that it is asked, answers, and is understood, and that all is counted.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from armor_ray import pipeline
from armor_ray.config import CurationConfig, JudgeConfig, validate_config
from armor_ray.corpus.chunking import chunk_characters
from armor_ray.corpus.records import Corpus, Document, QAPair
from armor_ray.curation import tele_eval
from armor_ray.curation.files import CuratedFiles
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


def replies_sent(server: str) -> int:
    """By the server's own count."""
    with urllib.request.urlopen(server.removesuffix("/v1") + "/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return round(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:request_success_total")))


def test_it_judges_pairs_and_passages(server: str, tmp_path: Path):
    settings = CurationConfig(pipeline="tele_eval", domain="isac", threshold=0.0)
    corpus = Corpus(DOCUMENTS, [PAIR], whole_documents=False)
    (tmp_path / "curated").mkdir()
    with CuratedFiles(tmp_path / "curated") as files:
        judging = Judging(JudgeConfig(base_url=server, model="demo", concurrency=4), tmp_path / "cache", print, files.record)
        tele_eval.curate(corpus, chunker, load_domain("isac"), settings, judging, files)
    for judgement in judging.judgements:
        assert (judgement["by"], judgement["failures"]) == ("demo", {}), judgement
        assert judgement["account"]["paid"] > 0
    assert judging.stand_ins == []
    steps = pq.read_table(tmp_path / "curated" / "verdicts.parquet")["step"].to_pylist()
    assert steps == ["qa_domain", *["chunk_alignment"] * len(chunker(DOCUMENTS[0].text))]


def test_it_rates_documents_writes_about_them_and_reviews_what_it_wrote(server: str, tmp_path: Path):
    """The documents-only pipeline from a folder of files, with the server on every side."""
    before = replies_sent(server)
    (tmp_path / "documents").mkdir()
    for document in DOCUMENTS:
        (tmp_path / "documents" / f"{document.doc_id}.md").write_text(f"# {document.title}\n\n{document.text}\n", encoding="utf-8")
    questions = {"writer": "judge", "per_passage": 1, "max_new_tokens": 96, "temperature": 0.01}
    config = validate_config(
        {
            "workspace": str(tmp_path / "w"),
            "data": {"format": "documents", "path": str(tmp_path / "documents"), "passage_characters": 80},
            "curation": {
                "pipeline": "documents",
                "domain": "isac",
                "threshold": 0.0,
                "questions": {**questions, "technical_threshold": 0.0, "clarity_threshold": 0.0},
            },
            "judge": {"base_url": server, "model": "demo", "concurrency": 4},
            "encoder": {"model": "demo/encoder"},
        }
    )
    curated = pipeline.run(config, until="curate").require("curated")
    assert (curated.rows["documents"], curated.details["stand_ins"]) == (2, [])
    assert curated.rows["questions"] >= 1
    writer, judgements = curated.details["writer"], curated.details["judgements"]
    assert [(entry["judge"], entry["failures"]) for entry in judgements] == [("document_relevance", {}), ("example_quality", {})]
    assert writer["replies"] == writer["passages"] > 3
    assert sum(entry["account"]["paid"] for entry in [writer, *judgements]) == replies_sent(server) - before
