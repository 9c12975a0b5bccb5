"""The contract of everything that a notebook shows: whole HTML, nothing that runs, bounded, and never an error."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.episode import Episode
from rlds2reverb.look import notebook as showing
from rlds2reverb.look.notebook import MOST_CARD, MOST_PICTURES
from tests.support.look.held import HOSTILE, things
from tests.support.look.pages import Page

ROOT = Path(rlds2reverb.__file__).parent
MOST = MOST_CARD + MOST_PICTURES + 5_000


def _names(member: ast.stmt) -> list[str]:
    if isinstance(member, ast.FunctionDef):
        return [member.name]
    return [ast.unparse(target) for target in member.targets] if isinstance(member, ast.Assign) else []


def classes_with_html() -> set[str]:
    found = set()
    for file in ROOT.rglob("*.py"):
        module = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("_repr_html_" in _names(child) for child in node.body):
                found.add(f"{module}.{node.name}")
    return found


def test_every_class_that_has_html_is_in_the_table_and_is_tried_here() -> None:
    assert classes_with_html() == set(showing.SHOWN) == set(things())


@pytest.mark.parametrize("name", showing.SHOWN)
def test_it_is_whole_and_harmless_and_encodes(name: str) -> None:
    html = things()[name]._repr_html_()
    html.encode("utf-8")
    assert not any(character in html for character in ("\u202e", "\x1b", "\x00", "\u200b"))
    page = Page(html)
    assert len(html) <= MOST
    assert "cannot be shown" not in page.text or name.endswith("Episode")


@pytest.mark.parametrize("name", showing.SHOWN)
def test_what_is_broken_is_said_and_nothing_is_raised(name: str) -> None:
    thing = things()[name]
    names = [field.name for field in fields(thing)] if is_dataclass(thing) else list(thing._fields)
    for broken in names:
        for value in (None, object(), -1, {1: 2}, float("nan"), [None]):
            Page(with_field(thing, broken, value)._repr_html_())


def with_field(thing: Any, name: str, value: Any) -> Any:
    """A copy with one field that holds what it never should; no `__post_init__` looks at it."""
    if isinstance(thing, tuple):
        return thing._replace(**{name: value})  # type: ignore[attr-defined]
    copy = object.__new__(type(thing))
    copy.__dict__.update({**vars(thing), name: value})
    return copy


def test_subclasses_are_shown_as_their_parents_are() -> None:
    class Mine(Episode):
        pass

    assert Page(Mine({"a": np.zeros(2)}, id="mine")._repr_html_()).text.startswith("Episode mine")


def test_a_class_without_a_line_is_a_mistake_of_ours() -> None:
    with pytest.raises(LookupError, match="int: expected one of"):
        showing.shown(3)


def test_text_is_what_is_seen() -> None:
    page = Page(things()["rlds2reverb.episode.Episode"]._repr_html_())
    assert '<script>alert("1")</script>&\\u202e\\x1b[31m\\x00\\ud800\\u200b\\n' in page.text
    assert HOSTILE not in page.text


def test_importing_an_episode_loads_nothing_of_this() -> None:
    code = (
        "import json, sys, numpy, rlds2reverb; one = rlds2reverb.Episode({'a': numpy.zeros(2)});"
        "before = [name for name in sys.modules if 'notebook' in name]; html = one._repr_html_();"
        "print(json.dumps([before, 'grpc' in sys.modules, 'click' in sys.modules, 'tensorflow' in sys.modules]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [[], False, False, False]
