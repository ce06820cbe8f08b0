"""Who may ask: tokens, their rotation and rates, and when a server without any refuses to start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from test_serving_schemas import ARGUMENTS, FakeRetriever

from armor_ray.errors import ArmorError
from armor_ray.serving.api import build_api
from armor_ray.serving.arguments import AuthArguments
from armor_ray.serving.service import Service
from armor_ray.serving.tokens import RateLimit, Tokens, require_tokens

FIRST, SECOND, THIRD = "first-token-0123456789", "second-token-0123456789", "third-token-0123456789"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tokens_rotate_with_their_file_and_none_is_accepted_without_it(tmp_path: Path) -> None:
    file, clock = tmp_path / "tokens", Clock()
    file.write_text(f"# of the team\n{FIRST}\n{SECOND}\n")
    tokens = Tokens(AuthArguments(tokens_file=str(file)), clock)
    names = [tokens.identify(token) for token in (FIRST, SECOND)]
    assert None not in names
    assert names[0] != names[1]
    assert FIRST not in str(names)
    assert [tokens.identify(token) for token in ("", THIRD, FIRST[:-1], FIRST + "x", "# of the team", "\udcff")] == [None] * 6
    file.write_text(f"{SECOND}\n{THIRD}\nshort\n")
    assert tokens.identify(FIRST)  # looked at once a second only
    clock.now = 2
    assert [bool(tokens.identify(token)) for token in (FIRST, SECOND, THIRD, "short")] == [False, True, True, False]
    file.unlink()
    clock.now = 4
    assert tokens.identify(SECOND) is None


def test_a_server_without_usable_tokens_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKENS", f"{FIRST}, {SECOND}")
    assert Tokens(AuthArguments(tokens_env="SOME_TOKENS")).identify(SECOND)
    monkeypatch.setenv("SOME_TOKENS", "short")
    with pytest.raises(ArmorError, match=r"SOME_TOKENS: a token is shorter than 16 characters") as error:
        Tokens(AuthArguments(tokens_env="SOME_TOKENS"))
    assert "short;" not in str(error.value)
    with pytest.raises(ArmorError, match="no token to accept"):
        Tokens(AuthArguments(tokens_file=str(tmp_path / "none")))
    with pytest.raises(ValidationError, match="either"):
        AuthArguments(tokens_file="a", tokens_env="b")
    with pytest.raises(ValidationError, match="counts by token"):
        AuthArguments(requests_per_minute=3)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "server.example", ""])
def test_other_machines_are_not_served_without_tokens_unless_that_is_said(host: str) -> None:
    with pytest.raises(ArmorError, match="asks nobody for a token"):
        require_tokens(host, AuthArguments())
    require_tokens(host, AuthArguments(tokens_env="SOME_TOKENS"))
    require_tokens(host, AuthArguments(allow_unauthenticated=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", None])
def test_loopback_needs_none(host: str | None) -> None:
    require_tokens(host, AuthArguments())


def test_a_rate_refills_evenly_and_counts_each_caller_for_himself() -> None:
    clock = Clock()
    limit = RateLimit(60, clock)
    assert [limit.wait("a") for _ in range(60)] == [0.0] * 60
    assert limit.wait("a") == pytest.approx(1.0)
    assert limit.wait("b") == 0.0
    clock.now = 1.5
    assert (limit.wait("a"), limit.wait("a")) == (0.0, pytest.approx(0.5))


def test_http_asks_for_a_token_everywhere_but_at_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKENS", f"{FIRST},{SECOND}")
    arguments = ARGUMENTS.model_copy(update={"auth": AuthArguments(tokens_env="SOME_TOKENS", requests_per_minute=2)})

    async def scenario() -> list[httpx.Response]:
        app = build_api(Service(FakeRetriever(), arguments))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:

            def ask(authorization: str | None, path: str = "/info"):
                return client.get(path, headers={"authorization": authorization} if authorization else {})

            given = [
                None,
                FIRST,
                f"Basic {FIRST}",
                f"Bearer {THIRD}",
                f"Bearer {FIRST}",
                f"bearer {FIRST}",
                f"Bearer {FIRST}",
                f"Bearer {SECOND}",
            ]
            answers = [await ask(authorization) for authorization in given]
            return answers + [
                await ask(None, path) for path in ("/health", "/ready", "/metrics", "/openapi.json", "/health/", "/health/../info")
            ]

    answers = asyncio.run(scenario())
    assert [answer.status_code for answer in answers] == [401, 401, 401, 401, 200, 200, 429, 200, 200, 200, 401, 401, 401, 401]
    assert answers[0].headers["www-authenticate"] == "Bearer"
    assert answers[0].json()["error"]["type"] == "unauthorized"
    assert (answers[6].headers["retry-after"], answers[6].json()["error"]["type"]) == ("30", "rate_limited")
