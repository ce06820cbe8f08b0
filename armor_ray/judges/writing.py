"""Writing question-answer pairs from a passage: what is asked of an instruction model, and how its reply is read (ARMOR, appendix A).

Local models are asked for plain lines and not for JSON: small ones, which no schema holds to a form, keep to them far more often. An
endpoint is asked for JSON with a schema. Either form is read from either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from armor_ray.judges.domain import Domain
from armor_ray.judges.parsing import UnreadableReply, read_list
from armor_ray.judges.reading import list_schema
from armor_ray.judges.request import Message, Schema
from armor_ray.judges.templates import render_messages

TEMPLATE = "question_writing"
Form = Literal["lines", "json"]

_PLACEHOLDER = "the question"  # where the template shows the form

# "Q: …", "**A1:** …", "2. Question: …"
_LABELLED = re.compile(r"[\s>*#\-\d.)(]*(?P<kind>q|question|a|answer)[\s\d*]*:(?P<text>.*)", re.IGNORECASE)
_REASONING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)


def writing_messages(domain: Domain, title: str, passage: str, count: int, form: Form) -> tuple[Message, Message]:
    """System and user message that ask for at most `count` pairs."""
    return render_messages(TEMPLATE, domain=domain, title=title, passage=passage, count=count, form=form)


def pairs_schema(count: int) -> Schema:
    """Of the form `json`; no pair at all is a reply, too."""
    return list_schema(TEMPLATE, "pairs", {"question": "string", "answer": "string"}, 0, count)


def one_turn(messages: Sequence[Message]) -> str:
    """The messages as one user turn: chat templates of many local models know no system role."""
    return "\n\n".join(message["content"] for message in messages)


def read_pairs(text: str, most: int, *, cut: bool) -> list[tuple[str, str]]:
    """Question and answer of each pair that stands in the reply, at most `most`.

    Args:
        cut: the reply ended at its token limit, so an answer at its very end is no answer.

    Lines without a label go on with the question or answer before them; after a blank line they belong to nothing. The prompt's own
    placeholder, which small models repeat, is no question.
    """
    pairs = _json_pairs(text) or _line_pairs(text, cut)
    return [(question, answer) for question, answer in pairs if question.casefold() != _PLACEHOLDER][:most]


def _json_pairs(text: str) -> list[tuple[str, str]]:
    try:
        entries, _ = read_list(text, "pairs")
    except UnreadableReply:
        return []
    texts = [[entry.get(key) for key in ("question", "answer")] for entry in entries]
    pairs = [
        (_one_line([question]), _one_line([answer])) for question, answer in texts if isinstance(question, str) and isinstance(answer, str)
    ]
    return [pair for pair in pairs if all(pair)]


def _line_pairs(text: str, cut: bool) -> list[tuple[str, str]]:
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
    return [
        (question, answer)
        for (first, question), (second, answer) in pairwise(texts)
        if (first, second) == ("q", "a") and question and answer
    ]


def _one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).replace("**", "").split())
