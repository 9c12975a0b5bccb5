"""Items of one episode, as a push would store them, and batches of items of several episodes.

`EpisodeItems` are columns that are not cut yet: a view's windows over an episode's rows. `take` cuts some of them into `TakenItems`, in
memory of their own, so that the episode may go; `flat_batch` puts those of several episodes together. Keys, priorities, dtypes and byte
order are those of a push, so that a learner sees no difference between a dataset and a table that was filled with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import Array, column_bytes
from rlds2reverb.learner.slices import ItemColumn, item_columns
from rlds2reverb.prepare.preparation import Prepared
from rlds2reverb.push.keys import ItemNames
from rlds2reverb.wire.codec import as_bytes, as_wire_array, wire_number
from rlds2reverb.wire.insert import checked_span, item_fields, keys_of_items
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo, place_columns


@dataclass(frozen=True, eq=False)
class EpisodeItems:
    """The items of one episode, not cut yet; `columns` are in the order of the signature."""

    number: int  # of the episode in the source
    episode_id: str
    keys: Array  # [n] uint64
    priorities: Array  # [n] float64
    columns: Sequence[ItemColumn]


def items_of(number: int, prepared: Prepared, names: ItemNames) -> EpisodeItems | None:
    """The items that a table would get of an episode; None if the episode is left out, or has none.

    Raises:
      ViewError: a window of the cut reaches outside its rows.
      WireError: a column's dtype could not be stored.
    """
    if not prepared.is_good:
        return None
    names.take_in(prepared.key_name)
    (output_cut,) = prepared.cuts
    if not output_cut.items_per_table:
        return None
    part = names.part(output_cut.cut)
    cut = part.cut
    # A push finds windows outside the rows and dtypes that Reverb lacks when it encodes; here nothing is encoded, so both are checked.
    checked_span(cut, item_fields(cut))
    rows = {path: _as_stored(column) for path, column in cut.rows.items()}
    (keys,) = keys_of_items(part).values()
    priorities = np.asarray(cut.priorities, np.float64)
    return EpisodeItems(number, prepared.episode.id, keys, priorities, item_columns(cut, rows))


def _as_stored(column: Array) -> Array:
    """A column as it comes back from a table: C order, native byte order, text as bytes. Raises WireError if Reverb cannot store it."""
    wire_number(column.dtype)
    rows = as_wire_array(column)
    if rows.dtype != object:
        return rows
    return np.array([as_bytes(text) for text in rows.ravel()], object).reshape(rows.shape)


class TakenItems(NamedTuple):
    """Some items of one episode, cut, in memory of their own."""

    places: Array  # [n] int64, of these items in a batch, ascending
    keys: Array  # [n] uint64
    priorities: Array  # [n] float64
    columns: Sequence[Array]  # each [n, ...]

    @classmethod
    def of(cls, source: EpisodeItems, items: Array, places: Array) -> TakenItems:
        """Cuts the items of these numbers, for these places."""
        columns = [column.take(items) for column in source.columns]
        return cls(places, source.keys[items], source.priorities[items], columns)

    def pick(self, items: Array, places: Array) -> TakenItems:
        """Some of these, by their numbers, for these places. One alone is no copy, so that a whole episode may stand at many places."""
        if len(self.keys) > 1:
            columns = [column[items] for column in self.columns]
        elif len(items) > 1:
            columns = [np.broadcast_to(column, (len(items), *column.shape[1:])) for column in self.columns]
        else:
            return self._replace(places=places)
        return TakenItems(places, self.keys[items], self.priorities[items], columns)

    def before(self, end: int) -> TakenItems:
        """Only the items whose places are before `end`."""
        if len(self.places) and self.places[-1] < end:
            return self
        kept = self.places < end
        return TakenItems(
            self.places[kept], self.keys[kept], self.priorities[kept], [column[kept] for column in self.columns]
        )

    @property
    def nbytes(self) -> int:
        return sum(map(column_bytes, self.columns))


def flat_batch(parts: Sequence[TakenItems], among: Array, epoch: int) -> FlatBatch:
    """The batch that a sampler would give of these items: a column is [B, ...] if its items have one shape, else B arrays.

    Args:
      parts: have the places [0, B) together.
      among: [B] int64, the number of items that each was drawn from.
    """
    key, priority = np.empty(len(among), np.uint64), np.empty(len(among), np.float64)
    for part in parts:
        key[part.places], priority[part.places] = part.keys, part.priorities
    groups = [part.places for part in parts]
    columns: tuple[Column, ...] = tuple(parts[0].columns) if len(parts) == 1 else ()
    if len(parts) > 1:
        columns = tuple(place_columns(values, groups, len(among)) for values in zip(*(part.columns for part in parts)))
    return FlatBatch(columns, sample_info(key, priority, among, epoch))


def sample_info(key: Array, priority: Array, among: Array, epoch: int) -> SampleInfo:
    """What a sampler says of samples that were each drawn from `among` items; epochs count from 0, and times sampled from 1."""
    return SampleInfo(key, 1 / among, among, priority, np.full(len(among), epoch + 1, np.int32))
