"""(c) One training step on frozen vectors and cached likelihoods against one that re-encodes its passages and asks the LLM inside.

Theirs is the ARMOR authors' step reduced to what is compared: the batch's 4 × 16 passages are encoded again, question by question, the LLM
scores them one sequence at a time in fp32, and then the very step of our trainer follows. What else their code does in a step (a second
half-step for the temperatures with 64 passages of a validation batch; the search for the top 16; the base query's pass) is left out in
their favour.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from armor_ray.config import with_overrides
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.models.generators.hf import HfGenerator
from armor_ray.models.generators.prompts import PromptBuilder
from armor_ray.models.generators.protocol import ScoreRequest, ScoreResult
from armor_ray.models.generators.results import collect_results, scorable_paths
from armor_ray.objectives.likelihoods import combine_answers
from armor_ray.training.batches import BatchPlan
from armor_ray.training.host import LocalHost
from armor_ray.training.loop import Trainer
from armor_ray.training.table import PADDING, QuestionPools, TrainingTable, pad_pools
from benchmarks.authors import load_plain, score_one_by_one
from benchmarks.inputs import Inputs, Questions, Scale
from benchmarks.measure import Cost, median_cost, race
from benchmarks.report import Outcome, speed_up
from benchmarks.scoring import count_tokens

BATCH, TOP_K = 4, 16
_OUR_STEPS = 8  # timed together, since one alone takes a fraction of a second


@dataclass(frozen=True, slots=True)
class Steps:
    """The measured race.

    Attributes:
        ours, theirs: cost of one step.
        llm_tokens: that theirs sends through the LLM in one step, on average.
        difference: the largest between a cached likelihood of ours and the one that theirs computed in the step, nats.
        trainer: ours, after its steps.
    """

    ours: Cost
    theirs: Cost
    llm_tokens: float
    difference: float
    trainer: Trainer


def measure(inputs: Inputs, scale: Scale, folder: Path) -> Steps:
    """Takes the first batches of an epoch in both ways. `folder` is the trainer's."""
    config = with_overrides(inputs.config, {"training.batch_size": BATCH, "candidates.top_k": TOP_K})
    table = build_table(inputs)
    trainer = Trainer(config, table, copy.deepcopy(inputs.encoder), LocalHost(folder))
    generator = HfGenerator(config.generator)
    theirs = AuthorsStep(inputs, table, trainer, load_plain(config.generator.model, torch.float32), generator.prompts)
    plan = BatchPlan(len(table.train), BATCH, config.seed)
    trainer._train_step(0)
    costs: list[dict[str, Cost]] = []
    for step in range(scale.steps):
        questions = plan.batch(step)[0].tolist()
        cache_likelihoods(inputs, table, questions, generator)
        costs.append(_race_one(trainer, theirs, step, questions))
    return Steps(
        ours=median_cost([cost["ours"] for cost in costs]).per(_OUR_STEPS),
        theirs=median_cost([cost["theirs"] for cost in costs]),
        llm_tokens=theirs.llm_tokens / scale.steps,
        difference=theirs.difference,
        trainer=trainer,
    )


def _race_one(trainer: Trainer, theirs: AuthorsStep, step: int, questions: list[int]) -> dict[str, Cost]:
    def ours() -> None:
        for _ in range(_OUR_STEPS):
            trainer._train_step(step)

    finished = race({"ours": ours, "theirs": lambda: theirs(step, questions)}, repeats=1)
    return {name: finish.cost for name, finish in finished.items()}


class AuthorsStep:
    """A training step that computes its passage vectors and likelihoods itself.

    They go into the arrays that the trainer reads, so that the rest of the step is the same code for both sides.
    """

    def __init__(self, inputs: Inputs, table: TrainingTable, trainer: Trainer, model: Any, prompts: PromptBuilder) -> None:
        self._inputs = inputs
        self._table = table
        self._trainer = trainer
        self._model = model
        self._prompts = prompts
        self.llm_tokens = 0
        self.difference = 0.0

    def __call__(self, step: int, questions: Sequence[int]) -> None:
        pools = self._table.train
        for question in questions:
            rows = pools.pool_QN[question, :TOP_K]
            self._table.passages_CD[rows] = encode_batch(self._inputs.encoder, [self._inputs.text(row) for row in rows.tolist()])
            likelihoods = self._score([self._inputs.request(question, row) for row in rows.tolist()])
            known = pools.log_likelihood_QN[question, :TOP_K]
            self.difference = max(self.difference, float(np.abs(known - likelihoods).max()))
            pools.log_likelihood_QN[question, :TOP_K] = likelihoods
        self._trainer._train_step(step)

    def _score(self, requests: Sequence[ScoreRequest]) -> list[float]:
        prompts = self._prompts.score_prompts(requests)
        paths = scorable_paths(prompts)
        self.llm_tokens += count_tokens(paths)
        results = collect_results(requests, prompts, score_one_by_one(self._model, paths))
        return pair_likelihoods(results, self._inputs.config.objective.length_normalised)


@torch.inference_mode()
def encode_batch(encoder: BiEncoder, texts: Sequence[str]) -> np.ndarray:
    """Unit vectors [len(texts), D] from one padded batch."""
    return encoder(*encoder.pad(encoder.tokenize(texts, "passage"))).numpy()


def pair_likelihoods(results: Sequence[ScoreResult], normalised: bool) -> list[float]:
    """One likelihood a pair, nats, its answers combined as the training table has them."""
    scored = [[score for score in result.scores if score is not None] for result in results]
    return [combine_answers([s.log_likelihood for s in scores], [s.tokens for s in scores], normalised) for scores in scored]


def build_table(inputs: Inputs) -> TrainingTable:
    """The training table of these inputs; its likelihoods are zeros until `cache_likelihoods` fills those that a step reads."""
    pool_QN = pad_pools([np.asarray(pool, np.int64) for pool in inputs.pools])
    validation = inputs.splits["validation"]
    gold_QN = pad_pools([np.asarray(rows, np.int64) for rows in validation.positives])
    return TrainingTable(
        train=_question_pools(inputs.splits["train"], inputs.queries["train"], pool_QN),
        validation=_question_pools(validation, inputs.queries["validation"], gold_QN),
        passages_CD=inputs.vectors_CD.copy(),
        document_C=np.unique(inputs.passages["doc_id"].to_pylist(), return_inverse=True)[1],
        text_C=np.unique(inputs.passages["text"].to_pylist(), return_inverse=True)[1],
    )


def _question_pools(questions: Questions, base_query_QD: np.ndarray, pool_QN: np.ndarray) -> QuestionPools:
    return QuestionPools(
        example_ids=questions.ids,
        questions=questions.texts,
        positives=[np.asarray(rows, np.int64) for rows in questions.positives],
        base_query_QD=base_query_QD,
        pool_QN=pool_QN,
        log_likelihood_QN=np.zeros(pool_QN.shape, np.float32),
        scored_QN=pool_QN != PADDING,
    )


def cache_likelihoods(inputs: Inputs, table: TrainingTable, questions: Sequence[int], generator: HfGenerator) -> None:
    """Scores the pools of these questions with our engine, as the `score` stage did before training."""
    for question in questions:
        pool = inputs.pools[question]
        results = generator.score([inputs.request(question, passage) for passage in pool])
        values = pair_likelihoods(results, inputs.config.objective.length_normalised)
        table.train.log_likelihood_QN[question, : len(pool)] = values


def outcome(steps: Steps) -> Outcome:
    """Row and remarks of (c)."""
    name = f"(c) training step, batch {BATCH}, top-{TOP_K}: vs encoding and LLM inside"
    notes = [
        f"(c) their step sends {steps.llm_tokens:,.0f} tokens through the LLM; "
        f"wall s a step: ours {steps.ours.wall:.3f}, theirs {steps.theirs.wall:.1f}",
        f"(c) our cached likelihoods and those of their step differ by at most {steps.difference:.2g} nats, as the table holds them",
    ]
    return Outcome([speed_up(name, steps.ours.cpu, steps.theirs.cpu, "CPU-s a step", 100.0)], notes)
