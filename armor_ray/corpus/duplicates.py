"""Exact and near duplicates among texts: MinHash proposes pairs, exact similarity decides."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from datasketch import MinHash, MinHashLSH

_SHINGLE = 5
_PERMUTATIONS = 128


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Which texts are equal and which equal ones are similar.

    Attributes:
        kind_of: of every text by its place; equal texts share a kind, blank ones have a kind of their own each.
        similar: kind -> {kind: Jaccard similarity}, symmetric; a kind is similar to itself by 1.0.
    """

    kind_of: list[int]
    similar: dict[int, dict[int, float]]


def find_duplicates(texts: Sequence[str], similarity: float) -> Duplicates:
    """Compares all texts by the Jaccard similarity of their character 5-grams; case, spacing and punctuation do not count.

    MinHash with 128 permutations now and then misses a pair just above the threshold; nothing below it is ever reported. Equal texts are
    one kind, so a boilerplate text that occurs a thousand times costs no more than one.

    Args:
        texts: any strings.
        similarity: in (0, 1]; 1 finds equal texts only.
    """
    kinds: dict[str, int] = {}
    kind_of = [kinds.setdefault(_plain(text) or f"\0{place}", len(kinds)) for place, text in enumerate(texts)]
    similar: dict[int, dict[int, float]] = defaultdict(dict) | {kind: {kind: 1.0} for kind in kinds.values()}
    for one, two, value in _near(kinds, similarity):
        similar[kinds[one]][kinds[two]] = similar[kinds[two]][kinds[one]] = value
    return Duplicates(kind_of, similar)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _shingles(plain: str) -> frozenset[str]:
    return frozenset(plain[i : i + _SHINGLE] for i in range(max(1, len(plain) - _SHINGLE + 1)))


def _near(plains: Iterable[str], similarity: float) -> Iterator[tuple[str, str, float]]:
    if similarity == 1.0:
        return
    index = MinHashLSH(threshold=similarity, num_perm=_PERMUTATIONS, weights=(0.2, 0.8))  # a missed duplicate costs more than a check
    empty = MinHash(num_perm=_PERMUTATIONS, seed=0)
    for plain in plains:
        shingles = _shingles(plain)
        signature = empty.copy()
        signature.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in shingles])
        for other in sorted(index.query(signature)):
            theirs = _shingles(other)
            value = len(shingles & theirs) / len(shingles | theirs)
            if value >= similarity:
                yield other, plain, value
        index.insert(plain, signature, check_duplication=False)
