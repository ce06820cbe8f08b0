"""Base and adapted results for one question, side by side: what `armor-ray search` shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from armor_ray.config import Config
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.retrieval.dense import search
from armor_ray.retrieval.index_file import open_index
from armor_ray.stages.prepare import load_passages
from armor_ray.stages.promote import PROMOTED
from armor_ray.workspace import Workspace

_SNIPPET = 160


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage at a rank; `moved` is its rise against the base's ranking, None when the base's list lacks it."""

    title: str
    text: str
    score: float
    moved: int | None

    def line(self, moved: bool = False) -> str:
        """Two lines for a table cell."""
        change = "" if not moved else " (new)" if self.moved is None else f" ({self.moved:+d})" if self.moved else " (=)"
        text = " ".join(self.text.split())
        return f"{self.score:.3f}{change} {self.title}\n{text[:_SNIPPET]}"


def compare(workspace: Workspace, config: Config, question: str, k: int) -> list[tuple[Hit, Hit]]:
    """The top k of the base and of the promoted encoder, rank by rank.

    Raises:
        ArmorError: nothing promoted, or k larger than the corpus.
    """
    base, adapted = BiEncoder.load(config.encoder), BiEncoder.from_folder(workspace.local(PROMOTED))
    own_corpus = workspace.require(PROMOTED).details.get("corpus", "index")
    passages = load_passages(workspace, "title", "text")
    found = [_search(workspace, base, "index", question, k), _search(workspace, adapted, own_corpus, question, k)]
    scores, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
    base_ranks = {int(row): rank for rank, row in enumerate(rows[0])}

    def hit(side: int, rank: int) -> Hit:
        row = int(rows[side, rank])
        moved = base_ranks[row] - rank if row in base_ranks else None
        return Hit(passages["title"][row].as_py(), passages["text"][row].as_py(), float(scores[side, rank]), moved)

    return [(hit(0, rank), hit(1, rank)) for rank in range(k)]


def _search(workspace: Workspace, encoder: BiEncoder, index_artifact: str, question: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    index = open_index(workspace.local(index_artifact), encoder.identity.fingerprint())
    return search(index, encoder.encode([question], "query"), k)
