"""What is kept of an episode: its instruction, the columns that change, and those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb.look.collector import LARGE, SMALL, ActionSample, Portrait, PortraitSize, is_constant, portrait_of
from rlds2reverb.specs import column_spec
from tests.support.look.reported import robot


def portrait(size: PortraitSize = LARGE, metadata: dict[str, Any] | None = None, **columns: Any) -> Portrait:
    """Of an episode of twelve steps with these columns."""
    made = robot(0)
    there = {path: column for path, column in made.columns.items() if path != "language_instruction"}
    episode = replace(made, columns={**there, **columns}, metadata=metadata or {})
    return portrait_of(episode, {path: column_spec(column) for path, column in episode.columns.items()}, 1.0, size)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (np.ones(5), True),
        (np.array([1.0, 2.0, 1.0]), False),
        (np.full(5, np.nan), False),
        (np.ones((5, 2)), True),
        (np.array([[1, 2], [1, 3], [1, 2]]), False),
        (np.zeros(5, bool), True),
        (np.array([b"a", b"a"], object), True),
        (np.array([b"a", b"b", b"a"], object), False),
        (np.array([["a", "b"], ["a", "b"]]), True),
        (np.zeros((0, 3)), False),
        (np.zeros((3, 0)), False),
    ],
)
def test_a_column_is_constant_where_all_rows_are_the_same(column: Any, wanted: bool) -> None:
    assert is_constant(column) is wanted


def texts(*values: bytes) -> Any:
    return np.array(values or [b""], object).repeat(12 // max(1, len(values)))


def test_the_instruction_is_that_of_the_steps_or_of_the_episode() -> None:
    assert portrait().instruction == b""
    assert portrait(**{"observation/natural_language_instruction": texts(b"lift")}).instruction == b"lift"
    assert portrait(note=texts(b"by hand")).instruction == b""
    assert portrait(metadata={"language_instruction": "put"}).instruction == b"put"
    assert portrait(metadata={"task": [[1], [1, 2]]}).instruction == b""
    both = portrait(metadata={"task": b"of the episode"}, language_instruction=texts(b"of the steps"))
    assert both.instruction == b"of the steps"
    empty = portrait(language_instruction=texts(b""), language_instruction_2=texts(b"no"), **{"a/task": texts(b"yes")})
    assert empty.instruction == b"yes"


def test_reward_and_action_come_first_and_what_does_not_change_is_no_curve() -> None:
    found = portrait(a=np.arange(12.0), b=np.full(12, 2.5), c=np.ones((12, 3)), d=np.ones(12, bool))
    assert list(found.curves)[:2] == ["reward", "action"]
    assert "a" in found.curves
    assert {path: found.constants[path] for path in "bcd"} == {"b": "2.5", "c": "", "d": "1"}
    assert found.widths["observation/state"] == robot(0).columns["observation/state"].shape[1]


def test_columns_beyond_the_most_are_counted() -> None:
    more: Any = {f"more{at}": np.arange(12.0) for at in range(5)}
    found = portrait(SMALL, **more)
    assert len(found.curves) == SMALL.columns
    assert next(iter(found.curves)) == "reward"
    assert found.not_drawn >= 4


@pytest.mark.parametrize(("cameras", "frames"), [(1, 12), (2, 12), (5, 12)])
def test_cameras_share_the_images(cameras: int, frames: int) -> None:
    film = np.zeros((60, 16, 16, 3), np.uint8)
    long = robot(0, 60)
    columns = {"reward": long.columns["reward"], **{f"camera{at}": film for at in range(cameras)}}
    found = portrait_of(replace(long, columns=columns), {}, None, PortraitSize(frames * cameras, 224, 1, 1, 10))
    assert len(found.frames) == min(4, cameras)
    assert sum(len(steps) for steps, _ in found.frames.values()) <= frames * cameras
    assert all(steps[0] == 0 and steps[-1] == 59 for steps, _ in found.frames.values())


def test_actions_are_kept_of_the_same_episodes_in_any_order() -> None:
    rng = np.random.default_rng(0)
    columns = [{"action/arm": rng.normal(size=(5, 2)), "action/grip": rng.normal(size=5)} for _ in range(200)]
    spec = {path: column_spec(column) for path, column in columns[0].items()}
    one, other = ActionSample(spec, 3), ActionSample(spec, 3)
    for at in range(200):
        one.add(f"e{at}", columns[at])
        other.add(f"e{199 - at}", columns[199 - at])
    assert one.names == ["action/arm[0]", "action/arm[1]", "action/grip"]
    assert len(one.chosen.values()) == 64
    np.testing.assert_array_equal(np.concatenate(one.chosen.values()), np.concatenate(other.chosen.values()))


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"action": np.full((5, 2), np.nan)},
        {"action": np.zeros((5, 3))},
        {"action": np.array([b"a"] * 5, object)},
    ],
)
def test_actions_that_are_no_such_numbers_are_passed_over(columns: dict[str, Any]) -> None:
    actions = ActionSample({"action": column_spec(np.zeros((5, 2)))}, 0)
    actions.add("e", columns)
    assert [len(chosen) for chosen in actions.chosen.values()] == [0]
