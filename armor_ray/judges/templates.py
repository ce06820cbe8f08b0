"""Prompts: one pair of template files per judge in `prompts/`, readable and diffable without code."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import jinja2

from armor_ray.judges.request import Message


def render_messages(name: str, **values: Any) -> tuple[Message, Message]:
    """System and user message from `prompts/<name>.system.j2` and `prompts/<name>.user.j2`; a value that a template lacks is an error."""
    return (
        {"role": "system", "content": render(f"{name}.system", **values)},
        {"role": "user", "content": render(f"{name}.user", **values)},
    )


def render(name: str, **values: Any) -> str:
    """One template file; half surrogate pairs, which no request can carry, become question marks."""
    return _environment().get_template(f"{name}.j2").render(**values).encode("utf-8", "replace").decode()


def template_texts(name: str) -> tuple[str, str]:
    """A pair of template files as they are written: what makes replies to them stale."""
    folder = resources.files("armor_ray.judges") / "prompts"
    system, user = ((folder / f"{name}.{role}.j2").read_text(encoding="utf-8") for role in ("system", "user"))
    return system, user


@cache
def _environment() -> jinja2.Environment:
    # Prompts are plain text: escaping for HTML would change what the judge reads.
    return jinja2.Environment(
        loader=jinja2.PackageLoader("armor_ray.judges", "prompts"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
