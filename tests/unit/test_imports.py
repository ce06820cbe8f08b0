"""Who may know whom: imports run downwards, the pure rooms form no circle, and Ray stays in the stages and in serving."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import armor_ray

PACKAGE = Path(armor_ray.__file__).parent
PURE = {"corpus", "curation", "evaluation", "judges", "models", "objectives", "retrieval", "training"}
# A room may import itself and whatever stands before its line; the pure rooms one another too, as long as that makes no circle.
LAYERS = [
    {"errors"},
    {"atomic", "config_keys", "config_section"},
    {"config_baselines"},
    {"config", "locks"},
    PURE,
    {"workspace"},
    {"stages", "serving"},
    {"pipeline"},
    {"cli"},
    {"demo"},
]
LEVELS = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
WITH_RAY = {"stages", "serving"}


def imports() -> Iterator[tuple[str, str, str]]:
    """(importing file, its room, imported module), imports inside functions included."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}: a relative import"
                # `from armor_ray import pipeline` imports a room.
                modules = [f"armor_ray.{alias.name}" for alias in node.names] if node.module == "armor_ray" else [node.module or ""]
            else:
                continue
            yield from ((str(name), name.parts[0].removesuffix(".py"), module) for module in modules)


IMPORTS = list(imports())
BETWEEN_ROOMS = [
    (file, room, module.split(".")[1])
    for file, room, module in IMPORTS
    if module.startswith("armor_ray.") and module.split(".")[1] != room and room != "__init__"
]


def test_imports_run_downwards() -> None:
    upwards = {f"{file} imports {target}" for file, room, target in BETWEEN_ROOMS if not _may_import(room, target)}
    assert not upwards


def _may_import(room: str, target: str) -> bool:
    return LEVELS[target] < LEVELS[room] or {room, target} <= PURE


def test_pure_rooms_form_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for _, room, target in BETWEEN_ROOMS:
        graph.setdefault(room, set()).add(target)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_ray_stays_in_stages_and_serving() -> None:
    found = {file for file, room, module in IMPORTS if module.split(".")[0] == "ray" and room not in WITH_RAY}
    assert not found
