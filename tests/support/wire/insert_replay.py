"""What items must hold when they come back from the wire, and how that is compared."""

from __future__ import annotations

import numpy as np

from rlds2reverb.cuts import Cut, Field
from rlds2reverb.episode import Array


def field_value(cut: Cut, field: Field, number: int) -> Array:
    """The slow, obvious value of one field of item `number`, as it comes back from the wire."""
    anchor = int((cut.anchors if field.anchors is None else field.anchors)[number])
    column = wire_form(cut.rows[field.column])
    rows = np.concatenate([column[anchor + window.start : anchor + window.stop] for window in field.windows])
    return rows.reshape(rows.shape[1:]) if field.squeeze else rows


def wire_form(column: Array) -> Array:
    """The column with the dtype it has after the wire: native byte order, text as object of bytes."""
    if column.dtype.kind in "OSU":
        out = np.empty(column.shape, object)
        for index in np.ndindex(column.shape):
            text = column[index]
            out[index] = text.encode() if isinstance(text, str) else bytes(text)
        return out
    return column.astype(column.dtype.newbyteorder("=")) if column.dtype.byteorder == ">" else column


def cut_values(cut: Cut, number: int) -> tuple[Array, ...]:
    """The values of the cut's item `number`."""
    return tuple(field_value(cut, field, number) for field in cut.fields.values())


def assert_same(found: Array, expected: Array) -> None:
    """Same dtype, shape and bits."""
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind == "O":
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


def assert_all_same(found: tuple[Array, ...], expected: tuple[Array, ...]) -> None:
    """As many arrays, each the same."""
    assert len(found) == len(expected)
    for actual, other in zip(found, expected):
        assert_same(actual, other)
