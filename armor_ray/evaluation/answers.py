"""Metrics of generated answers against their reference answers: exact match, token F1 and ROUGE-L, one value per question."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Porter stemming off: "ranging" for "range" is another answer in a technical text.
_ROUGE = RougeScorer(["rougeL"], use_stemmer=False)


def answer_metrics(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """`EM`, `F1` and `ROUGE-L`: name → fp64 [Q] in [0, 1], each the best over a question's reference answers.

    Args:
        predictions: Q generated answers.
        references: per question its reference answers, at least one.
    """
    measures: dict[str, Callable[[str, str], float]] = {"EM": exact_match, "F1": token_f1, "ROUGE-L": rouge_l}
    return {
        name: np.array([max(measure(given, answer) for answer in answers) for given, answers in zip(predictions, references, strict=True)])
        for name, measure in measures.items()
    }


def normalise_answer(text: str) -> str:
    """SQuAD's normalisation: lower case, ASCII punctuation and the articles out, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1.0 when both are equal after normalisation, else 0.0."""
    return float(normalise_answer(prediction) == normalise_answer(answer))


def token_f1(prediction: str, answer: str) -> float:
    """SQuAD's F1 over normalised words as multisets, in [0, 1]; two empty answers agree."""
    given, wanted = normalise_answer(prediction).split(), normalise_answer(answer).split()
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))


def rouge_l(prediction: str, answer: str) -> float:
    """F-measure of the longest common subsequence of lower-cased words, in [0, 1]."""
    return float(_ROUGE.score(answer, prediction)["rougeL"].fmeasure)
