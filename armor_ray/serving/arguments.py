"""The `args` section of a serve config, typed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

PROMOTED = "promoted"
# A batch takes milliseconds to seconds; one that runs this long never ends.
STALLED_SECONDS = 60.0


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FusionArguments(_Arguments):
    """BM25 beside the dense search, for requests that ask for `fusion`; builds a BM25 index of all passages at start."""

    weight: float | None = Field(None, ge=0, le=1, description="Of the dense score; left out: tuned on validation, from the report.")


class RerankerArguments(_Arguments):
    """A cross-encoder that orders the best passages anew, for requests that ask for `rerank`."""

    model: str = Field(description="Folder or Hugging Face id of a one-label sequence classifier.")
    max_length: int = Field(512, ge=16, description="Tokens of question and passage together.")
    depth: int = Field(20, ge=1, description="Passages of the first search that are judged (k where that is more).")


class GeneratorArguments(_Arguments):
    """An OpenAI-compatible chat endpoint that writes the answers of /v1/answer."""

    base_url: str = Field(description="Up to and with `/v1`.")
    model: str
    api_key_env: str = Field("OPENAI_API_KEY", description="Environment variable of the replicas that holds the key.")
    timeout_seconds: float = Field(60, gt=0, description="For one whole answer.")
    max_tokens: int = Field(512, ge=1, description="Of one answer.")
    temperature: float = Field(0, ge=0)
    max_concurrent: int = Field(16, ge=1, description="Answers that one replica has written at once; one more gets 503.")


class AuthArguments(_Arguments):
    """Who may ask: holders of a bearer token. Tokens stand one a line; `/`, `/health` and `/ready` ask for none."""

    tokens_env: str | None = Field(None, description="Environment variable of the replicas that holds the tokens, with commas between.")
    tokens_file: str | None = Field(None, description="File with the tokens; read again within a second of a change.")
    requests_per_minute: int | None = Field(None, ge=1, description="Of one token, in one replica; more get 429.")
    allow_unauthenticated: bool = Field(False, description="Serve other machines without tokens: something in front checks.")

    @model_validator(mode="after")
    def _check_one_source(self) -> AuthArguments:
        if self.tokens_env and self.tokens_file:
            raise ValueError("give either tokens_env or tokens_file")
        if self.requests_per_minute and not self.has_tokens:
            raise ValueError("requests_per_minute counts by token: give tokens_env or tokens_file")
        return self

    @property
    def has_tokens(self) -> bool:
        return bool(self.tokens_env or self.tokens_file)


class TrafficArguments(_Arguments):
    """Which share of the requests that name no encoder the base encoder gets."""

    mode: Literal["off", "ab", "shadow"] = Field(
        "off", description="ab: base answers the share; shadow: adapted answers all, base answers the share unseen, and metrics compare."
    )
    base_share: float = Field(0.0, ge=0, le=1, description="Equal X-Request-ID headers fall on the same side.")


class LiveArguments(_Arguments):
    """The `user_config` of the deployment: what Serve changes without a restart."""

    retriever: str | None = Field(None, description="As the argument; left out: what is served now.")
    revision: str | int | None = Field(None, description="Any other value loads the retriever again, as after a promotion.")
    traffic: TrafficArguments = Field(default_factory=TrafficArguments)


class ServingArguments(_Arguments):
    """What to serve, how much of it at once, and how large a request may be."""

    workspace: str = Field(description="Folder or URI of the run; a relative folder is taken from where `serve run` or `ray start` ran.")
    retriever: str = Field(PROMOTED, description="'promoted', or a name under retrievers/ of the workspace.")
    compare: bool = Field(False, description="Hold the base encoder, too: requests choose by `encoder`, and the page shows both.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Arithmetic of the query encoders; bfloat16 is faster where the hardware has it (docs/decisions.md)."
    )
    fusion: FusionArguments | None = None
    reranker: RerankerArguments | None = None
    generator: GeneratorArguments | None = Field(None, description="Serves /v1/answer.")
    feedback_file: str | None = Field(None, description="Serves /v1/feedback; training examples are appended to this file (qa.jsonl).")
    auth: AuthArguments = Field(default_factory=AuthArguments, description="Needed as soon as the server listens beyond loopback.")
    topology: Literal["single", "split", "sharded"] = Field(
        "single",
        description="single: encoder and index in one replica, no hop; split: the index in replicas of its own; sharded: in parts.",
    )
    num_shards: int = Field(1, ge=1, description="Parts of the index; of `sharded` only, where it is 2 or more.")
    index_replicas: int = Field(1, ge=1, description="Copies of the index, or of each part; of `split` and `sharded`.")
    shard_timeout_seconds: float = Field(2.0, gt=0, description="How long an answer waits for a part of the index before it goes without.")
    num_replicas: int = Field(1, ge=1, description="Copies of the encoder, and of the index with `single`.")
    threads: int = Field(1, ge=1, description="CPU threads, and reserved CPUs, of one replica.")
    max_batch_size: int = Field(32, ge=1, description="Texts encoded together; raise it for throughput on a GPU.")
    max_ongoing_requests: int = Field(128, ge=1, description="Requests one replica holds, running or waiting; one more gets 503.")
    max_queued_requests: int = Field(256, ge=0, description="Requests the proxy holds while all replicas are full; one more gets 503.")
    max_query_characters: int = Field(8192, ge=1)
    max_queries: int = Field(64, ge=1, description="Texts in one request.")
    max_k: int = Field(100, ge=1, description="Passages per query.")
    max_body_bytes: int = Field(4 * 2**20, ge=1024)
    body_timeout_seconds: float = Field(10.0, gt=0, description="How long a client may take to send its body.")

    @model_validator(mode="after")
    def _check_topology(self) -> ServingArguments:
        if (self.topology == "sharded") != (self.num_shards > 1):
            raise ValueError(f"topology {self.topology} with num_shards {self.num_shards}")
        if self.topology == "single" and self.index_replicas > 1:
            raise ValueError("index_replicas needs topology split or sharded; copies of a single replica are num_replicas")
        if self.topology == "sharded" and self.fusion is not None:
            raise ValueError("fusion normalises over all passages, which no shard has: use topology single or split")
        return self

    @model_validator(mode="after")
    def _check_batches_can_fill(self) -> ServingArguments:
        # Requests are what fills a batch: a replica that holds fewer never reaches its batch size (ray#43288).
        if self.max_ongoing_requests < self.max_batch_size:
            raise ValueError(f"max_ongoing_requests {self.max_ongoing_requests} lies below max_batch_size {self.max_batch_size}")
        return self
