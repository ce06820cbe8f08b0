"""Which chunks of the source document support an answer? (ARMOR, appendix A.5: alignment chunk judge)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from armor_ray.evaluation.answers import normalise_answer
from armor_ray.judges.judge import Judge
from armor_ray.judges.parsing import Reading, read_score
from armor_ray.judges.reading import entry_readings, list_schema
from armor_ray.judges.request import ChatRequest, Reply
from armor_ray.judges.templates import render_messages
from armor_ray.judges.verdicts import LEXICAL


@dataclass(frozen=True, slots=True)
class CandidateChunk:
    """A chunk of a question's source document. All chunks of one question stand together in the list of items."""

    question_id: str
    question: str
    answer: str
    text: str


@dataclass(frozen=True)
class ChunkAlignment(Judge[CandidateChunk]):
    """Score `support`; the `positives` best chunks of each question with any support are kept, earlier ones first among equals."""

    name = "chunk_alignment"
    stand_in = LEXICAL

    positives: int = 3
    batch_size: int = 8
    snippet_characters: int = 1800
    max_tokens: int = 512
    timeout_seconds: float = 60.0
    max_retries: int = 3

    def batches(self, items: Sequence[CandidateChunk]) -> Iterator[Sequence[int]]:
        for positions in _questions(items):
            for start in range(0, len(positions), self.batch_size):
                yield positions[start : start + self.batch_size]

    def request(self, batch: Sequence[CandidateChunk]) -> ChatRequest:
        snippets = [chunk.text[: self.snippet_characters] for chunk in batch]
        messages = render_messages(self.name, question=batch[0].question, answer=batch[0].answer, snippets=snippets)
        schema = list_schema("chunk_alignment", "chunks", {"chunk": "integer", "support": "number"}, len(batch), len(batch))
        return ChatRequest(messages, self.max_tokens, schema=schema, timeout_seconds=self.timeout_seconds, max_retries=self.max_retries)

    def read(self, reply: Reply, batch: Sequence[CandidateChunk]) -> list[Reading | None]:
        return entry_readings(reply, "chunks", "chunk", len(batch), {"support": read_score})

    def stand_in_scores(self, item: CandidateChunk) -> dict[str, float]:
        """Mean share of the question's and of the answer's different words that stand in the chunk."""
        return {"support": (shared_words(item.question, item.text) + shared_words(item.answer, item.text)) / 2}

    def keep(self, items: Sequence[CandidateChunk], scores: Sequence[dict[str, float]]) -> list[bool]:
        kept = [False] * len(items)
        for positions in _questions(items):
            supported = [position for position in positions if scores[position].get("support", 0.0) > 0]
            for position in sorted(supported, key=lambda position: -scores[position]["support"])[: self.positives]:
                kept[position] = True
        return kept


def _questions(items: Sequence[CandidateChunk]) -> Iterator[list[int]]:
    """Positions of the chunks of one question after the other."""
    for _, group in groupby(range(len(items)), key=lambda position: items[position].question_id):
        yield list(group)


def shared_words(wanted: str, text: str) -> float:
    """Share of the different words of `wanted` that stand in `text`, in [0, 1]; articles and punctuation do not count."""
    words = _words(wanted)
    return len(words & _words(text)) / len(words) if words else 0.0


@lru_cache(maxsize=4096)  # the chunks of a document are compared with all of its questions in turn
def _words(text: str) -> frozenset[str]:
    return frozenset(normalise_answer(text).split())
