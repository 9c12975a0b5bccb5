"""Cuts of an episode -> an encoded episode: chunks once, items for every table."""

from __future__ import annotations

import secrets
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episodes import Array
from rlds2reverb.errors import ViewError
from rlds2reverb.wire.insert.chunks import ChunkLayout, choose_chunk_length, encode_chunks
from rlds2reverb.wire.insert.items import ItemBatch, ItemField, chunk_span, encode_items, row_span
from rlds2reverb.wire.insert.requests import EncodedEpisode
from rlds2reverb.wire.keys import keys, seed


@dataclass(frozen=True, eq=False)
class Part:
    """The items that some tables get of an episode.

    Attributes:
      tables: table names; every anchor gives one item per table, in this order.
      push_seed: 64 bits that item keys depend on; the same seed makes the same keys.
      key_name: names the episode in item keys.
      cut: with at least one anchor.
    """

    tables: Sequence[str]
    push_seed: int
    key_name: str
    cut: Cut


class EpisodeEncoder:
    """Encodes episodes, in one or more parts whose items share the stored rows.

    Chunk keys are new for every encoder: two pushes of the same episode may cut chunks differently, and the server
    would take a chunk with a known key for the one it has.

    Args:
      chunk_length: chunk length in rows, or None to choose it from the bytes of a row.
    """

    def __init__(self, chunk_length: int | None = None) -> None:
        self._chunk_length = chunk_length
        self._chunk_seed = secrets.randbits(64)
        self._chunks_made = 0
        self._episodes = 0

    def encode(self, episode_id: str, parts: Sequence[Part]) -> EncodedEpisode:
        """Encodes one episode; items of several parts are ordered by the last row that they need.

        Args:
          episode_id: what the sender calls the episode.
          parts: at least one; their cuts share one `rows` mapping.

        Raises:
          ViewError: a window of a cut reaches outside its rows.
          WireError: a column's dtype cannot be stored.
        """
        rows = parts[0].cut.rows
        assert all(part.cut.rows is rows for part in parts)  # the caller shares them
        fields = [item_fields(part.cut) for part in parts]
        layout = self._layout([part.cut for part in parts], fields)
        self._episodes += 1
        table_keys = [keys_of_items(part) for part in parts]
        encoded = [
            _encode_part(part.cut, keys_of_part, own, layout, len(rows))
            for part, keys_of_part, own in zip(parts, table_keys, fields)
        ]
        items, item_keys, first, last = _by_last_chunk(encoded)
        chunks = encode_chunks(rows, layout, self._wire_episode_id())
        return EncodedEpisode(
            episode_id, chunks, layout.key_varints, items, item_keys, first, last, dict(ChainMap(*table_keys))
        )

    def _layout(self, cuts: Sequence[Cut], fields: Sequence[Sequence[ItemField]]) -> ChunkLayout:
        """Chunks as short as the part with the shortest windows wants them: a sample carries whole chunks."""
        for cut, own in zip(cuts, fields):
            check_reach(cut, own)
        row_bytes, text_bytes = cuts[0].row_bytes, cuts[0].text_bytes
        rows = self._chunk_length or min(
            choose_chunk_length(row_bytes, _window_rows(own), text_bytes) for own in fields
        )
        layout = ChunkLayout.of(cuts[0].row_count, rows, self._chunk_seed, self._chunks_made)
        self._chunks_made += layout.count
        return layout

    def _wire_episode_id(self) -> int:
        return int(keys(self._chunk_seed ^ 1, np.array([self._episodes]))[0])


class _EncodedPart(NamedTuple):
    """[n * tables] items, their keys, and the first and last chunk that each needs."""

    items: Array
    item_keys: Array
    first_chunk: Array
    last_chunk: Array


def item_fields(cut: Cut) -> list[ItemField]:
    """The fields of a cut's items, by the numbers of the columns in its rows."""
    numbers = {path: number for number, path in enumerate(cut.rows)}
    return [ItemField(numbers[field.column], field.windows, field.anchors) for field in cut.fields.values()]


def keys_of_items(part: Part) -> dict[str, Array]:
    """Table -> [n] uint64 keys of its items."""
    return {table: keys(seed(f"{part.push_seed:x}", table, part.key_name), part.cut.steps) for table in part.tables}


def _encode_part(
    cut: Cut, item_keys: Mapping[str, Array], fields: Sequence[ItemField], layout: ChunkLayout, tensors: int
) -> _EncodedPart:
    items = [
        encode_items(table, fields, ItemBatch(cut.anchors, table_keys, cut.priorities), layout, tensors)
        for table, table_keys in item_keys.items()
    ]
    first, last = (np.repeat(chunk, len(item_keys)) for chunk in chunk_span(fields, cut.anchors, layout))
    return _EncodedPart(_interleave(items), _interleave(list(item_keys.values())), first, last)


def _by_last_chunk(parts: Sequence[_EncodedPart]) -> _EncodedPart:
    """All items in one order, each part's own order kept, so that few chunks are held for later items."""
    if len(parts) == 1:
        return parts[0]
    needed = np.concatenate([np.maximum.accumulate(part.last_chunk) for part in parts])
    order = np.argsort(needed, kind="stable")
    return _EncodedPart(*(np.concatenate(columns)[order] for columns in zip(*parts)))


def check_reach(cut: Cut, fields: Sequence[ItemField]) -> None:
    """Refuses items of rows that a cut does not have.

    Raises:
      ViewError: says which rows.
    """
    first, last = row_span(fields, cut.anchors)
    if first.min() < 0 or last.max() >= cut.row_count:
        raise ViewError(
            f"items at anchors {cut.anchors.min()} to {cut.anchors.max()} hold rows {first.min()} to {last.max()}, "
            f"which reach outside the {cut.row_count} rows"
        )


def _window_rows(fields: Sequence[ItemField]) -> int:
    """Rows from the first to the last that an item reads. Fields with anchors of their own count each for itself."""
    own = [field.windows for field in fields if field.anchors is not None]
    shared = tuple(window for field in fields if field.anchors is None for window in field.windows)
    extents = [max(w.stop for w in windows) - min(w.start for w in windows) for windows in (shared, *own) if windows]
    return max(extents)


def _interleave(columns: list[Array]) -> Array:
    """[n] per table -> [n * tables], anchor by anchor."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).reshape(-1)
