"""A cut of an episode -> an encoded episode: chunks once, items for every table."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ViewError
from rlds2reverb.views.base import Cut
from rlds2reverb.wire.chunks import ChunkLayout, choose_rows_per_chunk, encode_chunks
from rlds2reverb.wire.items import ItemColumns, ItemField, chunk_span, encode_items, row_span
from rlds2reverb.wire.keys import keys, seed
from rlds2reverb.wire.requests import EncodedEpisode


class EpisodeEncoder:
    """Encodes cuts for one or more tables; items of several tables share the stored rows.

    Chunk keys are new for every encoder: two pushes of the same episode may cut chunks differently, and the server
    would take a chunk with a known key for the one it has.

    Args:
      tables: table names; every anchor gives one item a table, in this order.
      push_seed: 64 bits that item keys depend on; the same seed makes the same keys.
      rows_per_chunk: chunk length in rows, or None to choose it from the bytes of a row.
    """

    def __init__(self, tables: Sequence[str], push_seed: int, rows_per_chunk: int | None = None) -> None:
        self._tables = tuple(tables)
        self._push_seed = push_seed
        self._rows_per_chunk = rows_per_chunk
        self._chunk_seed = secrets.randbits(64)
        self._chunks_made = 0
        self._episodes = 0

    def encode(self, tag: str, cut: Cut) -> EncodedEpisode:
        """Encodes one cut with at least one anchor.

        Raises:
          ViewError: a window of the cut reaches outside its rows.
          WireError: a column's dtype cannot be stored.
        """
        numbers = {path: number for number, path in enumerate(cut.rows)}
        fields = [ItemField(numbers[field.column], field.windows, field.anchors) for field in cut.fields.values()]
        layout = self._layout(cut, fields)
        self._episodes += 1
        item_keys = [self._item_keys(table, tag, cut.anchors) for table in self._tables]
        items = [
            encode_items(table, fields, ItemColumns(cut.anchors, table_keys, cut.priorities), layout, len(numbers))
            for table, table_keys in zip(self._tables, item_keys)
        ]
        first, last = chunk_span(fields, cut.anchors, layout)
        return EncodedEpisode(
            tag,
            encode_chunks(cut.rows, layout, self._wire_episode_id()),
            layout.key_varints,
            _interleave(items),
            _interleave(item_keys),
            np.repeat(first, len(self._tables)),
            np.repeat(last, len(self._tables)),
        )

    def _layout(self, cut: Cut, fields: Sequence[ItemField]) -> ChunkLayout:
        first, last = row_span(fields, cut.anchors)
        if first.min() < 0 or last.max() >= cut.row_count:
            raise ViewError(
                f"items at anchors {cut.anchors.min()} to {cut.anchors.max()} hold rows {first.min()} to {last.max()}, "
                f"which reach outside the {cut.row_count} rows"
            )
        rows = self._rows_per_chunk or choose_rows_per_chunk(cut.row_bytes, _window_rows(fields))
        layout = ChunkLayout.of(cut.row_count, rows, self._chunk_seed, self._chunks_made)
        self._chunks_made += layout.count
        return layout

    def _item_keys(self, table: str, tag: str, anchors: Array) -> Array:
        return keys(seed(f"{self._push_seed:x}", table, tag), anchors)

    def _wire_episode_id(self) -> int:
        return int(keys(self._chunk_seed ^ 1, np.array([self._episodes]))[0])


def _window_rows(fields: Sequence[ItemField]) -> int:
    """Rows from the first to the last that an item reads; of fields with anchors of their own, each for itself."""
    own = [field.windows for field in fields if field.anchors is not None]
    shared = tuple(window for field in fields if field.anchors is None for window in field.windows)
    extents = [max(w.stop for w in windows) - min(w.start for w in windows) for windows in (shared, *own) if windows]
    return max(extents)


def _interleave(columns: list[Array]) -> Array:
    """[n] a table -> [n * tables], anchor by anchor."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).reshape(-1)
