"""Numbers and words as people read them."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import text as wording
from rlds2reverb.text import compact, counted, duration, line_of, rate, size, visible


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


def value_of(text: str) -> float:
    """The number that a short text stands for."""
    scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1], 1.0)
    return float(text.rstrip("kMGTP").replace(",", "")) * scale


@given(st.just(0.0) | st.floats(1e-12, 1e15))
def test_a_rate_says_something_however_slow_it_is(per_second: float) -> None:
    assert value_of(rate(per_second)) == pytest.approx(per_second, rel=0.05)
    assert len(rate(per_second)) <= 7


@given(st.integers(0, 10**17))
def test_a_count_takes_seven_characters_and_is_right_to_a_percent(count: int) -> None:
    assert len(compact(count)) <= 7
    assert value_of(compact(count)) == pytest.approx(count, rel=0.01)


@given(st.floats(-1e18, 1e18))
def test_sizes_and_durations_are_told_whatever_they_are(value: float) -> None:
    assert size(value)
    assert duration(value)


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
