"""Typed configuration: one section per concern, YAML in, dotted overrides on top.

`load_config` is the only way in. Unknown keys name the nearest known one; a set or swept parameter that the chosen recipe ignores
is an error rather than a waste. Defaults are the papers'.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from armor_ray.errors import ArmorError

Recipe = Literal["rag", "infonce", "mix", "static_reg", "dynamic", "armor", "replug"]

RECIPES: tuple[Recipe, ...] = ("rag", "infonce", "mix", "static_reg", "dynamic", "armor", "replug")


class Section(BaseModel):
    """Base of all sections: unknown keys are refused, assignments are checked."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=())


class DataConfig(Section):
    """Where documents and questions come from, and how they are cut and split."""

    name: str = Field("data", description="Label of the data set in reports and summaries.")
    format: Literal["demo", "jsonl", "parquet", "telequad", "teleqna"] = "jsonl"
    path: str | None = Field(None, description="Folder with corpus.jsonl + qa.jsonl (or .parquet), or the published file.")
    password: str | None = Field(None, description="Password of an encrypted archive (TeleQnA publishes its own).")
    passage_characters: int = Field(384, ge=32, description="Passage length in characters, cut at exact offsets.")
    group_by: Literal["document", "source"] = Field(
        "document", description="What must not straddle splits: a document, or all documents of one source (specification)."
    )
    split_by: Literal["group", "question"] = Field("group", description="TeleQnA is split by question, all else by group.")
    test_fraction: float = Field(0.1, gt=0, lt=1)
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    max_train: int | None = Field(None, ge=1, description="At most this many training questions (seeded sample).")
    max_validation: int | None = Field(None, ge=1)
    max_test: int | None = Field(None, ge=1)


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
    flat_below: int = Field(5000, ge=0, description="Smaller corpora use a flat index whatever `kind` says; the manifest says so.")


class CandidatesConfig(Section):
    pool_size: int = Field(16, ge=1, description="Base-retrieved passages per question; gold passages are added to training pools.")
    top_k: int = Field(16, ge=1, description="Passages of the pool that the RAG softmax runs over at each step.")
    refresh: Literal["never", "epoch", "step"] = "never"


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


class ObjectiveConfig(Section):
    """Losses and temperatures (METHODS §2-4); `preset` fills what is not set."""

    recipe: Recipe = "armor"
    preset: Literal["paper", "released"] = "paper"
    lambda_q: float = Field(1.0, ge=0, description="Weight of query distillation to the base encoder.")
    mix_weight: float = Field(0.5, ge=0, le=1, description="λ of the static mixture λ·RAG + (1-λ)·InfoNCE.")
    temperature_form: Literal["softplus", "sigmoid"] = "softplus"
    temperature_schedule: Literal["joint", "alternating"] = "joint"
    tau_start: float | None = Field(
        None, gt=0, description="Start of learned temperatures, value of fixed ones; None: tau_min + 0.04 (0.05 by default, for cosine scores)."
    )
    tau_min: float = Field(0.01, gt=0, description="Floor of learned temperatures.")
    tau_max: float = Field(10.0, gt=0, description="Ceiling; the sigmoid form only.")
    kl_temperature: float = Field(1.0, gt=0, description="β of the teacher softmax(ℓ/β) in recipes with a KL term.")
    length_normalised: bool = Field(False, description="Divide answer log-likelihoods by their token count.")
    in_batch: Literal["none", "positives", "pools"] = Field("positives", description="Which passages of the other questions are negatives.")
    negatives: int | None = Field(None, ge=1, description="Retrieved negatives per question; None: all of the pool.")
    negative_order: Literal["hardest", "easiest"] = "hardest"
    multi_positive: Literal["mean", "best"] = Field("mean", description="Contrast each positive alone and average, or the best-scored.")
    weight_anchor: float = Field(0.0, ge=0, description="Weight of the mean squared distance to the base weights.")
    rank_distillation: float = Field(0.0, ge=0, description="Weight of KL(base ranking || adapted ranking) over the pool.")

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("preset") == "released":
            return {**RELEASED_PRESET, **values}
        return values

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
    "lambda_q": frozenset({"static_reg", "armor"}),
    "mix_weight": frozenset({"mix", "static_reg"}),
    "tau_min": frozenset({"dynamic", "armor"}),
    "tau_max": frozenset({"dynamic", "armor"}),
    "temperature_form": frozenset({"dynamic", "armor"}),
    "temperature_schedule": frozenset({"dynamic", "armor"}),
    "kl_temperature": frozenset({"replug"}),
    "length_normalised": frozenset(RECIPES) - {"infonce"},
    "in_batch": frozenset(RECIPES) - {"rag", "replug"},
    "negatives": frozenset(RECIPES) - {"rag", "replug"},
    "negative_order": frozenset(RECIPES) - {"rag", "replug"},
    "multi_positive": frozenset(RECIPES) - {"rag", "replug"},
}


class LoraConfig(Section):
    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)


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
    evaluations_per_epoch: int = Field(1, ge=1)
    patience: int | None = Field(None, ge=1, description="Evaluations without a better validation metric before stopping.")
    metric: Literal["R@1", "R@3", "R@5", "R@16"] = Field("R@3", description="Validation metric that picks the checkpoint.")
    interpolate: list[float] = Field(
        default_factory=list, description="Grid of α in (1-α)·base + α·adapted, chosen on validation; empty: off, as in the papers."
    )
    max_failures: int = Field(3, ge=0, description="Restarts after a lost worker.")

    @model_validator(mode="after")
    def _check_grid(self) -> TrainingConfig:
        if any(not 0 <= alpha <= 1 for alpha in self.interpolate):
            raise ValueError("interpolate: every α must lie in [0, 1]")
        return self


class SweepConfig(Section):
    parameters: dict[str, list[float]] = Field(
        default_factory=lambda: {"objective.lambda_q": [0.3, 1.0, 3.0], "objective.tau_min": [0.01, 0.05, 1.0]},
        description="Dotted config keys and the values to try; the grid is their product.",
    )
    trials: int | None = Field(None, ge=1, description="Random subset of the grid; None runs all of it.")
    scheduler: Literal["asha", "none"] = "asha"
    grace_epochs: int = Field(1, ge=1)


class EvaluationConfig(Section):
    recipes: list[Recipe] = Field(default_factory=lambda: list(RECIPES))
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1, description="Training seeds; results are means over them.")
    ks: list[int] = Field(default_factory=lambda: [1, 3, 5, 16], min_length=1)
    bootstrap: int = Field(2000, ge=100, description="Resamples of the paired bootstrap.")
    generation_questions: int = Field(150, ge=0, description="First test questions that are answered by the generator; 0: none.")
    generation_top_k: int = Field(16, ge=1)
    fusion_grid: list[float] = Field(
        default_factory=lambda: [round(0.05 * i, 2) for i in range(21)],
        description="Weights of the dense score in BM25 fusion, tuned on validation.",
    )


class JudgeConfig(Section):
    base_url: str | None = None
    model: str | None = None


class ServingConfig(Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    retriever: str | None = Field(None, description="Name under retrievers/; None serves the promoted one.")


class ResourcesConfig(Section):
    """Actors and devices per heavy stage; `auto` reads the cluster."""

    embed_actors: int | Literal["auto"] = "auto"
    score_actors: int | Literal["auto"] = "auto"
    cpus_per_actor: float = Field(0.5, gt=0, description="CPU reservation of one data actor; below 1 so that reads never starve.")
    gpus_per_actor: float | Literal["auto"] = "auto"
    cpus_per_trainer: float = Field(0.9, gt=0, description="CPU reservation of one DDP rank; with its trial's 0.1 it fills a core.")
    cluster_cpus: float | Literal["auto"] = Field("auto", description="CPUs to plan for; name an autoscaled cluster's maximum.")
    cluster_gpus: float | Literal["auto"] = Field("auto", description="GPUs to plan for; name an autoscaled cluster's maximum.")
    max_concurrent_trials: int | Literal["auto"] = "auto"


class Config(Section):
    """The whole configuration of a run."""

    workspace: str = "runs/armor"
    seed: int = 0
    data: DataConfig = Field(default_factory=DataConfig)
    encoder: EncoderConfig = Field(default_factory=EncoderConfig)
    index: IndexConfig = Field(default_factory=IndexConfig)
    candidates: CandidatesConfig = Field(default_factory=CandidatesConfig)
    generator: GeneratorConfig = Field(default_factory=GeneratorConfig)
    objective: ObjectiveConfig = Field(default_factory=ObjectiveConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    sweep: SweepConfig = Field(default_factory=SweepConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    serving: ServingConfig = Field(default_factory=ServingConfig)
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)

    @model_validator(mode="after")
    def _check_recipe_uses_what_is_set(self) -> Config:
        recipe = self.objective.recipe
        preset = RELEASED_PRESET if self.objective.preset == "released" else {}
        swept = {key.removeprefix("objective.") for key in self.sweep.parameters if key.startswith("objective.")}
        if "sweep" in self.model_fields_set and "parameters" in self.sweep.model_fields_set:
            for name in sorted(swept):
                _require_used(name, recipe, "sweep.parameters")
        for name in sorted(self.objective.model_fields_set - {"recipe", "preset"}):
            if name in preset and getattr(self.objective, name) == preset[name]:
                continue
            _require_used(name, recipe, "objective")
        return self


def _require_used(name: str, recipe: str, place: str) -> None:
    users = RECIPE_PARAMETERS.get(name)
    if users is not None and recipe not in users:
        raise ValueError(f"{place}.{name} has no effect on recipe '{recipe}' (read by {', '.join(sorted(users))})")


def load_config(path: str | Path | None, overrides: list[str] | None = None) -> Config:
    """Reads a YAML file, applies `section.key=value` overrides and validates the whole.

    Raises:
        ArmorError: unreadable or malformed YAML, an unknown key (the nearest known one is named), or a value out of range.
    """
    raw: Any = {}
    where = str(path) if path is not None else "defaults"
    if path is not None:
        try:
            raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ArmorError("no such config file", where=where, hint="pass --config FILE; examples are in jobs/configs/") from None
        except OSError as error:
            raise ArmorError(f"cannot read the config ({error.strerror})", where=where) from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f"{where}:{mark.line + 1}" if mark else where
            raise ArmorError(f"not valid YAML ({getattr(error, 'problem', error)})", where=line) from None
        raw = {} if raw is None else raw
        if not isinstance(raw, dict):
            raise ArmorError("a config is a mapping of sections", where=where)
    for override in overrides or []:
        apply_override(raw, override)
    return validate_config(raw, where)


def validate_config(raw: dict[str, Any], where: str = "config") -> Config:
    """Validates a nested mapping; the first fault becomes one ArmorError line."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise ArmorError(f"unknown key '{key}'", where=where, hint=_nearest(first["loc"])) from None
        message = first["msg"].removeprefix("Value error, ")
        raise ArmorError(f"{key}: {message}" if key else message, where=where) from None


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Sets `section.key=value` in place; the value is parsed as YAML."""
    key, sign, value = override.partition("=")
    if not sign or not key:
        raise ArmorError(f"'{override}' is not of the form section.key=value", where="--set")
    node = raw
    parts = key.split(".")
    for part in parts[:-1]:
        child = node.get(part)
        if child is None:
            child = node[part] = {}
        if not isinstance(child, dict):
            raise ArmorError(f"'{key}' goes below a plain value", where="--set")
        node = child
    try:
        node[parts[-1]] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ArmorError(f"the value of '{key}' is not valid YAML", where="--set") from None


def with_overrides(config: Config, values: dict[str, Any]) -> Config:
    """A copy of `config` with dotted keys replaced and everything validated again (a sweep's trial)."""
    raw = config.model_dump(exclude_unset=True)
    for key, value in values.items():
        apply_override(raw, f"{key}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}")
    return validate_config(raw, "trial")


def _nearest(location: tuple[Any, ...]) -> str:
    model: Any = Config
    for part in location[:-1]:
        field = model.model_fields.get(part) if isinstance(model, type) and issubclass(model, BaseModel) else None
        annotation = field.annotation if field else None
        options = [annotation, *getattr(annotation, "__args__", ())]
        model = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        if model is None:
            return "remove it"
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(sorted(known))}"
