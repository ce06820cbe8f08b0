"""The report of a run: one self-contained HTML page, the same in Markdown, and the pictures beside them."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from armor_ray.errors import ArmorError
from armor_ray.evaluation import data_figures, figures, latency_figure, reward_figures, tables
from armor_ray.evaluation.data_card import DataCard
from armor_ray.evaluation.examples import Examples
from armor_ray.evaluation.labels import (
    ANSWER_METRICS,
    BASE,
    BASE_RAG,
    BM25,
    EXPECTED_UTILITY,
    FUSION_PREFIX,
    POOL_PREFIX,
    UTILITY_PREFIX,
    is_fused,
    method_label,
    metric_label,
)
from armor_ray.evaluation.latency import LATENCY, RATIO
from armor_ray.evaluation.reward_report import RewardReport
from armor_ray.evaluation.summary import Row
from armor_ray.evaluation.transfer import transfer_figure, transfer_metrics, transfer_table

RETRIEVAL_METRICS = ("R@1", "R@3", "R@5", "R@16", "MRR@10", "nDCG@10", "MAP")
FUSION_REFERENCE = FUSION_PREFIX + BASE


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything a report shows. What is empty is named as absent in the report, never left out in silence.

    Attributes:
        dataset: its name.
        rows: values and paired differences on the test split. Retrieval metrics carry differences to `base`, those of fused methods
            (`bm25+…`) to `bm25+base`, answer metrics (`F1`, `EM`, `ROUGE-L`) to `base_rag`; the closed book's method is `base_gen`.
        metric: `R@k` of the headline, of validation, the sweep and the interpolation curves.
        metrics: retrieval columns, in order.
        histories: method → training history rows of one seed (`figures.training_figure`).
        sweep: trials of the hyper-parameter search.
        interpolation: method → validation curve (`figures.interpolation_figure`).
        chosen_alpha: method → the α taken.
        fusion_weights: fused method → weight of its dense side, chosen on validation.
        examples: where the adaptation helped and hurt.
        by_utility: how many questions were asked of the generator, how many count in ExpUtil@1 (`expected`) and in the `utility:`
            metrics (`relevant`), and the `threshold` of these; None where it was asked nothing.
        rewards: what the reward stages found; None where no recipe uses them, and left out then.
        transfer: rows of the main recipe on this and on other data sets, this one's first; left out where empty.
        card: the data set; left out where None.
        facts: about the data and the run, in order: counts, truncations, skipped pairs.
        notes: sentences that a reader must know (what was approximated, what failed).
        config: the resolved configuration as YAML.
        versions: package → version.
        seeds: training seeds that the rows are means over.
    """

    dataset: str
    rows: Sequence[Row]
    metric: str = "R@3"
    metrics: Sequence[str] = RETRIEVAL_METRICS
    histories: Mapping[str, figures.History] = field(default_factory=dict)
    sweep: Sequence[figures.Trial] = ()
    interpolation: Mapping[str, figures.History] = field(default_factory=dict)
    chosen_alpha: Mapping[str, float] = field(default_factory=dict)
    fusion_weights: Mapping[str, float] = field(default_factory=dict)
    examples: Examples | None = None
    by_utility: Mapping[str, float | int | None] | None = None
    rewards: RewardReport | None = None
    transfer: Sequence[Row] = ()
    card: DataCard | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    config: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    seeds: Sequence[int] = ()


def write_report(folder: Path, data: ReportData) -> tuple[Path, Path]:
    """Writes `report.html`, `report.md` and `figures/*.png` into an existing folder; returns the two pages.

    Raises:
        ArmorError: no results of this data set.
    """
    if not data.rows:
        raise ArmorError("there are no results to report", where=data.dataset, hint="run the evaluate stage with at least one recipe")
    drawn = _draw(folder / "figures", data)
    view = _view(data)
    html = (
        _environment(escape=True)
        .get_template("report.html.j2")
        .render(view, figures={name: _embedded(path) for name, path in drawn.items()})
    )
    markdown = (
        _environment(escape=False).get_template("report.md.j2").render(view, figures={n: f"figures/{p.name}" for n, p in drawn.items()})
    )
    pages = folder / "report.html", folder / "report.md"
    pages[0].write_text(html, encoding="utf-8")
    pages[1].write_text(re.sub(r"\n{3,}", "\n\n", markdown), encoding="utf-8")
    return pages


def _draw(folder: Path, data: ReportData) -> dict[str, Path]:
    measured = {row.metric for row in data.rows}
    recalls = [metric for metric in data.metrics if metric.startswith("R@") and metric in measured]
    alone = [row for row in data.rows if not is_fused(row.method) and row.metric.partition(" vs ")[0] in recalls]
    fused = [row for row in data.rows if is_fused(row.method)]
    drawn = {}
    if alone:
        drawn["recall"] = figures.recall_figure(alone, folder / "recall.png", recalls)
    if fused:
        drawn["fusion"] = figures.recall_figure(fused, folder / "fusion.png", recalls, FUSION_REFERENCE)
    if data.histories:
        drawn["training"] = figures.training_figure(data.histories, folder / "training.png", data.metric)
    if data.sweep:
        drawn["sweep"] = figures.sweep_figure(data.sweep, folder / "sweep.png", data.metric)
    if data.interpolation:
        drawn["interpolation"] = figures.interpolation_figure(
            data.interpolation, folder / "interpolation.png", data.metric, data.chosen_alpha
        )
    if LATENCY in measured and data.metric in measured:
        drawn["latency"] = latency_figure.latency_figure(data.rows, folder / "latency.png", data.metric)
    if data.transfer:
        metrics = transfer_metrics(data.metric)
        drawn["transfer"] = transfer_figure(data.transfer, folder / "transfer.png", metrics, data.transfer[0].dataset)
    if data.rewards is not None:
        drawn["utility"] = reward_figures.utility_figure(data.rewards, folder / "utility.png")
        drawn["agreement"] = reward_figures.agreement_figure(data.rewards.agreements, folder / "agreement.png")
    if data.card is not None:
        drawn["lengths"] = data_figures.lengths_figure(data.card, folder / "lengths.png")
        if data.card.curation is not None and data.card.curation.scores:
            drawn["scores"] = data_figures.scores_figure(data.card.curation.scores, folder / "scores.png")
    return drawn


def _view(data: ReportData) -> dict[str, Any]:
    """Names that both templates read."""

    def alone(method: str) -> bool:
        return not is_fused(method)

    def in_fusion(method: str) -> bool:
        return is_fused(method) or method == BM25

    has_fusion = any(is_fused(row.method) for row in data.rows)
    results = tables.results_table(data.rows, data.metrics, alone, BASE)
    answers = tables.results_table(data.rows, ANSWER_METRICS, alone, BASE_RAG)
    return {
        "data": data,
        "headline": tables.headline(data.rows, data.metric),
        "questions": max(row.n for row in data.rows),
        "answered": max((row.n for row in data.rows if row.metric in ANSWER_METRICS), default=0),
        "results": results,
        "differences": tables.differences_table(data.rows, data.metrics, alone, BASE),
        "fusion": tables.results_table(data.rows, data.metrics, in_fusion, FUSION_REFERENCE) if has_fusion else None,
        "fusion_differences": tables.differences_table(data.rows, data.metrics, is_fused, FUSION_REFERENCE),
        "answers": answers,
        "answer_differences": tables.differences_table(data.rows, ANSWER_METRICS, alone, BASE_RAG),
        **_protocols(data),
        "transfer": transfer_table(data.transfer, transfer_metrics(data.metric), data.transfer[0].dataset) if data.transfer else None,
        "rewards": data.rewards,
        "card": data.card,
        "sweep": tables.sweep_table(data.sweep, data.metric) if data.sweep else None,
        "absent": _absent(data, results is not None, has_fusion, answers is not None),
        "ABOVE": tables.ABOVE,
        "BELOW": tables.BELOW,
    }


def _protocols(data: ReportData) -> dict[str, tables.Table | None]:
    """Hard pools, metrics by utility and latencies; None where the run has none."""

    def of(prefix: str, *first: str) -> tables.Table | None:
        named = [row.metric for row in data.rows if row.metric.startswith(prefix) and row.reference is None]
        return tables.results_table(data.rows, [*first, *dict.fromkeys(named)], lambda _: True, BASE)

    latencies = tables.latency_table(data.rows, LATENCY, RATIO)
    return {"latency": latencies, "pool": of(POOL_PREFIX), "utility": of(UTILITY_PREFIX, EXPECTED_UTILITY)}


def _absent(data: ReportData, has_results: bool, has_fusion: bool, has_answers: bool) -> list[str]:
    sections = {
        "retrieval results": has_results,
        "fusion with BM25": has_fusion,
        "generated answers": has_answers,
        "training curves": bool(data.histories),
        "hyper-parameter sweep": bool(data.sweep),
        "weight-space interpolation": bool(data.interpolation),
        "example questions": data.examples is not None,
        "data facts": bool(data.facts),
        "configuration": bool(data.config),
        "package versions": bool(data.versions),
        "seeds": bool(data.seeds),
    }
    return [name for name, present in sections.items() if not present]


def _environment(escape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("armor_ray.evaluation", "templates"),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"method": method_label, "metric": metric_label, "md": _markdown_text, "number": _number}
    return environment


def _embedded(path: Path) -> Markup:
    return Markup("data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii"))


def _markdown_text(text: str) -> str:
    """Plain text for a Markdown line or table cell: no markup of its own, no line break."""
    flat = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!])", r"\\\1", flat)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
