"""Records of a TFDS dataset -> columns [T, ...] and metadata: a `tf.train.Example` as numpy arrays, by what features.json says.

An Example is a map of keys to lists of 64-bit integers, of 32-bit floats, or of byte strings. A list of numbers is as a
rule packed: floats one after another are the array itself, integers are varints, which numpy decodes a list at a time.
Lists that are not packed, or in several pieces, are as legal; protobuf reads those.

The messages are described so that protobuf copies the numbers' bytes and does not make a Python object of each.
Sources: example.proto and feature.proto of TensorFlow 2.15; https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Union

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import FLAGS, Array
from rlds2reverb.errors import SourceError, SpecError
from rlds2reverb.formats.tfds.features import (
    ZLIB,
    DictFeature,
    Feature,
    SequenceFeature,
    Shape,
    TensorFeature,
    parse_features,
)
from rlds2reverb.images import NotReadHere, decode_files
from rlds2reverb.protobuf import message_classes
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, flatten
from rlds2reverb.varint import unpacked_varints

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
    if encoded.isascii():  # each is one byte
        return np.frombuffer(encoded, np.uint8)
    found = unpacked_varints(encoded)
    if found is None:
        raise SourceError(
            f"{where}: a list of integers ends within a number, or has one of more than ten bytes; the file is damaged"
        )
    return found


def _packed_start(data: bytes) -> int | None:
    """The offset of the numbers in a list packed in one piece; None if it is not packed so."""
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
    """The bytes of a list that is stored in several pieces, joined; an empty list for a feature without one."""
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


# Lists of an Example -> arrays [n, *shape] of a tensor feature: n items, one after another in the list.
#
# | dtype | stored as | note |
# | --- | --- | --- |
# | bool, integers | 64-bit integers | uint64 by its bits; others are cut to their size, as TensorFlow does |
# | float16, float32, float64 | 32-bit floats | float64 comes back as it was rounded |
# | bytes | bytes | |
# | any number with encoding `bytes` | the array's bytes, little-endian, one byte string per item | |
# | any number with encoding `zlib` | zlib of that | not decompressed further than the shape allows |
#
# Source: example_serializer.py, example_parser.py and tensor_feature.py of TFDS 4.9.10.

_MOST_BYTES = 1 << 31
"""Most bytes of one item, decompressed."""
_MOST_MISSING_BYTES = 1 << 28
"""Most bytes of an item that stands for a missing one: no byte of the file answers for its size."""
_BEST_RATIO = 1040
"""zlib makes data at most 1,032 times smaller; and a few bytes are its head and its end."""


def plain_items(tensor: TensorFeature, feature: Any, where: str) -> Array:
    """Items whose values stand in the list as they are: [n, *shape]; of a shape with a free size, one item.

    Args:
      tensor: what is expected, encoding "none".
      feature: the message with the list.
      where: what messages call it.

    Raises:
      SourceError: another kind of list, or one that is no number of items.
    """
    values = _values(tensor.dtype, feature, where)
    if not tensor.shape:
        return values
    size = tensor.size
    if len(values) % size if size else len(values):
        raise SourceError(
            f"{where}: has {len(values):,} values; expected a multiple of {size:,}, for the shape {tensor.shape}"
        )
    count = len(values) // size if size else 0
    if None in tensor.shape:
        return values.reshape(1, *(count if one is None else one for one in tensor.shape))
    return values.reshape(count, *tensor.shape)


def missing_item(tensor: TensorFeature, where: str) -> Array:
    """What TFDS reads where an optional feature is missing: the least value of the dtype, False, or an empty text; [1, *shape].

    Raises:
      SourceError: it would have more than 256 MiB.
    """
    shape, dtype = (1, *(size or 0 for size in tensor.shape)), tensor.dtype
    if math.prod(shape) * dtype.itemsize > _MOST_MISSING_BYTES:
        raise SourceError(
            f"{where}: is missing, and what stands for it, of the shape {tensor.shape}, would have more than "
            f"{_MOST_MISSING_BYTES:,} bytes"
        )
    if dtype.kind == "O":
        return np.full(shape, b"", object)
    if dtype.kind == "b":
        return np.zeros(shape, bool)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # of float64, a list of 32-bit floats holds -inf
            return np.full(shape, np.finfo(dtype).min).astype(np.float32).astype(dtype)
    return np.full(shape, np.iinfo(dtype).min, dtype)


def encoded_items(tensor: TensorFeature, values: Sequence[bytes], shapes: Array | None, where: str) -> Array:
    """Items that are byte strings: [n, *shape]. All have one shape.

    Args:
      tensor: what is expected, encoding "bytes" or "zlib".
      values: one byte string per item.
      shapes: [n, dimensions], where the tensor `is_dynamic`; else None.
      where: what messages call it.

    Raises:
      SourceError: a byte string of another size, that cannot be decompressed; or items of different shapes.
    """
    if not values:
        return np.zeros((0, *(size or 0 for size in tensor.shape)), tensor.dtype)
    shape = tensor.shape if shapes is None else _common_shape(tensor, shapes, len(values), where)
    if None in shape:
        values = _unpacked_alike(tensor, values, where)
        shape = _divided(tensor, len(values[0]), where)
        data = _joined(values, math.prod(filter(None, shape)) * tensor.dtype.itemsize if 0 not in shape else 0, where)
    else:
        data = _data(tensor, values, math.prod(size or 0 for size in shape) * tensor.dtype.itemsize, where)
    return _as_dtype(data, tensor.dtype).reshape(len(values), *(size or 0 for size in shape))


def _values(dtype: np.dtype[Any], feature: Any, where: str) -> Array:
    """A list of an Example as the dtype; [n]."""
    kind = dtype.kind
    if kind == "f":
        return _as_float(floats(feature, where), dtype)
    if kind == "O":
        return np.array(texts(feature, where), object)
    return integers(feature, where).astype(dtype)  # to bool: whether it is another number than 0


def _as_float(values: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == values.dtype:
        return values
    with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
        return values.astype(dtype)


def _common_shape(tensor: TensorFeature, shapes: Array, count: int, where: str) -> tuple[int, ...]:
    """The shape of all items; a dynamic one is stored with every item."""
    if len(shapes) != count:
        raise SourceError(f"{where}: has {count:,} values and {len(shapes):,} shapes")
    first = tuple(int(size) for size in shapes[0])
    if (shapes != shapes[0]).any():
        other = next(tuple(int(size) for size in one) for one in shapes if tuple(one) != first)
        raise SourceError(f"{where}: items of different shapes, {first} and {other}; all of an episode must have one")
    if any(size < 0 or wanted not in (None, size) for size, wanted in zip(first, tensor.shape)):
        raise SourceError(f"{where}: an item of the shape {first}; expected {tensor.shape}")
    if math.prod(size or 1 for size in first) * tensor.dtype.itemsize > _MOST_BYTES:  # a size of 0 makes room for none
        raise SourceError(f"{where}: an item of the shape {first}, of more than {_MOST_BYTES:,} bytes")
    return first


def _divided(tensor: TensorFeature, length: int, where: str) -> tuple[int, ...]:
    """The shape of an item of so many bytes, where one size is free."""
    size = tensor.size * tensor.dtype.itemsize
    if length % size if size else length:
        raise SourceError(
            f"{where}: has {length:,} bytes; expected a multiple of {size:,}, for the shape {tensor.shape}"
        )
    return tuple((length // size if size else 0) if one is None else one for one in tensor.shape)


def _data(tensor: TensorFeature, values: Sequence[bytes], size: int, where: str) -> Any:
    """The bytes of all items, each of `size` bytes."""
    if tensor.encoding != ZLIB:
        return _joined(values, size, where)
    if len(values) * size > _BEST_RATIO * (sum(map(len, values)) + len(values)):
        raise SourceError(f"{where}: too short for items of {size:,} bytes; the file is damaged")
    try:
        out = np.empty((len(values), size), np.uint8)
    except MemoryError as error:
        raise SourceError(f"{where}: no memory for {len(values):,} items of {size:,} bytes") from error
    for row, value in zip(out, values):
        row[:] = np.frombuffer(_sized(_unpacked(tensor, value, size, where), size, where), np.uint8)
    return out


def _joined(values: Sequence[bytes], size: int, where: str) -> bytes:
    for value in values:
        _sized(value, size, where)
    return b"".join(values)


def _sized(value: bytes, size: int, where: str) -> bytes:
    if len(value) != size:
        raise SourceError(
            f"{where}: an item of {len(value):,} bytes; expected {size:,}, as its shape and the others have"
        )
    return value


def _unpacked_alike(tensor: TensorFeature, values: Sequence[bytes], where: str) -> list[bytes]:
    """Items of a shape with a free size. All have one shape, so none is decompressed further than the first."""
    first = _unpacked(tensor, values[0], _MOST_BYTES, where)
    return [first, *(_unpacked(tensor, value, len(first), where) for value in values[1:])]


def _unpacked(tensor: TensorFeature, value: bytes, most: int, where: str) -> bytes:
    """An item's bytes; decompresses at most `most` + 1 bytes."""
    if tensor.encoding != ZLIB:
        return value
    try:
        stream = zlib.decompressobj()
        found = stream.decompress(value, most + 1)
    except zlib.error as error:
        raise SourceError(f"{where}: cannot be decompressed: {error}") from error
    if len(found) > most or not stream.eof:
        raise SourceError(f"{where}: an item that is cut, or of more than {most:,} bytes when decompressed")
    return found


def _as_dtype(data: Any, dtype: np.dtype[Any]) -> Array:
    if dtype.kind != "b":
        return np.frombuffer(data, dtype)
    values: Array = np.frombuffer(data, np.uint8) != 0
    return values


# One leaf of the features: where a record has it, and how it becomes an array.
#
# Names are joined by "/", and so are keys: the feature `steps/observation/state` is stored under that key, all steps one
# after another. A sequence in a sequence has its values under `KEY/ragged_flat_values`, and the lengths of its rows under
# `KEY/ragged_row_lengths_0` (and `_1`, ... where it is deeper). A tensor of several free sizes is two keys, `KEY/value` and
# `KEY/shape`. A list that is missing is an empty one, but for a single value.
# Source: example_serializer.py and example_parser.py of TFDS 4.9.10.

Leaf = Union[TensorFeature, ImageSpec]

_MOST_VALUES = 1 << 48
"""Most values of a column, as far as its sizes are known: no memory holds more, and numpy cannot say their bytes."""
_MOST_WITHOUT_VALUES = 1 << 24
"""The same where a size is 0. A record may have 2^31 steps of it, for they take no bytes."""

_FILES = TensorFeature((), np.dtype(object))
"""An image that stays its file's bytes."""


@dataclass(frozen=True)
class Column:
    """A leaf.

    Attributes:
      path: its name.
      leaf: what one item is.
      lengths: of the sequences around an item, None where free; those of steps count.
      key: where its values are.
      shape_key: where the shapes of the items are, or None.
      row_keys: where the lengths of rows are: of each sequence in a sequence.
    """

    path: str
    leaf: Leaf
    lengths: Shape
    key: bytes
    shape_key: bytes | None
    row_keys: tuple[bytes, ...]

    @cached_property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole column, sequences included."""
        return ArraySpec((*self.lengths, *self.leaf.shape), self.leaf.dtype)

    @cached_property
    def step_spec(self) -> ArraySpec:
        """Shape and dtype of one step."""
        return ArraySpec(self.spec.shape[1:], self.spec.dtype)

    @cached_property
    def _empty_shape(self) -> tuple[int, ...]:
        """The shape of an item when only the features are known."""
        return tuple(size or 0 for size in self.leaf.shape)

    def encoded(self) -> Column:
        """The same column of an image as its file's bytes."""
        return replace(self, leaf=_FILES)

    def read(self, features: Features, where: str) -> Any:
        """The column of one record: [length, ..., *shape]; without sequences a value: an array, a number or bytes.

        Args:
          features: of the record.
          where: what messages call the record.

        Raises:
          SourceError: it is damaged, missing, or of another form than the features say.
        """
        where = f'{where}, feature "{self.path}"'
        if not self.lengths:
            return self._single(features, where)
        items = self._items(features, where)
        rows = [_list_of_integers(features, key, where) for key in self.row_keys]
        return _as_rows(items, rows, self.lengths[1:], where) if rows else items

    def _single(self, features: Features, where: str) -> Any:
        feature = features.get(self.key)
        if feature is None or is_empty(feature):
            return self._missing(where)
        items = self._items(features, where)
        if len(items) != 1:
            if self.spec.shape and 0 in self.spec.shape:
                return np.zeros(self._empty_shape, self.leaf.dtype)
            raise SourceError(f"{where}: has {len(items):,} values; expected one of the shape {self.leaf.shape}")
        return items[0]

    def _missing(self, where: str) -> Any:
        leaf = self.leaf
        if isinstance(leaf, TensorFeature) and leaf.is_plain:
            if leaf.is_optional:
                return missing_item(leaf, where)[0]
            if None in leaf.shape:
                return np.zeros(self._empty_shape, leaf.dtype)
        raise SourceError(f"{where}: is missing, and it is not optional")

    def _items(self, features: Features, where: str) -> Array:
        """[n, *shape], whatever the sequences around."""
        feature, leaf = features.get(self.key), self.leaf
        if feature is None:
            return np.zeros((0, *self._empty_shape), leaf.dtype)
        if isinstance(leaf, ImageSpec):
            return decode_files(leaf, texts(feature, where), where)
        if leaf.is_plain:
            return plain_items(leaf, feature, where)
        return encoded_items(leaf, texts(feature, where), self._shapes(features, where), where)

    def _shapes(self, features: Features, where: str) -> Array | None:
        if self.shape_key is None:
            return None
        sizes, dimensions = _list_of_integers(features, self.shape_key, where), len(self.leaf.shape)
        if len(sizes) % dimensions:
            raise SourceError(f"{where}: shapes of {len(sizes):,} sizes in all; expected {dimensions} each")
        return sizes.reshape(-1, dimensions)


def columns_of_feature(
    feature: Feature, path: str, where: str, lengths: Shape = (), prefix: str = ""
) -> Iterator[Column]:
    """The leaves of a feature, in the order of its names.

    Args:
      feature: with everything below it.
      path: its name; "" for the top.
      where: what messages call the file.
      lengths: of the sequences around it.
      prefix: what its key begins with, where that is not the path.

    Raises:
      NotReadHere: a combination that is not read here, nor by TFDS.
      SourceError: the sizes of a leaf and of the sequences around it make more values than any memory holds.
    """
    if isinstance(feature, DictFeature):
        for name in sorted(feature.features):
            yield from columns_of_feature(feature.features[name], _join(path, name), where, lengths, prefix)
    elif isinstance(feature, SequenceFeature):
        if feature.is_dataset and lengths:
            raise NotReadHere(f'{where}: feature "{path}": a dataset within a sequence is not read here')
        yield from columns_of_feature(feature.feature, path, where, (*lengths, feature.length), prefix)
    else:
        yield _column(feature, path, where, lengths, prefix)


def _column(leaf: Leaf, path: str, where: str, lengths: Shape, prefix: str) -> Column:
    _check_size(leaf, path, where, lengths)
    key, shape_key = _join(prefix, path), None
    if isinstance(leaf, TensorFeature):
        _check_readable(leaf, path, where, lengths)
        if leaf.is_dynamic:
            key, shape_key = f"{key}/value", f"{key}/shape"
    if len(lengths) < 2:
        return Column(path, leaf, lengths, key.encode(), shape_key.encode() if shape_key else None, ())
    rows = tuple(f"{key}/ragged_row_lengths_{level}".encode() for level in range(len(lengths) - 1))
    shapes = f"{shape_key}/ragged_flat_values".encode() if shape_key else None
    return Column(path, leaf, lengths, f"{key}/ragged_flat_values".encode(), shapes, rows)


def _check_size(leaf: Leaf, path: str, where: str, lengths: Shape) -> None:
    sizes = (*lengths, *leaf.shape)
    if math.prod(size for size in sizes if size) > (_MOST_WITHOUT_VALUES if 0 in sizes else _MOST_VALUES):
        raise SourceError(f'{where}: feature "{path}": the sizes {sizes} make more values than any memory holds')


def _check_readable(tensor: TensorFeature, path: str, where: str, lengths: Shape) -> None:
    if not tensor.is_plain:
        return
    if tensor.dtype.kind in "cV":
        raise NotReadHere(f'{where}: feature "{path}": {tensor.dtype} with encoding "none" is not read here')
    if tensor.is_dynamic or (lengths and None in tensor.shape):
        raise NotReadHere(
            f'{where}: feature "{path}": a shape with free sizes, {tensor.shape}, is not read here with encoding "none"'
        )


def _as_rows(items: Array, rows: list[Array], lengths: Shape, where: str) -> Array:
    """Items [n, *shape] -> [length, ..., *shape], or an array of objects where the rows differ, as a RaggedTensor's."""
    counts = [*map(len, rows[1:]), len(items)]
    for row, count, length in zip(rows, counts, lengths):
        if (row < 0).any() or (row > count).any() or row.sum() != count:
            raise SourceError(
                f"{where}: its rows have other lengths in all than {count:,}, and so many items there are"
            )
        if length is not None and (row != length).any():
            raise SourceError(f"{where}: a row of another length than {length}")
    if not items.size and math.prod(size or 1 for size in (*map(len, rows), *items.shape[1:])) > _MOST_VALUES:
        raise SourceError(f"{where}: {len(rows[0]):,} rows without values, of a shape that no memory holds")
    for row, length in zip(reversed(rows), reversed(lengths)):
        items = _rows(items, row, length or 0)
    return items


def _rows(items: Array, lengths: Array, when_none: int) -> Array:
    """[n, ...] -> [rows, length, ...], or an array of objects where the lengths differ."""
    if not len(lengths):
        return np.zeros((0, when_none, *items.shape[1:]), items.dtype)
    if (lengths == lengths[0]).all():
        return items.reshape(len(lengths), int(lengths[0]), *items.shape[1:])
    ends = np.cumsum(lengths)
    rows = np.empty(len(lengths), object)
    for number, (end, length) in enumerate(zip(ends, lengths)):
        rows[number] = items[end - length : end]
    return rows


def _list_of_integers(features: Features, key: bytes, where: str) -> Array:
    feature = features.get(key)
    if feature is None:
        return np.zeros(0, np.int64)
    return integers(feature, where).astype(np.int64)


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


# Records of a TFDS dataset of RLDS episodes -> columns [T, ...] and metadata, with numpy alone.

STEPS = "steps"


@dataclass(frozen=True)
class EpisodeFeatures:
    """How the episodes of a dataset are read from its records.

    Attributes:
      steps_spec: a step: a nest of `ArraySpec` without time axis, as `Source.spec()` has it.
      metadata_spec: what an episode has beside its steps: a nest of `ArraySpec`.
      steps_length: how many steps every episode has, where the features say so.
    """

    steps_spec: Nest
    metadata_spec: Nest
    steps_length: int | None
    _steps: tuple[Column, ...]
    _metadata: tuple[Column, ...]

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: str) -> EpisodeFeatures:
        """From what features.json holds.

        Args:
          tree: the JSON object.
          where: what messages call the dataset or the file.

        Raises:
          NotReadHere: a feature that only TFDS can read; names it and its class.
          SourceError: the features make no sense, are absurdly large, or are not of RLDS episodes.
        """
        top = parse_features(tree, where)
        steps = _steps_of(top, where)
        return cls(
            _nest(steps.feature),
            _nest(_without_steps(top)),
            steps.length,
            tuple(_of_steps(steps, where)),
            tuple(_of_metadata(top, where)),
        )

    @property
    def images(self) -> dict[str, ArraySpec]:
        """The step columns that are stored as PNG or JPEG files: path -> shape and dtype of a step, decoded."""
        return {column.path: column.step_spec for column in self._steps if isinstance(column.leaf, ImageSpec)}

    @cached_property
    def _ragged(self) -> tuple[Column, ...]:
        return tuple(column for column in self._steps if column.row_keys)

    def encoded(self, paths: Collection[str]) -> EpisodeFeatures:
        """The same features where these columns of images stay the bytes of their files: columns of objects.

        Raises:
          SourceError: a path that is no column of images.
        """
        images = self.images
        for path in paths:
            if path not in images:
                raise SourceError(f'"{path}": not a column of images; there are: {", ".join(images) or "none"}')
        columns = tuple(column.encoded() if column.path in paths else column for column in self._steps)
        specs = {column.path: column.step_spec for column in columns}
        return replace(self, steps_spec=_with_specs(self.steps_spec, specs), _steps=columns)

    def read(self, record: bytes, where: str) -> tuple[dict[str, Array], dict[str, Any]]:
        """One episode.

        Args:
          record: a serialized `tf.train.Example`.
          where: what messages call it: the file and the record's number.

        Returns:
          The columns of steps, path -> [T, ...], and the metadata, path -> array, number or bytes; both in the order of
          their specs.

        Raises:
          SourceError: the record is damaged or does not fit the features; names the feature.
        """
        features = features_of(record, where)
        columns = {column.path: column.read(features, where) for column in self._steps}
        self._check(columns, where)
        return columns, {column.path: column.read(features, where) for column in self._metadata}

    def length_of(self, record: bytes, where: str) -> int | None:
        """How many steps an episode has, by one of its flags; None where there is none. Nothing else is decoded. Arguments and errors as `read`."""
        flag = next((column for column in self._steps if column.path in FLAGS), None)
        return None if flag is None else len(flag.read(features_of(record, where), where))

    def _check(self, columns: dict[str, Array], where: str) -> None:
        """All columns of one length; those without values have any."""
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            self._fill(columns)
            lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1 or (lengths and self.steps_length not in (None, *lengths)):
            told = ", ".join(f"{path}: {len(column):,}" for path, column in columns.items())
            raise SourceError(f"{where}: the columns of steps have different lengths, or others than expected: {told}")
        for column in self._ragged:
            if columns[column.path].ndim != 1 + len(column.step_spec.shape):
                raise SourceError(
                    f'{where}, feature "{column.path}": steps of different lengths; all of an episode must have one'
                )

    def _fill(self, columns: dict[str, Array]) -> None:
        """Columns whose steps have no values are as long as the others."""
        steps = max(map(len, columns.values()))
        for column in self._steps:
            shape = columns[column.path].shape[1:]
            if 0 in column.step_spec.shape:
                columns[column.path] = np.zeros((steps, *shape), column.leaf.dtype)


def _steps_of(top: Feature, where: str) -> SequenceFeature:
    features = top.features if isinstance(top, DictFeature) else {}
    if STEPS not in features:
        raise SourceError(f'{where}: not RLDS: an episode needs a feature "{STEPS}"; found {sorted(features)}')
    steps = features[STEPS]
    if not isinstance(steps, SequenceFeature) or not isinstance(steps.feature, DictFeature):
        raise SourceError(f'{where}: not RLDS: "{STEPS}" must be a dataset of dicts of features')
    return steps


def _without_steps(top: Feature) -> Feature:
    features = top.features if isinstance(top, DictFeature) else {}
    return DictFeature({name: feature for name, feature in features.items() if name != STEPS})


def _of_steps(steps: SequenceFeature, where: str) -> list[Column]:
    found = list(columns_of_feature(steps.feature, "", where, (steps.length,), STEPS))
    for column in found:
        if len(column.lengths) > 2:
            raise NotReadHere(f'{where}: step feature "{column.path}": a sequence of sequences in a step is ragged')
    return _in_order(found, _nest(steps.feature), where)


def _of_metadata(top: Feature, where: str) -> list[Column]:
    rest = _without_steps(top)
    for name, feature in rest.features.items() if isinstance(rest, DictFeature) else ():
        if isinstance(feature, SequenceFeature) and feature.is_dataset:
            raise NotReadHere(f'{where}: episode feature "{name}" is a dataset')
    return _in_order(list(columns_of_feature(rest, "", where)), _nest(rest), where)


def _in_order(columns: list[Column], nest: Nest, where: str) -> list[Column]:
    try:
        order = list(flatten(nest))
    except SpecError as error:
        raise SourceError(f"{where}: {error}; rename it in the dataset") from error
    return sorted(columns, key=lambda column: order.index(column.path))


def _nest(feature: Feature, lengths: tuple[int | None, ...] = ()) -> Nest:
    """The specs of a feature's leaves."""
    if isinstance(feature, DictFeature):
        return {name: _nest(child, lengths) for name, child in feature.features.items()}
    if isinstance(feature, SequenceFeature):
        return _nest(feature.feature, (*lengths, feature.length))
    return ArraySpec((*lengths, *feature.shape), feature.dtype)


def _with_specs(nest: Nest, specs: Mapping[str, ArraySpec], path: str = "") -> Nest:
    if isinstance(nest, Mapping):
        return {name: _with_specs(child, specs, f"{path}/{name}" if path else name) for name, child in nest.items()}
    return specs[path]
