"""A domain's keywords as a judge: the stand-in where no endpoint is configured."""

from __future__ import annotations

import re
from collections.abc import Iterable

from armor_ray.judges.domain import Domain

# With 1 - 2^-weight, one core phrase (0.75) passes every threshold of the paper (0.5 to 0.75); of related phrases (0.38, 0.62, 0.77, …) it
# takes two for documents and three for questions.
_CORE_WEIGHT, _RELATED_WEIGHT = 2.0, 0.7


class KeywordScorer:
    """Scores texts in [0, 1) by the different phrases of a domain that stand in them; repetitions count once."""

    def __init__(self, domain: Domain) -> None:
        self._core = _patterns(domain.keywords.core)
        self._related = _patterns(domain.keywords.related)
        self._excluding = _patterns(domain.excluding_keywords)

    def score(self, text: str) -> float:
        """`(1 - 2^-w) · 2^-e`: w is 2 per core and 0.7 per related phrase, e the number of excluding ones."""
        weight = _CORE_WEIGHT * _count(self._core, text) + _RELATED_WEIGHT * _count(self._related, text)
        return (1 - 2.0**-weight) * 2.0 ** -_count(self._excluding, text)


def _patterns(phrases: Iterable[str]) -> list[re.Pattern[str]]:
    return [_pattern(phrase) for phrase in dict.fromkeys(phrase.casefold() for phrase in phrases)]


def _pattern(phrase: str) -> re.Pattern[str]:
    words = [re.escape(word) for word in re.split(r"[\s\-]+", phrase) if word]
    return re.compile(r"(?<!\w)" + r"[\s\-]+".join(words) + r"s?(?!\w)", re.IGNORECASE)


def _count(patterns: Iterable[re.Pattern[str]], text: str) -> int:
    return sum(pattern.search(text) is not None for pattern in patterns)
