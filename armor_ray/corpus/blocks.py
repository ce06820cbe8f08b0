"""Tables and code in Markdown: stretches of a text that lose their meaning when they are cut."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")  # Markdown's line ends, not Python's
_MARKS = ("|", "```", "~~~")


def _parser() -> MarkdownIt:
    parser = MarkdownIt("zero").enable(["table", "fence"])
    parser.core.ruler.enableOnly(["normalize", "block"])  # what stands inside paragraphs does not matter here
    return parser


_PARSER = _parser()


def find_blocks(text: str) -> list[tuple[int, int]]:
    """Half-open offsets of the Markdown tables and fenced code blocks of `text`, ascending, whole lines each."""
    if not any(mark in text for mark in _MARKS):
        return []
    starts = _line_starts(text)
    lines = (token.map for token in _PARSER.parse(text) if token.type in {"table_open", "fence"} and token.map)
    return [(starts[first], starts[min(end, len(starts) - 1)]) for first, end in lines]


def _line_starts(text: str) -> list[int]:
    """Offset of every line's first character, and of the text's end."""
    starts = [0]
    while starts[-1] < len(text):
        match = _LINE.match(text, starts[-1])
        assert match is not None
        starts.append(match.end())
    return starts
