"""Accounts of parts, added: every number of a report is a sum, or has its own way."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.push.report import PushReport, ReportSums

TYPES: dict[str, Any] = {one.name: one.type for one in fields(PushReport)}
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
    for one in more:
        both.add(one)
    for found, of in ((added, parts), (both, [*parts, *more])):
        told: dict[str, Any] = found.fields()
        assert told.keys() == {*NUMBERS, *COUNTS} - OWN
        for name in told.keys() & set(NUMBERS):
            assert told[name] == sum(getattr(one, name) for one in of)
        for name in COUNTS:
            every = [(key, count) for one in of for key, count in getattr(one, name).items()]
            assert told[name] == {key: sum(c for k, c in every if k == key) for key, _ in every}
            assert list(told[name]) == list(dict.fromkeys(key for key, _ in every))
