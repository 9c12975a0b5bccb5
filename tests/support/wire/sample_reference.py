"""The slow and obvious way from responses to batches: every chunk is kept, every item is read by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo
from rlds2reverb.wire.sample.plain import decode_chunk
from rlds2reverb.wire.schema import message_class


class SlowBuilder:
    """What `BatchBuilder` promises, sample by sample."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._chunks: dict[int, Chunk] = {}
        self._held: list[tuple[Any, tuple[Array, ...]]] = []
        self._info: Any = None

    def take(self, message: bytes) -> list[FlatBatch]:
        full = []
        for entry in message_class("SampleStreamResponse").FromString(message).entries:
            for chunk in entry.data:
                if chunk.chunk_key not in self._chunks:
                    self._chunks[chunk.chunk_key] = Chunk(chunk.chunk_key, 0, 0, 0, decode_chunk(chunk))
            if entry.HasField("info") == (self._info is not None):
                raise WireError("an entry that is out of order")
            self._info = self._info or entry.info
            if entry.end_of_sequence:
                self._held.append((self._info, self._values(self._info.item)))
                self._info = None
            if len(self._held) == self._batch_size:
                full.append(self._batch())
        return full

    def rest(self) -> FlatBatch | None:
        return self._batch() if self._held else None

    def _values(self, item: Any) -> tuple[Array, ...]:
        trajectory = message_class("FlatTrajectory").FromString(item.flat_trajectory)
        if not trajectory.columns:
            raise WireError("an item without columns")
        columns = tuple(
            ItemColumn(
                tuple(Slice(s.chunk_key, s.offset, s.length, s.index) for s in column.chunk_slices), column.squeeze
            )
            for column in trajectory.columns
        )
        return codec.item_values(Item(item.key, "", item.priority, columns), self._chunks)

    def _batch(self) -> FlatBatch:
        held, self._held = self._held, []
        infos = [info for info, _ in held]
        told = SampleInfo(
            np.array([info.item.key for info in infos], np.uint64),
            np.array([info.probability for info in infos]),
            np.array([info.table_size for info in infos], np.int64),
            np.array([info.item.priority for info in infos]),
            np.array([info.item.times_sampled for info in infos], np.int32),
        )
        if len({len(values) for _, values in held}) > 1:
            raise WireError("items of unequal numbers of columns")
        return FlatBatch(tuple(join_columns(column) for column in zip(*(values for _, values in held))), told)


def join_columns(values: Sequence[Array]) -> Column:
    return np.stack(values) if len({(value.shape, value.dtype) for value in values}) == 1 else list(values)


def bits(value: Any) -> Any:
    """What is equal exactly where batches, columns or arrays are, to the bit."""
    if isinstance(value, FlatBatch):
        return [bits(column) for column in value.columns], [bits(values) for values in value.info]
    if isinstance(value, list):
        return [bits(element) for element in value]
    content = value.tolist() if value.dtype == object else value.tobytes()
    return str(value.dtype), value.shape, content
