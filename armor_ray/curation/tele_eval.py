"""Questions that name their source document: keep those of a domain, and find the passages that support each (ARMOR, appendix A.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from armor_ray.config import CurationConfig
from armor_ray.corpus.chunking import Chunker
from armor_ray.corpus.records import Corpus, Document, QAPair
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

    Args:
        corpus: a question's evidence in it is not used, only its document.
        chunker: the one that `prepare` will cut with.
        files: take what remains, and what was dropped.

    Raises:
        ArmorError: see `Judging.run` and `judgeable`.
    """
    pairs, repeated = judgeable(corpus.pairs)
    files.drop(repeated)
    kept = _filter(pairs, domain, settings, judging, files)
    wanted = {curated.pair.doc_id for curated in kept}
    documents = {document.doc_id: replace(document, domain=domain.name) for document in corpus.documents if document.doc_id in wanted}
    supporting = {curated.pair.doc_id for curated in _align(kept, documents, chunker, settings, judging, files)}
    for name, document in documents.items():
        if name in supporting:
            files.add_document(document)


def _filter(pairs: list[QAPair], domain: Domain, settings: CurationConfig, judging: Judging, files: CuratedFiles) -> list[CuratedPair]:
    judge = with_threshold(QADomain((domain,)), settings.threshold)
    items = [QuestionAnswer(pair.question, all_answers(pair)) for pair in pairs]
    verdicts = judging.run(judge, [Subject(pair.example_id) for pair in pairs], items)
    files.drop(failed_questions(pairs, verdicts, judge.name))
    return [CuratedPair(replace(pair, domain=domain.name), verdict.scores) for pair, verdict in passed(pairs, verdicts)]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A passage of a question's document."""

    question: CuratedPair
    passage: Passage

    @property
    def subject(self) -> Subject:
        return Subject(self.question.pair.example_id, self.passage.start, self.passage.end)

    @property
    def item(self) -> CandidateChunk:
        pair = self.question.pair
        return CandidateChunk(pair.example_id, pair.question, all_answers(pair), self.passage.text)


def _align(
    questions: list[CuratedPair],
    documents: Mapping[str, Document],
    chunker: Chunker,
    settings: CurationConfig,
    judging: Judging,
    files: CuratedFiles,
) -> list[CuratedPair]:
    """Every passage of a question's document is scored; the best are its gold passages. The questions that have any, written down."""
    judge = ChunkAlignment(positives=settings.positives)
    passages = {name: passages_of(document, chunker) for name, document in documents.items()}
    candidates = [_Candidate(curated, passage) for curated in questions for passage in passages[curated.pair.doc_id]]
    verdicts = judging.run(judge, [candidate.subject for candidate in candidates], [candidate.item for candidate in candidates])
    of_question: dict[str, list[tuple[Passage, Verdict]]] = {curated.pair.example_id: [] for curated in questions}
    for candidate, verdict in zip(candidates, verdicts, strict=True):
        of_question[candidate.question.pair.example_id].append((candidate.passage, verdict))
    aligned = []
    for curated in questions:
        found = of_question[curated.pair.example_id]
        gold = [(passage.span, verdict.scores["support"]) for passage, verdict in found if verdict.keep]
        if gold:
            spans, support = zip(*gold, strict=True)
            aligned.append(CuratedPair(replace(curated.pair, spans=spans, positive_ids=()), curated.scores, support))
            files.add_pair(aligned[-1])
        else:
            files.drop([_unsupported(curated, [verdict for _, verdict in found], judge.name)])
    return aligned


def _unsupported(curated: CuratedPair, verdicts: Sequence[Verdict], step: str) -> Dropped:
    """Of a question some of whose passages could not be judged, nobody knows that nothing supports it."""
    failure = next((str(verdict.failure) for verdict in verdicts if verdict.failure is not None), NO_SUPPORT)
    return Dropped("question", curated.pair.example_id, step, failure, curated.scores, curated.pair.question)
