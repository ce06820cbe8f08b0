"""Documents without questions: keep those of a domain, have questions written from their passages, keep the good ones (ARMOR, A.5)."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from armor_ray.config import CurationConfig, QuestionsConfig
from armor_ray.corpus.chunking import Chunker
from armor_ray.corpus.records import Corpus, Document, QAPair, question_id
from armor_ray.curation.curated import NO_QUESTION, NO_SUPPORT, REPEATED, Curated, CuratedPair, Dropped, Passage, passages_of
from armor_ray.curation.judging import Judging, Subject, why_dropped, with_threshold
from armor_ray.judges.alignment import shared_words
from armor_ray.judges.domain import Domain
from armor_ray.judges.quality import ExampleQuality, GeneratedExample
from armor_ray.judges.relevance import DocumentRelevance, DocumentText
from armor_ray.judges.request import Message
from armor_ray.judges.writing import TEMPLATE, read_pairs, writing_messages
from armor_ray.models.generators.protocol import SampledText

ALIGNMENT = "lexical_alignment"

Prompt = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer made of each prompt: its text, or in one word why there is none; and `facts` for the manifest."""

    replies: list[SampledText | str]
    facts: dict[str, Any]


Write = Callable[[Sequence[Prompt]], Written]


@dataclass(frozen=True, slots=True)
class _Example:
    """A question that was written from a passage."""

    passage: Passage
    question: str
    answer: str

    @property
    def id(self) -> str:
        return f"{self.passage.document.doc_id}/{question_id(self.question)}"

    def dropped(self, step: str, reason: str, scores: Mapping[str, float]) -> Dropped:
        return Dropped("question", self.id, step, reason, scores, self.question)


_Scored = tuple[_Example, Mapping[str, float]]


def curate(
    corpus: Corpus, chunker: Chunker, domain: Domain, settings: CurationConfig, seed: int, judging: Judging, write: Write
) -> Curated:
    """Filters documents, writes, judges, aligns. All documents of the domain stay in the corpus, whether asked about or not.

    Args:
        corpus: questions in it are not used.
        chunker: the one that `prepare` will cut with.
        seed: of the passages that are asked about, where their number is limited.
        write: lets a model reply to prompts.

    Raises:
        ArmorError: see `Judging.run`; whatever `write` raises.
    """
    documents, irrelevant = _filter(corpus.documents, domain, settings, judging)
    passages = {document.doc_id: passages_of(document, chunker) for document in documents}
    chosen = _sample([passage for group in passages.values() for passage in group], settings.questions.passages, seed)
    examples, unwritten, facts = _write(chosen, domain, settings.questions.per_passage, write)
    good, bad = _judge(examples, domain, settings.questions, judging)
    aligned, unsupported = _align(good, passages, domain, settings.positives)
    return Curated(documents, aligned, corpus.whole_documents, [*irrelevant, *unwritten, *bad, *unsupported], facts)


def _filter(
    documents: Iterable[Document], domain: Domain, settings: CurationConfig, judging: Judging
) -> tuple[list[Document], list[Dropped]]:
    judge = with_threshold(DocumentRelevance(domain), settings.threshold)
    # Documents may be too many to hold: only what is judged stays, and those that are kept are read once more.
    subjects, items = [], []
    for document in documents:
        subjects.append(Subject(document.doc_id))
        items.append(DocumentText(document.title, document.text[: judge.snippet_characters]))
    verdicts = judging.run(judge, subjects, items)
    kept, dropped = [], []
    for document, verdict in zip(documents, verdicts, strict=True):
        if verdict.keep:
            kept.append(replace(document, domain=domain.name))
        else:
            dropped.append(Dropped("document", document.doc_id, judge.name, why_dropped(verdict), verdict.scores, document.title))
    return kept, dropped


def _sample(passages: list[Passage], most: int | None, seed: int) -> list[Passage]:
    """At most so many, by a hash of seed and place, so that a document more or less changes little; in their order."""
    if most is None or len(passages) <= most:
        return passages
    chosen = heapq.nsmallest(most, passages, key=lambda passage: hashlib.sha256(f"{seed}\0{passage.name}".encode()).digest())
    names = {passage.name for passage in chosen}
    return [passage for passage in passages if passage.name in names]


def _write(passages: Sequence[Passage], domain: Domain, count: int, write: Write) -> tuple[list[_Example], list[Dropped], dict[str, Any]]:
    """Each question of a document once; passages that gave none are dropped."""
    written = write([writing_messages(domain, passage.document.title, passage.text, count) for passage in passages])
    examples: dict[str, _Example] = {}
    dropped = []
    for passage, reply in zip(passages, written.replies, strict=True):
        found = read_pairs(reply.text, count, cut=reply.cut) if isinstance(reply, SampledText) else []
        if not found:
            reason = NO_QUESTION if isinstance(reply, SampledText) else reply
            dropped.append(Dropped("passage", passage.name, TEMPLATE, reason, {}, passage.document.title))
        for question, answer in found:
            example = _Example(passage, question, answer)
            if examples.setdefault(example.id, example) is not example:
                dropped.append(example.dropped(TEMPLATE, REPEATED, {}))
    facts = {**written.facts, "passages": len(passages), "questions": len(examples)}
    return list(examples.values()), dropped, facts


def _judge(
    examples: Sequence[_Example], domain: Domain, questions: QuestionsConfig, judging: Judging
) -> tuple[list[_Scored], list[Dropped]]:
    """Kept examples with their scores."""
    judge = ExampleQuality(domain, questions.technical_threshold, questions.clarity_threshold)
    items = [GeneratedExample(example.question, example.answer, example.passage.text) for example in examples]
    verdicts = judging.run(judge, [Subject(example.id) for example in examples], items)
    judged = list(zip(examples, verdicts, strict=True))
    kept = [(example, verdict.scores) for example, verdict in judged if verdict.keep]
    return kept, [example.dropped(judge.name, why_dropped(verdict), verdict.scores) for example, verdict in judged if not verdict.keep]


def _align(
    examples: Sequence[_Scored], passages: dict[str, list[Passage]], domain: Domain, positives: int
) -> tuple[list[CuratedPair], list[Dropped]]:
    """A question's gold passages are the one that it was written from, and those of its document that hold as many of its words."""
    aligned, dropped = [], []
    for example, scores in examples:
        if shared_words(example.answer, example.passage.text) == 0:
            dropped.append(example.dropped(ALIGNMENT, NO_SUPPORT, scores))
            continue
        gold = _gold(example, passages[example.passage.document.doc_id], positives)
        aligned.append(CuratedPair(_pair(example, list(gold), domain), scores, list(gold.values())))
    return aligned, dropped


def _gold(example: _Example, passages: Sequence[Passage], positives: int) -> dict[Passage, float]:
    """Passages with their lexical support in [0, 1], in the document's order; the example's own is always among them."""
    support = {passage: _support(example, passage) for passage in passages}
    own = support[example.passage]
    others = [passage for passage in passages if passage != example.passage and support[passage] >= own]
    best = sorted(others, key=lambda passage: -support[passage])[: positives - 1]
    return {passage: support[passage] for passage in sorted([example.passage, *best], key=lambda passage: passage.start)}


def _support(example: _Example, passage: Passage) -> float:
    return (shared_words(example.question, passage.text) + shared_words(example.answer, passage.text)) / 2


def _pair(example: _Example, gold: Sequence[Passage], domain: Domain) -> QAPair:
    return QAPair(
        example_id=example.id,
        question=example.question,
        answers=(example.answer,),
        doc_id=example.passage.document.doc_id,
        spans=tuple(passage.span for passage in gold),
        positive_ids=(),
        domain=domain.name,
        where=example.passage.name,
    )
