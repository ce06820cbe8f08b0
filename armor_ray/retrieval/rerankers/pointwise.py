"""Pointwise utility judgements (UtilityQwen and kin; Zhang et al., 2025): is this passage, alone, useful for the answer?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from armor_ray.config_baselines import PointwiseRerankerConfig
from armor_ray.retrieval.protocols import Chat, Message
from armor_ray.retrieval.rerankers.tools import Faults, Tools

UNREADABLE = "unreadable judgement"
Scale = Literal["yes-no", "graded"]

_TOP_GRADE = 5
_REPLY_TOKENS = 32
_QUESTION = "Passage:\n{passage}\n\nQuestion:\n{question}\n\n"
_REQUESTS: dict[Scale, str] = {
    "yes-no": "Is the passage useful for answering the question? A passage on the topic that does not help to answer is not useful. "
    "Reply with yes or no only.",
    "graded": "How useful is the passage for answering the question? 0: not at all, even if on the topic. 5: it holds all that the "
    "answer needs. Reply with one integer from 0 to 5 only.",
}
_YES_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_GRADE = re.compile(r"(?<![\d.,-])\d+(?:\.\d+)?")


class PointwiseReranker:
    """Orders by the judged utility in [0, 1]; equal judgements keep the first stage's order.

    Args:
        faults: counts replies without a judgement, which score 0.
    """

    def __init__(self, chat: Chat, scale: Scale, faults: Faults) -> None:
        self._chat, self._scale, self._faults = chat, scale, faults

    def rerank(self, question: str, passages: Sequence[str], scores: np.ndarray) -> np.ndarray:
        """See `Reranker.rerank`."""
        return np.array([self._judge(question, passage) for passage in passages], np.float32)

    def _judge(self, question: str, passage: str) -> float:
        utility = parse_utility(self._chat(self._messages(question, passage)), self._scale)
        if utility is None:
            self._faults.add(UNREADABLE)
            return 0.0
        return utility

    def _messages(self, question: str, passage: str) -> list[Message]:
        return [{"role": "user", "content": _QUESTION.format(passage=passage, question=question) + _REQUESTS[self._scale]}]


def build(config: PointwiseRerankerConfig, tools: Tools) -> PointwiseReranker:
    """Opens the endpoint."""
    return PointwiseReranker(tools.chat(config.endpoint, _REPLY_TOKENS), config.scale, tools.faults)


def parse_utility(reply: str, scale: Scale) -> float | None:
    """The first yes (1) or no (0), or the first number over 5, in [0, 1]; None where there is none or it is out of range."""
    if scale == "yes-no":
        word = _YES_NO.search(reply)
        return None if word is None else float(word[1].lower() == "yes")
    grade = _GRADE.search(reply)
    value = float(grade[0]) if grade else None
    return None if value is None or value > _TOP_GRADE else value / _TOP_GRADE
