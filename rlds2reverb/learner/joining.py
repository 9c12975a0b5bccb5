"""Samples of several parts -> one batch, where their structures agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError, SpecMismatch
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.learner.leaves import columns_of, in_structure
from rlds2reverb.specs import ArraySpec, Nest, differences, dtype_name, flatten
from rlds2reverb.wire.sample.batches import Column
from rlds2reverb.wire.sample.rows import placed


class Piece(NamedTuple):
    """Some samples of a batch of a part.

    Attributes:
      part: the part's number.
      batch: of the part.
      start, stop: samples [start, stop) of it.
    """

    part: int
    batch: Batch
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many."""
        return self.stop - self.start


def item_spec(data: Nest, structure: Nest) -> Nest:
    """The spec of one item of a batch; sizes in which its items differ are free."""
    return in_structure(map(_spec_of, columns_of(data, structure)), structure)


def check_alike(first: tuple[str, Nest], other: tuple[str, Nest]) -> None:
    """Refuses two parts whose items differ; each is its name, and the spec of its items. A size that is free in one fits any in the other.

    Raises:
      SpecMismatch: leaf by leaf, where they differ.
    """
    (one, spec), (another, found) = first, other
    lines = differences(found, spec)
    if lines and differences(spec, found):
        raise SpecMismatch(
            f'mix: "items" are those of {another}, "table" is {one}',
            lines,
            "give the parts the same view, the same transform and the same columns",
        )


def joined(
    pieces: Sequence[Piece],
    parts: Array,
    structures: Mapping[int, Nest],
    places: Sequence[Array] | None = None,
) -> Batch:
    """One batch. Where some parts tell a weight or a mask, those of the others are 1, and true for all rows that an item has.

    Args:
      pieces: the samples; without `places`, those of a part in the order in which they stand in the batch.
      parts: [B] of which part each sample is.
      structures: part -> nest of its columns.
      places: where the samples of each piece stand, which are of its part; together each of [0, B) once.

    Raises:
      ConfigError: a part pads or stacks its samples, or parts differ in a column's dtype.
    """
    places = _places(pieces, parts) if places is None else places
    for piece in pieces:
        if piece.batch.info.masks is not None:
            raise ConfigError('mix: a part pads its samples; leave that out there, and give ragged="pad" to mix')
        if piece.batch.info.key.ndim != 1:
            raise ConfigError(f"mix: part {piece.part} stacks its samples; leave that out there, and stack the mix")
    structure = structures[pieces[0].part]
    columns = zip(*(_cut(columns_of(one.batch.data, structures[one.part]), one) for one in pieces), strict=True)
    whole = []
    for path, values in zip(flatten(structure).values(), columns, strict=True):
        _check_dtypes(path, values, pieces)
        whole.append(placed(values, places, len(parts)))
    return Batch(in_structure(whole, structure), _joined_info(pieces, places, parts, whole))


def _places(pieces: Sequence[Piece], parts: Array) -> list[Array]:
    """Where the samples of each piece stand."""
    own = {part: np.flatnonzero(parts == part) for part in {piece.part for piece in pieces}}
    taken = dict.fromkeys(own, 0)
    out = []
    for piece in pieces:
        start = taken[piece.part]
        taken[piece.part] = start + piece.size
        out.append(own[piece.part][start : start + piece.size])
    return out


def _joined_info(
    pieces: Sequence[Piece], places: Sequence[Array], parts: Array, columns: Sequence[Column]
) -> BatchInfo:
    fields: dict[str, Any] = {}
    for name in BatchInfo._fields:
        values = [getattr(piece.batch.info, name) for piece in pieces]
        if name == "weight" and any(value is not None for value in values):
            values = [np.ones(one.batch.size, np.float32) if own is None else own for one, own in zip(pieces, values)]
        if name != "mask" and all(value is not None for value in values):
            own = [value[piece.start : piece.stop] for value, piece in zip(values, pieces)]
            fields[name] = placed(own, places, len(parts))
    known = BatchInfo(**{**dict.fromkeys(BatchInfo._fields), **fields})
    return known._replace(source=parts.astype(np.int64), mask=_joined_mask(pieces, places, columns))


def _joined_mask(pieces: Sequence[Piece], places: Sequence[Array], columns: Sequence[Column]) -> Array | None:
    """[B, L], as long as the longest; of a part without one, all rows that its items have. None where no part has one."""
    masks = [None if (mask := one.batch.info.mask) is None else mask[one.start : one.stop] for one in pieces]
    length = max((mask.shape[1] for mask in masks if mask is not None), default=0)
    if all(mask is None for mask in masks):
        return None
    total = sum(piece.size for piece in pieces)
    ragged = [column for column in columns if isinstance(column, list)]
    rows = np.array([min((len(one[item]) for one in ragged), default=length) for item in range(total)], np.int64)  # [B]
    length = max([length, *(int(rows[place].max()) for place, mask in zip(places, masks) if mask is None)])
    whole = np.zeros((total, length), bool)
    for place, mask in zip(places, masks):
        if mask is None:
            whole[place] = np.arange(length) < rows[place, np.newaxis]
        else:
            whole[place, : mask.shape[1]] = mask
    return whole


def _check_dtypes(path: str, values: Sequence[Column], pieces: Sequence[Piece]) -> None:
    """Refuses columns that numpy would convert; images that only some parts decode, say."""
    dtypes = {dtype: piece.part for column, piece in zip(values, pieces) for dtype in _dtypes_of(column)}
    if len(dtypes) > 1:
        found = ", ".join(f"{dtype_name(dtype)} in part {part}" for dtype, part in dtypes.items())
        raise ConfigError(f'mix: column "{path}" is {found}; expected one dtype (`decode` and `view` must be the same)')


def _dtypes_of(column: Column) -> set[np.dtype[Any]]:
    return {value.dtype for value in column} if isinstance(column, list) else {column.dtype}


def _cut(columns: Sequence[Column], piece: Piece) -> list[Column]:
    return [column[piece.start : piece.stop] for column in columns]


def _spec_of(column: Column) -> ArraySpec:
    if not isinstance(column, list):
        return ArraySpec(column.shape[1:], column.dtype)
    shapes = [value.shape for value in column]
    if len({len(shape) for shape in shapes}) > 1:
        return ArraySpec((None,), column[0].dtype)
    return ArraySpec(tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes)), column[0].dtype)


def is_signature(structure: Nest | None) -> bool:
    """Whether a structure says what its leaves hold, as tables' signatures do."""
    return structure is not None and all(isinstance(leaf, ArraySpec) for leaf in flatten(structure).values())
