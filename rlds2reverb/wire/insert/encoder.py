"""Cuts of an episode, for all of its tables -> an `EncodedEpisode`.

Several views of one episode share its chunks, and several short episodes are encoded together: most of what one costs is Python and numpy
calls, whose number does not depend on its length.
"""

from __future__ import annotations

import secrets
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut, Field, join
from rlds2reverb.episode import Array
from rlds2reverb.errors import ViewError
from rlds2reverb.wire.insert.chunks import ChunkLayout, choose_chunk_length, encode_chunks
from rlds2reverb.wire.insert.items import ItemBatch, ItemPlan, ItemPlans
from rlds2reverb.wire.insert.keys import keys, seed
from rlds2reverb.wire.insert.requests import EncodedEpisode, EpisodeEnd


@dataclass(frozen=True, eq=False)
class Part:
    """The items that some tables get of an episode."""

    tables: Sequence[str]  # table names; every anchor gives one item per table, in this order
    push_seed: int  # 64 bits that item keys depend on; the same seed makes the same keys
    key_name: str  # the episode's name in item keys
    cut: Cut  # with at least one anchor


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
        self._item_plans = ItemPlans()

    def encode(
        self, episode_id: str, parts: Sequence[Part], following: Sequence[tuple[str, Sequence[Part]]] = ()
    ) -> EncodedEpisode:
        """Encodes one episode; items of several parts are ordered by the last row that they need.

        Args:
          episode_id: what the sender calls the episode.
          parts: at least one; their cuts share one `rows` mapping.
          following: id and parts of each of the next episodes, whose cuts `can_be_joined`: encoding short episodes together takes far
            less time.

        Raises:
          ViewError: a window of a cut reaches outside its rows.
          WireError: a column's dtype cannot be stored.
        """
        ids, episodes = zip((episode_id, parts), *following)
        assert all(part.cut.rows is own[0].cut.rows for own in episodes for part in own)  # the caller shares them
        separate = [[part.cut for part in own] for own in episodes]
        layout = self._layout([cuts[0].row_count for cuts in separate], separate[0])
        # From here on, the same part of all episodes is one cut: its anchors count rows as the layout does.
        cuts, table_keys = join(separate, layout.starts), [keys_of_items(*own) for own in zip(*episodes)]
        plans = [self._item_plans.of(cut, layout.stop) for cut in cuts]
        encoded = [*map(_encode_part, cuts, plans, table_keys, zip(*episodes), repeat(layout))]
        items, item_keys, first, last, owner = encoded[0]
        if len(encoded) > 1:
            # All items in one order, each part's own order kept, so that few chunks are held for later items.
            needed = np.concatenate([np.maximum.accumulate(part.last_chunk) for part in encoded])
            order = np.argsort(needed, kind="stable")
            items, item_keys, first, last, owner = (np.concatenate(columns)[order] for columns in zip(*encoded))
        return EncodedEpisode(
            _ends(ids, owner),
            encode_chunks(cuts[0].rows, layout),
            layout.key_varints,
            items,
            item_keys,
            first,
            last,
            dict(ChainMap(*table_keys)),
        )

    def _layout(self, lengths: Sequence[int], cuts: Sequence[Cut]) -> ChunkLayout:
        """The chunks of episodes with these numbers of rows; `cuts` are those of the first episode."""
        # Chunks as short as the part with the shortest windows wants them: a sample carries whole chunks.
        row_bytes, text_bytes = cuts[0].row_bytes, cuts[0].text_bytes
        chunk_length = self._chunk_length or min(
            choose_chunk_length(row_bytes, _window_rows(list(cut.fields.values())), text_bytes) for cut in cuts
        )
        numbers = np.arange(self._episodes + 1, self._episodes + 1 + len(lengths))
        layout = ChunkLayout.of(
            lengths, chunk_length, self._chunk_seed, self._chunks_made, keys(self._chunk_seed ^ 1, numbers)
        )
        self._chunks_made += layout.count
        self._episodes += len(lengths)
        return layout


def _ends(ids: Sequence[str], owner: Array) -> list[EpisodeEnd]:
    """Where the items of each episode end; `owner` is [n], the number of each item's episode."""
    if len(ids) == 1:
        return [EpisodeEnd(ids[0], len(owner), len(owner))]
    from_behind = np.unique(owner[::-1], return_index=True)[1]
    counts = np.bincount(owner)
    return [EpisodeEnd(*end) for end in zip(ids, (len(owner) - from_behind).tolist(), counts.tolist())]


class _EncodedPart(NamedTuple):
    """[n * tables] items, their keys, the first and last chunk that each needs, and the number of its episode."""

    items: Array
    item_keys: Array
    first_chunk: Array
    last_chunk: Array
    owner: Array


def _encode_part(
    cut: Cut, plan: ItemPlan, item_keys: Mapping[str, Array], parts: Sequence[Part], layout: ChunkLayout
) -> _EncodedPart:
    """Encodes one part of every episode; `cut` is their join."""
    owner = np.repeat(range(len(parts)), [len(part.cut.anchors) for part in parts])
    starts = layout.starts
    # The plan has checked the rows of the join; between two episodes of it, only this check stands.
    if np.any((plan.first_row < starts[owner]) | (plan.last_row >= (starts + layout.lengths)[owner])):
        raise ViewError("items hold rows that reach outside those of their episode")
    items = [
        plan.encode(table, ItemBatch(cut.anchors, table_keys, cut.priorities), layout)
        for table, table_keys in item_keys.items()
    ]
    chunks = plan.first_row // layout.chunk_length, plan.last_row // layout.chunk_length
    of_tables = (np.repeat(values, len(item_keys)) for values in (*chunks, owner))
    return _EncodedPart(_interleave(items), _interleave(list(item_keys.values())), *of_tables)


def keys_of_items(part: Part, *following: Part) -> dict[str, Array]:
    """Table -> [n] uint64 keys of its items; `following` are the same part of the next episodes, whose keys come behind."""
    parts, push_seed = (part, *following), f"{part.push_seed:x}"
    steps = np.concatenate([own.cut.steps for own in parts])
    counts = [len(own.cut.anchors) for own in parts]
    return {
        table: keys(np.repeat([np.uint64(seed(push_seed, table, own.key_name)) for own in parts], counts), steps)
        for table in part.tables
    }


def _window_rows(fields: Sequence[Field]) -> int:
    """Rows from the first to the last that an item reads; fields with anchors of their own count separately."""
    own = [field.windows for field in fields if field.anchors is not None]
    shared = tuple(window for field in fields if field.anchors is None for window in field.windows)
    return max(max(w.stop for w in windows) - min(w.start for w in windows) for windows in (shared, *own) if windows)


def _interleave(columns: list[Array]) -> Array:
    """[n] per table -> [n * tables], anchor by anchor."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).reshape(-1)
