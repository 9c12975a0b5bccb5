"""Sizes of the functions and modules of our packages: `python -m tests.sizes` prints them."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import rlds2reverb

CHECKOUT = Path(rlds2reverb.__file__).parent.parent
PACKAGES = {"rlds2reverb": CHECKOUT / "rlds2reverb", "replay_server": CHECKOUT / "server" / "replay_server"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(package: str) -> dict[str, str]:
    """Text of every module of a package, by path."""
    files = sorted(PACKAGES[package].rglob("*.py"))
    return {str(file.relative_to(CHECKOUT)): file.read_text(encoding="utf-8") for file in files}


@cache
def trees(package: str) -> dict[str, ast.Module]:
    """Every module of a package by path, parsed once per process."""
    return {path: ast.parse(text) for path, text in modules(package).items()}


def functions(node: ast.AST, where: str = "") -> Iterator[tuple[str, Function]]:
    """Every function with its name within the module, methods and inner functions included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{where}.{child.name}" if where else child.name
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from functions(child, name)
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):  # no expression holds one
            yield from functions(child, where)


@cache
def all_functions(package: str) -> tuple[tuple[str, str, Function], ...]:
    """Path of the module, name within it and tree of every function of a package."""
    return tuple((path, name, node) for path, tree in trees(package).items() for name, node in functions(tree))


def body_lines(function: Function) -> int:
    """Lines of the body, without the docstring."""
    body = function.body if ast.get_docstring(function) is None else function.body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def body_sizes(package: str) -> list[int]:
    """Lines of every function's body, in order of size."""
    return sorted(body_lines(node) for _, _, node in all_functions(package))


def median(sizes: list[int]) -> float:
    """The size that half of the functions keep to."""
    return statistics.median(sizes)


def ninth_decile(sizes: list[int]) -> float:
    """The size that nine of ten functions keep to."""
    return statistics.quantiles(sizes, n=10)[-1]


def main() -> None:
    """Prints a line per package."""
    for package in PACKAGES:
        sizes = body_sizes(package)
        path, text = max(modules(package).items(), key=lambda module: module[1].count("\n"))
        print(
            f"{package}: {len(sizes)} functions, lines of a body: median {median(sizes):g}, 90th percentile "
            f"{ninth_decile(sizes):g}, longest {sizes[-1]}; longest module: {path}, {len(text.splitlines())} lines"
        )


if __name__ == "__main__":
    main()
