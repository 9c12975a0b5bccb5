"""Columns: where a record has the leaves of the features, and how they become an episode.

Names are joined by "/", and so are keys: the feature `steps/observation/state` is stored under that key, all steps one after another. A
sequence in a sequence has its values under `KEY/ragged_flat_values`, and the lengths of its rows under `KEY/ragged_row_lengths_0` (and `_1`, ...
where it is deeper). A tensor of several free sizes is two keys, `KEY/value` and `KEY/shape`. A missing list is an empty one, except for a
single value.

TensorFlow takes a missing list for an empty one, so TFDS gives a column without rows, or fails at "All components must have the same size". TFDS
writes an empty list for an episode without steps, so a key that is not there was never written: `check_record` says which, and how to go on.

Source: example_serializer.py and example_parser.py of TFDS 4.9.10.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.episode import FLAGS, IS_FIRST, IS_LAST, Array
from rlds2reverb.errors import SourceError, SpecError
from rlds2reverb.formats.tfds.example import (
    Lists,
    encoded_items,
    integers,
    is_empty,
    missing_item,
    plain_items,
    read_lists,
    texts,
)
from rlds2reverb.formats.tfds.features import NONE, STEPS, Group, Leaf, Shape, Stored, TensorFeature, parse_features
from rlds2reverb.images import NotReadHere, decode_files
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, flatten, map_with_path, nested
from rlds2reverb.text import counted, shortened, visible

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
      lengths: those of the sequences around an item, None where free; for steps, the number of steps is the first.
      key: the key of its values.
      shape_key: the key of the items' shapes, or None.
      row_keys: the keys of the lengths of rows, for each sequence in a sequence.
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

    def read(self, lists: Lists, where: str) -> Any:
        """The column of one record: [length, ..., *shape]; without sequences a value: an array, a number or bytes."""
        where = f'{where}, feature "{self.path}"'
        if not self.lengths:
            return self._read_single(lists, where)
        items = self._read_items(lists, where)
        rows = [_read_integers(lists, key, where) for key in self.row_keys]
        return _split_rows(items, rows, self.lengths[1:], where) if rows else items

    def _read_single(self, lists: Lists, where: str) -> Any:
        feature, leaf = lists.get(self.key), self.leaf
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
        items = self._read_items(lists, where)
        if len(items) == 1:
            return items[0]
        if self.spec.shape and 0 in self.spec.shape:
            return np.zeros(self._empty_shape, leaf.dtype)
        raise SourceError(f"{where}: has {len(items):,} values; expected one of the shape {leaf.shape}")

    def _read_items(self, lists: Lists, where: str) -> Array:
        feature, leaf = lists.get(self.key), self.leaf
        if feature is None:
            return np.zeros((0, *self._empty_shape), leaf.dtype)
        if isinstance(leaf, ImageSpec):
            return decode_files(leaf, texts(feature, where), where)
        if leaf.encoding == NONE:
            return plain_items(leaf, feature, where)
        values, shapes = texts(feature, where), None
        if self.shape_key is not None:
            sizes, dimensions = _read_integers(lists, self.shape_key, where), len(leaf.shape)
            if len(sizes) % dimensions:
                raise SourceError(f"{where}: shapes of {len(sizes):,} sizes in all; expected {dimensions} each")
            shapes = sizes.reshape(-1, dimensions)
        return encoded_items(leaf, values, shapes, where)


def column_of(stored: Stored, path: str, where: str, prefix: str = "") -> Column:
    """Finds where records have a leaf; its key is the path behind a prefix. Raises `NotReadHere`, or `SourceError` if no memory holds its sizes."""
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


def _split_rows(items: Array, rows: list[Array], lengths: Shape, where: str) -> Array:
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
        items = _split_level(items, row, length or 0)
    return items


def _split_level(items: Array, lengths: Array, when_none: int) -> Array:
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


def _read_integers(lists: Lists, key: bytes, where: str) -> Array:
    feature = lists.get(key)
    return np.zeros(0, np.int64) if feature is None else integers(feature, where).astype(np.int64)


_OWN_FEATURES = "use the features.json that was written with these files"
_MOST_NAMED = 3


def check_record(
    lists: Lists,
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
    prefix, keys = f"{STEPS}/", sorted(key.decode("utf-8", "replace") for key in lists)
    nests = {key[:end] for key in keys for end, sign in enumerate(f"{key}/") if sign == "/"}
    lacking = [name for name, spec in steps.items() if name not in nests and 0 not in spec.shape]
    declared = tuple(f"{name}/" for name in (*steps, *left_out))
    undeclared_keys = [key for key in keys if key.startswith(prefix) and not f"{key}/".startswith(declared)]
    if not lacking or (rows == 0 and not undeclared_keys):
        return
    paths = [name.removeprefix(prefix) for name in lacking]
    named = [f'"{path}" ({steps[name]} a step)' for name, path in zip(lacking, paths)]
    them = "it" if len(paths) == 1 else "them"
    expected = f"{counted(rows, 'step') if rows else 'steps'} of {them}"
    undeclared = [f'"{visible(shortened(key.removeprefix(prefix)))}"' for key in undeclared_keys]
    instead = f", found instead {_first_of(undeclared)}" if undeclared else ""
    can_go = has_drop and len(paths) <= _MOST_NAMED and not {IS_FIRST, IS_LAST}.intersection(paths)
    way_out = (
        f", or leave {them} out by a transform, drop={','.join(paths)}" if can_go else f", or remove {them} from it"
    )
    raise SourceError(
        f"{where}: the record lacks {counted(len(named), 'step feature')} that features.json declares: {_first_of(named)}; "
        f"expected {expected}{instead}; {_OWN_FEATURES}{way_out}"
    )


def _first_of(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


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
        """Reads the content of features.json.

        Raises:
          NotReadHere: a feature that only TFDS can read; the message names it and its class.
          SourceError: the features make no sense, are absurdly large, or are not of RLDS episodes.
        """
        top, only_tfds = parse_features(tree, where)
        of_episode = dict(top) if isinstance(top, Group) and not top.lengths else {}
        if STEPS not in of_episode:
            raise SourceError(f'{where}: not RLDS: an episode needs a feature "{STEPS}"; found {sorted(of_episode)}')
        steps = of_episode.pop(STEPS)
        if not isinstance(steps, Group) or len(steps.lengths) != 1:
            raise SourceError(f'{where}: not RLDS: "{STEPS}" must be a dataset of dicts of features')
        if only_tfds:
            raise NotReadHere(only_tfds)
        try:
            step_leaves, other_leaves = flatten(steps), flatten(of_episode)
        except SpecError as error:
            raise SourceError(f"{where}: {error}; rename it in the dataset") from error
        if not step_leaves:
            raise SourceError(f'{where}: not RLDS: "{STEPS}" has no features')
        columns = {path: column_of(leaf, path, where, STEPS) for path, leaf in step_leaves.items()}
        metadata = {path: column_of(leaf, path, where) for path, leaf in other_leaves.items()}
        for path, column in columns.items():
            if len(column.lengths) > 2:
                raise NotReadHere(f'{where}: step feature "{path}": a sequence of sequences in a step is ragged')
        return cls(
            map_with_path(lambda path, _: columns[path].step_spec, steps),
            map_with_path(lambda path, _: metadata[path].spec, of_episode),
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
        lists = read_lists(record, where)
        columns = {column.path: column.read(lists, where) for column in self._steps}
        self._check(columns, lists, where)
        return columns, {column.path: column.read(lists, where) for column in self._metadata}

    def length_of(self, record: bytes, where: str) -> int | None:
        """The number of steps of an episode, by one of its flags; None where it has none. Nothing else is decoded. Arguments and errors as `read`."""
        flag = next((column for column in self._steps if column.path in FLAGS), None)
        if flag is None:
            return None
        lists = read_lists(record, where)
        return len(flag.read(lists, where)) if flag.key in lists else None

    def _check(self, columns: dict[str, Array], lists: Lists, where: str) -> None:
        """Refuses columns of different lengths. Columns whose steps hold no values say no length; they get that of the others."""
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            for column in self._steps:
                if 0 in column.step_spec.shape:
                    shape = (max(lengths), *columns[column.path].shape[1:])
                    columns[column.path] = np.zeros(shape, column.leaf.dtype)
            lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1 or lengths == {0}:
            spec = {f"{STEPS}/{column.path}": column.step_spec for column in self._steps}
            check_record(lists, spec, max(lengths), where, self._left_out)
        if len(lengths) > 1 or (lengths and self.steps_length not in (None, *lengths)):
            counts = ", ".join(f"{path}: {len(column):,}" for path, column in columns.items())
            raise SourceError(
                f"{where}: the columns of steps have different lengths, or others than expected: {counts}"
            )
        for column in self._steps:
            if column.row_keys and columns[column.path].ndim != 1 + len(column.step_spec.shape):
                raise SourceError(
                    f'{where}, feature "{column.path}": steps of different lengths; all of an episode must have one'
                )
