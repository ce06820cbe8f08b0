"""(b) Embedding: `BiEncoder.encode` against `SentenceTransformer.encode` on the same weights and passages, in fp32 and in bf16."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.hardware import DtypeName, choose_dtype, dtype_name
from armor_ray.retrieval.exact import exact_top_k
from benchmarks.inputs import Inputs, Questions, Scale
from benchmarks.measure import Cost, race
from benchmarks.report import Outcome, Row, speed_up

_RECALL_AT = (1, 3, 5)
_RECALL_LOSS = 0.002
_VECTOR_TOLERANCE = 1e-4
_WARM_UP = 32


@dataclass(frozen=True, slots=True)
class Subset:
    """Passages, and the questions with gold among them as positions in `texts`."""

    texts: list[str]
    questions: list[str]
    positives: list[list[int]]


def heldout_subset(inputs: Inputs, limit: int | None) -> Subset:
    """The passages of documents that test questions belong to, at most about `limit`, and the test questions on these documents."""
    test: Questions = inputs.splits["test"]
    doc_of_row = inputs.passages["doc_id"].to_pylist()
    wanted = set(test.doc_ids)
    rows = [row for row, doc_id in enumerate(doc_of_row) if doc_id in wanted][:limit]
    position = {row: i for i, row in enumerate(rows)}
    kept = [i for i, gold in enumerate(test.positives) if all(row in position for row in gold)]
    positives = [[position[row] for row in test.positives[i]] for i in kept]
    return Subset([inputs.text(row) for row in rows], [test.texts[i] for i in kept], positives)


def run(inputs: Inputs, scale: Scale) -> Outcome:
    """Races fp32 and, where the CPU multiplies in it, bf16 against sentence-transformers; compares vectors and recall.

    Raises:
        RuntimeError: the fp32 vectors are not the same, so the times say nothing.
    """
    subset = heldout_subset(inputs, scale.passages)
    encoder = inputs.encoder
    other = as_sentence_transformer(encoder)
    # As the stage `embed` has them.
    frozen = {dtype_name(dtype): _frozen(encoder, dtype) for dtype in (torch.float32, choose_dtype("auto", encoder.device))}

    def encode(name: DtypeName, texts: list[str]) -> np.ndarray:
        return frozen[name].encode(texts, "passage", inputs.config.encoder.batch_tokens, getattr(torch, name))

    sides: dict[str, Callable[[], np.ndarray]] = {"sentence-transformers": lambda: other.encode(subset.texts)}
    sides["fp32"] = lambda: encode("float32", subset.texts)
    if "bfloat16" in frozen:
        sides["bf16"] = lambda: encode("bfloat16", subset.texts)
    other.encode(subset.texts[:_WARM_UP])
    for name in frozen:
        encode(name, subset.texts[:_WARM_UP])
    finished = race(sides, scale.repeats)
    costs = {name: finish.cost for name, finish in finished.items()}
    vectors = {name: finish.value for name, finish in finished.items()}
    difference = float(np.abs(vectors["fp32"] - vectors["sentence-transformers"]).max())
    if difference > _VECTOR_TOLERANCE:
        raise RuntimeError(f"the race is void: fp32 vectors differ by {difference:.2g}")
    notes = [_describe(subset, encoder, costs), f"(b) fp32 vectors differ from sentence-transformers' by at most {difference:.1g}"]
    rows = [_race_row("fp32", costs, len(subset.texts), 1.0)]
    if "bf16" in sides:
        queries_QD = encoder.encode(subset.questions, "query")
        rows += [_race_row("bf16", costs, len(subset.texts), 2.5), *_recall_rows(vectors, queries_QD, subset)]
        cosines = (vectors["bf16"] * vectors["sentence-transformers"]).sum(1)
        notes.append(f"(b) lowest cosine between a bf16 vector and sentence-transformers' fp32 one: {cosines.min():.5f}")
    else:
        notes.append("(b) this CPU does not multiply in bf16: not measured")
    return Outcome(rows, notes)


def _frozen(encoder: BiEncoder, dtype: torch.dtype) -> BiEncoder:
    copied = copy.deepcopy(encoder)
    copied.freeze(dtype)
    return copied


def as_sentence_transformer(encoder: BiEncoder) -> SentenceTransformer:
    """The same model as that library loads it, from a folder as `BiEncoder.save` exports it."""
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(folder)
        return SentenceTransformer(folder, device="cpu")


def recall(queries_QD: np.ndarray, vectors_CD: np.ndarray, positives: Sequence[Sequence[int]]) -> dict[int, float]:
    """Share of questions with at least one gold passage among the top k, by k."""
    _, rows_QK = exact_top_k(queries_QD, vectors_CD, max(_RECALL_AT))
    hits_QK = np.stack([np.isin(rows, gold) for rows, gold in zip(rows_QK, positives, strict=True)])
    return {k: float(hits_QK[:, :k].any(1).mean()) for k in _RECALL_AT}


def _race_row(dtype: str, costs: dict[str, Cost], num_passages: int, target: float) -> Row:
    ours, theirs = (1000 * costs[name].cpu / num_passages for name in (dtype, "sentence-transformers"))
    return speed_up(f"(b) embedding: {dtype} vs SentenceTransformer.encode", ours, theirs, "CPU-ms a passage", target)


def _recall_rows(vectors: dict[str, np.ndarray], queries_QD: np.ndarray, subset: Subset) -> list[Row]:
    """The target of each is "at most 0.2 points below"."""
    ours, theirs = (recall(queries_QD, vectors[name], subset.positives) for name in ("bf16", "sentence-transformers"))
    names = {k: f"(b) recall@{k}: bf16 vs fp32 passage vectors" for k in _RECALL_AT}
    return [Row(names[k], ours[k], theirs[k], f"recall@{k}", ours[k] / theirs[k], 1 - _RECALL_LOSS / theirs[k]) for k in _RECALL_AT]


def _describe(subset: Subset, encoder: BiEncoder, costs: dict[str, Cost]) -> str:
    tokens = sum(map(len, encoder.tokenize(subset.texts, "passage")))
    rates = ", ".join(f"{name} {tokens / cost.cpu:,.0f}" for name, cost in costs.items())
    return f"(b) {len(subset.texts)} passages of {tokens} tokens, {len(subset.questions)} test questions; tokens a CPU-second: {rates}"
