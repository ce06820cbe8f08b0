"""Documents without questions: keep those of a domain, have questions written from their passages, keep the good ones (ARMOR, A.5)."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from armor_ray.config import CurationConfig, QuestionsConfig
from armor_ray.corpus.chunking import Chunker
from armor_ray.corpus.records import Corpus, Document, Documents, QAPair, Span, question_id
from armor_ray.curation.curated import NO_QUESTION, NO_SUPPORT, REPEATED, CuratedPair, Dropped, Passage, passages_of
from armor_ray.curation.files import CuratedFiles
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
class _Source:
    """A passage that is asked about: its own text, so that its document need not be held."""

    doc_id: str
    title: str
    span: Span
    text: str

    @classmethod
    def of(cls, passage: Passage) -> _Source:
        return cls(passage.document.doc_id, passage.document.title, passage.span, passage.text)

    @property
    def name(self) -> str:
        """Document id and character offsets."""
        return f"{self.doc_id}[{self.span.start}:{self.span.end}]"


@dataclass(frozen=True, slots=True)
class _Example:
    """A question that was written from a passage."""

    source: _Source
    question: str
    answer: str

    @property
    def id(self) -> str:
        return f"{self.source.doc_id}/{question_id(self.question)}"

    def dropped(self, step: str, reason: str, scores: Mapping[str, float]) -> Dropped:
        return Dropped("question", self.id, step, reason, scores, self.question)


_Scored = tuple[_Example, Mapping[str, float]]


def curate(
    corpus: Corpus,
    chunker: Chunker,
    domain: Domain,
    settings: CurationConfig,
    seed: int,
    judging: Judging,
    files: CuratedFiles,
    write: Write,
) -> dict[str, Any]:
    """Filters documents, writes, judges, aligns. All documents of the domain stay in the corpus, whether asked about or not.

    Documents go through one by one; held are the passages that are asked about and what is written from them.

    Args:
        corpus: questions in it are not used.
        chunker: the one that `prepare` will cut with.
        seed: of the passages that are asked about, where their number is limited.
        files: take what remains, and what was dropped.
        write: lets a model reply to prompts.

    Returns:
        Who wrote the questions and how, for the manifest.

    Raises:
        ArmorError: see `Judging.run`; whatever `write` raises.
    """
    _filter(corpus.documents, domain, settings, judging, files)
    passages = (_Source.of(passage) for document in files.documents() for passage in passages_of(document, chunker))
    chosen = _sample(passages, settings.questions.passages, seed)
    examples, facts = _write(chosen, domain, settings.questions, write, files)
    good = _judge(examples, domain, settings.questions, judging, files)
    _align(good, chunker, domain, settings.positives, files)
    return facts


def _filter(documents: Documents, domain: Domain, settings: CurationConfig, judging: Judging, files: CuratedFiles) -> None:
    judge = with_threshold(DocumentRelevance(domain), settings.threshold)

    def describe(document: Document) -> tuple[Subject, DocumentText]:
        return Subject(document.doc_id), DocumentText(document.title, document.text[: judge.snippet_characters])

    for document, verdict in judging.each(judge, documents, len(documents), describe):
        if verdict.keep:
            files.add_document(replace(document, domain=domain.name))
        else:
            files.drop([Dropped("document", document.doc_id, judge.name, why_dropped(verdict), verdict.scores, document.title)])


def _sample(passages: Iterable[_Source], most: int | None, seed: int) -> list[_Source]:
    """At most so many, by a hash of seed and place, so that a document more or less changes little; in their order."""
    if most is None:
        return list(passages)

    def drawn(numbered: tuple[int, _Source]) -> bytes:
        return hashlib.sha256(f"{seed}\0{numbered[1].name}".encode()).digest()

    return [passage for _, passage in sorted(heapq.nsmallest(most, enumerate(passages), key=drawn), key=itemgetter(0))]


def _write(
    passages: Sequence[_Source], domain: Domain, questions: QuestionsConfig, write: Write, files: CuratedFiles
) -> tuple[list[_Example], dict[str, Any]]:
    """Each question of a document once; passages that gave none are dropped."""
    count = questions.per_passage
    written = write([writing_messages(domain, passage.title, passage.text, count, questions.form) for passage in passages])
    examples: dict[str, _Example] = {}
    for passage, reply in zip(passages, written.replies, strict=True):
        found = read_pairs(reply.text, count, cut=reply.cut) if isinstance(reply, SampledText) else []
        if not found:
            reason = NO_QUESTION if isinstance(reply, SampledText) else reply
            files.drop([Dropped("passage", passage.name, TEMPLATE, reason, {}, passage.title)])
        for question, answer in found:
            example = _Example(passage, question, answer)
            if examples.setdefault(example.id, example) is not example:
                files.drop([example.dropped(TEMPLATE, REPEATED, {})])
    return list(examples.values()), {**written.facts, "passages": len(passages), "questions": len(examples)}


def _judge(
    examples: Sequence[_Example], domain: Domain, questions: QuestionsConfig, judging: Judging, files: CuratedFiles
) -> list[_Scored]:
    """Kept examples with their scores."""
    judge = ExampleQuality(domain, questions.technical_threshold, questions.clarity_threshold)
    items = [GeneratedExample(example.question, example.answer, example.source.text) for example in examples]
    verdicts = judging.run(judge, [Subject(example.id) for example in examples], items)
    judged = list(zip(examples, verdicts, strict=True))
    files.drop(example.dropped(judge.name, why_dropped(verdict), verdict.scores) for example, verdict in judged if not verdict.keep)
    return [(example, verdict.scores) for example, verdict in judged if verdict.keep]


def _align(examples: Sequence[_Scored], chunker: Chunker, domain: Domain, positives: int, files: CuratedFiles) -> None:
    """A question's gold passages are the one that it was written from, and those of its document that hold as many of its words."""
    of_document: dict[str, list[_Scored]] = {}
    for example, scores in examples:
        of_document.setdefault(example.source.doc_id, []).append((example, scores))
    for document in files.documents():
        if document.doc_id in of_document:
            passages = passages_of(document, chunker)
            for example, scores in of_document[document.doc_id]:
                if shared_words(example.answer, example.source.text) == 0:
                    files.drop([example.dropped(ALIGNMENT, NO_SUPPORT, scores)])
                else:
                    gold = _gold(example, passages, positives)
                    files.add_pair(CuratedPair(_pair(example, list(gold), domain), scores, list(gold.values())))


def _gold(example: _Example, passages: Sequence[Passage], positives: int) -> dict[Span, float]:
    """Passages with their lexical support in [0, 1], in the document's order; the example's own is always among them."""
    support = {passage.span: _support(example, passage.text) for passage in passages}
    own = example.source.span
    others = [span for span in support if span != own and support[span] >= support[own]]
    best = sorted(others, key=lambda span: -support[span])[: positives - 1]
    return {span: support[span] for span in sorted([own, *best], key=lambda span: span.start)}


def _support(example: _Example, text: str) -> float:
    return (shared_words(example.question, text) + shared_words(example.answer, text)) / 2


def _pair(example: _Example, gold: Sequence[Span], domain: Domain) -> QAPair:
    return QAPair(
        example_id=example.id,
        question=example.question,
        answers=(example.answer,),
        doc_id=example.source.doc_id,
        spans=tuple(gold),
        positive_ids=(),
        domain=domain.name,
        where=example.source.name,
    )
