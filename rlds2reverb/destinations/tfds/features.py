"""Specs -> the features of a TFDS dataset, and what features.json says of them.

| column | feature | stored as |
| --- | --- | --- |
| bool, integers, float16, float32 | `Tensor` | a list of numbers |
| float64, bfloat16, complex numbers, shapes with free sizes | `Tensor` with encoding `bytes` or `zlib` | the array's bytes, one text per step |
| text | `Text`, or a `Tensor` of strings | bytes |
| text, any number per step | `Sequence` | bytes, and the lengths of rows |
| encoded images | `Image` | the files as they are |
| arrays of uint8 or uint16 that are images | `Image` | PNG files |

Source: feature.proto and the classes of `tensorflow_datasets.core.features`, TFDS 4.9.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.readers.nests import nested
from rlds2reverb.specs import ArraySpec, Nest, dtype_name
from rlds2reverb.tfds_files.features import (
    NONE,
    DictFeature,
    Feature,
    SequenceFeature,
    Shape,
    TensorFeature,
)
from rlds2reverb.tfds_files.features_json import HOME

PNG, TENSOR = "png", "tensor"
"""What becomes of image columns of numbers."""

_LEAST_SIDE = 16
"""An array with fewer rows or columns of pixels is no picture, but a map of a grid, say."""
_CHANNELS = (1, 3, 4)
_TEXT_DTYPE = np.dtype(object)
_LISTED = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"]
)
"""What a list of an Example holds exactly."""


@dataclass(frozen=True)
class Choices:
    """How features are chosen.

    Attributes:
      encoding: of numbers that no list of an Example holds exactly: "bytes" or "zlib".
      images: `PNG` or `TENSOR`.
    """

    encoding: str = "bytes"
    images: str = PNG


def feature_of(spec: ArraySpec, choices: Choices, in_steps: bool) -> Feature | None:
    """The feature that holds a column's values; None where TFDS has none.

    Args:
      spec: of a step's value, or of an episode's.
      choices: how.
      in_steps: whether it is a column of steps.
    """
    if spec.image is not None:
        return ImageSpec(spec.image.shape, spec.image.dtype)
    if spec.dtype.kind == "O":
        return _text(spec.shape, in_steps)
    if is_drawn(spec, choices):
        return ImageSpec(spec.shape, spec.dtype)
    free = spec.shape.count(None)
    is_listed = spec.dtype.name in _LISTED and (not free or (free == 1 and not in_steps))
    return TensorFeature(spec.shape, spec.dtype.newbyteorder("="), NONE if is_listed else choices.encoding)


def is_drawn(spec: ArraySpec, choices: Choices) -> bool:
    """Whether numbers are pixels (height, width and channels of uint8 or uint16) that become PNG files."""
    if choices.images != PNG or spec.dtype.name not in ("uint8", "uint16") or len(spec.shape) != 3:
        return False
    height, width, channels = spec.shape
    return channels in _CHANNELS and all(size is None or size >= _LEAST_SIDE for size in (height, width))


def tree_of(features: Mapping[str, Feature], files: Mapping[str, str]) -> dict[str, Any]:
    """What features.json says of features by path.

    Args:
      features: path -> feature; "steps/..." for those of steps, which stand in a dataset.
      files: path -> "png" or "jpeg", of images whose files are all of that format.
    """
    return _node(_tree(features), "", files)


def _tree(features: Mapping[str, Feature]) -> Nest:
    tree = nested(features)
    steps = tree.pop("steps", {})
    return DictFeature({**_dicts(tree), "steps": SequenceFeature(DictFeature(_dicts(steps)), None, is_dataset=True)})


def _dicts(tree: Mapping[str, Any]) -> dict[str, Feature]:
    return {name: DictFeature(_dicts(one)) if isinstance(one, dict) else one for name, one in tree.items()}


def _text(shape: Shape, in_steps: bool) -> Feature | None:
    free = shape.count(None)
    if not free or (free == 1 and not in_steps):
        return TensorFeature(shape, _TEXT_DTYPE)
    if free == 1 and shape[0] is None:
        return SequenceFeature(TensorFeature(shape[1:], _TEXT_DTYPE), None, is_dataset=False)
    return None


def _node(feature: Feature, path: str, files: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(feature, DictFeature):
        nodes = {
            name: _node(child, f"{path}/{name}" if path else name, files) for name, child in feature.features.items()
        }
        return {"pythonClassName": f"{HOME}features_dict.FeaturesDict", "featuresDict": {"features": nodes}}
    if isinstance(feature, SequenceFeature):
        name = "dataset_feature.Dataset" if feature.is_dataset else "sequence_feature.Sequence"
        content = {"feature": _node(feature.feature, path, files), "length": "-1"}
        return {"pythonClassName": f"{HOME}{name}", "sequence": content}
    if isinstance(feature, ImageSpec):
        image: dict[str, Any] = {"shape": _shape(feature.shape), "dtype": feature.dtype.name}
        if files.get(path):
            image["encodingFormat"] = files[path]
        return {"pythonClassName": f"{HOME}image_feature.Image", "image": image}
    if feature == TensorFeature((), _TEXT_DTYPE):
        return {"pythonClassName": f"{HOME}text_feature.Text", "text": {}}
    tensor = {"shape": _shape(feature.shape), "dtype": dtype_name(feature.dtype), "encoding": feature.encoding}
    kind = "tensor_feature.Tensor" if feature.shape or feature.encoding != NONE else "scalar.Scalar"
    return {"pythonClassName": f"{HOME}{kind}", "tensor": tensor}


def _shape(shape: Shape) -> dict[str, Any]:
    sizes = ["-1" if size is None else str(size) for size in shape]
    return {"dimensions": sizes} if sizes else {}
