"""The transformers engine: exact answer log-likelihoods at the cost of each shared token once, and greedy generation in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from armor_ray.config import GeneratorConfig
from armor_ray.errors import ArmorError
from armor_ray.models.generators.packing import Ids, PackedRow, Path, TreeAttention, grow_trees, pack_rows, tree_attention
from armor_ray.models.generators.prompts import PromptBuilder, usable_window
from armor_ray.models.generators.protocol import GenerationRequest, ScoreRequest, ScoreResult
from armor_ray.models.generators.results import collect_results, scorable_paths
from armor_ray.models.hardware import choose_device, choose_dtype
from armor_ray.models.hub import loading, model_fingerprint, resolve_model

# Generation holds keys and values but only one token's activations per row, so it affords more tokens than a scoring pass.
_GENERATION_BUDGET_FACTOR = 4
_LOG_SOFTMAX_ROWS = 32  # small enough to stay in cache
_OWN_ATTENTION = "sdpa"

AttentionInterface.register(TreeAttention.NAME, tree_attention)


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
            model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=self.dtype, attn_implementation=_OWN_ATTENTION, **options)
        self.model = model.to(self.device).eval()
        window = usable_window(config.max_length, getattr(model.config, "max_position_embeddings", None))
        self.prompts = PromptBuilder(self.tokenizer, window)
        self._fingerprint = model_fingerprint(source, getattr(model.config, "_commit_hash", None))
        self._check_attention()

    def identity(self) -> dict[str, Any]:
        """Engine, model fingerprint, dtype, prompt fingerprint and window."""
        return {
            "engine": "hf",
            "model": self._fingerprint,
            "dtype": str(self.dtype).removeprefix("torch."),
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
        self.model.set_attn_implementation(TreeAttention.NAME)
        for row in pack_rows(grow_trees(paths), self.config.batch_tokens):
            totals.index_add_(0, torch.tensor(row.owners), self._token_log_likelihoods(row).double().cpu())
        return totals.tolist()

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> list[str]:
        """Greedy answers of at most `max_new_tokens` tokens, in the given order.

        Raises:
            ArmorError: a question that does not fit the window even without context.
        """
        prompts = self.prompts.generation_prompts(requests, self.config.max_new_tokens, self.config.context_characters)
        self.model.set_attn_implementation(_OWN_ATTENTION)
        texts = [""] * len(prompts)
        for batch in self._generation_batches([len(prompt) for prompt in prompts]):
            ids = self._generate_batch([prompts[i] for i in batch])
            for i, text in zip(batch, self.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                texts[i] = self.prompts.clean_answer(text)
        return texts

    def _token_log_likelihoods(self, row: PackedRow) -> Tensor:
        """fp32 log-likelihood of each target of the row, [A]; the output head runs on the positions before the answers' tokens only."""
        logits = self.model(
            input_ids=torch.tensor([row.ids], device=self.device),
            position_ids=torch.tensor([row.positions], device=self.device),
            logits_to_keep=torch.tensor(row.sources, device=self.device),
            use_cache=False,
            tree=TreeAttention(row, self.dtype, self.device),
        ).logits[0]
        targets = torch.tensor(row.targets, device=self.device)
        parts = zip(logits.split(_LOG_SOFTMAX_ROWS), targets.split(_LOG_SOFTMAX_ROWS), strict=True)
        return torch.cat([-torch.nn.functional.cross_entropy(part.float(), wanted, reduction="none") for part, wanted in parts])

    def _generation_batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of prompts in batches of similar length, longest first, within the token budget (at least one each)."""
        budget = self.config.batch_tokens * _GENERATION_BUDGET_FACTOR
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if batch and (len(batch) + 1) * (lengths[batch[0]] + self.config.max_new_tokens) > budget:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _generate_batch(self, prompts: Sequence[Ids]) -> Tensor:
        """New token ids [B, new], from left-padded prompts, so that every row's last column is its prompt's last token."""
        longest = max(len(prompt) for prompt in prompts)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=self.device)
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=self.config.max_new_tokens,
            eos_token_id=self.model.generation_config.eos_token_id or self.tokenizer.eos_token_id,
            pad_token_id=pad,
        )
        return self.model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)[:, longest:]

    @torch.inference_mode()
    def _check_attention(self) -> None:
        """Compares the packed layout with the model's own attention once: some architectures bias or cap attention in their own way."""
        where, hint = self.config.model, "use generator.engine: vllm"
        if getattr(self.model.config, "attn_logit_softcapping", None) is not None:
            raise ArmorError("the hf engine cannot score a model with attention soft-capping", where=where, hint=hint)
        draw = torch.randint(0, len(self.tokenizer), (64,), generator=torch.Generator().manual_seed(0)).tolist()
        paths = [Path(tuple(draw[:8]), tuple(draw[8:40]), tuple(draw[end - 8 : end]), tuple(draw[56:60])) for end in (48, 56)]
        try:
            packed = self.score_paths(paths)
        except (TypeError, ValueError) as error:
            raise ArmorError("the hf engine cannot score this architecture", where=where, hint=hint) from error
        self.model.set_attn_implementation(_OWN_ATTENTION)
        for path, value in zip(paths, packed, strict=True):
            ids = torch.tensor([[*path.head, *path.passage, *path.question, *path.answer]], device=self.device)
            logits = self.model(input_ids=ids, use_cache=False).logits[0, -len(path.answer) - 1 : -1]
            own = logits.float().log_softmax(-1).gather(1, ids[0, -len(path.answer) :, None]).sum().item()
            if abs(own - value) > (1e-2 if self.dtype == torch.float32 else 2e-2 * abs(own)):
                raise ArmorError(f"the hf engine does not reproduce this model ({value:.3f} for {own:.3f} nats)", where=where, hint=hint)
