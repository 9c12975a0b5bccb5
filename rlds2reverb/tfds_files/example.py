"""A `tf.train.Example` as numpy arrays: key -> the list stored under it.

An Example is a map of keys to lists of 64-bit integers, of 32-bit floats, or of byte strings. A list of numbers is as a
rule packed: floats one after another are the array itself, integers are varints, which numpy decodes a list at a time.
Lists that are not packed, or in several pieces, are as legal; protobuf reads those.

The messages are described so that protobuf copies the numbers' bytes and does not make a Python object of each.
Sources: example.proto and feature.proto of TensorFlow 2.15; https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.protobuf import message_classes

_MESSAGES = {
    # feature.proto. A map on the wire is a repeated entry; of two entries with one key, the last counts. Lists of numbers
    # are messages, kept as their bytes.
    "BytesList": ("repeated bytes value = 1",),
    "Feature": ("BytesList bytes_list = 1", "repeated bytes float_list = 2", "repeated bytes int64_list = 3"),
    "Entry": ("bytes key = 1", "Feature value = 2"),
    "Features": ("repeated Entry feature = 1",),
    "Example": ("Features features = 1",),
    # The lists, for those that are not packed in one piece.
    "FloatList": ("repeated float value = 1",),
    "Int64List": ("repeated int64 value = 1",),
}
_CLASSES = message_classes("rlds2reverb.example", _MESSAGES)
_EXAMPLE, _FLOATS, _INTEGERS = (_CLASSES[name] for name in ("Example", "FloatList", "Int64List"))

_PACKED = 0x0A  # field 1, length-delimited
_MORE = 0x80
_LONGEST_VARINT = 10

_FEW_BYTES = 512
"""A list of so many bytes, such as a single number, is sooner read by protobuf than by numpy."""

_FLOAT32 = np.dtype("<f4")

Features = dict[bytes, Any]
"""Key -> the message of its list; see `floats`, `integers` and `texts`."""


def features_of(record: bytes, where: str) -> Features:
    """What a record holds, by key; the lists are not decoded yet.

    Args:
      record: a serialized `tf.train.Example`.
      where: what messages call it: the file and the record's number.

    Raises:
      SourceError: the bytes are no such message.
    """
    try:
        entries = _EXAMPLE.FromString(record).features.feature
    except DecodeError as error:
        raise SourceError(f"{where}: not a tf.train.Example; the file is damaged, or of another kind") from error
    return {entry.key: entry.value for entry in entries}


def is_empty(feature: Any) -> bool:
    """Whether a feature has no list of any kind; TensorFlow takes such a feature for a missing one."""
    return not (feature.float_list or feature.int64_list or feature.HasField("bytes_list"))


def floats(feature: Any, where: str) -> Array:
    """The list of floats of a feature: [n] float32, owned and aligned.

    Raises:
      SourceError: it is another kind of list, or its bytes are damaged.
    """
    lists = feature.float_list
    data = lists[0] if len(lists) == 1 else _in_one_piece(feature, lists, "floats", where)
    start = _packed_start(data)
    if start is None or (len(data) - start) % 4:
        return np.array(list(_parsed_list(_FLOATS, data, where)), np.float32)
    return np.frombuffer(data, _FLOAT32, offset=start).astype(np.float32)


def integers(feature: Any, where: str) -> Array:
    """The list of integers of a feature: [n], int64, or uint8 where all are below 128.

    Raises:
      SourceError: it is another kind of list, or its bytes are damaged.
    """
    lists = feature.int64_list
    data = lists[0] if len(lists) == 1 else _in_one_piece(feature, lists, "integers", where)
    start = _packed_start(data)
    if start is None or (len(data) <= _FEW_BYTES and not data.isascii()):
        return np.array(list(_parsed_list(_INTEGERS, data, where)), np.int64)
    return varints(data[start:], where)


def texts(feature: Any, where: str) -> list[bytes]:
    """The list of byte strings of a feature.

    Raises:
      SourceError: it is another kind of list.
    """
    found = list(feature.bytes_list.value)
    if not found and not feature.HasField("bytes_list") and not is_empty(feature):
        raise _another_kind(feature, "byte strings", where)
    return found


def varints(encoded: bytes, where: str) -> Array:
    """Varints one after another -> their values [n]: int64, or uint8 where all are below 128.

    Raises:
      SourceError: the last is cut, or one has more than ten bytes.
    """
    data = np.frombuffer(encoded, np.uint8)
    if encoded.isascii():  # each is one byte
        return data
    ends = np.flatnonzero(data < _MORE)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise SourceError(f"{where}: the list of integers is cut in the middle of a number; the file is damaged")
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _LONGEST_VARINT:
        raise SourceError(
            f"{where}: an integer of {longest} bytes; expected at most {_LONGEST_VARINT}; the file is damaged"
        )
    return _decoded(data, starts, lengths, longest)


def _decoded(data: Array, starts: Array, lengths: Array, longest: int) -> Array:
    """Varints [m] whose bytes begin at `starts`; one round per byte of the longest."""
    values = (data[starts] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        bits = (data[starts[longer] + place] & 0x7F).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * place)
    return values.view(np.int64)


def _packed_start(data: bytes) -> int | None:
    """Where the numbers begin in a list that is packed in one piece; None when it is not."""
    if not data:
        return 0
    if data[0] != _PACKED:
        return None
    length = shift = 0
    for at in range(1, min(len(data), _LONGEST_VARINT)):  # of the length
        length |= (data[at] & 0x7F) << shift
        if data[at] < _MORE:
            return at + 1 if length == len(data) - at - 1 else None
        shift += 7
    return None


def _in_one_piece(feature: Any, lists: Any, kind: str, where: str) -> bytes:
    """The bytes of a list in several pieces, which are as good as one; of a feature without lists, those of an empty one."""
    if not lists and not is_empty(feature):
        raise _another_kind(feature, kind, where)
    return b"".join(lists)


def _parsed_list(message: Any, data: bytes, where: str) -> Any:
    try:
        return message.FromString(data).value
    except DecodeError as error:
        raise SourceError(f"{where}: its list is damaged; the file is damaged, or of another kind") from error


def _another_kind(feature: Any, expected: str, where: str) -> SourceError:
    kinds = {
        "floats": feature.float_list,
        "integers": feature.int64_list,
        "byte strings": feature.HasField("bytes_list"),
    }
    found = next((kind for kind, there in kinds.items() if there), "no list")
    return SourceError(f"{where}: expected a list of {expected}, found {found}: features.json does not fit the files")
