"""What to say when a curation ends without a question: which step let how many through, and what helps where none were left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from armor_ray.curation.curated import BELOW_THRESHOLD, NO_QUESTION, NO_SUPPORT, PROMPT_TOO_LONG
from armor_ray.curation.documents import ALIGNMENT
from armor_ray.errors import ArmorError
from armor_ray.judges.alignment import ChunkAlignment
from armor_ray.judges.qa_domain import QADomain
from armor_ray.judges.quality import ExampleQuality
from armor_ray.judges.relevance import DocumentRelevance
from armor_ray.judges.teleqna import TeleQnADomain
from armor_ray.judges.writing import TEMPLATE

_DOMAIN = "check that curation.domain fits the data, or lower curation.threshold"
_FORM = (
    "the replies hold no question with an answer, or end before it does: name a larger instruction model (curation.questions.generator, or "
    "judge.model where it writes), or raise curation.questions.max_new_tokens"
)
_ROOM = "raise max_length of the generator that writes, or lower data.passage_characters or curation.questions.max_new_tokens"
_QUALITY = "let a larger model write, or lower curation.questions.technical_threshold and clarity_threshold"
_WORDS = "the answers share no word with their passages: let a larger model write"
_SUPPORT = "no passage of the questions' documents supports the answers: check the data, or cut larger passages"
_REMEDIES = {
    (DocumentRelevance.name, BELOW_THRESHOLD): _DOMAIN,
    (QADomain.name, BELOW_THRESHOLD): _DOMAIN,
    (TeleQnADomain.name, BELOW_THRESHOLD): _DOMAIN,
    (TEMPLATE, NO_QUESTION): _FORM,
    (TEMPLATE, PROMPT_TOO_LONG): _ROOM,
    (ExampleQuality.name, BELOW_THRESHOLD): _QUALITY,
    (ALIGNMENT, NO_SUPPORT): _WORDS,
    (ChunkAlignment.name, NO_SUPPORT): _SUPPORT,
}
_NOT_JUDGED = "see the log for what the endpoint does, and rerun: paid replies are kept"


def nothing_left(judgements: Sequence[Mapping[str, Any]], writer: Mapping[str, Any] | None, dropped: Mapping[str, int]) -> ArmorError:
    """The error of a curation without a question.

    Args:
        judgements: summaries of the judges (see `Judging`).
        writer: facts about who wrote questions; None where none were written.
        dropped: counts by "step/reason", in the order of the steps.
    """
    counts = [(f"{entry['judge']} (by {entry['by']}) kept {entry['kept']} of {entry['items']}", entry["kept"]) for entry in judgements]
    if writer is not None:
        written = f"{TEMPLATE} (by {writer['by']}) gave {writer['questions']} questions about {writer['passages']} passages"
        counts.insert(1, (written, writer["questions"]))
    steps = [said for number, (said, _) in enumerate(counts) if all(left for _, left in counts[:number])]
    why = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "nothing was dropped, as nothing was there"
    return ArmorError(f"no question is left: {'; '.join(steps)}; dropped: {why}", where="curate", hint=_remedy(dropped))


def _remedy(dropped: Mapping[str, int]) -> str:
    """For the most frequent reason of the last step that dropped anything: what came through the steps before it ended there."""
    if not dropped:
        return "check data.path"
    last, _, _ = list(dropped)[-1].partition("/")
    most = max((name for name in dropped if name.startswith(f"{last}/")), key=lambda name: dropped[name])
    return _REMEDIES.get((last, most.removeprefix(f"{last}/")), _NOT_JUDGED)
