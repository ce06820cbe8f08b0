"""Any OpenAI-compatible endpoint: generation only, since the API returns no log-probabilities of a given answer.

The key is read from `OPENAI_API_KEY` and appears in no message of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from armor_ray.config import GeneratorConfig
from armor_ray.errors import ArmorError
from armor_ray.models.api_key import OPENAI_URL, ApiKey
from armor_ray.models.generators.prompts import PROMPT_VERSION, chat_text
from armor_ray.models.generators.protocol import GenerationRequest, SampledAnswer, ScoreRequest, ScoreResult

_CONCURRENCY = 4
_TIMEOUT_SECONDS = 60.0
_RETRIES = 3
_COMPLAINT_CHARACTERS = 200
_CHECK = "check base_url, model and OPENAI_API_KEY"


class OpenAIGenerator:
    """Greedy answers over HTTP, a few requests at a time; the client library retries timeouts, 429 and 5xx.

    Raises:
        ArmorError: OpenAI's own endpoint without OPENAI_API_KEY, or a key that no HTTP header can hold.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        self._key = ApiKey.read("OPENAI_API_KEY")
        if self._key.missing and config.base_url is None:
            raise ArmorError("OPENAI_API_KEY is not set", where="generator.engine", hint="set it, or set generator.base_url")
        self.config = config
        self.client = openai.OpenAI(
            api_key=self._key.value, base_url=config.base_url or OPENAI_URL, timeout=_TIMEOUT_SECONDS, max_retries=_RETRIES
        )

    def identity(self) -> dict[str, Any]:
        """Engine, endpoint, model name and prompt version; the weights behind an endpoint cannot be fingerprinted."""
        return {"engine": "openai", "model": f"{self.client.base_url}{self.config.model}", "prompt": str(PROMPT_VERSION)}

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Always refused."""
        raise ArmorError(
            "the openai engine cannot score answers: its API returns no prompt log-probabilities",
            where="generator.engine",
            hint="use hf or vllm",
        )

    def generate(self, requests: Sequence[GenerationRequest]) -> list[str]:
        """Answers of at most `max_new_tokens` tokens, in the given order.

        Raises:
            ArmorError: the endpoint still fails after the retries, or its reply is no chat completion; requests not yet sent are dropped.
        """
        with ThreadPoolExecutor(_CONCURRENCY) as pool:
            answers = [pool.submit(self._answer, request) for request in requests]
            try:
                return [answer.result() for answer in answers]
            except ArmorError:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def sample(self, request: GenerationRequest, count: int) -> list[SampledAnswer]:
        """`count` answers drawn at temperature 1; safe to call from several threads.

        Raises:
            ArmorError: the endpoint still fails after the retries, or reports no log-likelihoods or fewer answers.
        """
        choices = self._choices(request, temperature=1.0, n=count, logprobs=True)
        if len(choices) != count or not all(choice.logprobs and choice.logprobs.content for choice in choices):
            message = f"{count} answers with token log-likelihoods were asked for, the endpoint does not give them"
            raise ArmorError(message, where=str(self.client.base_url), hint="it must support n and logprobs, as vLLM does")
        return [_sampled(choice) for choice in choices]

    def _answer(self, request: GenerationRequest) -> str:
        return _text(self._choices(request, temperature=0.0)[0])

    def _choices(self, request: GenerationRequest, **options: Any) -> list[Any]:
        """The reply's choices, at least one."""
        # OpenAI's own models take only the newer name of this limit, older compatible servers only the older one.
        limit: Any = {"max_tokens" if self.config.base_url else "max_completion_tokens": self.config.max_new_tokens}
        text = chat_text(request, self.config.context_characters)
        try:
            reply: Any = self.client.chat.completions.create(
                model=self.config.model, messages=[{"role": "user", "content": text}], **options, **limit
            )
        except openai.OpenAIError as error:
            raise ArmorError(self._describe(error), where=str(self.client.base_url), hint=_CHECK) from None
        except ValueError:  # a body that is no JSON
            reply = None
        if not _is_completion(reply):
            raise ArmorError("the reply is not a chat completion", where=str(self.client.base_url), hint=_CHECK)
        return reply.choices

    def _describe(self, error: openai.OpenAIError) -> str:
        """One line without the key, which a server may repeat."""
        if isinstance(error, openai.APIStatusError):
            if error.status_code in {401, 403}:
                return f"the endpoint refused the key (HTTP {error.status_code})"
            complaint = self._key.redact(" ".join(error.message.split()))[:_COMPLAINT_CHARACTERS]
            return f"the endpoint answered HTTP {error.status_code} ({complaint})"
        return f"the endpoint cannot be reached ({type(error).__name__})"


def _is_completion(reply: Any) -> bool:
    """Whether it holds choices; the library lets a proxy's error page through as a string, and a wrong body as half a model."""
    try:
        return bool(reply.choices) and all(isinstance(choice.message.content, str | None) for choice in reply.choices)
    except (AttributeError, TypeError):
        return False


def _text(choice: Any) -> str:
    return (choice.message.content or "").strip()


def _sampled(choice: Any) -> SampledAnswer:
    tokens = [token.logprob for token in choice.logprobs.content]
    return SampledAnswer(_text(choice), sum(tokens) / len(tokens))
