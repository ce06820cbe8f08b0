"""Scoring many (passage, question, answer) triples in one forward pass without computing a shared token twice.

A row of T tokens holds the opening of the prompt once, below it passages, below those their questions, below those the answers. Every token
keeps the position it has on its own path, and attention is computed block by block, a block's queries seeing the keys of its ancestors and,
causally, of the block itself. Nothing is padded and nothing is shared wrongly: the result equals that of scoring each path alone, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Span = tuple[int, int]
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One answer to score; `owner` is the caller's name for it."""

    owner: int
    ids: Ids


@dataclass(frozen=True, slots=True)
class Path:
    """Token ids of one answer and of its prompt, cut where prompts part: opening, passage, question."""

    head: Ids
    passage: Ids
    question: Ids
    answer: Ids


@dataclass(slots=True)
class Question:
    """Prompt ids after the passage, and the answers to it."""

    ids: Ids
    leaves: list[Leaf] = field(default_factory=list)

    def num_tokens(self) -> int:
        """Tokens this question adds to its tree; the last token of an answer predicts nothing and is never computed."""
        return len(self.ids) + sum(len(leaf.ids) - 1 for leaf in self.leaves)


@dataclass(slots=True)
class Tree:
    """All questions about one passage; `passage` is empty for closed-book questions."""

    head: Ids
    passage: Ids
    questions: list[Question] = field(default_factory=list)

    def num_tokens(self) -> int:
        """Tokens below the head."""
        return len(self.passage) + sum(question.num_tokens() for question in self.questions)


@dataclass(frozen=True, slots=True)
class Block:
    """Row positions start..end whose queries see the `ancestors` spans and, causally, themselves."""

    start: int
    end: int
    ancestors: tuple[Span, ...]


@dataclass(slots=True)
class PackedRow:
    """One row of trees.

    Attributes:
        ids, positions: T token ids and the position of each on its own path.
        blocks: in row order, covering the row.
        sources, targets, owners: row index whose output predicts an answer token, that token's id, and whose answer it belongs to.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    _heads: dict[Ids, tuple[Span, ...]] = field(default_factory=dict)

    def num_tokens_with(self, tree: Tree) -> int:
        """Tokens of the row once `tree` is added; its head counts only when the row lacks it."""
        return len(self.ids) + tree.num_tokens() + (0 if tree.head in self._heads else len(tree.head))

    def add_tree(self, tree: Tree) -> None:
        """Lays a tree out at the end of the row; a node with a single child shares a block with it."""
        if tree.head not in self._heads:
            self._heads[tree.head] = self.add_block(tree.head, ())
        head = self._heads[tree.head]
        if len(tree.questions) == 1:
            self._add_question(tree.passage + tree.questions[0].ids, tree.questions[0].leaves, head)
            return
        trunk = self.add_block(tree.passage, head)
        for question in tree.questions:
            self._add_question(question.ids, question.leaves, trunk)

    def _add_question(self, stem: Ids, leaves: Sequence[Leaf], ancestors: tuple[Span, ...]) -> None:
        if len(leaves) == 1:
            start = len(self.ids)
            self.add_block(stem + leaves[0].ids[:-1], ancestors)
            self._read(leaves[0], range(start + len(stem) - 1, len(self.ids)))
            return
        branch = self.add_block(stem, ancestors)
        last = len(self.ids) - 1
        for leaf in leaves:
            start = len(self.ids)
            self.add_block(leaf.ids[:-1], branch)
            self._read(leaf, [last, *range(start, len(self.ids))])

    def add_block(self, ids: Ids, ancestors: tuple[Span, ...]) -> tuple[Span, ...]:
        """Appends ids below `ancestors`; returns the path down to and including them."""
        if not ids:
            return ancestors
        start = len(self.ids)
        depth = sum(end - begin for begin, end in ancestors)
        self.ids.extend(ids)
        self.positions.extend(range(depth, depth + len(ids)))
        self.blocks.append(Block(start, len(self.ids), ancestors))
        return (*ancestors, (start, len(self.ids)))

    def _read(self, leaf: Leaf, sources: Sequence[int]) -> None:
        self.sources.extend(sources)
        self.targets.extend(leaf.ids)
        self.owners.extend([leaf.owner] * len(leaf.ids))


def grow_trees(paths: Sequence[Path]) -> list[Tree]:
    """Groups paths by equal head and passage, then by equal question, in order of first appearance; owners are the paths' indices."""
    trees: dict[tuple[Ids, Ids], Tree] = {}
    questions: dict[tuple[Ids, Ids, Ids], Question] = {}
    for owner, path in enumerate(paths):
        tree = trees.setdefault((path.head, path.passage), Tree(path.head, path.passage))
        question = questions.get((path.head, path.passage, path.question))
        if question is None:
            question = questions[path.head, path.passage, path.question] = Question(path.question)
            tree.questions.append(question)
        question.leaves.append(Leaf(owner, path.answer))
    return list(trees.values())


def pack_rows(trees: Sequence[Tree], budget: int) -> Iterator[PackedRow]:
    """Rows of at most `budget` tokens, the largest trees first so that a lack of memory shows at once.

    A tree larger than the budget is cut between questions and its passage computed again in each part; a single question that exceeds the
    budget gets a row of its own.
    """
    row = PackedRow()
    parts = [part for tree in trees for part in _cut(tree, budget - len(tree.head))]
    for part in sorted(parts, key=Tree.num_tokens, reverse=True):
        if row.ids and row.num_tokens_with(part) > budget:
            yield row
            row = PackedRow()
        row.add_tree(part)
    if row.ids:
        yield row


def _cut(tree: Tree, budget: int) -> Iterator[Tree]:
    part = Tree(tree.head, tree.passage)
    size = part.num_tokens()
    for question in tree.questions:
        if part.questions and size + question.num_tokens() > budget:
            yield part
            part = Tree(tree.head, tree.passage)
            size = part.num_tokens()
        part.questions.append(question)
        size += question.num_tokens()
    yield part
