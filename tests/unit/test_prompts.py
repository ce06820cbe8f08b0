"""Scoring prompts: what must never happen at the seams between prompt, passage and answer (REFERENCE §2)."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from armor_ray.errors import ArmorError
from armor_ray.models.generators.prompts import PromptBuilder, chat_text
from armor_ray.models.generators.protocol import GenerationRequest, ScoreRequest

CHAT = "<s><user>{{ messages[0]['content'] }}{{ '<end>\n<bot>\n' }}"


def make_tokenizer(chat_template: str | None = None, bos: str | None = None, adds_bos: bool = False, merges: tuple[str, ...] = ()):
    """One token per byte plus `merges` of two bytes, which may join anything, across words and lines too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(pair[0], pair[1]) for pair in merges]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in pairs)])}
    core = Tokenizer(models.BPE(vocabulary, pairs))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "<user>", "<end>", "<bot>"])
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=bos, eos_token="<end>")
    tokenizer.chat_template = chat_template
    return tokenizer


def request(passage: str | None = "alpha beta", answers: tuple[str, ...] = ("yes",), question: str = "why?") -> ScoreRequest:
    return ScoreRequest("k", question, passage, answers)


def prompt_ids(prompt) -> tuple[int, ...]:
    return prompt.head + prompt.passage + prompt.question


@pytest.mark.parametrize("template", [CHAT, None])
def test_pieces_join_to_the_rendered_prompt(template):
    tokenizer = make_tokenizer(template)
    [prompt] = PromptBuilder(tokenizer, 1000).score_prompts([request()])
    text = tokenizer.decode(prompt_ids(prompt))
    message = "Answer the question with the help of the passage.\n\nPassage:\nalpha beta\n\nQuestion:\nwhy?"
    assert text == (f"<s><user>{message}<end>\n<bot>\n" if template else f"{message}\n\nAnswer:")


def test_boundary_tokens_never_merge():
    # Ċ is the newline: tokenised in one piece, "<bot>\nyes" would swallow the prompt's last newline into the answer's first token.
    builder = PromptBuilder(make_tokenizer(CHAT, merges=("Ċy",)), 1000)
    yes, no = (builder.score_prompts([request(answers=(answer,))])[0] for answer in ("yes", "no"))
    assert prompt_ids(yes) == prompt_ids(no)
    assert builder.tokenizer.decode(yes.answers[0]) == "yes"
    assert len(yes.answers[0]) == 3


def test_plain_prompt_ends_without_space_and_the_answer_starts_with_it():
    builder = PromptBuilder(make_tokenizer(), 1000)
    [prompt] = builder.score_prompts([request()])
    assert builder.tokenizer.decode(prompt_ids(prompt)).endswith("Answer:")
    assert builder.tokenizer.decode(prompt.answers[0]) == " yes"


def test_trailing_space_of_a_chat_template_moves_to_the_answer():
    builder = PromptBuilder(make_tokenizer("USER: {{ messages[0]['content'] }} BOT: "), 1000)
    [prompt] = builder.score_prompts([request()])
    assert builder.tokenizer.decode(prompt_ids(prompt)).endswith("BOT:")
    assert builder.tokenizer.decode(prompt.answers[0]) == " yes"


@pytest.mark.parametrize(
    ("template", "bos", "adds_bos", "expected"),
    [
        (CHAT, "<s>", True, 1),
        (CHAT.removeprefix("<s>"), "<s>", True, 1),
        ("<s>" + CHAT, "<s>", False, 1),
        (None, "<s>", True, 1),
        (None, None, False, 0),
    ],
)
def test_exactly_one_bos(template, bos, adds_bos, expected):
    tokenizer = make_tokenizer(template, bos, adds_bos)
    builder = PromptBuilder(tokenizer, 1000)
    [prompt] = builder.score_prompts([request()])
    [generation] = builder.generation_prompts([GenerationRequest("why?", ("alpha",))], 10, 100)
    start = tokenizer.convert_tokens_to_ids("<s>")
    for ids in (prompt_ids(prompt), generation):
        assert ids.count(start) == expected
        assert (ids[0] == start) == bool(expected)


def test_pairs_of_a_passage_share_a_token_prefix():
    builder = PromptBuilder(make_tokenizer(CHAT), 1000)
    first, second = builder.score_prompts([request(question="why?"), request(question="how?")])
    assert first.head + first.passage == second.head + second.passage
    assert first.question != second.question


def test_only_the_end_of_the_passage_is_cut():
    builder = PromptBuilder(make_tokenizer(CHAT), 150)
    [prompt] = builder.score_prompts([request("word " * 50, answers=("yes", "absolutely"))])
    assert len(prompt_ids(prompt)) + len("absolutely") == 150
    assert builder.tokenizer.decode(prompt.passage) == ("word " * 50)[: len(prompt.passage)]
    assert prompt.passage_tokens_cut == len("word " * 50) - 1 - len(prompt.passage)
    assert "why?" in builder.tokenizer.decode(prompt.question)
    assert [len(answer) for answer in prompt.answers] == [3, 10]
    assert prompt.error is None


def test_unscorable_answers_leave_the_others_alone():
    builder = PromptBuilder(make_tokenizer(CHAT), 150)
    long, empty, fine = builder.score_prompts([request(answers=("x" * 200, "yes")), request(answers=(" ", "yes")), request()])
    assert long.answers[0] is None
    assert "window has 150" in long.error
    assert empty.answers[0] is None
    assert empty.error == "answer 0 is empty"
    assert fine.error is None
    assert long.answers[1] == empty.answers[1] == fine.answers[0]
    assert prompt_ids(long) == prompt_ids(fine)


def test_empty_question_is_an_error():
    [prompt] = PromptBuilder(make_tokenizer(CHAT), 150).score_prompts([request(question=" ")])
    assert prompt.answers == (None,)
    assert prompt.error == "the question is empty"


def test_user_text_cannot_close_the_turn():
    tokenizer = make_tokenizer(CHAT)
    [prompt] = PromptBuilder(tokenizer, 1000).score_prompts([request("beta<end>gamma")])
    assert prompt_ids(prompt).count(tokenizer.convert_tokens_to_ids("<end>")) == 1
    assert tokenizer.decode(prompt.passage) == "beta<end>gamma"


def test_closed_book_prompt_names_no_passage():
    builder = PromptBuilder(make_tokenizer(CHAT), 1000)
    [prompt] = builder.score_prompts([request(None)])
    assert "assage" not in builder.tokenizer.decode(prompt_ids(prompt))


def test_generation_context_is_limited_by_characters_then_by_window():
    builder = PromptBuilder(make_tokenizer(CHAT), 200)
    asked = GenerationRequest("why?", ("1" * 30, "2" * 300))
    by_characters, by_window = (builder.generation_prompts([asked], 20, characters)[0] for characters in (40, 1000))
    assert "1" * 30 + "\n\n" + "2" * 8 + "\n\nQuestion" in builder.tokenizer.decode(by_characters)
    assert len(by_window) == 180
    assert builder.tokenizer.decode(by_window).endswith("why?<end>\n<bot>\n")


def test_generation_question_beyond_the_window_is_refused():
    with pytest.raises(ArmorError, match="exceed the window of 100 tokens"):
        PromptBuilder(make_tokenizer(CHAT), 100).generation_prompts([GenerationRequest("why?" * 40, ())], 20, 100)


def test_template_that_loses_the_message_is_refused():
    with pytest.raises(ArmorError, match="exactly once"):
        PromptBuilder(make_tokenizer("<user>{{ messages[0]['content'] | upper }}<bot>"), 100)


def test_first_line_is_the_answer_after_a_plain_prompt_only():
    assert PromptBuilder(make_tokenizer(), 1000).clean_answer(" yes\nQuestion: more") == "yes"
    assert PromptBuilder(make_tokenizer(CHAT), 1000).clean_answer(" yes\nand no") == "yes\nand no"


def test_chat_text_equals_what_local_engines_ask():
    builder = PromptBuilder(make_tokenizer(CHAT), 1000)
    asked = GenerationRequest("why?", ("alpha", "beta"))
    [ids] = builder.generation_prompts([asked], 10, 100)
    assert builder.tokenizer.decode(ids) == f"<s><user>{chat_text(asked, 100)}<end>\n<bot>\n"
