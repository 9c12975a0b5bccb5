"""Columns of an episode -> a `tf.train.Example`, a column at a time.

The keys and lists are those that `tfds_files.columns` and `tfds_files.tensors` read, where they are described.
Sources: example.proto and feature.proto of TensorFlow 2.15; example_serializer.py of TFDS 4.9.10.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.destinations.tfds.pictures import encoded_pictures
from rlds2reverb.episodes import Array
from rlds2reverb.tfds_files.columns import Column
from rlds2reverb.tfds_files.features import ZLIB, ImageFeature, TensorFeature
from rlds2reverb.wire.varint import bytes_field, varint, varint_columns, varint_width

_KEY, _VALUE = 1, 2
_TEXTS, _FLOATS, _INTEGERS = 1, 2, 3
"""Field numbers of the three kinds of lists."""
_LIST = 1
_FEATURES = _ENTRY = 1
_AT_ONCE = 1 << 16
"""Integers that are written at once, so that little memory is used."""


def example(entries: Iterable[bytes]) -> bytes:
    """The serialized Example of these entries."""
    return bytes_field(_FEATURES, b"".join([bytes_field(_ENTRY, entry) for entry in entries]))


def entries_of(column: Column, values: Array) -> list[bytes]:
    """What a record holds of a column, as entries of its map.

    Args:
      column: where its values are stored, and how.
      values: [n, *shape] items: the steps' values, or one value of the episode; of sequences, [rows] arrays of items.
    """
    if column.row_keys:
        lengths = np.array([len(row) for row in values], np.int64)
        items = np.concatenate(list(values)) if len(values) else np.zeros(0, object)
        return [_entry(column.row_keys[0], _integers(lengths)), _entry(column.key, _items(column, items))]
    entries = [_entry(column.key, _items(column, values))]
    if column.shape_key is not None:
        shapes = np.tile(np.array(values.shape[1:], np.int64), len(values))
        entries.append(_entry(column.shape_key, _integers(shapes)))
    return entries


def _items(column: Column, values: Array) -> bytes:
    """The feature that lists items [n, *shape]."""
    leaf = column.leaf
    if isinstance(leaf, ImageFeature):
        return _texts(values.tolist() if values.dtype.kind == "O" else encoded_pictures(values))
    if leaf.dtype.kind == "O":
        return _texts(values.ravel().tolist())
    return _numbers(leaf, values) if leaf.is_plain else _encoded(leaf, values)


def _numbers(leaf: TensorFeature, values: Array) -> bytes:
    if leaf.dtype.kind == "f":
        return _feature(_FLOATS, _packed(np.ascontiguousarray(values, "<f4").tobytes()))
    signed = values.astype(np.uint64).view(np.int64) if leaf.dtype.kind == "u" else values.astype(np.int64)
    return _integers(signed.ravel())


def _encoded(leaf: TensorFeature, values: Array) -> bytes:
    """One text per item: its bytes, little-endian, in C order."""
    dtype = np.dtype(np.uint8) if leaf.dtype.kind == "b" else leaf.dtype.newbyteorder("<")
    plain = np.ascontiguousarray(values, dtype)
    size = plain[0].nbytes if len(plain) else 0
    flat = np.frombuffer(plain.tobytes(), np.uint8).reshape(len(plain), size)  # bfloat16 has no buffer of its own
    if leaf.encoding == ZLIB:
        return _texts([zlib.compress(row.tobytes()) for row in flat])
    head = np.frombuffer(b"\x0a" + varint(size), np.uint8)
    whole = np.empty((len(flat), len(head) + size), np.uint8)
    whole[:, : len(head)], whole[:, len(head) :] = head, flat
    return _feature(_TEXTS, whole.tobytes())


def _texts(values: Sequence[Any]) -> bytes:
    return _feature(_TEXTS, b"".join([bytes_field(_LIST, one) for one in map(_as_bytes, values)]))


def _as_bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _integers(values: Array) -> bytes:
    """[n] int64; a negative one has ten bytes."""
    plain = values.view(np.uint64)
    data = [_varints(plain[start : start + _AT_ONCE]) for start in range(0, len(plain), _AT_ONCE)]
    return _feature(_INTEGERS, _packed(b"".join(data)))


def _varints(values: Array) -> bytes:
    """[n] uint64 -> the shortest varints, one after another."""
    width = varint_width(int(values.max()))
    if width == 1:
        return values.astype(np.uint8).tobytes()
    steps = np.uint64(1) << (np.arange(1, width, dtype=np.uint64) * np.uint64(7))
    last = (values[:, None] >= steps).sum(axis=1)  # the place of each one's last byte
    grid = varint_columns(values, width)
    grid[np.arange(len(values)), last] &= 0x7F
    shortest: Array = grid[np.arange(width) <= last[:, None]]
    return shortest.tobytes()


def _packed(data: bytes) -> bytes:
    return bytes_field(_LIST, data) if data else b""


def _feature(kind: int, data: bytes) -> bytes:
    return bytes_field(kind, data)


def _entry(key: bytes, feature: bytes) -> bytes:
    return bytes_field(_KEY, key) + bytes_field(_VALUE, feature)
