"""Fixtures shared by all tiers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_cases import Tiny, build_tiny_llama, write_corpus
from training_cases import build_tiny_bert


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random BERT (2 layers, 32 dimensions) with pooler, tokenizer and a vocabulary of 40 words."""
    return build_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Tiny:
    """Corpus and models of the smallest pipeline."""
    root = tmp_path_factory.mktemp("tiny")
    return Tiny(root, write_corpus(root / "corpus"), tiny_bert, build_tiny_llama(root / "llama"))


@pytest.fixture(scope="session")
def local_ray() -> Iterator[str]:
    """A Ray cluster of two CPUs that this process is connected to; its address, for other processes."""
    import ray

    context = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield context.address_info["gcs_address"]
    ray.shutdown()


@pytest.fixture(scope="session")
def scored(tiny: Tiny, local_ray: str) -> Path:
    """A workspace in which everything that training reads is done; tests work on copies (`Tiny.copy`)."""
    return tiny.run("scored", until="score")
