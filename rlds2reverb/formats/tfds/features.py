"""Features: what features.json says that a record holds.

A feature of features.json names the Python class that wrote it. Nothing is imported for it: classes of `tfds.features` are known by name,
and any other raises `NotReadHere`, so that TFDS can read the dataset where it is installed. The file may come from anywhere, so sizes
are bounded.

Source: feature.proto and the classes of `tensorflow_datasets.core.features`, TFDS 4.9.10.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, Union

import ml_dtypes
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.images import NotReadHere
from rlds2reverb.specs import IMAGE_DTYPES, NUMBERS, ImageSpec
from rlds2reverb.text import shortened

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

_DTYPES = {
    **NUMBERS,
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
    # A list of what waits, not recursion: a file may nest deeper than Python's stack.
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
            children = _check_object(_read_content(node, "featuresDict", at).get("features", {}), "features", at)
            inner = group[name] = Group(lengths)
            waiting += [
                (child, f"{path}/{key}" if path else key, depth + 1, lengths, inner, key)
                for key, child in reversed(children.items())  # popped in their order
            ]
        elif kind in ("sequence_feature.Sequence", "dataset_feature.Dataset"):
            content = _read_content(node, "sequence", at)
            if kind == "dataset_feature.Dataset" and lengths:
                only_tfds = only_tfds or f"{at}: a dataset within a sequence is not read here"
            elif kind == "dataset_feature.Dataset" and depth == 1 and name != STEPS:
                only_tfds = only_tfds or f'{where}: episode feature "{name}" is a dataset'
            around = (*lengths, _read_size(content.get("length", 0), at))
            waiting.append((content.get("feature"), path, depth + 1, around, group, name))
        elif kind == "translation_feature.Translation":
            languages = _read_content(node, "translation", at).get("languages", [])
            if not isinstance(languages, list) or not all(isinstance(language, str) for language in languages):
                raise SourceError(f"{at}: languages: expected names, found {_short(languages)}")
            count += len(languages)
            group[name] = Group(lengths, dict.fromkeys(languages, Stored(_TEXT, lengths)))
        elif kind == "translation_feature.TranslationVariableLanguages":
            _read_content(node, "translation", at)
            around = (*lengths, None)
            group[name] = Group(around, dict.fromkeys(("language", "translation"), Stored(_TEXT, around)))
        elif kind == "video_feature.Video":
            content = _read_content(node, "video", at)
            shape = _read_shape(content, at)
            if len(shape) not in (0, 4):
                raise SourceError(f"{at}: expected a video's shape (frames, height, width, channels), found {shape}")
            frames = shape[0] if shape else None
            group[name] = Stored(_read_image(shape[1:], content, 3, at), (*lengths, frames))
        else:
            group[name] = Stored(_read_leaf(node, kind, class_name, at), lengths)
    return whole[""], only_tfds


def _read_leaf(node: Mapping[str, Any], kind: str, class_name: str, at: str) -> Leaf:
    if kind in ("tensor_feature.Tensor", "feature.Tensor"):  # the second: where the class was in older versions
        content = _read_content(node, "tensor", at)
        encoding = str(content.get("encoding") or NONE).lower()
        if encoding not in ENCODINGS:
            raise SourceError(f"{at}: encoding: expected one of {', '.join(ENCODINGS)}, found {_short(encoding)}")
        dtype = _read_dtype(content, at)
        if encoding != NONE and dtype.kind == "O":
            raise SourceError(f"{at}: encoding {encoding} of texts; TFDS has none")
        return TensorFeature(_read_shape(content, at), dtype, encoding, content.get("optional") is True)
    if kind == "scalar.Scalar":
        content = _read_content(node, "tensor", at)
        return TensorFeature((), _read_dtype(content, at), NONE, content.get("optional") is True)
    if kind == "text_feature.Text":
        if "text" not in node:
            raise NotReadHere(f"{at}: a Text with an encoder, of an old version of TFDS, is not read here")
        return _TEXT
    if kind == "class_label_feature.ClassLabel":
        _read_content(node, "classLabel", at)
        return TensorFeature((), np.dtype(np.int64))
    if kind == "bounding_boxes.BBoxFeature":
        _read_content(node, "boundingBox", at)
        return TensorFeature((4,), np.dtype(np.float32))
    if kind in ("image_feature.Image", "labeled_image.LabeledImage"):
        content = _read_content(node, "image", at)
        return _read_image(_read_shape(content, at), content, 3 if kind == "image_feature.Image" else 1, at)
    raise NotReadHere(f"{at}: its class {_short(class_name)} is not read here, only by tensorflow-datasets")


def _read_image(shape: Shape, content: Mapping[str, Any], channels: int, at: str) -> ImageSpec:
    shape, dtype = shape or (None, None, channels), _read_dtype(content, at, "uint8")
    if dtype not in IMAGE_DTYPES:
        raise SourceError(f"{at}: expected an image of {', '.join(map(str, IMAGE_DTYPES))}, found {dtype}")
    if len(shape) == 4:
        raise NotReadHere(f"{at}: an Image of four dimensions is a GIF, which is not read here")
    if len(shape) != 3 or shape[2] not in (None, 1, 3, 4):  # TensorFlow, too, reads no image of two channels
        raise SourceError(f"{at}: expected an image's shape (height, width, 1, 3 or 4 channels), found {shape}")
    if dtype.kind == "f" and shape[2] != 1:
        raise SourceError(f"{at}: a float32 image has one channel; found {shape}")
    return ImageSpec(shape, dtype)


def _read_content(node: Mapping[str, Any], key: str, at: str) -> Mapping[str, Any]:
    content = _get(node, key)
    if content is None and _get(node, "jsonFeature") is not None:
        raise NotReadHere(f"{at}: a jsonFeature, written by an old version of TFDS, is not read here")
    return _check_object(content, key, at)


def _check_object(value: Any, key: str, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SourceError(f'{at}: expected a JSON object "{key}", found {_short(value)}')
    return value


def _read_dtype(content: Mapping[str, Any], at: str, default: str = "") -> np.dtype[Any]:
    name = content.get("dtype") or default
    if not isinstance(name, str):
        raise SourceError(f"{at}: dtype: expected a name, found {_short(name)}")
    if name not in _DTYPES:
        raise NotReadHere(f"{at}: its dtype {_short(name)} is not read here")
    return _DTYPES[name]


def _read_shape(content: Mapping[str, Any], at: str) -> Shape:
    sizes = _check_object(content.get("shape", {}), "shape", at).get("dimensions", [])
    if not isinstance(sizes, list) or len(sizes) > _MOST_DIMENSIONS:
        raise SourceError(f"{at}: shape: expected at most {_MOST_DIMENSIONS} sizes, found {_short(sizes)}")
    shape = tuple(map(_read_size, sizes, repeat(at)))
    if math.prod(filter(None, shape)) > _MOST_SIZE:
        raise SourceError(f"{at}: the shape {shape} has more than {_MOST_SIZE:,} values, which no record holds")
    return shape


def _read_size(value: Any, at: str) -> int | None:
    """Reads a size: a JSON number, or a text as proto3's JSON writes int64; None for -1, which is a free one."""
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
