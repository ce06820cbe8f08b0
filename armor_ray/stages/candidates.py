"""Stage `candidates`: base-retrieved pools for every question; training and validation pools also hold the gold passages."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from armor_ray.corpus.schemas import CANDIDATES
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.retrieval.dense import search
from armor_ray.retrieval.index_file import open_index
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.embed import open_embeddings
from armor_ray.stages.picks import PICKED_SPLITS, Pool, add_picks
from armor_ray.stages.prepare import SPLITS
from armor_ray.workspace import Draft, read_npy, read_parquet

STAGE = "candidates"


def run_all(context: Context, todo: list[Plan]) -> None:
    [plan] = todo
    config = context.config
    encoder = BiEncoder.load(config.encoder)
    index = open_index(context.local("index"), encoder.identity.fingerprint())
    vectors = open_embeddings(context.local("embeddings"))
    pool_size = config.candidates.pool_size
    tables = {split: read_parquet(context.local("examples") / f"{split}.parquet", "prepare") for split in SPLITS}
    queries = {split: encoder.encode(t["question"].to_pylist(), "query", config.encoder.batch_tokens) for split, t in tables.items()}
    pools = {
        split: retrieve_pools(index, vectors, queries[split], table["positive_ids"].to_pylist(), pool_size, split != "test")
        for split, table in tables.items()
    }
    if config.candidates.picks is not None:
        questions = {split: tables[split]["question"].to_pylist() for split in PICKED_SPLITS}
        pools |= add_picks(context, config.candidates.picks, index, queries, questions, pools)

    def write(draft: Draft) -> None:
        for split, table in tables.items():
            pq.write_table(_to_table(table["example_id"], pools[split]), draft.path / f"{split}.parquet")
            np.save(draft.path / f"queries-{split}.npy", queries[split])
            draft.rows[split] = len(table)
            draft.details[f"base recall@{pool_size} {split}"] = _recall(pools[split], pool_size)

    context.publish(plan, write)


def retrieve_pools(
    index: faiss.Index, vectors: np.ndarray, queries: np.ndarray, positives: list[list[int]], pool_size: int, add_gold: bool
) -> list[Pool]:
    """(passage rows, base cosines, is-gold flags) per question: top `pool_size` by the index, then gold passages it missed."""
    scores, rows = search(index, queries, pool_size)
    pools = []
    for query, question_scores, question_rows, gold in zip(queries, scores.tolist(), rows.tolist(), positives, strict=True):
        missed = [row for row in gold if row not in question_rows] if add_gold else []
        pool_rows = question_rows + missed
        pool_scores = question_scores + [float(query @ vectors[row]) for row in missed]
        pools.append((pool_rows, pool_scores, [row in gold for row in pool_rows]))
    return pools


def _recall(pools: list[Pool], pool_size: int) -> float:
    return round(float(np.mean([any(flags[:pool_size]) for _, _, flags in pools])), 4)


def _to_table(example_ids: pa.ChunkedArray, pools: list[Pool]) -> pa.Table:
    columns = [example_ids.combine_chunks(), [p[0] for p in pools], [p[1] for p in pools], [p[2] for p in pools]]
    return pa.table([pa.array(c, type=f.type) for c, f in zip(columns, CANDIDATES, strict=True)], schema=CANDIDATES)


def load_queries(folder: Path, split: str) -> np.ndarray:
    """Base query vectors fp32 [Q, D] of one split."""
    return np.array(read_npy(folder / f"queries-{split}.npy", STAGE))
