"""The features of a dataset: a tree with shapes, dtypes and encodings, read from features.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Union

import ml_dtypes
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.images import NotReadHere
from rlds2reverb.specs import IMAGE_DTYPES, ImageSpec
from rlds2reverb.text import shortened

Shape = tuple[Union[int, None], ...]

NONE = "none"
ZLIB = "zlib"
ENCODINGS = (NONE, "bytes", ZLIB)


@dataclass(frozen=True)
class TensorFeature:
    """Numbers or texts of one shape.

    Attributes:
      shape: sizes, None where the size is free.
      dtype: object stands for byte strings.
      encoding: of `ENCODINGS`: how the numbers are stored.
      is_optional: whether it may be missing in a record.
    """

    shape: Shape
    dtype: np.dtype[Any]
    encoding: str = NONE
    is_optional: bool = False

    @cached_property
    def size(self) -> int:
        """How many values an item has, over the sizes that are known."""
        return math.prod(size for size in self.shape if size is not None)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the values stand in the record's list as they are."""
        return self.encoding == NONE

    @property
    def is_dynamic(self) -> bool:
        """Whether a record has the shape beside the values."""
        return self.shape.count(None) > 1


@dataclass(frozen=True)
class SequenceFeature:
    """Any number of features of one kind: `Sequence` and `Dataset`; the two are stored alike.

    Attributes:
      feature: of one element.
      length: how many there are, None where free.
      is_dataset: whether TFDS makes a dataset of it and not a tensor.
    """

    feature: Feature
    length: int | None
    is_dataset: bool


@dataclass(frozen=True)
class DictFeature:
    """Features by name. A name may contain a "/"."""

    features: Mapping[str, Feature]


Feature = Union[TensorFeature, ImageSpec, SequenceFeature, DictFeature]
"""Images are stored as PNG or JPEG files; those of float32 as four channels of bytes."""


# A node names the Python class that wrote it. Nothing is imported for it: classes of `tfds.features` are known by name here,
# and every other is refused by name (`NotReadHere`), so that TFDS can be asked where it is installed.
# Sizes are bounded, for the file may come from anywhere.
# Source: feature.proto and the classes of `tensorflow_datasets.core.features`, TFDS 4.9.10.

_MOST_DIMENSIONS = 16
_MOST_VALUES = 1 << 31
"""Most values of one tensor: a record has no more bytes than that."""
_MOST_DEPTH = 32
_MOST_FEATURES = 10_000
"""Those of large robot datasets have some hundred."""

HOME = "tensorflow_datasets.core.features."
"""What the names of the classes begin with."""

_TEXT_NAMES = ("string", "str", "object")
_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_DTYPES = {
    **{name: np.dtype(name) for name in _NUMBERS.split()},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    **dict.fromkeys(_TEXT_NAMES, np.dtype(object)),
}

_TEXT = TensorFeature((), np.dtype(object))


def parse_features(tree: Mapping[str, Any], where: str) -> Feature:
    """The features of a dataset.

    Args:
      tree: what features.json holds.
      where: what messages call the file.

    Raises:
      NotReadHere: a feature that is not read here; says which.
      SourceError: the tree makes no sense or is absurdly large; says where.
    """
    return _Parser(where).feature(tree, "", 0)


class _Parser:
    """Walks a tree of features, and counts them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0

    def feature(self, node: Any, path: str, depth: int) -> Feature:
        if not isinstance(node, Mapping):
            raise self._wrong(path, f"expected a JSON object, found {_short(node)}")
        self._count += 1
        if self._count > _MOST_FEATURES or depth > _MOST_DEPTH:
            raise self._wrong(path, f"more than {_MOST_FEATURES:,} features, or {_MOST_DEPTH} levels of them")
        name = _get(node, "pythonClassName")
        if not isinstance(name, str):
            raise NotReadHere(f"{self._at(path)}: written by an old version of TFDS: it has no pythonClassName")
        kind = name.removeprefix(HOME)
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self, node, path, depth)
        if kind in _LEAVES:
            return _LEAVES[kind](self, node, path)
        raise NotReadHere(f"{self._at(path)}: its class {_short(name)} is not read here, only by tensorflow-datasets")

    def dict(self, node: Any, path: str, depth: int) -> Feature:
        features = self._object(self._content(node, "featuresDict", path).get("features", {}), path)
        return DictFeature(
            MappingProxyType(
                {
                    name: self.feature(child, f"{path}/{name}" if path else name, depth + 1)
                    for name, child in features.items()
                }
            )
        )

    def sequence(self, node: Any, path: str, depth: int, is_dataset: bool = False) -> Feature:
        content = self._content(node, "sequence", path)
        length = self._size(content.get("length", 0), path)
        return SequenceFeature(self.feature(content.get("feature"), path, depth + 1), length, is_dataset)

    def dataset(self, node: Any, path: str, depth: int) -> Feature:
        return self.sequence(node, path, depth, is_dataset=True)

    def translation(self, node: Any, path: str) -> Feature:
        languages = self._content(node, "translation", path).get("languages", [])
        if not isinstance(languages, list) or not all(isinstance(name, str) for name in languages):
            raise self._wrong(path, f"languages: expected names, found {_short(languages)}")
        self._count += len(languages)
        return DictFeature(MappingProxyType(dict.fromkeys(languages, _TEXT)))

    def translations(self, node: Any, path: str) -> Feature:
        self._content(node, "translation", path)
        return SequenceFeature(DictFeature(MappingProxyType({"language": _TEXT, "translation": _TEXT})), None, False)

    def tensor(self, node: Any, path: str) -> Feature:
        content = self._content(node, "tensor", path)
        encoding = str(content.get("encoding") or NONE).lower()
        if encoding not in ENCODINGS:
            raise self._wrong(path, f"encoding: expected one of {', '.join(ENCODINGS)}, found {_short(encoding)}")
        dtype = self._dtype(content, path)
        if encoding != NONE and dtype.kind == "O":
            raise self._wrong(path, f"encoding {encoding} of texts; TFDS has none")
        return TensorFeature(self._shape(content, path), dtype, encoding, content.get("optional") is True)

    def scalar(self, node: Any, path: str) -> Feature:
        content = self._content(node, "tensor", path)
        return TensorFeature((), self._dtype(content, path), NONE, content.get("optional") is True)

    def text(self, node: Any, path: str) -> Feature:
        if "text" not in node:
            raise NotReadHere(f"{self._at(path)}: a Text with an encoder, of an old version of TFDS, is not read here")
        return _TEXT

    def class_label(self, node: Any, path: str) -> Feature:
        self._content(node, "classLabel", path)
        return TensorFeature((), np.dtype(np.int64))

    def bounding_box(self, node: Any, path: str) -> Feature:
        self._content(node, "boundingBox", path)
        return TensorFeature((4,), np.dtype(np.float32))

    def image(self, node: Any, path: str, channels: int = 3) -> Feature:
        content = self._content(node, "image", path)
        return self._image(self._shape(content, path), content, path, channels)

    def labeled_image(self, node: Any, path: str) -> Feature:
        return self.image(node, path, channels=1)

    def video(self, node: Any, path: str) -> Feature:
        content = self._content(node, "video", path)
        shape = self._shape(content, path)
        if len(shape) not in (0, 4):
            raise self._wrong(path, f"expected a video's shape (frames, height, width, channels), found {shape}")
        return SequenceFeature(self._image(shape[1:], content, path, 3), shape[0] if shape else None, False)

    def _image(self, shape: Shape, content: Mapping[str, Any], path: str, channels: int) -> Feature:
        shape, dtype = shape or (None, None, channels), self._dtype(content, path, "uint8")
        if dtype not in IMAGE_DTYPES:
            raise self._wrong(path, f"expected an image of {', '.join(map(str, IMAGE_DTYPES))}, found {dtype}")
        if len(shape) == 4:
            raise NotReadHere(f"{self._at(path)}: an Image of four dimensions is a GIF, which is not read here")
        if len(shape) != 3 or shape[2] not in (None, 1, 3, 4):  # of two channels, TensorFlow reads none either
            raise self._wrong(path, f"expected an image's shape (height, width, 1, 3 or 4 channels), found {shape}")
        if dtype.kind == "f" and shape[2] != 1:
            raise self._wrong(path, f"a float32 image has one channel; found {shape}")
        return ImageSpec(shape, dtype)

    def _content(self, node: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
        found = _get(node, key)
        if found is None and _get(node, "jsonFeature") is not None:
            raise NotReadHere(f"{self._at(path)}: a jsonFeature, written by an old version of TFDS, is not read here")
        return self._object(found, path, key)

    def _object(self, value: Any, path: str, key: str = "features") -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._wrong(path, f'expected a JSON object "{key}", found {_short(value)}')
        return value

    def _dtype(self, content: Mapping[str, Any], path: str, default: str = "") -> np.dtype[Any]:
        name = content.get("dtype") or default
        if not isinstance(name, str):
            raise self._wrong(path, f"dtype: expected a name, found {_short(name)}")
        found = _DTYPES.get(name)
        if found is None:
            raise NotReadHere(f"{self._at(path)}: its dtype {_short(name)} is not read here")
        return found

    def _shape(self, content: Mapping[str, Any], path: str) -> Shape:
        sizes = self._object(content.get("shape", {}), path, "shape").get("dimensions", [])
        if not isinstance(sizes, list) or len(sizes) > _MOST_DIMENSIONS:
            raise self._wrong(path, f"shape: expected at most {_MOST_DIMENSIONS} sizes, found {_short(sizes)}")
        shape = tuple(self._size(size, path) for size in sizes)
        if math.prod(size for size in shape if size) > _MOST_VALUES:
            raise self._wrong(path, f"the shape {shape} has more than {_MOST_VALUES:,} values, which no record holds")
        return shape

    def _size(self, value: Any, path: str) -> int | None:
        """A size, as a JSON number or as protobuf's text of one; None for -1."""
        try:
            size = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else -2
        except ValueError:
            size = -2
        if not -1 <= size <= _MOST_VALUES:
            raise self._wrong(path, f"expected a size of at most {_MOST_VALUES:,}, or -1, found {_short(value)}")
        return None if size == -1 else size

    def _wrong(self, path: str, what: str) -> SourceError:
        return SourceError(f"{self._at(path)}: {what}")

    def _at(self, path: str) -> str:
        return f'{self._where}: feature "{_short(path)}"' if path else self._where


_CONTAINERS: Mapping[str, Callable[[_Parser, Any, str, int], Feature]] = {
    "features_dict.FeaturesDict": _Parser.dict,
    "sequence_feature.Sequence": _Parser.sequence,
    "dataset_feature.Dataset": _Parser.dataset,
}
_LEAVES: Mapping[str, Callable[[_Parser, Any, str], Feature]] = {
    "tensor_feature.Tensor": _Parser.tensor,
    "feature.Tensor": _Parser.tensor,  # where it was in older versions
    "scalar.Scalar": _Parser.scalar,
    "text_feature.Text": _Parser.text,
    "class_label_feature.ClassLabel": _Parser.class_label,
    "bounding_boxes.BBoxFeature": _Parser.bounding_box,
    "image_feature.Image": _Parser.image,
    "labeled_image.LabeledImage": _Parser.labeled_image,
    "video_feature.Video": _Parser.video,
    "translation_feature.Translation": _Parser.translation,
    "translation_feature.TranslationVariableLanguages": _Parser.translations,
}


def _get(node: Mapping[str, Any], name: str) -> Any:
    """A field of a JSON message, by either of the two names that protobuf accepts."""
    if name in node:
        return node[name]
    return node.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


def _short(value: Any) -> str:
    """A value shortened to at most a few hundred characters."""
    return shortened(value if isinstance(value, str) else json.dumps(value, default=repr))
