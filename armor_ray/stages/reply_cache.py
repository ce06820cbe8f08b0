"""Where a workspace keeps the replies that an endpoint was paid for."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from armor_ray.workspace import Workspace


def reply_cache(workspace: Workspace) -> Path:
    """On a local disk, as the cache needs it; one for each workspace, since budgets are kept in it."""
    if workspace.is_local:
        return Path(workspace.path("cache/judges.sqlite"))
    root = Path(os.environ.get("ARMOR_RAY_CACHE", Path.home() / ".cache" / "armor_ray"))
    return root / "judges" / f"{hashlib.sha256(workspace.uri.encode()).hexdigest()[:12]}.sqlite"
