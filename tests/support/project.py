"""What pyproject.toml says of the project."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

ROOT = Path(__file__).parents[2]


def pyproject() -> dict[str, Any]:
    """All of it."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    """Its table `project`."""
    table: dict[str, Any] = pyproject()["project"]
    return table


def code_of(page: Path) -> str:
    """The Python blocks of a page, each on the lines where it stands, so that errors lead there."""
    text = page.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    lines = [""] * text.count("\n")
    for block in blocks:
        first = text.count("\n", 0, block.start(1))
        block_lines = block[1].splitlines()
        lines[first : first + len(block_lines)] = block_lines
    return "\n".join(lines)


def plain(requirement: str) -> str:
    """The name of what a requirement wants, as indexes compare names: "PyYAML>=6" -> "pyyaml"."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def requirements_of(extra: str | None) -> set[str]:
    """Names of what an extra itself asks for, and of what its own extras do; of the core for None."""
    known = project()
    found = set()
    for requirement in known["dependencies"] if extra is None else known["optional-dependencies"][extra]:
        inner = re.match(r"rlds2reverb\[(.*)\]$", requirement)
        found |= set().union(*map(requirements_of, inner[1].split(","))) if inner else {plain(requirement)}
    return found
