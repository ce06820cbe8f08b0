"""LoRA and weight-space interpolation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_cases import load_tiny, make_config, make_table, train, weights_of
from transformers import AutoModel

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.training.interpolation import best_interpolation, interpolate
from armor_ray.training.lora import merged

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]


@pytest.fixture(scope="module")
def base(tiny_bert):
    return load_tiny(tiny_bert)


@pytest.fixture(scope="module")
def table(base):
    return make_table(base)


class TestLora:
    @pytest.fixture(scope="class")
    def adapted(self, tiny_bert, table, tmp_path_factory):
        config = make_config(training={"lora": {"rank": 4, "alpha": 8}, "learning_rate": 1e-2})
        return train(config, tmp_path_factory.mktemp("lora"), load_tiny(tiny_bert), table).encoder

    def test_only_adapters_train_and_the_pooler_has_none(self, adapted, base):
        before = weights_of(base)
        for name, weight in weights_of(adapted).items():
            original = name.replace("body.base_model.model.", "body.").replace(".base_layer", "")
            if "lora_" not in name:
                assert torch.equal(weight, before[original])
        trainable = [name for name, p in adapted.named_parameters() if p.requires_grad]
        assert len(trainable) == 2 * 6 * 2  # A and B of six linear layers in two blocks
        assert all("lora_" in name and "pooler" not in name for name in trainable)
        assert all(p.abs().sum() > 0 for name, p in adapted.named_parameters() if "lora_B" in name)

    def test_merging_gives_the_adapters_vectors_and_leaves_the_adapters(self, adapted, base):
        expected = adapted.encode(TEXTS, "query")
        plain = merged(adapted)
        assert np.abs(expected - base.encode(TEXTS, "query")).max() > 1e-2
        np.testing.assert_allclose(plain.encode(TEXTS, "query"), expected, atol=1e-5)
        np.testing.assert_array_equal(adapted.encode(TEXTS, "query"), expected)
        np.testing.assert_array_equal(merged(adapted).encode(TEXTS, "query"), plain.encode(TEXTS, "query"))
        assert merged(plain) is plain

    def test_the_merged_export_is_a_plain_model(self, adapted, tmp_path):
        plain = merged(adapted)
        plain.save(tmp_path)
        body, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report.values())
        np.testing.assert_array_equal(BiEncoder.from_folder(tmp_path).encode(TEXTS, "query"), plain.encode(TEXTS, "query"))
        assert {f"body.{name}" for name, _ in body.named_parameters()} == set(weights_of(plain))

    def test_adapters_are_not_exported_unmerged(self, adapted, tmp_path):
        with pytest.raises(AssertionError, match="merged"):
            adapted.save(tmp_path)

    def test_resume_equals_the_uninterrupted_run(self, tiny_bert, table, tmp_path):
        config = make_config(training={"lora": {"rank": 4, "alpha": 8, "dropout": 0.2}, "dropout": True, "weight_decay": 0.1})
        whole = train(config, tmp_path / "whole", load_tiny(tiny_bert), table)

        def sink(row):
            if row["step"] == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "cut", load_tiny(tiny_bert), table, sink=sink)
        result = train(config, tmp_path / "cut", load_tiny(tiny_bert), table)
        assert result.progress.history == whole.progress.history
        assert all(torch.equal(weight, weights_of(whole.encoder)[name]) for name, weight in weights_of(result.encoder).items())


class ScriptedValidator:
    def __init__(self, curve):
        self._values = iter(curve)

    def recall(self, encoder):
        return {"R@3": next(self._values), "R@1": 0.0}


class TestInterpolation:
    @pytest.fixture(scope="class")
    def adapted(self, tiny_bert):
        encoder = load_tiny(tiny_bert)
        torch.manual_seed(1)
        with torch.no_grad():
            for p in encoder.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return encoder

    def test_ends_are_exact_and_half_is_halfway(self, base, adapted):
        before = weights_of(base), weights_of(adapted)
        for alpha in (0.0, 0.5, 1.0):
            for name, weight in weights_of(interpolate(base, adapted, alpha)).items():
                low, high = before[0][name], before[1][name]
                if alpha == 0.5:
                    torch.testing.assert_close(weight, (low + high) / 2)
                else:
                    assert torch.equal(weight, high if alpha else low)
        assert all(torch.equal(p, before[0][name]) for name, p in weights_of(base).items())
        assert all(torch.equal(p, before[1][name]) for name, p in weights_of(adapted).items())

    def test_the_best_of_the_grid_is_chosen_on_validation(self, base, adapted):
        found = best_interpolation(base, adapted, [1.0, 0.0, 0.5, 0.5], ScriptedValidator([0.3, 0.6, 0.5]), "R@3")
        assert found.alpha == 0.5
        assert [(point["alpha"], point["R@3"]) for point in found.curve] == [(0.0, 0.3), (0.5, 0.6), (1.0, 0.5)]
        expected = weights_of(interpolate(base, adapted, 0.5))
        assert all(torch.equal(p, expected[name]) for name, p in weights_of(found.encoder).items())

    def test_a_tie_goes_to_the_one_nearest_the_base(self, base, adapted):
        assert best_interpolation(base, adapted, [0.75, 0.25, 0.5], ScriptedValidator([0.4, 0.6, 0.6]), "R@3").alpha == 0.5

    def test_a_model_of_other_layers_is_refused(self, base, tiny_bert, table, tmp_path):
        adapters = train(make_config(training={"lora": {}, "epochs": 1}), tmp_path, load_tiny(tiny_bert), table).encoder
        with pytest.raises(ArmorError, match="different layers"):
            interpolate(base, adapters, 0.5)
