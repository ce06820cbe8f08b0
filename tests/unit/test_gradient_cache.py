"""Shared towers: the cached gradient is that of the undivided batch, and both sides move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from training_cases import load_tiny, make_config, make_table, train

from armor_ray.objectives import Objective
from armor_ray.training.batches import Batcher
from armor_ray.training.gradient_cache import cached_backward
from armor_ray.training.state import RetrieverStep

SHARED = {"recipe": "armor_uae", "towers": "shared"}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("dropout", [False, True])
def test_cached_gradients_equal_those_of_the_whole_batch(tiny_bert: Path, size: int, dropout: bool) -> None:
    encoder = load_tiny(tiny_bert).double()
    table = make_table(load_tiny(tiny_bert))
    config = make_config(objective=SHARED)
    module = RetrieverStep(encoder, Objective(config.objective, 4).double())
    questions = np.array([0, 3, 5, 8])
    inputs = Batcher(table, table.train, "positives", encoder, shared=True, rewarded=True).build(questions, questions)
    chunks = module.text_chunks(inputs, size)
    module.train(dropout)

    torch.manual_seed(5)
    # The undivided batch, encoded as the cache's first pass is: dropout follows the order in which texts are encoded.
    plain = module.loss(inputs, torch.cat([encoder(*chunk) for chunk in chunks]), True)
    plain.total.backward()
    expected = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()

    torch.manual_seed(5)
    no_autocast = lambda: torch.autocast("cpu", enabled=False)  # noqa: E731
    terms = cached_backward(encoder, chunks, lambda vectors: module.loss(inputs, vectors, True), no_autocast)
    assert terms.total.item() == pytest.approx(plain.total.item(), abs=1e-12)
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-9, rtol=1e-6)
    assert any(gradient.abs().max() > 1e-3 for gradient in found.values())


def test_encoding_passages_gives_the_loss_of_the_frozen_ones_before_any_step(tiny_bert: Path) -> None:
    """Same vectors, same masks: only where the gradient goes differs."""
    encoder = load_tiny(tiny_bert)
    table = make_table(encoder)
    config = make_config(objective=SHARED)
    module = RetrieverStep(encoder, Objective(config.objective, 4)).eval()
    questions = np.array([1, 2, 6, 7])
    losses = [
        module(Batcher(table, table.train, "pools", encoder, shared=shared, rewarded=True).build(questions, questions), True).total.item()
        for shared in (False, True)
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_shared_towers_train_to_the_end_in_any_chunks(tiny_bert: Path, tmp_path: Path) -> None:
    table = make_table(load_tiny(tiny_bert))
    texts, vectors = table.texts_C[:8], []
    for size in (2, 64):
        config = make_config(objective=SHARED, training={"cache_texts": size})
        result = train(config, tmp_path / str(size), load_tiny(tiny_bert), table)
        vectors.append(result.encoder.encode(texts, "passage"))
    moved = np.abs(vectors[0] - load_tiny(tiny_bert).encode(texts, "passage")).max()
    assert moved > 0.01
    np.testing.assert_allclose(vectors[0], vectors[1], atol=moved / 50)
