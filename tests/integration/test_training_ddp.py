"""Two gloo ranks against one process with the double batch.

The encoder computes in fp64. In fp32 the comparison would test rounding: Adam turns gradients that are zero but for rounding (those of
attention key biases) into steps of the size of the learning rate.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import ALL_RECIPES, PairTable, load_tiny, make_config, make_table, weights_of

from armor_ray.errors import ArmorError
from armor_ray.training.host import LocalHost
from armor_ray.training.loop import Trainer

CASES: dict[str, dict[str, Any]] = {
    **{recipe: {"objective": {"recipe": recipe, **({"lambda_q": 2.0} if recipe == "armor" else {})}} for recipe in ALL_RECIPES},
    "infonce, pools": {"objective": {"recipe": "infonce", "in_batch": "pools"}},
    "armor, pools, anchor": {"objective": {"recipe": "armor", "in_batch": "pools", "weight_anchor": 5.0, "rank_distillation": 0.5}},
    "released": {"objective": {"recipe": "armor", "preset": "released"}},
    "alternating": {"objective": {"recipe": "armor", "temperature_schedule": "alternating"}},
    "lora": {"objective": {"recipe": "armor"}, "training": {"lora": {"rank": 4, "alpha": 8}}},
    "refresh step": {"objective": {"recipe": "armor"}, "candidates": {"refresh": "step"}},
    "refresh epoch": {"objective": {"recipe": "armor"}, "candidates": {"refresh": "epoch"}},
    "shared towers": {"objective": {"recipe": "armor_uae", "towers": "shared"}, "training": {"cache_texts": 3}},
    "patience": {"objective": {"recipe": "infonce"}, "training": {"epochs": 6, "patience": 1, "learning_rate": 0.02}},
}
INTERRUPTED = {"objective": {"recipe": "armor"}, "training": {"dropout": True, "evaluations_per_epoch": 2}}


class GlooHost(LocalHost):
    """Two ranks with a common checkpoint folder; dies after `reports` reports."""

    world_size = 2

    def __init__(self, folder: Path, rank: int, reports: int = 99) -> None:
        super().__init__(folder)
        self.rank = rank
        self._left = reports

    def wrap(self, module):
        return torch.nn.parallel.DistributedDataParallel(module)

    def broadcast(self, value):
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def report(self, metrics, checkpoint):
        if self.rank == 0:
            super().report(metrics, checkpoint)
        torch.distributed.barrier()
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def run_case(sections: dict[str, Any], tiny_bert: Path, host: LocalHost) -> dict[str, Any]:
    """14 training questions in batches of 4 (two are left over), 7 validation questions (an odd one is left over)."""
    table = make_table(load_tiny(tiny_bert))
    score = PairTable()
    trainer = Trainer(make_config(**sections), table, load_tiny(tiny_bert).double(), host, score)
    result = trainer.run()
    return {
        "weights": weights_of(result.encoder),
        "temperatures": result.temperatures,
        "history": result.progress.history,
        "steps": result.progress.step,
        "pools": trainer._train.pools.pool_QN.tolist(),
        "scored": score.calls,
    }


def run_nan(tiny_bert: Path, host: LocalHost) -> str:
    """A likelihood that only one rank reads is NaN; returns the message, and that nothing moved."""
    table = make_table(load_tiny(tiny_bert))
    encoder = load_tiny(tiny_bert).double()
    trainer = Trainer(make_config(objective={"recipe": "armor"}), table, encoder, host)
    victim = trainer._train.plan.batch(0)[0][0]
    table.train.log_likelihood_QN[victim] = math.nan
    before = weights_of(encoder)
    try:
        trainer.run()
    except ArmorError as error:
        moved = any(not torch.equal(weight, before[name]) for name, weight in weights_of(encoder).items())
        return f"{error} (moved: {moved}, victim: q{victim})"
    return "no error"


def rank_main(rank: int, tiny_bert: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    outcomes = {name: run_case(sections, tiny_bert, GlooHost(subfolder(folder, name), rank)) for name, sections in CASES.items()}
    outcomes["nan"] = run_nan(tiny_bert, GlooHost(subfolder(folder, "nan"), rank))
    outcomes["whole"] = run_case(INTERRUPTED, tiny_bert, GlooHost(subfolder(folder, "whole"), rank))
    cut = subfolder(folder, "cut")
    with contextlib.suppress(KeyboardInterrupt):
        run_case(INTERRUPTED, tiny_bert, GlooHost(cut, rank, reports=1))
    outcomes["resumed"] = run_case(INTERRUPTED, tiny_bert, GlooHost(cut, rank))
    torch.save(outcomes, folder / f"rank-{rank}.pt")
    torch.distributed.destroy_process_group()


def subfolder(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="module")
def ranks(tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
        torch.multiprocessing.spawn(rank_main, args=(tiny_bert, folder), nprocs=2)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_equal_one_process_with_the_double_batch(name, ranks, tiny_bert, tmp_path):
    one = run_case(CASES[name], tiny_bert, LocalHost(tmp_path))
    for two in (ranks[0][name], ranks[1][name]):
        assert two["steps"] == one["steps"]
        assert two["weights"].keys() == one["weights"].keys()
        for key, weight in two["weights"].items():
            torch.testing.assert_close(weight, one["weights"][key], rtol=0, atol=1e-6)
        assert two["temperatures"] == pytest.approx(one["temperatures"], abs=1e-6)
        assert two["pools"] == one["pools"]
        assert [row.keys() for row in two["history"]] == [row.keys() for row in one["history"]]
        for row, expected in zip(two["history"], one["history"], strict=True):
            assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_both_ranks_hold_the_same_weights_history_and_pools(name, ranks):
    first, second = (rank[name] for rank in ranks)
    assert all(torch.equal(weight, second["weights"][key]) for key, weight in first["weights"].items())
    for key in ("temperatures", "history", "pools", "steps"):
        assert first[key] == second[key]


def test_learned_temperatures_moved_and_differ_by_schedule(ranks):
    taus = {name: ranks[0][name]["temperatures"]["infonce"] for name in ("infonce", "armor", "alternating")}
    assert taus["infonce"] == pytest.approx(0.05)
    assert len({round(tau, 6) for tau in taus.values()}) == 3


@pytest.mark.parametrize("name", ["refresh step", "refresh epoch"])
def test_only_rank_0_scores_new_pairs(name, ranks):
    assert ranks[0][name]["scored"]
    assert not ranks[1][name]["scored"]


def test_early_stop_is_taken_by_both_ranks(ranks):
    assert ranks[0]["patience"]["steps"] == ranks[1]["patience"]["steps"] < 18


def test_a_nan_that_one_rank_reads_stops_both_before_any_weight_moves(ranks):
    for rank in ranks:
        assert "training step 1: loss or gradient is not finite (nan" in rank["nan"]
        assert "moved: False" in rank["nan"]
        victim = rank["nan"].split("victim: ")[1].rstrip(")")
        assert f"{victim}, " in rank["nan"]


def test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one(ranks):
    for rank in ranks:
        assert rank["resumed"]["history"] == rank["whole"]["history"]
        assert rank["resumed"]["temperatures"] == rank["whole"]["temperatures"]
        assert all(torch.equal(weight, rank["whole"]["weights"][name]) for name, weight in rank["resumed"]["weights"].items())
