"""The promotion gate: what a retriever changes against the base encoder, domain by domain, on the test questions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from armor_ray.config import Config
from armor_ray.errors import ArmorError
from armor_ray.evaluation.labels import BASE, BM25
from armor_ray.evaluation.significance import PairedDifference, paired_bootstrap
from armor_ray.stages.methods import INTERPOLATED, Adapted, adapted_methods
from armor_ray.stages.prepare import load_examples
from armor_ray.workspace import Manifest, Workspace, read_parquet

ALL = "all questions"
# The percentile bootstrap of a handful of questions is too narrow: one question that got worse would be "significant".
MIN_QUESTIONS = 10


@dataclass(frozen=True, slots=True)
class DomainChange:
    """The mean change of a metric over the questions of one domain, retriever minus base."""

    domain: str
    questions: int
    change: PairedDifference

    @property
    def is_regression(self) -> bool:
        """Whether the 95 % interval lies below 0, over enough questions to tell."""
        return self.questions >= MIN_QUESTIONS and self.change.high < 0

    def __str__(self) -> str:
        change = self.change
        return f"{self.domain} {100 * change.difference:+.1f} points ({100 * change.low:+.1f} to {100 * change.high:+.1f})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the evaluation says about a retriever; the first change is over all questions."""

    retriever: str
    metric: str
    changes: list[DomainChange]

    def require_no_regression(self) -> None:
        """Raises ArmorError naming every domain that got significantly worse."""
        worse = [str(change) for change in self.changes if change.is_regression]
        if worse:
            message = f"'{self.retriever}' is significantly worse than {BASE} in {self.metric}: {', '.join(worse)}"
            raise ArmorError(message, where="promote", hint="promote another retriever, or insist with --force")

    def facts(self) -> dict[str, Any]:
        """The figures as the manifest of `promoted` keeps them."""
        return {"metric": self.metric, "changes": [asdict(change) for change in self.changes]}


def judge(workspace: Workspace, config: Config, retriever: str) -> Verdict:
    """Compares `retrievers/<retriever>` with the base encoder per domain, in the metric that picked its checkpoint.

    One that learned beside BM25 (`objective.lexical_weight`) is compared as it is served, both fused with BM25.

    Raises:
        ArmorError: the workspace's report does not cover the retriever as it is now.
    """
    row, seed = _evaluated_as(config, retriever)
    trained = _require_current(workspace, retriever)
    metric, before, after = config.training.metric, BASE, row.method
    if beside_bm25 := bool(trained.config.get("objective", {}).get("lexical_weight")):
        if not row.is_fused:
            raise _unknown(retriever, " fused with BM25", "add its recipe to evaluation.fused and run `armor-ray evaluate W`")
        before, after = (f"{BM25}+{method}" for method in (before, after))
    results = read_parquet(workspace.local("reports") / "results.parquet", "evaluate")
    examples = load_examples(workspace, "test")
    ids = examples["example_id"].to_pylist()
    before_Q, after_Q = (_values(results, *method, metric, ids) for method in ((before, 0), (after, seed)))
    label = f"{metric} fused with BM25" if beside_bm25 else metric
    return Verdict(retriever, label, _changes(after_Q, before_Q, np.array(examples["domain"].to_pylist()), config))


def _values(results: pa.Table, method: str, seed: int, metric: str, ids: list[str]) -> np.ndarray:
    """A method's metric per question [Q], in the order of `ids`."""
    rows = results.filter((pc.field("method") == method) & (pc.field("seed") == seed))
    values = dict(zip(rows["example_id"].to_pylist(), rows[metric].to_pylist(), strict=True))
    return np.array([values[example] for example in ids])


def _changes(after_Q: np.ndarray, before_Q: np.ndarray, domains_Q: np.ndarray, config: Config) -> list[DomainChange]:
    everything = np.ones(len(domains_Q), bool)
    names = sorted(set(domains_Q.tolist()))
    groups = [(ALL, everything)] + ([(name or "no domain", domains_Q == name) for name in names] if len(names) > 1 else [])
    resamples, seed = config.evaluation.bootstrap, config.seed
    return [DomainChange(name, int(of.sum()), paired_bootstrap(after_Q[of], before_Q[of], resamples, seed)) for name, of in groups]


def _evaluated_as(config: Config, retriever: str) -> tuple[Adapted, int]:
    """Row and seed number of a retriever in the results."""
    for row in adapted_methods(config):
        if f"retrievers/{retriever}" in row.artifacts:
            return row, row.artifacts.index(f"retrievers/{retriever}")
    raise _unknown(retriever)


def _require_current(workspace: Workspace, retriever: str) -> Manifest:
    """Of the trained retriever."""
    reports = workspace.manifest("reports")
    # An interpolated encoder is made with its plain one, and shares its fingerprint.
    trained = workspace.require(f"retrievers/{retriever}".removesuffix(INTERPOLATED))
    if reports is None or reports.inputs.get(trained.name) != trained.fingerprint:
        raise _unknown(retriever)
    return trained


def _unknown(retriever: str, how: str = " as it is now", remedy: str = "run `armor-ray evaluate W` first") -> ArmorError:
    return ArmorError(f"no report judges '{retriever}'{how}", where="promote", hint=f"{remedy}, or insist with --force")
