"""The multiple-choice questions of a domain (ARMOR, appendix A.5). All explanations stay: a question must find its own among them."""

from __future__ import annotations

from collections.abc import Mapping

from armor_ray.config import CurationConfig
from armor_ray.corpus.records import Corpus
from armor_ray.curation.curated import CuratedPair
from armor_ray.curation.files import CuratedFiles
from armor_ray.curation.judging import Judging, Subject, with_threshold
from armor_ray.curation.pairs import failed_questions, judgeable, passed
from armor_ray.judges.domain import Domain
from armor_ray.judges.teleqna import MultipleChoice, TeleQnADomain


def curate(
    corpus: Corpus, options: Mapping[str, tuple[str, ...]], domain: Domain, settings: CurationConfig, judging: Judging, files: CuratedFiles
) -> None:
    """Filters; a question keeps its category and its explanation.

    Args:
        options: of each question, by example id.
        files: take what remains, and what was dropped.

    Raises:
        ArmorError: see `Judging.run` and `judgeable`.
    """
    pairs, repeated = judgeable(corpus.pairs)
    files.drop(repeated)
    explanations = {document.doc_id: document.text for document in corpus.documents}
    judge = with_threshold(TeleQnADomain(domain), settings.threshold)
    items = [MultipleChoice(pair.question, options[pair.example_id], pair.answers[0], explanations[pair.doc_id]) for pair in pairs]
    verdicts = judging.run(judge, [Subject(pair.example_id) for pair in pairs], items)
    files.drop(failed_questions(pairs, verdicts, judge.name))
    for pair, verdict in passed(pairs, verdicts):
        files.add_pair(CuratedPair(pair, verdict.scores))
    for document in corpus.documents:
        files.add_document(document)
