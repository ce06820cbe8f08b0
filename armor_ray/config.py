"""Typed configuration: one section per concern, YAML in, dotted overrides on top.

`load_config` is the only way in. Unknown keys name the nearest known one; a set or swept parameter that the chosen recipe ignores
is an error rather than a waste. Defaults are the papers'.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from armor_ray.config_baselines import BaselinesConfig
from armor_ray.config_keys import nearest_key
from armor_ray.config_section import Section
from armor_ray.errors import ArmorError

Recipe = Literal["rag", "infonce", "mix", "static_reg", "dynamic", "armor", "replug", "uae", "armor_uae"]

ARMOR_RECIPES: tuple[Recipe, ...] = ("rag", "infonce", "mix", "static_reg", "dynamic", "armor", "replug")
REWARD_RECIPES: tuple[Recipe, ...] = ("uae", "armor_uae")
"""Those that learn from the reward model, whose stages run only when one of these is chosen."""
RECIPES: tuple[Recipe, ...] = (*ARMOR_RECIPES, *REWARD_RECIPES)


DataFormat = Literal[
    "beir",
    "demo",
    "documents",
    "hotpotqa",
    "jsonl",
    "newsqa",
    "parquet",
    "qasper",
    "scifact",
    "squad",
    "tele_data",
    "tele_eval",
    "teleqna",
    "telequad",
    "telequad_tables",
]


class ChunkingConfig(Section):
    """How documents become passages; the default cuts every `data.passage_characters` between words."""

    mode: Literal["characters", "sentences", "tokens", "whole"] = Field(
        "characters",
        description="characters: cut between words; sentences: whole ones packed to passage_characters; tokens: windows of the encoder's; "
        "whole: documents are finished passages.",
    )
    tokens: int = Field(128, ge=8, description="Window of the mode tokens.")
    overlap: int = Field(16, ge=0, description="Tokens that a window shares with the one before.")
    keep_blocks: bool = Field(False, description="Markdown tables and fenced code stay in one passage where they fit.")

    @model_validator(mode="after")
    def _check_mode_uses_what_is_set(self) -> ChunkingConfig:
        read = {"tokens": {"tokens", "overlap"}, "whole": set()}.get(self.mode, {"keep_blocks"})
        unread = {"tokens", "overlap", "keep_blocks"} - read
        for name in sorted(unread & self.model_fields_set):
            raise ValueError(f"{name} has no effect on mode '{self.mode}'")
        if self.overlap >= self.tokens:
            raise ValueError(f"overlap {self.overlap} is not below tokens {self.tokens} (a window must move on)")
        return self


class DataConfig(Section):
    """Where documents and questions come from, and how they are cut and split."""

    name: str = Field("data", description="Label of the data set in reports and summaries.")
    format: DataFormat = "jsonl"
    path: str | None = Field(
        None, description="Folder with corpus.jsonl + qa.jsonl (or .parquet), the published file or folder, or hf://datasets/OWNER/NAME."
    )
    password: str | None = Field(
        None,
        exclude=True,  # from every dump: no config file, manifest, report or log ever holds it
        repr=False,
        description="Password of an encrypted archive (TeleQnA publishes its own).",
    )
    passage_characters: int = Field(384, ge=32, description="Passage length in characters, cut at exact offsets.")
    chunking: ChunkingConfig = Field(default_factory=ChunkingConfig)
    deduplicate: bool = Field(
        False,
        description="No question or gold passage has a duplicate in another split; examples/duplicates.jsonl lists what went.",
    )
    duplicate_similarity: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity of character 5-grams from which texts are duplicates."
    )
    group_by: Literal["document", "source"] = Field(
        "document", description="What must not straddle splits: a document, or all documents of one source (specification)."
    )
    split_by: Literal["group", "question"] = Field("group", description="TeleQnA is split by question, all else by group.")
    test_fraction: float = Field(0.1, gt=0, lt=1)
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    max_train: int | None = Field(None, ge=1, description="At most this many training questions (seeded sample).")
    max_validation: int | None = Field(None, ge=1)
    max_test: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_others_use_what_is_set(self) -> DataConfig:
        if "duplicate_similarity" in self.model_fields_set and not self.deduplicate:
            raise ValueError("duplicate_similarity has no effect without deduplicate (set it to true)")
        return self


class EncoderConfig(Section):
    """Identity of the bi-encoder; travels with every export."""

    model: str = "intfloat/e5-large-v2"
    revision: str | None = None
    pooling: Literal["mean", "cls"] = "mean"
    normalize: Literal[True] = True
    query_prefix: str | None = Field(None, description="None: 'query: ' for E5 models, else empty.")
    passage_prefix: str | None = Field(None, description="None: 'passage: ' for E5 models, else empty.")
    max_length: int = Field(256, ge=8, le=8192)
    embed_dtype: Literal["auto", "float32", "bfloat16"] = Field("float32", description="Arithmetic of corpus embedding; vectors stay fp32.")
    batch_tokens: int = Field(16384, ge=512, description="Token budget of one embedding batch.")
    trust_remote_code: bool = False


class IndexConfig(Section):
    kind: Literal["flat", "ivf", "hnsw"] = "flat"
    nlist: int | None = Field(None, ge=1, description="IVF lists; None derives it from the corpus size.")
    nprobe: int = Field(16, ge=1)
    hnsw_m: int = Field(32, ge=4)
    hnsw_ef_search: int = Field(128, ge=1, description="Vectors that a search in the graph keeps in sight: recall against time.")
    flat_below: int = Field(5000, ge=0, description="Smaller corpora use a flat index whatever `kind` says; the manifest says so.")


class PicksConfig(Section):
    """Passages that a reward model adds to the pools from below the base's best: what it overrates is then scored, too (UAE §2.1)."""

    model: str = Field(description="A reward model of an earlier run, as runs/NAME/reward_model; any cross-encoder's folder or id will do.")
    count: int = Field(8, ge=1, description="Most passages that it adds to a pool.")
    depth: int = Field(100, ge=2, description="Base-retrieved passages that it chooses from.")


class CandidatesConfig(Section):
    pool_size: int = Field(16, ge=1, description="Base-retrieved passages per question; gold passages are added to training pools.")
    picks: PicksConfig | None = Field(None, description="What a reward model adds to the training and validation pools; null: nothing.")
    top_k: int = Field(16, ge=1, description="Passages of the pool that the RAG softmax runs over at each step.")
    refresh: Literal["never", "epoch", "step"] = "never"

    @model_validator(mode="after")
    def _check_top_k(self) -> CandidatesConfig:
        if self.top_k > self.pool_size:
            raise ValueError(f"top_k {self.top_k} is larger than pool_size {self.pool_size} (lower top_k or raise pool_size)")
        if self.picks is not None and self.picks.depth <= self.pool_size:
            raise ValueError(f"picks.depth {self.picks.depth} leaves nothing to pick beyond pool_size {self.pool_size} (raise depth)")
        return self


class GeneratorConfig(Section):
    """The frozen language model that judges passages and answers questions."""

    engine: Literal["hf", "vllm", "openai"] = "hf"
    model: str = "meta-llama/Meta-Llama-3-8B-Instruct"
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bf16 where the hardware computes in it, else fp32.")
    max_length: int = Field(4096, ge=64, description="Window in tokens for prompt + answer; passages are cut to fit.")
    batch_tokens: int = Field(4096, ge=256, description="Token budget of one scoring batch.")
    max_new_tokens: int = Field(128, ge=1)
    context_characters: int = Field(12000, ge=100, description="Characters of retrieved context in a generation prompt.")
    base_url: str | None = Field(None, description="Endpoint of the openai engine; the key comes from OPENAI_API_KEY.")
    threads: int | None = Field(None, ge=1, description="CPU threads of one actor; None leaves the engine's default.")
    trust_remote_code: bool = False

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        return _refuse_secret(url)


class ObjectiveConfig(Section):
    """Losses and temperatures (METHODS §2-4); `preset` fills what is not set."""

    recipe: Recipe = "armor"
    preset: Literal["paper", "released"] = "paper"
    lambda_q: float = Field(1.0, ge=0, description="Weight of query distillation to the base encoder.")
    mix_weight: float = Field(0.5, ge=0, le=1, description="λ of the static mixture λ·RAG + (1-λ)·InfoNCE.")
    temperature_form: Literal["softplus", "sigmoid"] = "softplus"
    temperature_schedule: Literal["joint", "alternating"] = "joint"
    tau_start: float | None = Field(
        None,
        gt=0,
        description="Start of learned temperatures, value of fixed ones; None: tau_min + 0.04 (0.05 by default, for cosine scores).",
    )
    tau_min: float = Field(0.01, gt=0, description="Floor of learned temperatures.")
    tau_max: float = Field(10.0, gt=0, description="Ceiling; the sigmoid form only.")
    kl_temperature: float = Field(1.0, gt=0, description="β of the teacher: softmax(ℓ/β) in replug, softmax(R/β), λ = 1/β, with rewards.")
    kl_weight: float = Field(1.0, ge=0, description="Weight of KL(π* || π_φ) beside ARMOR's terms.")
    student_temperature: Literal["fixed", "learned"] = Field("fixed", description="τ of UAE's student; armor_uae always learns it.")
    towers: Literal["query", "shared"] = Field(
        "query",
        description="query: only the query side is trained, the index is kept. shared (UAE): both, and the corpus is embedded anew.",
    )
    length_normalised: bool = Field(False, description="Divide answer log-likelihoods by their token count.")
    in_batch: Literal["none", "positives", "pools"] = Field("positives", description="Which passages of the other questions are negatives.")
    negatives: int | None = Field(None, ge=1, description="Retrieved negatives per question; None: all of the pool.")
    negative_order: Literal["hardest", "easiest"] = "hardest"
    multi_positive: Literal["mean", "best"] = Field("mean", description="Contrast each positive alone and average, or the best-scored.")
    weight_anchor: float = Field(0.0, ge=0, description="Weight of the mean squared distance to the base weights.")
    rank_distillation: float = Field(0.0, ge=0, description="Weight of KL(base ranking || adapted ranking) over the pool.")
    lexical_weight: float = Field(
        0.0,
        ge=0,
        description="μ of the scores that all losses read, s = cos + μ·b with b the passage's BM25 score scaled to [0, 1] over the corpus. "
        "Above 0 the encoder learns what BM25 lacks: for retrievers served fused with BM25, at the cost of the encoder alone.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("preset") == "released":
            return {**RELEASED_PRESET, **values}
        return values

    @model_validator(mode="after")
    def _check_others_use_what_is_set(self) -> ObjectiveConfig:
        if "tau_max" in self.model_fields_set and self.temperature_form != "sigmoid":
            raise ValueError("tau_max has no effect on temperature_form 'softplus' (read by sigmoid)")
        if "negative_order" in self.model_fields_set and self.negatives is None:
            raise ValueError("negative_order has no effect where all negatives are taken (set negatives)")
        return self

    @model_validator(mode="after")
    def _check_temperatures(self) -> ObjectiveConfig:
        if self.initial_temperature < self.tau_min:
            raise ValueError(f"tau_start {self.tau_start} lies below tau_min {self.tau_min}")
        if self.temperature_form == "sigmoid" and not self.tau_min < self.initial_temperature <= self.tau_max:
            raise ValueError(f"tau_start {self.initial_temperature:g} must lie in (tau_min {self.tau_min}, tau_max {self.tau_max}]")
        return self

    @property
    def initial_temperature(self) -> float:
        """τ before the first step; keeps its distance from a swept floor."""
        return self.tau_start if self.tau_start is not None else self.tau_min + 0.04


RELEASED_PRESET: dict[str, Any] = {
    # What the authors' released code does where it differs from the paper (docs/decisions.md).
    "temperature_form": "sigmoid",
    "temperature_schedule": "alternating",
    "tau_start": 10.0,
    "tau_min": 1.0,
    "tau_max": 10.0,
    "length_normalised": True,
    "in_batch": "none",
    "negatives": 3,
    "negative_order": "easiest",
    "multi_positive": "best",
}

# Parameters that only some recipes read; setting or sweeping one elsewhere is refused.
RECIPE_PARAMETERS: dict[str, frozenset[str]] = {
    "lambda_q": frozenset({"static_reg", "armor", "armor_uae"}),
    "mix_weight": frozenset({"mix", "static_reg"}),
    "tau_min": frozenset({"dynamic", "armor", "uae", "armor_uae"}),
    "tau_max": frozenset({"dynamic", "armor", "uae", "armor_uae"}),
    "temperature_form": frozenset({"dynamic", "armor", "uae", "armor_uae"}),
    "temperature_schedule": frozenset({"dynamic", "armor", "uae", "armor_uae"}),
    "kl_temperature": frozenset({"replug", "uae", "armor_uae"}),
    "kl_weight": frozenset({"armor_uae"}),
    "student_temperature": frozenset({"uae"}),
    "towers": frozenset(REWARD_RECIPES),
    "length_normalised": frozenset(RECIPES) - {"infonce", "uae"},
    "in_batch": frozenset(RECIPES) - {"rag", "replug", "uae"},
    "negatives": frozenset(RECIPES) - {"rag", "replug"},
    "negative_order": frozenset(RECIPES) - {"rag", "replug"},
    "multi_positive": frozenset(RECIPES) - {"rag", "replug"},
}


class LoraConfig(Section):
    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)


class UtilityConfig(Section):
    """What a passage is worth to the generator, and how far that number can be trusted (UAE §2.1)."""

    kind: Literal["inverse_perplexity", "perplexity_reduction", "log_ratio"] = Field(
        "inverse_perplexity", description="The two last compare with a closed-book pass."
    )
    noise_pairs: int = Field(
        256, ge=8, description="Pairs scored once more in other batches; the largest change of a utility is the noise floor."
    )
    relevant_share: float = Field(0.1, gt=0, lt=1, description="Share of validation utilities that counts as relevant in recall.")


Prior = Literal["base", "bm25"]
"""Retrieval scores that a reward model may start from."""


class RewardConfig(Section):
    """The reward model R(q, d): a cross-encoder that learns the generator's ordering of passages (UAE §2.1), and its gate (§2.2)."""

    model: str = Field("microsoft/deberta-v3-base", description="A sequence classifier, or an encoder that gets a new head.")
    revision: str | None = None
    stock: str | None = Field(None, description="A cross-encoder to compare with in validation, by folder or id.")
    max_length: int = Field(384, ge=16, le=8192, description="Tokens of question and passage together.")
    lora: LoraConfig | None = Field(default_factory=LoraConfig, description="Train low-rank adapters; null trains all weights.")
    priors: list[Prior] = Field(
        default_factory=list,
        description="Retrieval scores that the cross-encoder corrects, with learned weights; for few questions or a body that never "
        "ranked. Empty: the cross-encoder alone, as in the paper.",
    )
    prior_learning_rate: float = Field(1e-2, gt=0, description="Of the priors' weights.")
    margin: float = Field(1.0, gt=0, description="δ of the pairwise margin loss.")
    gate_margin: float | None = Field(None, ge=0, description="δ of the utility gate; null: the loss's, as in the paper.")
    pairs: int = Field(8, ge=1, description="Pairs of passages drawn for a question each time it is seen.")
    epochs: int = Field(1, ge=1)
    batch_size: int = Field(16, ge=1, description="Questions per optimizer step, summed over all workers.")
    micro_batch: int = Field(4, ge=1, description="Questions whose pairs are encoded with a graph at a time: memory against speed.")
    learning_rate: float = Field(2e-4, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    gradient_clip: float = Field(1.0, gt=0)
    warmup_fraction: float = Field(0.1, ge=0, lt=1)
    schedule: Literal["constant", "linear"] = "linear"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    score_dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="Arithmetic when all pairs are rewarded.")
    batch_tokens: int = Field(16384, ge=512, description="Token budget of one batch when all pairs are rewarded.")
    workers: int = Field(1, ge=1, description="DDP ranks.")
    evaluations_per_epoch: int = Field(1, ge=1)
    validation_questions: int | None = Field(None, ge=1, description="At most this many in the evaluations while training; null: all.")
    metric: Literal["pairwise_accuracy", "nDCG@1", "nDCG@5", "Recall@5"] = Field(
        "pairwise_accuracy", description="Validation metric that picks the checkpoint."
    )
    max_failures: int = Field(3, ge=0, description="Restarts after a lost worker.")

    @field_validator("priors")
    @classmethod
    def _check_priors(cls, priors: list[Prior]) -> list[Prior]:
        if len(set(priors)) < len(priors):
            raise ValueError("a score is named twice")
        return priors

    @model_validator(mode="after")
    def _check_shares(self) -> RewardConfig:
        if self.batch_size % self.workers:
            raise ValueError(f"batch_size {self.batch_size} cannot be shared evenly by {self.workers} workers (use a multiple)")
        return self

    @property
    def gate(self) -> float:
        """δ of the utility gate."""
        return self.margin if self.gate_margin is None else self.gate_margin


class TrainingConfig(Section):
    epochs: int = Field(1, ge=1)
    batch_size: int = Field(16, ge=1, description="Questions per optimizer step, summed over all workers.")
    learning_rate: float = Field(2e-5, gt=0)
    temperature_learning_rate: float = Field(1e-2, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    gradient_clip: float = Field(1.0, gt=0)
    warmup_fraction: float = Field(0.1, ge=0, lt=1)
    schedule: Literal["constant", "linear"] = "constant"
    dropout: bool = Field(True, description="Dropout of the adapted query encoder while training.")
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    lora: LoraConfig | None = Field(None, description="Train low-rank adapters; None trains all weights.")
    workers: int = Field(1, ge=1, description="DDP ranks.")
    cache_texts: int = Field(64, ge=1, description="Texts encoded with a graph at a time where both towers are trained (gradient caching).")
    evaluations_per_epoch: int = Field(1, ge=1)
    patience: int | None = Field(None, ge=1, description="Evaluations without a better validation metric before stopping.")
    metric: Literal["R@1", "R@3", "R@5", "R@16"] = Field("R@3", description="Validation metric that picks the checkpoint.")
    interpolate: list[float] = Field(
        default_factory=list, description="Grid of α in (1-α)·base + α·adapted, chosen on validation; empty: off, as in the papers."
    )
    max_failures: int = Field(3, ge=0, description="Restarts after a lost worker.")

    @property
    def metric_depth(self) -> int:
        """k of the metric recall@k."""
        return int(self.metric.removeprefix("R@"))

    @model_validator(mode="after")
    def _check_grid(self) -> TrainingConfig:
        if any(not 0 <= alpha <= 1 for alpha in self.interpolate):
            raise ValueError("interpolate: every α must lie in [0, 1]")
        return self

    @model_validator(mode="after")
    def _check_shares(self) -> TrainingConfig:
        if self.batch_size % self.workers:
            raise ValueError(f"batch_size {self.batch_size} cannot be shared evenly by {self.workers} workers (use a multiple)")
        return self


DEFAULT_SWEEP: dict[str, list[float]] = {
    "objective.lambda_q": [0.3, 1.0, 3.0],
    "objective.tau_min": [0.01, 0.05, 1.0],
    "objective.kl_temperature": [0.3, 1.0, 3.0],
}

# What a sweep may try: whatever changes training alone, so that all trials share passages, vectors and likelihoods.
_SWEEPABLE = ("objective.", "training.", "candidates.top_k")

# One training table, one plan of artifacts and one of workers serve all recipes of a run.
_COMMON_TO_RECIPES = frozenset(
    {
        "objective.recipe",
        "objective.preset",
        "objective.length_normalised",
        "objective.temperature_schedule",
        "training.interpolate",
        "training.workers",
    }
)


class SweepConfig(Section):
    parameters: dict[str, Annotated[list[float], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="Dotted config keys and the values to try; the grid is their product. Not given: those of DEFAULT_SWEEP that the "
        "recipe reads; {}: no sweep.",
    )
    trials: int | None = Field(None, ge=1, description="Random subset of the grid; None runs all of it.")
    scheduler: Literal["asha", "none"] = "asha"
    grace_epochs: int = Field(1, ge=1)

    @field_validator("parameters")
    @classmethod
    def _check_keys(cls, parameters: dict[str, list[float]]) -> dict[str, list[float]]:
        for key, values in parameters.items():
            if not key.startswith(_SWEEPABLE):
                raise ValueError(f"'{key}' cannot be swept (what can: objective.*, training.*, candidates.top_k)")
            _require_distinct(values)
        if parameters and all(len(values) == 1 for values in parameters.values()):
            raise ValueError("nothing to sweep: every key has a single value (set it in its own section, or {} for no sweep)")
        return parameters


class EvaluationConfig(Section):
    recipes: list[Recipe] = Field(default_factory=lambda: list(ARMOR_RECIPES), min_length=1)
    recipe_settings: dict[Recipe, dict[str, Any]] = Field(
        default_factory=dict,
        description="Per recipe, dotted keys and values of its own in place of the run's, as in {uae: {training.learning_rate: 1.0e-5}}.",
    )
    fused: list[Recipe] = Field(default_factory=list, description="Recipes whose rows are fused with BM25, beside the main one's.")
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1, description="Training seeds; results are means over them.")
    ks: list[Annotated[int, Field(ge=1)]] = Field(default_factory=lambda: [1, 3, 5, 16], min_length=1)
    bootstrap: int = Field(2000, ge=100, description="Resamples of the paired bootstrap.")
    generation_questions: int = Field(150, ge=0, description="First test questions that are answered by the generator; 0: none.")
    generation_top_k: int = Field(16, ge=1)
    fusion_grid: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=lambda: [round(0.05 * i, 2) for i in range(21)],
        min_length=1,
        description="Weights of the dense score in BM25 fusion, tuned on validation.",
    )
    hard_pool: int | None = Field(
        None, ge=2, description="Rank also a fixed pool of so many passages a test question: the base's best and the gold ones; null: not."
    )
    utility_questions: int = Field(
        0,
        ge=0,
        description="First test questions whose top passages and hard pools the generator scores, for ExpUtil@1 and relevance by utility.",
    )
    latency_questions: int = Field(0, ge=0, description="First test questions, one by one, that every method's latency is measured on.")
    transfer_to: list[str] = Field(
        default_factory=list, description="Workspaces of other data, run to `candidates`, whose test questions the main recipe is tried on."
    )

    @field_validator("recipe_settings")
    @classmethod
    def _check_recipe_keys(cls, settings: dict[Recipe, dict[str, Any]]) -> dict[Recipe, dict[str, Any]]:
        for key in (key for values in settings.values() for key in values):
            if not key.startswith(_SWEEPABLE):
                raise ValueError(f"'{key}' cannot differ between recipes (what can: objective.*, training.*, candidates.top_k)")
            if key in _COMMON_TO_RECIPES:
                raise ValueError(f"'{key}' cannot differ between recipes: what all of them train on, or what is made of it, depends on it")
        return settings

    @field_validator("recipes", "fused", "seeds", "ks", "transfer_to")
    @classmethod
    def _check_distinct(cls, values: list[Any]) -> list[Any]:
        return _require_distinct(values)


class JudgeConfig(Section):
    """The endpoint that judges data and answers, and what it may cost; without it, keyword and lexical judges stand in."""

    base_url: str | None = Field(None, description="Any OpenAI-compatible endpoint; None is OpenAI's own.")
    model: str | None = Field(None, description="Name of the judging model at the endpoint.")
    key_variable: str = Field("OPENAI_API_KEY", pattern=r"^[A-Z][A-Z0-9_]*$", description="Environment variable that holds the key.")
    concurrency: int = Field(16, ge=1, description="Requests under way at once.")
    requests_per_minute: float | None = Field(None, gt=0, description="None: no limit of our own.")
    tokens_per_minute: float | None = Field(None, gt=0, description="Prompt and reply tokens, estimated before sending.")
    prompt_price: float | None = Field(None, ge=0, description="Price of a million prompt tokens.")
    completion_price: float | None = Field(None, ge=0, description="Price of a million reply tokens.")
    budget: float | None = Field(None, gt=0, description="Most that may be spent over the cache's life, in the currency of the prices.")

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        if url is not None and urlsplit(url).query:
            raise ValueError("must have no query: it is written down (put the key into the environment)")
        return _refuse_secret(url)

    @model_validator(mode="after")
    def _check_budget(self) -> JudgeConfig:
        if self.budget is not None and (self.prompt_price is None or self.completion_price is None):
            raise ValueError("budget needs prompt_price and completion_price")
        return self


class QuestionsConfig(Section):
    """How questions are written from passages: the model, and the paper's sampling (ARMOR, appendix A)."""

    writer: Literal["generator", "judge"] = Field(
        "generator", description="generator: hf or vllm on an actor pool; judge: the endpoint of the section judge, within its budget."
    )
    generator: GeneratorConfig | None = Field(None, description="The instruction model that writes; null: the section generator.")
    passages: int | None = Field(None, ge=1, description="At most this many passages are asked about (seeded sample); null: all.")
    per_passage: int = Field(2, ge=1, le=10, description="Questions asked for; a passage with less in it may give fewer.")
    temperature: float = Field(0.2, gt=0)
    top_p: float = Field(0.9, gt=0, le=1)
    max_new_tokens: int = Field(900, ge=16)
    batch_size: int = Field(20, ge=1, description="Passages an actor writes about at once; what a kill may lose.")
    technical_threshold: float = Field(0.7, ge=0, le=1, description="Scores from which the quality judge keeps a question.")
    clarity_threshold: float = Field(0.7, ge=0, le=1)

    @model_validator(mode="after")
    def _check_writer_uses_what_is_set(self) -> QuestionsConfig:
        if self.writer == "judge":
            for name in sorted({"generator", "batch_size"} & self.model_fields_set):
                raise ValueError(f"{name} has no effect on writer 'judge' (its endpoint is asked passage by passage)")
        return self

    @property
    def form(self) -> Literal["lines", "json"]:
        """What the writer is asked for: an endpoint can hold a model to a schema, a local one cannot."""
        return "json" if self.writer == "judge" else "lines"


class CurationConfig(Section):
    """Judged data from raw documents, or from questions whose gold passages nobody marked (ARMOR, appendix A)."""

    pipeline: Literal["tele_eval", "documents", "teleqna"] = Field(
        description="tele_eval: filter questions by domain, align them with passages of their documents; documents: filter documents, have "
        "questions written and judged; teleqna: filter multiple-choice questions."
    )
    domain: str = Field(description="A shipped domain (isac, jcc, sagin) or the path of a domain file.")
    threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Score from which the domain judge keeps; null: 0.65 of pairs, 0.5 of documents, 0.7 of TeleQnA.",
    )
    positives: int = Field(3, ge=1, description="Most gold passages of a question.")
    questions: QuestionsConfig = Field(default_factory=QuestionsConfig)

    @model_validator(mode="after")
    def _check_pipeline_uses_what_is_set(self) -> CurationConfig:
        unread = {"documents": set(), "tele_eval": {"questions"}, "teleqna": {"questions", "positives"}}[self.pipeline]
        for name in sorted(unread & self.model_fields_set):
            raise ValueError(f"{name} has no effect on pipeline '{self.pipeline}'")
        return self


Count = Annotated[int, Field(ge=1)] | Literal["auto"]
Amount = Annotated[float, Field(ge=0)] | Literal["auto"]


class ResourcesConfig(Section):
    """Actors and devices per heavy stage; `auto` reads the cluster."""

    embed_actors: Count = "auto"
    score_actors: Count = "auto"
    reward_actors: Count = "auto"
    cpus_per_actor: float = Field(0.5, gt=0, description="CPU reservation of one data actor; below 1 so that reads never starve.")
    gpus_per_actor: Amount = "auto"
    cpus_per_trainer: float = Field(1.0, gt=0, description="CPU reservation of one DDP rank.")
    cluster_cpus: Amount = Field("auto", description="CPUs to plan for; name an autoscaled cluster's maximum.")
    cluster_gpus: Amount = Field("auto", description="GPUs to plan for; name an autoscaled cluster's maximum.")
    max_concurrent_trials: Count = "auto"


class Config(Section):
    """The whole configuration of a run."""

    workspace: str = "runs/armor"
    cache: str | None = Field(None, description="Workspace whose scored pairs are used and added to; null: this one. Runs may share one.")
    seed: int = 0
    data: DataConfig = Field(default_factory=DataConfig)
    encoder: EncoderConfig = Field(default_factory=EncoderConfig)
    index: IndexConfig = Field(default_factory=IndexConfig)
    candidates: CandidatesConfig = Field(default_factory=CandidatesConfig)
    generator: GeneratorConfig = Field(default_factory=GeneratorConfig)
    objective: ObjectiveConfig = Field(default_factory=ObjectiveConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    utility: UtilityConfig = Field(default_factory=UtilityConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    sweep: SweepConfig = Field(default_factory=SweepConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    baselines: BaselinesConfig = Field(default_factory=BaselinesConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    curation: CurationConfig | None = Field(None, description="Not given: the data set is used as it is.")
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_sections(cls, values: Any) -> Any:
        # `training:` with all its lines commented out reads as null.
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None or not _is_section(name)}

    @model_validator(mode="after")
    def _check_recipe_uses_what_is_set(self) -> Config:
        recipe = self.objective.recipe
        preset = RELEASED_PRESET if self.objective.preset == "released" else {}
        if "parameters" not in self.sweep.model_fields_set:
            used = {key: values for key, values in DEFAULT_SWEEP.items() if _is_used(key.removeprefix("objective."), recipe)}
            self.sweep.__dict__["parameters"] = used  # still not "set": another recipe's copy of this config gets its own
        for key in sorted(self.sweep.parameters):
            _require_used(key.removeprefix("objective."), recipe, "sweep.parameters.objective")
        for name in sorted(self.objective.model_fields_set - {"recipe", "preset"}):
            if name in preset and getattr(self.objective, name) == preset[name]:
                continue
            _require_used(name, recipe, "objective")
        _check_pools_have_rewards(self)
        _check_curation(self)
        _check_cache(self)
        return self


def _check_pools_have_rewards(config: Config) -> None:
    chosen = [recipe for recipe in (config.objective.recipe, *config.evaluation.recipes) if recipe in REWARD_RECIPES]
    if chosen and config.candidates.refresh != "never":
        raise ValueError(f"candidates.refresh '{config.candidates.refresh}' adds passages without rewards to the pools of '{chosen[0]}'")


def _check_cache(config: Config) -> None:
    if config.cache is not None and ("://" in config.cache) != ("://" in config.workspace):
        raise ValueError(
            f"cache '{config.cache}' and workspace '{config.workspace}' must both be paths or both URIs: all machines use both"
        )


def _check_curation(config: Config) -> None:
    if config.curation is None:
        return
    if (config.curation.pipeline == "teleqna") != (config.data.format == "teleqna"):
        raise ValueError(f"curation.pipeline '{config.curation.pipeline}' does not fit data.format '{config.data.format}'")
    questions = config.curation.questions
    writer = questions.generator or config.generator
    if config.curation.pipeline == "documents" and questions.writer == "generator" and writer.engine == "openai":
        raise ValueError("the openai engine keeps no budget and writes no questions (set curation.questions.writer: judge)")


def _is_section(name: str) -> bool:
    field = Config.model_fields.get(name)
    return field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def _is_used(name: str, recipe: str) -> bool:
    return recipe in RECIPE_PARAMETERS.get(name, {recipe})


def _require_used(name: str, recipe: str, place: str) -> None:
    if not _is_used(name, recipe):
        readers = ", ".join(sorted(RECIPE_PARAMETERS[name]))
        raise ValueError(f"{place}.{name} has no effect on recipe '{recipe}' (read by {readers})")


def _require_distinct(values: list[Any]) -> list[Any]:
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise ValueError(f"{repeated[0]!r} occurs twice")
    return values


def _refuse_secret(url: str | None) -> str | None:
    if url is not None and "@" in urlsplit(url).netloc:
        raise ValueError("must not hold a user or password: it is written down (put the key into OPENAI_API_KEY)")
    return url


def load_config(path: str | Path | None, overrides: list[str] | None = None) -> Config:
    """Reads a YAML file, applies `section.key=value` overrides and validates the whole, every point of the sweep's grid included.

    Raises:
        ArmorError: unreadable or malformed YAML, an unknown key (the nearest known one is named), or a value out of range.
    """
    where = str(path) if path is not None else "defaults"
    raw = _read_yaml(Path(path), where) if path is not None else {}
    for override in overrides or []:
        apply_override(raw, override)
    config = validate_config(raw, where)
    _check_grid(config, where)
    return config


def _read_yaml(path: Path, where: str) -> dict[str, Any]:
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), where)
    except FileNotFoundError:
        raise ArmorError("no such config file", where=where, hint="pass --config FILE; examples are in jobs/configs/") from None
    except OSError as error:
        raise ArmorError(f"cannot read the config ({error.strerror})", where=where) from None
    except UnicodeDecodeError:
        raise ArmorError("not a text file in UTF-8", where=where, hint="a config is a YAML file") from None


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The nested mapping of a config file.

    Raises:
        ArmorError: malformed YAML, with its line, or not a mapping.
    """
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{where}:{mark.line + 1}" if mark else where
        problem = " ".join(str(getattr(error, "problem", None) or error).split())  # PyYAML's own text may take several lines
        raise ArmorError(f"not valid YAML ({problem})", where=line) from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ArmorError("a config is a mapping of sections", where=where, hint="see jobs/configs/demo.yaml")
    return raw


def validate_config(raw: dict[str, Any], where: str = "config") -> Config:
    """Validates a nested mapping; the first fault becomes one ArmorError line."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        location = _known_part(first["loc"])
        key = ".".join(str(part) for part in location)
        if first["type"] == "extra_forbidden":
            raise ArmorError(f"unknown key '{key}'", where=where, hint=nearest_key(first["loc"], Config)) from None
        message = first["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        given = f" (got {first['input']!r})" if first["type"] != "value_error" and "password" not in key else ""
        raise ArmorError(f"{key}: {message}{given}" if key else message, where=where) from None


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Sets `section.key=value` in place; the value is parsed as YAML."""
    key, sign, value = override.partition("=")
    if not sign or not all(key.split(".")):
        raise ArmorError(f"'{override}' is not of the form section.key=value", where="--set")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ArmorError(f"the value of '{key}' is not valid YAML", where="--set") from None
    _set_dotted(raw, key, parsed)


def with_overrides(config: Config, values: dict[str, Any]) -> Config:
    """A copy of `config` with dotted keys replaced and everything validated again (a sweep's trial)."""
    raw = config.model_dump(exclude_unset=True)
    for key, value in values.items():
        _set_dotted(raw, key, value)
    return validate_config(raw, "trial")


def _set_dotted(raw: dict[str, Any], key: str, value: Any) -> None:
    *sections, name = _split_key(key)
    node = raw
    for section in sections:
        child = node.get(section)
        if child is None:
            child = node[section] = {}
        if not isinstance(child, dict):
            raise ArmorError(f"'{key}' goes below a plain value", where="--set")
        node = child
    node[name] = value


def _split_key(key: str) -> list[str]:
    """Parts of a dotted key; the keys of `sweep.parameters` have a dot of their own."""
    prefix = "sweep.parameters."
    return ["sweep", "parameters", key.removeprefix(prefix)] if key.startswith(prefix) else key.split(".")


def _check_grid(config: Config, where: str) -> None:
    """Refuses a sweep whose trials would be refused, long before they start."""
    parameters = config.sweep.parameters
    for values in itertools.product(*parameters.values()):
        point = dict(zip(parameters, values, strict=True))
        try:
            with_overrides(config, {**point, "sweep.parameters": {}})
        except ArmorError as error:
            at = ", ".join(f"{key}={value:g}" for key, value in point.items())
            raise ArmorError(f"sweep.parameters: {error.message} (at {at})", where=where, hint=error.hint) from None


def _known_part(location: tuple[Any, ...]) -> tuple[Any, ...]:
    """A location without pydantic's names of union members ("int", "literal['auto']")."""
    return location[:2] if location[:1] == ("resources",) else location
