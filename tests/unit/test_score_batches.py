"""Which pairs are scored together."""

from __future__ import annotations

import pyarrow as pa

from armor_ray.stages.score import PAIRS_A_BATCH, Pairs, Question, missing_batches

QUESTIONS = [Question(f"question {i}", (f"answer {i}", "other")) for i in range(40)]
TEXTS = pa.chunked_array([[f"passage {i}" for i in range(20)]])
POOLS = [(example, passage) for example in range(40) for passage in range(20)]
PAIRS = Pairs("train", POOLS, [f"q{i}" for i in range(40)], QUESTIONS, TEXTS)


def test_all_pairs_come_once_by_passage():
    batches = missing_batches(PAIRS, set())
    assert [len(batch) for batch in batches] == [PAIRS_A_BATCH] * 3 + [800 - 3 * PAIRS_A_BATCH]
    assert [pair for batch in batches for pair in batch] == sorted((passage, example) for example, passage in POOLS)


def test_batches_that_a_kill_lost_are_scored_in_the_same_company_again():
    whole = missing_batches(PAIRS, set())
    known = {key for passage, example in whole[1] for key in PAIRS.keys(example, passage)}
    assert missing_batches(PAIRS, known) == [whole[0], *whole[2:]]


def test_a_pair_with_one_answer_unscored_is_missing():
    everything = {key for example, passage in POOLS for key in PAIRS.keys(example, passage)}
    assert missing_batches(PAIRS, everything) == []
    assert missing_batches(PAIRS, everything - {PAIRS.keys(7, 3)[1]}) == [[(3, 7)]]
