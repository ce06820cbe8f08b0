"""Zero-shot transfer: retrievers of one workspace on the test questions of others (UAE, Figure 5).

A retriever that kept the index searches the other workspace's own vectors, so only questions are encoded. One that trained both
towers embeds the other corpus anew, for this evaluation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.evaluation.labels import BASE
from armor_ray.evaluation.metrics import retrieval_metrics
from armor_ray.evaluation.summary import Row, metric_rows, write_summary
from armor_ray.evaluation.tables import Table
from armor_ray.evaluation.transfer import transfer_figure, transfer_table
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.hardware import choose_device
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.embed import open_embeddings
from armor_ray.stages.methods import Adapted, adapted_methods
from armor_ray.stages.prepare import load_passages
from armor_ray.stages.rankings import BASE_CORPUS, Rankers, Ranking, base_query_vectors, corpus_searched, load_split
from armor_ray.workspace import Draft, Workspace, fingerprint

NAME = "transfer"
_FIGURE = "transfer.png"


@dataclass(frozen=True, slots=True)
class DataSet:
    """A workspace whose test questions are asked, under the name that tables give it."""

    name: str
    workspace: Workspace


def transfer(config: Config, targets: Sequence[tuple[Workspace, Config]], methods: Sequence[str], say: Callable[[str], None]) -> Table:
    """Evaluates rows of `config`'s workspace on that workspace and on the targets; publishes table and picture as its `transfer`.

    Args:
        targets: other workspaces, each with a test split, vectors and candidates.
        methods: trained rows by name, all seeds of each; empty: those of the main recipe.

    Raises:
        ArmorError: an unknown method, or a target with vectors of another base encoder.
    """
    source = Workspace(config.workspace)
    chosen = _chosen(config, methods)
    for target, _ in targets:
        _check_encoder(source, target)
    datasets = _named([(source, config), *targets])
    connect(source)
    rows: list[Row] = []
    for dataset in datasets:
        say(f"{NAME}: {dataset.name}")
        rows += _evaluate(config, source, dataset, chosen)
    table = transfer_table(rows, _metrics(config), datasets[0].name)
    _publish(config, source, datasets, chosen, rows)
    return table


def _metrics(config: Config) -> list[str]:
    return [*dict.fromkeys(["R@1", config.training.metric, "MAP"])]


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


def _named(workspaces: Sequence[tuple[Workspace, Config]]) -> list[DataSet]:
    """Data sets by their names; a name that occurs twice is told apart by its workspace."""
    names = [config.data.name for _, config in workspaces]
    return [
        DataSet(name if names.count(name) == 1 else f"{name} ({workspace.uri.rstrip('/').rpartition('/')[2]})", workspace)
        for name, (workspace, _) in zip(names, workspaces, strict=True)
    ]


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


def _publish(config: Config, source: Workspace, datasets: Sequence[DataSet], chosen: Sequence[Adapted], rows: Sequence[Row]) -> None:
    artifacts = [artifact for row in chosen for artifact in row.artifacts]
    inputs = {artifact: source.require(artifact).fingerprint for artifact in artifacts}
    inputs |= {f"{dataset.workspace.uri}/{name}": dataset.workspace.require(name).fingerprint for dataset in datasets for name in _READ}
    settings: dict[str, Any] = {"methods": [row.method for row in chosen], "evaluation": config.evaluation.model_dump(include={"ks"})}

    def write(draft: Draft) -> None:
        write_summary(draft.path / "summary.json", rows)
        transfer_figure(rows, draft.path / _FIGURE, _metrics(config), datasets[0].name)
        draft.rows["rows"] = len(rows)

    with source.lock():
        source.publish(NAME, stage=NAME, fingerprint=fingerprint(NAME, settings, inputs), inputs=inputs, config=settings, write=write)


_READ = ("passages", "examples", BASE_CORPUS)
"""What a data set consists of here."""
