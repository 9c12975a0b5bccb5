"""Imports go downwards only, optional dependencies stay in their modules, and the core never loads TensorFlow."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import rlds2reverb

PACKAGE = "rlds2reverb"
ROOT = Path(rlds2reverb.__file__).parent

FOUNDATION = {"errors", "episodes", "specs"}
BELOW_PIPELINE = FOUNDATION | {"conventions", "views", "validation", "sources", "wire", "ledger", "report"}

MAY_IMPORT: dict[str, set[str]] = {
    # Low to high; a name stands for the module or the package with all in it. A package may import within itself.
    "errors": set(),
    "episodes": set(),
    "specs": {"errors"},
    "datasets": set(),
    "conventions": FOUNDATION,
    # Views, validation and sources are blind to one another.
    "views": FOUNDATION,
    "step_stream": FOUNDATION | {"views"},
    "validation": FOUNDATION | {"conventions"},
    "sources": FOUNDATION | {"datasets"},
    # The wire sees what a cut is, not how views make it.
    "wire": FOUNDATION | {"views.base"},
    "ledger": FOUNDATION,
    "report": set(),
    "outputs": FOUNDATION | {"ledger", "views", "wire"},
    "judging": FOUNDATION | {"conventions", "outputs", "validation", "views.base"},
    "pipeline": BELOW_PIPELINE | {"judging", "outputs"},
    "client": BELOW_PIPELINE | {"outputs", "pipeline"},
    "tf_agents": FOUNDATION | {"client", "sources", "step_stream", "views", "wire"},
    "inspection": FOUNDATION | {"conventions", "judging", "outputs", "sources", "validation", "views"},
    "cli": BELOW_PIPELINE | {"client", "datasets", "inspection", "outputs", "pipeline"},
}

OPTIONAL = {"replay_server", "reverb", "rlds", "tensorflow", "tensorflow_datasets", "tf_agents"}
"""Top-level packages that the core does without."""

NEEDS_OPTIONAL = {
    "sources.rlds",
    "sources.tfds",
    "tf_agents",
    "tf_agents.conversion",
    "tf_agents.observers",
    "tf_agents.push",
    "tf_agents.specs",
}

CORE_DEPENDENCIES = {"click", "cramjam", "google", "grpc", "ml_dtypes", "numpy", "rich", "xxhash", "yaml"}

LOCAL_IMPORTS = {
    ("cli.demo", "replay_server"): "the demo's server comes with an extra",
    ("cli.inspect", "replay_server"): "what a server's config looks like comes with an extra",
    ("cli.serve", "replay_server"): "the server comes with an extra",
    ("cli.demo", "reverb"): "the demo's sampler comes with the same extra",
}
"""Imports inside functions: optional dependencies only."""

DYNAMIC_IMPORTS = {
    "": "names are imported when they are first used",
    "sources": "each format's module, and only when it is asked for",
    "cli": "each command's module, and only when it runs",
}
"""Modules that import by name at run time."""


@dataclass(frozen=True)
class Import:
    """One import: of `target` (a dotted name) in `importer` (a module of ours, without the package's name)."""

    importer: str
    target: str
    is_local: bool

    @property
    def ours(self) -> str | None:
        """The target without the package's name; None when it is not ours."""
        if self.target == PACKAGE:
            return ""
        return self.target.removeprefix(f"{PACKAGE}.") if self.target.startswith(f"{PACKAGE}.") else None


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by dotted name, "" for the package itself."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def import_nodes(node: ast.AST, is_local: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Imports that run, and whether they run inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, is_local
        elif is_type_checking(child):
            yield from (pair for other in child.orelse for pair in import_nodes(other, is_local))
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from import_nodes(child, is_local or is_function)


def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Dotted names of the modules that an import needs."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    assert node.level == 0, f"line {node.lineno}: imports are absolute"
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        is_module = inner.removeprefix(f"{PACKAGE}.") in modules()
        yield inner if is_module else str(node.module)


@cache
def imports() -> tuple[Import, ...]:
    found = (
        Import(name, target, is_local)
        for name, tree in modules().items()
        for node, is_local in import_nodes(tree)
        for target in targets(node)
    )
    return tuple(dict.fromkeys(found))


def layer(name: str) -> str:
    return name.split(".")[0]


def may_import(importer: str, target: str) -> bool:
    if layer(importer) == layer(target):
        return True
    allowed = MAY_IMPORT[layer(importer)]
    return layer(target) in allowed or target in allowed


def test_every_module_has_its_layer():
    assert {layer(name) for name in modules() if name} == set(MAY_IMPORT)


def test_the_table_of_layers_allows_downward_imports_only():
    order = list(MAY_IMPORT)
    for name, allowed in MAY_IMPORT.items():
        assert all(order.index(layer(target)) < order.index(name) for target in allowed), name


@pytest.mark.parametrize("importer", list(MAY_IMPORT))
def test_imports_go_to_the_layers_that_the_table_allows(importer):
    ours = [found for found in imports() if layer(found.importer) == importer and found.ours is not None]
    assert [
        f"{found.importer} imports {found.ours}" for found in ours if not may_import(found.importer, found.ours)
    ] == []


def test_the_table_allows_nothing_that_no_module_needs():
    used = {(layer(found.importer), layer(found.ours)) for found in imports() if found.ours}
    for importer in MAY_IMPORT.keys() - {"client", "cli"}:  # these two may see all that is below them
        stale = {name for name in MAY_IMPORT[importer] - FOUNDATION if (importer, layer(name)) not in used}
        assert stale == set(), importer


def test_no_module_imports_itself_through_others():
    graph = {name: {found.ours for found in imports() if found.importer == name and found.ours} for name in modules()}
    done: set[str] = set()

    def visit(name: str, road: tuple[str, ...]) -> None:
        assert name not in road, f"circular import: {' -> '.join((*road[road.index(name) :], name))}"
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*road, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_importing_the_package_imports_none_of_its_modules():
    assert [found.target for found in imports() if found.importer == "" and found.ours is not None] == []


def test_optional_dependencies_stay_in_their_modules():
    outside = {
        (found.importer, layer(found.target))
        for found in imports()
        if layer(found.target) in OPTIONAL and found.importer not in NEEDS_OPTIONAL
    }
    assert outside == set(LOCAL_IMPORTS)


def test_imports_inside_functions_are_the_listed_ones():
    assert {(found.importer, layer(found.target)) for found in imports() if found.is_local} == set(LOCAL_IMPORTS)
    assert {name for _, name in LOCAL_IMPORTS} <= OPTIONAL


def test_imports_by_name_are_the_listed_ones():
    assert {found.importer for found in imports() if layer(found.target) == "importlib"} == set(DYNAMIC_IMPORTS)
    calls = [node for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if ast.unparse(call.func) == "__import__"]


def test_the_core_needs_only_its_declared_dependencies():
    known = CORE_DEPENDENCIES | set(sys.stdlib_module_names) | {PACKAGE, "__future__"}
    others = {(found.importer, layer(found.target)) for found in imports() if layer(found.target) not in known}
    assert {name for _, name in others} <= OPTIONAL


def loaded_by(*names: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after these imports."""
    code = f"import json, sys; import {', '.join(names)}; print(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout))


def test_importing_the_package_loads_nothing_heavy():
    loaded = loaded_by(PACKAGE)
    assert not loaded & {*OPTIONAL, "numpy", "grpc", "google.protobuf", "sqlite3", "click", "rich"}
    assert {name for name in loaded if name.startswith(f"{PACKAGE}.")} == set()


def test_the_client_and_the_wire_do_not_load_tensorflow():
    loaded = loaded_by(PACKAGE, f"{PACKAGE}.client", f"{PACKAGE}.wire.sender")
    assert f"{PACKAGE}.pipeline" in loaded
    assert {layer(name) for name in loaded} & OPTIONAL == set()


def test_no_module_of_the_core_loads_tensorflow():
    core = [f"{PACKAGE}.{name}" for name in modules() if name and name not in NEEDS_OPTIONAL and name != "__main__"]
    loaded = loaded_by(*core)
    assert set(core) <= loaded
    assert {layer(name) for name in loaded} & OPTIONAL == set()
