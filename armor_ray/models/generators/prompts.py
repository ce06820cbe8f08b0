"""Prompts as token ids.

A scoring prompt is built from pieces that are tokenised apart and joined as ids:

    head      opening of the chat turn, instruction, "Passage:" newline       the same for all requests
    passage                                                                  shared by all questions about it
    question  blank line, "Question:" newline, question, end of the turn      shared by all answers
    answer                                                                   scored

so no token ever spans the boundary between prompt and answer, the answer's token count is exact, and pairs with the same passage share the
token prefix head + passage. User text is tokenised with special tokens split, so a passage cannot close the chat turn.

How an answer starts: directly after the prompt when the prompt ends in a newline (most chat templates), else with one space that belongs to
the *answer* ("…Answer:" + " yes", "[/INST]" + " yes"); a prompt never ends in a space. Models without a chat template get a plain one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from armor_ray.errors import ArmorError
from armor_ray.models.generators.protocol import GenerationRequest, ScoreRequest

PROMPT_VERSION = 1

OPEN_BOOK = "Answer the question with the help of the passage.\n\nPassage:\n{passage}\n\nQuestion:\n{question}"
CLOSED_BOOK = "Answer the question.\n\nQuestion:\n{question}"
PLAIN_ENDING = "\n\nAnswer:"
_QUESTION = "{question}"

_PASSAGE_MARK, _QUESTION_MARK = "⟦passage⟧", "⟦question⟧"


@dataclass(frozen=True, slots=True)
class ScorePrompt:
    """Token ids of one scoring request.

    Attributes:
        head: opening of the chat turn and instruction.
        passage: the (cut) passage; empty for a closed book.
        question: all that follows: question and end of the turn.
        answers: ids per answer; None where the answer cannot be scored.
        passage_tokens_cut: tokens removed from the end of the passage.
        error: why some answers are None; else None.
    """

    head: tuple[int, ...]
    passage: tuple[int, ...]
    question: tuple[int, ...]
    answers: tuple[tuple[int, ...] | None, ...]
    passage_tokens_cut: int
    error: str | None


@dataclass(frozen=True, slots=True)
class _Template:
    """Ids around the texts of one prompt form; closed-book prompts have no `middle`."""

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]


class PromptBuilder:
    """Turns requests into token ids for one tokenizer.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        window: most tokens of prompt + answer together.
    """

    def __init__(self, tokenizer: Any, window: int) -> None:
        self.tokenizer = tokenizer
        self.window = window
        self.is_chat = bool(tokenizer.chat_template)
        self._open = self._template(OPEN_BOOK)
        self._closed = self._template(CLOSED_BOOK)
        self._answer_lead = "" if self._render("").endswith("\n") else " "

    def fingerprint(self) -> str:
        """Version and hash of everything that surrounds passage, question and answer."""
        parts = [self._answer_lead, *([t.head, t.middle, t.tail] for t in (self._open, self._closed))]
        return f"{PROMPT_VERSION}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"

    def score_prompts(self, requests: Sequence[ScoreRequest]) -> list[ScorePrompt]:
        """Ids of every request; each distinct text is tokenised once."""
        anchor = ":" if self._answer_lead else "\n"
        passages = self._tokenize_all("\n", (r.passage.strip() for r in requests if r.passage is not None))
        questions = self._tokenize_all("\n", (r.question.strip() for r in requests))
        answers = self._tokenize_all(anchor, (self._answer_lead + a.strip() for r in requests for a in r.answers if a.strip()))
        prompts = []
        for request in requests:
            template = self._closed if request.passage is None else self._open
            passage = passages[request.passage.strip()] if request.passage is not None else ()
            ids = [answers[self._answer_lead + a.strip()] if a.strip() else () for a in request.answers]
            prompts.append(self._fit(template, passage, questions[request.question.strip()], ids))
        return prompts

    def generation_prompts(
        self, requests: Sequence[GenerationRequest], max_new_tokens: int, context_characters: int
    ) -> list[tuple[int, ...]]:
        """Ids of every prompt; the context is cut from its end to `context_characters`, then to what the window leaves.

        Raises:
            ArmorError: a question that does not fit even without context.
        """
        contexts = [join_passages(r.passages, context_characters) for r in requests]
        passages = self._tokenize_all("\n", contexts)
        questions = self._tokenize_all("\n", (r.question.strip() for r in requests))
        prompts = []
        for request, context in zip(requests, contexts, strict=True):
            template = self._open if context else self._closed
            suffix = (*template.middle, *questions[request.question.strip()], *template.tail)
            room = self.window - max_new_tokens - len(template.head) - len(suffix)
            if room < 0:
                raise ArmorError(
                    f"question and answer exceed the window of {self.window} tokens by {-room}",
                    where=repr(request.question[:60]),
                    hint="raise generator.max_length or lower generator.max_new_tokens",
                )
            prompts.append((*template.head, *passages[context][:room], *suffix))
        return prompts

    def writing_prompts(self, messages: Sequence[str], max_new_tokens: int) -> list[tuple[int, ...] | None]:
        """Ids of each message as one chat turn; None where it and `max_new_tokens` exceed the window."""
        turn = self._template(_QUESTION)
        texts = self._tokenize_all("\n", (message.strip() for message in messages))
        prompts = [(*turn.head, *texts[message.strip()], *turn.tail) for message in messages]
        return [prompt if len(prompt) + max_new_tokens <= self.window else None for prompt in prompts]

    def clean_answer(self, text: str) -> str:
        """A generated answer without surrounding space; after the plain template, which has no end of turn, its first line."""
        text = text.strip()
        return text if self.is_chat else text.partition("\n")[0].rstrip()

    def _fit(self, template: _Template, passage: tuple[int, ...], question: tuple[int, ...], answers: list[tuple[int, ...]]) -> ScorePrompt:
        suffix = (*template.middle, *question, *template.tail)
        fixed = len(template.head) + len(suffix)
        faults: list[str] = [] if question else ["the question is empty"]
        kept: list[tuple[int, ...] | None] = []
        for i, answer in enumerate(answers):
            if not answer:
                faults.append(f"answer {i} is empty")
            elif fixed + len(answer) > self.window:
                faults.append(f"question and answer {i} need {fixed + len(answer)} tokens, the window has {self.window}")
            kept.append(answer if question and answer and fixed + len(answer) <= self.window else None)
        longest = max((len(answer) for answer in kept if answer), default=0)
        passage_kept = passage[: max(self.window - fixed - longest, 0)]
        return ScorePrompt(
            head=template.head,
            passage=passage_kept,
            question=suffix,
            answers=tuple(kept),
            passage_tokens_cut=len(passage) - len(passage_kept),
            error="; ".join(faults) or None,
        )

    def _template(self, text: str) -> _Template:
        message = text.format(passage=_PASSAGE_MARK, question=_QUESTION_MARK)
        rendered = self._render(message)
        pieces: list[str] = []
        for mark in (mark for mark in (_PASSAGE_MARK, _QUESTION_MARK) if mark in message):
            if rendered.count(mark) != 1:
                raise ArmorError("the chat template does not print the user's message exactly once", where="generator.model")
            piece, rendered = rendered.split(mark)
            pieces.append(piece)
        return _Template(
            head=self._with_one_bos(self._tokenize(pieces[0])),
            middle=self._continue("a", pieces[1]) if len(pieces) > 1 else (),
            tail=self._continue("a", rendered),
        )

    def _render(self, message: str) -> str:
        if not self.is_chat:
            return message + PLAIN_ENDING
        # A fixed date keeps templates that print today's from changing every score overnight; thinking would stand before the answer.
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": message}],
            tokenize=False,
            add_generation_prompt=True,
            date_string="26 Jul 2024",
            enable_thinking=False,
        )
        return rendered.rstrip(" ")

    def _with_one_bos(self, head: tuple[int, ...]) -> tuple[int, ...]:
        """Chat templates often print the BOS that the tokenizer would add again; others print none although the model expects it."""
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return head
        adds_bos = list(self.tokenizer("a")["input_ids"])[:1] == [bos]
        start = 0
        while head[start : start + 1] == (bos,):
            start += 1
        return (bos, *head[start:]) if start or adds_bos else head

    def _tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _continue(self, anchor: str, text: str) -> tuple[int, ...]:
        """Ids of template text as they read after `anchor`: some tokenizers put a space before whatever comes first."""
        return _drop_anchor(self._tokenize(anchor + text), self._tokenize(anchor)) or self._tokenize(text)

    def _tokenize_all(self, anchor: str, texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Ids of each distinct user text as it reads after `anchor`; special tokens written in it are plain text."""
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return {}
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        anchor_ids = tuple(self.tokenizer(anchor, **options)["input_ids"])
        anchored = self.tokenizer([anchor + text for text in distinct], **options)["input_ids"]
        ids = {text: _drop_anchor(tuple(row), anchor_ids) for text, row in zip(distinct, anchored, strict=True)}
        for text in distinct:
            if text and ids[text] is None:
                ids[text] = tuple(self.tokenizer(text, **options)["input_ids"])
        return {text: row or () for text, row in ids.items()}


def usable_window(max_length: int, positions: int | None) -> int:
    """Tokens of prompt + answer: the configured window, or the model's positions where those are fewer."""
    return max_length if positions is None else min(max_length, positions)


def join_passages(passages: Sequence[str], characters: int) -> str:
    """Passages in order, blank lines between, cut to at most `characters`."""
    return "\n\n".join(passage.strip() for passage in passages)[:characters].rstrip()


def chat_text(request: GenerationRequest, context_characters: int) -> str:
    """The user message of a generation request, for engines that apply their own chat template."""
    context = join_passages(request.passages, context_characters)
    if context:
        return OPEN_BOOK.format(passage=context, question=request.question.strip())
    return CLOSED_BOOK.format(question=request.question.strip())


def _drop_anchor(ids: tuple[int, ...], anchor: tuple[int, ...]) -> tuple[int, ...] | None:
    return ids[len(anchor) :] if ids[: len(anchor)] == anchor else None
