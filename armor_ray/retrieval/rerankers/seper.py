"""SePer (Dai et al., ICLR 2025): how far a passage moves the language model's belief towards the reference answer's *meaning*.

The belief is estimated from S sampled answers r_i with normalised weights `w_i ∝ exp(mean token log-likelihood of r_i)`:

    SePer(q, d) = max over a ∈ A_q of  Σ_i w_i · max(E(q r_i ⇒ q a), E(q a ⇒ q r_i))        E: an entailment model's probability
    ΔSePer(q, d) = SePer(q, d) − SePer(q)

Semantic perplexity falls as SePer rises, so passages are ordered by ΔSePer. It reads the reference answers: a row made with it is an
upper bound for methods that do not, as in the UAE paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from armor_ray.config_baselines import SePerRerankerConfig
from armor_ray.errors import ArmorError
from armor_ray.models.entailment import EntailmentModel
from armor_ray.models.generators.protocol import GenerationRequest, SampledAnswer
from armor_ray.retrieval.rerankers.tools import Sampler, Tools


class Entailment(Protocol):
    """A natural-language-inference model."""

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """P(the first text entails the second), fp32 [P]."""


class SePerReranker:
    """Orders by ΔSePer in [-1, 1]; above 0: the passage helps.

    Args:
        references: question → reference answers.
        samples: answers drawn for each passage and for the closed book.
    """

    def __init__(self, sampler: Sampler, entailment: Entailment, references: Mapping[str, Sequence[str]], samples: int) -> None:
        self._sampler, self._entailment, self._references = sampler, entailment, references
        self._samples = samples

    def rerank(self, question: str, passages: Sequence[str], scores: np.ndarray) -> np.ndarray:
        """See `Reranker.rerank`.

        Raises:
            ArmorError: a question without reference answers.
        """
        answers = self._references.get(question)
        if not answers:
            raise ArmorError("SePer needs reference answers", where=repr(question[:60]))
        requests = [GenerationRequest(question, ()), *(GenerationRequest(question, (passage,)) for passage in passages)]
        drawn = [self._sampler.sample(request, self._samples) for request in requests]
        texts = list(dict.fromkeys(sample.text for samples in drawn for sample in samples))
        entailment = dict(zip(texts, self._entailed(question, texts, answers), strict=True))
        closed, *opened = [self._belief(samples, entailment) for samples in drawn]
        return np.array(opened, np.float32) - np.float32(closed)

    def _entailed(self, question: str, texts: Sequence[str], answers: Sequence[str]) -> np.ndarray:
        """[T, A]: how far each distinct sampled answer and each reference entail one another, in either direction."""
        ahead = [(f"{question} {text}", f"{question} {answer}") for text in texts for answer in answers]
        both = self._entailment.probabilities([*ahead, *((second, first) for first, second in ahead)])
        return both.reshape(2, len(texts), len(answers)).max(0)

    def _belief(self, samples: Sequence[SampledAnswer], entailment: Mapping[str, np.ndarray]) -> float:
        likelihoods = np.array([sample.log_likelihood for sample in samples])
        return semantic_belief(likelihoods, np.stack([entailment[sample.text] for sample in samples]))


def build(config: SePerRerankerConfig, tools: Tools) -> SePerReranker:
    """Opens the endpoint and loads the entailment model.

    Raises:
        ArmorError: no such model, or one that does not know entailment.
    """
    entailment = EntailmentModel.load(config.entailment_model)
    return SePerReranker(tools.sampler(config.endpoint, config.max_new_tokens), entailment, tools.references, config.samples)


def semantic_belief(log_likelihoods_S: np.ndarray, entailment_SA: np.ndarray) -> float:
    """SePer in [0, 1]: the weight of the samples that mean a reference answer, for the best of the A references.

    Args:
        log_likelihoods_S: mean token log-likelihood of each sample, in nats.
        entailment_SA: probability that sample and reference entail one another.
    """
    weights_S = np.exp(log_likelihoods_S - log_likelihoods_S.max())
    return float((weights_S / weights_S.sum() @ entailment_SA).max())
