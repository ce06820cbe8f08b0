"""What an evaluation asks of models: utilities of what was ranked, and the chat requests of rerankers."""

from __future__ import annotations

from collections.abc import Iterator

from armor_ray.config import Config
from armor_ray.config_baselines import (
    ChatRerankerConfig,
    GainRerankerConfig,
    ListwiseRerankerConfig,
    RerankerConfigBase,
    SePerRerankerConfig,
)
from armor_ray.models.size import ModelSize
from armor_ray.objectives.utility import NEEDS_CLOSED_BOOK
from armor_ray.retrieval.rerankers.listwise import windows
from armor_ray.stages.baseline_methods import reranked_rows
from armor_ray.stages.estimates.lines import Line, Rates
from armor_ray.stages.estimates.sample import DataSample
from armor_ray.stages.estimates.tokens import EncoderTokens, GeneratorTokens

_STAGE = "evaluate"


def utility_lines(config: Config, sample: DataSample, prompts: GeneratorTokens, size: ModelSize | None, rates: Rates) -> Iterator[Line]:
    """Pairs that are scored for the metrics by utility; nothing where there are none."""
    questions = min(config.evaluation.utility_questions, sample.questions("test"))
    if not questions:
        return
    pool = config.evaluation.hard_pool
    each = 1 if pool is None else min(pool, sample.num_passages)
    shown = "the passage that a method ranks first" if pool is None else f"a hard pool of {each}"
    how = f"{questions} test questions, {shown}; not counted: passages that other methods put first"
    yield Line(_STAGE, "pairs to score", questions * each, "", how)
    closed = questions * (prompts.closed_book + prompts.answers) if config.utility.kind in NEEDS_CLOSED_BOOK else 0
    a_pair = prompts.pair(config.generator.engine)
    tokens = questions * each * a_pair + closed
    yield Line(_STAGE, "tokens", tokens, "", f"{a_pair:.0f} a pair with its answers ({prompts.how})")
    yield from rates.hours(_STAGE, size, tokens)


def reranker_lines(config: Config, sample: DataSample, words: EncoderTokens) -> Iterator[Line]:
    """Requests of the rerankers that ask a chat model, each over each of its first stages; local cross-encoders are not counted."""
    questions, timed = sample.questions("test"), min(config.evaluation.latency_questions, sample.questions("test"))
    pool = config.evaluation.hard_pool
    for row in reranked_rows(config):
        if not isinstance(row.reranker, ChatRerankerConfig | SePerRerankerConfig):
            continue
        depth = min(row.reranker.depth, sample.num_passages)
        pooled = 0 if pool is None else min(depth, pool)
        asked = [(questions + timed, depth), (questions if pooled else 0, pooled)]
        requests = sum(count * _requests(row.reranker, passages) for count, passages in asked)
        parts = [f"{questions} test questions", *(["again for their hard pools"] if pooled else [])]
        parts += [f"{timed} again for their latency"] if timed else []
        how = f"{', '.join(parts)}; the best {depth} passages; what the cache holds is free"
        yield Line(_STAGE, f"{row.method} requests", requests, "", how)
        tokens = sum(count * _prompt_tokens(row.reranker, passages, words) for count, passages in asked)
        yield Line(_STAGE, f"{row.method} prompt tokens", tokens, "", f"passages and questions alone ({words.how})")


def _requests(reranker: RerankerConfigBase, passages: int) -> int:
    """For one question."""
    if isinstance(reranker, ListwiseRerankerConfig):
        return len(list(windows(passages, reranker.window, reranker.step)))
    if isinstance(reranker, GainRerankerConfig):
        return 1
    return passages + isinstance(reranker, SePerRerankerConfig)  # and one without a passage


def _prompt_tokens(reranker: RerankerConfigBase, passages: int, words: EncoderTokens) -> float:
    """For one question: its passages as often as they are shown, and itself with every request."""
    shown = passages
    if isinstance(reranker, ListwiseRerankerConfig):
        shown = sum(end - start for start, end in windows(passages, reranker.window, reranker.step))
    elif isinstance(reranker, GainRerankerConfig):
        shown = 0
    return shown * words.passage + _requests(reranker, passages) * words.question
