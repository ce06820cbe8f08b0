"""What can go wrong with one request to an endpoint, in a few classes that accounts can count.

Nothing here keeps the client library's exceptions: they hold the request, and the request holds the key.
"""

from __future__ import annotations

from enum import StrEnum


class Failure(StrEnum):
    """Why a request or its reply could not be used."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    RATE_LIMIT = "rate_limit"
    CONFLICT = "conflict"
    SERVER = "server_error"
    MALFORMED = "malformed_response"  # HTTP 200 without a chat completion in it
    REFUSED = "request_refused"  # HTTP 4xx about this request: too long, a parameter that the endpoint does not take
    FILTERED = "content_filter"
    EMPTY = "empty_reply"
    UNREADABLE = "unreadable_reply"
    BUDGET = "budget"


#: Failures that another attempt at the same request may cure.
TRANSIENT = frozenset({Failure.TIMEOUT, Failure.CONNECTION, Failure.RATE_LIMIT, Failure.CONFLICT, Failure.SERVER, Failure.MALFORMED})

#: Failures after which nobody knows whether the endpoint did, and bills, the work.
UNCONFIRMED = frozenset({Failure.TIMEOUT, Failure.CONNECTION, Failure.MALFORMED})


class ChatError(Exception):
    """A request that got no usable reply.

    Args:
        failure: its class.
        message: one line, without the key.
        retry_after: seconds that the endpoint asked to wait, where it did.
    """

    def __init__(self, failure: Failure, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(failure, message, retry_after)
        self.failure = failure
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.failure}: {self.message}"

    def __reduce__(self):
        return (_rebuild, (self.failure, self.message, self.retry_after))


class BudgetExhausted(ChatError):
    """The request was not sent: what is spent, what is under way and its own estimate together pass the budget."""

    def __init__(self, message: str) -> None:
        super().__init__(Failure.BUDGET, message)

    def __reduce__(self):
        return (BudgetExhausted, (self.message,))


def _rebuild(failure: Failure, message: str, retry_after: float | None) -> ChatError:
    return ChatError(failure, message, retry_after=retry_after)
