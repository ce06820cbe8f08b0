"""Reading what models write: a number in prose, JSON in prose, JSON that was cut off, scores out of range.

Tolerant of form, strict about substance: a value that the reply does not state for certain (`nan`, a number cut in the middle, a word) is
unreadable, never guessed. Every function takes any text and raises nothing but `UnreadableReply`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jiter

#: How a reply was read, beyond as asked for; accounts count these.
PROSE, TRUNCATED, CLAMPED = "in prose", "truncated", "clamped"

# Numbers only where no word, longer number or section sign goes on: not the 6 of "6G", the 4 of "GPT-4", the 5.2 of "5.2.1".
_NUMBER = r"(?<![\w.,\-])[-+]?(?:\d+(?:[.,]\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w]|[.,]\d)"
_LABELLED = re.compile(rf"(?:score|confidence|rating|relevance|grade)\W{{0,4}}(?:\s*(?:is|of|=|:)\s*)?\W{{0,4}}?({_NUMBER})", re.IGNORECASE)
_ANY = re.compile(f"({_NUMBER})")
# A scale that the reply repeats ("in [0, 1]", "from 0 to 1") is no score.
_SCALE = re.compile(r"\[\s*0(?:\.0)?\s*,\s*1(?:\.0)?\s*\]|(?<![\w.,])0(?:\.0)?\s*(?:-|–|to|and)\s*1(?:\.0)?(?![\w]|[.,]\d)", re.IGNORECASE)
_OUT_OF = re.compile(r"\s*(?:/|out of)\s*(\d+(?:\.\d+)?)(?![\w.])|\s*(%)")
_REASONING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_STRICT = json.JSONDecoder(parse_constant=lambda name: name)  # NaN and Infinity become words, which no score is
_MAX_STARTS = 64
_MARKUP = " \t\r\n*`\"'"
_TRUE, _FALSE = {"true", "yes", "1"}, {"false", "no", "0"}


class UnreadableReply(ValueError):
    """The reply does not hold what was asked for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one thing judged was given.

    Attributes:
        scores: name → value in [0, 1].
        notes: how the reply had to be read (`PROSE`, `TRUNCATED`, `CLAMPED`), sorted; empty when it came as asked for.
    """

    scores: Mapping[str, float]
    notes: tuple[str, ...] = ()


def read_number(text: str, *, cut: bool = False) -> tuple[float, tuple[str, ...]]:
    """The score that a reply states, clamped to [0, 1], and notes.

    A labelled number (`Score: 0.8`) goes before the first one. `8/10`, `8 out of 10` and `80%` are shares.

    Args:
        cut: the reply ended at its token limit, so a number at its very end may lack digits and does not count.

    Raises:
        UnreadableReply: it states none.
    """
    text = _SCALE.sub(" ", _without_reasoning(text))
    for pattern in (_LABELLED, _ANY):
        for match in pattern.finditer(text):
            if cut and not text[match.end(1) :].strip(" ."):
                continue
            value, end = _share(match, text)
            score, notes = _clamp(value)
            bare = not text[: match.start(1)].strip(_MARKUP) and not text[end:].strip(f"{_MARKUP}.")
            return score, tuple(sorted([*notes, *([] if bare else [PROSE])]))
    raise UnreadableReply("no number")


def read_object(text: str, keys: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The first JSON object that has all of `keys`, values as they are, and notes.

    Raises:
        UnreadableReply: there is none, also after closing what was cut off.
    """
    return _first(text, lambda value: value if isinstance(value, dict) and all(key in value for key in keys) else None)


def read_list(text: str, key: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The objects of the list under `key` in the first JSON object that has one, or of a bare JSON list, and notes.

    Entries that are no objects are left out. A list that was cut off has the entries before the cut.

    Raises:
        UnreadableReply: there is no such list.
    """
    return _first(text, lambda value: _objects(value.get(key) if isinstance(value, dict) else value))


def read_score(value: Any) -> tuple[float, tuple[str, ...]]:
    """A JSON value as a score in [0, 1], and notes; numbers in strings count, booleans and non-finite numbers do not.

    Raises:
        UnreadableReply: it is no number.
    """
    if isinstance(value, str):
        return read_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableReply("a score is not a number")
    return _clamp(value)


def read_flag(value: Any) -> bool:
    """A JSON value as a yes or no: booleans, 0 and 1, and their usual words.

    Raises:
        UnreadableReply: it is neither.
    """
    word = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise UnreadableReply("a flag is neither true nor false")


def _share(match: re.Match[str], text: str) -> tuple[float, int]:
    value = float(match[1].replace(",", "."))
    scale = _OUT_OF.match(text, match.end(1))
    if scale is None:
        return value, match.end(1)
    whole = 100.0 if scale[2] else float(scale[1])
    return (value / whole, scale.end()) if whole > 0 else (value, match.end(1))


def _clamp(value: float) -> tuple[float, tuple[str, ...]]:
    # Integers may exceed what a float holds; they are out of range all the same.
    if isinstance(value, float) and not math.isfinite(value):
        raise UnreadableReply("a score is not finite")
    score = float(min(1, max(0, value)))
    return score, () if score == value else (CLAMPED,)


def _without_reasoning(text: str) -> str:
    return _REASONING.sub(" ", text)


def _first(text: str, choose: Any) -> tuple[Any, tuple[str, ...]]:
    text = _without_reasoning(text)
    for value, start, end in _values(text):
        chosen = choose(value)
        if chosen is not None:
            return chosen, () if _is_bare(text, start, end) else (PROSE,)
    for value in _cut_values(text):
        chosen = choose(value)
        if chosen is not None:
            return chosen, (TRUNCATED,)
    raise UnreadableReply("no JSON of the form asked for")


def _is_bare(text: str, start: int, end: int) -> bool:
    """Whether nothing but white space and a code fence surrounds the value."""
    before, after = text[:start].strip().lower(), text[end:].strip()
    return before in {"", "```", "```json"} and after in {"", "```"}


def _starts(text: str) -> list[int]:
    return [match.start() for match in re.finditer(r"[{\[]", text)][:_MAX_STARTS]


def _values(text: str) -> Iterator[tuple[Any, int, int]]:
    """Every complete JSON object or list in the text, with its place; those inside others follow them."""
    for start in _starts(text):
        try:
            value, end = _STRICT.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        yield value, start, end


def _cut_values(text: str) -> Iterator[Any]:
    """JSON that breaks off at the end of the text, closed there; a number or word that touches the end may be incomplete and is dropped."""
    text = _without_cut_scalar(text.rstrip())
    for start in _starts(text):
        try:
            yield jiter.from_json(text[start:].encode("utf-8", "replace"), partial_mode=True, allow_inf_nan=False)
        except ValueError:
            continue


def _without_cut_scalar(text: str) -> str:
    end = len(text)
    while end > 0 and (text[end - 1].isalnum() or text[end - 1] in "_.+-"):
        end -= 1
    return text[:end]


def _objects(value: Any) -> list[dict[str, Any]] | None:
    if not isinstance(value, list):
        return None
    found = [entry for entry in value if isinstance(entry, dict)]
    return found or None
