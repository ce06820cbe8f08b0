"""Fixtures shared by all tiers."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_cases import build_tiny_bert


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random BERT (2 layers, 32 dimensions) with pooler, tokenizer and a vocabulary of 40 words."""
    return build_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))
