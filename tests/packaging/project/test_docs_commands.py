"""Every command line of every page is one that `rlds2reverb` takes: its options exist, and have values of their types. Python is Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from rlds2reverb import cli
from tests.support.project import ROOT

PAGES = [ROOT / "README.md", ROOT / "examples" / "open_x.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}(rlds2reverb .*)$", re.MULTILINE)
_CALL = re.compile(r"^ *(?:\$ )?(?:[A-Z_]+=\S+ )*(rlds2reverb [a-z].*)$", re.MULTILINE)
_AFTER = re.compile(r"\s+(?:[|&;]|\d?>).*$|\s+#.*$")
"""What a shell does not give to the program."""


def _lines(text: str) -> Iterator[str]:
    blocks = "\n".join(block for kind, block in _BLOCK.findall(text) if kind in ("", "sh", "bash", "console"))
    calls = [*_CALL.findall(blocks.replace("\\\n", " ")), *_INDENTED.findall(_BLOCK.sub("", text))]
    for call in calls:
        yield _AFTER.sub("", call)


def _all() -> list[Any]:
    found = {(page, line): None for page in PAGES for line in _lines(page.read_text(encoding="utf-8"))}
    return [pytest.param(line, id=f"{page.stem}: {line}") for page, line in found]


def test_there_are_commands_to_try() -> None:
    assert len(_all()) > 100


@pytest.mark.parametrize("line", _all())
def test_a_command_line_of_the_docs_is_taken(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that it names need not be there."""
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _param, _context: value)
    _, name, *arguments = shlex.split(line)
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None, f"no command {name!r}"
    command.make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_of_the_docs_is_python(page: Path) -> None:
    """Those blocks, too, that need what no test has, such as a dataset of a reader's."""
    for kind, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            compile(block, page.name, "exec")
