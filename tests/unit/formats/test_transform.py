"""The declaration: what it takes, what it refuses, and what names it."""

from __future__ import annotations

from typing import Any

import pytest

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.transform import Transform

EVERYTHING = Transform(
    select=["observation/*", "action"],
    drop="observation/depth",
    action="concat( world_vector ,rotation_delta, /gripper)",
    resize={"observation/image": "64x48"},
    rename={"observation/image": "observation/rgb"},
    reward_last="shift",
)


def test_there_is_one_way_of_writing_it() -> None:
    assert EVERYTHING.as_dict() == {
        "action": "concat(world_vector, rotation_delta, /gripper)",
        "select": ["observation/*", "action"],
        "drop": ["observation/depth"],
        "resize": {"observation/image": "64x48:area"},
        "rename": {"observation/image": "observation/rgb"},
        "reward_last": "shift",
    }
    assert Transform(**EVERYTHING.as_dict()) == EVERYTHING
    assert list(EVERYTHING.lines()) == ["action", "select", "drop", "resize", "rename", "reward_last"]
    assert EVERYTHING.lines()["rename"] == "observation/image -> observation/rgb"


def test_nothing_is_nothing() -> None:
    assert Transform().as_dict() == Transform().lines() == {}
    assert Transform().label == ""
    assert not Transform().changes_columns


def test_what_does_the_same_has_the_same_label() -> None:
    one = Transform(select=("a", "b"), drop=("c", "d"), resize={"i": "2x3", "j": "4x4"})
    other = Transform(select=("b", "a"), drop=("d", "c"), resize={"j": "4 x 4:area", "i": "2x3"})
    assert one.label == other.label


@pytest.mark.parametrize(
    "other",
    [
        {"select": ["action"]},
        {"drop": ["action"]},
        {"action": "concat(a)"},
        {"action": "concat(a, b)"},
        {"action": "concat(b, a)"},
        {"resize": {"a": "2x3"}},
        {"resize": {"a": "3x2"}},
        {"resize": {"a": "2x3:lanczos3"}},
        {"rename": {"a": "b"}},
        {"rename": {"b": "a"}},
    ],
    ids=str,
)
def test_what_does_something_else_has_another_label(other: dict[str, Any]) -> None:
    labels = ["", Transform(select=["observation"]).label, Transform(resize={"a": "2x4"}).label]
    assert Transform(**other).label not in labels
    assert Transform(**other).label == Transform(**other, reward_last="shift").label


def test_a_shift_of_rewards_is_the_conventions_own() -> None:
    shift = Transform(reward_last="shift")
    assert not shift.changes_columns
    assert shift.label == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"select": 5}, "select: 5: expected a list of paths"),
        ({"select": [5]}, "select: 5: expected a path of a column"),
        ({"select": {"a": "b"}}, "select: {'a': 'b'}: expected a list of paths"),
        ({"drop": [""]}, "drop: '': expected a path of a column"),
        ({"drop": ["a//b"]}, "drop: 'a//b': expected a path"),
        ({"drop": ["/a"]}, "drop: '/a': expected a path"),
        ({"drop": ["a\nb"]}, r"drop: 'a\\nb': expected a path"),
        ({"drop": ["a", "b", "a"]}, 'drop: "a" stands twice'),
        ({"action": "sum(a)"}, r"action: 'sum\(a\)': expected concat\(PATH, PATH, ...\)"),
        ({"action": ["a"]}, r"action: \['a'\]: expected concat"),
        ({"action": "concat()"}, "action: '': expected a path"),
        ({"action": "concat(a, a)"}, 'action: "action/a" stands twice'),
        ({"action": "concat(a, /action/a)"}, 'action: "action/a" stands twice'),
        ({"resize": ["a"]}, r"resize: \['a'\]: expected a mapping"),
        ({"resize": {"a": "big"}}, 'resize: "a": .big.: expected HEIGHTxWIDTH'),
        ({"resize": {7: "2x2"}}, "resize: 7: expected a path"),
        ({"rename": "a"}, "rename: 'a': expected a mapping"),
        ({"rename": {"a": ""}}, "rename: '': expected a path"),
        ({"rename": {"a": None}}, "rename: None: expected a path"),
        ({"reward_last": "first"}, "reward_last: 'first': expected one of as_recorded, shift"),
        ({"reward_last": ["shift"]}, r"reward_last: \['shift'\]: expected one of"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_its_operation(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Transform(**given)
