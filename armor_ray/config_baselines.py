"""The `baselines` section: first stages and rerankers that are compared with the adapted retrievers.

A first stage is a row of its own. A reranker is a row over each first stage in its `over`, named `<first stage>><reranker>`:
`bm25>cross-encoder`. Beside the first stages listed here, `bm25`, `base` and every trained recipe (its first seed) have names.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from armor_ray.config_section import Section

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class NamedConfig(Section):
    """Something that becomes a row of the results."""

    name: str | None = Field(None, pattern=_NAME, description="Of the row; None: the kind.")
    kind: str

    @property
    def label(self) -> str:
        """The name in rows and in `over`."""
        return self.name or self.kind


# -- first stages --------------------------------------------------------------------------------------------------------------


class EncoderStageConfig(NamedConfig):
    """A published encoder: a Hugging Face id or a folder that sentence-transformers loads."""

    model: str
    revision: str | None = None
    query_prompt: str | None = Field(None, description="Put before every question; None: the model's own, if it has one.")
    passage_prompt: str | None = Field(None, description="Put before every passage; None: the model's own, if it has one.")
    max_length: int | None = Field(None, ge=8, description="Tokens of a text; None: the model's own limit.")
    batch_size: int = Field(32, ge=1)
    trust_remote_code: bool = Field(False, description="NV-Embed and a few others bring their own code.")


class BiEncoderStageConfig(EncoderStageConfig):
    """One vector a text, inner product of unit vectors (BGE, E5, E5-Mistral, NV-Embed)."""

    kind: Literal["bi-encoder"]


class SpladeStageConfig(EncoderStageConfig):
    """Term weights from a masked-language-model head (SPLADE)."""

    kind: Literal["splade"]


class LateInteractionStageConfig(EncoderStageConfig):
    """One vector a token, MaxSim (ColBERT)."""

    kind: Literal["late-interaction"]


class FusionStageConfig(NamedConfig):
    """Two first stages in one ranking."""

    kind: Literal["fusion"]
    of: tuple[str, str] = Field(description="Names of two first stages.")
    method: Literal["convex", "reciprocal-rank"] = Field(
        "convex", description="convex: w·first + (1-w)·second of min-max scores, w tuned on validation (evaluation.fusion_grid)."
    )

    @property
    def label(self) -> str:
        return self.name or "+".join(self.of)

    @field_validator("of")
    @classmethod
    def _check_two(cls, names: tuple[str, str]) -> tuple[str, str]:
        if names[0] == names[1]:
            raise ValueError(f"'{names[0]}' cannot be fused with itself")
        return names


FirstStageConfig = Annotated[
    BiEncoderStageConfig | SpladeStageConfig | LateInteractionStageConfig | FusionStageConfig, Field(discriminator="kind")
]


# -- rerankers -----------------------------------------------------------------------------------------------------------------


class RerankerConfigBase(NamedConfig):
    """Reranks the top `depth` of each first stage in `over`; the passages below keep their order."""

    over: list[str] = Field(default_factory=lambda: ["base"], min_length=1, description="Names of first stages.")
    depth: int = Field(50, ge=1)


class EndpointConfig(Section):
    """A chat model behind an OpenAI-compatible API; key, rates, prices and budget are the `judge` section's."""

    model: str
    base_url: str | None = Field(None, description="None: OpenAI's own.")

    @field_validator("base_url")
    @classmethod
    def _refuse_secret(cls, url: str | None) -> str | None:
        if url is not None and "@" in urlsplit(url).netloc:
            raise ValueError("must not hold a user or password: it is written down (put the key into OPENAI_API_KEY)")
        return url


class ChatRerankerConfig(RerankerConfigBase):
    """A reranker that asks a chat model."""

    endpoint: EndpointConfig | None = Field(None, description="None: the `judge` section's.")


class CrossEncoderRerankerConfig(RerankerConfigBase):
    """A sequence classifier over (question, passage), such as BAAI/bge-reranker-v2-m3."""

    kind: Literal["cross-encoder"]
    model: str
    max_length: int = Field(512, ge=16)


class ListwiseRerankerConfig(ChatRerankerConfig):
    """RankGPT: a chat model orders a window that slides from the end of the list to its front."""

    kind: Literal["listwise"]
    window: int = Field(20, ge=2)
    step: int = Field(10, ge=1)
    passage_words: int = Field(300, ge=10, description="Words of a passage in the prompt.")

    @model_validator(mode="after")
    def _check_overlap(self) -> ListwiseRerankerConfig:
        if self.step >= self.window:
            raise ValueError(f"step {self.step} must be smaller than window {self.window}, or nothing moves from window to window")
        return self


class PointwiseRerankerConfig(ChatRerankerConfig):
    """A chat model judges how useful each passage alone is for answering (UtilityQwen and kin)."""

    kind: Literal["pointwise"]
    scale: Literal["yes-no", "graded"] = Field("graded", description="graded: an integer from 0 to 5.")


class SePerRerankerConfig(RerankerConfigBase):
    """Semantic perplexity reduction. Reads the reference answers: an upper bound, not a deployable reranker."""

    kind: Literal["seper"]
    endpoint: EndpointConfig = Field(description="Must give several answers a request, with log-probabilities; its key is OPENAI_API_KEY.")
    entailment_model: str = "microsoft/deberta-large-mnli"
    samples: int = Field(10, ge=1, description="Answers sampled at temperature 1 for each passage.")
    max_new_tokens: int = Field(64, ge=1)


class GainRerankerConfig(ChatRerankerConfig):
    """GainRAG: a selector trained on gains, beside a passage that the chat model writes from memory."""

    kind: Literal["gain"]
    model: str = Field(description="The selector, a cross-encoder (a folder or a Hugging Face id).")
    max_length: int = Field(512, ge=16)


RerankerConfig = Annotated[
    CrossEncoderRerankerConfig | ListwiseRerankerConfig | PointwiseRerankerConfig | SePerRerankerConfig | GainRerankerConfig,
    Field(discriminator="kind"),
]


class BaselinesConfig(Section):
    """Rows of the results beyond the product's own; none by default."""

    first_stages: list[FirstStageConfig] = Field(default_factory=list)
    rerankers: list[RerankerConfig] = Field(default_factory=list)

    @field_validator("first_stages", "rerankers")
    @classmethod
    def _check_distinct(cls, items: list[NamedConfig]) -> list[NamedConfig]:
        labels = [item.label for item in items]
        repeated = [label for i, label in enumerate(labels) if label in labels[:i]]
        if repeated:
            raise ValueError(f"'{repeated[0]}' occurs twice (give one of them another name)")
        return items
