"""How methods and metrics are called in tables and pictures, and one colour per recipe throughout."""

from __future__ import annotations

import re
from typing import Literal

from armor_ray.config import RECIPES

INTERPOLATED = "/interpolated"
BASE, BM25 = "base", "bm25"
CLOSED_BOOK, BASE_RAG = "base_gen", "base_rag"  # rows of generated answers
FUSION_PREFIX = f"{BM25}+"
RERANKED = ">"  # between a first stage and the reranker over it
ANSWER_METRICS = ("F1", "EM", "ROUGE-L")

_METHODS = {
    BASE: "Base",
    BM25: "BM25",
    CLOSED_BOOK: "Closed book",
    BASE_RAG: "Base RAG",
    "rag": "RAG",
    "infonce": "InfoNCE",
    "mix": "Mix",
    "static_reg": "Static + reg.",
    "dynamic": "Dynamic",
    "armor": "ARMOR",
    "replug": "REPLUG",
    "uae": "UAE",
    "armor_uae": "ARMOR + UAE",
}
# Paul Tol's "bright" scheme, told apart by the colour-blind; markers repeat the message in grey print.
_STYLES = {
    "armor": ("#4477AA", "o"),
    "infonce": ("#EE6677", "s"),
    "rag": ("#228833", "^"),
    "mix": ("#B59A1D", "D"),
    "static_reg": ("#2FA6CB", "v"),
    "dynamic": ("#AA3377", "P"),
    "replug": ("#777777", "X"),
    "uae": ("#6B4EA0", "<"),
    "armor_uae": ("#C4581A", "*"),
}
_OTHER = ("#222222", "o")
_RETRIEVER = re.compile(r"([a-z_]+?)(-swept)?-seed(\d+)(-interpolated)?")


def method_label(method: str) -> str:
    """`bm25+armor/swept/interpolated` → `BM25 + ARMOR, swept, interpolated`, `bm25>x` → `BM25 → x`; an unknown name stays as it is."""
    if RERANKED in method:
        first, _, reranker = method.rpartition(RERANKED)
        return f"{method_label(first)} → {reranker}"
    if method.startswith(FUSION_PREFIX):
        return f"{_METHODS[BM25]} + {method_label(method.removeprefix(FUSION_PREFIX))}"
    name, *variants = method.split("/")
    return ", ".join([_METHODS.get(name, name), *variants])


def method_of(retriever: str) -> tuple[str, int] | None:
    """Row and training seed of a trained retriever by its name: `armor-swept-seed2-interpolated` → `armor/swept/interpolated`, 2.

    None for a name that no training run gives.
    """
    found = _RETRIEVER.fullmatch(retriever)
    if found is None:
        return None
    recipe, swept, seed, interpolated = found.groups()
    return f"{recipe}{'/swept' if swept else ''}{INTERPOLATED if interpolated else ''}", int(seed)


def metric_label(metric: str) -> str:
    """`R@3` → `Recall@3`, `F1` → `Token F1`, `EM` → `Exact match`; others stay as they are."""
    if metric.startswith("R@"):
        return f"Recall@{metric[2:]}"
    return {"F1": "Token F1", "EM": "Exact match"}.get(metric, metric)


def method_style(method: str) -> tuple[str, str]:
    """Colour and marker of a recipe, whatever its variant (swept, interpolated, fused)."""
    return _STYLES.get(method.removeprefix(FUSION_PREFIX).partition("/")[0], _OTHER)


def line_style(method: str) -> Literal["-", "--"]:
    """Of curves: a swept variant shares its recipe's colour and marker, and is dashed."""
    return "--" if "/swept" in method else "-"


def is_fused(method: str) -> bool:
    return method.startswith(FUSION_PREFIX)


def is_adapted(method: str) -> bool:
    """Whether the method is an adapted encoder on its own: a recipe, whatever its variant."""
    return method.partition("/")[0] in RECIPES
