"""What `generator.dtype: auto` means in a run: asked of the machines that score, since the driver's may be of another kind."""

from __future__ import annotations

import ray

from armor_ray.config import GeneratorConfig
from armor_ray.models.hardware import DtypeName, choose_device, choose_dtype, dtype_name
from armor_ray.stages.cluster import connect, plan_actors, user_errors
from armor_ray.stages.context import Context


def scoring_generator(context: Context) -> GeneratorConfig:
    """The generator's config with a dtype that is decided, for every actor of the run and for the utility cache's identity.

    Log-likelihoods in bf16 and in fp32 differ by tenths of a nat, so the cache must never mix them. Where the config leaves the dtype
    open, one task with a score actor's resources answers for all of them.
    """
    return settled(context, context.config.generator)


def settled(context: Context, config: GeneratorConfig) -> GeneratorConfig:
    """A generator's config with a dtype that is decided; the workers are asked once a run."""
    if config.dtype != "auto":
        return config
    return config.model_copy(update={"dtype": context.once("native dtype", lambda: _ask_a_worker(context))})


def _ask_a_worker(context: Context) -> DtypeName:
    connect(context.workspace)
    resources = context.config.resources
    options = plan_actors(resources, 1, work_items=1).options
    with user_errors():
        return ray.get(ray.remote(_native_dtype).options(**options).remote())


def _native_dtype() -> DtypeName:
    return dtype_name(choose_dtype("auto", choose_device()))
