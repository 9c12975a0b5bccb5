"""Hypothesis strategies: responses of sample streams as any writer and any server may make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.protobuf import bytes_field
from rlds2reverb.wire import codec
from rlds2reverb.wire.schema import message_class
from tests.support import strategies

Kind = tuple[np.dtype[Any], tuple[int, ...]]
ColumnSlices = tuple[list[tuple[int, int, int, int]], bool]
"""Slices (chunk key, offset, length, tensor), and whether the column is squeezed."""

ARENA_BYTES = st.one_of(st.integers(1, 3000), st.integers(3000, 30_000), st.just(1 << 20))


@dataclass(frozen=True, eq=False)
class StoredChunk:
    """A chunk; `proto` is its SampledChunk message."""

    key: int
    tensors: list[Array]
    proto: Any


@dataclass(frozen=True, eq=False)
class StoredItem:
    """An item, and the keys of its chunks in the order in which they are sent."""

    trajectory: bytes
    chunk_keys: list[int]


@dataclass(frozen=True, eq=False)
class Stored:
    """What a table holds."""

    chunks: dict[int, StoredChunk]
    items: list[StoredItem]


def chunk(key: int, values: Sequence[Array], delta_encoded: bool = False) -> StoredChunk:
    """A chunk of these tensors; `delta_encoded` as the legacy writer does it."""
    content = message_class("ChunkTensors")()
    for tensor in values:
        sent = _differences(tensor) if delta_encoded and tensor.dtype.kind in "iu" and tensor.ndim > 1 else tensor
        header = codec.tensor_header(sent.dtype, sent.shape)
        content.tensors.add().MergeFromString(header + bytes_field(4, codec.content_bytes(sent)))
    proto = message_class("SampledChunk")(chunk_key=key, delta_encoded=delta_encoded, data=content.SerializeToString())
    return StoredChunk(key, list(values), proto)


def trajectory(columns: Sequence[ColumnSlices]) -> bytes:
    """A FlatTrajectory."""
    message = message_class("FlatTrajectory")()
    for slices, squeeze in columns:
        column = message.columns.add(squeeze=squeeze)
        for key, offset, length, index in slices:
            column.chunk_slices.add(chunk_key=key, offset=offset, length=length, index=index)
    data: bytes = message.SerializeToString()
    return data


def entries_of(stored: Stored, item: StoredItem, key: int, table_size: int, cuts: Sequence[int] = ()) -> list[Any]:
    """The SampleEntry messages of one sample; a new one begins before the chunks of these numbers."""
    info = {
        "item": {"key": key, "priority": key % 7 / 4, "times_sampled": key % 300, "flat_trajectory": item.trajectory},
        "probability": 1 / (1 + key % 5),
        "table_size": table_size,
    }
    entries = [message_class("SampleEntry")(info=info)]
    for number, chunk_key in enumerate(item.chunk_keys):
        if number in cuts:
            entries.append(message_class("SampleEntry")())
        entries[-1].data.append(stored.chunks[chunk_key].proto)
    entries[-1].end_of_sequence = True
    return entries


def message(entries: Sequence[Any]) -> bytes:
    """A SampleStreamResponse."""
    data: bytes = message_class("SampleStreamResponse")(entries=entries).SerializeToString()
    return data


@st.composite
def tables(draw: st.DrawFn) -> Stored:
    """Chunks of any layout, and items whose columns point anywhere in them; all items have as many columns."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = draw(st.lists(st.tuples(strategies.dtypes(), strategies.shapes()), min_size=1, max_size=4, unique=True))
    layouts = draw(st.lists(st.lists(st.sampled_from(kinds), min_size=1, max_size=4), min_size=1, max_size=3))
    chunks: dict[int, StoredChunk] = {}
    for number in range(draw(st.integers(1, 8))):
        key = draw(st.integers(1, 2**64 - 1)) if draw(st.booleans()) else number + 1
        rows = draw(st.integers(1, 9))
        values = [strategies.array(rng, dtype, (rows, *shape)) for dtype, shape in draw(st.sampled_from(layouts))]
        chunks[key] = chunk(key, values, draw(st.booleans()))
    places: dict[Kind, list[tuple[int, int]]] = {}
    for stored_chunk in chunks.values():
        for index, tensor in enumerate(stored_chunk.tensors):
            places.setdefault((tensor.dtype, tensor.shape[1:]), []).append((stored_chunk.key, index))
    columns = draw(st.integers(1, 4))
    alike = draw(st.booleans())
    pattern = [column_shapes(draw, list(places)) for _ in range(columns)]
    items = []
    for _ in range(draw(st.integers(1, 5))):
        if not alike:
            pattern = [column_shapes(draw, list(places)) for _ in range(columns)]
        items.append(_item(draw, pattern, places, chunks))
    return Stored(chunks, items)


def column_shapes(draw: st.DrawFn, kinds: Sequence[Kind]) -> tuple[Kind, int, bool]:
    """What a column is of, its slices at most, and whether it is squeezed."""
    return draw(st.sampled_from(kinds)), draw(st.integers(1, 4)), draw(st.booleans())


def _item(
    draw: st.DrawFn,
    pattern: Sequence[tuple[Kind, int, bool]],
    places: dict[Kind, list[tuple[int, int]]],
    chunks: dict[int, StoredChunk],
) -> StoredItem:
    columns: list[ColumnSlices] = []
    for kind, pieces, squeeze in pattern:
        slices = []
        for _ in range(1 if squeeze else pieces):
            key, index = draw(st.sampled_from(places[kind]))
            rows = len(chunks[key].tensors[index])
            offset = draw(st.integers(0, rows - 1))
            slices.append((key, offset, 1 if squeeze else draw(st.integers(1, rows - offset)), index))
        columns.append((slices, squeeze))
    keys = dict.fromkeys(key for slices, _ in columns for key, *_ in slices)
    return StoredItem(trajectory(columns), list(keys))


@st.composite
def streams(draw: st.DrawFn, most_samples: int = 30) -> list[bytes]:
    """The responses that bring some samples of such a table, cut anywhere between entries."""
    stored = draw(tables())
    entries: list[Any] = []
    for _ in range(draw(st.integers(1, most_samples))):
        item = draw(st.sampled_from(stored.items))
        cuts = draw(st.lists(st.integers(1, max(1, len(item.chunk_keys) - 1)), max_size=2))
        entries += entries_of(stored, item, draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 1000)), cuts)
    borders = sorted(draw(st.lists(st.integers(0, len(entries)), max_size=6)))
    return [message(entries[a:b]) for a, b in zip([0, *borders], [*borders, len(entries)])]


def _differences(tensor: Array) -> Array:
    out = tensor.copy()
    out[1:] = tensor[1:] - tensor[:-1]
    return out
