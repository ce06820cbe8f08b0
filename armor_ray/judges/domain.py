"""Domains: what a judge is told about one, and the keywords that stand in for it. One YAML file each; a user adds one file.

name: isac
title: integrated sensing and communication
keywords:
  core: [integrated sensing and communication]    # one alone marks a text as of this domain
  related: [joint beamforming]                    # several together do
include: [Joint waveform and signal design.]      # sentences for the judge
exclude: [Marketing material.]
excluding_keywords: [press release]               # each halves the keyword score
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from armor_ray.config import parse_yaml
from armor_ray.config_keys import nearest_key
from armor_ray.errors import ArmorError

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Keywords(_Strict):
    """Phrases, in any case; a plural or a hyphen for a space makes no difference."""

    core: tuple[Text, ...] = Field(min_length=1)
    related: tuple[Text, ...] = ()


class Domain(_Strict):
    """A target domain. `name` labels it in scores, manifests and reports."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: Text
    keywords: Keywords
    include: tuple[Text, ...] = Field(min_length=1)
    exclude: tuple[Text, ...] = ()
    excluding_keywords: tuple[Text, ...] = ()

    @field_validator("title")
    @classmethod
    def _one_line(cls, title: str) -> str:
        return " ".join(title.split())


def shipped_domains() -> list[str]:
    """Names of the domains that come with the product."""
    folder = files("armor_ray.judges").joinpath("domains")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_domain(name_or_path: str) -> Domain:
    """A shipped domain by name, or a user's own by the path of its YAML file.

    Raises:
        ArmorError: no such domain, or a fault in its file, named by file and key.
    """
    if name_or_path in shipped_domains():
        text = files("armor_ray.judges").joinpath("domains", f"{name_or_path}.yaml").read_text(encoding="utf-8")
        return _validate(text, f"{name_or_path}.yaml")
    path = Path(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ArmorError("not a text file in UTF-8", where=name_or_path, hint="a domain is a YAML file") from None
    except (OSError, ValueError):
        known = ", ".join(shipped_domains())
        raise ArmorError("no such domain", where=name_or_path, hint=f"name a YAML file or one of: {known}") from None
    return _validate(text, name_or_path)


def _validate(text: str, where: str) -> Domain:
    try:
        return Domain.model_validate(parse_yaml(text, where))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ArmorError(f"unknown key '{key}'", where=where, hint=nearest_key(first["loc"], Domain)) from None
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise ArmorError(f"{key}: {message}", where=where) from None
