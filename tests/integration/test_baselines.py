"""Rerankers through real HTTP and tiny random models, and baseline rows through the whole pipeline on Ray.

The published models (BGE reranker, DeBERTa-MNLI, RankGPT's and UtilityQwen's LLMs) cannot be had here. Their code paths run on tiny random
models of the same architectures and on a loopback server that speaks OpenAI's chat protocol, so nothing is said about their quality.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pipeline_cases import Tiny, manifest, summary
from training_cases import WORDS
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from armor_ray.config import GeneratorConfig, JudgeConfig
from armor_ray.config_baselines import CrossEncoderRerankerConfig, EndpointConfig
from armor_ray.errors import ArmorError
from armor_ray.evaluation.trec import read_run
from armor_ray.judges.blocking import BlockingChat
from armor_ray.models.entailment import EntailmentModel
from armor_ray.models.generators.openai import OpenAIGenerator
from armor_ray.models.generators.protocol import GenerationRequest
from armor_ray.retrieval.rerankers import build_reranker
from armor_ray.retrieval.rerankers.listwise import ListwiseReranker
from armor_ray.retrieval.rerankers.tools import Faults, Tools

Body = dict[str, Any]
PAIRS = [("w1 w2", "w3 w4 w5"), ("w1 w2", "w9"), ("w7", "w8 w9 w10 w11 w12 w13")]
NO_SCORES = np.zeros(0, np.float32)


class ChatServer:
    """OpenAI's chat protocol on loopback; remembers request bodies."""

    def __init__(self, reply: Callable[[Body], Body]) -> None:
        self.requests: list[Body] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append(body)
                content = json.dumps(reply(body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def completion(*texts: str, logprobs: tuple[float, ...] = ()) -> Body:
    """A chat completion with one choice a text; the token log-likelihoods are the same for each."""
    content = [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in logprobs]
    choices = [
        {
            "index": i,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
            "logprobs": {"content": content} if content else None,
        }
        for i, text in enumerate(texts)
    ]
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}


def most_common_words_first(body: Body) -> Body:
    """A judge: orders the shown passages by how many words they share with the question; asked for anything else, it chats."""
    prompt = body["messages"][-1]["content"]
    shown = re.findall(r"^\[(\d+)\] (.*)$", prompt, re.MULTILINE)
    if not shown:
        return completion("Sure, I will help.")
    question = set(re.findall(r"Question: (.*)", prompt)[0].split())
    order = sorted(shown, key=lambda passage: -len(question & set(passage[1].split())))
    return completion(" > ".join(f"[{number}]" for number, _ in order))


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Body], Body]], ChatServer]]:
    servers: list[ChatServer] = []

    def start(reply: Callable[[Body], Body]) -> ChatServer:
        servers.append(ChatServer(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def classifier(folder: Path, tokenizer: Path, **options: Any) -> Path:
    """A tiny random BERT for sequence classification."""
    words = AutoTokenizer.from_pretrained(tokenizer)
    words.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "initializer_range": 0.3}
    BertForSequenceClassification(BertConfig(vocab_size=len(words), max_position_embeddings=24, **sizes, **options)).save_pretrained(folder)
    return folder


def plain_logits(folder: Path) -> np.ndarray:
    """Pair by pair, without padding, in float64."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertForSequenceClassification.from_pretrained(folder).double().eval()
    with torch.inference_mode():
        return np.stack([model(**tokenizer(*pair, return_tensors="pt")).logits[0].numpy() for pair in PAIRS])


def test_the_cross_encoder_by_its_config_gives_the_classifiers_logits(tiny_bert, tmp_path):
    folder = classifier(tmp_path / "reranker", tiny_bert, num_labels=1)
    config = CrossEncoderRerankerConfig(kind="cross-encoder", model=str(folder), max_length=24)
    reranker = build_reranker(config, Tools(unused, unused, {}))
    found = [reranker.rerank(question, [passage], NO_SCORES)[0] for question, passage in PAIRS]
    np.testing.assert_allclose(found, plain_logits(folder)[:, 0], atol=1e-5)


def unused(*_: Any) -> Any:
    raise AssertionError("a cross-encoder asks no endpoint")


def test_entailment_is_read_by_its_labels_name(tiny_bert, tmp_path):
    """MNLI models disagree on the order of their labels; batches of one and of three give the same."""
    folder = classifier(tmp_path / "nli", tiny_bert, id2label={0: "NEUTRAL", 1: "ENTAILMENT", 2: "CONTRADICTION"})
    logits = plain_logits(folder)
    expected = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[:, 1]
    model = EntailmentModel.load(str(folder))
    np.testing.assert_allclose(model.probabilities(PAIRS), expected, atol=1e-5)
    np.testing.assert_allclose(model.probabilities(PAIRS, batch_tokens=1), expected, atol=1e-5)
    with pytest.raises(ArmorError, match="no label 'entailment'"):
        EntailmentModel.load(str(classifier(tmp_path / "other", tiny_bert, num_labels=3)))


def test_rank_gpt_over_http(serve, tmp_path):
    server = serve(most_common_words_first)
    passages = ["w1 w9", "w7 w8", "w1 w2 w3", "w1 w2"]
    with BlockingChat(JudgeConfig(base_url=server.url, model="m"), tmp_path / "chat.sqlite", max_tokens=64) as chat:
        faults = Faults()
        scores = ListwiseReranker(chat, 3, 1, 300, faults).rerank("w1 w2 w3", passages, NO_SCORES)
    np.testing.assert_array_equal(np.argsort(-scores), [2, 3, 0, 1])
    assert not faults.counts()
    assert [body["temperature"] for body in server.requests] == [0.0, 0.0]


def test_sampled_answers_carry_their_likelihood(serve):
    """Mean over the tokens, from one request for all samples; an endpoint without log-probabilities is refused."""
    server = serve(lambda body: completion(*[f" answer {i} " for i in range(body["n"])], logprobs=(-1.0, -2.0) if body["n"] == 3 else ()))
    generator = OpenAIGenerator(GeneratorConfig(engine="openai", model="m", base_url=server.url, max_new_tokens=5))
    samples = generator.sample(GenerationRequest("q", ("p",)), 3)
    assert [(sample.text, sample.log_likelihood) for sample in samples] == [(f"answer {i}", -1.5) for i in range(3)]
    assert {name: server.requests[0][name] for name in ("n", "temperature", "logprobs", "max_tokens")} == {
        "n": 3,
        "temperature": 1.0,
        "logprobs": True,
        "max_tokens": 5,
    }
    with pytest.raises(ArmorError, match="log-likelihoods were asked for"):
        generator.sample(GenerationRequest("q", ()), 2)


def test_baselines_become_rows_of_the_results(tiny: Tiny, scored: Path, serve, tmp_path):
    """A trained recipe, fusions and rerankers over all of them, in one run: rows with differences to Base, run files, counted faults."""
    server = serve(most_common_words_first)
    own = replace(tiny, root=tmp_path)
    own.copy(scored, "w")
    reranker = classifier(tmp_path / "reranker", tiny.encoder, num_labels=1)
    endpoint = EndpointConfig(model="m", base_url=server.url).model_dump()
    said: list[str] = []
    workspace = own.run(
        "w",
        until="evaluate",
        say=said.append,
        training={"epochs": 1, "interpolate": []},
        sweep={"parameters": {}},
        evaluation={"recipes": ["armor"], "generation_questions": 0, "hard_pool": 20, "latency_questions": 2},
        baselines={
            "first_stages": [
                {"kind": "bi-encoder", "name": "tiny", "model": str(tiny.encoder)},
                {"kind": "fusion", "of": ["tiny", "bm25"]},
                {"kind": "fusion", "name": "rrf", "of": ["armor", "tiny"], "method": "reciprocal-rank"},
            ],
            "rerankers": [
                {"kind": "cross-encoder", "model": str(reranker), "max_length": 24, "over": ["bm25", "tiny+bm25"], "depth": 5},
                {"kind": "listwise", "name": "rankgpt", "endpoint": endpoint, "over": ["armor"], "depth": 8, "window": 6, "step": 3},
                {"kind": "pointwise", "endpoint": endpoint, "over": ["rrf"], "depth": 2},
            ],
        },
    )
    values = {(row["method"], row["metric"]): row["value"] for row in summary(workspace)}
    names = ["tiny", "tiny+bm25", "rrf", "bm25>cross-encoder", "tiny+bm25>cross-encoder", "armor>rankgpt", "rrf>pointwise"]
    assert [name for name in names if (name, "R@3") in values and (name, "R@3 vs base") in values] == names
    questions = manifest(workspace, "examples")["rows"]["test"]
    # The judge cannot grade: every pointwise reply is counted, in the corpus and in the pools, and the order stays as it was.
    assert manifest(workspace, "reports")["details"]["faults"] == {"rrf>pointwise": {"unreadable judgement": 4 * questions}}
    assert any(f"rrf>pointwise could not use {4 * questions} × unreadable judgement" in line for line in said)
    for metric in ("MAP", "pool:MAP"):
        assert values["rrf>pointwise", metric] == values["rrf", metric]
    assert values["armor>rankgpt", "pool:R@1"] > values["armor", "pool:R@1"]
    assert all((name, "latency_ratio") in values for name in names)
    # Latencies come from requests of their own: what a ranking asks for, too, is asked for twice.
    asked = Counter(json.dumps(body["messages"]) for body in server.requests)
    assert max(asked.values()) == 2
    # The judge's order is that of shared words, which is how this corpus was made.
    assert values["armor>rankgpt", "R@1"] > values["armor", "R@1"]
    runs = {name: read_run(workspace / "reports" / "runs" / f"{name.replace('>', '~')}-0.trec") for name in ("bm25", "bm25>cross-encoder")}
    for question, ranked in runs["bm25"].items():
        again = [row for row, _ in runs["bm25>cross-encoder"][question]]
        assert sorted(again[:5]) == sorted(row for row, _ in ranked[:5])
        assert again[5:] == [row for row, _ in ranked[5:]]
    assert set(WORDS) >= {word for body in server.requests for word in re.findall(r"\bw\d+\b", body["messages"][-1]["content"])}
