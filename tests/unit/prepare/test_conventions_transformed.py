"""What a push finds in episodes whose columns a transform made."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.episode import Array, Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import Transform, Transformed, transformed
from rlds2reverb.prepare.conventions import Conventions, fill_absent
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.standard import Standard
from rlds2reverb.specs import ArraySpec, Nest
from tests.unit.formats.test_transform_transformed import WHOLE, robot, source, with_column


def problems(bad: Episode, transform: Transform = WHOLE, like: Episode | None = None) -> list[Problem]:
    """What a push finds in an episode of a dataset whose spec is that of another one."""
    changed = transformed(source(like or robot(0), bad), transform)
    assert isinstance(changed, Transformed)
    *_, episode = changed
    return Standard.of(changed.spec(), Conventions()).problems(fill_absent(episode))


def test_a_good_episode_has_no_problems() -> None:
    assert problems(robot(1)) == []


@pytest.mark.parametrize(
    ("path", "column", "reason"),
    [
        ("action/arm", np.zeros((4, 4), np.float32), "expected rows of float32[3], got float32[4]"),
        ("action/arm", np.zeros((4, 3)), "expected rows of float32[3], got float64[3]"),
        ("action/arm", None, "expected it in every episode; found ['action/grip', 'discount', "),
        ("action/grip", np.zeros(3, bool), "expected columns of equal length, got action/grip 3, action/arm 4"),
        ("observation/image", np.zeros((4, 3, 4, 3), np.uint8), "expected rows of uint8[6, 5, 3], got uint8[3, 4, 3]"),
        ("observation/image", np.zeros((4, 6, 5, 3), np.float32), "expected rows of uint8[6, 5, 3], got float32"),
    ],
)
def test_what_the_transform_reads_must_be_as_the_spec_says(path: str, column: Array | None, reason: str) -> None:
    """Whatever would come out, even columns of the right shape, such as an image that has the wanted size already."""
    found = problems(with_column(path, column))
    assert (found[0].code, found[0].path) == ("untransformed", path)
    assert reason in found[0].detail
    made = "action" if path.startswith("action") else "observation/image"
    assert ("missing_column", made) in [(one.code, one.path) for one in found]


def test_two_errors_do_not_make_a_right_action() -> None:
    swapped = Transform(action="concat(arm, mode)")
    bad = with_column("action/arm", np.zeros((4, 1), np.float32)).columns
    bad = {**bad, "action/mode": np.zeros((4, 3), np.int32)}
    found = problems(robot(1).with_only_columns(bad), swapped)
    assert [one.path for one in found if one.code == "untransformed"] == ["action/arm", "action/mode"]


def test_an_integer_that_float32_does_not_hold_is_refused() -> None:
    exact = with_column("action/mode", np.full((4, 1), 2**24, np.int32))
    assert problems(exact, Transform(action="concat(mode)")) == []
    found = problems(with_column("action/mode", np.full((4, 1), 2**24 + 1, np.int32)), Transform(action="concat(mode)"))
    assert (found[0].code, found[0].path) == ("untransformed", "action/mode")
    assert "step 0 has 16777217: expected integers of at most 16,777,216" in found[0].detail


def test_images_without_pixels_are_refused_where_sizes_are_free() -> None:
    class Free(EpisodeList):
        def spec(self) -> Nest:
            flat = super().spec()
            return {**flat, "observation": {"image": ArraySpec((None, None, 3), np.dtype(np.uint8))}}

    episodes = [Episode({**robot(0).columns, "observation/image": np.zeros((4, *shape), np.uint8)}, id=f"{shape}")
                for shape in [(0, 5, 3), (9, 2, 3), (1, 1, 3)]]  # fmt: skip
    changed = transformed(Free(episodes), Transform(select=["*/image", "action"], resize={"observation/image": "2x2"}))
    empty, *good = changed
    assert empty.faults == (("observation/image", "images of 0x5 pixels cannot be resized"),)
    assert [one.columns["observation/image"].shape for one in good] == [(4, 2, 2, 3)] * 2


def test_what_is_only_taken_is_left_to_validation_under_its_new_name() -> None:
    found = problems(with_column("observation/state", np.zeros((4, 9), np.float32)))
    assert found == [Problem("shape", "proprio", "expected rows of [2], got [9]")]
    assert [one.code for one in problems(with_column("observation/state", None))] == ["missing_column"]
    assert problems(with_column("observation/words", np.zeros((2, 2)))) == []  # it is dropped


def test_a_column_that_the_dataset_does_not_have_is_neither_hidden_nor_taken_for_a_new_one() -> None:
    assert [(one.code, one.path) for one in problems(with_column("surplus", np.zeros(4)))] == [
        ("extra_column", "surplus")
    ]
    found = problems(with_column("proprio", np.zeros((4, 2), np.float32)))
    assert [(one.code, one.path) for one in found] == [("untransformed", "proprio")]


def test_an_episode_without_steps_is_one() -> None:
    empty = robot(1).with_only_columns({path: column[:0] for path, column in robot(1).columns.items()})
    assert [one.code for one in problems(empty)] == ["no_steps"]
