"""Gradient caching: the gradient of one large batch with the memory of a small one (GradCache; UAE trains both towers this way).

All texts are encoded chunk by chunk without a graph, the loss gives the gradient of every vector, and each chunk is encoded once more
to carry its vectors' gradient into the weights. Up to rounding that is the gradient of the undivided batch, dropout included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from armor_ray.models.bi_encoder import BiEncoder
from armor_ray.objectives.recipes import LossTerms
from armor_ray.training.host import Host, average_over_ranks

Chunk = tuple[Tensor, Tensor]
"""Token ids and attention mask, [n, L] each."""


def cached_backward(
    encoder: BiEncoder, chunks: Sequence[Chunk], loss: Callable[[Tensor], LossTerms], arithmetic: Callable[[], torch.autocast]
) -> LossTerms:
    """Adds the loss' gradient to that of the encoder's weights, and of whatever else the loss depends on.

    Args:
        chunks: T texts in all; one chunk at a time is encoded with a graph.
        loss: from vectors [T, D] to the loss.
        arithmetic: a new autocast for each pass over the encoder.
    """
    states, vectors = [], []
    for chunk in chunks:
        states.append(_random_state(encoder.device))
        with torch.no_grad(), arithmetic():
            vectors.append(encoder(*chunk))
    leaf_TD = torch.cat(vectors).requires_grad_()
    terms = loss(leaf_TD)
    terms.total.backward()
    assert leaf_TD.grad is not None
    gradients = leaf_TD.grad.split([len(part) for part in vectors])
    devices = [encoder.device] if encoder.device.type == "cuda" else []
    for chunk, state, gradient in zip(chunks, states, gradients, strict=True):
        with torch.random.fork_rng(devices=devices), arithmetic():
            _set_random_state(encoder.device, state)
            again = encoder(*chunk)
        again.backward(gradient)
    return terms


def average_gradients(parameters: Sequence[Tensor], host: Host) -> None:
    """What DDP's hooks do, once and by hand: they cannot follow several backward passes a step."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if host.world_size == 1 or not gradients:
        return
    flat = average_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]), host)
    for gradient, average in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(average.view_as(gradient))


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
