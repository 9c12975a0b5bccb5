"""What a learner gets: a batch in the structure of its table, and what the server tells of every sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.display import as_html
from rlds2reverb.episodes import Array
from rlds2reverb.learner.leaves import columns_of, in_structure, paths_of
from rlds2reverb.specs import Nest


class BatchInfo(NamedTuple):
    """What is known of every sample of a batch; as of the moment when the server took it.

    Attributes:
      key: [B] uint64, the item's, for `update_priorities` and `delete`.
      probability: [B] float64, with which the sampler drew it; 1 of samplers that leave nothing to chance (fifo, heaps).
      table_size: [B] int64, items in the table.
      priority: [B] float64, the item's.
      times_sampled: [B] int32, this time included.
      weight: [B] float32 importance weights, where they were asked for; else None.
      mask: [B, L] bool, the rows that an item has in every column that was filled up, or that its slice has of the
        episode; None where nothing is filled up or sliced.
      masks: by column, [B, L] bool, the rows that an item has there, where columns were filled up; else None. See
        `learner.padding`.
      start: [B] int64, the row or step where an item begins in the episode that it was cut out of; else None.
      source: [B] int64, which part of a mix, or which server of several, a sample came from; else None.
    """

    key: Array
    probability: Array
    table_size: Array
    priority: Array
    times_sampled: Array
    weight: Array | None = None
    mask: Array | None = None
    masks: Mapping[str, Array] | None = None
    start: Array | None = None
    source: Array | None = None

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def ends(self) -> Array | None:
        """As `mask`, the last row of every item among those of it: where a slice was cut off. None without a mask."""
        if self.mask is None:
            return None
        after = np.zeros_like(self.mask)
        after[..., :-1] = self.mask[..., 1:]
        ends: Array = self.mask & ~after
        return ends


class Batch(NamedTuple):
    """Samples of one table: `data, info = batch`.

    Attributes:
      data: in the structure of the table's signature; every leaf is [B, ...], or a list of B arrays where shapes differ.
      info: see `BatchInfo`.
    """

    data: Nest
    info: BatchInfo

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def size(self) -> int:
        """The number of samples; of stacked ones, too."""
        return int(self.info.key.size)


def unbatched(batch: Batch, structure: Nest | None) -> Batch:
    """The only sample of a batch, without the axis of the batch; `structure` is the sampler's."""
    fields: list[Any] = [_first(values) for values in batch.info]
    paths = paths_of(batch.data, structure)
    values = [column[0] for column in columns_of(batch.data, paths)]
    return Batch(in_structure(values, paths), BatchInfo(*fields))


def _first(values: Any) -> Any:
    if values is None:
        return None
    return {name: mask[0] for name, mask in values.items()} if isinstance(values, Mapping) else values[0]
