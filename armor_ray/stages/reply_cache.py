"""Where a workspace keeps the replies that an endpoint was paid for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from armor_ray.workspace import Workspace, cache_root


def reply_cache(workspace: Workspace) -> Path:
    """On a local disk, as the cache needs it; one for each workspace, since budgets are kept in it."""
    if workspace.is_local:
        return Path(workspace.path("cache/judges.sqlite"))
    return cache_root() / "judges" / f"{hashlib.sha256(workspace.uri.encode()).hexdigest()[:12]}.sqlite"
