"""The transformers engine: exact answer log-likelihoods at the cost of each shared token once, and greedy generation in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from armor_ray.config import GeneratorConfig
from armor_ray.errors import ArmorError
from armor_ray.models.generators import attention
from armor_ray.models.generators.decoding import NucleusSampling, decode
from armor_ray.models.generators.packing import PackedRow, Path, grow_trees, pack_rows
from armor_ray.models.generators.prompts import PromptBuilder, usable_window
from armor_ray.models.generators.protocol import GenerationRequest, SampledText, Sampling, ScoreRequest, ScoreResult, WritingRequest
from armor_ray.models.generators.results import collect_results, scorable_paths
from armor_ray.models.hardware import choose_device, choose_dtype, dtype_name
from armor_ray.models.hub import loading, model_fingerprint, resolve_model

# Generation reads logits of one position per prompt, so it affords more tokens than a scoring pass.
_GENERATION_BUDGET_FACTOR = 4
_LOG_SOFTMAX_ROWS = 32  # small enough to stay in cache


class HfGenerator:
    """Scores by packed prefix trees (see `packing`): the questions of a passage share its pass, the answers of a pair their prompt.

    Args:
        config: `dtype` auto is bf16 where the hardware multiplies in it, else fp32; `batch_tokens` bounds one forward pass.

    Raises:
        ArmorError: no such model, a folder without weights, or an architecture whose attention the packed layout cannot reproduce.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.config = config
        self.device = choose_device()
        self.dtype = choose_dtype(config.dtype, self.device)
        source = resolve_model(config.model, config.revision)
        options = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        with loading(config.model):
            self.tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=self.dtype, **options)
        self.model = model.to(self.device).eval()
        window = usable_window(config.max_length, getattr(model.config, "max_position_embeddings", None))
        self.prompts = PromptBuilder(self.tokenizer, window)
        self._fingerprint = model_fingerprint(source, getattr(model.config, "_commit_hash", None))
        self._install_packed_attention()

    def identity(self) -> dict[str, Any]:
        """Engine, model fingerprint, dtype, prompt fingerprint and window."""
        return {
            "engine": "hf",
            "model": self._fingerprint,
            "dtype": dtype_name(self.dtype),
            "prompt": self.prompts.fingerprint(),
            "window": self.prompts.window,
        }

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Log-likelihoods in nats, log-softmax in fp32. The order and company of a request change its scores by rounding only."""
        prompts = self.prompts.score_prompts(requests)
        return collect_results(requests, prompts, self.score_paths(scorable_paths(prompts)))

    @torch.inference_mode()
    def score_paths(self, paths: Sequence[Path]) -> list[float]:
        """log p(answer | head + passage + question) of each path in nats."""
        totals = torch.zeros(len(paths), dtype=torch.float64)
        for row in pack_rows(grow_trees(paths), self.config.batch_tokens):
            totals.index_add_(0, torch.tensor(row.owners), self._token_log_likelihoods(row).double().cpu())
        return totals.tolist()

    def generate(self, requests: Sequence[GenerationRequest]) -> list[str]:
        """Greedy answers of at most `max_new_tokens` tokens, in the given order.

        Raises:
            ArmorError: a question that does not fit the window even without context.
        """
        prompts = self.prompts.generation_prompts(requests, self.config.max_new_tokens, self.config.context_characters)
        texts = [""] * len(prompts)
        for batch in self._generation_batches([len(prompt) for prompt in prompts], self.config.max_new_tokens):
            ids = decode(self.model, [prompts[i] for i in batch], self.config.max_new_tokens, self._end_ids())
            for i, text in zip(batch, self.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                texts[i] = self.prompts.clean_answer(text)
        return texts

    def write(self, requests: Sequence[WritingRequest], sampling: Sampling) -> list[SampledText | None]:
        """Replies drawn by nucleus sampling, in the given order; None where message and reply exceed the window."""
        prompts = self.prompts.writing_prompts([request.message for request in requests], sampling.max_new_tokens)
        fitting = [(i, prompt) for i, prompt in enumerate(prompts) if prompt is not None]
        replies: list[SampledText | None] = [None] * len(requests)
        for batch in self._generation_batches([len(prompt) for _, prompt in fitting], sampling.max_new_tokens):
            chosen = [fitting[place] for place in batch]
            choose = NucleusSampling(sampling.temperature, sampling.top_p, [requests[i].seed for i, _ in chosen])
            ids = decode(self.model, [prompt for _, prompt in chosen], sampling.max_new_tokens, self._end_ids(), choose)
            texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
            for (i, _), row, text in zip(chosen, ids, texts, strict=True):
                replies[i] = SampledText(text.strip(), cut=len(row) == sampling.max_new_tokens)
        return replies

    def _token_log_likelihoods(self, row: PackedRow) -> Tensor:
        """fp32 log-likelihood of each target of the row, [A]; the output head runs on the positions before the answers' tokens only."""
        logits = self.model(
            input_ids=torch.tensor([row.ids], device=self.device),
            position_ids=torch.tensor([row.positions], device=self.device),
            logits_to_keep=torch.tensor(row.sources, device=self.device),
            use_cache=False,
            packed=attention.TreeAttention(row.blocks),
        ).logits[0]
        targets = torch.tensor(row.targets, device=self.device)
        parts = zip(logits.split(_LOG_SOFTMAX_ROWS), targets.split(_LOG_SOFTMAX_ROWS), strict=True)
        return torch.cat([-torch.nn.functional.cross_entropy(part.float(), wanted, reduction="none") for part, wanted in parts])

    def _generation_batches(self, lengths: Sequence[int], max_new_tokens: int) -> Iterator[list[int]]:
        """Indices of prompts in batches of similar length, longest first, within the token budget (at least one each)."""
        budget = self.config.batch_tokens * _GENERATION_BUDGET_FACTOR
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if batch and (len(batch) + 1) * (lengths[batch[0]] + max_new_tokens) > budget:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _end_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the generation config's, which may name several, else the tokenizer's."""
        ends = self.model.generation_config.eos_token_id
        ends = self.tokenizer.eos_token_id if ends is None else ends
        return frozenset() if ends is None else frozenset(ends if isinstance(ends, list) else [ends])

    @torch.inference_mode()
    def _install_packed_attention(self) -> None:
        """Replaces the model's attention and compares both once: some architectures bias or cap attention in their own way."""
        where, hint = self.config.model, "use generator.engine: vllm"
        if getattr(self.model.config, "attn_logit_softcapping", None) is not None:
            raise ArmorError("the hf engine cannot run a model with attention soft-capping", where=where, hint=hint)
        draw = torch.randint(0, len(self.tokenizer), (64,), generator=torch.Generator().manual_seed(0)).tolist()
        paths = [Path(tuple(draw[:8]), tuple(draw[8:40]), tuple(draw[end - 8 : end]), tuple(draw[56:60])) for end in (48, 56)]
        own = [self._own_log_likelihood(path) for path in paths]
        try:
            self.model.set_attn_implementation(attention.NAME)
            packed = self.score_paths(paths)
        except (TypeError, ValueError) as error:
            raise ArmorError("the hf engine cannot run this architecture", where=where, hint=hint) from error
        for expected, value in zip(own, packed, strict=True):
            if abs(expected - value) > (1e-2 if self.dtype == torch.float32 else 2e-2 * abs(expected)):
                raise ArmorError(
                    f"the hf engine does not reproduce this model ({value:.3f} for {expected:.3f} nats)", where=where, hint=hint
                )

    def _own_log_likelihood(self, path: Path) -> float:
        ids = torch.tensor([[*path.head, *path.passage, *path.question, *path.answer]], device=self.device)
        logits = self.model(input_ids=ids, use_cache=False).logits[0, -len(path.answer) - 1 : -1]
        return logits.float().log_softmax(-1).gather(1, ids[0, -len(path.answer) :, None]).sum().item()
