"""GainRAG (Jiang et al., ACL 2025): a selector trained on gains, beside a passage that the language model writes from memory.

The selector is a cross-encoder that learned how much a passage lowers the perplexity of the reference answer, such as a reward model
trained with the utility `log_ratio`. The passage from memory competes with the retrieved ones: where it wins, retrieval adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from armor_ray.config_baselines import GainRerankerConfig
from armor_ray.retrieval.protocols import Chat
from armor_ray.retrieval.rerankers.cross_encoder import PairScorer, open_cross_encoder
from armor_ray.retrieval.rerankers.tools import Tools

_REPLY_TOKENS = 256
_REQUEST = "Write the background that is needed to answer the question, in at most 100 words. Write nothing else.\n\nQuestion: {question}"


class GainReranker:
    """Orders by the gain over the model's own knowledge: `selector(q, d) − selector(q, passage from memory)`; above 0: d adds to it."""

    def __init__(self, selector: PairScorer, chat: Chat) -> None:
        self._selector, self._chat = selector, chat

    def rerank(self, question: str, passages: Sequence[str], scores: np.ndarray) -> np.ndarray:
        """See `Reranker.rerank`."""
        memory = self._chat([{"role": "user", "content": _REQUEST.format(question=question)}])
        *retrieved, remembered = self._selector.score([(question, passage) for passage in (*passages, memory)])
        return np.array(retrieved, np.float32) - np.float32(remembered)


def build(config: GainRerankerConfig, tools: Tools) -> GainReranker:
    """Loads the selector and opens the endpoint.

    Raises:
        ArmorError: no such model.
    """
    return GainReranker(open_cross_encoder(config.model, config.max_length), tools.chat(config.endpoint, _REPLY_TOKENS))
