"""The engines on real models: hf and vllm against plain transformers, openai against a local server."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, MistralConfig

from armor_ray.config import GeneratorConfig
from armor_ray.errors import ArmorError
from armor_ray.models.generators import load_generator
from armor_ray.models.generators.protocol import GenerationRequest, Sampling, ScoreRequest, WritingRequest
from armor_ray.models.hub import resolve_model

PASSAGES = (
    "Integrated sensing and communication shares one waveform between radar and data. Its range resolution is c / 2B, 0.375 m at 400 MHz.",
    "A satellite in low Earth orbit at 600 km passes in a few minutes, so the link is handed over often.",
)
QUESTIONS = ("Which resolution has a bandwidth of 400 MHz?", "How high is the orbit?", "What is shared?")


def requests() -> list[ScoreRequest]:
    """Shared passages, several answers of unequal length, one-token answers, a lone pair and a closed book."""
    pairs = [(question, passage) for passage in PASSAGES for question in QUESTIONS]
    pairs += [(QUESTIONS[0], "A passage with a single question."), (QUESTIONS[1], None), (QUESTIONS[2], None)]
    answers = [("0.375 m", "0"), ("600 km above the ground",), ("one waveform between radar and data", "waveform", "a radar")]
    return [ScoreRequest(str(i), question, passage, answers[i % 3]) for i, (question, passage) in enumerate(pairs)]


def config(**changes) -> GeneratorConfig:
    return GeneratorConfig(**{"model": "demo/generator", "dtype": "float32", "max_length": 512, "max_new_tokens": 12, **changes})


@pytest.fixture(scope="module")
def hf():
    return load_generator(config())


@pytest.fixture(scope="module")
def plain():
    """Tokenizer and model as any user would load them."""
    folder = resolve_model("demo/generator")
    return AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def plain_prompt(tokenizer, question: str, passage: str | None) -> list[int]:
    text = f"Answer the question.\n\nQuestion:\n{question}"
    if passage is not None:
        text = f"Answer the question with the help of the passage.\n\nPassage:\n{passage}\n\nQuestion:\n{question}"
    chat = [{"role": "user", "content": text}]
    return tokenizer(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True), add_special_tokens=False)["input_ids"]


@torch.inference_mode()
def plain_score(tokenizer, model, request: ScoreRequest, answer: str) -> tuple[float, int]:
    """The authors' way: one sequence at a time, logits of every position."""
    prompt, ids = plain_prompt(tokenizer, request.question, request.passage), tokenizer(answer, add_special_tokens=False)["input_ids"]
    logits = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
    return sum(logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(ids)), len(ids)


def test_hf_equals_one_sequence_at_a_time(hf, plain):
    for request, result in zip(requests(), hf.score(requests()), strict=True):
        assert (result.key, result.passage_tokens_cut, result.error) == (request.key, 0, None)
        for answer, score in zip(request.answers, result.scores, strict=True):
            expected, tokens = plain_score(*plain, request, answer)
            assert score.log_likelihood == pytest.approx(expected, abs=1e-4)
            assert score.tokens == tokens


def test_scores_depend_neither_on_order_nor_on_company(hf):
    together = {result.key: result.scores for result in hf.score(requests())}
    shuffled = requests()
    random.Random(0).shuffle(shuffled)
    small = hf.config.model_copy(update={"batch_tokens": 256})
    alone = [result for request in shuffled for result in hf.score([request])]
    hf.config, usual = small, hf.config
    small_rows = hf.score(shuffled)
    hf.config = usual
    for result in (*alone, *small_rows):
        for score, expected in zip(result.scores, together[result.key], strict=True):
            assert score.log_likelihood == pytest.approx(expected.log_likelihood, abs=1e-4)


def test_faulty_requests_carry_an_error_and_leave_the_others_alone(hf):
    good = requests()[0]
    faulty = [
        ScoreRequest("long", good.question, good.passage, ("word " * 600, good.answers[0])),
        ScoreRequest("empty", "", good.passage, ("a",)),
    ]
    long, fine, empty = hf.score([faulty[0], good, faulty[1]])
    assert long.scores[0] is None
    assert "window has 512" in long.error
    assert long.scores[1].log_likelihood == pytest.approx(fine.scores[0].log_likelihood, abs=1e-4)
    assert fine.error is None
    assert (empty.scores, empty.error) == ((None,), "the question is empty")


def test_cut_passage_scores_as_the_shorter_passage(hf, plain):
    long = ScoreRequest("k", QUESTIONS[0], "word " * 700, ("0.375 m",))
    [result] = hf.score([long])
    words = 700 - result.passage_tokens_cut
    assert 300 < words < 512
    expected, _ = plain_score(*plain, ScoreRequest("k", long.question, "word " * (words - 1) + "word", ()), "0.375 m")
    assert result.scores[0].log_likelihood == pytest.approx(expected, abs=1e-4)


def test_bfloat16_stays_near_float32(hf):
    half = load_generator(config(dtype="bfloat16"))
    full = [score.log_likelihood for result in hf.score(requests()) for score in result.scores]
    got = [score.log_likelihood for result in half.score(requests()) for score in result.scores]
    assert max(abs(a - b) for a, b in zip(full, got, strict=True)) < 1.0


GENERATIONS = [
    GenerationRequest(QUESTIONS[1], PASSAGES),
    GenerationRequest(QUESTIONS[0], PASSAGES[:1]),
    GenerationRequest(QUESTIONS[2], ()),
]


# So cold that what is drawn is the most likely token, in which the engines agree.
SAMPLING = Sampling(temperature=0.001, top_p=0.9, max_new_tokens=10)
WRITINGS = [
    WritingRequest("Write one short sentence about beams.", seed=1),
    WritingRequest("Say only the word yes.", seed=2**63 - 1),
    WritingRequest("word " * 600, seed=3),
]


def test_hf_generates_what_plain_greedy_search_does(hf, plain):
    tokenizer, model = plain
    for request, text in zip(GENERATIONS, hf.generate(GENERATIONS), strict=True):
        prompt = torch.tensor([plain_prompt(tokenizer, request.question, "\n\n".join(request.passages) or None)])
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12)[0, prompt.shape[1] :]
        assert text == tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_generation_stops_at_the_end_of_turn_while_others_go_on(hf):
    short = GenerationRequest("Say only the word yes.", ())
    hf.config, usual = hf.config.model_copy(update={"max_new_tokens": 40}), hf.config
    alone = [hf.generate([request])[0] for request in (short, *GENERATIONS)]
    together = hf.generate([short, *GENERATIONS])
    hf.config = usual
    assert together == alone
    lengths = [len(hf.tokenizer(text)["input_ids"]) for text in together]
    assert min(lengths) < 40


def save_tiny(folder, model_config) -> str:
    """A random two-layer model of another family, with the demo tokenizer."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(model_config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_model("demo/generator")).save_pretrained(folder)
    return str(folder)


TINY: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_sliding_window_model_scores_and_generates_as_its_own_attention(tmp_path):
    folder = save_tiny(tmp_path, MistralConfig(**TINY, sliding_window=16, eos_token_id=2, initializer_range=0.5))
    generator = load_generator(config(model=folder))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    for request, result in zip(requests(), generator.score(requests()), strict=True):
        expected, _ = plain_score(tokenizer, model, request, request.answers[0])
        assert result.scores[0].log_likelihood == pytest.approx(expected, abs=1e-3)
    prompt = torch.tensor([plain_prompt(tokenizer, QUESTIONS[0], PASSAGES[0])])
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12)[0, prompt.shape[1] :]
    [text] = generator.generate([GenerationRequest(QUESTIONS[0], PASSAGES[:1])])
    assert text == tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_model_with_its_own_attention_arithmetic_is_refused(tmp_path):
    folder = save_tiny(tmp_path, Gemma2Config(**TINY, head_dim=8))
    with pytest.raises(ArmorError, match=r"soft-capping; use generator.engine: vllm"):
        load_generator(config(model=folder))


def test_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for engine in ("hf", "vllm"):
        with pytest.raises(ArmorError, match="without weights"):
            load_generator(config(engine=engine, model=str(tmp_path)))


VLLM_SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_generators import GENERATIONS, SAMPLING, WRITINGS, config, requests
from armor_ray.models.generators import load_generator
from armor_ray.models.generators.protocol import ScoreRequest
vllm = load_generator(config(engine="vllm"))
faulty = ScoreRequest("faulty", "why?", "passage", ("word " * 600, "yes"))
written = [text and [text.text, text.cut] for text in vllm.write(WRITINGS, SAMPLING)]
results = [[(s.log_likelihood, s.tokens) if s else None for s in r.scores] + [r.error] for r in vllm.score([*requests(), faulty])]
texts, window = vllm.generate(GENERATIONS), vllm.identity()["window"]
print("RESULT", json.dumps({"scores": results, "texts": texts, "window": window, "written": written}))
"""


def test_vllm_agrees_with_hf(hf):
    command = [sys.executable, "-c", VLLM_SCRIPT, str(Path(__file__).parent)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    lines = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, finished.stderr[-2000:]
    got = json.loads(lines[0].removeprefix("RESULT "))
    for expected, row in zip(hf.score(requests()), got["scores"], strict=False):
        assert row[-1] is None
        for score, (value, tokens) in zip(expected.scores, row[:-1], strict=True):
            assert value == pytest.approx(score.log_likelihood, abs=1e-2)
            assert tokens == score.tokens
    missing, scored, error = got["scores"][-1]
    assert missing is None
    assert scored is not None
    assert "answer 0" in error
    assert got["texts"] == hf.generate(GENERATIONS)
    assert got["window"] == hf.identity()["window"]
    assert got["written"] == [text and [text.text, text.cut] for text in hf.write(WRITINGS, SAMPLING)]
    assert [text is None for text in got["written"]] == [False, False, True]


class Server(HTTPServer):
    """Remembers what it was asked; answers with each status of `statuses` once, then with 200, and with `body` where that is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Endpoint)
        self.bodies: list[tuple[str, str | None, dict]] = []
        self.statuses: list[int] = []
        self.body: str | None = None


class Endpoint(BaseHTTPRequestHandler):
    """Echoes the question's last line."""

    server: Server

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, self.headers["Authorization"], body))
        status = self.server.statuses.pop() if self.server.statuses else 200
        text = "Answer to " + body["messages"][0]["content"].splitlines()[-1]
        payload: dict[str, Any] = {
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text + "\n"}}]
        }
        if status != 200:
            payload = {"error": {"message": f"bad key {self.headers['Authorization']}"}}
        data = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", **payload}).encode()
        data = self.server.body.encode() if self.server.body is not None else data
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def openai_config(server) -> GeneratorConfig:
    return config(engine="openai", model="m", base_url=f"http://127.0.0.1:{server.server_port}/v1")


def test_openai_generates_in_order_and_retries(endpoint):
    endpoint.statuses = [503]
    asked = [GenerationRequest(f"question {i}?", ("some passage",)) for i in range(9)]
    assert load_generator(openai_config(endpoint)).generate(asked) == [f"Answer to question {i}?" for i in range(9)]
    assert len(endpoint.bodies) == 10
    path, authorization, body = endpoint.bodies[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer sk-secret")
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 12)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_openai_refusal_is_one_line_without_the_key(endpoint, status):
    endpoint.statuses = [status] * 9
    with pytest.raises(ArmorError, match=f"HTTP {status}") as raised:
        load_generator(openai_config(endpoint)).generate([GenerationRequest("why?", ())])
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_openai_unreachable_endpoint_is_named(endpoint, monkeypatch):
    monkeypatch.setattr("armor_ray.models.generators.openai._RETRIES", 0)
    generator = load_generator(config(engine="openai", model="m", base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(ArmorError, match=r"127\.0\.0\.1:9.*cannot be reached"):
        generator.generate([GenerationRequest("why?", ())])


@pytest.mark.parametrize(
    "body", ["<p>busy</p>", "{}", '{"choices": []}', '{"choices": [{}]}', '{"choices": [{"message": {"content": 7}}]}', '{"choices": 3}']
)
def test_what_is_no_chat_completion_is_an_error_and_not_an_empty_answer(endpoint, body):
    endpoint.body = body
    with pytest.raises(ArmorError, match="not a chat completion"):
        load_generator(openai_config(endpoint)).generate([GenerationRequest("why?", ())])


def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "two words")
    with pytest.raises(ArmorError, match="OPENAI_API_KEY") as raised:
        load_generator(openai_config(endpoint))
    assert "two words" not in str(raised.value)


def test_openai_cannot_score(endpoint):
    with pytest.raises(ArmorError, match="cannot score"):
        load_generator(openai_config(endpoint)).score(requests())


def test_openai_needs_a_key_for_openai_itself(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ArmorError, match="OPENAI_API_KEY is not set"):
        load_generator(config(engine="openai", model="m"))
