"""Stage `mine`: the utility gate. A passage of the base top-k becomes a negative only when its reward lies well below the gold one's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from armor_ray.corpus.schemas import NEGATIVES, validate_table
from armor_ray.objectives.utility import gated_negatives
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.prepare import load_examples, load_passages
from armor_ray.stages.reward import SPLITS, load_rewards
from armor_ray.training.table import pad_pools
from armor_ray.workspace import Draft, Workspace, read_parquet

STAGE = "mine"
NAME = "negatives"
EXAMPLES = "examples.json"
COUNTED = ("kept", "rejected", "questions without a negative")
_SHOWN = 8


def run_all(context: Context, todo: list[Plan]) -> None:
    """Gates both splits' pools; counts what passed, what did not, and the questions left short."""
    [plan] = todo
    workspace, config = context.workspace, context.config
    pools = {split: _gate(workspace, split, config.candidates.top_k, config.reward.gate) for split in SPLITS}
    counts = {split: _counts(rows) for split, rows in pools.items()}

    def write(draft: Draft) -> None:
        for split, rows in pools.items():
            columns = [[row[name] for row in rows] for name in NEGATIVES.names]
            table = pa.table([pa.array(c, type=f.type) for c, f in zip(columns, NEGATIVES, strict=True)], schema=NEGATIVES)
            pq.write_table(table, draft.path / f"{split}.parquet")
            draft.rows[split] = len(rows)
        shown = _examples(workspace, pools["train"], config.seed)
        (draft.path / EXAMPLES).write_text(json.dumps(shown, indent=2, ensure_ascii=False), encoding="utf-8")
        draft.details |= counts

    context.publish(plan, write)
    context.say(f"mine: {', '.join(f'{count} {name}' for name, count in counts['train'].items())}")


Row = dict[str, Any]
"""One question's pool: the columns of `NEGATIVES` and, for the counts and examples, `positive` and `rejected`."""


def _gate(workspace: Workspace, split: str, top_k: int, margin: float) -> list[Row]:
    pools = read_parquet(workspace.local("candidates") / f"{split}.parquet", "candidates")
    table = load_rewards(workspace, split)
    rewards = table["reward"].to_numpy()
    assert pc.list_flatten(pools["passage_ids"]).equals(table["passage_id"])
    rows, start = [], 0
    columns = (pools[name].to_pylist() for name in ("example_id", "passage_ids", "is_positive"))
    for example, passages, flags in zip(*columns, strict=True):
        own = rewards[start : start + len(passages)]
        start += len(passages)
        positive = np.array(flags)
        # A pool is the base's ranking, with the gold passages that it missed behind.
        retrieved = np.arange(len(passages)) < top_k
        gated = gated_negatives(own, positive, retrieved, margin)
        row = {"example_id": example, "passage_ids": passages, "rewards": own.tolist(), "gated": gated.tolist()}
        rows.append({**row, "positive": positive, "rejected": retrieved & ~positive & ~gated})
    return rows


def _counts(rows: list[Row]) -> dict[str, int]:
    kept = [int(np.sum(row["gated"])) for row in rows]
    rejected = sum(int(row["rejected"].sum()) for row in rows)
    return dict(zip(COUNTED, (sum(kept), rejected, sum(count == 0 for count in kept)), strict=True))


def _examples(workspace: Workspace, rows: list[Row], seed: int) -> list[dict[str, Any]]:
    """A few questions, drawn at random, with both accepted and rejected negatives, for a person to judge the gate."""
    texts = load_passages(workspace, "text").column("text")
    questions = load_examples(workspace, "train")["question"].to_pylist()
    table = read_parquet(workspace.local("pair_utilities") / "train.parquet", "utility")
    utilities = dict(
        zip(zip(table["example_id"].to_pylist(), table["passage_id"].to_pylist(), strict=True), table["utility"].to_pylist(), strict=True)
    )

    def passage(row: Row, i: int) -> dict[str, Any]:
        known = utilities[row["example_id"], row["passage_ids"][i]]
        return {"text": texts[row["passage_ids"][i]].as_py(), "utility": known, "reward": round(row["rewards"][i], 3)}

    found = []
    for i in np.random.default_rng(seed).permutation(len(rows)).tolist():
        question, row = questions[i], rows[i]
        kinds = {
            "gold": np.flatnonzero(row["positive"]),
            "accepted": np.flatnonzero(row["gated"]),
            "rejected": np.flatnonzero(row["rejected"]),
        }
        if all(len(members) for members in kinds.values()):
            shown = {kind: [passage(row, int(column)) for column in members[:3]] for kind, members in kinds.items()}
            found.append({"question": question, **shown})
        if len(found) == _SHOWN:
            break
    return found


def load_gate_examples(workspace: Workspace) -> list[dict[str, Any]]:
    """What `_examples` chose: per question its text and, under `gold`, `accepted` and `rejected`, passages with utility and reward."""
    return json.loads((workspace.local(NAME) / EXAMPLES).read_text(encoding="utf-8"))


def load_mined(workspace: Workspace, split: str, pool_QN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rewards fp32, gated bool), [Q, N] each, aligned with the pools; NaN and False for padding."""
    path = workspace.local(NAME) / f"{split}.parquet"
    table = validate_table(read_parquet(path, STAGE), NEGATIVES, str(path))
    assert pad_pools([np.asarray(ids, np.int64) for ids in table["passage_ids"].to_pylist()]).shape == pool_QN.shape
    reward_QN = np.full(pool_QN.shape, np.nan, np.float32)
    gated_QN = np.zeros(pool_QN.shape, bool)
    for i, (rewards, gated) in enumerate(zip(table["rewards"].to_pylist(), table["gated"].to_pylist(), strict=True)):
        reward_QN[i, : len(rewards)], gated_QN[i, : len(gated)] = rewards, gated
    return reward_QN, gated_QN
