"""Trajectories of many items -> what they point to.

Source: schema.proto, FlatTrajectory{columns(1){chunk_slices(1){chunk_key(1), offset(2), length(3), index(4)}, squeeze(2)}}.

    Templates            most trajectories: read by the pattern of one that was seen before
    read_trajectories    all others: numpy finds all pairs of all items at once
                         and what protobuf's own writers never write, protobuf reads item by item

Most items of a table differ in the keys of their chunks and in the rows there, and in nothing else. A template says where in a
trajectory's bytes those are; all other bytes must be the template's own.

All of a trajectory's bytes are pairs of varints: a tag, and a value or a length. What each pair is follows from its tag and its
neighbours' (`_FOLLOWS`). Fields in another order, a length of 0, and unknown fields are left to protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.varint import PADDING, WORD_BYTES, Varints, joined_bits, varints_of
from rlds2reverb.wire.schema import message_class

_MOST_TEMPLATES = 12
_MOST_NEW = 2
"""Of one response: templates are tried one after the other, and each takes its time."""

_FEW = 64
"""A pattern is worth a template when at least one of so many trajectories has it."""

_MOST_BYTES = 4096
"""Of a trajectory that has a template; longer ones have so many keys that hardly two are alike."""


class _Template(NamedTuple):
    """A pattern.

    Attributes:
      mask: [size] uint8, the bits that are the same in all its trajectories.
      bits: [size] uint8, these.
      pattern: of one of them.
      keys: where its keys are.
    """

    mask: Array
    bits: Array
    pattern: Pattern
    keys: Keys

    @classmethod
    def of(cls, trajectory: bytes) -> _Template | None:
        """None for what protobuf itself would not write so."""
        if len(trajectory) > _MOST_BYTES or (pattern := pattern_of(trajectory)) is None:
            return None
        if (keys := Keys.of(pattern.pointers.slices.keys, pattern.keys)) is None:
            return None
        data = np.frombuffer(trajectory, np.uint8)
        mask = np.full(len(data), 0xFF, np.uint8)
        for start, end in np.concatenate([pattern.keys, pattern.lengths, pattern.offsets]).tolist():
            mask[start : min(end + 1, start + 9)] = 0x80  # of a tenth byte, the one bit that is left is of the pattern
        return cls(mask, data & mask, pattern, keys)

    @property
    def size(self) -> int:
        """Bytes of a trajectory."""
        return len(self.mask)

    def read(self, data: Array, starts: Array) -> tuple[Array, Pointers | None]:
        """[n] bool: which of the trajectories that begin there, all of its size, are of this pattern; and what these point to."""
        every: Array = np.ndarray((len(data) - self.size + 1, self.size), np.uint8, data, 0, (1, 1))
        rows = every[starts]
        fits, keys = self.keys.read(rows)
        fits &= ((rows & self.mask) == self.bits).all(axis=1)
        if not fits.all():
            rows, keys = rows[fits], keys[fits]
        lengths = _small(rows, self.pattern.lengths)
        if not lengths.all() or not len(rows):
            return np.zeros_like(fits), None
        offsets = np.zeros(lengths.shape, np.int64)
        if len(self.pattern.offsets):
            offsets[:, self.pattern.has_offset] = _small(rows, self.pattern.offsets)
        one, count = self.pattern.pointers, len(lengths)
        return fits, Pointers(
            Slices(keys.ravel(), offsets.ravel(), lengths.ravel(), _repeated(one.slices.tensors, count)),
            *(_repeated(values, count) for values in (one.slice_counts, one.squeezed, one.column_counts)),
        )


def _small(rows: Array, places: Array) -> Array:
    """[n, size] uint8 -> [n, places] int64: the varints there; `places` has the first and the last byte of each."""
    starts, widths = places[:, 0], places[:, 1] - places[:, 0] + 1
    values = (rows.take(starts, axis=1) & 0x7F).astype(np.int64)
    for at in range(1, int(widths.max(initial=0))):
        is_there = widths > at
        values[:, is_there] |= (rows.take(starts[is_there] + at, axis=1) & 0x7F).astype(np.int64) << (7 * at)
    return values


def _repeated(values: Array, count: int) -> Array:
    """All values, so many times one after the other."""
    out = np.empty((count, len(values)), values.dtype)
    out[:] = values
    return out.ravel()


class Templates:
    """Reads trajectories, and learns their patterns from them. Values are those of `read_trajectories`."""

    def __init__(self) -> None:
        self._templates: list[_Template] = []  # the one of use last is the first

    def read(self, trajectories: Sequence[bytes]) -> Pointers:
        """FlatTrajectory messages -> what they point to.

        Raises:
          WireError: as `read_trajectories`.
        """
        data = np.frombuffer(b"".join(trajectories) + PADDING, np.uint8)
        sizes = np.fromiter(map(len, trajectories), np.int64, len(trajectories))
        found, left = self._match(data, sizes, np.arange(len(sizes)), self._templates)
        for _ in range(_MOST_NEW if len(left) else 0):
            # The pattern of one of those that are left, of the size that most of them have.
            _, firsts, counts = np.unique(sizes[left], return_index=True, return_counts=True)
            most = int(np.argmax(counts))
            if counts[most] * _FEW < len(trajectories):
                break
            if (new := _Template.of(trajectories[left[firsts[most]]])) is None:
                break
            more, left = self._match(data, sizes, left, [new])
            found += more
            if not len(left):
                break
        if len(left):
            found.append((left, read_trajectories([trajectories[number] for number in left.tolist()])))
        whole = joined([pointers for _, pointers in found])
        return whole if len(found) == 1 else whole.chosen(np.argsort(np.concatenate([items for items, _ in found])))

    def _match(
        self, data: Array, sizes: Array, left: Array, templates: Sequence[_Template]
    ) -> tuple[list[tuple[Array, Pointers]], Array]:
        """The items of each template with what they point to, and the items of none."""
        starts, found = starts_of(sizes), []
        for template in list(templates):
            if not (is_of_it := sizes[left] == template.size).any():
                continue
            fits, pointers = template.read(data, starts[left[is_of_it]])
            if pointers is not None:
                is_of_it[is_of_it] = fits
                found.append((left[is_of_it], pointers))
                left = left[~is_of_it]
                self._use(template)
        return found, left

    def _use(self, template: _Template) -> None:
        self._templates = [template, *(one for one in self._templates if one is not template)][:_MOST_TEMPLATES]


_COLUMN, _SLICE, _KEY, _OFFSET, _LENGTH, _INDEX, _SQUEEZE, _OTHER = range(8)

_MOST_INT32 = (1 << 31) - 1

_SMALL_BYTES = 4
"""Of offsets and lengths in a pattern, at most: whatever is in so many, it is an int32."""


def _transitions() -> Array:
    follows = {
        _COLUMN: (_SLICE,),
        _SLICE: (_KEY,),
        _KEY: (_OFFSET, _LENGTH),
        _OFFSET: (_LENGTH,),
        _LENGTH: (_INDEX, _SLICE, _SQUEEZE, _COLUMN),
        _INDEX: (_SLICE, _SQUEEZE, _COLUMN),
        _SQUEEZE: (_COLUMN,),
    }
    table = np.zeros((8, 8), bool)
    for before, after in follows.items():
        table[before, list(after)] = True
    return table


_FOLLOWS = _transitions()
"""[8, 8] bool: may the second follow the first? Of the first pair of an item see `_kinds`."""

_MAY_END = np.isin(np.arange(8), (_LENGTH, _INDEX, _SQUEEZE))

_OF_TAG = np.full(256, _OTHER, np.uint8)
_OF_TAG[[0x0A, 0x08, 0x10, 0x18, 0x20]] = (_SLICE, _KEY, _OFFSET, _LENGTH, _INDEX)


def read_trajectories(trajectories: Sequence[bytes]) -> Pointers:
    """FlatTrajectory messages -> what they point to.

    Raises:
      WireError: no such message, an item without columns, or a column without slices.
    """
    varints = varints_of(trajectories)
    pointers = None if varints is None else _read_together(varints)
    return _read_singly(trajectories) if pointers is None else pointers


class Pattern(NamedTuple):
    """A trajectory, and where in its bytes the numbers are that differ between items.

    Attributes:
      pointers: what it points to; one item.
      keys: [slices, 2] int64, the first and the last byte of every slice's key.
      lengths: [slices, 2] int64, of its length.
      offsets: [slices with an offset, 2] int64, of its offset.
      has_offset: [slices] bool.
    """

    pointers: Pointers
    keys: Array
    lengths: Array
    offsets: Array
    has_offset: Array


def pattern_of(trajectory: bytes) -> Pattern | None:
    """None when there is anything that a writer of protobuf's does not write, or an offset or a length that no item of a table has."""
    varints = varints_of([trajectory])
    if varints is None or (pointers := _read_together(varints)) is None:
        return None
    kinds = _kinds(varints.values[::2], np.zeros(1, np.int64))
    if kinds is None:
        return None
    places = np.stack([varints.starts[1::2], np.append(varints.starts[2::2], varints.size) - 1], axis=1)
    keys, lengths, offsets = (places[kinds == kind] for kind in (_KEY, _LENGTH, _OFFSET))
    if any(np.any(wide[:, 1] - wide[:, 0] >= _SMALL_BYTES) for wide in (lengths, offsets)):
        return None
    has_offset = np.zeros(len(keys), bool)
    has_offset[np.cumsum(kinds == _SLICE)[kinds == _OFFSET] - 1] = True
    return Pattern(pointers, keys, lengths, offsets, has_offset)


def _read_together(varints: Varints) -> Pointers | None:
    """None when there is anything that a writer of protobuf's does not write."""
    if np.any(varints.counts % 2) or np.any(varints.counts == 0) or not len(varints.counts):
        return None
    tags, values = varints.values[::2], varints.values[1::2]
    if tags.max() > 0xFF:
        return None
    first_pairs = np.cumsum(varints.counts // 2) - varints.counts // 2
    kinds = _kinds(tags, first_pairs)
    if kinds is None:
        return None
    at: list[Array] = [kinds == kind for kind in range(_OTHER)]
    # Is every column and every slice as long as it says? A column ends where the next one begins, a slice where the next slice, column or
    # squeeze does. Items begin with a column, so what is the last of an item ends with it.
    starts = np.append(varints.starts[::2], varints.size)  # of pairs
    slice_borders = at[_COLUMN] | at[_SLICE] | at[_SQUEEZE]
    if not (_reach(starts, values, at[_COLUMN], at[_COLUMN]) and _reach(starts, values, at[_SLICE], slice_borders)):
        return None
    small = values[~at[_KEY]]
    if small.max() > _MOST_INT32 or np.any(values[at[_LENGTH]] == 0) or np.any(values[at[_SQUEEZE]] > 1):
        return None
    column_of, slice_of = np.cumsum(at[_COLUMN]) - 1, np.cumsum(at[_SLICE]) - 1
    columns, slices = int(column_of[-1]) + 1, int(slice_of[-1]) + 1
    squeezed = np.zeros(columns, bool)
    squeezed[column_of[at[_SQUEEZE]]] = values[at[_SQUEEZE]] == 1
    return Pointers(
        Slices(
            values[at[_KEY]],
            _spread(slices, slice_of[at[_OFFSET]], values[at[_OFFSET]]),
            values[at[_LENGTH]].astype(np.int64),
            _spread(slices, slice_of[at[_INDEX]], values[at[_INDEX]]),
        ),
        np.bincount(column_of[at[_SLICE]], minlength=columns),
        squeezed,
        np.add.reduceat(at[_COLUMN], first_pairs, dtype=np.int64),
    )


def _spread(count: int, where: Array, values: Array) -> Array:
    """[count] int64: fields that are left out are 0."""
    out = np.zeros(count, np.int64)
    out[where] = values.astype(np.int64)
    return out


def _kinds(tags: Array, first_pairs: Array) -> Array | None:
    """[pairs] uint8: what each pair is; None when they do not follow each other as they should."""
    kinds = _OF_TAG[tags.astype(np.uint8)]
    is_message = kinds == _SLICE
    kinds[:-1][is_message[:-1] & is_message[1:]] = _COLUMN  # a column begins with a slice, a slice with its key
    after_key = kinds[:-1] == _KEY
    kinds[1:][(kinds[1:] == _OFFSET) & ~after_key] = _SQUEEZE
    last_pairs = np.append(first_pairs[1:], len(kinds)) - 1
    if not (np.all(kinds[first_pairs] == _COLUMN) and np.all(_MAY_END[kinds[last_pairs]])):
        return None
    return kinds if np.all(_FOLLOWS[kinds[:-1], kinds[1:]]) else None


def _reach(starts: Array, values: Array, is_header: Array, is_border: Array) -> bool:
    """Whether the pairs that are headers, and what they say is in them, end at the next border."""
    borders = np.append(np.flatnonzero(is_border), len(is_border))
    header_of_border = is_header[borders[:-1]]
    headers, ends = borders[:-1][header_of_border], starts[borders[1:][header_of_border]]
    return bool(np.all(starts[headers + 1] + values[headers].astype(np.int64) == ends))


def _read_singly(trajectories: Sequence[bytes]) -> Pointers:
    slices: list[tuple[int, int, int, int]] = []
    slice_counts, squeezed, column_counts = [], [], []
    for trajectory in trajectories:
        columns = _parsed(trajectory).columns
        if not columns:
            raise WireError("sampled item: its trajectory has no columns")
        column_counts.append(len(columns))
        for column in columns:
            pieces = column.chunk_slices
            if not pieces:
                raise WireError("sampled item: a column without slices")
            slices += [(one.chunk_key, one.offset, one.length, one.index) for one in pieces]
            slice_counts.append(len(pieces))
            squeezed.append(column.squeeze)
    keys, *others = zip(*slices)
    return Pointers(
        Slices(np.array(keys, np.uint64), *(np.array(values, np.int64) for values in others)),
        np.array(slice_counts, np.int64),
        np.array(squeezed, bool),
        np.array(column_counts, np.int64),
    )


def _parsed(trajectory: bytes) -> Any:
    try:
        return message_class("FlatTrajectory").FromString(trajectory)
    except DecodeError as error:
        raise WireError(f"FlatTrajectory: {len(trajectory)} bytes that are no such message ({error})") from error


_NINTH_SHIFT = np.uint64(56)
_TOP_BIT = np.uint64(1 << 63)


class Keys(NamedTuple):
    """Where the keys of chunks are in the bytes of a trajectory. Columns of an item mostly have the same keys: of these one is decoded.

    Attributes:
      starts: [slices] int64, the first byte of each.
      ninths: [slices] int64, the ninth byte.
      ninth_bits: [slices] uint8, those of the ninth byte that are the key's; none of keys of eight bytes.
      top_bits: [distinct] uint64, what the tenth byte means, which is part of the pattern.
      firsts: [distinct] int64, the first slice of each key.
      like: [slices] int64, which of `firsts` has the same key.
    """

    starts: Array
    ninths: Array
    ninth_bits: Array
    top_bits: Array
    firsts: Array
    like: Array

    @classmethod
    def of(cls, keys: Array, places: Array) -> Keys | None:
        """Those of a trajectory; None when one is shorter than a key that was drawn at random from 64 bits.

        Args:
          keys: [slices] uint64.
          places: [slices, 2] int64, the first and the last byte of each.
        """
        starts, widths = places[:, 0], places[:, 1] - places[:, 0] + 1
        if widths.min() < WORD_BYTES:
            return None
        _, firsts, like = np.unique(keys, return_index=True, return_inverse=True)
        return cls(
            starts,
            starts + WORD_BYTES,  # of a key of eight bytes that is the tag after it
            np.where(widths > WORD_BYTES, 0x7F, 0).astype(np.uint8),
            keys[firsts] & _TOP_BIT,
            firsts,
            like,
        )

    def read(self, rows: Array) -> tuple[Array, Array]:
        """[n, size] uint8, trajectories -> [n] bool, whether the same keys are equal; [n, slices] uint64, the keys where they are."""
        count, size = rows.shape
        every_word: Array = np.ndarray((count, size - WORD_BYTES + 1), "<u8", rows, 0, (size, 1))
        words = every_word[:, self.starts]
        ninths = rows.take(self.ninths, axis=1) & self.ninth_bits
        own_words, own_ninths = words[:, self.firsts], ninths[:, self.firsts]
        alike: Array = ((own_words[:, self.like] == words) & (own_ninths[:, self.like] == ninths)).all(axis=1)
        keys = joined_bits(own_words.astype(np.uint64)) | (own_ninths.astype(np.uint64) << _NINTH_SHIFT) | self.top_bits
        return alike, keys[:, self.like]


class Slices(NamedTuple):
    """[slices] each: what one slice points to.

    Attributes:
      keys: uint64, the chunk's.
      offsets, lengths: int64, rows.
      tensors: int64, the number of the tensor in the chunk.
    """

    keys: Array
    offsets: Array
    lengths: Array
    tensors: Array


@dataclass(frozen=True, eq=False)
class Pointers:
    """What the columns of some items point to. Every item has columns, every column has slices.

    Attributes:
      slices: of all columns, item by item, column by column.
      slice_counts: [columns] int64, slices of each column of all items.
      squeezed: [columns] bool.
      column_counts: [items] int64, columns of each item.
    """

    slices: Slices
    slice_counts: Array
    squeezed: Array
    column_counts: Array

    def __len__(self) -> int:
        return len(self.column_counts)

    def item_slice_counts(self) -> Array:
        """[items] int64: slices of each."""
        counts: Array = np.add.reduceat(self.slice_counts, starts_of(self.column_counts))
        return counts

    def part(self, first: int, end: int) -> Pointers:
        """Those of the items [first, end)."""
        if (first, end) == (0, len(self)):
            return self
        a, b = int(self.column_counts[:first].sum()), int(self.column_counts[:end].sum())
        c, d = int(self.slice_counts[:a].sum()), int(self.slice_counts[:b].sum())
        return Pointers(
            Slices(*(values[c:d] for values in self.slices)),
            self.slice_counts[a:b],
            self.squeezed[a:b],
            self.column_counts[first:end],
        )

    def chosen(self, items: Array) -> Pointers:
        """Those of the items of these numbers, in that order."""
        columns = spread(starts_of(self.column_counts)[items], self.column_counts[items])
        slices = spread(starts_of(self.slice_counts)[columns], self.slice_counts[columns])
        return Pointers(
            Slices(*(values[slices] for values in self.slices)),
            self.slice_counts[columns],
            self.squeezed[columns],
            self.column_counts[items],
        )

    def first_of_equal_keys(self) -> Array:
        """[slices] int64: a slice with the same chunk; of a column that reads the same chunks as its item's first, one of that."""
        counts = self.slice_counts
        column_starts = starts_of(counts)
        first_columns = np.repeat(starts_of(self.column_counts), self.column_counts)
        moved = np.repeat(column_starts - column_starts[first_columns], counts)
        own = np.arange(len(moved))
        like = own - moved
        # A column with more slices than the first one has: what is beyond would be compared with a slice of another column.
        ends_of_first = np.repeat((column_starts + counts)[first_columns], counts)
        is_equal = (like < ends_of_first) & (self.slices.keys[like] == self.slices.keys)
        return np.where(is_equal, like, own)


def joined(parts: Sequence[Pointers]) -> Pointers:
    """The items of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    return Pointers(
        Slices(*(np.concatenate(values) for values in zip(*(part.slices for part in parts)))),
        np.concatenate([part.slice_counts for part in parts]),
        np.concatenate([part.squeezed for part in parts]),
        np.concatenate([part.column_counts for part in parts]),
    )


def starts_of(counts: Array) -> Array:
    """[n] counts -> [n] where each begins."""
    starts: Array = np.cumsum(counts) - counts
    return starts


def is_even(values: Array) -> bool:
    """Whether all are the same; there must be one."""
    return bool((values == values[0]).all())


def spread(starts: Array, counts: Array) -> Array:
    """[n] starts and counts -> [sum of counts] int64: start, start + 1, ... of each, one after the other."""
    if len(counts) and is_even(counts):
        alike: Array = starts if counts[0] == 1 else np.add.outer(starts, np.arange(counts[0])).ravel()
        return alike
    out: Array = np.repeat(starts - starts_of(counts), counts) + np.arange(counts.sum())
    return out
