"""The public names of both packages, one a line, with their signatures: `docs/reference/names.txt`.

    python scripts/public_names.py            # says what changed; exit code 1 when the file is stale
    python scripts/public_names.py --write    # writes the file

The packages' text is read and nothing of it is imported, so no extra is needed. Public are the names that `__all__` lists in the modules below; everything else may change.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "docs" / "reference" / "names.txt"
PACKAGES = {"rlds2reverb": ROOT / "rlds2reverb", "replay_server": ROOT / "server" / "replay_server"}
PUBLIC = (
    "rlds2reverb",
    "rlds2reverb.views",
    "rlds2reverb.formats.registry",
    "rlds2reverb.tf_agents",
    "rlds2reverb.testing",
    "replay_server",
)
"""Modules whose `__all__` is public; the adapters are added by their files."""

_SHOWN = ("__init__", "__len__", "__iter__", "__enter__", "__exit__")


def main(arguments: list[str]) -> int:
    wanted = "".join(f"{line}\n" for line in lines())
    if "--write" in arguments:
        LIST.write_text(wanted, encoding="utf-8")
        return 0
    now = LIST.read_text(encoding="utf-8") if LIST.exists() else ""
    changes = list(
        difflib.unified_diff(now.splitlines(), wanted.splitlines(), "listed", "in the code", lineterm="", n=0)
    )
    print("\n".join([*changes, *(["public names changed: if that is meant, run `make docs`"] if changes else [])]))
    return 1 if changes else 0


def lines() -> Iterator[str]:
    """Every public name, module by module, in the order of the alphabet."""
    adapters = sorted(
        f"rlds2reverb.adapters.{file.stem}" for file in (PACKAGES["rlds2reverb"] / "adapters").glob("*.py")
    )
    for module in (*PUBLIC, *(name for name in adapters if _exports(name))):
        yield module
        for name in sorted(_exports(module)):
            yield from (f"  {line}" for line in _surface(module, name))


def _file(module: str) -> Path:
    package, _, rest = module.partition(".")
    path = PACKAGES[package].joinpath(*rest.split(".")) if rest else PACKAGES[package]
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def _exports(module: str) -> list[str]:
    """What `__all__` lists; where that is made of another name of the module (`[*_HOMES]`), the keys or members of that."""
    values = {
        ast.unparse(target): node.value
        for node in _tree(module).body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    found = values.get("__all__")
    if isinstance(found, (ast.List, ast.Tuple)) and len(found.elts) == 1 and isinstance(found.elts[0], ast.Starred):
        found = values[ast.unparse(found.elts[0].value)]
    keys: list[ast.expr | None] = []
    if isinstance(found, ast.Dict):
        keys = found.keys
    elif isinstance(found, (ast.List, ast.Tuple)):
        keys = [*found.elts]
    return [str(key.value) for key in keys if isinstance(key, ast.Constant)]


def _surface(module: str, name: str) -> Iterator[str]:
    """One line for a function or a value; for a class one for its head, each public field and each public method."""
    home, node = _definition(module, name)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield f"def {name}{_signature(node)}"
    elif isinstance(node, ast.ClassDef):
        yield f"class {name}({', '.join(map(ast.unparse, node.bases))})"
        for child in node.body:
            if isinstance(child, ast.AnnAssign) and not ast.unparse(child.target).startswith("_"):
                yield f"  {ast.unparse(child)}"
            elif isinstance(child, ast.FunctionDef) and (not child.name.startswith("_") or child.name in _SHOWN):
                marks = "".join(f"@{ast.unparse(mark)} " for mark in child.decorator_list)
                yield f"  {marks}{child.name}{_signature(child)}"
    else:
        yield f"{name} of {home}"


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    return f"({ast.unparse(function.args)}){returns}"


def _definition(module: str, name: str) -> tuple[str, ast.stmt | None]:
    """Where a name is defined: here, or in the module that it is imported from."""
    tree = _tree(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for alias in node.names:
                if (alias.asname or alias.name) == name and _file(node.module).exists():
                    return _definition(node.module, alias.name)
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if node.name == name and "overload" not in map(ast.unparse, node.decorator_list):
            return module, node
    return module, None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
