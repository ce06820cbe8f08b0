"""Stage `curate`: judged data out of raw documents or unaligned questions, as a data set that `prepare` reads (ARMOR, appendix A).

Runs only where the config has a section `curation`. Judging waits for an endpoint and needs no Ray; questions are written on an actor pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from armor_ray.config import CurationConfig
from armor_ray.corpus.chunking import Chunker, keep_whole, make_chunker
from armor_ray.corpus.records import Corpus
from armor_ray.corpus.sources import read_corpus
from armor_ray.corpus.sources.teleqna import read_options
from armor_ray.curation import documents, tele_eval, teleqna
from armor_ray.curation.documents import Prompt, Written
from armor_ray.curation.files import CuratedFiles
from armor_ray.curation.judging import Judging
from armor_ray.curation.remedies import nothing_left
from armor_ray.errors import ArmorError
from armor_ray.judges.domain import load_domain
from armor_ray.judges.endpoint import has_endpoint
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.reply_cache import reply_cache
from armor_ray.workspace import Draft, Manifest

STAGE = "curate"


def run_all(context: Context, todo: list[Plan]) -> None:
    """Curates and publishes.

    Raises:
        ArmorError: bad data; the budget is spent or the endpoint fails (what was paid for is kept, a rerun goes on); nothing is left; or
            what a model has judged would be judged by keywords, because its key is missing.
    """
    [plan] = todo
    settings = context.config.curation
    assert settings is not None, "planned only where there is one"
    _require_planned_judge(context, plan)
    corpus = read_corpus(context.config.data)
    reply_file = reply_cache(context.workspace)  # not in the draft: what was paid for outlives a failed run

    def write(draft: Draft) -> None:
        with CuratedFiles(draft.path) as files:
            judging = Judging(context.config.judge, reply_file, context.say, files.record)
            writer = _curate(context, settings, corpus, judging, files)
        if not files.rows["questions"]:
            raise nothing_left(judging.judgements, writer, files.dropped)
        draft.rows |= files.rows
        draft.details |= _details(settings, corpus, files, judging, writer)

    manifest = context.publish(plan, write)
    context.say(f"curate: {_outcome(manifest)}")


def _curate(context: Context, settings: CurationConfig, corpus: Corpus, judging: Judging, files: CuratedFiles) -> dict[str, Any] | None:
    """Fills the files; who wrote the questions, where any were written."""
    domain, chunker = load_domain(settings.domain), _chunker(context, corpus)
    if settings.pipeline == "tele_eval":
        tele_eval.curate(corpus, chunker, domain, settings, judging, files)
        return None
    if settings.pipeline == "teleqna":
        teleqna.curate(corpus, read_options(context.config.data), domain, settings, judging, files)
        return None

    def write(prompts: Sequence[Prompt]) -> Written:
        from armor_ray.stages import writing  # Ray, which only this pipeline needs

        ask = writing.write_over_endpoint if settings.questions.writer == "judge" else writing.write_on_actors
        return ask(context, prompts, settings.questions)

    return documents.curate(corpus, chunker, domain, settings, context.config.seed, judging, files, write)


def _chunker(context: Context, corpus: Corpus) -> Chunker:
    """The one that `prepare` cuts with."""
    if corpus.whole_documents:
        return keep_whole
    if context.config.data.chunking.mode != "tokens":
        return make_chunker(context.config.data)
    from armor_ray.models.tokens import token_offsets  # torch and transformers, which no other mode needs

    return make_chunker(context.config.data, token_offsets(context.config.encoder))


def _require_planned_judge(context: Context, plan: Plan) -> None:
    """Never lets keywords replace what a model has judged, only because a key is not set today."""
    judge = context.config.judge
    if plan.config["judge"]["model"] is not None and not has_endpoint(judge):
        message = f"'{judge.model}' judged this data set before, and now {judge.key_variable} is not set"
        raise ArmorError(message, where=STAGE, hint="set it, or set judge.model: null for keywords")


def _details(
    settings: CurationConfig, corpus: Corpus, files: CuratedFiles, judging: Judging, writer: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "pipeline": settings.pipeline,
        "domain": load_domain(settings.domain).name,
        "stand_ins": judging.stand_ins,
        "judgements": judging.judgements,
        "writer": writer,
        "source": {"documents_read": len(corpus.documents), "questions_read": len(corpus.pairs), **corpus.notes},
        "dropped": dict(sorted(files.dropped.items())),
        "whole_documents": corpus.whole_documents,
    }


def _outcome(manifest: Manifest) -> str:
    stand_ins = manifest.details["stand_ins"]
    who = f"; no model judged {', '.join(stand_ins)}: keywords and words in common stood in" if stand_ins else ""
    return f"{manifest.rows['questions']} questions about {manifest.rows['documents']} documents{who}"
