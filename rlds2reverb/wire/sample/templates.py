"""Trajectories of many items -> what they point to, read by the pattern of trajectories seen before.

Most items of a table differ in the keys of their chunks and in the rows there, and in nothing else. A template says where in a trajectory's
bytes those are; all other bytes must be the template's own. Trajectories that fit none are read by `trajectories`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.wire.sample.keys import Keys
from rlds2reverb.wire.sample.pointers import Pointers, Slices, joined
from rlds2reverb.wire.sample.spans import starts_of
from rlds2reverb.wire.sample.trajectories import Pattern, pattern_of, read_trajectories
from rlds2reverb.wire.sample.varints import PADDING

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
        for _ in range(_MOST_NEW):
            if not len(left) or (new := self._learn(trajectories, sizes[left], left)) is None:
                break
            more, left = self._match(data, sizes, left, [new])
            found += more
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

    def _learn(self, trajectories: Sequence[bytes], sizes: Array, left: Array) -> _Template | None:
        """The pattern of one of those that are left, of the size that most of them have."""
        _, firsts, counts = np.unique(sizes, return_index=True, return_counts=True)
        most = int(np.argmax(counts))
        if counts[most] * _FEW < len(trajectories):
            return None
        return _Template.of(trajectories[left[firsts[most]]])
