"""Joins numbers of several columns into one vector per step: `concat(world_vector, rotation_delta, gripper)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.specs import ArraySpec

_WRITTEN, _END = "concat(", ")"


def parts_of(text: str) -> tuple[str, ...] | None:
    """The paths in "concat(PATH, PATH, ...)"; None when it is not of that form."""
    text = text.strip()
    if not text.startswith(_WRITTEN) or not text.endswith(_END):
        return None
    return tuple(part.strip() for part in text[len(_WRITTEN) : -len(_END)].split(","))


def written(parts: Sequence[str]) -> str:
    """The way back."""
    return f"{_WRITTEN}{', '.join(parts)}{_END}"


def joined_spec(parts: Sequence[ArraySpec]) -> ArraySpec | None:
    """The spec of what is joined along the last axis, or None when it cannot be: not numbers, or shapes that do not go together.

    A scalar counts as a vector of one number. Truth values and integers become the floats of the others; floats become the widest
    among them, at least float32. So nothing is rounded, as long as integers are small enough; `too_large` tells.
    """
    if not all(_is_number(part.dtype) for part in parts):
        return None
    shapes = [part.shape or (1,) for part in parts]
    if len({shape[:-1] for shape in shapes}) > 1:
        return None
    last = [shape[-1] for shape in shapes]
    total = None if None in last else sum(size or 0 for size in last)
    return ArraySpec((*shapes[0][:-1], total), _float_of([part.dtype for part in parts]))


def joined(columns: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """[T] and [T, ..., n] columns -> [T, ..., sum of n], in their order."""
    vectors = [column[:, None] if column.ndim == 1 else column for column in columns]
    return np.concatenate([vector.astype(dtype) for vector in vectors], axis=-1)


def too_large(column: Array, dtype: np.dtype[Any]) -> str | None:
    """Why a column of integers is not exact in floats of this dtype: says the first step; None when every integer up to its largest is."""
    most = 2 ** (np.finfo(dtype).nmant + 1)
    if column.dtype.kind not in "iu" or not column.size or (int(column.max()) <= most and int(column.min()) >= -most):
        return None
    rows = column.reshape(len(column), -1)
    step = next(number for number, row in enumerate(rows) if int(row.max()) > most or int(row.min()) < -most)
    worst = max(map(int, rows[step]), key=abs)
    return f"step {step} has {worst}: expected integers of at most {most:,}, which {dtype.name} holds exactly"


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" or dtype.name == "bfloat16"


def _float_of(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    return np.result_type(np.float32, *(dtype for dtype in dtypes if dtype.kind == "f"))
