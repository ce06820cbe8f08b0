"""What a judge decides about one thing, whoever judged it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from armor_ray.judges.failures import Failure

#: Names of the judges that stand in where there is no endpoint.
KEYWORDS, LEXICAL = "keywords", "lexical"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one item and what it rests on.

    Attributes:
        judge: the model's name, or `KEYWORDS` or `LEXICAL` where no model judged.
        keep: whether the item passes the judge's thresholds; False when judging failed.
        scores: name → value in [0, 1]; flags are 0 or 1.
        failure: why there is no judgement; None when there is one.
    """

    judge: str
    keep: bool
    scores: Mapping[str, float]
    failure: Failure | None = None
