"""The packed layout, without a model: every answer token must see its own path and nothing else."""

from __future__ import annotations

import itertools
import random

import torch

from armor_ray.models.generators.attention import TreeAttention
from armor_ray.models.generators.packing import PackedRow, Path, grow_trees, pack_rows


def random_paths(seed: int) -> list[Path]:
    """Two heads, passages with one to five questions (closed-book ones too), questions with one to three answers; ids are unique."""
    rng, counter = random.Random(seed), itertools.count()

    def ids(most: int) -> tuple[int, ...]:
        return tuple(next(counter) for _ in range(rng.randint(1, most)))

    paths = []
    for head in (ids(5), ids(3)):
        for passage in ((), *(ids(12) for _ in range(4))):
            for question in [ids(6) for _ in range(rng.randint(1, 5))]:
                paths += [Path(head, passage, question, ids(4)) for _ in range(rng.randint(1, 3))]
    rng.shuffle(paths)
    return paths


def visible(row: PackedRow, index: int) -> list[int]:
    """Ids that the token at `index` attends to, in order of position."""
    [block] = [block for block in row.blocks if block.start <= index < block.end]
    return [row.ids[i] for start, end in (*block.ancestors, (block.start, index + 1)) for i in range(start, end)]


def test_each_target_is_predicted_from_its_whole_path():
    for seed, budget in itertools.product(range(5), (20, 64, 10_000)):
        paths = random_paths(seed)
        seen: dict[int, list[int]] = {owner: [] for owner in range(len(paths))}
        for row in pack_rows(grow_trees(paths), budget):
            for source, target, owner in zip(row.sources, row.targets, row.owners, strict=True):
                path = paths[owner]
                scored = len(seen[owner])
                assert visible(row, source) == [*path.head, *path.passage, *path.question, *path.answer[:scored]]
                assert row.positions[source] == len(visible(row, source)) - 1
                seen[owner].append(target)
        assert [tuple(seen[owner]) for owner in range(len(paths))] == [path.answer for path in paths]


def test_shared_tokens_are_laid_out_once_and_rows_keep_the_budget():
    paths = random_paths(0)
    [row] = pack_rows(grow_trees(paths), 10_000)
    assert len(row.ids) == len(set(row.ids))
    widest = max(len(path.head + path.passage + path.question) + 12 for path in paths)
    rows = list(pack_rows(grow_trees(paths), widest))
    assert len(rows) > 1
    assert all(len(row.ids) <= widest for row in rows)


def test_equal_pairs_are_computed_once_and_scored_twice():
    twice = [Path((1,), (2,), (3,), (4, 5))] * 2
    [row] = pack_rows(grow_trees(twice), 100)
    assert row.owners == [0, 0, 1, 1]
    assert row.ids.count(3) == 1


def test_attention_equals_plain_attention_over_each_path():
    torch.manual_seed(0)
    [row] = pack_rows(grow_trees(random_paths(1)), 10_000)
    length = len(row.ids)
    query, key, value = torch.randn(1, 4, length, 8), torch.randn(1, 2, length, 8), torch.randn(1, 2, length, 8)
    for window in (None, 6):
        output = TreeAttention(row.blocks).attend(0, query, key, value, 0.3, window)
        for index in range(length):
            [block] = [block for block in row.blocks if block.start <= index < block.end]
            path = [i for start, end in (*block.ancestors, (block.start, index + 1)) for i in range(start, end)][-(window or length) :]
            for head in range(4):
                weights = (0.3 * key[0, head // 2, path] @ query[0, head, index]).softmax(0)
                torch.testing.assert_close(output[0, index, head], weights @ value[0, head // 2, path], atol=1e-5, rtol=1e-5)
