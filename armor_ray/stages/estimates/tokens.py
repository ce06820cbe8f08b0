"""Tokens of prompts, passages and questions, by the models' own tokenizers on a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from armor_ray.config import Config, EncoderConfig
from armor_ray.corpus.splitting import SPLITS
from armor_ray.errors import ArmorError
from armor_ray.models.generators.prompts import CLOSED_BOOK, OPEN_BOOK, PromptBuilder, join_passages
from armor_ray.models.generators.protocol import GenerationRequest, ScoreRequest
from armor_ray.models.hub import loading, resolve_model
from armor_ray.stages.estimates.sample import SAMPLE, DataSample

_CHARACTERS_A_TOKEN = 4
_GUESS = f"{_CHARACTERS_A_TOKEN} characters a token, as the tokenizer is out of reach"


@dataclass(frozen=True, slots=True)
class EncoderTokens:
    """Mean tokens of one passage and of one question, special tokens included, cut to the encoder's window; and how they were counted."""

    passage: float
    question: float
    how: str


@dataclass(frozen=True, slots=True)
class GeneratorTokens:
    """Mean tokens of one pair's prompt, of the answers to it, and of a generation prompt; and how they were counted.

    Attributes:
        prompt: of a question with one passage.
        answers: of all reference answers of a question.
        num_answers: reference answers of a question.
        context: of a question with `evaluation.generation_top_k` passages.
        closed_book: of a question alone.
    """

    prompt: float
    answers: float
    num_answers: float
    context: float
    closed_book: float
    how: str

    def pair(self, engine: str) -> float:
        """Tokens of scoring one pair: `hf` reads the prompt once for all answers, others once for each."""
        return self.prompt * (1 if engine == "hf" else self.num_answers) + self.answers


def encoder_tokens(config: EncoderConfig, sample: DataSample) -> EncoderTokens:
    """Counts a sample of passages and questions.

    Raises:
        ArmorError: no such model folder.
    """
    tokenizer = _tokenizer(config.model, config.revision, config.trust_remote_code)
    how = _GUESS if tokenizer is None else f"tokenizer on {len(sample.texts)} passages, cut at {config.max_length}"
    lengths = [[min(_length(tokenizer, text), config.max_length) for text in texts] for texts in (sample.texts, _questions(sample))]
    return EncoderTokens(_mean(lengths[0]), _mean(lengths[1]), how)


def generator_tokens(config: Config, sample: DataSample) -> GeneratorTokens:
    """Counts the prompts of a sample of questions, each with random passages: which ones it will get is known after retrieval.

    Raises:
        ArmorError: no such model folder, or a chat template that does not show the question.
    """
    rows = sample.examples["train"].slice(0, SAMPLE).to_pylist()
    settings, top_k = config.generator, config.evaluation.generation_top_k
    contexts = [tuple(sample.texts[(i + j) % len(sample.texts)] for j in range(top_k)) for i in range(len(rows))]
    tokenizer = None if settings.engine == "openai" else _tokenizer(settings.model, settings.revision, settings.trust_remote_code)
    if tokenizer is None:
        return _guess(rows, contexts, settings.context_characters)
    builder = PromptBuilder(tokenizer, settings.max_length)
    pairs = [(row, context[0]) for row, context in zip(rows, contexts, strict=True)]
    prompts = builder.score_prompts([ScoreRequest("", row["question"], passage, tuple(row["answers"])) for row, passage in pairs])
    asked = [GenerationRequest(row["question"], context) for row, context in zip(rows, contexts, strict=True)]
    closed = [GenerationRequest(row["question"], ()) for row in rows]
    limits = (settings.max_new_tokens, settings.context_characters)
    return GeneratorTokens(
        prompt=_mean([len(p.head) + len(p.passage) + len(p.question) for p in prompts]),
        answers=_mean([sum(len(answer) for answer in p.answers if answer) for p in prompts]),
        num_answers=_mean([len(p.answers) for p in prompts]),
        context=_mean(list(map(len, builder.generation_prompts(asked, *limits)))),
        closed_book=_mean(list(map(len, builder.generation_prompts(closed, *limits)))),
        how=f"tokenizer and chat template on {len(rows)} training questions with random passages",
    )


def _guess(rows: list[dict[str, Any]], contexts: Sequence[tuple[str, ...]], context_characters: int) -> GeneratorTokens:
    asked = [len(OPEN_BOOK) + len(row["question"]) for row in rows]
    return GeneratorTokens(
        prompt=_mean([size + len(context[0]) for size, context in zip(asked, contexts, strict=True)]) / _CHARACTERS_A_TOKEN,
        answers=_mean([sum(map(len, row["answers"])) for row in rows]) / _CHARACTERS_A_TOKEN,
        num_answers=_mean([len(row["answers"]) for row in rows]),
        context=_mean([size + len(join_passages(c, context_characters)) for size, c in zip(asked, contexts, strict=True)])
        / _CHARACTERS_A_TOKEN,
        closed_book=_mean([len(CLOSED_BOOK) + len(row["question"]) for row in rows]) / _CHARACTERS_A_TOKEN,
        how=_GUESS,
    )


def _questions(sample: DataSample) -> list[str]:
    return [text for split in SPLITS for text in sample.examples[split]["question"].slice(0, SAMPLE).to_pylist()]


def _tokenizer(model: str, revision: str | None, trust_remote_code: bool) -> Any | None:
    """None where the hub is out of reach and the cache has it not; the line of the estimate says so."""
    source = resolve_model(model, revision)
    try:
        with loading(model):
            return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    except ArmorError:
        return None


def _length(tokenizer: Any | None, text: str) -> float:
    return len(text) / _CHARACTERS_A_TOKEN if tokenizer is None else len(tokenizer(text, verbose=False)["input_ids"])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
