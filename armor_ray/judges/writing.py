"""Writing question-answer pairs from a passage: what is asked of an instruction model, and how its reply is read (ARMOR, appendix A).

Plain lines and not JSON: small local models, which no schema holds to a form, keep to them far more often.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from armor_ray.judges.domain import Domain
from armor_ray.judges.request import Message
from armor_ray.judges.templates import render_messages

TEMPLATE = "question_writing"

# "Q: …", "**A1:** …", "2. Question: …"
_LABELLED = re.compile(r"[\s>*#\-\d.)(]*(?P<kind>q|question|a|answer)[\s\d*]*:(?P<text>.*)", re.IGNORECASE)
_REASONING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)


def writing_messages(domain: Domain, title: str, passage: str, count: int) -> tuple[Message, Message]:
    """System and user message that ask for at most `count` pairs."""
    return render_messages(TEMPLATE, domain=domain, title=title, passage=passage, count=count)


def one_turn(messages: Sequence[Message]) -> str:
    """The messages as one user turn: chat templates of many local models know no system role."""
    return "\n\n".join(message["content"] for message in messages)


def read_pairs(text: str, most: int, *, cut: bool) -> list[tuple[str, str]]:
    """Question and answer of each pair that stands in the reply, at most `most`.

    Args:
        cut: the reply ended at its token limit, so an answer at its very end is no answer.

    Lines without a label go on with the question or answer before them; after a blank line they belong to nothing.
    """
    parts: list[tuple[str, list[str]]] = []
    is_open = False
    for line in _REASONING.sub(" ", text).rstrip().splitlines():
        labelled = _LABELLED.match(line)
        if labelled:
            parts.append((labelled["kind"][0].lower(), [labelled["text"]]))
        elif is_open and line.strip():
            parts[-1][1].append(line)
        is_open = bool(labelled) or (is_open and bool(line.strip()))
    if cut and is_open:
        parts.pop()
    texts = [(kind, _one_line(lines)) for kind, lines in parts]
    pairs = [
        (question, answer)
        for (first, question), (second, answer) in pairwise(texts)
        if (first, second) == ("q", "a") and question and answer
    ]
    return pairs[:most]


def _one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).replace("**", "").split())
