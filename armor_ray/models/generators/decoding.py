"""Decoding of many prompts at once: one unpadded prefill, then one token of every unfinished answer per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from armor_ray.models.generators.attention import Attention, CacheFillingAttention, KeyValueCache
from armor_ray.models.generators.packing import Ids, PackedRow

Choose = Callable[[Tensor, Sequence[int]], list[int]]
"""The next token of each row of logits [rows, vocabulary], given which prompt each row belongs to."""


def most_likely(logits: Tensor, prompts: Sequence[int]) -> list[int]:
    """Greedy search."""
    return logits.argmax(-1).tolist()


class NucleusSampling:
    """Draws from the smallest set of tokens that holds `top_p` of the probability at `temperature` (Holtzman et al., 2020).

    Every prompt has a random stream of its own, so what is drawn for it does not depend on its company.

    Args:
        temperature: above 0.
        top_p: in (0, 1].
        seeds: one a prompt, 64 bits.
    """

    def __init__(self, temperature: float, top_p: float, seeds: Sequence[int]) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, logits: Tensor, prompts: Sequence[int]) -> list[int]:
        """See `Choose`."""
        probabilities, tokens = (logits.float().cpu() / self._temperature).softmax(-1).sort(-1, descending=True)
        before = probabilities.cumsum(-1) - probabilities
        nucleus = probabilities.masked_fill(before >= self._top_p, 0.0)
        drawn = [int(torch.multinomial(row, 1, generator=self._streams[i])) for row, i in zip(nucleus, prompts, strict=True)]
        return [int(row[place]) for row, place in zip(tokens, drawn, strict=True)]


@torch.inference_mode()
def decode(
    model: Any, prompts: Sequence[Ids], max_new_tokens: int, end_ids: frozenset[int], choose: Choose = most_likely
) -> list[list[int]]:
    """Continuation of each prompt, token by token, up to and without the first of `end_ids`.

    Args:
        model: a causal language model whose attention implementation is `attention.NAME`.
        max_new_tokens: most tokens of a continuation.
        choose: picks each next token.
    """
    row = PackedRow()
    for prompt in prompts:
        row.add_block(prompt, ())
    cache = KeyValueCache([len(prompt) for prompt in prompts], max_new_tokens, model.device)
    last = [block.end - 1 for block in row.blocks]
    active = list(range(len(prompts)))
    tokens = choose(_logits(model, row.ids, row.positions, last, CacheFillingAttention(row.blocks, cache)), active)
    texts: list[list[int]] = [[] for _ in prompts]
    for step in range(max_new_tokens):
        going = [i for i, token in enumerate(tokens) if token not in end_ids]
        for i in going:
            texts[active[i]].append(tokens[i])
        if not going or step == max_new_tokens - 1:
            break
        active = [active[i] for i in going]
        cache.keep(going)
        logits = _logits(model, [tokens[i] for i in going], cache.lengths.tolist(), list(range(len(going))), cache)
        tokens = choose(logits, active)
        cache.grow()
    return texts


def _logits(model: Any, ids: Sequence[int], positions: Sequence[int], read: Sequence[int], packed: Attention) -> Tensor:
    """[rows, vocabulary]: of the next token after each row position in `read`."""
    return model(
        input_ids=torch.tensor([ids], device=model.device),
        position_ids=torch.tensor([positions], device=model.device),
        logits_to_keep=torch.tensor(read, device=model.device),
        use_cache=False,
        packed=packed,
    ).logits[0]
