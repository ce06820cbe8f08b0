"""Golden vectors: what an encoder said at export, checked wherever it is loaded again.

A served encoder whose weights, tokenizer, prefix, pooling or arithmetic differ from the trained one still answers, only worse.
Nothing else notices that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from armor_ray.errors import ArmorError
from armor_ray.models.bi_encoder import BiEncoder

FILE = "golden.json"
NUM_TEXTS = 16
_MIN_COSINE = 0.9999
_HINT = "weights, tokenizer, prefix or arithmetic are not those of the export: train and promote again"


def write_golden(encoder: BiEncoder, questions: Sequence[str], folder: Path) -> None:
    """Stores the first 16 questions and their query vectors (fp32) as `golden.json` in an exported encoder's folder."""
    texts = list(questions[:NUM_TEXTS])
    if not texts:
        raise ArmorError("no questions to take golden vectors of", where=str(folder))
    vectors = encoder.encode(texts, "query")
    content = {"texts": texts, "vectors": [[float(value) for value in row] for row in vectors]}
    (folder / FILE).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def read_golden(folder: Path) -> tuple[list[str], np.ndarray]:
    """Texts and their vectors fp32 [n, D].

    Raises:
        ArmorError: the file is missing or malformed.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        texts, vectors = list(content["texts"]), np.asarray(content["vectors"], np.float32)
    except FileNotFoundError:
        raise ArmorError("the encoder has no golden vectors", where=str(path), hint="train and promote again") from None
    except (OSError, ValueError, TypeError, KeyError):
        raise ArmorError("golden vectors are not readable", where=str(path), hint="train and promote again") from None
    if vectors.ndim != 2 or not 0 < len(texts) == len(vectors):
        raise ArmorError(f"{len(texts)} golden texts, vectors of shape {vectors.shape}", where=str(path), hint="train and promote again")
    return texts, vectors


def check_golden(encoder: BiEncoder, folder: Path, tolerance: float = 1e-3) -> None:
    """Encodes the golden texts again and compares.

    Args:
        encoder: loaded from `folder`.
        folder: holds `golden.json`.
        tolerance: largest accepted absolute difference of a component; the cosine must also reach 0.9999.

    Raises:
        ArmorError: a vector differs; says which, by its number (logs hold no questions), and by how much.
    """
    texts, expected = read_golden(folder)
    if expected.shape[1] != encoder.dimension:
        message = f"golden vectors have dimension {expected.shape[1]}, the encoder gives {encoder.dimension}"
        raise ArmorError(message, where=str(folder / FILE), hint=_HINT)
    actual = encoder.encode(texts, "query")
    differences = np.abs(actual - expected).max(axis=1)
    cosines = (actual * expected).sum(axis=1) / (np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1))
    # Written so that NaN counts as a difference.
    wrong = ~((differences <= tolerance) & (cosines >= _MIN_COSINE))
    if wrong.any():
        worst = int(np.argmax(np.where(wrong, np.nan_to_num(differences, nan=np.inf), -1.0)))
        message = (
            f"the encoder does not reproduce {int(wrong.sum())} of {len(texts)} golden vectors "
            f"(number {worst} is off by {differences[worst]:.2g}, cosine {cosines[worst]:.5f})"
        )
        raise ArmorError(message, where=str(folder / FILE), hint=_HINT)
