"""What the machine computes in."""

from __future__ import annotations

from typing import Literal

import torch

DtypeName = Literal["float32", "bfloat16"]


def choose_device() -> torch.device:
    """The current CUDA device when there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(dtype: Literal["auto", "float32", "bfloat16"], device: torch.device) -> torch.dtype:
    """The configured dtype; "auto" is bf16 where `device` multiplies in it natively, else fp32."""
    if dtype != "auto":
        return torch.bfloat16 if dtype == "bfloat16" else torch.float32
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = torch.cpu.get_capabilities()
        native = any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if native else torch.float32


def dtype_name(dtype: torch.dtype) -> DtypeName:
    """The dtype as the config spells it."""
    return "bfloat16" if dtype == torch.bfloat16 else "float32"
