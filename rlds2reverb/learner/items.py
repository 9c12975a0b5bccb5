"""The items of an episode without a server: what a sampler would give for them, taken straight from the rows of the cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import Array
from rlds2reverb.wire.insert import Part, check_reach, item_fields, keys_of_items
from rlds2reverb.wire.sample.batches import Column, placed
from rlds2reverb.wire.tensors import as_bytes, as_wire_array, wire_number


class _Reading(NamedTuple):
    """How one column of the items is read: `rows[anchors + offsets]`, without the rows' axis where it is squeezed."""

    rows: Array  # [R, ...]
    anchors: Array  # [n]
    offsets: Array  # [L]
    is_squeezed: bool

    def take(self, items: Array) -> Array:
        """[m] numbers of items -> [m, L, ...], or [m, ...]."""
        first = self.anchors[items]
        at = first + self.offsets[0] if self.is_squeezed else first[:, np.newaxis] + self.offsets
        values: Array = np.take(self.rows, at, axis=0)
        return values


@dataclass(frozen=True, eq=False)
class Block:
    """The items of one episode.

    Attributes:
      number: the episode's place in its source.
      episode_id: its name.
      keys: [n] uint64, the items'.
      priorities: [n] float64.
      columns: how each is read, in the order of the signature.
    """

    number: int
    episode_id: str
    keys: Array
    priorities: Array
    columns: Sequence[_Reading]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, column: int, items: Array) -> Array:
        """One column of some items, [m] -> [m, ...]; a copy."""
        return self.columns[column].take(items)


def block_of(number: int, episode_id: str, part: Part) -> Block:
    """The items that a table would get of an episode.

    Args:
      number: the episode's place in its source.
      episode_id: its name.
      part: for one table; its cut has items.

    Raises:
      ViewError: a window of the cut reaches outside its rows.
      WireError: a column's dtype could not be stored.
    """
    cut = part.cut
    check_reach(cut, item_fields(cut))
    rows = {path: stored(column) for path, column in cut.rows.items()}
    (keys,) = keys_of_items(part).values()
    return Block(number, episode_id, keys, np.asarray(cut.priorities, np.float64), _readings(cut, rows))


def stored(column: Array) -> Array:
    """A column as it comes back from a table: C order, this machine's byte order, text as bytes.

    Raises:
      WireError: Reverb cannot store its dtype, or a text of it.
    """
    wire_number(column.dtype)
    rows = as_wire_array(column)
    if rows.dtype != object:
        return rows
    texts = np.empty(rows.shape, object)
    texts.reshape(-1)[:] = [as_bytes(text) for text in rows.ravel()]
    return texts


def _readings(cut: Cut, rows: dict[str, Array]) -> list[_Reading]:
    return [
        _Reading(
            rows[field.column],
            cut.anchors if field.anchors is None else field.anchors,
            np.concatenate([_offsets(window) for window in field.windows]),
            field.squeeze,
        )
        for field in cut.fields.values()
    ]


def _offsets(window: Window) -> Array:
    return np.arange(window.start, window.stop)


@dataclass(frozen=True, eq=False)
class Picks:
    """Items of several blocks, in an order of their own.

    Attributes:
      blocks: each once.
      which: [B] of which block.
      items: [B] which item of it.
    """

    blocks: Sequence[Block]
    which: Array
    items: Array

    def __len__(self) -> int:
        return len(self.which)

    @staticmethod
    def of(picked: Sequence[tuple[Block, int]]) -> Picks:
        """Picked one by one."""
        places = {id(block): place for place, block in enumerate({id(block): block for block, _ in picked}.values())}
        blocks = list({id(block): block for block, _ in picked}.values())
        which = np.array([places[id(block)] for block, _ in picked], np.int64)
        return Picks(blocks, which, np.array([item for _, item in picked], np.int64))

    @property
    def keys(self) -> Array:
        """[B] uint64."""
        return self._numbers([block.keys for block in self.blocks], np.dtype(np.uint64))

    @property
    def priorities(self) -> Array:
        """[B] float64."""
        return self._numbers([block.priorities for block in self.blocks], np.dtype(np.float64))

    def columns(self) -> list[Column]:
        """What a sampler would give: [B, ...] where all items of the batch have one shape, else B arrays."""
        groups = [np.flatnonzero(self.which == place) for place in range(len(self.blocks))]
        return [self._column(number, groups) for number in range(len(self.blocks[0].columns))]

    def _column(self, number: int, groups: Sequence[Array]) -> Column:
        values = [block.take(number, self.items[group]) for block, group in zip(self.blocks, groups)]
        if len(values) == 1:
            return values[0]
        return placed(values, groups, len(self))

    def _numbers(self, values: Sequence[Array], dtype: np.dtype[np.generic]) -> Array:
        out = np.empty(len(self), dtype)
        for place, own in enumerate(values):
            mine = self.which == place
            out[mine] = own[self.items[mine]]
        return out
