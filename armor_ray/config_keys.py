"""What a user probably meant by a key that no section has."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel


def nearest_key(location: tuple[Any, ...], root: type[BaseModel]) -> str:
    """A remedy for the unknown key at `location`: the same name in another section, the nearest name in this one, or all known."""
    *section, name = map(str, location)
    model = _model_at(section, root)
    if model is None:
        return "remove it"
    elsewhere = [path for path in _paths(root) if path.rpartition(".")[2] == name]
    if elsewhere:
        return f"did you mean '{elsewhere[0]}'?"
    close = difflib.get_close_matches(name, model.model_fields, n=1, cutoff=0.5)
    return f"did you mean '{'.'.join([*section, *close])}'?" if close else f"known keys: {', '.join(sorted(model.model_fields))}"


def _model_at(section: list[str], root: type[BaseModel]) -> type[BaseModel] | None:
    models = [root]
    for part in section:
        if part.isdigit():
            continue
        # A part is a field, or, below a list of several kinds, the kind.
        of_kind = [model for model in models if "kind" in model.model_fields and part in get_args(model.model_fields["kind"].annotation)]
        models = of_kind or [found for model in models if part in model.model_fields for found in _models_in(model.model_fields[part])]
    return models[0] if models else None


def _models_in(field: Any) -> list[type[BaseModel]]:
    """All models that an annotation names, inside lists and unions too."""
    options, found = [field.annotation], []
    while options:
        option = options.pop(0)
        if isinstance(option, type) and issubclass(option, BaseModel):
            found.append(option)
        options += get_args(option)
    return found


def _model_of(annotation: Any) -> type[BaseModel] | None:
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        inner = _model_of(field.annotation)
        if inner is not None:
            yield from _paths(inner, f"{prefix}{name}.")
