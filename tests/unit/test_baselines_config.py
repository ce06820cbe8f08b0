"""The `baselines` section: what it refuses, and what its rows are called."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from armor_ray.config import Config, validate_config
from armor_ray.errors import ArmorError
from armor_ray.stages.baseline_methods import baselines_identity, check_names, reranked_rows

SPLADE: dict[str, Any] = {"kind": "splade", "model": "naver/splade-v3"}
BGE: dict[str, Any] = {"kind": "cross-encoder", "model": "BAAI/bge-reranker-v2-m3"}
CHAT: dict[str, Any] = {"kind": "listwise", "endpoint": {"model": "m"}}


def config(first_stages: list[dict[str, Any]] | None = None, rerankers: list[dict[str, Any]] | None = None) -> Config:
    return validate_config(
        {
            "evaluation": {"recipes": ["armor"]},
            "sweep": {"parameters": {}},
            "baselines": {"first_stages": first_stages or [], "rerankers": rerankers or []},
        }
    )


def test_rows_are_named_by_stage_and_reranker():
    found = config([SPLADE], [{**BGE, "over": ["splade", "armor"]}, {**CHAT, "name": "rankgpt", "over": ["base"]}])
    check_names(found)
    assert [row.method for row in reranked_rows(found)] == ["splade>cross-encoder", "armor>cross-encoder", "base>rankgpt"]


def test_a_fusion_is_named_by_its_sides_and_may_be_fused_again():
    found = config(
        [SPLADE, {"kind": "fusion", "of": ["bm25", "splade"]}, {"kind": "fusion", "of": ["bm25+splade", "base"]}],
        [{**BGE, "over": ["bm25+splade+base"]}],
    )
    check_names(found)
    assert reranked_rows(found)[0].method == "bm25+splade+base>cross-encoder"


@pytest.mark.parametrize(
    ("first_stages", "rerankers", "words"),
    [
        ([{**SPLADE, "batchsize": 4}], [], "unknown key 'baselines.first_stages.0.splade.batchsize'; did you mean .*batch_size"),
        ([{**SPLADE, "kind": "sparse"}], [], "does not match any of the expected tags: 'bi-encoder', 'splade'"),
        ([SPLADE, SPLADE], [], "'splade' occurs twice"),
        ([{**SPLADE, "name": "a>b"}], [], "name"),
        ([{"kind": "fusion", "of": ["bm25", "bm25"]}], [], "'bm25' cannot be fused with itself"),
        ([], [{**CHAT, "window": 10, "step": 10}], "step 10 must be smaller than window 10"),
        ([], [{**CHAT, "endpoint": {"model": "m", "base_url": "http://me:secret@host"}}], "must not hold a user or password"),
    ],
)
def test_faults_of_one_item_are_one_line(first_stages, rerankers, words):
    with pytest.raises(ArmorError, match=words):
        config(first_stages, rerankers)


def test_a_key_in_a_url_is_not_repeated():
    with pytest.raises(ArmorError) as caught:
        config([], [{**CHAT, "endpoint": {"model": "m", "base_url": "http://me:secret@host"}}])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("first_stages", "rerankers", "words"),
    [
        ([{**SPLADE, "name": "bm25"}], [], "'bm25' is the name of another row"),
        ([{**SPLADE, "name": "armor"}], [], "'armor' is the name of another row"),
        ([], [{**BGE, "over": ["splade"]}], "no first stage 'splade' before it; known: armor, base, bm25"),
        ([{"kind": "fusion", "of": ["bm25", "splade"]}, SPLADE], [], "no first stage 'splade' before it"),
        (
            [
                {"kind": "fusion", "name": "rrf", "of": ["bm25", "base"], "method": "reciprocal-rank"},
                {"kind": "fusion", "of": ["rrf", "armor"]},
            ],
            [],
            "'rrf' gives no scores to mix; use method: reciprocal-rank",
        ),
    ],
)
def test_names_are_checked_before_anything_runs(first_stages, rerankers, words):
    with pytest.raises(ArmorError, match=words):
        check_names(config(first_stages, rerankers))


def test_without_baselines_nothing_is_planned():
    assert baselines_identity(config()) == {}


def test_a_changed_model_makes_the_report_stale_and_a_moved_one_does_not(tiny_bert, tmp_path):
    copy = shutil.copytree(tiny_bert, tmp_path / "copy")
    first, moved = (baselines_identity(config([{**SPLADE, "model": str(folder)}])) for folder in (tiny_bert, copy))
    assert first == moved
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    assert baselines_identity(config([{**SPLADE, "model": str(copy)}])) != moved
