"""pyproject.toml and the code are at one: what is imported is declared, in the extra that errors name, and what is declared is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlds2reverb
from rlds2reverb.formats.registry import Format, own_formats
from tests.support.imports import CODE, Package, statements_in, top
from tests.support.project import ROOT, project, requirements_of
from tests.unit.test_rlds2reverb_imports import OPTIONAL

SERVER = Package("replay_server", ROOT / "server" / "replay_server")

DISTRIBUTIONS = {
    "PIL": "pillow",
    "array_record": "array-record",
    "google": "protobuf",  # and others have a part of that name: each import is looked at
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "huggingface_hub": "huggingface-hub",
    "ml_dtypes": "ml-dtypes",
    "prometheus_client": "prometheus-client",
    "reverb": "dm-reverb",
    "tensorflow_datasets": "tensorflow-datasets",
    "tf_agents": "tf-agents",
    "yaml": "pyyaml",
}
"""What is imported under another name than it is installed by."""

NOT_IMPORTED = {
    "dm-reverb": {"tf-agents"},  # Reverb's observers and buffers, which the drop-in takes
    "importlib-resources": {"tfds"},
    "pyarrow": {"tfds"},
    "ray": {"rllib"},
    "rlds": {"tf-agents"},
    "setuptools": {"tf-agents"},
    "tensorflow": {"server", "tf-agents"},
    "tensorflow-metadata": {"tfds"},
    "tensorflow-probability": {"tf-agents"},
}
"""Declared for a reason that stands in pyproject.toml, where it is no import of ours."""

TOOLS = {"all", "dev", "formats", "lint", "record", "test"}
"""Extras that are no part of the package's code: sums of others, and tools."""


PEERS = frozenset(["lerobot", "minari", "torchrl", "webdataset"])
"""Libraries of destinations, which read back what was written where somebody has them: no extra brings them."""


def third_party(package: Package) -> set[tuple[str, str]]:
    """(module, distribution) of every import of neither Python's nor ours."""
    found = set()
    for imported in package.imports:
        name = top(imported.target)
        if name in sys.stdlib_module_names or name in ("__future__", "rlds2reverb", "replay_server"):
            continue
        if name in PEERS and imported.importer.endswith(".by_library"):
            continue
        if name == "google":
            assert imported.target.startswith("google.protobuf"), imported
        found.add((imported.importer, DISTRIBUTIONS.get(name, name)))
    return found


@cache
def needing_blocks() -> tuple[tuple[str, str, ast.With], ...]:
    """(module, extra, block) of every `with needing(purpose, extra, error)` whose extra is written there."""
    found = []
    for module, tree in CODE.modules.items():
        for node in _withs(tree):
            for item in node.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "needing":
                    extra = _constant(call.args[1], tree)
                    if extra is not None:
                        found.append((module, extra, node))
    return tuple(found)


def _withs(node: ast.AST) -> Iterator[ast.With]:
    for child in statements_in(node):
        if isinstance(child, ast.With):
            yield child
        yield from _withs(child)


def _constant(node: ast.expr, tree: ast.Module) -> str | None:
    """What a text is: written there, or a name of the module's own; None where only running tells."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    for statement in tree.body if isinstance(node, ast.Name) else ():
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == ast.unparse(node):
            return _constant(statement.value, tree)
    return None


@cache
def eager(package: Package) -> dict[str, set[str]]:
    """Module -> modules of the package that its import imports; the package above it is one of them."""
    graph = {name: {name.rpartition(".")[0]} - {""} for name in package.modules}
    for imported in package.imports:
        if imported.ours and not imported.is_local:
            graph[imported.importer].add(imported.ours)
    return graph


def reached(start: str, package: Package) -> set[str]:
    found, new = {start}, {start}
    while new:
        new = {target for name in new for target in eager(package)[name]} - found
        found |= new
    return found


def needed_by(start: str, package: Package = CODE) -> set[str]:
    """Optional distributions that the import of a module needs, itself or through others of its package."""
    modules = reached(start, package)
    local = {(imported.importer, top(imported.target)) for imported in package.imports if imported.is_local}
    names = {
        top(imported.target)
        for imported in package.imports
        if imported.importer in modules and (imported.importer, top(imported.target)) not in local
    }
    return {DISTRIBUTIONS.get(name, name) for name in names & (OPTIONAL - {"replay_server"})}


def test_the_core_declares_what_it_imports() -> None:
    core = {
        name
        for module, name in third_party(CODE)
        if name not in {DISTRIBUTIONS.get(module_name, module_name) for module_name in OPTIONAL}
    }
    assert core == requirements_of(None)


def test_every_optional_import_is_declared_by_an_extra() -> None:
    extras = {extra: requirements_of(extra) for extra in project()["optional-dependencies"]}
    imported = {name for _, name in third_party(CODE)} - requirements_of(None)
    assert [name for name in imported if not any(name in of for of in extras.values())] == []


def test_the_server_declares_what_it_imports() -> None:
    wanted = requirements_of("server") | requirements_of(None)
    assert [(module, name) for module, name in third_party(SERVER) if name not in wanted] == []


OPENERS = [(known, side.open) for known in own_formats() for side in (known.reading, known.writing) if side is not None]


@pytest.mark.parametrize(("known", "opener"), OPENERS, ids=[opener.__name__ for _, opener in OPENERS])
def test_the_extra_of_a_format_brings_what_its_module_imports(known: Format, opener: Any) -> None:
    (module,) = re.findall(r"from rlds2reverb\.(\S+) import", inspect.getsource(opener))
    assert needed_by(module) <= (requirements_of(known.extra) if known.extra else set())


@pytest.mark.parametrize(
    ("module", "extra", "block"),
    needing_blocks(),
    ids=[f"{module}:{block.lineno}" for module, _, block in needing_blocks()],
)
def test_the_extra_that_an_error_names_brings_what_is_imported_there(module: str, extra: str, block: ast.With) -> None:
    inside = {
        name
        for node in ast.walk(block)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names] + [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    direct = {DISTRIBUTIONS.get(top(name), top(name)) for name in inside if top(name) in OPTIONAL - {"replay_server"}}
    ours = {name.removeprefix("rlds2reverb.") for name in inside} & CODE.modules.keys() - {""}
    through = set().union(*(needed_by(name) for name in ours)) if ours else set()
    assert direct | through <= requirements_of(extra), module


def test_blocks_that_name_an_extra_are_found() -> None:
    found = {(module, extra) for module, extra, _ in needing_blocks()}
    assert {("adapters.torch", "torch"), ("formats.tfds.records", "parquet"), ("workers.processes", "ray")} <= found


def test_extras_have_nothing_that_nobody_imports() -> None:
    imported = {name for _, name in third_party(CODE) | third_party(SERVER)}
    unused = {
        (name, extra)
        for extra in project()["optional-dependencies"].keys() - TOOLS
        for name in requirements_of(extra) - imported
    }
    assert unused <= {(name, extra) for name, extras in NOT_IMPORTED.items() for extra in extras} | {
        (name, "tf-agents") for name in requirements_of("tfds")
    }


def test_installed_packages_are_called_as_the_table_says() -> None:
    """Of what is installed here; the rest is of another environment."""
    found = importlib.metadata.packages_distributions()
    names = {top(imported.target) for package in (CODE, SERVER) for imported in package.imports}
    for name in names & found.keys() - {"rlds2reverb", "replay_server"}:
        known = {re.sub(r"[-_.]+", "-", distribution).lower() for distribution in found[name]}
        assert DISTRIBUTIONS.get(name, name) in known


def test_both_packages_say_that_they_are_typed() -> None:
    assert "Typing :: Typed" in project()["classifiers"]
    for package in (CODE, SERVER):
        assert (package.root / "py.typed").read_bytes() == b""


def test_the_version_is_in_one_place() -> None:
    assert "version" not in project()
    assert "version" in project()["dynamic"]
    assert importlib.metadata.version("rlds2reverb") == rlds2reverb.__version__, (
        "the environment is older: set it up again"
    )


# What people meet on the page of the repository


def test_the_citation_is_complete() -> None:
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert told["cff-version"] == "1.2.0"
    assert told["message"]
    assert all(author.keys() == {"name"} for author in told["authors"])
    assert told["license"] == project()["license"]
    assert str(told["version"]) == rlds2reverb.__version__
    assert set(told) <= {
        *(
            "abstract",
            "authors",
            "cff-version",
            "date-released",
            "keywords",
            "license",
            "message",
            "title",
            "type",
            "version",
        )
    }


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FIELDS = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder"},
    "textarea": {"label", "description", "placeholder", "render"},
    "dropdown": {"label", "description", "options"},
}
"""What each kind of field may say, of those that we use. Source: GitHub's syntax of issue forms."""


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem)
def test_a_form_for_issues_is_one(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form.keys() == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in fields]
    assert len(set(names)) == len(names) > 0
    assert any(field.get("validations", {}).get("required") for field in fields)
    for field in form["body"]:
        assert field["attributes"].keys() <= FIELDS[field["type"]]
        assert field["type"] == "markdown" or field["attributes"]["label"]
        options = field["attributes"].get("options", ["one"])
        assert len(set(options)) == len(options) > 0


def test_there_are_forms_and_no_blank_issues() -> None:
    assert {path.stem for path in FORMS} == {"bug", "dataset", "idea", "config"}
    assert yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text()) == {
        "blank_issues_enabled": False
    }
