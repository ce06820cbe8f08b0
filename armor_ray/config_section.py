"""The base of all config sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are refused, assignments are checked."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=())
