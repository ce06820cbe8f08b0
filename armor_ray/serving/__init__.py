"""The retriever behind HTTP on Ray Serve: `serve run serve_configs/retriever.yaml`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # `armor_ray.serving:app` is the import path that users write; loading it on demand keeps Ray Serve away from what only
    # wants the arguments or the schemas.
    if name == "app":
        from armor_ray.serving.deployment import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
