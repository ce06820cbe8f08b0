"""Sentence boundaries at exact offsets."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import Any

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
# Punkt learns abbreviations from a corpus; unlearned, it would end a sentence after each of these.
_ABBREVIATIONS = (
    "al approx cf ch cl co corp dept dr e.g ed eds eq eqs etc ex fig figs i.e inc incl jr ltd max min mr mrs ms no nos p pp prof ref refs "
    "resp sec sect sr st tab ver vol vs"
)


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Half-open offsets of sentences that tile `text`; blanks after a sentence belong to it. A blank line always ends one.

    Scripts that do not put a blank behind a full stop count as one sentence a paragraph.
    """
    starts: list[int] = []
    for begin, end in _paragraphs(text):
        inner = [begin + start for start, _ in _punkt().span_tokenize(text[begin:end])]
        starts += [begin, *inner[1:]]
    return list(pairwise([*starts, len(text)]))


def _paragraphs(text: str) -> list[tuple[int, int]]:
    ends = [match.end() for match in _PARAGRAPH_END.finditer(text)]
    bounds = sorted({0, *ends, len(text)})
    return list(pairwise(bounds))


@cache
def _punkt() -> Any:
    # Imported at the first use: nltk takes its time, and most runs cut by characters.
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS.split())
    return PunktSentenceTokenizer(parameters)
