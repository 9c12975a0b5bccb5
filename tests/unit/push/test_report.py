"""The report of a push: totals, rates and plain values."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from rlds2reverb.prepare.progress import Progress
from rlds2reverb.push.report import PushReport


def test_rejected_episodes_are_the_sum_over_codes() -> None:
    assert PushReport("source", ("t",), "view", rejected={"nan": 2, "single_step": 3}).episodes_rejected == 5
    assert PushReport("source", ("t",), "view").episodes_rejected == 0


@pytest.mark.parametrize(("items", "seconds", "rate"), [(100, 4.0, 25.0), (0, 4.0, 0.0), (100, 0.0, 0.0)])
def test_the_rate_is_items_over_seconds(items: int, seconds: float, rate: float) -> None:
    assert PushReport("source", ("t",), "view", items_confirmed=items, seconds=seconds).items_per_second == rate


def test_plain_values_go_through_json() -> None:
    report = PushReport(
        "source",
        ("a", "b"),
        "view",
        7,
        70,
        5,
        50,
        45,
        {"nan": 2},
        20,
        filled=("reward",),
        bytes=9,
        seconds=7.0,
        items_made={"a": 45},
    )
    values = json.loads(json.dumps(report.as_dict()))
    assert values == {
        "source": "source",
        "tables": ["a", "b"],
        "view": "view",
        "episodes_read": 7,
        "steps_read": 70,
        "episodes_pushed": 5,
        "steps_pushed": 50,
        "items_confirmed": 45,
        "rejected": {"nan": 2},
        "steps_rejected": 20,
        "advice": {},
        "repaired": {},
        "filled": ["reward"],
        "episodes_resumed": 0,
        "episodes_duplicate": 0,
        "bytes": 9,
        "seconds": 7.0,
        "reconnects": 0,
        "items_made": {"a": 45},
        "without_items": {},
        "left_over": {},
        "not_in_items": {},
        "items_new": None,
        "episodes_unread": None,
        "ends_mended": 0,
        "notices": [],
        "stopped": "",
        "transform": {},
        "workers": 0,
        "parts_again": 0,
        "ends_found_late": 0,
        "episodes_left_out": 0,
        "items_moved": 0,
        "servers": {},
        "episodes_unconfirmed": 0,
        "items_per_second": 45 / 7,
    }


def test_a_report_of_nothing_counts_nothing() -> None:
    values = PushReport("source", ("t",), "view").as_dict()
    assert {name: value for name, value in values.items() if value} == {
        "source": "source",
        "tables": ("t",),
        "view": "view",
    }


@pytest.mark.parametrize("account", [PushReport("source", ("t",), "view"), Progress(1, 10, None, 9, 100, 0.5)])
def test_accounts_cannot_be_changed(account: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        account.seconds = 1.0


def test_progress_waits_for_nothing_unless_it_says_so() -> None:
    assert Progress(1, 10, None, 9, 100, 0.5).waiting == ""
