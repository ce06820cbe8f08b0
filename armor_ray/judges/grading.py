"""How right is a generated answer? (ARMOR, appendix A.5: Tele-Eval answer grading judge)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from armor_ray.evaluation.answers import token_f1
from armor_ray.judges.judge import Judge
from armor_ray.judges.parsing import Reading
from armor_ray.judges.reading import number_reading
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.templates import render_messages
from armor_ray.judges.verdicts import LEXICAL


@dataclass(frozen=True, slots=True)
class CandidateAnswer:
    """A generated answer beside the reference answer."""

    question: str
    reference: str
    answer: str


@dataclass(frozen=True)
class AnswerGrading(Judge[CandidateAnswer]):
    """Score `grade`; as in the paper an answer that could not be graded has grade 0, and its verdict says why.

    Every graded answer is kept: the grade is the result, there is no threshold.
    """

    name = "answer_grading"
    stand_in = LEXICAL
    scores_on_failure = {"grade": 0.0}  # noqa: RUF012 - declared as a class variable by Judge

    max_tokens: int = 32
    timeout_seconds: float = 60.0
    max_retries: int = 3

    def request(self, batch: Sequence[CandidateAnswer]) -> ChatRequest:
        (item,) = batch
        messages = render_messages(self.name, item=item)
        return ChatRequest(messages, self.max_tokens, timeout_seconds=self.timeout_seconds, max_retries=self.max_retries)

    def read(self, reply: Reply, batch: Sequence[CandidateAnswer]) -> list[Reading | None]:
        return [number_reading(reply, "grade")]

    def stand_in_scores(self, item: CandidateAnswer) -> dict[str, float]:
        """SQuAD's token F1 against the reference."""
        return {"grade": token_f1(item.answer, item.reference)}

    def keep(self, items: Sequence[CandidateAnswer], scores: Sequence[dict[str, float]]) -> list[bool]:
        return [True] * len(items)
