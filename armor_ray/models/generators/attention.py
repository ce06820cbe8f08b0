"""Attention over packed rows, put in place of a transformers model's own.

One row [1, T] holds many sequences, so the position-wise layers run on all their tokens at once without padding, and only attention knows
which token belongs to which sequence. An `Attention` object with that knowledge is handed through the keywords of the model's forward.

Shape legend: T tokens of the row, B sequences, L cached tokens, H query heads, K key/value heads, G = H/K, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from armor_ray.models.generators.packing import Block

NAME = "armor_ray_packed"
_QUERY_CHUNK = 256


class Attention(Protocol):
    """Context vectors [1, T, H, D] of queries [1, H, T, D] over keys and values [1, K, T, D] in one layer."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """`window` is the layer's sliding window in tokens, the query included; None: unlimited."""


class TreeAttention:
    """A block's queries see the keys of its ancestors and, causally, of the block itself.

    Masks depend on lengths alone and are shared by all layers and equal-sized blocks of the row.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """See `Attention`."""
        output = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for block in self._blocks:
            spans = (*block.ancestors, (block.start, block.end))
            keys, values = (torch.cat([part[:, :, a:b] for a, b in spans], 2) for part in (key, value))
            context = self._context(query[:, :, block.start : block.end], keys, values, scale, window)
            output[:, block.start : block.end] = context.transpose(1, 2)
        return output

    def _context(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        size, total = query.shape[2], key.shape[2]
        if query.device.type == "cpu" and query.dtype == torch.bfloat16:
            # Plain matrix products reach twice the speed of the fused kernel here and differ from fp32 by no more than it does.
            ends = [*range(total - size + _QUERY_CHUNK, total, _QUERY_CHUNK), total]
            queries = (query * scale).split(_QUERY_CHUNK, 2)
            parts = zip(queries, ends, strict=True)
            return torch.cat([_grouped(q, key[:, :, :n], value[:, :, :n], self._mask(q, n, window)) for q, n in parts], 2)
        causal = size == total and (window is None or total <= window)
        mask = None if causal else self._mask(query, total, window)
        shared = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared)

    def _mask(self, query: Tensor, total: int, window: int | None) -> Tensor:
        """Additive [size, total]: the last `size` tokens of a path of `total` see what lies before them, at most `window` back."""
        size = query.shape[2]
        mask = self._masks.get((size, total, window))
        if mask is None:
            distance = torch.arange(total - size, total)[:, None] - torch.arange(total)
            hidden = (distance < 0) | (distance >= (window or total))
            mask = torch.zeros(size, total).masked_fill(hidden, float("-inf")).to(query.device, query.dtype)
            self._masks[size, total, window] = mask
        return mask


class CacheFillingAttention(TreeAttention):
    """Tree attention over whole prompts, one block each, that also files their keys and values."""

    def __init__(self, blocks: Sequence[Block], cache: KeyValueCache) -> None:
        super().__init__(blocks)
        self._cache = cache

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """See `Attention`."""
        self._cache.fill(layer, [(key[0, :, b.start : b.end], value[0, :, b.start : b.end]) for b in self._blocks])
        return super().attend(layer, query, key, value, scale, window)


class KeyValueCache:
    """Keys and values of B growing sequences, and the attention of their newest tokens.

    Args:
        lengths: tokens of each prompt.
        room: most tokens that will be appended to each.
    """

    def __init__(self, lengths: Sequence[int], room: int, device: torch.device) -> None:
        self.lengths = torch.tensor(lengths, device=device)
        self._capacity = max(lengths) + room
        self._rows = torch.arange(len(lengths), device=device)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def fill(self, layer: int, prompts: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Stores each prompt's keys and values, [K, length, D] both."""
        stores = []
        for parts in zip(*prompts, strict=True):
            store = parts[0].new_zeros(len(parts), parts[0].shape[0], self._capacity, parts[0].shape[2])
            for row, part in zip(store, parts, strict=True):
                row[:, : part.shape[1]] = part
            stores.append(store)
        self._layers[layer] = (stores[0], stores[1])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """See `Attention`; the row holds one new token of every sequence, which is stored at the sequence's length."""
        keys, values = self._layers[layer]
        keys[self._rows, :, self.lengths] = key[0].transpose(0, 1)
        values[self._rows, :, self.lengths] = value[0].transpose(0, 1)
        longest = int(self.lengths.max()) + 1
        distance = self.lengths[:, None] - torch.arange(longest, device=query.device)
        hidden = (distance < 0) | (distance >= (window or longest))
        mask = torch.zeros_like(hidden, dtype=query.dtype).masked_fill(hidden, float("-inf"))[:, None, None]
        context = _grouped(query.permute(2, 1, 0, 3) * scale, keys[:, :, :longest], values[:, :, :longest], mask)
        return context.permute(2, 0, 1, 3)

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all sequences but `rows`."""
        if len(rows) < len(self._rows):
            kept = torch.tensor(rows, device=self.lengths.device)
            self._rows = self._rows[: len(rows)]
            self.lengths = self.lengths[kept]
            self._layers = {layer: (keys[kept], values[kept]) for layer, (keys, values) in self._layers.items()}

    def grow(self) -> None:
        """Ends a step: every sequence is one token longer."""
        self.lengths = self.lengths + 1


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention of scaled queries [B, H, Q, D] over [B, K, L, D] as plain products; the G heads that share keys are folded into rows."""
    batch, heads, size, _ = query.shape
    groups, total = key.shape[1], key.shape[2]
    scores = query.reshape(batch, groups, -1, query.shape[3]) @ key.transpose(2, 3)
    weights = (scores.view(batch, heads, size, total) + mask).softmax(-1)
    return (weights.view(batch, groups, -1, total) @ value).view(batch, heads, size, -1)


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    packed: Attention,
    **unused: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in every attention layer; `packed` comes from the forward's keywords."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return packed.attend(module.layer_idx, query, key, value, scale, sliding_window), None


AttentionInterface.register(NAME, packed_attention)
