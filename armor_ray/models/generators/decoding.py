"""Greedy decoding of many prompts at once: one unpadded prefill, then one token of every unfinished answer per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from armor_ray.models.generators.attention import Attention, CacheFillingAttention, KeyValueCache
from armor_ray.models.generators.packing import Ids, PackedRow


@torch.inference_mode()
def decode_greedily(model: Any, prompts: Sequence[Ids], max_new_tokens: int, end_ids: frozenset[int]) -> list[list[int]]:
    """Most likely continuation of each prompt, token by token, up to and without the first of `end_ids`.

    Args:
        model: a causal language model whose attention implementation is `attention.NAME`.
        max_new_tokens: most tokens of a continuation.
    """
    row = PackedRow()
    for prompt in prompts:
        row.add_block(prompt, ())
    cache = KeyValueCache([len(prompt) for prompt in prompts], max_new_tokens, model.device)
    last = [block.end - 1 for block in row.blocks]
    tokens = _most_likely(model, row.ids, row.positions, last, CacheFillingAttention(row.blocks, cache))
    texts: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    for step in range(max_new_tokens):
        going = [i for i, token in enumerate(tokens) if token not in end_ids]
        for i in going:
            texts[active[i]].append(tokens[i])
        if not going or step == max_new_tokens - 1:
            break
        active = [active[i] for i in going]
        cache.keep(going)
        tokens = _most_likely(model, [tokens[i] for i in going], cache.lengths.tolist(), list(range(len(going))), cache)
        cache.grow()
    return texts


def _most_likely(model: Any, ids: Sequence[int], positions: Sequence[int], read: Sequence[int], packed: Attention) -> list[int]:
    """The next token after each row position in `read`."""
    logits = model(
        input_ids=torch.tensor([ids], device=model.device),
        position_ids=torch.tensor([positions], device=model.device),
        logits_to_keep=torch.tensor(read, device=model.device),
        use_cache=False,
        packed=packed,
    ).logits[0]
    return logits.argmax(-1).tolist()
