"""What a dataset consists of: a tree of frozen features, with their shapes, dtypes and encodings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Union

import numpy as np

from rlds2reverb.image_spec import ImageSpec

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
