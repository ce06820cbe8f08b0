"""Keeps duplicates from straddling splits: whatever a test question resembles is moved to its side or left out, and listed.

Documents do not straddle splits already (see `splitting`), but their copies may: a new release of a specification, a mirrored page, a
question that two annotators asked. Passages that answer no question are not looked at; all splits search the same index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from armor_ray.corpus.duplicates import Duplicates, find_duplicates
from armor_ray.corpus.records import QAPair
from armor_ray.errors import ArmorError

_MOVED_FROM = 0.5  # share of a unit's questions that must have their twins in one split
_PROTECTED: dict[str, tuple[str, ...]] = {"validation": ("test",), "train": ("test", "validation")}

Splits = dict[str, list[QAPair]]


@dataclass(frozen=True, slots=True)
class Leak:
    """What happened to one question.

    Attributes:
        action: `moved` with its whole document (or source, by `data.group_by`), or `dropped`.
        origin: the split that it was in.
        target: the split that holds its twin; where it was moved to.
        reason: what is duplicated: the question itself or a gold passage; `document` for questions that moved along.
        similarity: in (0, 1]; of the twins.
        twin: example id of one duplicate in `target`; empty for `document`.
    """

    example_id: str
    action: Literal["moved", "dropped"]
    origin: str
    target: str
    reason: Literal["question", "passage", "document"]
    similarity: float
    twin: str


def separate(
    splits: Splits, gold: Mapping[str, Sequence[str]], groups_of: Callable[[QAPair], set[str]], similarity: float
) -> tuple[Splits, list[Leak]]:
    """Splits without a question or gold passage that has an exact or near duplicate in another split.

    Test is protected against validation and train, validation against train. A document (or source) half of whose questions have
    twins in one protected split moves there with all of its questions; any other question with a twin is dropped. The order of what
    stays is kept, questions that moved come last.

    Args:
        splits: train, validation and test, no group of which straddles.
        gold: example id -> texts of its gold passages.
        groups_of: the groups of a question that must stay in one split.
        similarity: in (0, 1], see `find_duplicates`.

    Raises:
        ArmorError: nothing is left of a split.
    """
    now = {name: list(pairs) for name, pairs in splits.items()}
    twins = _Twins([pair for pairs in splits.values() for pair in pairs], gold, similarity)
    leaks: list[Leak] = []
    while moved := _moves(now, twins, groups_of):
        _apply(now, moved)
        leaks += moved
    for origin in _PROTECTED:
        dropped = _leaks(now, origin, twins)
        gone = {leak.example_id for leak in dropped}
        now[origin] = [pair for pair in now[origin] if pair.example_id not in gone]
        leaks += dropped
    for name, pairs in now.items():
        if not pairs:
            raise ArmorError(
                f"the {name} split is empty: all of its questions have duplicates elsewhere",
                where="data.deduplicate",
                hint="raise data.duplicate_similarity, or set data.group_by: source",
            )
    return now, leaks


class _Twins:
    """For every question the kinds of its texts, and what is similar to them."""

    def __init__(self, pairs: list[QAPair], gold: Mapping[str, Sequence[str]], similarity: float) -> None:
        questions = [(pair.example_id, pair.question) for pair in pairs]
        passages = [(pair.example_id, text) for pair in pairs for text in gold[pair.example_id]]
        self._texts: dict[Literal["question", "passage"], tuple[Duplicates, dict[str, set[int]]]] = {
            "question": _by_owner(questions, similarity),
            "passage": _by_owner(passages, similarity),
        }

    def holders(self, pairs: list[QAPair]) -> dict[tuple[str, int], str]:
        """(reason, kind) -> the first of these questions that has a text of this kind."""
        found: dict[tuple[str, int], str] = {}
        for pair in pairs:
            for reason, (_, kinds) in self._texts.items():
                for kind in kinds.get(pair.example_id, ()):
                    found.setdefault((reason, kind), pair.example_id)
        return found

    def closest(self, pair: QAPair, holders: Mapping[tuple[str, int], str]) -> tuple[Literal["question", "passage"], float, str] | None:
        """(reason, similarity, twin) of the most similar text that a holder has."""
        found = [
            (value, reason, holders[reason, other])
            for reason, (duplicates, kinds) in self._texts.items()
            for kind in kinds.get(pair.example_id, ())
            for other, value in duplicates.similar[kind].items()
            if (reason, other) in holders
        ]
        if not found:
            return None
        value, reason, twin = max(found, key=lambda entry: (entry[0], entry[1], entry[2]))
        return reason, value, twin


def _by_owner(texts: list[tuple[str, str]], similarity: float) -> tuple[Duplicates, dict[str, set[int]]]:
    duplicates = find_duplicates([text for _, text in texts], similarity)
    kinds: dict[str, set[int]] = defaultdict(set)
    for (owner, _), kind in zip(texts, duplicates.kind_of, strict=True):
        kinds[owner].add(kind)
    return duplicates, dict(kinds)


def _leaks(splits: Splits, origin: str, twins: _Twins) -> list[Leak]:
    """The questions of `origin` with twins in the splits that are protected from it, each as a drop."""
    targets = [(name, twins.holders(splits[name])) for name in _PROTECTED[origin]]
    return [leak for pair in splits[origin] if (leak := _leak(pair, origin, targets, twins))]


def _leak(pair: QAPair, origin: str, targets: list[tuple[str, dict[tuple[str, int], str]]], twins: _Twins) -> Leak | None:
    for target, holders in targets:
        closest = twins.closest(pair, holders)
        if closest:
            reason, value, twin = closest
            return Leak(pair.example_id, "dropped", origin, target, reason, value, twin)
    return None


def _moves(splits: Splits, twins: _Twins, groups_of: Callable[[QAPair], set[str]]) -> list[Leak]:
    """The moves out of the first split that has any."""
    for origin in _PROTECTED:
        leaks = {leak.example_id: leak for leak in _leaks(splits, origin, twins)}
        moves = [move for unit in _units(splits[origin], groups_of) for move in _unit_moves(unit, leaks, origin)]
        if moves:
            return moves
    return []


def _unit_moves(unit: list[str], leaks: Mapping[str, Leak], origin: str) -> list[Leak]:
    for target in _PROTECTED[origin]:
        twins = [name for name in unit if name in leaks and leaks[name].target == target]
        if len(twins) >= _MOVED_FROM * len(unit):
            along = [Leak(name, "moved", origin, target, "document", 1.0, "") for name in unit if name not in set(twins)]
            return [replace(leaks[name], action="moved") for name in twins] + along
    return []


def _units(pairs: list[QAPair], groups_of: Callable[[QAPair], set[str]]) -> list[list[str]]:
    """Example ids of questions that share groups, directly or through others."""
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        while parents.setdefault(name, name) != name:
            name = parents[name]
        return name

    groups = {pair.example_id: sorted(groups_of(pair)) for pair in pairs}
    for first, *others in groups.values():
        for other in others:
            parents[root(other)] = root(first)
    units: dict[str, list[str]] = defaultdict(list)
    for example_id, names in groups.items():
        units[root(names[0])].append(example_id)
    return list(units.values())


def _apply(splits: Splits, moves: list[Leak]) -> None:
    """Takes the moved questions, all of one split, to where they go."""
    target_of = {move.example_id: move.target for move in moves}
    origin = moves[0].origin
    for pair in splits[origin]:
        if pair.example_id in target_of:
            splits[target_of[pair.example_id]].append(pair)
    splits[origin] = [pair for pair in splits[origin] if pair.example_id not in target_of]
