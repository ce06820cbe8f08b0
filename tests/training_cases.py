"""A tiny encoder, a small training table and configs for the training tests; importable from spawned processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel, BertTokenizer

from armor_ray.config import Config, EncoderConfig, validate_config
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.retrieval.exact import exact_top_k
from armor_ray.training.host import LocalHost
from armor_ray.training.loop import Trainer, TrainingResult
from armor_ray.training.table import QuestionPools, TrainingTable, pad_pools

WORDS = [f"w{i}" for i in range(40)]
ALL_RECIPES = ("rag", "infonce", "mix", "static_reg", "dynamic", "armor", "replug", "uae", "armor_uae")


def build_tiny_bert(folder: Path) -> Path:
    """Writes the model; weights are larger than BERT's own start, so that texts differ clearly."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ":", "query", "passage", *WORDS]
    BertTokenizer({token: i for i, token in enumerate(tokens)}, model_max_length=24).save_pretrained(folder)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokens), max_position_embeddings=24, initializer_range=0.15, **sizes)
    BertModel(config).save_pretrained(folder)
    return folder


def load_tiny(folder: Path, **options: Any) -> BiEncoder:
    defaults = {"model": str(folder), "max_length": 24, "query_prefix": "query: ", "passage_prefix": "passage: "}
    return BiEncoder.load(EncoderConfig(**(defaults | options)))


def make_table(encoder: BiEncoder, num_train: int = 14, num_validation: int = 7, pool_size: int = 5, seed: int = 0) -> TrainingTable:
    """24 passages, three a document, two with equal texts; each question shares words with its one or two gold passages."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, 8)) for _ in range(24)]
    texts[20] = texts[2]
    vectors_CD = encoder.encode(texts, "passage")
    num = num_train + num_validation
    positives = [np.sort(rng.choice(24, rng.integers(1, 3), replace=False)) for _ in range(num)]
    questions = [" ".join([*rng.choice(texts[gold[0]].split(), 3), *rng.choice(WORDS, 2)]) for gold in positives]
    base_QD = encoder.encode(questions, "query")
    _, top_QN = exact_top_k(base_QD, vectors_CD, pool_size)
    pool_QN = pad_pools([np.concatenate([top, np.setdiff1d(gold, top)]) for top, gold in zip(top_QN, positives, strict=True)])
    scored_QN = (pool_QN >= 0) & (rng.random(pool_QN.shape) > 0.1)
    utility_QN = (-rng.exponential(5.0, pool_QN.shape)).astype(np.float32)

    rewards = np.random.default_rng([seed, 1])
    reward_QN = np.where(pool_QN >= 0, rewards.normal(size=pool_QN.shape), np.nan).astype(np.float32)
    is_gold_QN = np.stack([np.isin(pool, gold) for pool, gold in zip(pool_QN, positives, strict=True)])
    gated_QN = (pool_QN >= 0) & ~is_gold_QN & (rewards.random(pool_QN.shape) < 0.7)

    def split(part: slice) -> QuestionPools:
        return QuestionPools(
            example_ids=[f"q{i}" for i in range(num)[part]],
            questions=questions[part],
            positives=positives[part],
            base_query_QD=base_QD[part],
            pool_QN=pool_QN[part],
            log_likelihood_QN=utility_QN[part],
            scored_QN=scored_QN[part],
            reward_QN=reward_QN[part],
            gated_QN=gated_QN[part],
        )

    _, text_C = np.unique(texts, return_inverse=True)
    return TrainingTable(split(slice(num_train)), split(slice(num_train, num)), vectors_CD, np.arange(24) // 3, text_C, texts)


def make_config(**sections: dict[str, Any]) -> Config:
    """`training`, `objective`, `candidates` on top of small defaults; learning rates are high enough to see."""
    training = {"batch_size": 4, "epochs": 2, "learning_rate": 1e-3, "dropout": False, "metric": "R@1", **sections.get("training", {})}
    candidates = {"pool_size": 5, "top_k": 4, **sections.get("candidates", {})}
    raw = {"seed": 3, "training": training, "candidates": candidates, "objective": sections.get("objective", {})}
    return validate_config(raw)


class PairTable:
    """A scorer with a fixed value for every pair, None for some; remembers what it was asked."""

    def __init__(self, failures: bool = True) -> None:
        self.calls: list[tuple[int, int]] = []
        self.num_calls = 0
        self._failures = failures

    def value(self, question: int, row: int) -> float | None:
        return None if self._failures and (question + row) % 5 == 0 else -((question * 31 + row * 7) % 11) / 2

    def __call__(self, pools: QuestionPools, questions: list[int], rows: list[int]) -> list[float | None]:
        self.num_calls += 1
        self.calls += zip(questions, rows, strict=True)
        return [self.value(question, row) for question, row in zip(questions, rows, strict=True)]


def train(config: Config, folder: Path, encoder: BiEncoder, table: TrainingTable, **options: Any) -> TrainingResult:
    """One process, no Ray, checkpoints in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return Trainer(config, table, encoder, LocalHost(folder), **options).run()


def weights_of(encoder: BiEncoder) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in encoder.named_parameters()}
