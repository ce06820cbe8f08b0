"""Stage `evaluate`: every method on the held-out test questions, side by side, with paired intervals; then the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from armor_ray.config import Config
from armor_ray.evaluation.answers import answer_metrics
from armor_ray.evaluation.examples import Examples, choose_examples
from armor_ray.evaluation.figures import Trial
from armor_ray.evaluation.labels import BASE, BASE_RAG, BM25, FUSION_PREFIX, POOL_PREFIX, RERANKED
from armor_ray.evaluation.latency import latency_rows
from armor_ray.evaluation.metrics import gold_ranks, retrieval_metrics
from armor_ray.evaluation.report import ReportData, write_report
from armor_ray.evaluation.summary import Row, metric_rows, write_summary
from armor_ray.evaluation.trec import write_qrels, write_run
from armor_ray.stages.answer import load_answers
from armor_ray.stages.baselines import rank_baselines
from armor_ray.stages.card import load_card
from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.evaluated import Evaluated, Method, Values
from armor_ray.stages.hard_pool import HardPools
from armor_ray.stages.latency import load_latencies
from armor_ray.stages.methods import Adapted, adapted_methods, answered_methods, is_swept, needs_rewards
from armor_ray.stages.ranked_utilities import ByUtility, measure_utilities
from armor_ray.stages.rankings import QueryVectors, Rankers, Ranking, SplitQuestions, adapted_query_vectors, base_query_vectors, load_split
from armor_ray.stages.reward_results import load_reward_results
from armor_ray.stages.sweep import load_results
from armor_ray.stages.transfer import load_transfer
from armor_ray.workspace import Draft, Workspace, package_versions, read_parquet

STAGE = "evaluate"


def run_all(context: Context, todo: list[Plan]) -> None:
    [plan] = todo
    connect(context.workspace)
    evaluation = context.config.evaluation
    split = load_split(context.workspace, "test")
    rankers = Rankers(context.workspace, max(evaluation.ks))
    evaluated, pools = _evaluate(context, split, rankers)
    by_utility = measure_utilities(context, split, evaluated.methods, pools) if evaluation.utility_questions else None
    rows = _retrieval_rows(context.config, evaluated.methods, evaluated.values)
    if by_utility is not None:
        rows += _retrieval_rows(context.config, evaluated.methods, by_utility.values)
    rows += _answer_rows(context, split) + _latency_rows(context)
    faults = {method.name: method.faults for method in evaluated.methods if method.faults}
    for name, counts in faults.items():
        context.say(f"{STAGE}: {name} could not use {', '.join(f'{count} × {fault}' for fault, count in counts.items())}")

    def write(draft: Draft) -> None:
        summary = write_summary(draft.path / "summary.json", [*rows, *_elsewhere(context)])
        _write_results(draft.path, evaluated, split)
        write_report(draft.path, _report_data(context, evaluated, rows, split, rankers, by_utility))
        draft.rows |= {"rows": len(rows), "questions": len(split.questions)}
        tuned = {encoder: weight for method in evaluated.methods for encoder, weight in method.tuned.items()}
        draft.details |= {"summary": summary.name, "fusion_weights": tuned, **({"faults": faults} if faults else {})}
        draft.details |= {"by utility": by_utility.facts()} if by_utility is not None else {}

    context.publish(plan, write)


# -- methods -------------------------------------------------------------------------------------------------------------------


def _evaluate(context: Context, split: SplitQuestions, rankers: Rankers) -> tuple[Evaluated, HardPools | None]:
    evaluated, ks = Evaluated(), context.config.evaluation.ks
    base = base_query_vectors(context.workspace)
    pools = _hard_pools(context.config.evaluation.hard_pool, split, rankers, base)
    for method in _methods(context, split, rankers, base, pools):
        evaluated.methods.append(method)
        values = _metrics(method.rankings, split, ks)
        if pools is not None:
            values |= {POOL_PREFIX + name: found for name, found in _metrics(method.pooled, split, pools.depths(ks)).items()}
        evaluated.values[method.name] = values
    return evaluated, pools


def _hard_pools(size: int | None, split: SplitQuestions, rankers: Rankers, base: QueryVectors) -> HardPools | None:
    if size is None:
        return None
    return HardPools.of(rankers.dense_stage(base["test"], split.questions), split, size, len(rankers.passages_CD))


def _metrics(rankings: Sequence[Ranking], split: SplitQuestions, ks: Sequence[int]) -> Values:
    per_seed = [retrieval_metrics(ranking.rows_QK, split.gold, ks) for ranking in rankings]
    return {metric: np.stack([values[metric] for values in per_seed]) for metric in per_seed[0]}


def _methods(context: Context, split: SplitQuestions, rankers: Rankers, base: QueryVectors, pools: HardPools | None) -> Iterator[Method]:
    config, workspace = context.config, context.workspace
    adapted = adapted_methods(config)
    vectors = adapted_query_vectors(workspace, [artifact for row in adapted for artifact in row.artifacts])

    def dense(name: str, seeds: list[tuple[Rankers, QueryVectors]], reference: str | None) -> Method:
        rankings = [own.dense(queries["test"]) for own, queries in seeds]
        pooled = pools.ranked([own.dense_stage(queries["test"], split.questions) for own, queries in seeds]) if pools else []
        return Method(name, rankings, reference, pooled=pooled)

    def trained(row: Adapted) -> list[tuple[Rankers, QueryVectors]]:
        return [(rankers.of(artifact), vectors[artifact]) for artifact in row.artifacts]

    yield dense(BASE, [(rankers, base)], None)
    for row in adapted:
        yield dense(row.method, trained(row), BASE)
    yield Method(BM25, [rankers.lexical(split.questions)], BASE, pooled=pools.ranked([rankers.bm25]) if pools else [])
    validation = load_split(workspace, "validation")
    base_fusion = FUSION_PREFIX + BASE
    yield _fused(config, base_fusion, {BASE: (rankers, base)}, split, validation, None, pools)
    for row in adapted:
        if row.is_fused:
            seeds = dict(zip(row.artifacts, trained(row), strict=True))
            yield _fused(config, FUSION_PREFIX + row.method, seeds, split, validation, base_fusion, pools)
    for found in rank_baselines(config, workspace, rankers.depth, context.say, pools.pool_QN if pools else None):
        yield Method(found.method, [found.ranking], BASE, found.weight, found.faults, [found.pooled] if found.pooled else [])


def _fused(
    config: Config,
    name: str,
    seeds: dict[str, tuple[Rankers, QueryVectors]],
    split: SplitQuestions,
    validation: SplitQuestions,
    reference: str | None,
    pools: HardPools | None,
) -> Method:
    """Convex fusion with BM25, the weight tuned on validation for each seed's encoder."""
    grid, k = config.evaluation.fusion_grid, config.training.metric_depth
    weights = {
        encoder: own.fusion_weight(v["validation"], validation.questions, validation.gold, grid, k) for encoder, (own, v) in seeds.items()
    }
    rankings = [own.fused(v["test"], split.questions, weights[encoder]) for encoder, (own, v) in seeds.items()]
    stages = [own.fused_stage(v["test"], split.questions, weights[encoder]) for encoder, (own, v) in seeds.items()]
    pooled = pools.ranked(stages) if pools else []
    return Method(name, rankings, reference, float(np.mean(list(weights.values()))), pooled=pooled, tuned=weights)


# -- numbers -------------------------------------------------------------------------------------------------------------------


def _retrieval_rows(config: Config, methods: Sequence[Method], values: Mapping[str, Values]) -> list[Row]:
    rows: list[Row] = []
    for method in (method for method in methods if method.name in values):
        reference = None if method.reference is None else (method.reference, values[method.reference])
        rows += _rows(config, method.name, values[method.name], reference)
    return rows


Reference = tuple[str, Mapping[str, np.ndarray]]


def _rows(config: Config, method: str, values: Mapping[str, np.ndarray], reference: Reference | None) -> list[Row]:
    return metric_rows(config.data.name, method, values, reference, config.evaluation.bootstrap, config.seed)


def _answer_rows(context: Context, split: SplitQuestions) -> list[Row]:
    found: dict[str, dict[str, np.ndarray]] = {}
    for method in answered_methods(context.config):
        answers = load_answers(context, method)
        found[method.method] = answer_metrics(answers, split.answers[: len(answers)])
    rows: list[Row] = []
    for method_name, values in found.items():
        rows += _rows(context.config, method_name, values, None if method_name == BASE_RAG else (BASE_RAG, found[BASE_RAG]))
    return rows


def _latency_rows(context: Context) -> list[Row]:
    config = context.config
    if not config.evaluation.latency_questions:
        return []
    return latency_rows(config.data.name, load_latencies(context.workspace), BASE, config.evaluation.bootstrap, config.seed)


def _elsewhere(context: Context) -> list[Row]:
    """Rows on other data sets, under their names."""
    if not context.config.evaluation.transfer_to:
        return []
    found = load_transfer(context.workspace)
    return [row for row in found if row.dataset != found[0].dataset]


def _write_results(folder: Path, evaluated: Evaluated, split: SplitQuestions) -> None:
    """Per-question metrics as one Parquet file; runs and qrels in TREC and BEIR form."""
    records = []
    for method in evaluated.methods:
        values = evaluated.values[method.name]
        for seed in range(len(method.rankings)):
            for i, example in enumerate(split.example_ids):
                metrics = {metric: float(value[seed, i]) for metric, value in values.items()}
                records.append({"method": method.name, "seed": seed, "example_id": example, **metrics})
    pq.write_table(pa.Table.from_pylist(records), folder / "results.parquet")
    runs = folder / "runs"
    runs.mkdir()
    write_qrels(folder / "qrels.tsv", split.example_ids, split.gold)
    for method in evaluated.methods:
        for seed, ranking in enumerate(method.rankings):
            name = method.name.replace("/", "-").replace(RERANKED, "~")
            write_run(runs / f"{name}-{seed}.trec", split.example_ids, ranking.rows_QK, ranking.scores_QK, method.name)


# -- report --------------------------------------------------------------------------------------------------------------------


def _report_data(
    context: Context, evaluated: Evaluated, rows: list[Row], split: SplitQuestions, rankers: Rankers, by_utility: ByUtility | None
) -> ReportData:
    config, workspace = context.config, context.workspace
    adapted = adapted_methods(config)
    plain = [row for row in adapted if not row.method.endswith("/interpolated")]
    manifests = {row.method: workspace.require(row.artifacts[0]) for row in plain}
    curves = {name: manifest.details["interpolation"] for name, manifest in manifests.items() if "interpolation" in manifest.details}
    return ReportData(
        dataset=config.data.name,
        rows=rows,
        metric=config.training.metric,
        metrics=[metric for metric in evaluated.values[BASE] if not metric.startswith(POOL_PREFIX)],
        histories={row.method: _history(workspace, row.artifacts[0]) for row in plain},
        sweep=_trials(config, workspace),
        interpolation=curves,
        chosen_alpha={name: manifests[name].details["alpha"] for name in curves},
        fusion_weights={m.name: m.fusion_weight for m in evaluated.methods if m.fusion_weight is not None},
        examples=_examples(evaluated, adapted, split, rankers),
        by_utility=by_utility.facts() if by_utility is not None else None,
        transfer=load_transfer(workspace) if config.evaluation.transfer_to else (),
        rewards=load_reward_results(workspace) if needs_rewards(config) else None,
        card=load_card(workspace, config),
        facts=_facts(workspace),
        config=yaml.safe_dump(config.model_dump(exclude_unset=True, mode="json"), sort_keys=False),
        versions=package_versions(),
        seeds=config.evaluation.seeds,
    )


def _history(workspace: Workspace, artifact: str) -> list[dict[str, float]]:
    rows = read_parquet(workspace.local(artifact) / "history.parquet", "train").to_pylist()
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _trials(config: Config, workspace: Workspace) -> list[Trial]:
    if not is_swept(config):
        return []
    names = list(config.sweep.parameters)
    rows = load_results(workspace)
    return [Trial({name: row[name] for name in names}, row[config.training.metric], int(row["epochs"])) for row in rows]


def _examples(evaluated: Evaluated, adapted: list[Adapted], split: SplitQuestions, rankers: Rankers) -> Examples | None:
    """The main recipe's last row (interpolated or swept where there is one) against Base, first seed."""
    main = [row.method for row in adapted if row.is_main]
    if not main:
        return None
    before, after = (gold_ranks(evaluated.method(name).rankings[0].rows_QK, split.gold) for name in (BASE, main[-1]))
    passages = [rankers.text(rows[0]) for rows in split.gold]
    return choose_examples(main[-1], rankers.depth, split.questions, passages, before, after)


def _facts(workspace: Workspace) -> dict[str, object]:
    passages, examples, embeddings = (workspace.require(name) for name in ("passages", "examples", "embeddings"))
    facts: dict[str, object] = {"passages": passages.rows["passages"], **examples.rows, **examples.details}
    facts["passages cut to the encoder's window"] = embeddings.details["truncated_passages"]
    utilities = workspace.require("utilities")
    return facts | {f"scored {name}": count for name, count in utilities.rows.items()}
