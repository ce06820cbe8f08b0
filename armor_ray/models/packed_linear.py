"""Linear layers that only answer: their weights cast once, and on a CPU laid out once as its matrix multiplication reads them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TOKENS = 64
"""Rows that the layout is chosen for; any other number works, too."""


class PackedLinear(nn.Module):
    """A linear layer of a CPU, frozen, whose weight oneDNN packed.

    `nn.Linear` has oneDNN pack its bf16 weight again for every call, which is a third of the time of a short text, and leaves fp32 to
    MKL, which takes twice as long on AMD's processors. In bf16 the results are the same to the bit.

    Args:
        linear: of fp32 or bf16, on a CPU; is not changed.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        with torch.no_grad():
            self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TOKENS)
            self.bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] → [..., out] in the weight's dtype."""
        return torch.ops.mkldnn._linear_pointwise(inputs.to(self.weight.dtype), self.weight, self.bias, "none", [], "")


def freeze_linear_layers(body: nn.Module, dtype: torch.dtype) -> None:
    """Casts the weights of all linear layers, in place, and packs them on a CPU that can. The body can neither be trained, saved nor moved
    any more.

    Args:
        dtype: what the body computes in from now on, by autocast or because it is its own.
    """
    for module in list(body.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                child.to(dtype)
                # A subclass does something of its own in `forward`.
                if type(child) is nn.Linear and _packs(child.weight):
                    setattr(module, name, PackedLinear(child))


def _packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
