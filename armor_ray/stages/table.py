"""Assembles the training table from the artifacts: the one thing that training reads."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from armor_ray.config import Config
from armor_ray.corpus.schemas import UTILITIES, validate_table
from armor_ray.retrieval.lexical import Bm25
from armor_ray.stages.candidates import load_queries
from armor_ray.stages.embed import open_embeddings
from armor_ray.stages.methods import needs_bm25, needs_rewards
from armor_ray.stages.mine import load_mined
from armor_ray.stages.plans import scored_splits
from armor_ray.stages.prepare import load_examples, load_passages
from armor_ray.stages.score import combined_likelihood
from armor_ray.training.table import QuestionPools, TrainingTable, pad_pools
from armor_ray.workspace import Workspace, read_parquet


def load_table(workspace: Workspace, config: Config) -> TrainingTable:
    """Reads both splits' pools, utilities (combined over answers) and the frozen vectors."""
    passages = load_passages(workspace, "doc_id", "text")
    pools = {split: _pools(workspace, config, split, split in scored_splits(config)) for split in ("train", "validation")}
    return TrainingTable(
        train=pools["train"],
        validation=pools["validation"],
        passages_CD=open_embeddings(workspace.local("embeddings")),
        document_C=_codes(passages["doc_id"]),
        text_C=_codes(passages["text"]),
        texts_C=passages["text"].to_pylist() if needs_rewards(config) else None,
        lexical=Bm25(passages["text"].to_pylist()) if needs_bm25(config) else None,
    )


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    return column.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _pools(workspace: Workspace, config: Config, split: str, scored: bool) -> QuestionPools:
    examples = load_examples(workspace, split)
    candidates = workspace.local("candidates")
    pool_rows = read_parquet(candidates / f"{split}.parquet", "candidates")["passage_ids"].to_pylist()
    example_ids = examples["example_id"].to_pylist()
    pool_QN = pad_pools([np.asarray(rows, np.int64) for rows in pool_rows])
    likelihoods = _likelihoods(workspace.local("utilities") / f"{split}.parquet", config.objective.length_normalised) if scored else {}
    log_likelihood_QN = np.zeros(pool_QN.shape, np.float32)
    scored_QN = np.zeros(pool_QN.shape, bool)
    for i, (example, rows) in enumerate(zip(example_ids, pool_rows, strict=True)):
        for j, row in enumerate(rows):
            value = likelihoods.get((example, row))
            if value is not None:
                log_likelihood_QN[i, j], scored_QN[i, j] = value, True
    reward_QN, gated_QN = load_mined(workspace, split, pool_QN) if needs_rewards(config) else (None, None)
    return QuestionPools(
        example_ids=example_ids,
        questions=examples["question"].to_pylist(),
        positives=[np.asarray(ids, np.int64) for ids in examples["positive_ids"].to_pylist()],
        base_query_QD=load_queries(candidates, split),
        pool_QN=pool_QN,
        log_likelihood_QN=log_likelihood_QN,
        scored_QN=scored_QN,
        reward_QN=reward_QN,
        gated_QN=gated_QN,
    )


def _likelihoods(path: Path, normalised: bool) -> dict[tuple[str, int], float]:
    """Per (example, passage): answers combined to one value in nats; pairs without any scored answer are absent."""
    table = validate_table(read_parquet(path, "score"), UTILITIES, str(path))
    answers = defaultdict(list)
    columns = [table[name].to_pylist() for name in ("example_id", "passage_id", "log_likelihood", "answer_tokens", "error")]
    for example, passage, value, tokens, error in zip(*columns, strict=True):
        answers[example, passage].append((value, tokens, error))
    combined = {pair: combined_likelihood(entries, normalised) for pair, entries in answers.items()}
    return {pair: value for pair, value in combined.items() if value is not None}
