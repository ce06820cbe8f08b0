"""RankGPT (Sun et al., 2023): a chat model orders a window of passages; the window slides from the end of the list to its front."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from armor_ray.config_baselines import ListwiseRerankerConfig
from armor_ray.retrieval.protocols import Chat, Message
from armor_ray.retrieval.rerankers.tools import Faults, Tools

UNREADABLE, INCOMPLETE, INVALID = "unreadable order", "incomplete order", "invalid or repeated number in an order"

_SYSTEM = "You order passages by how well they help to answer a question."
_INTRODUCTION = "Here are {count} passages, each with its number in brackets.\n\n{passages}\n\nQuestion: {question}\n\n"
_REQUEST = (
    "List the numbers of all {count} passages, the most helpful first, in the form [2] > [1] > [3]. Write the numbers only, no explanation."
)
_REPLY_TOKENS_A_PASSAGE = 8  # "[12] > " and some talk around it
_BRACKETED = re.compile(r"\[\s*(\d+)\s*\]")
_NUMBER = re.compile(r"\d+")


class ListwiseReranker:
    """Orders by repeated windows: of a list longer than the window, the best `window - step` passages of each window move on.

    With a perfect judge the top `window - step` are exact; a list within one window is sorted exactly.

    Args:
        window: passages shown at once, ≥ 2.
        step: how far the window moves, 1 ≤ step < window.
        passage_words: words of a passage that are shown.
        faults: counts replies that name no passage (the order stays), leave some out (these follow in their order), or name one
            twice or out of range (ignored).
    """

    def __init__(self, chat: Chat, window: int, step: int, passage_words: int, faults: Faults) -> None:
        self._chat, self._window, self._step = chat, window, step
        self._passage_words = passage_words
        self._faults = faults

    def rerank(self, question: str, passages: Sequence[str], scores: np.ndarray) -> np.ndarray:
        """See `Reranker.rerank`; the scores are 1 / rank."""
        order = list(range(len(passages)))
        for start, end in windows(len(passages), self._window, self._step):
            shown = order[start:end]
            reply = self._chat(self._messages(question, [passages[i] for i in shown]))
            permutation = parse_permutation(reply, len(shown))
            for fault, times in permutation.faults.items():
                self._faults.add(fault, times)
            order[start:end] = [shown[i] for i in permutation.order]
        new = np.empty(len(passages), np.float32)
        new[order] = 1 / np.arange(1, len(passages) + 1)
        return new

    def _messages(self, question: str, passages: Sequence[str]) -> list[Message]:
        texts = [" ".join(passage.split()[: self._passage_words]) for passage in passages]
        numbered = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts, 1))
        user = _INTRODUCTION.format(count=len(texts), passages=numbered, question=question) + _REQUEST.format(count=len(texts))
        return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}]


def build(config: ListwiseRerankerConfig, tools: Tools) -> ListwiseReranker:
    """Opens the endpoint."""
    chat = tools.chat(config.endpoint, _REPLY_TOKENS_A_PASSAGE * config.window)
    return ListwiseReranker(chat, config.window, config.step, config.passage_words, tools.faults)


def windows(count: int, window: int, step: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges over `count` passages, from the last window to the first, which begins at 0; none for a single passage."""
    if count < 2:
        return
    end = count
    while True:
        start = max(end - window, 0)
        yield start, end
        if start == 0:
            return
        end -= step


@dataclass(frozen=True, slots=True)
class Permutation:
    """An order of 0..n-1, and what was wrong with the reply it was read from."""

    order: list[int]
    faults: dict[str, int]


def parse_permutation(reply: str, count: int) -> Permutation:
    """Reads `[2] > [1]`, or plain numbers where nothing is in brackets.

    Passages that the reply does not name follow in the order they had; numbers out of 1..count and repeated ones are ignored. Each
    such fault is counted.
    """
    found = [int(number) - 1 for number in _BRACKETED.findall(reply) or _NUMBER.findall(reply)]
    named = list(dict.fromkeys(i for i in found if 0 <= i < count))
    faults: dict[str, int] = {}
    if not named:
        faults[UNREADABLE] = 1
    elif len(named) < count:
        faults[INCOMPLETE] = 1
    if named and len(named) < len(found):
        faults[INVALID] = len(found) - len(named)
    return Permutation(named + [i for i in range(count) if i not in named], faults)
