"""Tokens of the cross-encoders: a reward model that picks for the pools, and the one that a run trains."""

from __future__ import annotations

from collections.abc import Iterator

from armor_ray.config import Config, RewardConfig
from armor_ray.models.size import model_size
from armor_ray.stages.estimates.lines import Line, Rates
from armor_ray.stages.estimates.sample import DataSample, pool_pairs
from armor_ray.stages.estimates.tokens import EncoderTokens
from armor_ray.stages.methods import needs_rewards

_SPLITS = ("train", "validation")  # whose pools are rewarded


def pick_lines(config: Config, sample: DataSample, words: EncoderTokens, rates: Rates) -> Iterator[Line]:
    """What it takes to choose `candidates.picks`; nothing where there are none."""
    picks = config.candidates.picks
    if picks is None:
        return
    depth = min(picks.depth, sample.num_passages)
    pairs = depth * sum(map(sample.questions, _SPLITS))
    length, how = _pair_tokens(config.reward, words)
    yield Line("candidates", "pairs to pick from", pairs, "", f"the base's best {depth} of each training and validation question")
    yield Line("candidates", "tokens", pairs * length, "", how)
    yield from rates.hours("candidates", model_size(picks.model), pairs * length)


def reward_lines(config: Config, sample: DataSample, words: EncoderTokens, rates: Rates) -> Iterator[Line]:
    """What the reward model takes to train, to validate and to apply; nothing where no recipe learns from it."""
    if not needs_rewards(config):
        return
    settings = config.reward
    size = model_size(settings.model, settings.revision)
    length, how = _pair_tokens(settings, words)
    pairs = {split: pool_pairs(config, sample, split) for split in _SPLITS}
    yield from _prior_lines(settings, sample, pairs)
    in_pool = pairs["train"] / sample.questions("train")
    trained = sample.questions("train") * settings.epochs * min(2 * settings.pairs, in_pool) * length
    yield Line("reward", "training tokens", trained, "", f"{how}; every pair with two passages of its own")
    yield from rates.hours("reward", size, trained, passes=3)
    held_out = sample.questions("validation")
    shown = held_out if settings.validation_questions is None else min(settings.validation_questions, held_out)
    evaluations = settings.epochs * settings.evaluations_per_epoch
    validated = evaluations * pairs["validation"] * shown / max(1, held_out) * length
    yield Line("reward", "validation tokens", validated, "", f"{how}; pools of {shown} questions, {evaluations} times")
    rewarded = sum(pairs.values()) * length
    yield Line("reward", "tokens of all rewards", rewarded, "", how)
    yield from rates.hours("reward", size, validated + rewarded)
    if settings.stock is not None:
        yield Line("reward", "tokens of the stock cross-encoder", pairs["validation"] * length, "", f"{how}; validation pools")
        yield from rates.hours("reward", model_size(settings.stock), pairs["validation"] * length)


def _prior_lines(settings: RewardConfig, sample: DataSample, pairs: dict[str, int]) -> Iterator[Line]:
    if not settings.priors:
        return
    sources = {
        "base": "the base's scores are those of the pools",
        "bm25": f"BM25's come from an index of all {sample.num_passages} passages in the driver",
    }
    how = "; ".join(sources[name] for name in settings.priors)
    yield Line("reward", "prior scores", sum(pairs.values()) * len(settings.priors), "", f"{how}; no model reads anything for them")


def _pair_tokens(settings: RewardConfig, words: EncoderTokens) -> tuple[float, str]:
    length = min(words.passage + words.question, settings.max_length)
    return length, f"{length:.0f} a pair by the encoder's tokenizer"
