"""The indexes that one process has mapped, each checked to hold the right encoder's vectors of the right passages."""

from __future__ import annotations

from dataclasses import dataclass

import faiss

from armor_ray.errors import ArmorError
from armor_ray.retrieval.index_file import open_index
from armor_ray.workspace import Workspace


@dataclass(frozen=True, slots=True)
class IndexKey:
    """An index as an encoder asks for it.

    Attributes:
        artifact: where it is published.
        identity: fingerprint of the encoder whose vectors it must hold.
    """

    artifact: str
    identity: str


class Indexes:
    """Indexes over one corpus, mapped when they are first asked for.

    Args:
        corpus: fingerprint of the passages that are served.
        num_passages: how many those are.
    """

    def __init__(self, workspace: Workspace, corpus: str, num_passages: int) -> None:
        self._workspace = workspace
        self.corpus = corpus
        self.num_passages = num_passages
        self._mapped: dict[IndexKey, faiss.Index] = {}

    def require(self, key: IndexKey) -> faiss.Index:
        """The index, checked and mapped unless it is mapped already.

        Raises:
            ArmorError: it is missing or damaged, or holds another encoder's vectors or those of other passages.
        """
        if key not in self._mapped:
            self._mapped[key] = self._open(key)
        return self._mapped[key]

    def _open(self, key: IndexKey) -> faiss.Index:
        check_same_corpus(self._workspace, key.artifact)
        if self._workspace.require("passages").fingerprint != self.corpus:
            message = "the workspace holds other passages now than are served"
            raise ArmorError(message, where=self._workspace.uri, hint="restart the server to serve them")
        folder = self._workspace.local(key.artifact)
        index = open_index(folder, key.identity)
        if index.ntotal != self.num_passages:
            message = f"the index holds {index.ntotal} vectors, the corpus has {self.num_passages} passages"
            raise ArmorError(message, where=str(folder), hint="rerun with --force embed")
        return index


def check_same_corpus(workspace: Workspace, index_artifact: str = "index") -> None:
    """Refuses an index that was built from other passages than the workspace holds now.

    Raises:
        ArmorError: an artifact is missing, or the chain passages - embeddings - index is broken (an interrupted rerun).
    """
    passages, index = workspace.require("passages"), workspace.require(index_artifact)
    embeddings = workspace.manifest("embeddings") if index_artifact == "index" else index
    if embeddings is None:  # not needed for serving; a slim copy of a workspace leaves it out
        return
    links = [(embeddings, passages)] if index is embeddings else [(index, embeddings), (embeddings, passages)]
    for product, source in links:
        if product.inputs.get(source.name) != source.fingerprint:
            message = f"'{product.name}' was made of other '{source.name}' than the workspace holds"
            raise ArmorError(message, where=workspace.uri, hint="finish the run with `armor-ray run`")
