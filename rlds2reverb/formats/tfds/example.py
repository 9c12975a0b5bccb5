"""Records of a TFDS dataset -> columns [T, ...] and metadata, with numpy alone: features.json says what a `tf.train.Example` holds, and how.

An Example is a map of keys to lists of 64-bit integers, of 32-bit floats, or of byte strings. Lists of numbers are normally packed:
floats one after another are the array itself, integers are varints, which numpy decodes a list at a time. Lists that are not packed, or
in several pieces, are equally legal; protobuf reads those. The messages are declared so that protobuf copies the numbers' bytes and makes
no Python object of each.

A feature of features.json names the Python class that wrote it. Nothing is imported for it: classes of `tfds.features` are known by name,
and any other raises `NotReadHere`, so that TFDS can read the dataset where it is installed. The file may come from anywhere, so sizes
are bounded.

Sources: example.proto and feature.proto of TensorFlow 2.15; https://protobuf.dev/programming-guides/encoding; feature.proto, the classes of
`tensorflow_datasets.core.features`, example_serializer.py and example_parser.py of TFDS 4.9.10.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any, Union

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import FLAGS, IS_FIRST, IS_LAST, Array
from rlds2reverb.errors import SourceError, SpecError
from rlds2reverb.images import NotReadHere, decode_files
from rlds2reverb.protobuf import KEY_BYTES, message_classes, unpacked_varints
from rlds2reverb.specs import IMAGE_DTYPES, ArraySpec, ImageSpec, Nest, flatten, map_with_path, nested
from rlds2reverb.text import counted, shortened, visible

# Features: what features.json says.

STEPS = "steps"
HOME = "tensorflow_datasets.core.features."
"""What the names of TFDS' classes begin with."""
NONE, ZLIB = "none", "zlib"
ENCODINGS = (NONE, "bytes", ZLIB)

_MOST_DIMENSIONS = 16
_MOST_SIZE = 1 << 31
"""Most values of one tensor: a record has at most that many bytes."""
_MOST_DEPTH = 32
_MOST_FEATURES = 10_000  # large robot datasets have some hundred

_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_DTYPES = {
    **{name: np.dtype(name) for name in _NUMBERS.split()},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    **dict.fromkeys(("string", "str", "object"), np.dtype(object)),
}

Shape = tuple[Union[int, None], ...]


@dataclass(frozen=True)
class TensorFeature:
    """Numbers or texts (dtype object) of one shape, None where a size is free; stored as one of `ENCODINGS`, and perhaps missing in a record."""

    shape: Shape
    dtype: np.dtype[Any]
    encoding: str = NONE
    is_optional: bool = False

    @cached_property
    def size(self) -> int:
        return math.prod(size for size in self.shape if size is not None)

    @cached_property
    def least_shape(self) -> tuple[int, ...]:
        return tuple(size or 0 for size in self.shape)

    @property
    def is_dynamic(self) -> bool:
        """Whether a record has the shape beside the values."""
        return self.shape.count(None) > 1


Leaf = Union[TensorFeature, ImageSpec]
"""Images are stored as PNG or JPEG files; those of float32 as four channels of bytes."""


@dataclass(frozen=True)
class Stored:
    """A leaf of the features, within sequences of these lengths (None where free), the outermost first."""

    leaf: Leaf
    lengths: Shape = ()


class Group(dict[str, Any]):
    """Features by name, `Stored` or groups, within sequences of these lengths. A name may contain a "/"."""

    def __init__(self, lengths: Shape = (), features: Mapping[str, Any] = {}) -> None:
        super().__init__(features)
        self.lengths = lengths


_TEXT = TensorFeature((), np.dtype(object))


def parse_features(tree: Any, where: str) -> tuple[Stored | Group, str]:
    """The features in the content of features.json, and why they can be read by TFDS only ("" if they can be read here).

    Raises:
      NotReadHere: a feature that is not read here; the message names it.
      SourceError: the tree makes no sense or is absurdly large; the message says where.
    """
    whole, only_tfds, count = Group(), "", 0
    waiting: list[tuple[Any, str, int, Shape, Group, str]] = [(tree, "", 0, (), whole, "")]
    while waiting:
        node, path, depth, lengths, group, name = waiting.pop()
        at = f'{where}: feature "{shortened(path)}"' if path else where
        if not isinstance(node, Mapping):
            raise SourceError(f"{at}: expected a JSON object, found {_short(node)}")
        count += 1
        if count > _MOST_FEATURES or depth > _MOST_DEPTH:
            raise SourceError(f"{at}: more than {_MOST_FEATURES:,} features, or {_MOST_DEPTH} levels of them")
        class_name = _get(node, "pythonClassName")
        if not isinstance(class_name, str):
            raise NotReadHere(f"{at}: written by an old version of TFDS: it has no pythonClassName")
        kind = class_name.removeprefix(HOME)

        if kind == "features_dict.FeaturesDict":
            children = _object(_content(node, "featuresDict", at).get("features", {}), "features", at)
            inner = group[name] = Group(lengths)
            waiting += [
                (child, f"{path}/{key}" if path else key, depth + 1, lengths, inner, key)
                for key, child in reversed(children.items())  # popped in their order
            ]
        elif kind in ("sequence_feature.Sequence", "dataset_feature.Dataset"):
            content = _content(node, "sequence", at)
            if kind == "dataset_feature.Dataset" and lengths:
                only_tfds = only_tfds or f"{at}: a dataset within a sequence is not read here"
            elif kind == "dataset_feature.Dataset" and depth == 1 and name != STEPS:
                only_tfds = only_tfds or f'{where}: episode feature "{name}" is a dataset'
            around = (*lengths, _size(content.get("length", 0), at))
            waiting.append((content.get("feature"), path, depth + 1, around, group, name))
        elif kind == "translation_feature.Translation":
            languages = _content(node, "translation", at).get("languages", [])
            if not isinstance(languages, list) or not all(isinstance(one, str) for one in languages):
                raise SourceError(f"{at}: languages: expected names, found {_short(languages)}")
            count += len(languages)
            group[name] = Group(lengths, dict.fromkeys(languages, Stored(_TEXT, lengths)))
        elif kind == "translation_feature.TranslationVariableLanguages":
            _content(node, "translation", at)
            around = (*lengths, None)
            group[name] = Group(around, dict.fromkeys(("language", "translation"), Stored(_TEXT, around)))
        elif kind == "video_feature.Video":
            content = _content(node, "video", at)
            shape = _shape(content, at)
            if len(shape) not in (0, 4):
                raise SourceError(f"{at}: expected a video's shape (frames, height, width, channels), found {shape}")
            frames = shape[0] if shape else None
            group[name] = Stored(_image(shape[1:], content, 3, at), (*lengths, frames))
        else:
            group[name] = Stored(_leaf(node, kind, class_name, at), lengths)
    return whole[""], only_tfds


def _leaf(node: Mapping[str, Any], kind: str, class_name: str, at: str) -> Leaf:
    if kind in ("tensor_feature.Tensor", "feature.Tensor"):  # where it was in older versions
        content = _content(node, "tensor", at)
        encoding = str(content.get("encoding") or NONE).lower()
        if encoding not in ENCODINGS:
            raise SourceError(f"{at}: encoding: expected one of {', '.join(ENCODINGS)}, found {_short(encoding)}")
        dtype = _dtype(content, at)
        if encoding != NONE and dtype.kind == "O":
            raise SourceError(f"{at}: encoding {encoding} of texts; TFDS has none")
        return TensorFeature(_shape(content, at), dtype, encoding, content.get("optional") is True)
    if kind == "scalar.Scalar":
        content = _content(node, "tensor", at)
        return TensorFeature((), _dtype(content, at), NONE, content.get("optional") is True)
    if kind == "text_feature.Text":
        if "text" not in node:
            raise NotReadHere(f"{at}: a Text with an encoder, of an old version of TFDS, is not read here")
        return _TEXT
    if kind == "class_label_feature.ClassLabel":
        _content(node, "classLabel", at)
        return TensorFeature((), np.dtype(np.int64))
    if kind == "bounding_boxes.BBoxFeature":
        _content(node, "boundingBox", at)
        return TensorFeature((4,), np.dtype(np.float32))
    if kind in ("image_feature.Image", "labeled_image.LabeledImage"):
        content = _content(node, "image", at)
        return _image(_shape(content, at), content, 3 if kind == "image_feature.Image" else 1, at)
    raise NotReadHere(f"{at}: its class {_short(class_name)} is not read here, only by tensorflow-datasets")


def _image(shape: Shape, content: Mapping[str, Any], channels: int, at: str) -> ImageSpec:
    shape, dtype = shape or (None, None, channels), _dtype(content, at, "uint8")
    if dtype not in IMAGE_DTYPES:
        raise SourceError(f"{at}: expected an image of {', '.join(map(str, IMAGE_DTYPES))}, found {dtype}")
    if len(shape) == 4:
        raise NotReadHere(f"{at}: an Image of four dimensions is a GIF, which is not read here")
    if len(shape) != 3 or shape[2] not in (None, 1, 3, 4):  # TensorFlow, too, reads no image of two channels
        raise SourceError(f"{at}: expected an image's shape (height, width, 1, 3 or 4 channels), found {shape}")
    if dtype.kind == "f" and shape[2] != 1:
        raise SourceError(f"{at}: a float32 image has one channel; found {shape}")
    return ImageSpec(shape, dtype)


def _content(node: Mapping[str, Any], key: str, at: str) -> Mapping[str, Any]:
    found = _get(node, key)
    if found is None and _get(node, "jsonFeature") is not None:
        raise NotReadHere(f"{at}: a jsonFeature, written by an old version of TFDS, is not read here")
    return _object(found, key, at)


def _object(value: Any, key: str, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SourceError(f'{at}: expected a JSON object "{key}", found {_short(value)}')
    return value


def _dtype(content: Mapping[str, Any], at: str, default: str = "") -> np.dtype[Any]:
    name = content.get("dtype") or default
    if not isinstance(name, str):
        raise SourceError(f"{at}: dtype: expected a name, found {_short(name)}")
    found = _DTYPES.get(name)
    if found is None:
        raise NotReadHere(f"{at}: its dtype {_short(name)} is not read here")
    return found


def _shape(content: Mapping[str, Any], at: str) -> Shape:
    sizes = _object(content.get("shape", {}), "shape", at).get("dimensions", [])
    if not isinstance(sizes, list) or len(sizes) > _MOST_DIMENSIONS:
        raise SourceError(f"{at}: shape: expected at most {_MOST_DIMENSIONS} sizes, found {_short(sizes)}")
    shape = tuple(map(_size, sizes, repeat(at)))
    if math.prod(filter(None, shape)) > _MOST_SIZE:
        raise SourceError(f"{at}: the shape {shape} has more than {_MOST_SIZE:,} values, which no record holds")
    return shape


def _size(value: Any, at: str) -> int | None:
    """A size, as a JSON number or as protobuf's text of one; None for -1."""
    try:
        size = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else -2
    except ValueError:
        size = -2
    if not -1 <= size <= _MOST_SIZE:
        raise SourceError(f"{at}: expected a size of at most {_MOST_SIZE:,}, or -1, found {_short(value)}")
    return None if size == -1 else size


def _get(node: Mapping[str, Any], name: str) -> Any:
    """A field of a JSON message, by either of the two names that protobuf accepts."""
    if name in node:
        return node[name]
    return node.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


def _short(value: Any) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value, default=repr))


# Records: the lists of an Example.

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

_FEW_BYTES = 512
"""Protobuf reads a list of at most so many bytes, such as a single number, faster than numpy."""

_FLOAT32 = np.dtype("<f4")

Features = dict[bytes, Any]
"""Key -> the message of its list; see `floats`, `integers` and `texts`, which raise `SourceError` for another kind of list, or a damaged one."""


def features_of(record: bytes, where: str) -> Features:
    """The lists of a serialized `tf.train.Example` by key, not decoded yet. Raises `SourceError` if the bytes are no such message."""
    try:
        entries = _EXAMPLE.FromString(record).features.feature
    except DecodeError as error:
        raise SourceError(f"{where}: not a tf.train.Example; the file is damaged, or of another kind") from error
    return {entry.key: entry.value for entry in entries}


def is_empty(feature: Any) -> bool:
    """Whether a feature has no list of any kind; TensorFlow takes such a feature for a missing one."""
    return not (feature.float_list or feature.int64_list or feature.HasField("bytes_list"))


def floats(feature: Any, where: str) -> Array:
    """[n] float32, owned and aligned."""
    data, start = _list_in(feature, feature.float_list, "floats", where)
    if start is None or (len(data) - start) % 4:
        return np.array(list(_parsed_list(_FLOATS, data, where)), np.float32)
    return np.frombuffer(data, _FLOAT32, offset=start).astype(np.float32)


def integers(feature: Any, where: str) -> Array:
    """[n] int64, or uint8 where all are below 128."""
    data, start = _list_in(feature, feature.int64_list, "integers", where)
    if start is None or (len(data) <= _FEW_BYTES and not data.isascii()):
        return np.array(list(_parsed_list(_INTEGERS, data, where)), np.int64)
    return varints(data[start:], where)


def texts(feature: Any, where: str) -> list[bytes]:
    found = list(feature.bytes_list.value)
    if not found and not feature.HasField("bytes_list") and not is_empty(feature):
        raise _another_kind(feature, "byte strings", where)
    return found


def varints(encoded: bytes, where: str) -> Array:
    """Varints one after another -> their values [n]: int64, or uint8 where all are below 128."""
    if encoded.isascii():  # each is one byte
        return np.frombuffer(encoded, np.uint8)
    found = unpacked_varints(encoded)
    if found is None:
        raise SourceError(
            f"{where}: a list of integers ends within a number, or has one of more than ten bytes; the file is damaged"
        )
    return found


def _list_in(feature: Any, lists: Any, kind: str, where: str) -> tuple[bytes, int | None]:
    """The message of a list, its pieces joined; and where its numbers begin, None if they are not packed in one piece."""
    if not lists and not is_empty(feature):
        raise _another_kind(feature, kind, where)
    data = lists[0] if len(lists) == 1 else b"".join(lists)
    if not data:
        return data, 0
    length = shift = 0  # read here, for a call of `read_varint` costs more than a short list
    for at in range(1, min(len(data), KEY_BYTES)) if data[0] == _PACKED else ():
        length |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return data, at + 1 if length == len(data) - at - 1 else None
        shift += 7
    return data, None


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


# Lists -> arrays [n, *shape] of a tensor feature: n items, one after another in the list.
#
# | dtype | stored as | note |
# | --- | --- | --- |
# | bool, integers | 64-bit integers | uint64 by its bits; smaller ones are cut to their size, as TensorFlow does |
# | float16, float32, float64 | 32-bit floats | float64 comes back as it was rounded |
# | bytes | bytes | |
# | any number with encoding `bytes` | the array's bytes, little-endian, one byte string per item | |
# | any number with encoding `zlib` | zlib of that | not decompressed further than the shape allows |

_MOST_BYTES = 1 << 31
"""Most bytes of one item, decompressed."""
_MOST_MISSING_BYTES = 1 << 28
"""Most bytes of an item that stands for a missing one: the file holds no bytes in proportion to its size."""
_BEST_RATIO = 1040
"""zlib makes data at most 1,032 times smaller; and a few bytes are its head and its end."""


def plain_items(tensor: TensorFeature, feature: Any, where: str) -> Array:
    """Items whose values stand in the list as they are (encoding "none"): [n, *shape]; of a shape with a free size, one item."""
    dtype, shape, size = tensor.dtype, tensor.shape, tensor.size
    values: Array
    if dtype.kind == "f":
        values = floats(feature, where)
        if dtype != values.dtype:
            with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
                values = values.astype(dtype)
    elif dtype.kind == "O":
        values = np.array(texts(feature, where), object)
    else:
        values = integers(feature, where).astype(dtype)  # to bool: whether it is another number than 0
    if not shape:
        return values
    count = _whole_number(len(values), size, f"{where}: has {len(values):,} values", shape)
    if None in shape:
        return values.reshape(1, *(count if one is None else one for one in shape))
    return values.reshape(count, *shape)


def _whole_number(length: int, size: int, what: str, shape: Shape) -> int:
    """The number of items of a size in a length; 0 where both are 0."""
    if length % size if size else length:
        raise SourceError(f"{what}; expected a multiple of {size:,}, for the shape {shape}")
    return length // size if size else 0


def missing_item(tensor: TensorFeature, where: str) -> Array:
    """What TFDS reads where an optional feature is missing: the least value of the dtype, False, or an empty text; [1, *shape]."""
    shape, dtype = (1, *tensor.least_shape), tensor.dtype
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
    """Items that are byte strings (encoding "bytes" or "zlib"), all of one shape: [n, *shape]; with shapes [n, dimensions] where it `is_dynamic`."""
    dtype = tensor.dtype
    if not values:
        return np.zeros((0, *tensor.least_shape), dtype)
    shape = tensor.shape if shapes is None else _common_shape(tensor, shapes, len(values), where)
    is_packed = tensor.encoding == ZLIB
    if None in shape:
        if is_packed:  # all items have one shape, so none is decompressed further than the first
            first = _decompressed(values[0], _MOST_BYTES, where)
            values = [first, *(_decompressed(value, len(first), where) for value in values[1:])]
            is_packed = False
        known = tensor.size * dtype.itemsize
        free = _whole_number(len(values[0]), known, f"{where}: has {len(values[0]):,} bytes", shape)
        shape = tuple(free if size is None else size for size in shape)
    size = math.prod(size or 0 for size in shape) * dtype.itemsize
    if is_packed:
        if len(values) * size > _BEST_RATIO * (sum(map(len, values)) + len(values)):
            raise SourceError(f"{where}: too short for items of {size:,} bytes; the file is damaged")
        values = [_decompressed(value, size, where) for value in values]
    for value in values:
        if len(value) != size:
            raise SourceError(
                f"{where}: an item of {len(value):,} bytes; expected {size:,}, as its shape and the other items have"
            )
    data = b"".join(values)
    items: Array = np.frombuffer(data, np.uint8) != 0 if dtype.kind == "b" else np.frombuffer(data, dtype)
    return items.reshape(len(values), *(size or 0 for size in shape))


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
    if math.prod(size or 1 for size in first) * tensor.dtype.itemsize > _MOST_BYTES:  # also where another size is 0
        raise SourceError(f"{where}: an item of the shape {first}, of more than {_MOST_BYTES:,} bytes")
    return first


def _decompressed(value: bytes, most: int, where: str) -> bytes:
    """Decompresses at most `most` + 1 bytes."""
    try:
        stream = zlib.decompressobj()
        found = stream.decompress(value, most + 1)
    except zlib.error as error:
        raise SourceError(f"{where}: cannot be decompressed: {error}") from error
    if len(found) > most or not stream.eof:
        raise SourceError(f"{where}: an item that is cut, or of more than {most:,} bytes when decompressed")
    return found


# Columns: where a record has a leaf of the features, and how it becomes an array.
#
# Names are joined by "/", and so are keys: the feature `steps/observation/state` is stored under that key, all steps one
# after another. A sequence in a sequence has its values under `KEY/ragged_flat_values`, and the lengths of its rows under
# `KEY/ragged_row_lengths_0` (and `_1`, ... where it is deeper). A tensor of several free sizes is two keys, `KEY/value` and
# `KEY/shape`. A missing list is an empty one, except for a single value.

_MOST_VALUES = 1 << 48
"""Most values of a column over its known sizes: no memory holds more, and numpy cannot count their bytes."""
_MOST_WITHOUT_VALUES = 1 << 24
"""The same where a size is 0. A record may have 2^31 steps of it, for they take no bytes."""

_FILES = TensorFeature((), np.dtype(object))  # an image that stays its file's bytes


@dataclass(frozen=True)
class Column:
    """A leaf of the features in a record.

    Attributes:
      path: its name.
      leaf: what one item is.
      lengths: of the sequences around an item, None where free; for steps, the number of steps is the first.
      key: of its values.
      shape_key: of the shapes of the items, or None.
      row_keys: of the lengths of rows, for each sequence in a sequence.
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
        return ArraySpec(self.spec.shape[1:], self.spec.dtype)

    @cached_property
    def _empty_shape(self) -> tuple[int, ...]:
        """The shape of an item where free sizes are 0."""
        return tuple(size or 0 for size in self.leaf.shape)

    def read(self, features: Features, where: str) -> Any:
        """The column of one record: [length, ..., *shape]; without sequences a value: an array, a number or bytes."""
        where = f'{where}, feature "{self.path}"'
        if not self.lengths:
            return self._single(features, where)
        items = self._items(features, where)
        rows = [_list_of_integers(features, key, where) for key in self.row_keys]
        return _as_rows(items, rows, self.lengths[1:], where) if rows else items

    def _single(self, features: Features, where: str) -> Any:
        feature, leaf = features.get(self.key), self.leaf
        if feature is None or is_empty(feature):
            if isinstance(leaf, TensorFeature) and leaf.encoding == NONE:
                if leaf.is_optional:
                    return missing_item(leaf, where)[0]
                if None in leaf.shape:
                    return np.zeros(self._empty_shape, leaf.dtype)
            raise SourceError(
                f"{where}: is missing in the record, and it is not optional: features.json declares it as {self.spec}; "
                f"{_OWN_FEATURES}, or remove the feature from it"
            )
        items = self._items(features, where)
        if len(items) == 1:
            return items[0]
        if self.spec.shape and 0 in self.spec.shape:
            return np.zeros(self._empty_shape, leaf.dtype)
        raise SourceError(f"{where}: has {len(items):,} values; expected one of the shape {leaf.shape}")

    def _items(self, features: Features, where: str) -> Array:
        feature, leaf = features.get(self.key), self.leaf
        if feature is None:
            return np.zeros((0, *self._empty_shape), leaf.dtype)
        if isinstance(leaf, ImageSpec):
            return decode_files(leaf, texts(feature, where), where)
        if leaf.encoding == NONE:
            return plain_items(leaf, feature, where)
        values, shapes = texts(feature, where), None
        if self.shape_key is not None:
            sizes, dimensions = _list_of_integers(features, self.shape_key, where), len(leaf.shape)
            if len(sizes) % dimensions:
                raise SourceError(f"{where}: shapes of {len(sizes):,} sizes in all; expected {dimensions} each")
            shapes = sizes.reshape(-1, dimensions)
        return encoded_items(leaf, values, shapes, where)


def column_of(stored: Stored, path: str, where: str, prefix: str = "") -> Column:
    """Where records have a leaf; its key is the path behind a prefix. Raises `NotReadHere`, or `SourceError` if no memory holds its sizes."""
    leaf, lengths, at = stored.leaf, stored.lengths, f'{where}: feature "{path}"'
    sizes = (*lengths, *leaf.shape)
    if math.prod(filter(None, sizes)) > (_MOST_WITHOUT_VALUES if 0 in sizes else _MOST_VALUES):
        raise SourceError(f"{at}: the sizes {sizes} make more values than any memory holds")
    key, shape_key = f"{prefix}/{path}" if prefix else path, None
    if isinstance(leaf, TensorFeature):
        if leaf.encoding == NONE and leaf.dtype.kind in "cV":
            raise NotReadHere(f'{at}: {leaf.dtype} with encoding "none" is not read here')
        if leaf.encoding == NONE and (leaf.is_dynamic or (lengths and None in leaf.shape)):
            raise NotReadHere(f'{at}: a shape with free sizes, {leaf.shape}, is not read here with encoding "none"')
        if leaf.is_dynamic:
            key, shape_key = f"{key}/value", f"{key}/shape"
    if len(lengths) < 2:
        return Column(path, leaf, lengths, key.encode(), shape_key.encode() if shape_key else None, ())
    rows = tuple(f"{key}/ragged_row_lengths_{level}".encode() for level in range(len(lengths) - 1))
    shapes = f"{shape_key}/ragged_flat_values".encode() if shape_key else None
    return Column(path, leaf, lengths, f"{key}/ragged_flat_values".encode(), shapes, rows)


def _as_rows(items: Array, rows: list[Array], lengths: Shape, where: str) -> Array:
    """Items [n, *shape] -> [length, ..., *shape], or an array of objects where the rows differ, as a RaggedTensor's."""
    counts = [*map(len, rows[1:]), len(items)]
    for row, count, length in zip(rows, counts, lengths):
        if (row < 0).any() or (row > count).any() or row.sum() != count:
            raise SourceError(f"{where}: the lengths of its rows do not add up to its {count:,} items")
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
    return np.zeros(0, np.int64) if feature is None else integers(feature, where).astype(np.int64)


# Features that features.json declares and a record lacks.
#
# TensorFlow takes a missing list for an empty one, so TFDS gives a column without rows, or fails at "All components must have the same
# size". TFDS writes an empty list for an episode without steps, so a key that is not there was never written.

_OWN_FEATURES = "use the features.json that was written with these files"
_MOST_NAMED = 3


def check_record(
    features: Features,
    steps: Mapping[str, ArraySpec],
    rows: int | None,
    where: str,
    left_out: Collection[str] = (),
    has_drop: bool = True,
) -> None:
    """Refuses the record of an episode that lacks step features.

    Args:
      steps: key -> what a step of it is declared as. Longer keys below it, as of ragged values, count as the feature.
      rows: of the episode, as its other features have them; 0 where none has any, None for some.
      left_out: keys that are declared, too, and not read.
      has_drop: whether a transform can leave them out.

    Raises:
      SourceError: features are missing, and there are steps, or step features that are not declared.
    """
    prefix, keys = f"{STEPS}/", sorted(key.decode("utf-8", "replace") for key in features)
    nests = {key[:end] for key in keys for end, sign in enumerate(f"{key}/") if sign == "/"}
    lacking = [name for name, spec in steps.items() if name not in nests and 0 not in spec.shape]
    declared = tuple(f"{name}/" for name in (*steps, *left_out))
    others = [key for key in keys if key.startswith(prefix) and not f"{key}/".startswith(declared)]
    if not lacking or (rows == 0 and not others):
        return
    paths = [name.removeprefix(prefix) for name in lacking]
    named = [f'"{path}" ({steps[name]} a step)' for name, path in zip(lacking, paths)]
    them = "it" if len(paths) == 1 else "them"
    expected = f"{counted(rows, 'step') if rows else 'steps'} of {them}"
    undeclared = [f'"{visible(shortened(key.removeprefix(prefix)))}"' for key in others]
    found = f", found instead {_first_of(undeclared)}" if others else ""
    can_go = has_drop and len(paths) <= _MOST_NAMED and not {IS_FIRST, IS_LAST}.intersection(paths)
    way_out = (
        f", or leave {them} out by a transform, drop={','.join(paths)}" if can_go else f", or remove {them} from it"
    )
    raise SourceError(
        f"{where}: the record lacks {counted(len(named), 'step feature')} that features.json declares: {_first_of(named)}; "
        f"expected {expected}{found}; {_OWN_FEATURES}{way_out}"
    )


def _first_of(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


# Episodes.


@dataclass(frozen=True)
class EpisodeFeatures:
    """How the episodes of a dataset are read from its records: specs without the time axis, and the steps of every episode if the features say so."""

    steps_spec: Nest
    metadata_spec: Nest
    steps_length: int | None
    _steps: tuple[Column, ...]
    _metadata: tuple[Column, ...]
    _left_out: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: str) -> EpisodeFeatures:
        """From the content of features.json.

        Raises:
          NotReadHere: a feature that only TFDS can read; the message names it and its class.
          SourceError: the features make no sense, are absurdly large, or are not of RLDS episodes.
        """
        top, only_tfds = parse_features(tree, where)
        rest = dict(top) if isinstance(top, Group) and not top.lengths else {}
        if STEPS not in rest:
            raise SourceError(f'{where}: not RLDS: an episode needs a feature "{STEPS}"; found {sorted(rest)}')
        steps = rest.pop(STEPS)
        if not isinstance(steps, Group) or len(steps.lengths) != 1:
            raise SourceError(f'{where}: not RLDS: "{STEPS}" must be a dataset of dicts of features')
        if only_tfds:
            raise NotReadHere(only_tfds)
        try:
            leaves, others = flatten(steps), flatten(rest)
        except SpecError as error:
            raise SourceError(f"{where}: {error}; rename it in the dataset") from error
        if not leaves:
            raise SourceError(f'{where}: not RLDS: "{STEPS}" has no features')
        columns = {path: column_of(leaf, path, where, STEPS) for path, leaf in leaves.items()}
        metadata = {path: column_of(leaf, path, where) for path, leaf in others.items()}
        for path, column in columns.items():
            if len(column.lengths) > 2:
                raise NotReadHere(f'{where}: step feature "{path}": a sequence of sequences in a step is ragged')
        return cls(
            map_with_path(lambda path, _: columns[path].step_spec, steps),
            map_with_path(lambda path, _: metadata[path].spec, rest),
            steps.lengths[0],
            tuple(columns.values()),
            tuple(metadata.values()),
        )

    @property
    def images(self) -> dict[str, ArraySpec]:
        """The step columns that are stored as PNG or JPEG files, with the spec of a decoded step."""
        return {column.path: column.step_spec for column in self._steps if isinstance(column.leaf, ImageSpec)}

    def encoded(self, paths: Collection[str]) -> EpisodeFeatures:
        """The same features where these of `images` stay the bytes of their files: columns of objects."""
        columns = {
            column.path: replace(column, leaf=_FILES) if column.path in paths else column for column in self._steps
        }
        spec = map_with_path(lambda path, _: columns[path].step_spec, self.steps_spec)
        return replace(self, steps_spec=spec, _steps=tuple(columns.values()))

    def without(self, paths: Collection[str]) -> EpisodeFeatures:
        """The same features without these columns of steps."""
        specs = {path: leaf for path, leaf in flatten(self.steps_spec).items() if path not in paths}
        return replace(
            self,
            steps_spec=nested(specs),
            _steps=tuple(column for column in self._steps if column.path not in paths),
            _left_out=(*self._left_out, *(f"{STEPS}/{path}" for path in paths)),
        )

    def read(self, record: bytes, where: str) -> tuple[dict[str, Array], dict[str, Any]]:
        """One episode: the columns of steps, path -> [T, ...], and the metadata, path -> array, number or bytes; in the order of their specs.

        Raises:
          SourceError: the record is damaged or does not fit the features; the message names the feature.
        """
        features = features_of(record, where)
        columns = {column.path: column.read(features, where) for column in self._steps}
        self._check(columns, features, where)
        return columns, {column.path: column.read(features, where) for column in self._metadata}

    def length_of(self, record: bytes, where: str) -> int | None:
        """The number of steps of an episode, by one of its flags; None where it has none. Nothing else is decoded. Arguments and errors as `read`."""
        flag = next((column for column in self._steps if column.path in FLAGS), None)
        features = {} if flag is None else features_of(record, where)
        return None if flag is None or flag.key not in features else len(flag.read(features, where))

    def _check(self, columns: dict[str, Array], features: Features, where: str) -> None:
        """All columns must be of one length. Those whose steps have no values may have any, and are made as long as the rest."""
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            for column in self._steps:
                if 0 in column.step_spec.shape:
                    shape = (max(lengths), *columns[column.path].shape[1:])
                    columns[column.path] = np.zeros(shape, column.leaf.dtype)
            lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1 or lengths == {0}:
            spec = {f"{STEPS}/{column.path}": column.step_spec for column in self._steps}
            check_record(features, spec, max(lengths), where, self._left_out)
        if len(lengths) > 1 or (lengths and self.steps_length not in (None, *lengths)):
            found = ", ".join(f"{path}: {len(column):,}" for path, column in columns.items())
            raise SourceError(f"{where}: the columns of steps have different lengths, or others than expected: {found}")
        for column in self._steps:
            if column.row_keys and columns[column.path].ndim != 1 + len(column.step_spec.shape):
                raise SourceError(
                    f'{where}, feature "{column.path}": steps of different lengths; all of an episode must have one'
                )
