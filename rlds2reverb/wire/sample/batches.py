"""Responses of a sample stream -> batches of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.sample.chunks import decode_chunk
from rlds2reverb.wire.schema import message_class

Column = Array | list[Array]
"""[B, ...] where all items of the batch have one shape; else B arrays."""


class SampleInfo(NamedTuple):
    """What the server tells of every sample, at the moment when it was taken.

    Attributes:
      key: [B] uint64, the item's.
      probability: [B] float64, with which the sampler drew it; 1 of samplers that leave nothing to chance.
      table_size: [B] int64, items in the table.
      priority: [B] float64, the item's.
      times_sampled: [B] int32, this time included.
    """

    key: Array
    probability: Array
    table_size: Array
    priority: Array
    times_sampled: Array


@dataclass(frozen=True, eq=False)
class FlatBatch:
    """Samples of one table.

    Attributes:
      columns: one per column of the items, in the order of the table's signature.
      info: of every sample.
    """

    columns: tuple[Column, ...]
    info: SampleInfo

    def __len__(self) -> int:
        return len(self.info.key)


class _Sample(NamedTuple):
    key: int
    probability: float
    table_size: int
    priority: float
    times_sampled: int
    values: tuple[Array, ...]


class BatchBuilder:
    """Makes batches of what one sample stream brings. Not thread-safe.

    Args:
      batch_size: samples of a batch.
      arena_bytes: most bytes of decoded chunks that are kept for later samples.
    """

    def __init__(self, batch_size: int, arena_bytes: int) -> None:
        self._batch_size, self._arena_bytes = batch_size, arena_bytes
        self._chunks: dict[int, Chunk] = {}
        self._held: list[_Sample] = []
        self._entry: Any = None  # the first of a sample whose other entries are still to come

    @property
    def waiting(self) -> int:
        """Samples that came and are in no batch yet."""
        return len(self._held)

    def take(self, message: bytes) -> list[FlatBatch]:
        """The batches that a response completes.

        Raises:
          WireError: it is no such response, or its items point to what is not there.
        """
        try:
            response = message_class("SampleStreamResponse").FromString(message)
        except DecodeError as error:
            raise WireError(f"SampleStreamResponse: {len(message)} bytes that are no such message ({error})") from error
        full: list[FlatBatch] = []
        for entry in response.entries:
            for chunk in entry.data:
                if chunk.chunk_key not in self._chunks:
                    self._chunks[chunk.chunk_key] = Chunk(chunk.chunk_key, 0, 0, 0, decode_chunk(chunk))
            self._entry = entry if entry.HasField("info") else self._entry
            if entry.end_of_sequence:
                self._held.append(self._sample(self._entry.info))
            if len(self._held) == self._batch_size:
                full.append(self._batch())
        return full

    def rest(self) -> FlatBatch | None:
        """A batch of the samples that are left; None when there are none."""
        return self._batch() if self._held else None

    def lost(self) -> None:
        """The stream broke: what came of a sample in parts is dropped."""
        self._entry = None

    def _sample(self, info: Any) -> _Sample:
        proto = info.item
        columns = tuple(
            ItemColumn(tuple(Slice(s.chunk_key, s.offset, s.length, s.index) for s in one.chunk_slices), one.squeeze)
            for one in proto.flat_trajectory.columns
        )
        item = Item(proto.key, "", proto.priority, columns)
        values = codec.item_values(item, self._chunks)
        return _Sample(proto.key, info.probability, info.table_size, proto.priority, proto.times_sampled, values)

    def _batch(self) -> FlatBatch:
        held, self._held = self._held, []
        info = SampleInfo(
            np.array([one.key for one in held], np.uint64),
            np.array([one.probability for one in held]),
            np.array([one.table_size for one in held], np.int64),
            np.array([one.priority for one in held]),
            np.array([one.times_sampled for one in held], np.int32),
        )
        return FlatBatch(tuple(_joined(column) for column in zip(*(one.values for one in held))), info)


def _joined(values: Sequence[Array]) -> Column:
    return np.stack(values) if len({value.shape for value in values}) == 1 else list(values)
