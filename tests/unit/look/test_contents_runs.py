"""Texts and flags as runs of steps."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.look import contents
from rlds2reverb.look.contents import flag_text, text_lines
from tests.support.pictures import png


def texts(*values: Any) -> Any:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def test_the_examples_of_the_docstrings_run() -> None:
    assert doctest.testmod(contents, extraglobs={"np": np}).failed == 0


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_a_flag_tells_where_it_is_true(values: list[bool]) -> None:
    told = flag_text(np.array(values))
    if told in ("never", "always"):
        assert set(values) == {told == "always"}
        return
    steps = set()
    for part in told.removeprefix("at ").split(", "):
        first, _, last = part.partition(" to ")
        steps |= set(range(int(first), int(last or first) + 1))
    assert steps == {step for step, value in enumerate(values) if value}


def test_many_runs_are_counted() -> None:
    assert flag_text(np.arange(40) % 2 == 0) == "at 0, 2, 4, 6, 8, 10 and 14 more steps"
    assert text_lines(texts(*(str(n).encode() for n in range(9))))[-1] == "and 3 more texts"


@pytest.mark.parametrize("hostile", [b"\x1b[2J", "\u202egnp".encode(), b"\xff\xfe", b"a\r\nb", b"\0"])
def test_texts_cannot_move_the_cursor(hostile: bytes) -> None:
    (line,) = text_lines(texts(hostile, hostile))
    assert line.isprintable()
    assert line.isascii()


def test_long_texts_are_cut_and_files_are_told_by_size() -> None:
    (line,) = text_lines(texts(b"x" * 10_000))
    assert 400 < len(line) < 420
    assert text_lines(texts(png(np.zeros((3, 4, 3), np.uint8)))) == ("image file of 3 x 4",)


def test_rows_of_several_texts() -> None:
    column = np.array([["a", "b"], ["a", "b"], ["a", "c"]])
    assert text_lines(column) == ('0 to 1: "a", "b"', '2: "a", "c"')
    assert text_lines(np.empty((2, 0), object)) == ("no values",)


def test_an_empty_column_has_no_lines_and_no_flag() -> None:
    assert text_lines(texts()) == ()
    assert flag_text(np.zeros(0, bool)) == "never"
