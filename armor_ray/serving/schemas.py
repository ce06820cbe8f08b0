"""Bodies of HTTP requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Values = Annotated[list[str], Field(min_length=1, max_length=1000)]


class Filter(_Body):
    """Only passages with one of the values in every column named."""

    doc_id: str | Values | None = None
    doc_type: str | Values | None = None
    source: str | Values | None = None

    def conditions(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """Column and accepted values; hashable."""
        named = ((name, getattr(self, name)) for name in type(self).model_fields)
        return tuple((name, frozenset([value] if isinstance(value, str) else value)) for name, value in named if value is not None)


class Fusion(_Body):
    """Mix the dense score with BM25, each min-max normalised over all passages."""

    weight: float | None = Field(None, ge=0, le=1, description="Of the dense score; left out: the server's.")


class SearchOptions(_Body):
    """How passages are looked for."""

    k: int = Field(5, ge=1, description="Passages per query; fewer come back where a filter leaves fewer.")
    encoder: Literal["adapted", "base"] | None = Field(
        None, description="Which query encoder, 'base' where the server compares; left out: 'adapted', or what an A/B test assigns."
    )
    filter: Filter | None = None
    fusion: Fusion | None = None
    rerank: bool = Field(False, description="Let the server's cross-encoder order the best passages anew.")


class RetrieveRequest(SearchOptions):
    """One query or several, and how many passages each gets."""

    query: str | None = None
    queries: list[str] | None = None

    @model_validator(mode="after")
    def _check_one_of(self) -> RetrieveRequest:
        if (self.query is None) == (self.queries is None):
            raise ValueError("give either 'query' or 'queries'")
        return self

    def texts(self) -> list[str]:
        return [self.query] if self.query is not None else self.queries or []


class Passage(BaseModel):
    passage_id: int
    doc_id: str
    title: str
    text: str
    score: float = Field(description="Inner product of unit vectors; with fusion in [0, 1]; with rerank the cross-encoder's.")
    rank: int = Field(description="1 is best.")


class QueryResult(BaseModel):
    query: str
    truncated: bool = Field(description="The query was cut at the encoder's maximum length.")
    passages: list[Passage]


class RetrieveResponse(BaseModel):
    encoder: str = Field(description="name@fingerprint of the encoder that answered.")
    arm: Literal["adapted", "base"] = Field(description="Which of the two that is.")
    partial: bool = Field(description="Part of a sharded index did not answer: passages of it are missing.")
    results: list[QueryResult]


class AnswerRequest(SearchOptions):
    """A question to answer from the passages that are found for it."""

    question: str
    stream: bool = Field(False, description="Server-sent events: `passages`, `delta` …, then `done` or `error`.")


class AnswerResponse(BaseModel):
    answer: str
    citations: list[int] = Field(description="Ids of the passages that the answer cites, in the order of their first mention.")
    passages: list[Passage]
    encoder: str = Field(description="name@fingerprint of the encoder that found the passages.")
    arm: Literal["adapted", "base"] = Field(description="Which of the two that is.")
    partial: bool = Field(description="Part of a sharded index did not answer: passages of it are missing.")
    model: str = Field(description="What wrote the answer.")


class FeedbackRequest(_Body):
    """A question and the passage that answered it."""

    question: str
    passage_id: int = Field(ge=0)
    answer: str | None = Field(None, description="The passage's own text stands in where it is left out.")
    encoder: str | None = Field(None, max_length=200, description="`encoder` of the answer that was judged.")


class FeedbackResponse(BaseModel):
    id: str = Field(description="Of the new training example.")


class EmbeddingsRequest(_Body):
    """OpenAI's body; gives *query* vectors, prefix included."""

    input: str | list[str]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="The encoder's own, or left out.")
    user: str | None = Field(None, description="Accepted and ignored, as OpenAI clients send it.")

    @field_validator("input", mode="before")
    @classmethod
    def _refuse_token_ids(cls, value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], int | list):
            raise ValueError("token ids are not supported, send text")
        return value

    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of little-endian float32.")


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    object: Literal["list"] = "list"
    model: str
    data: list[Embedding]
    usage: Usage
    truncated: list[int] = Field(description="Indexes of inputs that were cut at the encoder's maximum length.")


class Health(BaseModel):
    status: Literal["ok", "stalled", "full"]


class Info(BaseModel):
    """What is being served, and within which limits."""

    model: str = Field(description="Name for `model` of /v1/embeddings.")
    encoder: str
    encoders: dict[Literal["adapted", "base"], str] = Field(description="What `encoder` of /v1/retrieve may be, and its version.")
    dimension: int
    max_length: int = Field(description="Tokens; longer texts are cut.")
    passages: int
    limits: dict[str, int]
    traffic: dict[str, str | float] = Field(description="Mode (off, ab, shadow) and the base encoder's share.")
    live_error: str | None = Field(description="Why the last change of user_config was not made.")


class ErrorDetail(BaseModel):
    type: Literal[
        "invalid_request",
        "unauthorized",
        "not_found",
        "method_not_allowed",
        "too_large",
        "rate_limited",
        "overloaded",
        "upstream",
        "internal",
    ]
    message: str


class ErrorBody(BaseModel):
    error: ErrorDetail
