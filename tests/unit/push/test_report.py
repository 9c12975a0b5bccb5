"""The report of a push: totals, rates and plain values."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.prepare.progress import Progress
from rlds2reverb.push.report import PushReport, ReportSums


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
        "filtered": {},
        "workers": 0,
        "parts_again": 0,
        "ends_found_late": 0,
        "episodes_left_out": 0,
        "episodes_deleted": 0,
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


# Accounts of parts, added: every number of a report is a sum, or has its own way.

TYPES: dict[str, Any] = {field.name: field.type for field in fields(PushReport)}
NUMBERS = [name for name, told in TYPES.items() if told == "int"]
COUNTS = [name for name, told in TYPES.items() if told == "Mapping[str, int]"]
OWN = {"workers", "parts_again", "items_moved", "ends_found_late"}
"""Numbers of the whole push, which its parts do not have."""

small = st.integers(0, 9)
reports = st.builds(
    PushReport,
    st.just("s"),
    st.just(("t",)),
    st.just("v"),
    **dict.fromkeys(NUMBERS, small),
    **{name: st.dictionaries(st.sampled_from("abc"), st.integers(1, 9)) for name in COUNTS},
)


@given(st.lists(reports, max_size=4), st.lists(reports, max_size=2))
def test_parts_add_up_and_a_copy_goes_its_own_way(parts: list[PushReport], more: list[PushReport]) -> None:
    added = ReportSums(*parts)
    both = deepcopy(added)
    for report in more:
        both.add(report)
    for found, of in ((added, parts), (both, [*parts, *more])):
        told: dict[str, Any] = found.fields()
        assert told.keys() == {*NUMBERS, *COUNTS} - OWN
        for name in told.keys() & set(NUMBERS):
            assert told[name] == sum(getattr(report, name) for report in of)
        for name in COUNTS:
            every = [(key, count) for report in of for key, count in getattr(report, name).items()]
            assert told[name] == {key: sum(c for k, c in every if k == key) for key, _ in every}
            assert list(told[name]) == list(dict.fromkeys(key for key, _ in every))
