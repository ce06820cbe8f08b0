"""From likelihoods to a shared-tower retriever on a real Ray: utilities, reward model, gate, training, and the corpus embedded anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pipeline_cases import Tiny, manifest

from armor_ray.corpus.schemas import NEGATIVES, PAIR_UTILITIES, REWARDS, validate_table
from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.cross_encoder import CrossEncoder
from armor_ray.retrieval.index_file import open_index
from armor_ray.stages.embed import open_embeddings


@pytest.fixture(scope="module")
def finished(tiny: Tiny, scored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which `uae` with shared towers has run up to its own index."""
    own = replace(tiny, root=tmp_path_factory.mktemp("uae"))
    own.copy(scored, "w")
    sections: dict[str, dict[str, Any]] = {
        "utility": {"kind": "log_ratio", "noise_pairs": 16},
        "reward": {"model": str(tiny.encoder), "max_length": 24, "learning_rate": 1e-3, "batch_size": 4, "gate_margin": 0.0},
        "objective": {"recipe": "uae", "towers": "shared"},
        "training": {"epochs": 1, "interpolate": []},
        "evaluation": {"recipes": ["uae"]},
        "sweep": {"parameters": {}},
    }
    return own.run("w", until="reindex", **sections)


def rows(workspace: Path, name: str) -> list[dict[str, Any]]:
    schema = {"pair_utilities": PAIR_UTILITIES, "rewards": REWARDS, "negatives": NEGATIVES}[name]
    return validate_table(pq.read_table(workspace / name / "train.parquet"), schema, name).to_pylist()


def test_utilities_are_measured_against_the_closed_book_and_their_noise_is_known(finished: Path) -> None:
    facts = manifest(finished, "pair_utilities")["details"]
    assert 0 <= facts["noise_floor"] < 1e-3  # fp32
    answers = pq.read_table(finished / "utilities" / "train.parquet").to_pylist()
    assert {(row["example_id"], row["passage_id"]) for row in answers} == {
        (row["example_id"], row["passage_id"]) for row in rows(finished, "pair_utilities")
    }


def test_rewards_are_the_models_and_the_gate_follows_them(finished: Path) -> None:
    model = CrossEncoder.load(finished / "reward_model", 24)
    texts = pq.read_table(finished / "passages" / "passages.parquet")["text"].to_pylist()
    questions = {row["example_id"]: row for row in pq.read_table(finished / "examples" / "train.parquet").to_pylist()}
    found = rows(finished, "rewards")
    expected = model.score([(questions[row["example_id"]]["question"], texts[row["passage_id"]]) for row in found])
    np.testing.assert_allclose([row["reward"] for row in found], expected, atol=0.02)  # bf16 where the machine computes in it
    kept = 0
    for pool in rows(finished, "negatives"):
        gold = set(questions[pool["example_id"]]["positive_ids"])
        best = max(r for p, r in zip(pool["passage_ids"], pool["rewards"], strict=True) if p in gold)
        wanted = [i < 4 and p not in gold and best > r for i, (p, r) in enumerate(zip(pool["passage_ids"], pool["rewards"], strict=True))]
        assert pool["gated"] == wanted
        kept += sum(wanted)
    assert manifest(finished, "negatives")["details"]["train"]["kept"] == kept > 0
    methods = [row["method"] for row in manifest(finished, "rewards")["details"]["agreement"]]
    assert methods == ["bm25", "base", "reward"]
    shown = json.loads((finished / "negatives" / "examples.json").read_text(encoding="utf-8"))
    assert all(example["accepted"] and example["rejected"] for example in shown)


def test_the_corpus_is_embedded_anew_as_encoding_from_scratch_does(finished: Path) -> None:
    encoder = BiEncoder.from_folder(finished / "retrievers" / "uae-seed0")
    texts = pq.read_table(finished / "passages" / "passages.parquet")["text"].to_pylist()
    corpus = finished / "corpora" / "uae-seed0"
    vectors = np.asarray(open_embeddings(corpus))
    np.testing.assert_allclose(vectors, encoder.encode(texts, "passage"), atol=1e-6)
    assert np.abs(vectors - np.asarray(open_embeddings(finished / "embeddings"))).max() > 1e-3
    index = open_index(corpus, encoder.identity.fingerprint())
    np.testing.assert_allclose(index.reconstruct_n(0, len(texts)), vectors, atol=0)
    with pytest.raises(ArmorError, match="the index holds vectors of encoder"):
        open_index(finished / "index", encoder.identity.fingerprint())
