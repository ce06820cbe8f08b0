"""Stage `train`: every recipe of `evaluation.recipes` with its preset, and the sweep's winner, for every seed."""

from __future__ import annotations

from armor_ray.stages.cluster import connect
from armor_ray.stages.context import Context, Plan
from armor_ray.stages.methods import INTERPOLATED, recipe_config, variants
from armor_ray.stages.plans import table_inputs, train_one
from armor_ray.stages.sweep import best_parameters
from armor_ray.stages.table import load_table
from armor_ray.stages.trials import TrialSpec, run_trials

STAGE = "train"


def run_all(context: Context, todo: list[Plan]) -> None:
    """Trains what is missing or stale as concurrent trials; each publishes its own encoder and the interpolated one beside it."""
    connect(context.workspace)
    table = load_table(context.workspace, context.config)
    wanted = {plan.name.removesuffix(INTERPOLATED) for plan in todo}
    specs = [spec for spec in _specs(context) if spec.name in wanted]
    context.say(f"train: {len(specs)} runs of {len(table.train)} questions, {context.config.training.epochs} epochs each")
    run_trials(context, specs, table, STAGE)


def _specs(context: Context) -> list[TrialSpec]:
    specs = []
    for variant in variants(context.config):
        overrides = best_parameters(context.workspace) if variant.swept else {}
        for seed in context.config.evaluation.seeds:
            plan = train_one(context, variant, seed)
            config = recipe_config(context.config, variant.recipe, seed, overrides)
            specs.append(TrialSpec(plan.name, config, context.inputs(*table_inputs(variant.recipe)), plan))
    return specs
