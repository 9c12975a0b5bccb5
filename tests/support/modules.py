"""Text and trees of the modules of our packages."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import rlds2reverb

CHECKOUT = Path(rlds2reverb.__file__).parent.parent
PACKAGES = {"rlds2reverb": CHECKOUT / "rlds2reverb", "replay_server": CHECKOUT / "server" / "replay_server"}


def modules(package: str) -> dict[str, str]:
    """Text of every module of a package, by path."""
    files = sorted(PACKAGES[package].rglob("*.py"))
    return {str(file.relative_to(CHECKOUT)): file.read_text(encoding="utf-8") for file in files}


@cache
def trees(package: str) -> dict[str, ast.Module]:
    """Every module of a package by path, parsed once per process."""
    return {path: ast.parse(text) for path, text in modules(package).items()}
