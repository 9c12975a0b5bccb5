"""Numbers fit their columns, and nothing that a terminal would obey gets through."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.cli import output
from rlds2reverb.cli.top import plain
from rlds2reverb.cli.top.rows import clock, compact, natural, rate, ratio, size, visible
from rlds2reverb.text import duration
from rlds2reverb.transport.http import Status, Upload
from tests.unit.cli.top.made import NOW, STATUS, known

HOSTILE = ["\x1b[2J", "\x9b31m", "a\nb", "\r", "\x07", "\u202egnp.exe", "\u2028", "\x00", "\ud800"]


@given(st.integers(0, 10**17))
def test_a_count_takes_seven_characters_and_is_right_to_a_percent(count: int) -> None:
    text = compact(count)
    assert len(text) <= 7
    scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1], 1.0)
    assert float(text.rstrip("kMGTP").replace(",", "")) * scale == pytest.approx(count, rel=0.01)


@given(st.just(0.0) | st.floats(1e-9, 1e12))
def test_a_rate_takes_seven_characters_and_is_right_to_a_twentieth(per_second: float) -> None:
    text = rate(per_second)
    assert len(text) <= 7
    scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1.0)
    assert float(text.rstrip("kMGT").replace(",", "")) * scale == pytest.approx(per_second, rel=0.05)


@given(st.floats(-1e18, 1e18))
def test_sizes_ratios_and_durations_are_told_whatever_they_are(value: float) -> None:
    assert size(value)
    assert ratio(value)
    assert duration(value)


def test_a_size_keeps_three_digits_over_the_units() -> None:
    assert [size(value) for value in (0, 999, 1000, 9_999, 10_000, 999_499, 999_500, 10**18)] == [
        "0 B", "999 B", "1.00 kB", "10.0 kB", "10.0 kB", "999 kB", "1.00 MB", "1000 PB",
    ]  # fmt: skip


def test_what_is_not_finite_is_no_ratio() -> None:
    assert ratio(float("nan")) == ratio(float("inf")) == "-"


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_obey_becomes_text(text: str) -> None:
    assert visible(text).isprintable()
    assert "\\" in visible(text)


@given(st.text())
def test_any_text_is_one_visible_line(text: str) -> None:
    assert visible(text).isprintable() or not text


def test_a_text_is_cut_where_it_is_too_long_for_any_screen() -> None:
    assert len(visible("a\u0301" * 100_000)) < 1000


def test_another_day_has_its_date() -> None:
    noon = time.mktime((2026, 5, 4, 12, 0, 0, 0, 0, -1))
    assert clock(noon - 60, noon) == "11:59:00"
    assert clock(noon - 86_400, noon) == "2026-05-03 12:00:00"


def test_uploads_stand_in_lines_and_in_json() -> None:
    upload = Upload("gs://b/\x1b[2J", 3, None, 330.0, 2, "no\nanswer", 2)
    status = msgspec.convert(STATUS, Status)
    status = msgspec.structs.replace(status, checkpoints=msgspec.structs.replace(status.checkpoints, upload=upload))
    server = known(url="http://a:80", status=status, status_at=NOW)
    lines = list(plain.block((server,), "waits", False, NOW))
    assert "  uploads to gs://b/\\x1b[2J: 2 checkpoints waiting, 5 min behind" in lines
    assert "  uploads (2 failures): no answer" in lines
    found = output.plain(plain.document((server,), NOW))["servers"][0]["service"]["upload"]
    assert (found["generations"], found["waiting"], found["behind_seconds"], found["failures"]) == (3, 2, 330.0, 2)


def test_names_are_in_natural_order_whatever_digits_they_have() -> None:
    names = ["t12", "t1", "t2", "t\u0663", "t", "t01", "t" + "9" * 5_000]
    assert sorted(names, key=natural) == ["t", "t1", "t01", "t2", "t12", "t" + "9" * 5_000, "t\u0663"]
