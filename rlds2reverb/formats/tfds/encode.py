"""Columns of an episode -> a `tf.train.Example`, a column at a time: the keys and lists that `example` describes.

A message is kept as pieces and their size until the whole is known, so that values are copied once.
Sources: example.proto and feature.proto of TensorFlow 2.15; example_serializer.py of TFDS 4.9.10.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.encoding import png_files
from rlds2reverb.episode import Array, Episode, byte_view
from rlds2reverb.formats.destination import UnfitEpisode
from rlds2reverb.formats.tfds.columns import Column
from rlds2reverb.formats.tfds.features import NONE, ZLIB, TensorFeature
from rlds2reverb.formats.tfds.tfrecord import MOST_BYTES
from rlds2reverb.protobuf import bytes_field, packed_varints, varint
from rlds2reverb.specs import ImageSpec

_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"
"""Tags of the first three fields of a message, where these have a length."""

_TEXTS, _FLOATS, _INTEGERS = _FIRST, _SECOND, _THIRD
"""Tags of the three kinds of lists in a Feature."""


class Message(NamedTuple):
    """Part of a message: buffers, one after another, and their bytes."""

    pieces: list[Any]
    size: int


def join_entries(entries: Iterable[Message]) -> bytes:
    pieces: list[Any] = [b""]
    size = 0
    for entry in entries:
        pieces += entry.pieces
        size += entry.size
    pieces[0] = _FIRST + varint(size)
    return b"".join(pieces)


def encode_column(column: Column, values: Array) -> list[Message]:
    """The entries of a record's map for a column [n, *shape] of the steps, or one value of the episode; of sequences, [n, length, *shape]."""
    if column.row_keys:
        lengths, items = np.full(len(values), values.shape[1]), values.reshape(-1, *values.shape[2:])
        return [_integers(column.row_keys[0], lengths), _encode_items(column, items)]
    entries = [_encode_items(column, values)]
    if column.shape_key is not None:
        entries.append(_integers(column.shape_key, np.tile(np.array(values.shape[1:], np.int64), len(values))))
    return entries


def _encode_items(column: Column, values: Array) -> Message:
    leaf = column.leaf
    if isinstance(leaf, ImageSpec):
        return _texts(column.key, values.tolist() if values.dtype.kind == "O" else png_files(values))
    if leaf.dtype.kind == "O":
        return _texts(column.key, values.ravel().tolist())
    if leaf.encoding != NONE:
        return _encode_bytes(column.key, leaf, values)
    if leaf.dtype.kind == "f":
        return _packed(column.key, _FLOATS, byte_view(np.ascontiguousarray(values, "<f4")))
    if leaf.dtype.kind == "b":  # False and True are varints of one byte as they stand in memory
        return _packed(column.key, _INTEGERS, values.tobytes())
    # A list holds int64: uint64 goes there by its bits, and smaller ones first grow, so that they keep their value.
    signed = values.astype(np.uint64).view(np.int64) if leaf.dtype.kind == "u" else values.astype(np.int64)
    return _integers(column.key, signed.ravel())


def _encode_bytes(key: bytes, leaf: TensorFeature, values: Array) -> Message:
    """One text per item: its bytes, little-endian, in C order."""
    dtype = np.dtype(np.uint8) if leaf.dtype.kind == "b" else leaf.dtype.newbyteorder("<")
    plain = np.ascontiguousarray(values, dtype)
    size = plain[0].nbytes if len(plain) else 0
    flat = byte_view(plain).reshape(len(plain), size)
    if leaf.encoding == ZLIB:
        return _texts(key, [zlib.compress(row) for row in flat])
    # All texts have one size, so their heads are equal: numpy writes the column at once.
    head = np.frombuffer(_FIRST + varint(size), np.uint8)
    whole = np.empty((len(flat), len(head) + size), np.uint8)
    whole[:, : len(head)], whole[:, len(head) :] = head, flat
    return _entry(key, _TEXTS, [whole], whole.nbytes)


def _texts(key: bytes, values: Sequence[Any]) -> Message:
    pieces = []
    for value in values:
        text = value.encode() if isinstance(value, str) else value
        pieces += [_FIRST + varint(len(text)), text]
    return _entry(key, _TEXTS, pieces, sum(map(len, pieces)))


def _integers(key: bytes, values: Array) -> Message:
    return _packed(key, _INTEGERS, packed_varints(values))


def _packed(key: bytes, kind: bytes, data: Any) -> Message:
    if not len(data):
        return _entry(key, kind, [], 0)
    head = _FIRST + varint(len(data))
    return _entry(key, kind, [head, data], len(head) + len(data))


def _entry(key: bytes, kind: bytes, pieces: list[Any], size: int) -> Message:
    """A field of Features: the key, and behind it the Feature that has a list of this kind."""
    feature = kind + varint(size)
    value = _key(key) + _SECOND + varint(len(feature) + size) + feature
    head = _FIRST + varint(len(value) + size) + value
    return Message([head, *pieces], len(head) + size)


@lru_cache(maxsize=1 << 14)
def _key(key: bytes) -> bytes:
    return bytes_field(1, key)


@dataclass(frozen=True)
class RecordLayout:
    """What the records hold: columns of the steps and features of the episode, and the content of features.json for both."""

    steps: Sequence[Column]
    metadata: Sequence[Column]
    tree: Mapping[str, Any]

    def encode(self, episode: Episode) -> bytes:
        """Encodes the record of an episode. Raises `UnfitEpisode` if it is too large for one."""
        entries = [entry for column in self.steps for entry in encode_column(column, episode.columns[column.path])]
        for column in self.metadata:
            value = episode.metadata[column.path]
            if column.leaf.dtype.kind == "O" and not column.spec.shape:
                item = np.array([value[()] if isinstance(value, np.ndarray) else value], object)
            else:
                item = np.asarray(value)[None]  # as the values of one step
            entries += encode_column(column, item)
        record = join_entries(entries)
        if len(record) > MOST_BYTES:
            raise UnfitEpisode(
                "",
                f"a record of {len(record):,} bytes; TFDS reads at most {MOST_BYTES:,}: cut the episode, or leave it out by on_invalid=skip "
                "(--on-invalid skip), or columns by --transform drop=... --restart",
            )
        return record
