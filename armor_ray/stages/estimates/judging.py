"""Requests, tokens and money of a curation: the judges' own requests for a sample, multiplied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from armor_ray.config import Config, CurationConfig, JudgeConfig
from armor_ray.corpus.chunking import Chunker
from armor_ray.corpus.prepare import choose_chunker
from armor_ray.corpus.records import Document
from armor_ray.corpus.sources.teleqna import read_options
from armor_ray.curation.curated import passages_of
from armor_ray.curation.judging import with_threshold
from armor_ray.curation.pairs import all_answers, judgeable
from armor_ray.judges.alignment import CandidateChunk, ChunkAlignment
from armor_ray.judges.domain import Domain, load_domain
from armor_ray.judges.endpoint import has_endpoint
from armor_ray.judges.judge import Judge
from armor_ray.judges.qa_domain import QADomain, QuestionAnswer
from armor_ray.judges.quality import ExampleQuality, GeneratedExample
from armor_ray.judges.relevance import DocumentRelevance, DocumentText
from armor_ray.judges.request import estimate_tokens
from armor_ray.judges.teleqna import MultipleChoice, TeleQnADomain
from armor_ray.judges.writing import writing_messages
from armor_ray.models.size import model_size
from armor_ray.stages.estimates.lines import Line, Rates
from armor_ray.stages.estimates.sample import SAMPLE, DataSample
from armor_ray.stages.tokenizing import offsets_of

STAGE = "curate"
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Asked:
    """What one judge, or the writer, is asked in all."""

    step: str
    requests: int
    prompt_tokens: float
    reply_tokens: float
    assumption: str

    def lines(self) -> Iterator[Line]:
        yield Line(STAGE, f"{self.step} requests", self.requests, "", self.assumption)
        yield Line(STAGE, f"{self.step} prompt tokens", self.prompt_tokens, "", "estimated from the bytes of the sample's requests, high")
        yield Line(STAGE, f"{self.step} reply tokens", self.reply_tokens, "", "every reply as long as it may be")


def curation_lines(config: Config, sample: DataSample, rates: Rates) -> Iterator[Line]:
    """What the stage `curate` would ask and pay; nothing where there is no such section. Retries are not counted.

    Raises:
        ArmorError: no such domain, or questions that cannot be judged.
    """
    settings = config.curation
    if settings is None:
        return
    domain = load_domain(settings.domain)
    chunker = choose_chunker(config.data, sample.corpus.whole_documents, offsets_of(config.data, config.encoder))
    if settings.pipeline == "teleqna":
        asked = [_multiple_choice(config, settings, sample, domain)]
    elif settings.pipeline == "tele_eval":
        asked = _tele_eval(settings, sample, domain, chunker)
    else:
        asked = _documents(settings, sample, domain, chunker)
    for step in asked:
        yield from step.lines()
    paid = [step for step in asked if step.step != "question_writing" or settings.questions.writer == "judge"]
    yield from _money(config.judge, paid)
    for step in (step for step in asked if step not in paid):
        writer = settings.questions.generator or config.generator
        yield from rates.hours(STAGE, model_size(writer.model, writer.revision), step.prompt_tokens + step.reply_tokens)


def _money(judge: JudgeConfig, asked: Sequence[Asked]) -> Iterator[Line]:
    free = "" if has_endpoint(judge) else "; as no endpoint is named, keywords would judge at no cost"
    count = sum(step.requests for step in asked)
    yield Line(STAGE, "requests to pay", count, "", f"without retries; what the cache holds is free{free}")
    if judge.prompt_price is None or judge.completion_price is None:
        yield Line(STAGE, "money", None, "", "unknown: set judge.prompt_price and judge.completion_price, of a million tokens")
        return
    prompts, replies = (sum(tokens) / 1e6 for tokens in zip(*((step.prompt_tokens, step.reply_tokens) for step in asked), strict=True))
    how = f"{judge.prompt_price:g} a million prompt tokens, {judge.completion_price:g} a million reply tokens (section judge)"
    yield Line(STAGE, "money", prompts * judge.prompt_price + replies * judge.completion_price, "", how)


def _multiple_choice(config: Config, settings: CurationConfig, sample: DataSample, domain: Domain) -> Asked:
    pairs, _ = judgeable(sample.corpus.pairs)
    options = read_options(config.data)
    texts = {document.doc_id: document.text for document in sample.corpus.documents}
    items = [MultipleChoice(pair.question, options[pair.example_id], pair.answers[0], texts[pair.doc_id]) for pair in pairs[:SAMPLE]]
    return _asked(with_threshold(TeleQnADomain(domain), settings.threshold), items, len(pairs), "one a question")


def _tele_eval(settings: CurationConfig, sample: DataSample, domain: Domain, chunker: Chunker) -> list[Asked]:
    pairs, _ = judgeable(sample.corpus.pairs)
    judge = with_threshold(QADomain((domain,)), settings.threshold)
    items = [QuestionAnswer(pair.question, all_answers(pair)) for pair in pairs[:SAMPLE]]
    how = _unless_dropped(judge, items)
    texts = {document.doc_id: document for document in sample.corpus.documents}
    chunks = [
        CandidateChunk(pair.example_id, pair.question, all_answers(pair), passage.text)
        for pair in pairs[:SAMPLE]
        for passage in passages_of(texts[pair.doc_id], chunker)
    ]
    candidates = math.ceil(len(chunks) * len(pairs) / len(items))
    aligned = _asked(ChunkAlignment(positives=settings.positives), chunks, candidates, f"all passages of each question's document; {how}")
    return [_asked(judge, items, len(pairs), "one a question"), aligned]


def _documents(settings: CurationConfig, sample: DataSample, domain: Domain, chunker: Chunker) -> list[Asked]:
    first: list[Document] = list(islice(sample.corpus.documents, SAMPLE))
    judge = with_threshold(DocumentRelevance(domain), settings.threshold)
    items = [DocumentText(document.title, document.text) for document in first]
    how = _unless_dropped(judge, items)
    most = settings.questions.passages
    chosen = sample.num_passages if most is None else min(sample.num_passages, most)
    texts = [passage for document in first for passage in islice(passages_of(document, chunker), 4)][:SAMPLE]
    questions = settings.questions
    prompts = [writing_messages(domain, text.document.title, text.text, questions.per_passage, questions.form) for text in texts]
    words = sum(map(estimate_tokens, prompts)) / len(prompts) * chosen
    writing = Asked("question_writing", chosen, words, chosen * settings.questions.max_new_tokens, f"one a passage; {how}")
    # Nothing is written yet: a typical length stands in for questions and answers.
    examples = [GeneratedExample("?" * 100, "." * 150, passage.text) for passage in texts]
    written = chosen * settings.questions.per_passage
    quality = _asked(
        ExampleQuality(domain), examples, written, f"{settings.questions.per_passage} questions a passage, of 100 + 150 characters"
    )
    return [_asked(judge, items, len(sample.corpus.documents), "one a document"), writing, quality]


def _unless_dropped(judge: Judge[Item], items: Sequence[Item]) -> str:
    """What passes a judge is not known before it is paid, so everything counts; keywords give an idea of how much too high that is."""
    kept = sum(judge.keep(items, [judge.stand_in_scores(item) for item in items]))
    return f"as if all passed {judge.name} (of the first {len(items)}, keywords would keep {kept})"


def _asked(judge: Judge[Item], items: Sequence[Item], total: int, assumption: str) -> Asked:
    requests = [judge.request([items[place] for place in batch]) for batch in judge.batches(items)]
    count = math.ceil(len(requests) * total / len(items))
    prompts = sum(request.estimated_prompt_tokens for request in requests) / len(requests) * count
    return Asked(judge.name, count, prompts, sum(request.max_tokens for request in requests) / len(requests) * count, assumption)
