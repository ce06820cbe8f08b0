"""The estimate of a whole run, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator

from armor_ray.config import Config
from armor_ray.evaluation.labels import CLOSED_BOOK
from armor_ray.models.size import ModelSize, model_size
from armor_ray.objectives.utility import NEEDS_CLOSED_BOOK
from armor_ray.stages.context import Context
from armor_ray.stages.curated import ARTIFACT, data_of
from armor_ray.stages.estimates.evaluating import reranker_lines, utility_lines
from armor_ray.stages.estimates.judging import curation_lines
from armor_ray.stages.estimates.lines import CPU_HOURS, GPU_HOURS, OUT_OF_REACH, Line, Rates
from armor_ray.stages.estimates.rewards import pick_lines, reward_lines
from armor_ray.stages.estimates.sample import DataSample, data_lines, pool_assumption, pool_pairs, sample_data
from armor_ray.stages.estimates.tokens import EncoderTokens, GeneratorTokens, encoder_tokens, generator_tokens
from armor_ray.stages.estimates.training import training_lines
from armor_ray.stages.methods import answered_methods, needs_rewards, trains_passages, variants
from armor_ray.stages.plans import scored_splits
from armor_ray.workspace import Workspace

_FLOAT = 4  # bytes of a number in vectors and index


def estimate(config: Config, rates: Rates) -> list[Line]:
    """Everything that a run of this config would count, compute and hold. Reads the data and the models' small files; writes nothing.

    Raises:
        ArmorError: whatever a run would find wrong with the data, or a model folder that is not there.
    """
    config = _after_curation(config)
    sample = sample_data(config)
    encoder, generator = (model_size(part.model, part.revision) for part in (config.encoder, config.generator))
    lines = [*curation_lines(config, sample, rates), *data_lines(sample)]
    words = encoder_tokens(config.encoder, sample)
    lines += _embedding(config, sample, words, encoder, rates)
    if sample.questions("train"):
        prompts = generator_tokens(config, sample)
        lines += pick_lines(config, sample, words, rates)
        lines += _scoring(config, sample, prompts, generator, rates)
        lines += reward_lines(config, sample, words, rates)
        lines += training_lines(config, sample, words, encoder, rates)
        lines += _answering(config, sample, prompts, generator, rates)
        lines += utility_lines(config, sample, prompts, generator, rates)
        lines += reranker_lines(config, sample, words)
    lines += _totals(lines)
    return lines + list(_memory(config, sample, encoder, generator))


def _after_curation(config: Config) -> Config:
    """The config of the data set that `curate` left, where it has run: only what is still to be spent counts."""
    context = Context(config, Workspace(config.workspace))
    if config.curation is None or context.workspace.manifest(ARTIFACT) is None:
        return config
    return config.model_copy(update={"data": data_of(context), "curation": None})


def _embedding(config: Config, sample: DataSample, words: EncoderTokens, size: ModelSize | None, rates: Rates) -> Iterator[Line]:
    moved = sum(trains_passages(config, variant.recipe) for variant in variants(config)) * len(config.evaluation.seeds)
    moved *= 2 if config.training.interpolate else 1
    times = f"; once, and once more for each of {moved} retrievers with shared towers" if moved else ""
    tokens = words.passage * sample.num_passages * (1 + moved)
    yield Line("embed", "tokens", tokens, "", f"{words.passage:.0f} a passage ({words.how}){times}")
    yield from rates.hours("embed", size, tokens)


def _scoring(config: Config, sample: DataSample, prompts: GeneratorTokens, size: ModelSize | None, rates: Rates) -> Iterator[Line]:
    splits = ["train", "validation"] if needs_rewards(config) else scored_splits(config)
    pairs = sum(pool_pairs(config, sample, split) for split in splits)
    yield Line("score", "pairs", pairs, "", pool_assumption(config))
    yield Line("score", "answer likelihoods", pairs * prompts.num_answers, "", f"{prompts.num_answers:.2f} reference answers a question")
    shares = config.generator.engine == "hf"
    noise = min(config.utility.noise_pairs, pool_pairs(config, sample, "train")) if needs_rewards(config) else 0
    closed_book = _closed_book(config, sample) * (prompts.closed_book + prompts.answers)
    tokens = (pairs + noise) * prompts.pair(config.generator.engine) + closed_book
    lengths = f"{prompts.prompt:.0f} a prompt, {prompts.answers:.0f} in its answers ({prompts.how})"
    saved = "prompts counted once a pair; passages that questions share will save more" if shares else "every answer with its whole prompt"
    yield Line("score", "tokens", tokens, "", f"{lengths}; {saved}")
    yield from rates.hours("score", size, tokens)
    if noise:
        yield Line("utility", "pairs scored again", noise, "", "for the noise floor; their tokens are in score's")


def _closed_book(config: Config, sample: DataSample) -> int:
    if not needs_rewards(config) or config.utility.kind not in NEEDS_CLOSED_BOOK:
        return 0
    return sample.questions("train") + sample.questions("validation")


def _answering(config: Config, sample: DataSample, prompts: GeneratorTokens, size: ModelSize | None, rates: Rates) -> Iterator[Line]:
    methods = answered_methods(config)
    if not methods:
        return
    questions = min(config.evaluation.generation_questions, sample.questions("test"))
    closed = sum(method.method == CLOSED_BOOK for method in methods)
    read = questions * ((len(methods) - closed) * prompts.context + closed * prompts.closed_book)
    written = questions * len(methods) * config.generator.max_new_tokens
    yield Line("answer", "answers", questions * len(methods), "", f"{questions} test questions, {len(methods)} methods")
    how = f"{prompts.context:.0f} with {config.evaluation.generation_top_k} passages ({prompts.how})"
    yield Line("answer", "prompt tokens", read, "", how)
    yield Line("answer", "new tokens", written, "", f"all {config.generator.max_new_tokens} of an answer")
    if config.generator.engine != "openai":
        yield from rates.hours("answer", size, read + written)


def _totals(lines: list[Line]) -> list[Line]:
    """Sums of hours; None where a part is unknown."""
    totals = []
    for unit, what in ((GPU_HOURS, "time of one GPU"), (CPU_HOURS, "or of one core")):
        hours = [line.amount for line in lines if line.unit == unit]
        known = [amount for amount in hours if amount is not None]
        missing = f", {len(hours) - len(known)} of them unknown" if len(known) < len(hours) else ""
        how = f"all of the above{missing}; loading models, retrieval and evaluation are not counted"
        totals.append(Line("all", what, sum(known) if known else None, unit, how))
    return totals


def _memory(config: Config, sample: DataSample, encoder: ModelSize | None, generator: ModelSize | None) -> Iterator[Line]:
    vectors = sample.num_passages * encoder.width * _FLOAT / 1e9 if encoder else None
    width = f"{encoder.width} numbers of {_FLOAT} bytes a passage" if encoder else OUT_OF_REACH
    yield Line("memory", "passage vectors on disk", vectors, "GB", width)
    yield Line("memory", "index in one process", vectors, "GB", f"{width}; flat, HNSW adds its links")
    yield Line("memory", "training table in the object store", vectors, "GB", f"{width}; once a machine, shared by all trials")
    for name, size, is_bf16 in (("encoder", encoder, False), ("generator", generator, config.generator.dtype == "bfloat16")):
        if name == "generator" and config.generator.engine == "openai":
            continue
        bytes_each = 2 if is_bf16 else 4
        weights = size.total * bytes_each / 1e9 if size else None
        how = f"{size.total / 1e6:,.0f} M parameters of {bytes_each} bytes, without activations" if size else OUT_OF_REACH
        yield Line("memory", f"{name} weights in one actor", weights, "GB", how)
