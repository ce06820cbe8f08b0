"""The code paths of published encoders (BGE, SPLADE, ColBERT) on tiny random models of their architectures.

The published weights cannot be had here, so nothing is said about their quality; each path is held to plain transformers and numpy.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from training_cases import WORDS
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM

from armor_ray.config_baselines import BiEncoderStageConfig, LateInteractionStageConfig, SpladeStageConfig
from armor_ray.errors import ArmorError
from armor_ray.retrieval.first_stages import build_first_stage

PASSAGES = [" ".join(np.random.default_rng(row).choice(WORDS, 5 + row)) for row in range(7)]
QUESTIONS = ["w1 w2 w3", "w9", "w30 w31 w5 w6"]


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """A random BERT with its masked-language-model head."""
    folder = tmp_path_factory.mktemp("splade")
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=24, initializer_range=0.3, **sizes)).save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """The random BERT with a random token projection, saved as a late-interaction model."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("colbert")
    MultiVectorEncoder(str(tiny_bert)).save_pretrained(str(folder))
    return folder


def test_a_bi_encoder_with_prompts_is_the_models_own_cosine(tiny_bert):
    """Mean pooling, as sentence-transformers gives a plain folder; prompts stand before the text, and count."""
    config = BiEncoderStageConfig(kind="bi-encoder", model=str(tiny_bert), query_prompt="query: ", passage_prompt="passage: ", batch_size=2)
    found = build_first_stage(config, PASSAGES).score_matrix(QUESTIONS)
    questions = plain_mean_vectors(tiny_bert, [f"query: {text}" for text in QUESTIONS])
    passages = plain_mean_vectors(tiny_bert, [f"passage: {text}" for text in PASSAGES])
    np.testing.assert_allclose(found, questions @ passages.T, atol=1e-5)


def test_splade_is_the_masked_language_models_log_relu_maximum(splade):
    found = build_first_stage(SpladeStageConfig(kind="splade", model=str(splade), batch_size=3), PASSAGES).score_matrix(QUESTIONS)
    expected = term_weights(splade, QUESTIONS) @ term_weights(splade, PASSAGES).T
    assert expected.max() > 0
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_late_interaction_is_the_librarys_own_max_sim(colbert):
    """Scores of the whole corpus from the inverted token matrix against the library, pair by pair."""
    found = build_first_stage(LateInteractionStageConfig(kind="late-interaction", model=str(colbert)), PASSAGES).score_matrix(QUESTIONS)
    model = MultiVectorEncoder(str(colbert))
    expected = model.similarity(model.encode_query(QUESTIONS), model.encode_document(PASSAGES))
    np.testing.assert_allclose(found, np.asarray(expected), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "words"), [(SpladeStageConfig, "no masked-language-model head"), (LateInteractionStageConfig, "no token projection")]
)
def test_a_model_of_another_kind_gets_no_random_head(tiny_bert, kind, words):
    """The library would add an untrained head and go on."""
    name = kind.model_fields["kind"].annotation.__args__[0]
    with pytest.raises(ArmorError, match=words):
        build_first_stage(kind(kind=name, model=str(tiny_bert)), PASSAGES)


def test_a_missing_model_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"], "model_type": "bert"}))
    with pytest.raises(ArmorError, match="model folder without weights"):
        build_first_stage(SpladeStageConfig(kind="splade", model=str(tmp_path)), PASSAGES)


def plain_mean_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).double().eval()
    with torch.inference_mode():
        hidden = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy() for text in texts]
    return np.stack([vector / np.linalg.norm(vector) for vector in hidden])


def term_weights(folder: Path, texts: list[str]) -> np.ndarray:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertForMaskedLM.from_pretrained(folder).double().eval()
    with torch.inference_mode():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0].numpy() for text in texts]
    return np.stack([np.log1p(np.maximum(values, 0)).max(0) for values in logits])
