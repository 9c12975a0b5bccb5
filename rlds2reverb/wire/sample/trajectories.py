"""Trajectories of many items -> what they point to.

Source: schema.proto, FlatTrajectory{columns(1){chunk_slices(1){chunk_key(1), offset(2), length(3), index(4)}, squeeze(2)}}.

All of a trajectory's bytes are pairs of varints: a tag, and a value or a length. So numpy finds all pairs of all items at once, and
what each of them is follows from its tag and its neighbours' (`_FOLLOWS`). What protobuf's own writers never write (fields in another
order, a length of 0, unknown fields) is read by protobuf, item by item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample.pointers import Pointers, Slices
from rlds2reverb.wire.sample.varints import Varints, varints_of
from rlds2reverb.wire.schema import message_class

_COLUMN, _SLICE, _KEY, _OFFSET, _LENGTH, _INDEX, _SQUEEZE, _OTHER = range(8)

_MOST_INT32 = (1 << 31) - 1

_SMALL_BYTES = 4
"""Of offsets and lengths in a pattern, at most: whatever is in so many, it is an int32."""


def _transitions() -> Array:
    follows = {
        _COLUMN: (_SLICE,),
        _SLICE: (_KEY,),
        _KEY: (_OFFSET, _LENGTH),
        _OFFSET: (_LENGTH,),
        _LENGTH: (_INDEX, _SLICE, _SQUEEZE, _COLUMN),
        _INDEX: (_SLICE, _SQUEEZE, _COLUMN),
        _SQUEEZE: (_COLUMN,),
    }
    table = np.zeros((8, 8), bool)
    for before, after in follows.items():
        table[before, list(after)] = True
    return table


_FOLLOWS = _transitions()
"""[8, 8] bool: may the second follow the first? Of the first pair of an item see `_kinds`."""

_MAY_END = np.isin(np.arange(8), (_LENGTH, _INDEX, _SQUEEZE))

_OF_TAG = np.full(256, _OTHER, np.uint8)
_OF_TAG[[0x0A, 0x08, 0x10, 0x18, 0x20]] = (_SLICE, _KEY, _OFFSET, _LENGTH, _INDEX)


def read_trajectories(trajectories: Sequence[bytes]) -> Pointers:
    """FlatTrajectory messages -> what they point to.

    Raises:
      WireError: no such message, an item without columns, or a column without slices.
    """
    varints = varints_of(trajectories)
    pointers = None if varints is None else _read_together(varints)
    return _read_singly(trajectories) if pointers is None else pointers


class Pattern(NamedTuple):
    """A trajectory, and where in its bytes the numbers are that differ between items.

    Attributes:
      pointers: what it points to; one item.
      keys: [slices, 2] int64, the first and the last byte of every slice's key.
      lengths: [slices, 2] int64, of its length.
      offsets: [slices with an offset, 2] int64, of its offset.
      has_offset: [slices] bool.
    """

    pointers: Pointers
    keys: Array
    lengths: Array
    offsets: Array
    has_offset: Array


def pattern_of(trajectory: bytes) -> Pattern | None:
    """None when there is anything that a writer of protobuf's does not write, or an offset or a length that no item of a table has."""
    varints = varints_of([trajectory])
    if varints is None or (pointers := _read_together(varints)) is None:
        return None
    kinds = _kinds(varints.values[::2], np.zeros(1, np.int64))
    if kinds is None:
        return None
    places = np.stack([varints.starts[1::2], np.append(varints.starts[2::2], varints.size) - 1], axis=1)
    keys, lengths, offsets = (places[kinds == kind] for kind in (_KEY, _LENGTH, _OFFSET))
    if any(np.any(wide[:, 1] - wide[:, 0] >= _SMALL_BYTES) for wide in (lengths, offsets)):
        return None
    has_offset = np.zeros(len(keys), bool)
    has_offset[np.cumsum(kinds == _SLICE)[kinds == _OFFSET] - 1] = True
    return Pattern(pointers, keys, lengths, offsets, has_offset)


def _read_together(varints: Varints) -> Pointers | None:
    """None when there is anything that a writer of protobuf's does not write."""
    if np.any(varints.counts % 2) or np.any(varints.counts == 0) or not len(varints.counts):
        return None
    tags, values = varints.values[::2], varints.values[1::2]
    if tags.max() > 0xFF:
        return None
    first_pairs = np.cumsum(varints.counts // 2) - varints.counts // 2
    kinds = _kinds(tags, first_pairs)
    if kinds is None:
        return None
    at: list[Array] = [kinds == kind for kind in range(_OTHER)]
    # Is every column and every slice as long as it says? A column ends where the next one begins, a slice where the next slice, column or
    # squeeze does. Items begin with a column, so what is the last of an item ends with it.
    starts = np.append(varints.starts[::2], varints.size)  # of pairs
    slice_borders = at[_COLUMN] | at[_SLICE] | at[_SQUEEZE]
    if not (_reach(starts, values, at[_COLUMN], at[_COLUMN]) and _reach(starts, values, at[_SLICE], slice_borders)):
        return None
    small = values[~at[_KEY]]
    if small.max() > _MOST_INT32 or np.any(values[at[_LENGTH]] == 0) or np.any(values[at[_SQUEEZE]] > 1):
        return None
    column_of, slice_of = np.cumsum(at[_COLUMN]) - 1, np.cumsum(at[_SLICE]) - 1
    columns, slices = int(column_of[-1]) + 1, int(slice_of[-1]) + 1
    squeezed = np.zeros(columns, bool)
    squeezed[column_of[at[_SQUEEZE]]] = values[at[_SQUEEZE]] == 1
    return Pointers(
        Slices(
            values[at[_KEY]],
            _spread(slices, slice_of[at[_OFFSET]], values[at[_OFFSET]]),
            values[at[_LENGTH]].astype(np.int64),
            _spread(slices, slice_of[at[_INDEX]], values[at[_INDEX]]),
        ),
        np.bincount(column_of[at[_SLICE]], minlength=columns),
        squeezed,
        np.add.reduceat(at[_COLUMN], first_pairs, dtype=np.int64),
    )


def _spread(count: int, where: Array, values: Array) -> Array:
    """[count] int64: fields that are left out are 0."""
    out = np.zeros(count, np.int64)
    out[where] = values.astype(np.int64)
    return out


def _kinds(tags: Array, first_pairs: Array) -> Array | None:
    """[pairs] uint8: what each pair is; None when they do not follow each other as they should."""
    kinds = _OF_TAG[tags.astype(np.uint8)]
    is_message = kinds == _SLICE
    kinds[:-1][is_message[:-1] & is_message[1:]] = _COLUMN  # a column begins with a slice, a slice with its key
    after_key = kinds[:-1] == _KEY
    kinds[1:][(kinds[1:] == _OFFSET) & ~after_key] = _SQUEEZE
    last_pairs = np.append(first_pairs[1:], len(kinds)) - 1
    if not (np.all(kinds[first_pairs] == _COLUMN) and np.all(_MAY_END[kinds[last_pairs]])):
        return None
    return kinds if np.all(_FOLLOWS[kinds[:-1], kinds[1:]]) else None


def _reach(starts: Array, values: Array, is_header: Array, is_border: Array) -> bool:
    """Whether the pairs that are headers, and what they say is in them, end at the next border."""
    borders = np.append(np.flatnonzero(is_border), len(is_border))
    header_of_border = is_header[borders[:-1]]
    headers, ends = borders[:-1][header_of_border], starts[borders[1:][header_of_border]]
    return bool(np.all(starts[headers + 1] + values[headers].astype(np.int64) == ends))


def _read_singly(trajectories: Sequence[bytes]) -> Pointers:
    slices: list[tuple[int, int, int, int]] = []
    slice_counts, squeezed, column_counts = [], [], []
    for trajectory in trajectories:
        columns = _parsed(trajectory).columns
        if not columns:
            raise WireError("sampled item: its trajectory has no columns")
        column_counts.append(len(columns))
        for column in columns:
            pieces = column.chunk_slices
            if not pieces:
                raise WireError("sampled item: a column without slices")
            slices += [(one.chunk_key, one.offset, one.length, one.index) for one in pieces]
            slice_counts.append(len(pieces))
            squeezed.append(column.squeeze)
    keys, *others = zip(*slices)
    return Pointers(
        Slices(np.array(keys, np.uint64), *(np.array(values, np.int64) for values in others)),
        np.array(slice_counts, np.int64),
        np.array(squeezed, bool),
        np.array(column_counts, np.int64),
    )


def _parsed(trajectory: bytes) -> Any:
    try:
        return message_class("FlatTrajectory").FromString(trajectory)
    except DecodeError as error:
        raise WireError(f"FlatTrajectory: {len(trajectory)} bytes that are no such message ({error})") from error
