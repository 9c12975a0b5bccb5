"""The imports of a package, read from its source: what the tests of its declared dependencies look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.project import ROOT


@dataclass(frozen=True)
class Import:
    """One import: of `target` (a dotted name) in `importer` (a module of the package, without the package's name)."""

    importer: str
    target: str
    is_local: bool
    package: str

    @property
    def ours(self) -> str | None:
        """The target without the package's name; None when it is not of the package."""
        if self.target == self.package:
            return ""
        prefix = f"{self.package}."
        return self.target.removeprefix(prefix) if self.target.startswith(prefix) else None


class Package:
    """A package on disk.

    Args:
      name: its name.
      root: its folder.
    """

    def __init__(self, name: str, root: Path) -> None:
        self.name, self.root = name, root

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """Every module by dotted name, "" for the package itself."""
        found = {}
        for path in sorted(self.root.rglob("*.py")):
            parts = path.relative_to(self.root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
        return found

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import that runs; those for type checkers only do not."""
        found = (
            Import(name, target, is_local, self.name)
            for name, tree in self.modules.items()
            for node, is_local in _import_nodes(tree)
            for target in self._targets(node)
        )
        return tuple(dict.fromkeys(found))

    def without(self, *optional: str) -> list[str]:
        """Modules whose import needs none of these libraries, neither directly nor through other modules of the package."""
        eager = {
            name: [imported for imported in self.imports if imported.importer == name and not imported.is_local]
            for name in self.modules
        }
        needing = {name for name, found in eager.items() if any(top(imported.target) in optional for imported in found)}
        parents = {name: name.rpartition(".")[0] or None for name in self.modules}
        while (
            more := {
                name
                for name, found in eager.items()
                if parents[name] in needing or any(imported.ours in needing for imported in found)
            }
            - needing
        ):
            needing |= more
        return sorted(self.modules.keys() - needing)

    def _targets(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        """Dotted names of the modules that an import needs."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        assert node.level == 0, f"line {node.lineno}: imports are absolute"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            is_module = inner.removeprefix(f"{self.name}.") in self.modules
            is_of_another = node.module != self.name and "." not in str(node.module)  # then it may be a module
            yield inner if is_module or is_of_another else str(node.module)


CODE = Package("rlds2reverb", ROOT / "rlds2reverb")
"""Read once by all who look at it."""


def top(name: str) -> str:
    """The first part of a dotted name."""
    return name.split(".")[0]


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements directly inside one, or a module: those of each of its blocks. Expressions, most of a tree, are not looked at."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt):
                yield child
            else:
                yield from statements_in(child)


def _import_nodes(
    node: ast.AST | list[ast.stmt], is_local: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Imports that run, and whether they run inside a function."""
    for child in node if isinstance(node, list) else statements_in(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, is_local
        elif _is_type_checking(child):
            assert isinstance(child, ast.If)
            yield from _import_nodes(child.orelse, is_local)
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _import_nodes(child, is_local or is_function)
