"""Numbers fit their columns, and nothing that a terminal would obey gets through."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.cli import output
from rlds2reverb.cli.top import plain
from rlds2reverb.cli.top.rows import clock, natural, ratio, visible
from rlds2reverb.transport.http import Status, Upload
from tests.support.cli.top_status import NOW, STATUS, known

HOSTILE = ["\x1b[2J", "\x9b31m", "a\nb", "\r", "\x07", "\u202egnp.exe", "\u2028", "\x00", "\ud800"]


@given(st.floats(-1e18, 1e18))
def test_a_ratio_is_told_whatever_it_is(value: float) -> None:
    assert ratio(value)


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
