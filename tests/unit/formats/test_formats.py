"""Formats by scheme: what is opened, what is said when nothing can be, and help made of what the formats say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import LedgerError
from rlds2reverb.extras import Lazily, how_to_install
from rlds2reverb.formats.registry import Form, Format, Reading, SourceFormats
from tests.support.raising import outcome_of


def needs(library: str) -> Callable[..., Any]:
    def open_it(_: str) -> None:
        raise ModuleNotFoundError(f"No module named '{library}'", name=library)

    return open_it


def reading(opener: Any, **more: Any) -> Reading:
    """What is opened here is no source."""
    return Reading(opener, **more)


PEN = Format(
    "pen",
    "pens",
    reading(lambda text: ("pen", text), forms=(Form("pen:COLOUR", "a pen"), Form("pen:#HEX", "ink"))),
    page="formats/pen.md",
)
BOX = Format(
    "box", "boxes", reading(lambda what: ("box", what), forms=(Form("box:SIZE", "a box", ("s", "xl")),)), extra="tfds"
)
NUMBER = Format(
    "number",
    "numbers",
    reading(lambda n: n + 1, takes=lambda it: type(it) is int, objects="an `int`", objects_are="the next"),
)


def formats_of(*formats: Format) -> SourceFormats:
    return SourceFormats("thing", "opening", LedgerError, own=lambda: formats)


ALL = formats_of(PEN, BOX, NUMBER)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pen:red", ("pen", "red")),
        ("pen:", ("pen", "")),
        ("pen", ("pen", "")),
        ("box:a:b@c?d=e:f", ("box", "a:b@c?d=e:f")),
    ],
)
def test_a_name_is_opened_by_its_scheme_with_what_stands_behind_the_first_colon(
    name: str, expected: tuple[str, str]
) -> None:
    assert ALL.open(name) == expected


SYNTAX = "expected SCHEME:NAME, where SCHEME is one of pen, box"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pan:red:1@x", '; did you mean "pen:red:1@x"?'),
        ("BOX:s", '; did you mean "box:s"?'),
        ("xl@train", '; did you mean "box:xl@train"?'),
        ("spoon:x", ""),
        ("number:3", ""),
        ("/pen/box", ""),
        (":", ""),
        ("", ""),
    ],
)
def test_a_name_of_no_scheme_is_refused_and_what_was_meant_is_guessed(name: str, hint: str) -> None:
    with pytest.raises(LedgerError) as error:
        ALL.open(name)
    assert str(error.value) == f'thing "{name}": {SYNTAX}{hint}'


@given(st.text())
def test_any_text_is_opened_or_refused(name: str) -> None:
    found = outcome_of(LedgerError, lambda: ALL.open(name))
    if isinstance(found, LedgerError):
        assert str(found).startswith(f'thing "{name}": {SYNTAX}')
    else:
        scheme, text = found
        assert name in (scheme, f"{scheme}:{text}")


def test_an_object_belongs_to_the_format_that_takes_it() -> None:
    entry = ALL.taking(3)
    assert entry is not None
    assert entry[0] is NUMBER
    assert ALL.open_as(*entry, 3) == 4
    assert ALL.taking(True) is ALL.taking("pen:red") is ALL.taking(None) is None


def test_a_missing_library_is_told_with_the_extra_that_brings_it() -> None:
    box = Format("box", "boxes", reading(needs("h5py"), forms=(Form("box:SIZE", "a box"),)), extra="tfds")
    with pytest.raises(LedgerError) as error:
        formats_of(box).open("box:s")
    assert str(error.value) == f"opening boxes needs h5py; {how_to_install('tfds')}"


@pytest.mark.parametrize(("extra", "library"), [(None, "h5py"), ("tfds", "rlds2reverb.formats.box")])
def test_what_no_extra_brings_is_a_bug_and_stays_one(extra: str | None, library: str) -> None:
    box = Format("box", "boxes", reading(needs(library), forms=(Form("box:SIZE", "a box"),)), extra=extra)
    with pytest.raises(ModuleNotFoundError, match=library):
        formats_of(box).open("box:s")


def test_rows_and_table_have_a_line_for_each_way_to_write_a_name() -> None:
    assert ALL.rows() == [("pen:COLOUR", "a pen"), ("pen:#HEX", "ink"), ("box:s, box:xl", "a box")]
    assert ALL.table().splitlines()[2:] == [
        "| `pen:COLOUR` | a pen |  | [pen](formats/pen.md) |",
        "| `pen:#HEX` | ink |  | [pen](formats/pen.md) |",
        "| `box:s`, `box:xl` | a box | `tfds` |  |",
        "| an `int` (Python) | the next |  |  |",
    ]
    assert ALL.objects == ("an int",)
    both = Format("both", "pairs", reading(str, forms=(Form("both:A|B", "two"),)))
    assert formats_of(both).table().splitlines()[2:] == [r"| `both:A\|B` | two |  |  |"]


def test_a_module_is_imported_when_its_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    lazily = Lazily("some_module_of_a_format:double")
    with pytest.raises(ModuleNotFoundError, match="some_module_of_a_format"):
        lazily(3)
    monkeypatch.setitem(sys.modules, "some_module_of_a_format", SimpleNamespace(double=lambda number: 2 * number))
    assert lazily(3) == 6
