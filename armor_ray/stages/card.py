"""Gathers the data card from what `prepare`, and `curate` before it, published."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from armor_ray.config import Config
from armor_ray.evaluation.data_card import CardExample, CurationCard, DataCard, Duplicate, JudgeCounts, Scores
from armor_ray.stages.curated import ARTIFACT
from armor_ray.stages.prepare import SPLITS, load_examples, load_passages
from armor_ray.workspace import Manifest, Workspace, read_parquet

_EXAMPLES = 20


def load_card(workspace: Workspace, config: Config) -> DataCard:
    """The data set as a reader should know it.

    Raises:
        ArmorError: an artifact is missing or damaged.
    """
    splits = {split: load_examples(workspace, split) for split in SPLITS}
    questions = [text for table in splits.values() for text in table["question"].to_pylist()]
    answers = [answer for table in splits.values() for row in table["answers"].to_pylist() for answer in row]
    places = load_passages(workspace, "start", "end")
    return DataCard(
        counts=_counts(workspace, splits),
        passage_characters=places["end"].to_numpy() - places["start"].to_numpy(),
        question_words=_words(questions),
        answer_words=_words(answers),
        duplicates=_duplicates(workspace),
        curation=_curation(workspace) if config.curation is not None else None,
        examples=_examples(workspace, splits, config.seed),
    )


def _words(texts: Iterable[str]) -> np.ndarray:
    return np.array([len(text.split()) for text in texts])


def _counts(workspace: Workspace, splits: dict[str, pa.Table]) -> dict[str, int]:
    """The rows of the paper's Table 1, and what else tells two sets apart."""
    manifest = workspace.require("passages")
    asked = {name for table in splits.values() for name in table["doc_id"].to_pylist()}
    gold = [len(row) for table in splits.values() for row in table["positive_ids"].to_pylist()]
    return {
        "Question-answer pairs": manifest.details["questions_read"],
        "Source documents with questions": len(asked),
        "Indexed documents": manifest.details["documents"],
        "Indexed passages": manifest.rows["passages"],
        **{f"Final {split} size": len(table) for split, table in splits.items()},
        "Questions with several gold passages": sum(count > 1 for count in gold),
    }


def _duplicates(workspace: Workspace) -> list[Duplicate] | None:
    path = workspace.local("examples") / "duplicates.jsonl"
    if not path.is_file():
        return None
    return [Duplicate(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _curation(workspace: Workspace) -> CurationCard:
    manifest = workspace.require(ARTIFACT)
    facts = manifest.details
    return CurationCard(
        pipeline=facts["pipeline"],
        domain=facts["domain"],
        stand_ins=facts["stand_ins"],
        writer=facts["writer"]["by"] if facts["writer"] else "",
        judges=[_judge(entry) for entry in facts["judgements"]],
        dropped=facts["dropped"],
        scores=_scores(workspace, manifest),
    )


def _judge(entry: dict[str, Any]) -> JudgeCounts:
    return JudgeCounts(entry["judge"], entry["by"], entry["items"], entry["kept"], sum(entry["failures"].values()))


def _scores(workspace: Workspace, manifest: Manifest) -> list[Scores]:
    table = read_parquet(workspace.local(ARTIFACT) / "verdicts.parquet", manifest.stage, ["step", "score_name", "score", "keep"])
    frame = table.to_pandas().dropna(subset=["score"])
    return [
        Scores(judge, score, group.loc[group["keep"], "score"].to_numpy(), group.loc[~group["keep"], "score"].to_numpy())
        for (judge, score), group in frame.groupby(["step", "score_name"], sort=False)
    ]


def _examples(workspace: Workspace, splits: dict[str, pa.Table], seed: int) -> list[CardExample]:
    places = [(split, row) for split, table in splits.items() for row in range(len(table))]
    chosen = np.random.default_rng(seed).permutation(len(places))[:_EXAMPLES]
    rows = [(split, splits[split].slice(row, 1).to_pylist()[0]) for split, row in (places[number] for number in sorted(chosen))]
    texts = load_passages(workspace, "text")["text"]
    return [
        CardExample(split, row["question"], row["answers"], row["doc_id"], texts.take(pa.array(row["positive_ids"])).to_pylist())
        for split, row in rows
    ]
