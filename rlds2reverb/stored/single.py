"""Every item as an episode: for items whose rows make no episodes together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episodes import IS_FIRST, IS_LAST, Array
from rlds2reverb.errors import WireError
from rlds2reverb.readers.alignment import flags
from rlds2reverb.readers.lru import LRU
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings, each
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.stored.index import Index
from rlds2reverb.stored.snapshot import Snapshot
from rlds2reverb.wire.codec import item_values
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.schema import message_class

_KEPT_BYTES = 64 << 20
_METADATA = {"item_key": np.uint64, "priority": np.float64, "times_sampled": np.int32}
_FLAG = ArraySpec((), np.dtype(bool))


class StoredItems(Recordings):
    """The items of a snapshot, in the order of their coming.

    Items whose columns all have equally many rows are episodes of those; of others each column is one row.

    Args:
      snapshot: of a table.
      index: of its items.
      leaves: path -> spec of an item's column as it is in the item, with its rows.
    """

    def __init__(self, snapshot: Snapshot, index: Index, leaves: dict[str, ArraySpec]) -> None:
        self.name, self._snapshot, self._leaves = snapshot.name, snapshot, leaves
        self._squeezed = index.squeezed.tolist()
        self._are_rows = not index.unlike and not (index.lengths > 0).any()
        self._order = np.lexsort((index.keys, index.inserted))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._order)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """How the table was read."""
        return self._snapshot.remarks

    def spec(self) -> Nest:
        """The columns' rows, and the flags of the ends."""
        rows = {
            path: ArraySpec(leaf.shape[1:], leaf.dtype, leaf.name) if self._are_rows and not squeezed else leaf
            for (path, leaf), squeezed in zip(self._leaves.items(), self._squeezed)
        }
        return nested({**rows, **{name: _FLAG for name in (IS_FIRST, IS_LAST) if name not in rows}})

    def metadata_spec(self) -> Nest:
        """What the table knows of an item."""
        return {name: ArraySpec((), np.dtype(kind)) for name, kind in _METADATA.items()}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The items of these numbers."""
        return each(_Reading(self), numbers)

    def item(self, number: int) -> Any:
        """One of them, as a message."""
        return self._snapshot.items.one(int(self._order[number]))

    def chunk(self, key: int) -> tuple[Array, ...]:
        """The tensors of a chunk.

        Raises:
          WireError: there is none, or it cannot be read.
        """
        number = int(self._snapshot.chunks.find(np.array([key], np.uint64))[0])
        if number < 0:
            raise WireError(f"chunk {key} is not there")
        return self._snapshot.chunks.tensors(number)

    def columns(self, values: Sequence[Array]) -> dict[str, Array]:
        """An item's values as columns of steps.

        Raises:
          BrokenEpisode: they are not as many as the table's columns, or of unequal lengths.
        """
        if len(values) != len(self._leaves):
            raise BrokenEpisode("", f"the item has {len(values)} columns, expected {len(self._leaves)}")
        made = {
            path: value if self._are_rows and not squeezed else value[None]
            for (path, value), squeezed in zip(zip(self._leaves, values), self._squeezed)
        }
        made.update(
            (name, flag) for name, flag in flags(len(next(iter(made.values()))), None).items() if name not in made
        )
        return made


class _Reading:
    """One pass: chunks decoded last are kept, for neighbours share them."""

    def __init__(self, items: StoredItems) -> None:
        self._items = items
        self._chunks = LRU[int, tuple[Array, ...]](
            _KEPT_BYTES, size=lambda tensors: sum(tensor.nbytes for tensor in tensors)
        )

    def one(self, number: int) -> Recording:
        """One item."""
        item = self._items.item(number)
        metadata = {
            name: kind(getattr(item, name if name != "item_key" else "key")) for name, kind in _METADATA.items()
        }
        name = f"{item.key:016x}"
        try:
            return Recording(self._items.columns(self._values(item)), metadata, name)
        except (WireError, DecodeError) as error:
            return Recording({}, metadata, name, (("", str(error)),))
        except BrokenEpisode as broken:
            return Recording({}, metadata, name, ((broken.path, broken.why),))

    def _values(self, item: Any) -> tuple[Array, ...]:
        trajectory = message_class("FlatTrajectory").FromString(item.flat_trajectory)
        columns = tuple(
            ItemColumn(
                tuple(Slice(s.chunk_key, s.offset, s.length, s.index) for s in column.chunk_slices), column.squeeze
            )
            for column in trajectory.columns
        )
        keys = {piece.chunk_key for column in columns for piece in column.slices}
        chunks = {key: Chunk(key, 0, 0, 0, self._chunks.get(key, partial(self._items.chunk, key))) for key in keys}
        return item_values(Item(item.key, item.table, item.priority, columns), chunks)
