"""Questions that name their source document: keep those of a domain, and find the passages that support each (ARMOR, appendix A.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from armor_ray.config import CurationConfig
from armor_ray.corpus.chunking import Chunker
from armor_ray.corpus.records import Corpus, Document, Documents, QAPair
from armor_ray.curation.curated import NO_SUPPORT, CuratedPair, Dropped, Passage, passages_of
from armor_ray.curation.files import CuratedFiles
from armor_ray.curation.judging import Judging, Subject, with_threshold
from armor_ray.curation.pairs import all_answers, failed_questions, judgeable, passed
from armor_ray.judges.alignment import CandidateChunk, ChunkAlignment
from armor_ray.judges.domain import Domain
from armor_ray.judges.qa_domain import QADomain, QuestionAnswer
from armor_ray.judges.verdicts import Verdict


def curate(corpus: Corpus, chunker: Chunker, domain: Domain, settings: CurationConfig, judging: Judging, files: CuratedFiles) -> None:
    """Filters, then aligns. The corpus that remains is the source documents of the kept questions.

    Held are the questions; documents go through one by one, with all that is asked about them.

    Args:
        corpus: a question's evidence in it is not used, only its document.
        chunker: the one that `prepare` will cut with.
        files: take what remains, and what was dropped.

    Raises:
        ArmorError: see `Judging.run` and `judgeable`.
    """
    pairs, repeated = judgeable(corpus.pairs)
    files.drop(repeated)
    asked: dict[str, list[CuratedPair]] = {}
    for curated in _filter(pairs, domain, settings, judging, files):
        asked.setdefault(curated.pair.doc_id, []).append(curated)
    for document, has_gold in _align(asked, corpus.documents, chunker, settings, judging, files):
        if has_gold:
            files.add_document(replace(document, domain=domain.name))


def _filter(pairs: list[QAPair], domain: Domain, settings: CurationConfig, judging: Judging, files: CuratedFiles) -> list[CuratedPair]:
    judge = with_threshold(QADomain((domain,)), settings.threshold)
    items = [QuestionAnswer(pair.question, all_answers(pair)) for pair in pairs]
    verdicts = judging.run(judge, [Subject(pair.example_id) for pair in pairs], items)
    files.drop(failed_questions(pairs, verdicts, judge.name))
    return [CuratedPair(replace(pair, domain=domain.name), verdict.scores) for pair, verdict in passed(pairs, verdicts)]


def _align(
    asked: Mapping[str, list[CuratedPair]],
    documents: Documents,
    chunker: Chunker,
    settings: CurationConfig,
    judging: Judging,
    files: CuratedFiles,
) -> Iterator[tuple[Document, bool]]:
    """Every passage of a question's document is scored; the best are its gold passages. The documents asked about, and whether any question
    about them has gold passages; these questions are written down.
    """
    judge = ChunkAlignment(positives=settings.positives)

    def cut() -> Iterator[tuple[Document, list[Passage]]]:
        return ((document, passages_of(document, chunker)) for document in documents if document.doc_id in asked)

    def describe(thing: tuple[Document, list[Passage]]) -> list[tuple[Subject, CandidateChunk]]:
        document, passages = thing
        return [_candidate(curated, passage) for curated in asked[document.doc_id] for passage in passages]

    # Cut twice, so that progress and what a spent budget leaves are known.
    total = sum(len(asked[document.doc_id]) * len(passages) for document, passages in cut())
    for (document, passages), verdicts in judging.each_group(judge, cut(), total, describe):
        remaining = iter(verdicts)
        kept = [
            _keep(curated, list(zip(passages, islice(remaining, len(passages)), strict=True)), judge.name, files)
            for curated in asked[document.doc_id]
        ]
        yield document, any(kept)


def _candidate(curated: CuratedPair, passage: Passage) -> tuple[Subject, CandidateChunk]:
    """A passage of a question's document, as it is judged."""
    pair = curated.pair
    subject = Subject(pair.example_id, passage.start, passage.end)
    return subject, CandidateChunk(pair.example_id, pair.question, all_answers(pair), passage.text)


def _keep(curated: CuratedPair, found: Sequence[tuple[Passage, Verdict]], step: str, files: CuratedFiles) -> bool:
    """Writes a question down with its gold passages, or what became of it; whether it has any."""
    gold = [(passage.span, verdict.scores["support"]) for passage, verdict in found if verdict.keep]
    if not gold:
        files.drop([_unsupported(curated, [verdict for _, verdict in found], step)])
        return False
    spans, support = zip(*gold, strict=True)
    files.add_pair(CuratedPair(replace(curated.pair, spans=spans, positive_ids=()), curated.scores, support))
    return True


def _unsupported(curated: CuratedPair, verdicts: Sequence[Verdict], step: str) -> Dropped:
    """Of a question some of whose passages could not be judged, nobody knows that nothing supports it."""
    failure = next((str(verdict.failure) for verdict in verdicts if verdict.failure is not None), NO_SUPPORT)
    return Dropped("question", curated.pair.example_id, step, failure, curated.scores, curated.pair.question)
