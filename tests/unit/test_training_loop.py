"""The loop in one process: resume, faults, best checkpoint, schedules."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from training_cases import ALL_RECIPES, load_tiny, make_config, make_table, train, weights_of

from armor_ray.config import TrainingConfig
from armor_ray.errors import ArmorError
from armor_ray.retrieval.lexical import Bm25
from armor_ray.training.batches import BatchPlan
from armor_ray.training.host import LocalHost
from armor_ray.training.loop import Trainer
from armor_ray.training.optimization import learning_rate, make_optimizers
from armor_ray.training.validation import Validator

SCHEDULES = {
    "joint": {"recipe": "armor"},
    "alternating": {"recipe": "armor", "temperature_schedule": "alternating"},
}


@pytest.fixture(scope="module")
def base(tiny_bert):
    return load_tiny(tiny_bert)


@pytest.fixture(scope="module")
def table(base):
    return make_table(base)


@pytest.fixture
def encoder(tiny_bert):
    return load_tiny(tiny_bert)


class Killed(Exception):
    pass


def killing_sink(step):
    def sink(row):
        if row["step"] == step and "loss" in row:
            raise Killed

    return sink


class TestResume:
    @pytest.mark.parametrize("schedule", SCHEDULES)
    @pytest.mark.parametrize("killed_at_step", [3, 4])
    def test_equals_the_uninterrupted_run_bit_for_bit(self, schedule, killed_at_step, tiny_bert, table, tmp_path):
        # 3 steps an epoch, evaluated (and kept) after 2 and 3: killed just after a step inside an epoch and just after its end.
        config = make_config(
            training={"dropout": True, "evaluations_per_epoch": 2, "epochs": 3, "schedule": "linear"}, objective=SCHEDULES[schedule]
        )
        whole = train(config, tmp_path / "whole", load_tiny(tiny_bert), table)
        with pytest.raises(Killed):
            train(config, tmp_path / "cut", load_tiny(tiny_bert), table, sink=killing_sink(killed_at_step))
        torch.manual_seed(12345)  # The new process has another random state.
        resumed = Trainer(config, table, load_tiny(tiny_bert), LocalHost(tmp_path / "cut"))
        assert resumed.progress.step == killed_at_step - 1
        result = resumed.run()
        assert result.progress.history == whole.progress.history
        assert result.temperatures == whole.temperatures
        assert result.validation == whole.validation
        assert weights_of(result.encoder).keys() == weights_of(whole.encoder).keys()
        assert all(torch.equal(weight, weights_of(whole.encoder)[name]) for name, weight in weights_of(result.encoder).items())
        assert result.progress.best_step == whole.progress.best_step

    def test_dropout_is_on_and_differs_from_step_to_step(self, base, tiny_bert, table, tmp_path):
        losses = {}
        for dropout in (True, False):
            config = make_config(training={"dropout": dropout, "epochs": 1, "learning_rate": 1e-12}, objective={"recipe": "infonce"})
            rows = train(config, tmp_path / str(dropout), load_tiny(tiny_bert), table).progress.history
            losses[dropout] = [row["loss"] for row in rows if "loss" in row]
        assert all(abs(noisy - quiet) > 1e-4 for noisy, quiet in zip(losses[True], losses[False], strict=True))

    def test_dropout_seeds_differ_between_steps_ranks_and_runs(self):
        seeds = set()
        for seed in (0, 1):
            for rank in (0, 1):
                for step in (0, 1):
                    BatchPlan(4, 2, seed, rank, 2).seed_dropout(step)
                    seeds.add(torch.initial_seed())
        assert len(seeds) == 8

    def test_a_finished_run_is_not_trained_again(self, tiny_bert, table, tmp_path):
        config = make_config()
        first = train(config, tmp_path, load_tiny(tiny_bert), table)
        seen = []
        again = train(config, tmp_path, load_tiny(tiny_bert), table, sink=seen.append)
        assert seen == []
        assert again.progress.history == first.progress.history
        assert all(torch.equal(weight, weights_of(first.encoder)[name]) for name, weight in weights_of(again.encoder).items())

    def test_only_the_newest_checkpoint_is_kept(self, encoder, table, tmp_path):
        train(make_config(), tmp_path, encoder, table)
        assert [folder.name for folder in tmp_path.iterdir()] == ["checkpoint-000000006"]

    @pytest.mark.parametrize("damage", ["cut tensors", "no tensors", "noise", "cut progress", "other fields", "other configuration"])
    def test_a_damaged_checkpoint_is_one_clear_error(self, damage, tiny_bert, table, tmp_path):
        config = make_config(training={"epochs": 1})
        train(config, tmp_path, load_tiny(tiny_bert), table)
        (folder,) = tmp_path.iterdir()
        tensors, progress = folder / "state.pt", folder / "progress.json"
        if damage == "cut tensors":
            tensors.write_bytes(tensors.read_bytes()[:5000])
        elif damage == "no tensors":
            tensors.unlink()
        elif damage == "noise":
            tensors.write_bytes(b"\x00\x01 noise" * 9)
        elif damage == "cut progress":
            progress.write_text(progress.read_text()[:40])
        elif damage == "other fields":
            progress.write_text(json.dumps({"epoch": 1}))
        else:
            config = make_config(objective={"recipe": "rag"})
        with pytest.raises(ArmorError, match=r"cannot resume from the checkpoint .*--force train"):
            Trainer(config, table, load_tiny(tiny_bert), LocalHost(tmp_path))


class TestNotFinite:
    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_nan_likelihood_names_step_and_examples_and_moves_nothing(self, schedule, encoder, table, tmp_path):
        config = make_config(objective=SCHEDULES[schedule])
        broken = make_table(encoder)
        trainer = Trainer(config, broken, encoder, LocalHost(tmp_path))
        everyone, _ = trainer._train.plan.batch(1)
        victim = everyone[0]
        column = int(np.flatnonzero(broken.train.scored_QN[victim])[0])
        broken.train.log_likelihood_QN[victim, column] = math.nan
        first = {}

        def sink(row):
            if row["step"] == 1 and "loss" in row:
                first.update({name: p.detach().clone() for name, p in trainer.module.named_parameters()})

        trainer._sink = sink
        with pytest.raises(ArmorError, match=f"training step 2: .*nan.* q{victim}[,;]") as caught:
            trainer.run()
        assert all(f"q{i}" in str(caught.value) for i in everyone)
        assert all(torch.equal(p, first[name]) for name, p in trainer.module.named_parameters())

    def test_nan_in_the_validation_batch_leaves_the_temperatures(self, encoder, base, tmp_path):
        table = make_table(base)
        trainer = Trainer(make_config(objective=SCHEDULES["alternating"]), table, encoder, LocalHost(tmp_path))
        table.validation.log_likelihood_QN[:] = math.nan
        before = [p.item() for p in trainer.module.objective.temperature_parameters()]
        with pytest.raises(ArmorError, match=r"training step 1: .* q1[4-9]"):
            trainer.run()
        assert [p.item() for p in trainer.module.objective.temperature_parameters()] == before

    def test_a_nan_weight(self, encoder, table, tmp_path):
        trainer = Trainer(make_config(), table, encoder, LocalHost(tmp_path))
        with torch.no_grad():
            encoder.body.encoder.layer[0].output.dense.bias[3] = math.nan
        with pytest.raises(ArmorError, match="training step 1: loss or gradient is not finite"):
            trainer.run()


class TestBestCheckpoint:
    def scripted(self, monkeypatch, trainer, values):
        values = iter(values)
        monkeypatch.setattr(trainer.validator, "recall", lambda encoder: dict.fromkeys(("R@1", "R@3", "R@5", "R@16"), next(values)))

    def test_is_the_best_step_and_never_the_untouched_base(self, monkeypatch, encoder, table, tmp_path):
        trainer = Trainer(make_config(training={"epochs": 4, "dropout": True}), table, encoder, LocalHost(tmp_path))
        self.scripted(monkeypatch, trainer, [0.9, 0.2, 0.5, 0.5, 0.1])
        at_step = {}

        def sink(row):
            if "validation_R@1" in row:
                at_step[row["step"]] = weights_of(encoder)

        trainer._sink = sink
        result = trainer.run()
        assert (result.progress.best_step, result.validation["R@1"]) == (6, 0.5)
        assert not result.encoder.training
        assert all(torch.equal(weight, at_step[6.0][name]) for name, weight in weights_of(result.encoder).items())
        assert any(not torch.equal(weight, at_step[12.0][name]) for name, weight in weights_of(result.encoder).items())
        history = [(row["step"], row["validation_R@1"]) for row in result.progress.history if "validation_R@1" in row]
        assert history == [(0, 0.9), (3, 0.2), (6, 0.5), (9, 0.5), (12, 0.1)]

    def test_patience_stops_the_run_and_a_restart_does_not_go_on(self, monkeypatch, tiny_bert, table, tmp_path):
        config = make_config(training={"epochs": 9, "patience": 2})
        trainer = Trainer(config, table, load_tiny(tiny_bert), LocalHost(tmp_path))
        self.scripted(monkeypatch, trainer, [0.9, 0.5, 0.4, 0.5, 0.8])
        result = trainer.run()
        assert (result.progress.step, result.progress.best_step) == (9, 3)
        assert Trainer(config, table, load_tiny(tiny_bert), LocalHost(tmp_path)).run().progress.step == 9

    def test_reports_carry_metrics_and_step(self, encoder, table, tmp_path):
        host = LocalHost(tmp_path)
        Trainer(make_config(training={"evaluations_per_epoch": 2}), table, encoder, host).run()
        assert [report["step"] for report in host.reports] == [2, 3, 5, 6]
        assert all(0 <= report[f"R@{k}"] <= 1 for report in host.reports for k in (1, 3, 5, 16))


class TestHistory:
    @pytest.mark.parametrize("recipe", ALL_RECIPES)
    def test_a_row_a_step_with_every_term(self, recipe, encoder, table, tmp_path):
        rows = [row for row in train(make_config(objective={"recipe": recipe}), tmp_path, encoder, table).progress.history if "loss" in row]
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
        terms = [recipe] if recipe in ("rag", "infonce", "replug", "uae") else ["rag", "infonce"]
        terms += ["query_distillation"] if recipe in ("static_reg", "armor", "armor_uae") else []
        terms += ["uae"] if recipe == "armor_uae" else []
        student = {"tau_kl"} if "uae" in terms else set()
        expected = {"step", "loss", "drift", "gradient_norm", "learning_rate", "tau_rag", "tau_infonce"} | student
        expected |= {*terms, *(f"skipped_{term}" for term in terms)}
        assert [row.keys() ^ expected for row in rows] == [set()] * 6
        assert rows[0]["drift"] == pytest.approx(0, abs=1e-6)
        assert rows[-1]["drift"] > 1e-4
        assert all(row["gradient_norm"] > 0 for row in rows)

    def test_the_loss_is_the_weighted_sum_with_the_anchor(self, encoder, table, tmp_path):
        config = make_config(objective={"recipe": "static_reg", "lambda_q": 0.7, "mix_weight": 0.3, "weight_anchor": 50.0})
        rows = [row for row in train(config, tmp_path, encoder, table).progress.history if "loss" in row]
        assert rows[0]["weight_anchor"] == 0
        assert rows[-1]["weight_anchor"] > 0
        for row in rows:
            total = 0.3 * row["rag"] + 0.7 * row["infonce"] + 0.7 * row["query_distillation"] + 50 * row["weight_anchor"]
            assert row["loss"] == pytest.approx(total, rel=1e-5)

    def test_the_anchor_holds_the_weights(self, tiny_bert, table, tmp_path):
        moved = {}
        for weight in (0.0, 1e6):
            encoder = load_tiny(tiny_bert)
            start = weights_of(encoder)
            config = make_config(training={"epochs": 1}, objective={"recipe": "infonce", "weight_anchor": weight})
            train(config, tmp_path / str(weight), encoder, table)
            moved[weight] = sum(float((p - start[name]).square().sum()) for name, p in weights_of(encoder).items())
        assert moved[1e6] < 0.7 * moved[0.0]

    def test_training_lowers_the_loss(self, encoder, table, tmp_path):
        config = make_config(training={"epochs": 12}, objective={"recipe": "armor", "lambda_q": 0.0})
        rows = [row for row in train(config, tmp_path, encoder, table).progress.history if "loss" in row]
        assert np.mean([row["loss"] for row in rows[-3:]]) < 0.8 * np.mean([row["loss"] for row in rows[:3]])

    def test_beside_bm25_other_weights_are_learned_and_a_table_without_it_is_refused(self, tiny_bert, table, tmp_path):
        config = make_config(objective={"recipe": "armor", "lexical_weight": 0.8})
        beside = replace(table, lexical=Bm25(table.texts_C))
        alone = train(make_config(objective={"recipe": "armor"}), tmp_path / "alone", load_tiny(tiny_bert), beside)
        fused = train(config, tmp_path / "fused", load_tiny(tiny_bert), beside)
        first = {name: result.progress.history[1]["infonce"] for name, result in {"alone": alone, "fused": fused}.items()}
        assert first["alone"] != pytest.approx(first["fused"], rel=1e-3), "the first loss reads BM25"
        assert fused.validation == Validator(beside, lexical_weight=0.8).recall(fused.encoder)
        with pytest.raises(ArmorError, match="lexical_weight needs BM25"):
            train(config, tmp_path / "none", load_tiny(tiny_bert), table)


class TestAlternating:
    def test_each_phase_moves_only_its_own_parameters(self, monkeypatch, encoder, table, tmp_path):
        trainer = Trainer(make_config(objective=SCHEDULES["alternating"]), table, encoder, LocalHost(tmp_path))
        alphas = trainer.module.objective.temperature_parameters()
        phases = []
        original = trainer._temperature_step

        def watched(step, phase):
            phases.append(([a.item() for a in alphas], weights_of(encoder)))
            loss = original(step, phase)
            phases.append(([a.item() for a in alphas], weights_of(encoder)))
            return loss

        monkeypatch.setattr(trainer, "_temperature_step", watched)
        start = ([a.item() for a in alphas], weights_of(encoder))
        trainer.run()
        before = start
        for encoder_done, both_done in zip(phases[::2], phases[1::2], strict=True):
            assert encoder_done[0] == before[0]
            assert any(not torch.equal(w, before[1][name]) for name, w in encoder_done[1].items())
            assert all(new != old for new, old in zip(both_done[0], encoder_done[0], strict=True))
            assert all(torch.equal(w, encoder_done[1][name]) for name, w in both_done[1].items())
            before = both_done

    def test_temperatures_follow_the_validation_questions_with_the_regulariser_off(self, encoder, table, tmp_path):
        # Dropout is the encoder phase's alone.
        config = make_config(training={"epochs": 1, "dropout": True}, objective=SCHEDULES["alternating"])
        trainer = Trainer(config, table, encoder, LocalHost(tmp_path))
        everyone, _ = trainer._held_out.plan.batch(0)
        objective, phase = trainer.module.objective, trainer._held_out
        start = [a.detach().clone() for a in objective.temperature_parameters()]
        trainer._train_step(0)
        # By hand: the loss of these validation questions after the encoder's move, at the old temperatures.
        moved = [a.detach().clone() for a in objective.temperature_parameters()]
        with torch.no_grad():
            for alpha, value in zip(objective.temperature_parameters(), start, strict=True):
                alpha.copy_(value)
        terms = objective(trainer.module.eval().batch(phase.batcher.build(everyone, everyone)), regularised=False)
        assert set(terms.terms) == {"rag", "infonce"}
        gradients = torch.autograd.grad(terms.total, objective.temperature_parameters())
        assert trainer.progress.history[-1]["temperature_loss"] == pytest.approx(float(terms.total.detach()), rel=1e-6)
        rate = config.training.temperature_learning_rate
        for new, old, gradient in zip(moved, start, gradients, strict=True):  # Adam's first step is of size lr, against the gradient.
            assert float(new - old) == pytest.approx(-rate * math.copysign(1, gradient), rel=1e-3)

    @pytest.mark.parametrize("num_validation", [1, 3])
    def test_a_short_validation_shard_repeats(self, num_validation, encoder, base, tmp_path):
        table = make_table(base, num_validation=num_validation)
        result = train(make_config(objective=SCHEDULES["alternating"]), tmp_path, encoder, table)
        losses = [row["temperature_loss"] for row in result.progress.history if "loss" in row]
        assert len(losses) == 6

    def test_fewer_validation_questions_than_workers_are_refused(self, encoder, base, tmp_path):
        host = LocalHost(tmp_path)
        host.world_size = 2
        with pytest.raises(ArmorError, match="1 validation questions for 2 workers"):
            Trainer(make_config(objective=SCHEDULES["alternating"]), make_table(base, num_validation=1), encoder, host)

    def test_joint_training_moves_temperatures_with_the_training_loss(self, encoder, table, tmp_path):
        rows = train(make_config(objective=SCHEDULES["joint"]), tmp_path, encoder, table).progress.history
        taus = [row["tau_infonce"] for row in rows if "loss" in row]
        assert taus[0] == pytest.approx(0.05)
        assert len(set(taus)) == 6
        assert not any("temperature_loss" in row for row in rows)


class TestOptimization:
    def test_warm_up_then_constant_by_hand(self):
        config = TrainingConfig(learning_rate=1.0, warmup_fraction=0.4)
        assert [learning_rate(step, 10, config) for step in range(10)] == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]

    def test_warm_up_then_linear_by_hand(self):
        config = TrainingConfig(learning_rate=1.0, warmup_fraction=0.2, schedule="linear")
        rates = [learning_rate(step, 10, config) for step in range(10)]
        assert rates == pytest.approx([0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])

    def test_without_warm_up_the_first_step_has_the_full_rate(self):
        assert learning_rate(0, 10, TrainingConfig(learning_rate=1.0, warmup_fraction=0.0, schedule="linear")) == 1.0

    def test_the_history_shows_the_rate_that_the_optimizer_used(self, encoder, table, tmp_path):
        config = make_config(training={"schedule": "linear", "warmup_fraction": 0.34})
        trainer = Trainer(config, table, encoder, LocalHost(tmp_path))
        used = []
        original = trainer.optimizers["encoder"].step
        trainer.optimizers["encoder"].step = lambda: (used.append(trainer.optimizers["encoder"].param_groups[0]["lr"]), original())
        rows = [row for row in trainer.run().progress.history if "loss" in row]
        assert [row["learning_rate"] for row in rows] == used
        assert used == pytest.approx([0.0005, 0.001, 0.001, 0.00075, 0.0005, 0.00025])

    def test_two_groups_with_their_own_rate_and_decay(self, base, table, tmp_path):
        alphas = [torch.nn.Parameter(torch.zeros(()))]
        config = TrainingConfig(weight_decay=0.02, learning_rate=3e-5, temperature_learning_rate=0.5)
        groups = {name: optimizer.param_groups for name, optimizer in make_optimizers(base, alphas, config).items()}
        (weights,), (temperatures,) = groups["encoder"], groups["temperatures"]
        assert (weights["lr"], weights["weight_decay"]) == (3e-5, 0.02)
        assert (temperatures["lr"], temperatures["weight_decay"]) == (0.5, 0.0)
        assert temperatures["params"] == alphas
        names = {name for name, p in base.named_parameters() if any(p is q for q in weights["params"])}
        assert names == {name for name, _ in base.named_parameters() if "pooler" not in name}
        assert set(make_optimizers(base, [], config)) == {"encoder"}

    def test_clipping(self, tiny_bert, table, tmp_path):
        moved = []
        for clip in (1.0, 1e-9):
            encoder = load_tiny(tiny_bert)
            start = weights_of(encoder)
            config = make_config(training={"gradient_clip": clip, "weight_decay": 0.0, "epochs": 1}, objective={"recipe": "infonce"})
            rows = train(config, tmp_path / str(clip), encoder, table).progress.history
            assert all(row["gradient_norm"] > 1e-3 for row in rows if "loss" in row)  # measured before it is clipped
            moved.append(max(float((p - start[name]).abs().max()) for name, p in weights_of(encoder).items()))
        assert moved[1] < 0.2 * moved[0]
