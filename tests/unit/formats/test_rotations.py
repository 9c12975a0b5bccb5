"""Rotations against matrices that are multiplied out by hand, one row at a time."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.formats.rotations import ROW_SHAPES, NoRotation, convert_rotations

AXES = np.eye(3)


def about(axis: Array, angle: float) -> Array:
    """Turns each axis of the frame about an axis of length 1: v cos + (a x v) sin + a (a.v) (1 - cos), the columns of the matrix."""
    columns = []
    for vector in AXES:
        cross = [
            axis[1] * vector[2] - axis[2] * vector[1],
            axis[2] * vector[0] - axis[0] * vector[2],
            axis[0] * vector[1] - axis[1] * vector[0],
        ]
        along = sum(float(a * v) for a, v in zip(axis, vector))
        columns.append(
            [
                v * math.cos(angle) + c * math.sin(angle) + a * along * (1 - math.cos(angle))
                for v, c, a in zip(vector, cross, axis)
            ]
        )
    return np.array(columns).T


def matrix_of(row: Array, name: str) -> Array:
    """What a row means, see the module's table."""
    if name in ("xyzw", "wxyz"):
        vector, w = (row[:3], float(row[3])) if name == "xyzw" else (row[1:], float(row[0]))
        length = math.sqrt(sum(part * part for part in vector))
        return about(np.array(vector) / length, 2 * math.atan2(length, w)) if length else np.eye(3)
    if name == "euler":
        roll, pitch, yaw = row
        return about(AXES[2], yaw) @ about(AXES[1], pitch) @ about(AXES[0], roll)
    if name == "axis_angle":
        angle = math.sqrt(sum(part * part for part in row))
        return about(row / angle, angle) if angle else np.eye(3)
    if name.startswith("6d"):
        first, second = row[:3], row[3:]
        whole = np.array([first, second, np.cross(first, second)])
        return whole if name == "6d_rows" else whole.T
    return row


angles = st.lists(st.floats(-3.1, 3.1), min_size=3, max_size=3)


def rotations(eulers: list[list[float]]) -> Array:
    return np.array([matrix_of(np.array(row), "euler") for row in eulers])


@pytest.mark.parametrize(("source", "target"), itertools.permutations(ROW_SHAPES, 2))
@given(eulers=st.lists(angles, min_size=1, max_size=4))
def test_another_way_of_writing_means_the_same_rotation(source: str, target: str, eulers: list[list[float]]) -> None:
    matrices = rotations(eulers)
    rows = convert_rotations(matrices, "matrix", source)
    assert rows.shape == (len(eulers), *ROW_SHAPES[source])
    for row, matrix in zip(rows, matrices):
        np.testing.assert_allclose(matrix_of(row, source), matrix, atol=1e-7)
    changed = convert_rotations(rows, source, target)
    assert changed.shape == (len(eulers), *ROW_SHAPES[target])
    for row, matrix in zip(changed, matrices):
        np.testing.assert_allclose(matrix_of(row, target), matrix, atol=1e-6)


@given(angles)
def test_quaternions_have_length_one_and_a_real_part_that_is_not_negative(euler: list[float]) -> None:
    (row,) = convert_rotations(np.array([euler]), "euler", "xyzw")
    assert math.isclose(float(row @ row), 1)
    assert row[3] >= 0


@pytest.mark.parametrize("pitch", [math.pi / 2, -math.pi / 2])
@pytest.mark.parametrize(("roll", "yaw"), [(0.3, 0.0), (0.0, 1.1), (0.4, -2.0)])
def test_a_pitch_of_a_right_angle_has_no_yaw(pitch: float, roll: float, yaw: float) -> None:
    matrices = rotations([[roll, pitch, yaw]])
    (row,) = convert_rotations(matrices, "matrix", "euler")
    assert row[2] == 0
    np.testing.assert_allclose(matrix_of(row, "euler"), matrices[0], atol=1e-7)


def test_the_order_of_a_quaternion_changes_without_rounding() -> None:
    rows = np.array([[0.1, -0.2, 0.3, -0.9]])
    assert convert_rotations(rows, "xyzw", "wxyz").tolist() == [[-0.9, 0.1, -0.2, 0.3]]
    assert convert_rotations(rows, "wxyz", "xyzw").tolist() == [[-0.2, 0.3, -0.9, 0.1]]
    assert convert_rotations(rows, "xyzw", "xyzw").tolist() == rows.tolist()


def test_small_and_half_turns_are_exact_enough() -> None:
    turns = np.array([[0, 0, 0], [1e-12, 0, 0], [0, math.pi, 0], [3e-5, 0, 0]])
    np.testing.assert_allclose(
        convert_rotations(convert_rotations(turns, "axis_angle", "matrix"), "matrix", "axis_angle"), turns, atol=1e-9
    )


@pytest.mark.parametrize(("source", "target"), itertools.permutations(ROW_SHAPES, 2))
def test_zeros_are_no_rotation(source: str, target: str) -> None:
    rows = np.zeros((3, *ROW_SHAPES[source]))
    rows[1] = convert_rotations(np.array([[0.1, 0.2, 0.3]]), "euler", source)[0]
    converted = convert_rotations(rows, source, target)
    assert (converted[0] == converted[2]).all()
    if {source, target} != {"xyzw", "wxyz"}:  # which only changes their order
        np.testing.assert_allclose(convert_rotations(converted, target, "matrix")[0], np.eye(3), atol=1e-12)


def test_a_quaternion_of_zeros_is_no_rotation_and_nan_stays() -> None:
    rows = np.array([[0.0, 0, 0, 0], [np.nan, 0, 0, 1]])
    euler = convert_rotations(rows, "xyzw", "euler")
    assert euler[0].tolist() == [0, 0, 0]
    assert np.isnan(euler[1]).any()


@pytest.mark.parametrize(
    ("rows", "source", "message"),
    [
        ([[0, 0, 0, 1], [0, 0, 1, 1]], "xyzw", r"step 1 has a quaternion of length 1.414, expected 1"),
        ([[0, 0, 0, 0.5]], "wxyz", "step 0 has a quaternion of length 0.5"),
        ([np.diag([1, 1, -1])], "matrix", "a matrix that is no rotation"),
        ([np.eye(3), np.ones((3, 3))], "matrix", "step 1 has a matrix that is no rotation"),
        ([[0, 0, 0, 1, 0, 0]], "6d_rows", "6D that is no rotation"),
        ([[1, 0, 0, 2, 0, 0]], "6d_columns", "6D that is no rotation"),
    ],
)  # fmt: skip
def test_what_is_no_rotation_is_refused(rows: Any, source: str, message: str) -> None:
    with pytest.raises(NoRotation, match=message):
        convert_rotations(np.array(rows, float), source, "axis_angle")
