"""What only the size of the data can refuse; checked as soon as it is known, before anything slow."""

from __future__ import annotations

from armor_ray.config import Config
from armor_ray.errors import ArmorError


def check_sizes(config: Config, num_passages: int, num_train: int) -> None:
    """Every `k` must find enough passages, and a training batch enough questions.

    Raises:
        ArmorError: one does not.
    """
    wanted = {
        "candidates.pool_size": config.candidates.pool_size,
        "candidates.picks.depth": config.candidates.picks.depth if config.candidates.picks else 0,
        "training.metric": config.training.metric_depth,
        "evaluation.ks": max(config.evaluation.ks),
        "evaluation.generation_top_k": config.evaluation.generation_top_k if config.evaluation.generation_questions else 0,
    }
    for key, k in wanted.items():
        if k > num_passages:
            hint = f"choose at most {num_passages}, or add documents"
            raise ArmorError(f"asks for {k} passages, the corpus has {num_passages}", where=key, hint=hint)
    if config.training.batch_size > num_train:
        message = f"a batch of {config.training.batch_size} questions, the training split has {num_train}"
        raise ArmorError(message, where="training.batch_size", hint=f"choose at most {num_train}, or add questions")
