"""What vLLM raises, in its own words (0.32.0), and what becomes of it."""

from __future__ import annotations

import pytest
import torch

from armor_ray.errors import ArmorError
from armor_ray.models.generators.vllm_faults import mendable_faults

UNSUPPORTED = (
    "1 validation error for ModelConfig\n  Value error, Model architectures ['NoSuchForCausalLM'] are not supported for now. "
    "Supported architectures: dict_keys(['AfmoeForCausalLM', 'LlamaForCausalLM']) [type=value_error, input_value=ArgsKwargs((), {})]"
)
TOO_LONG = (
    "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the "
    "available KV cache memory (1.0 GiB). Based on the available memory, the estimated maximum model length is 8192. Try increasing "
    "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing `max_model_len`."
)
IN_USE = (
    "Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.8, 63.3 GiB). Decrease GPU "
    "memory utilization or reduce GPU memory used by other processes."
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ValueError(UNSUPPORTED),
            r"\(Model architectures \['NoSuchForCausalLM'\] are not supported\); use engine hf, or a model that vLLM supports",
        ),
        (
            ValueError(TOO_LONG),
            r"\(To serve .* \(131072\).* KV cache memory \(1.0 GiB\)\); use a smaller model .* lower generator.max_length",
        ),
        (ValueError(IN_USE), r"\(Free memory on device cuda:0 .* GPU memory utilization\); .* free memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), r"\(CUDA out of memory\); .* generator.batch_tokens"),
        (RuntimeError("Engine core initialization failed. See root cause above."), r"ARMOR_RAY_WORKER_LOGS=1"),
    ],
)
def test_what_a_user_can_mend_is_one_line_with_a_remedy(error: Exception, message: str) -> None:
    with pytest.raises(ArmorError, match=rf"^some/model: vLLM cannot run the model .*{message}") as caught, mendable_faults("some/model"):
        raise error
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("head size 7"), KeyError("out of memory")])
def test_what_is_a_bug_stays_one(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, mendable_faults("some/model"):
        raise error
    assert caught.value is error
