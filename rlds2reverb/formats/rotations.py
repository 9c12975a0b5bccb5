"""Rotations from one way of writing them to another, row by row: quaternions, Euler angles, matrices, 6D, axis and angle.

| name | a row | it means |
| --- | --- | --- |
| `xyzw`, `wxyz` | [4] | a unit quaternion; w is its real part. SciPy, ROS, PyBullet and TensorFlow Graphics write w last, MuJoCo, Isaac and PyTorch3D first |
| `euler` | [3] | roll, pitch, yaw in radians about the fixed axes x, y, z: R = Rz(yaw) Ry(pitch) Rx(roll) (TensorFlow Graphics; SciPy's "xyz") |
| `matrix` | [3, 3] | R, which turns column vectors: R @ v |
| `6d_rows` | [6] | the first two rows of R, one behind the other (PyTorch3D, OpenVLA's DROID) |
| `6d_columns` | [6] | its first two columns, one behind the other (Zhou et al., "On the Continuity of Rotation Representations in Neural Networks") |
| `axis_angle` | [3] | the axis times the angle in radians (SciPy's rotation vector) |

Everything goes by the matrix, in float64. Of a rotation's two quaternions the one with w >= 0 is made. Where pitch is 90 degrees up or down, roll
and yaw turn about one axis; yaw is 0 then, as in TensorFlow Graphics.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlds2reverb.episode import Array

XYZW, WXYZ = "xyzw", "wxyz"

ROW_SHAPES = {
    XYZW: (4,),
    WXYZ: (4,),
    "euler": (3,),
    "matrix": (3, 3),
    "6d_rows": (6,),
    "6d_columns": (6,),
    "axis_angle": (3,),
}
"""Name of a way to write a rotation -> the shape of a row."""

_OFF = 0.01  # by which the length of a quaternion or of a matrix's rows may differ from 1: float16 rounds less
_SMALL = 1e-8  # an angle whose square is lost beside 1 in float64
_GIMBAL = 1e-12  # of the sine of a pitch that is a right angle; TensorFlow Graphics, in float32, takes 1e-6


class NoRotation(ValueError):
    """Rows that are no rotations.

    Attributes:
      row: the first of them.
    """

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"step {row} has {why}")
        self.row = row


def convert_rotations(rows: Array, source: str, target: str) -> Array:
    """[T, *ROW_SHAPES[source]] -> [T, *ROW_SHAPES[target]] float64.

    NaN stays NaN. A quaternion, a matrix or 6D of zeros, as rows without an action hold, is no rotation at all: the identity.

    Raises:
      NoRotation: a quaternion or a matrix is further than 1 % from length 1, or two vectors of 6D lie on one line.
    """
    rows = rows.astype(np.float64)
    if source == target:
        return rows
    if source in _IDENTITIES:
        is_empty = ~rows.any(axis=tuple(range(1, rows.ndim)))
        rows[is_empty] = _IDENTITIES[source]
    if {source, target} == {XYZW, WXYZ}:
        return np.roll(rows, 1 if source == XYZW else -1, axis=-1)
    return _TO[target](_FROM[source](rows))


def _from_xyzw(rows: Array) -> Array:
    length = np.linalg.norm(rows, axis=-1)
    is_empty = length == 0
    _check(~is_empty & (np.abs(length - 1) > _OFF), lambda row: f"a quaternion of length {length[row]:.4g}, expected 1")
    x, y, z, w = (rows / np.where(is_empty, 1, length)[:, None]).T
    return _matrices(
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    )


def _from_euler(rows: Array) -> Array:
    (sr, sp, sy), (cr, cp, cy) = np.sin(rows).T, np.cos(rows).T
    return _matrices(
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    )


def _from_matrix(rows: Array) -> Array:
    off = np.abs(rows @ rows.transpose(0, 2, 1) - np.eye(3)).max(axis=(1, 2))
    is_mirror = np.linalg.det(np.nan_to_num(rows)) < 0
    _check(
        (off > _OFF) | is_mirror, lambda _: "a matrix that is no rotation: expected rows of length 1 at right angles"
    )
    return rows


def _from_6d_rows(rows: Array) -> Array:
    first = _unit(rows[:, :3])
    second = _unit(rows[:, 3:] - _dot(first, rows[:, 3:]) * first)
    return np.stack([first, second, np.cross(first, second)], axis=1)


def _from_axis_angle(rows: Array) -> Array:
    angle = np.linalg.norm(rows, axis=-1, keepdims=True)
    # sin(angle / 2) / angle, which tends to 1/2
    factor = np.where(angle < _SMALL, 0.5, np.sin(angle / 2) / np.where(angle < _SMALL, 1, angle))
    return _from_xyzw(np.concatenate([rows * factor, np.cos(angle / 2)], axis=-1))


def _to_xyzw(matrices: Array) -> Array:
    """Divides by the largest of the four components, so that nothing is lost to rounding."""
    m = matrices
    trace = m[:, 0, 0] + m[:, 1, 1] + m[:, 2, 2]
    squares = np.stack(
        [*(1 + 2 * m[:, axis, axis] - trace for axis in range(3)), 1 + trace], axis=-1
    )  # 4 x^2, ..., 4 w^2
    products = np.empty((len(m), 4, 4))  # 4 times the outer product of the quaternion with itself
    products[:, range(4), range(4)] = squares
    for row, column, value in (
        (0, 1, m[:, 0, 1] + m[:, 1, 0]),
        (0, 2, m[:, 0, 2] + m[:, 2, 0]),
        (1, 2, m[:, 1, 2] + m[:, 2, 1]),
        (0, 3, m[:, 2, 1] - m[:, 1, 2]),
        (1, 3, m[:, 0, 2] - m[:, 2, 0]),
        (2, 3, m[:, 1, 0] - m[:, 0, 1]),
    ):
        products[:, row, column] = products[:, column, row] = value
    quaternions: Array = products[np.arange(len(m)), np.argmax(np.nan_to_num(squares), axis=-1)]
    quaternions = quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)
    return np.where(quaternions[:, 3:] < 0, -quaternions, quaternions)


def _to_euler(matrices: Array) -> Array:
    r20 = matrices[:, 2, 0]
    sign = np.where(r20 < 0, -1.0, 1.0)
    is_locked = np.abs(np.abs(r20) - 1) < _GIMBAL
    roll = np.where(
        is_locked,
        np.arctan2(-sign * matrices[:, 0, 1], -sign * matrices[:, 0, 2]),
        np.arctan2(matrices[:, 2, 1], matrices[:, 2, 2]),
    )
    pitch = np.arctan2(-r20, np.hypot(matrices[:, 0, 0], matrices[:, 1, 0]))  # an arc sine is inexact near 1
    yaw = np.where(is_locked, 0.0, np.arctan2(matrices[:, 1, 0], matrices[:, 0, 0]))
    return np.stack([roll, pitch, yaw], axis=-1)


def _to_axis_angle(matrices: Array) -> Array:
    quaternions = _to_xyzw(matrices)
    length = np.linalg.norm(quaternions[:, :3], axis=-1, keepdims=True)
    angle = 2 * np.arctan2(length, quaternions[:, 3:])
    factor = np.where(length < _SMALL, 2.0, angle / np.where(length < _SMALL, 1, length))
    turns: Array = quaternions[:, :3] * factor
    return turns


def _transposed(matrices: Array) -> Array:
    return matrices.transpose(0, 2, 1)


_FROM: dict[str, Callable[[Array], Array]] = {
    XYZW: _from_xyzw,
    WXYZ: lambda rows: _from_xyzw(np.roll(rows, -1, axis=-1)),
    "euler": _from_euler,
    "matrix": _from_matrix,
    "6d_rows": _from_6d_rows,
    "6d_columns": lambda rows: _transposed(_from_6d_rows(rows)),
    "axis_angle": _from_axis_angle,
}
_TO: dict[str, Callable[[Array], Array]] = {
    XYZW: _to_xyzw,
    WXYZ: lambda matrices: np.roll(_to_xyzw(matrices), 1, axis=-1),
    "euler": _to_euler,
    "matrix": lambda matrices: matrices,
    "6d_rows": lambda matrices: matrices[:, :2].reshape(-1, 6),
    "6d_columns": lambda matrices: _transposed(matrices)[:, :2].reshape(-1, 6),
    "axis_angle": _to_axis_angle,
}


_IDENTITIES = {"matrix": np.eye(3), "6d_rows": np.eye(3)[:2].ravel(), "6d_columns": np.eye(3)[:2].ravel()}
"""What rows of zeros stand for, where zeros are no rotation and `_FROM` does not see to it."""


def _matrices(*rows: list[Array]) -> Array:
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _unit(vectors: Array) -> Array:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    _check(length[:, 0] < _SMALL, lambda _: "6D that is no rotation: expected two vectors that do not lie on one line")
    unit: Array = vectors / length
    return unit


def _dot(vectors: Array, others: Array) -> Array:
    product: Array = (vectors * others).sum(axis=-1, keepdims=True)
    return product


def _check(is_wrong: Array, why: Callable[[int], str]) -> None:
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise NoRotation(row, why(row))
