"""What to say when a curation ends without a question: which step let how many through, and what helps where none were left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from armor_ray.curation.curated import BELOW_THRESHOLD, NO_QUESTION, PROMPT_TOO_LONG
from armor_ray.curation.documents import ALIGNMENT
from armor_ray.errors import ArmorError
from armor_ray.judges.alignment import ChunkAlignment
from armor_ray.judges.qa_domain import QADomain
from armor_ray.judges.quality import ExampleQuality
from armor_ray.judges.relevance import DocumentRelevance
from armor_ray.judges.teleqna import TeleQnADomain
from armor_ray.judges.writing import TEMPLATE

_DOMAIN = "check that curation.domain fits the data, or lower curation.threshold"
_REMEDIES = {
    (DocumentRelevance.name, BELOW_THRESHOLD): _DOMAIN,
    (QADomain.name, BELOW_THRESHOLD): _DOMAIN,
    (TeleQnADomain.name, BELOW_THRESHOLD): _DOMAIN,
    (
        TEMPLATE,
        NO_QUESTION,
    ): "the writer's replies hold no lines 'Q: ...' and 'A: ...' or end before an answer does: name a larger instruction "
    "model (curation.questions.generator, or judge.model where it writes), or raise curation.questions.max_new_tokens",
    (TEMPLATE, PROMPT_TOO_LONG): "raise max_length of the generator that writes, or lower data.passage_characters or "
    "curation.questions.max_new_tokens",
    (
        ExampleQuality.name,
        BELOW_THRESHOLD,
    ): "let a larger model write, or lower curation.questions.technical_threshold and clarity_threshold",
    (ALIGNMENT, ""): "the answers share no word with their passages: let a larger model write",
    (
        ChunkAlignment.name,
        "",
    ): "the passages of the questions' documents do not support the answers: check the data, or cut larger passages",
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
    last = [name.split("/") for name in dropped][-1][0]
    reasons = {reason: count for (step, reason), count in ((name.split("/"), count) for name, count in dropped.items()) if step == last}
    reason = max(reasons, key=lambda name: reasons[name])
    return _REMEDIES.get((last, reason)) or _REMEDIES.get((last, "")) or _NOT_JUDGED
