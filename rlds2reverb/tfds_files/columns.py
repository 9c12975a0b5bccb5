"""One leaf of the features: where a record has it, and how it becomes an array.

Names are joined by "/", and so are keys: the feature `steps/observation/state` is stored under that key, all steps one
after another. A sequence in a sequence has its values under `KEY/ragged_flat_values`, and the lengths of its rows under
`KEY/ragged_row_lengths_0` (and `_1`, ... where it is deeper). A tensor of several free sizes is two keys, `KEY/value` and
`KEY/shape`. A list that is missing is an empty one, but for a single value.
Source: example_serializer.py and example_parser.py of TFDS 4.9.10.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Union

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.specs import ArraySpec
from rlds2reverb.tfds_files.example import Features, integers, is_empty, texts
from rlds2reverb.tfds_files.features import (
    DictFeature,
    Feature,
    SequenceFeature,
    Shape,
    TensorFeature,
)
from rlds2reverb.tfds_files.images import NotReadHere, decode_files
from rlds2reverb.tfds_files.tensors import encoded_items, missing_item, plain_items

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
        """Of an item of which nothing is known but the features."""
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
