"""Zero-shot transfer: retrievers of one workspace on the test questions of others (UAE, Figure 5).

A retriever that kept the index searches the other workspace's own vectors, so only questions are encoded. One that trained both
towers embeds the other corpus anew, for this evaluation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import ray

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.evaluation.labels import BASE
from armor_ray.evaluation.metrics import retrieval_metrics
from armor_ray.evaluation.summary import Row, metric_rows, read_summary, write_summary
from armor_ray.evaluation.tables import Table
from armor_ray.evaluation.transfer import transfer_figure, transfer_metrics, transfer_table
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.hardware import choose_device
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.context import Context, Plan, config_of
from armor_ray.stages.embed import open_embeddings
from armor_ray.stages.methods import Adapted, adapted_methods
from armor_ray.stages.plans import transfer_plan
from armor_ray.stages.prepare import load_passages
from armor_ray.stages.rankings import BASE_CORPUS, Rankers, Ranking, base_query_vectors, corpus_searched, load_split
from armor_ray.workspace import Draft, Workspace

NAME = "transfer"
_FIGURE = "transfer.png"
SUMMARY = "summary.json"


def run_all(context: Context, todo: list[Plan]) -> None:
    """The main recipe's rows on the data that `evaluation.transfer_to` names."""
    [plan] = todo
    config = context.config
    chosen = _chosen(config, ())
    rows = _all_rows(config, context.workspace, _datasets(config, config.evaluation.transfer_to), chosen, context.say)
    context.publish(plan, lambda draft: _write(draft, config, rows))


@dataclass(frozen=True, slots=True)
class DataSet:
    """A workspace whose test questions are asked, under the name that tables give it."""

    name: str
    workspace: Workspace


def transfer(config: Config, others: Sequence[str], methods: Sequence[str], say: Callable[[str], None]) -> Table:
    """Evaluates rows of `config`'s workspace on that workspace and on others; publishes table and picture as its `transfer`.

    Args:
        others: workspaces with a test split, vectors and candidates.
        methods: trained rows by name, all seeds of each; empty: those of the main recipe.

    Raises:
        ArmorError: an unknown method, or another workspace that is not prepared or has vectors of another base encoder.
    """
    source = Workspace(config.workspace)
    chosen = _chosen(config, methods)
    plan = transfer_plan(config, lambda name: source.require(name).fingerprint, others, chosen)
    rows = _all_rows(config, source, _datasets(config, others), chosen, say)
    with source.lock():
        Context(config, source, say).publish(plan, lambda draft: _write(draft, config, rows))
    return transfer_table(rows, transfer_metrics(config.training.metric), rows[0].dataset)


def load_transfer(workspace: Workspace) -> list[Row]:
    """The rows of the published transfer, the data set that was trained on first."""
    return read_summary(workspace.local(NAME) / SUMMARY)


def _all_rows(
    config: Config, source: Workspace, datasets: Sequence[DataSet], chosen: Sequence[Adapted], say: Callable[[str], None]
) -> list[Row]:
    for dataset in datasets[1:]:
        _check_encoder(source, dataset.workspace)
    connect(source)
    rows: list[Row] = []
    for dataset in datasets:
        say(f"{NAME}: {dataset.name}")
        rows += _evaluate(config, source, dataset, chosen)
    return rows


def _write(draft: Draft, config: Config, rows: Sequence[Row]) -> None:
    write_summary(draft.path / SUMMARY, rows)
    transfer_figure(rows, draft.path / _FIGURE, transfer_metrics(config.training.metric), rows[0].dataset)
    draft.rows["rows"] = len(rows)


def _chosen(config: Config, methods: Sequence[str]) -> list[Adapted]:
    trained = {row.method: row for row in adapted_methods(config)}
    unknown = [name for name in methods if name not in trained]
    if unknown:
        raise ArmorError(f"no trained row '{unknown[0]}'", where=config.workspace, hint=f"trained: {', '.join(trained)}")
    return [trained[name] for name in methods] or [row for row in trained.values() if row.is_main]


def _check_encoder(source: Workspace, target: Workspace) -> None:
    own, other = (workspace.require(BASE_CORPUS).details["encoder"] for workspace in (source, target))
    if own != other:
        message = f"its base encoder ({other}) is not the one that the retrievers of {source.uri} adapt ({own})"
        raise ArmorError(message, where=target.uri, hint="embed it with the same encoder section")


def _datasets(config: Config, others: Sequence[str]) -> list[DataSet]:
    """Own and other data sets by their names; a name that occurs twice is told apart by its workspace."""
    configs = [config, *map(config_of, others)]
    names = [found.data.name for found in configs]
    return [_named(found, names.count(found.data.name) == 1) for found in configs]


def _named(config: Config, is_unique: bool) -> DataSet:
    folder = config.workspace.rstrip("/").rpartition("/")[2]
    return DataSet(config.data.name if is_unique else f"{config.data.name} ({folder})", Workspace(config.workspace))


def _evaluate(config: Config, source: Workspace, dataset: DataSet, chosen: Sequence[Adapted]) -> list[Row]:
    split = load_split(dataset.workspace, "test")
    ks = sorted({*config.evaluation.ks, config.training.metric_depth, 1})

    def values(rankings: Sequence[Ranking]) -> dict[str, np.ndarray]:
        per_seed = [retrieval_metrics(ranking.rows_QK, split.gold, ks) for ranking in rankings]
        return {metric: np.stack([found[metric] for found in per_seed]) for metric in per_seed[0]}

    def rows_of(method: str, found: dict[str, np.ndarray], reference: tuple[str, dict[str, np.ndarray]] | None) -> list[Row]:
        return metric_rows(dataset.name, method, found, reference, config.evaluation.bootstrap, config.seed)

    rankers = Rankers(dataset.workspace, max(ks))
    base = values([rankers.dense(base_query_vectors(dataset.workspace)["test"])])
    rows = rows_of(BASE, base, None)
    rank = ray.remote(_rank).options(**plan_actors(config.resources, 1, 1).options)
    for row in chosen:
        with user_errors():
            rankings = ray.get([rank.remote(source.uri, dataset.workspace.uri, artifact, rankers.depth) for artifact in row.artifacts])
        rows += rows_of(row.method, values(rankings), (BASE, base))
    return rows


def _rank(source_uri: str, target_uri: str, retriever: str, depth: int) -> Ranking:
    source, target = Workspace(source_uri), Workspace(target_uri)
    encoder = BiEncoder.from_folder(source.local(retriever)).to(choose_device())
    passages_CD = _vectors(source, target, retriever, encoder)
    queries_QD = encoder.encode(load_split(target, "test").questions, "query")
    scores, rows = exact_top_k(queries_QD, passages_CD, depth)
    return Ranking(rows, scores)


def _vectors(source: Workspace, target: Workspace, retriever: str, encoder: BiEncoder) -> np.ndarray:
    """The target's passages as the retriever sees them, [C, D]."""
    corpus = corpus_searched(source, retriever)
    if corpus == BASE_CORPUS or target.uri == source.uri:
        return open_embeddings(target.local(corpus))
    return encoder.encode(load_passages(target, "text").column("text").to_pylist(), "passage")
