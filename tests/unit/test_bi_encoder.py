"""The bi-encoder: vectors, identity, and the exported folder as others read it."""

from __future__ import annotations

import json
import logging
import warnings

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from training_cases import WORDS, load_tiny
from transformers import AutoModel

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder, token_budget_batches
from armor_ray.models.packed_linear import PackedLinear

TEXTS = ["w1 w2 w3", "w4", " ".join(WORDS), "w5 w6 unknown w7", ""]


@pytest.fixture(scope="module", params=["mean", "cls"])
def encoder(request, tiny_bert):
    return load_tiny(tiny_bert, pooling=request.param)


def test_vectors_do_not_depend_on_the_batching(encoder):
    together = encoder.encode(TEXTS, "query")
    apart = np.concatenate([encoder.encode([text], "query") for text in TEXTS])
    tight = encoder.encode(TEXTS, "query", batch_tokens=16)
    np.testing.assert_allclose(apart, together, atol=1e-6)
    np.testing.assert_allclose(tight, together, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)


def test_encoding_nothing_gives_an_empty_matrix(encoder):
    assert encoder.encode([], "passage").shape == (0, 32)


def test_encoding_is_without_dropout_and_leaves_the_mode_alone(encoder):
    still = encoder.encode(TEXTS, "query")
    encoder.train()
    try:
        np.testing.assert_array_equal(encoder.encode(TEXTS, "query"), still)
        assert encoder.training
    finally:
        encoder.eval()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.0), (torch.float32, 1e-6)])
def test_a_frozen_encoder_gives_the_vectors_of_one_that_packs_for_every_batch(tiny_bert, dtype, tolerance):
    encoder = load_tiny(tiny_bert)
    expected = encoder.encode(TEXTS, "query", dtype=dtype)
    encoder.freeze(dtype)
    if dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert any(isinstance(module, PackedLinear) for module in encoder.modules())
    np.testing.assert_allclose(encoder.encode(TEXTS, "query", dtype=dtype), expected, rtol=0, atol=tolerance)


def test_token_ids_hold_the_prefix_and_are_cut_at_the_maximum(encoder):
    words = {word: i for i, word in enumerate(encoder.tokenizer.convert_ids_to_tokens(range(48)))}
    (row,) = encoder.tokenize(["w0"], "query")
    assert row == [words[token] for token in ("[CLS]", "query", ":", "w0", "[SEP]")]
    (row,) = encoder.tokenize(["w0"], "passage")
    assert row[1] == words["passage"]
    assert [len(row) for row in encoder.tokenize(TEXTS, "query")] == [7, 5, 24, 8, 4]
    assert encoder.count_truncated(TEXTS, "query") == 1


def test_padding(encoder):
    ids, mask = encoder.pad([[2, 8, 3], [2, 3]])
    assert ids.tolist() == [[2, 8, 3], [2, 3, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0]]


def test_pooling_by_hand(encoder):
    ids, mask = encoder.pad(encoder.tokenize(TEXTS[:2], "query"))
    with torch.no_grad():
        hidden = encoder.body(input_ids=ids[1:, :5]).last_hidden_state[0]
    pooled = hidden.mean(0) if encoder.identity.pooling == "mean" else hidden[0]
    np.testing.assert_allclose(encoder(ids, mask)[1].detach(), pooled / pooled.norm(), atol=1e-6)


def test_token_budgets():
    batches = list(token_budget_batches([3, 9, 3, 40, 2], 12))
    assert batches == [[3], [1], [0, 2, 4]]


class TestExport:
    def test_sentence_transformers_gives_equal_vectors_without_a_warning(self, encoder, tmp_path, caplog):
        encoder.save(tmp_path / "export")
        with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
            warnings.simplefilter("error")
            model = SentenceTransformer(str(tmp_path / "export"), device="cpu")
            vectors = {"query": model.encode(TEXTS), "passage": model.encode_document(TEXTS)}
            by_name = {"query": model.encode_query(TEXTS), "passage": model.encode(TEXTS, prompt_name="document")}
        # The library says so, once a process, of any default prompt.
        assert [record for record in caplog.records if "Default prompt name is set" not in record.message] == []
        assert (model.max_seq_length, model.similarity_fn_name) == (24, "cosine")
        for kind in ("query", "passage"):
            np.testing.assert_allclose(vectors[kind], encoder.encode(TEXTS, kind), atol=1e-6)
            np.testing.assert_allclose(by_name[kind], vectors[kind], atol=1e-6)

    def test_without_prefix_there_is_no_default_prompt(self, tiny_bert, tmp_path):
        plain = load_tiny(tiny_bert, query_prefix="", passage_prefix="")
        plain.save(tmp_path)
        model = SentenceTransformer(str(tmp_path), device="cpu")
        assert model.default_prompt_name is None
        np.testing.assert_allclose(model.encode(TEXTS), plain.encode(TEXTS, "query"), atol=1e-6)

    def test_automodel_loads_it_without_a_missing_weight(self, encoder, tmp_path):
        encoder.save(tmp_path)
        body, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report.values())
        for name, weight in body.state_dict().items():
            assert torch.equal(weight, encoder.body.state_dict()[name])

    def test_from_folder_keeps_vectors_and_identity(self, encoder, tmp_path):
        encoder.save(tmp_path)
        again = BiEncoder.from_folder(tmp_path)
        assert again.identity == encoder.identity
        np.testing.assert_array_equal(again.encode(TEXTS, "passage"), encoder.encode(TEXTS, "passage"))

    def test_an_adapted_encoder_still_names_the_weights_of_its_index(self, encoder, tmp_path):
        adapted = BiEncoder.from_folder(self._saved(encoder, tmp_path / "base"))
        with torch.no_grad():
            next(adapted.parameters()).add_(1.0)
        again = BiEncoder.from_folder(self._saved(adapted, tmp_path / "adapted"))
        assert again.identity.fingerprint() == encoder.identity.fingerprint()

    def _saved(self, encoder, folder):
        encoder.save(folder)
        return folder

    def test_a_folder_without_weights(self, encoder, tmp_path):
        encoder.save(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(ArmorError, match="without weights"):
            BiEncoder.from_folder(tmp_path)

    def test_a_folder_with_damaged_weights(self, encoder, tmp_path):
        encoder.save(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"no tensors here, only noise")
        with pytest.raises(ArmorError, match="cannot load the model"):
            BiEncoder.from_folder(tmp_path)

    def test_a_folder_that_we_did_not_write(self, tiny_bert):
        with pytest.raises(ArmorError, match=r"not an encoder exported by armor_ray"):
            BiEncoder.from_folder(tiny_bert)


class TestIdentity:
    def test_everything_that_changes_a_vector_changes_the_fingerprint(self, tiny_bert, tmp_path):
        base = load_tiny(tiny_bert)
        assert load_tiny(tiny_bert).identity.fingerprint() == base.identity.fingerprint()
        with torch.no_grad():
            next(base.parameters()).add_(1e-3)
        base.save(tmp_path)
        others = [load_tiny(tiny_bert, **options) for options in ({"pooling": "cls"}, {"query_prefix": ""}, {"max_length": 16})]
        prints = {encoder.identity.fingerprint() for encoder in (load_tiny(tiny_bert), load_tiny(tmp_path), *others)}
        assert len(prints) == 5

    def test_e5_models_get_their_prefixes_and_others_none(self, tiny_bert, tmp_path):
        e5 = tmp_path / "tiny-e5"
        e5.symlink_to(tiny_bert)
        identity = load_tiny(e5, query_prefix=None, passage_prefix=None).identity
        assert (identity.query_prefix, identity.passage_prefix) == ("query: ", "passage: ")
        identity = load_tiny(tiny_bert, query_prefix=None, passage_prefix=None).identity
        assert (identity.query_prefix, identity.passage_prefix) == ("", "")

    def test_a_length_beyond_the_positions_is_refused(self, tiny_bert):
        with pytest.raises(ArmorError, match="max_length 25 exceeds the model's 24 positions"):
            load_tiny(tiny_bert, max_length=25)

    def test_a_checkpoint_without_pooler_has_a_stable_fingerprint(self, tiny_bert, tmp_path):
        bare = AutoModel.from_pretrained(tiny_bert, add_pooling_layer=False)
        bare.save_pretrained(tmp_path)
        load_tiny(tiny_bert).tokenizer.save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bert"
        assert load_tiny(tmp_path).identity == load_tiny(tmp_path).identity == load_tiny(tiny_bert).identity
