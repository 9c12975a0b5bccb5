"""Numbers and words as people read them."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import text as wording
from rlds2reverb.text import counted, line_of, rate, visible


@given(st.integers(0, 10**12))
def test_only_one_is_singular(count: int) -> None:
    number, _, noun = counted(count, "episode").partition(" ")
    assert int(number.replace(",", "")) == count
    assert noun == ("episode" if count == 1 else "episodes")


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(wording).failed == 0


@pytest.mark.parametrize(
    ("error", "said"), [(ValueError("one\n  two"), "one two"), (MemoryError(), "MemoryError"), (KeyError("a"), "'a'")]
)
def test_an_error_is_said_on_one_line(error: Exception, said: str) -> None:
    assert line_of(error) == said


@given(st.just(0.0) | st.floats(1e-12, 1e15))
def test_a_rate_says_something_however_slow_it_is(per_second: float) -> None:
    assert float(rate(per_second).replace(",", "")) == pytest.approx(per_second, rel=0.05)


@given(st.text())
def test_a_visible_text_moves_no_cursor_and_keeps_what_can_be_seen(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, "-"), (0.0, "0"), (1234.0, "1,234"), (1234567, "1,234,567"), (0.25, "0.25"), (0.123456, "0.1235")],
        *[(-2.6414, "-2.641"), (1e300, "1e+300"), (float("nan"), "nan")],
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert wording.number(value) == text
