"""Cuts of an episode -> chunks, items and requests of the insert stream.

| step | by |
| --- | --- |
| the cuts of an episode for all tables -> an `EncodedEpisode` | `EpisodeEncoder` |
| rows -> chunks | `encode_chunks` |
| anchors and fields -> items | `encode_items` |
| encoded episodes -> requests | `RequestBuilder` |
| names -> item keys | `keys` |
"""

from __future__ import annotations

import hashlib
import secrets
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import cramjam
import numpy as np

from rlds2reverb.cuts import Cut, Field, Window, join
from rlds2reverb.episode import Array, byte_view, place_of
from rlds2reverb.errors import ViewError, WireError
from rlds2reverb.protobuf import KEY_BYTES, bytes_field, int_field, varint, varint_columns, varint_width
from rlds2reverb.wire import codec


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
        self._plans = Plans()

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
        cuts, table_keys = join(separate, layout.starts), [keys_of_items(*own) for own in zip(*episodes)]
        plans = [self._plans.of(cut, layout.stop) for cut in cuts]
        encoded = [_encode_part(*one, layout) for one in zip(cuts, plans, table_keys, zip(*episodes))]
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
        """Of episodes with so many rows each; `cuts` are those of the first."""
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
    """Of the episodes with these ids; `owner` is [n], the number of each item's episode."""
    if len(ids) == 1:
        return [EpisodeEnd(ids[0], len(owner), len(owner))]
    from_behind = np.unique(owner[::-1], return_index=True)[1]
    counts = np.bincount(owner)
    return [EpisodeEnd(*one) for one in zip(ids, (len(owner) - from_behind).tolist(), counts.tolist())]


class _EncodedPart(NamedTuple):
    """[n * tables] items, their keys, the first and last chunk that each needs, and the number of its episode."""

    items: Array
    item_keys: Array
    first_chunk: Array
    last_chunk: Array
    owner: Array


def _encode_part(
    cut: Cut, plan: _Plan, item_keys: Mapping[str, Array], parts: Sequence[Part], layout: ChunkLayout
) -> _EncodedPart:
    """Of one part of each episode, which the cut joins."""
    owner = np.repeat(range(len(parts)), [len(one.cut.anchors) for one in parts])
    starts = layout.starts
    if np.any((plan.first_row < starts[owner]) | (plan.last_row >= (starts + layout.lengths)[owner])):
        raise ViewError("items hold rows that reach outside those of their episode")
    items = [
        plan.encode(table, ItemBatch(cut.anchors, table_keys, cut.priorities), layout)
        for table, table_keys in item_keys.items()
    ]
    chunks = plan.first_row // layout.chunk_length, plan.last_row // layout.chunk_length
    of_tables = (np.repeat(values, len(item_keys)) for values in (*chunks, owner))
    return _EncodedPart(_interleave(items), _interleave(list(item_keys.values())), *of_tables)


def item_fields(cut: Cut) -> list[ItemField]:
    """The fields of a cut's items, by the numbers of the columns in its rows."""
    numbers = {path: number for number, path in enumerate(cut.rows)}
    return [ItemField(numbers[field.column], field.windows, field.anchors) for field in cut.fields.values()]


def keys_of_items(part: Part, *following: Part) -> dict[str, Array]:
    """Table -> [n] uint64 keys of its items, and of those that the same output gets of the following episodes."""
    parts, push_seed = (part, *following), f"{part.push_seed:x}"
    steps = np.concatenate([one.cut.steps for one in parts])
    counts = [len(one.cut.anchors) for one in parts]
    return {
        table: keys(np.repeat([np.uint64(seed(push_seed, table, one.key_name)) for one in parts], counts), steps)
        for table in part.tables
    }


def checked_span(cut: Cut, fields: Sequence[ItemField], row_count: int | None = None) -> tuple[Array, Array]:
    """[n] first and [n] last row of each item.

    Args:
      row_count: of the rows; None for that of the cut.

    Raises:
      ViewError: the cut does not have all of these rows.
    """
    row_count = cut.row_count if row_count is None else row_count
    _, relative_to = _spans(fields, cut.anchors)
    first = np.minimum.reduce([own + span.start for span, own in relative_to.items()])
    last = np.maximum.reduce([own + span.stop - 1 for span, own in relative_to.items()])
    if first.min() < 0 or last.max() >= row_count:
        raise ViewError(
            f"items at anchors {cut.anchors.min()} to {cut.anchors.max()} hold rows {first.min()} to {last.max()}, "
            f"which reach outside the {row_count} rows"
        )
    return first, last


def _window_rows(fields: Sequence[Field]) -> int:
    """Rows from the first to the last that an item reads; fields with anchors of their own count separately."""
    own = [field.windows for field in fields if field.anchors is not None]
    shared = tuple(window for field in fields if field.anchors is None for window in field.windows)
    return max(max(w.stop for w in windows) - min(w.start for w in windows) for windows in (shared, *own) if windows)


def _interleave(columns: list[Array]) -> Array:
    """[n] per table -> [n * tables], anchor by anchor."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).reshape(-1)


# Rows -> chunks: every `chunk_length` rows, all columns together, one ChunkData. Reverb's own writer makes one chunk per column.
# One chunk for all columns means fewer objects for the server to hold, and items that share one chunk key across columns.

CHUNK_BYTES = 4096
"""Aim for chunks of this size: a sample carries whole chunks, so larger ones slow sampling down."""

MAX_ROWS = 32
"""Most rows of a chunk for short windows; see docs/benchmarks.md, "Chunk length"."""

PAIR_BYTES = 1 << 14
"""Rows up to this size are stored two by two, where windows hold two: a chunk costs the server some 700 bytes per column."""

FILE_BYTES = 1 << 11
"""Text of at least so many bytes per row is taken for files, such as encoded images."""

FILE_CHUNK_BYTES = 96 << 10
"""Aim for chunks of this size where rows hold files: decoding one costs a learner far more than carrying some others."""

WINDOW_SHARE = 4
"""A chunk holds at least a quarter of a window: finer ones add slices, and save little of what a sample carries."""

LONG_CHUNK_BYTES = 1 << 18
"""Aim for chunks of this size when windows are longer than `MAX_ROWS`: such an item reads its chunks nearly whole."""

COMPRESS_FROM_BYTES = 512
"""A column's chunk smaller than this is stored as a snappy literal: compressing saves less than it costs."""

COMPRESSIBLE = 0.9
"""A column is compressed if its first `SAMPLE_BYTES` shrink below this share."""

VECTORISED_BYTES = 1 << 14
"""Chunks up to this size are written by the array; larger ones are joined one by one."""

SAMPLE_BYTES = 1 << 15


@dataclass(frozen=True)
class ChunkLayout:
    """The chunks of one episode, or of many whose rows follow each other. A chunk holds rows of one episode.

    Items count rows by chunks: row r is in chunk r // `chunk_length`, so there are gaps behind the last chunks of episodes.
    """

    chunk_length: int  # rows of every chunk but the last of an episode, which may have fewer
    lengths: Array  # [episodes] rows of each
    episode_ids: Array  # [episodes] uint64, on the wire
    owner: Array  # [n] the episode of each chunk
    key_varints: Array  # [n, 10] uint8, the chunk keys as varints

    @property
    def count(self) -> int:
        return len(self.key_varints)

    @staticmethod
    def of(
        lengths: Sequence[int],
        chunk_length: int,
        seed: int,
        first_counter: int = 0,
        episode_ids: Array = np.ones(1, np.uint64),
    ) -> ChunkLayout:
        """A layout whose chunk keys are the hashes of `first_counter`, `first_counter` + 1, ..."""
        rows = np.array(lengths, np.int64)
        owner = np.repeat(np.arange(len(rows)), -(-rows // chunk_length))
        chunk_keys = keys(seed, np.arange(first_counter, first_counter + len(owner)))
        return ChunkLayout(chunk_length, rows, episode_ids, owner, varint_columns(chunk_keys, KEY_BYTES))

    @property
    def starts(self) -> Array:
        """[episodes] number of the first row of each, as items count rows."""
        counts = -(-self.lengths // self.chunk_length)
        starts: Array = (np.cumsum(counts) - counts) * self.chunk_length
        return starts

    @property
    def stop(self) -> int:
        """Behind the last row, as items count rows."""
        return int(self.starts[-1] + self.lengths[-1])

    def bounds(self) -> tuple[Array, Array]:
        """[n] first row of each chunk in its episode, and [n] the row behind its last one."""
        begin = np.arange(self.count) * self.chunk_length - self.starts[self.owner]
        return begin, np.minimum(begin + self.chunk_length, self.lengths[self.owner])

    def first_rows(self) -> Array:
        """[n] first row of each chunk in the columns."""
        rows: Array = self.bounds()[0] + (np.cumsum(self.lengths) - self.lengths)[self.owner]
        return rows


def choose_chunk_length(row_bytes: int, window_rows: int, text_bytes: int = 0) -> int:
    """A chunk length from the bytes of a row, the part of them that is text, and the rows of the longest window."""
    row_bytes = max(1, row_bytes)
    if window_rows > MAX_ROWS:
        return max(1, min(window_rows, LONG_CHUNK_BYTES // row_bytes))
    aim = FILE_CHUNK_BYTES if text_bytes >= FILE_BYTES else CHUNK_BYTES
    least = 2 if window_rows > 1 and row_bytes <= PAIR_BYTES else 1
    return max(least, window_rows // WINDOW_SHARE, min(MAX_ROWS, aim // row_bytes))


def encode_chunks(columns: Mapping[str, Array], layout: ChunkLayout) -> list[bytes]:
    """Every chunk as a `chunks` field (1) of an InsertStreamRequest.

    Source: schema.proto, ChunkData: chunk_key(1), sequence_range(2), data(5), data_tensors_len(6),
    data_uncompressed_size(7). `end` of the range is inclusive.
    """
    encoders = [_ColumnEncoder.of(path, column, layout) for path, column in columns.items()]
    rows = layout.chunk_length
    are_small = sum(encoder.row_bytes for encoder in encoders) * rows <= VECTORISED_BYTES
    begin, stop = layout.bounds()
    at = layout.first_rows()
    if are_small and all(encoder.is_literal for encoder in encoders):
        fields = np.empty(layout.count, object)
        for rows in np.unique(stop - begin).tolist():
            chosen = np.flatnonzero(stop - begin == rows)
            fields[chosen] = _encode_alike(encoders, layout, chosen, begin[chosen], at[chosen], rows)
        alike: list[bytes] = fields.tolist()
        return alike
    chunks = enumerate(zip(at.tolist(), begin.tolist(), stop.tolist()))
    return [_encode_chunk(encoders, layout, number, *one) for number, one in chunks]


def _encode_alike(
    encoders: Sequence[_ColumnEncoder], layout: ChunkLayout, chosen: Array, begin: Array, at: Array, rows: int
) -> list[bytes]:
    """The chosen chunks, which have equally many rows, stored as they are: one array of records.

    Args:
      begin: [chosen] first row of each in its episode.
      at: [chosen] first row of each in the columns.
    """
    kinds = tuple((encoder.column.dtype, encoder.column.shape[1:], encoder.row_bytes) for encoder in encoders)
    width = varint_width(int(layout.lengths.max()))
    record = _ChunkRecord.of(kinds, rows, width)
    block = np.empty((len(chosen), len(record.constant)), np.uint8)
    block[:] = record.constant
    block[:, record.key] = layout.key_varints[chosen]
    block[:, record.episode] = varint_columns(layout.episode_ids[layout.owner[chosen]], KEY_BYTES)
    block[:, record.first] = varint_columns(begin, width)
    block[:, record.last] = varint_columns(begin + rows - 1, width)
    first, stop = int(at[0]), int(at[-1]) + rows
    places = None if stop - first == rows * len(chosen) else at[:, None] + np.arange(rows)
    for encoder, place in zip(encoders, record.columns):
        raw: Array = byte_view(encoder.column).reshape(-1, encoder.row_bytes)
        block[:, place] = (raw[first:stop] if places is None else raw[places]).reshape(len(chosen), -1)
    return as_bytes(block)


class _ChunkRecord(NamedTuple):
    """A chunk of so many rows, but for its key, the episode, the rows' numbers and the rows, and where those go."""

    constant: Array  # [bytes] uint8
    key: slice
    episode: slice
    first: slice
    last: slice
    columns: list[slice]

    @staticmethod
    @lru_cache(256)
    def of(kinds: tuple[tuple[np.dtype[Any], tuple[int, ...], int], ...], rows: int, width: int) -> _ChunkRecord:
        """Of columns with these dtypes, shapes and bytes of a row; numbers of rows are varints of `width` bytes."""
        data: list[bytes | Array] = []
        for dtype, shape, row_bytes in kinds:
            size = rows * row_bytes
            data += [_head(dtype, (rows, *shape), codec.literal_prefix(size), size), np.zeros((1, size), np.uint8)]
        unfilled, number = np.zeros((1, KEY_BYTES), np.uint8), np.zeros((1, width), np.uint8)
        body: list[bytes | Array] = [
            b"\x08",
            unfilled,
            b"\x12" + varint(1 + KEY_BYTES + 2 * (1 + width)) + b"\x08",
            unfilled,
            b"\x10",
            number,
            b"\x18",
            number,
            b"\x2a" + varint(sum(map(width_of, data))),
            *data,
            int_field(6, len(kinds)) + int_field(7, rows * sum(row_bytes for *_, row_bytes in kinds)),
        ]
        parts = [b"\x0a" + varint(sum(map(width_of, body))), *body]
        ends = np.cumsum([width_of(part) for part in parts]).tolist()
        places = [slice(begin, end) for begin, end in zip([0, *ends], ends)]
        first_column = 10  # of the parts: the first head of a tensor
        columns = places[first_column + 1 : first_column + 2 * len(kinds) : 2]
        return _ChunkRecord(records(1, parts)[0], places[2], places[4], places[6], places[8], columns)


def _encode_chunk(
    encoders: Sequence[_ColumnEncoder], layout: ChunkLayout, chunk: int, at: int, begin: int, stop: int
) -> bytes:
    """One `chunks` field, of the rows [begin, stop) of an episode, which are in the columns from `at` on; they are copied once, by the join."""
    start, end = at, at + stop - begin
    fields: list[Any] = []
    for encoder in encoders:
        fields += encoder.field(start, end)
    data_size = sum(map(len, fields))
    episode_id = int(layout.episode_ids[layout.owner[chunk]])
    row_range = bytes_field(2, int_field(1, episode_id) + int_field(2, begin) + int_field(3, stop - 1))
    head = b"\x08" + layout.key_varints[chunk].tobytes() + row_range + b"\x2a" + varint(data_size)
    tail = _chunk_tail(encoders, start, end)
    return b"".join((b"\x0a", varint(len(head) + data_size + len(tail)), head, *fields, tail))


def _chunk_tail(encoders: Sequence[_ColumnEncoder], start: int, end: int) -> bytes:
    """data_tensors_len and data_uncompressed_size."""
    return int_field(6, len(encoders)) + int_field(7, sum(encoder.raw_bytes(start, end) for encoder in encoders))


class _ColumnEncoder:
    """Turns row ranges of one column into `tensors` fields (1) of ChunkData.Data."""

    def __init__(self, column: Array, compress: bool) -> None:
        self.column = column
        self._compress = compress
        self.row_bytes = 0 if column.dtype == object else column.nbytes // max(1, len(column))

    @staticmethod
    def of(path: str, column: Array, layout: ChunkLayout) -> _ColumnEncoder:
        try:
            codec.wire_number(column.dtype)
        except WireError as error:
            raise WireError(f'column "{path}": {error}') from error
        column = codec.as_wire_array(column)
        return _ColumnEncoder(column, _worth_compressing(column, layout.chunk_length))

    @property
    def is_literal(self) -> bool:
        return not self._compress and bool(self.row_bytes)

    def field(self, start: int, end: int) -> tuple[Any, ...]:
        """The field for rows [start, end) in parts: head and content; literal rows and text are not copied."""
        rows, shape = self.column[start:end], (end - start, *self.column.shape[1:])
        if rows.dtype == object:
            parts = codec.string_parts(rows)
            return _head(rows.dtype, shape, b"", sum(map(len, parts))), *parts
        if not self.is_literal:
            content = codec.content_bytes(rows)
            return _head(rows.dtype, shape, b"", len(content)), content
        return _head(rows.dtype, shape, codec.literal_prefix(rows.nbytes), rows.nbytes), memoryview(byte_view(rows))

    def raw_bytes(self, start: int, end: int) -> int:
        """Uncompressed bytes of rows [start, end)."""
        if self.column.dtype == object:
            return sum(len(codec.as_bytes(text)) for text in self.column[start:end].ravel())
        return (end - start) * self.row_bytes


def _head(dtype: np.dtype[Any], shape: tuple[int, ...], prefix: bytes, size: int) -> bytes:
    """Everything before `size` bytes of content that follow `prefix`."""
    tensor = codec.tensor_header(dtype, shape) + b"\x22" + varint(len(prefix) + size) + prefix
    return b"\x0a" + varint(len(tensor) + size) + tensor


def _worth_compressing(column: Array, chunk_length: int) -> bool:
    if column.dtype == object or not len(column):
        return False
    chunk_bytes = column.nbytes // len(column) * min(chunk_length, len(column))
    if chunk_bytes < COMPRESS_FROM_BYTES:
        return False
    sample = byte_view(column)[: min(SAMPLE_BYTES, chunk_bytes)]
    return len(cramjam.snappy.compress_raw(sample)) < COMPRESSIBLE * len(sample)


# Anchors and fields -> items, a whole episode at once. Source: schema.proto, PrioritizedItem: key(1), table(2), priority(5),
# flat_trajectory(8){columns(1){chunk_slices(1){chunk_key(1), offset(2), length(3), index(4)}, squeeze(2)}}.
#
# Items whose windows touch the same numbers of chunks have the same size in bytes, because every varint in them
# has a fixed width (see `protobuf`). Each such group is one numpy array [n, width]: constant bytes are
# broadcast, keys, offsets and lengths are written as columns. No Python loop runs over steps or items.

_SQUEEZE = b"\x10\x01"
_MOST_CODES = 1 << 62


@dataclass(frozen=True)
class ItemBatch:
    """The values that differ between items."""

    anchors: Array  # [n] int64
    item_keys: Array  # [n] uint64 with the top bit set
    priorities: Array  # [n] float64


@dataclass(frozen=True, eq=False)
class ItemField:
    column: int  # number of the chunk's tensor that it reads
    windows: tuple[Window, ...]  # rows relative to the anchor, joined in this order
    anchors: Array | None = None  # [n] int64 of its own; None for the anchors of the items


class _Span(NamedTuple):
    """Rows [start, stop) relative to the anchors of that number; 0 are the items' own."""

    start: int
    stop: int
    anchors: int


def encode_items(table: str, fields: Sequence[ItemField], items: ItemBatch, layout: ChunkLayout, tensors: int) -> Array:
    """[n] object array of bytes: every item as an `items` field (2) of an InsertStreamRequest.

    Args:
      fields: in the order of the table's signature.
      items: the values that differ.
      layout: of the rows.
      tensors: number of tensors in each chunk.
    """
    out = np.empty(len(items.anchors), object)
    key_varints, priorities = varint_columns(items.item_keys, KEY_BYTES), items.priorities.astype("<f8")
    blocks = _item_blocks(
        table, fields, items.anchors, key_varints, priorities[:, None].view(np.uint8), layout, tensors
    )
    for chosen, block in blocks:
        out[chosen] = as_bytes(block)
    return out


class _Plan:
    """What the cuts of many episodes have in common, where rows, fields and anchors are alike.

    Attributes:
      first_row, last_row: [n] int64, of each item.
    """

    def __init__(self, cut: Cut, row_count: int) -> None:
        self._fields, self._tensors = item_fields(cut), len(cut.rows)
        self.first_row, self.last_row = checked_span(cut, self._fields, row_count)
        self._templates: dict[tuple[str, int], _Template] = {}
        self._seen: set[tuple[str, int]] = set()  # kinds that a template can be made of

    def encode(self, table: str, items: ItemBatch, layout: ChunkLayout) -> Array:
        """As `encode_items`. The second episode of the kind makes a template, and later ones are filled into that."""
        kind = (table, layout.chunk_length)
        if kind in self._seen:
            self._seen.remove(kind)
            self._templates[kind] = _Template.of(table, self._fields, items.anchors, layout, self._tensors)
        if kind in self._templates:
            key_varints = np.concatenate((varint_columns(items.item_keys, KEY_BYTES), layout.key_varints))
            return self._templates[kind].fill(key_varints, items.priorities)
        encoded = encode_items(table, self._fields, items, layout, self._tensors)
        if sum(map(len, encoded.tolist())) <= _TEMPLATE_BYTES:
            self._seen.add(kind)
        return encoded


class Plans:
    """The plans of the latest kinds of cuts."""

    def __init__(self) -> None:
        self._plans: dict[Any, _Plan] = {}

    def of(self, cut: Cut, row_count: int) -> _Plan:
        """Raises `ViewError` for a cut whose items need rows from `row_count` on."""
        if len(cut.anchors) > _MOST_ITEMS:
            return _Plan(cut, row_count)
        fields = tuple(
            (one.column, one.windows, None if one.anchors is None else one.anchors.tobytes())
            for one in cut.fields.values()
        )
        kind = (row_count, cut.anchors.tobytes(), tuple(cut.rows), fields)
        if (plan := self._plans.get(kind)) is None:
            if len(self._plans) == _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[kind] = _Plan(cut, row_count)
        return plan


_MOST_PLANS, _MOST_ITEMS = 128, 4096
_TEMPLATE_BYTES = 1 << 20
"""Most bytes of encoded items that a template is made of; it takes little more than they do."""


class _Template(NamedTuple):
    """The items of an episode, but for the bytes that differ between episodes: keys and priorities."""

    constant: Array  # [bytes] uint8, all items, group by group
    groups: list[_Alike]

    @staticmethod
    def of(table: str, fields: Sequence[ItemField], anchors: Array, layout: ChunkLayout, tensors: int) -> _Template:
        """Encodes numbers instead of bytes: 256 and more stand for the bytes of keys, the items' first, and of priorities."""
        count, bytes_of_keys = len(anchors), KEY_BYTES * (len(anchors) + layout.count)
        of_keys, priorities = np.split(256 + np.arange(bytes_of_keys + 8 * count, dtype=np.int32), [bytes_of_keys])
        of_items, of_chunks = np.split(of_keys.reshape(-1, KEY_BYTES), [count])
        blocks = _item_blocks(
            table, fields, anchors, of_items, priorities.reshape(-1, 8), replace(layout, key_varints=of_chunks), tensors
        )
        constants, groups = list[Array](), list[_Alike]()
        for chosen, block in blocks:
            constants.append(block.astype(np.uint8).ravel())
            (filled,) = np.nonzero(block[0] >= 256)  # in all of them alike
            numbers, is_key = block[0, filled] - 256, block[0, filled] < 256 + bytes_of_keys
            places: dict[bytes, tuple[Array, list[int]]] = {}
            for place in filled[is_key & (numbers % KEY_BYTES == 0)].tolist():
                key_numbers = (block[:, place] - 256) // KEY_BYTES
                places.setdefault(key_numbers.tobytes(), (key_numbers, []))[1].append(place)
            groups.append(_Alike(chosen, block.shape[1], list(places.values()), int(filled[~is_key][0])))
        return _Template(np.concatenate(constants), groups)

    def fill(self, key_varints: Array, priorities: Array) -> Array:
        """[n] object array of bytes.

        Args:
          key_varints: [n + chunks, 10] uint8, of the items, then of the chunks.
        """
        block, units = self.constant.copy(), key_varints.view(f"V{KEY_BYTES}").ravel()
        out = np.empty(len(priorities), object)
        at = 0
        for chosen, width, keys_at, priority_at in self.groups:
            count = len(chosen)
            for numbers, places in keys_at:
                keys_there = units[numbers]
                for place in places:
                    np.ndarray(count, units.dtype, block.data, at + place, (width,))[:] = keys_there
            np.ndarray(count, "<f8", block.data, at + priority_at, (width,))[:] = priorities[chosen]
            out[chosen] = as_bytes(block[at : at + count * width].reshape(count, width))
            at += count * width
        return out


class _Alike(NamedTuple):
    """Items of one size, in which keys lie at the same places."""

    chosen: Array  # [n] which items
    width: int  # bytes of each
    keys_at: list[tuple[Array, list[int]]]  # [n] numbers of keys, and the places in an item where that key lies
    priority_at: int


def _item_blocks(
    table: str,
    fields: Sequence[ItemField],
    anchors: Array,
    item_keys: Array,
    priorities: Array,
    layout: ChunkLayout,
    tensors: int,
) -> Iterator[tuple[Array, Array]]:
    """Positions of items of one size, and [n, width] those items, of the dtype of the keys ([n, 10]) and priorities ([n, 8])."""
    spans, relative_to = _spans(fields, anchors)
    name = table.encode()
    named = b"\x12" + varint(len(name)) + name + b"\x29"
    for chosen, chunk_counts in _groups_of_equal_size(relative_to, layout):
        slices = {
            span: _encode_slices(span, count, relative_to[span][chosen], layout, tensors)
            for span, count in chunk_counts.items()
        }
        columns = _encode_fields(fields, spans, slices, tensors)
        flat = b"\x42" + varint(columns.shape[1])
        size = 1 + KEY_BYTES + len(named) + 8 + len(flat) + columns.shape[1]
        head = b"\x12" + varint(size) + b"\x08"
        yield chosen, records(len(chosen), [head, item_keys[chosen], named, priorities[chosen], flat, columns])


def _spans(fields: Sequence[ItemField], anchors: Array) -> tuple[list[tuple[_Span, ...]], dict[_Span, Array]]:
    """The spans of every field; and the [n] rows that each distinct span is relative to."""
    numbered = [anchors]
    spans = []
    for one in fields:
        number = place_of(anchors if one.anchors is None else one.anchors, numbered)
        spans.append(tuple(_Span(window.start, window.stop, number) for window in one.windows))
    return spans, {span: numbered[span.anchors] for own in spans for span in own}


def _groups_of_equal_size(
    anchors: Mapping[_Span, Array], layout: ChunkLayout
) -> Iterator[tuple[Array, dict[_Span, int]]]:
    """Positions of items, and for these the number of chunks that each distinct span touches."""
    k = layout.chunk_length
    counts = np.stack(
        [(own + span.stop - 1) // k - (own + span.start) // k + 1 for span, own in anchors.items()], axis=-1
    )  # [n, spans]
    code, codes = np.zeros(len(counts), np.int64), 1  # every code is below `codes`
    for column in counts.T:
        base = int(column.max(initial=0)) + 1
        if codes * base > _MOST_CODES:  # many windows: number the codes anew, so that none wraps around
            code, codes = np.unique(code, return_inverse=True)[1], len(counts)
        code, codes = code * base + column, codes * base
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    for group, position in enumerate(first):
        yield np.nonzero(inverse == group)[0], dict(zip(anchors, counts[position].tolist()))


def _encode_fields(
    fields: Sequence[ItemField], spans: Sequence[tuple[_Span, ...]], slices: Mapping[_Span, Array], tensors: int
) -> Array:
    """[n, width] uint8: the columns of n items; neighbours with the same windows are written together."""
    runs = []
    alike = groupby(zip(fields, spans), lambda pair: (pair[1], pair[0].windows[0].squeeze))
    for (own, squeeze), run in alike:
        pieces = slices[own[0]] if len(own) == 1 else np.concatenate([slices[span] for span in own], axis=1)
        runs.append(_encode_run(pieces, np.array([field.column for field, _ in run]), tensors, squeeze))
    return runs[0] if len(runs) == 1 else np.concatenate(runs, axis=1)


def _encode_run(slices: Array, columns: Array, tensors: int, squeeze: bool) -> Array:
    """[n, width] uint8: fields whose slices differ only in the column's index."""
    n, pieces, width = slices.shape
    index_width = varint_width(tensors - 1)
    tail = _SQUEEZE if squeeze else b""
    head = b"\x0a" + varint(pieces * width + len(tail))
    out = np.empty((n, len(columns), len(head) + pieces * width + len(tail)), slices.dtype)
    out[..., : len(head)] = np.frombuffer(head, np.uint8)
    out[..., len(head) + pieces * width :] = np.frombuffer(tail, np.uint8)
    indices = varint_columns(columns, index_width)  # [fields, index_width]
    for piece in range(pieces):
        at = len(head) + piece * width
        out[..., at : at + width - index_width] = slices[:, None, piece, : width - index_width]
        out[..., at + width - index_width : at + width] = indices
    return out.reshape(n, -1)


def _encode_slices(span: _Span, count: int, anchors: Array, layout: ChunkLayout, tensors: int) -> Array:
    """[n, count, width] uint8: the chunk slices of one span, with space for the column's index."""
    k = layout.chunk_length
    first_row = (anchors + span.start)[:, None]  # [n, 1]
    end_row = (anchors + span.stop)[:, None]
    chunk = first_row // k + np.arange(count)  # [n, count]
    begin = np.maximum(first_row, chunk * k)
    offset, length = begin - chunk * k, np.minimum(end_row, (chunk + 1) * k) - begin
    width, index_width = varint_width(k), varint_width(tensors - 1)
    body_size = 1 + KEY_BYTES + 2 * (1 + width) + 1 + index_width
    out = np.empty((len(anchors), count, 2 + body_size), layout.key_varints.dtype)
    out[..., :3] = (0x0A, body_size, 0x08)
    out[..., 3 : 3 + KEY_BYTES] = layout.key_varints[chunk]
    at = 3 + KEY_BYTES
    for tag, values in ((0x10, offset), (0x18, length)):
        out[..., at] = tag
        out[..., at + 1 : at + 1 + width] = varint_columns(values, width)
        at += 1 + width
    out[..., at] = 0x20
    return out


# Encoded episodes -> requests of the insert stream. A request carries chunks (1), items (2) and the keys of chunks to keep for later
# items (3). After a request with items the server forgets every chunk that is not kept. Short episodes share a request, a long one
# fills many, and every request knows the chunks from earlier ones that it needs (`prelude`), so that it can be sent again on a new
# stream. Measured: requests of 256 to 1,024 items beat smaller ones.

_ZERO = np.zeros(1, np.int64)


class EpisodeEnd(NamedTuple):
    episode_id: str  # what the sender calls the episode; comes back when all its items are confirmed
    stop: int  # none of its items is at this place or behind it
    items: int


@dataclass(frozen=True, eq=False)
class EncodedEpisode:
    """One episode, or short ones together, encoded but not yet cut into requests."""

    ends: Sequence[EpisodeEnd]
    chunks: list[bytes]  # every chunk as a `chunks` field
    chunk_key_varints: Array  # [n_chunks, 10] uint8
    items: Array  # [n] object array of bytes, every item as an `items` field, in the order of insertion
    item_keys: Array  # [n] uint64
    # [n] the chunks that an item refers to
    first_chunk: Array
    last_chunk: Array
    # table -> the keys of its items, in the order of insertion
    table_keys: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestLimits:
    """When a request is full."""

    items: int = 1024  # most items
    # most bytes of chunks and items. Only a single item that needs more makes a larger request: of messages with at
    # most so many bytes of chunks each, or with one chunk.
    bytes: int = 2 << 20


@dataclass(frozen=True, eq=False)
class Request:
    """Some items with all they need."""

    messages: tuple[bytes, ...]  # one or more messages, to be sent in this order; only the last has items
    # chunks from earlier requests that the items, or later ones of the episode, refer to
    earlier_chunks: tuple[bytes, ...]
    message_bytes: int  # most bytes of a message of these
    item_keys: Array  # [n] uint64, in the order in which the server confirms them
    # id and number of items, over all tables, of every episode whose last item is in this request
    finishes: tuple[tuple[str, int], ...]

    @property
    def prelude(self) -> tuple[bytes, ...]:
        """Messages with the earlier chunks, sent first on a stream that has not carried those requests.

        Joined on demand: in a long episode each request has them, and they may be the whole episode so far.
        """
        return tuple(_grouped(self.earlier_chunks, self.message_bytes))

    @property
    def nbytes(self) -> int:
        """Bytes of the messages, without the prelude."""
        return sum(len(message) for message in self.messages)


@dataclass
class _Draft:
    leading: list[bytes] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    earlier_chunks: tuple[bytes, ...] = ()
    keys: list[Array] = field(default_factory=list)
    keep: bytes = b""
    finishes: list[tuple[str, int]] = field(default_factory=list)
    items: int = 0
    bytes: int = 0


class RequestBuilder:
    """Cuts encoded episodes into requests; keeps the last, unfilled one until `flush`.

    Attributes:
      limits: when a request is full; may be changed at any time.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self._draft = _Draft()

    def add(self, episode: EncodedEpisode) -> Iterator[Request]:
        """The requests that became full with this episode; consume it wholly before the next call."""
        items, chunks = episode.items.tolist(), episode.chunks[: int(episode.last_chunk.max(initial=-1)) + 1]
        size = sum(map(len, items)) + sum(map(len, chunks))
        if items and len(items) <= self.limits.items and size <= self.limits.bytes:
            if self._is_full(0.5) and not self._has_room(len(items), size):
                yield from self.flush()  # an episode in one request is worth one that is half full
            if self._has_room(len(items), size):
                self._add_whole(episode, items, chunks, size)
                if self._is_full():
                    yield from self.flush()
                return
        at = _Cursor(episode)
        while at.item < len(episode.items):
            most = max(0, self.limits.items - self._draft.items)
            stop = at.items_that_fit(most, self.limits.bytes - self._draft.bytes)
            if stop == at.item and self._draft.items:
                yield from self.flush()
                continue
            self._append(at, max(stop, at.item + 1))
            if self._is_full():
                yield from self.flush()

    def flush(self) -> Iterator[Request]:
        """The request in the making, if it has any items."""
        draft, self._draft = self._draft, _Draft()
        if draft.items:
            body = b"".join((*draft.parts, draft.keep))
            yield Request(
                (*draft.leading, body),
                draft.earlier_chunks,
                self.limits.bytes,
                np.concatenate(draft.keys),
                tuple(draft.finishes),
            )

    def _is_full(self, share: float = 1.0) -> bool:
        return self._draft.items >= share * self.limits.items or self._draft.bytes >= share * self.limits.bytes

    def _has_room(self, items: int, size: int) -> bool:
        return self._draft.items + items <= self.limits.items and self._draft.bytes + size <= self.limits.bytes

    def _add_whole(self, episode: EncodedEpisode, items: list[bytes], chunks: list[bytes], size: int) -> None:
        draft = self._draft
        draft.parts += chunks
        draft.parts += items
        draft.keys.append(episode.item_keys)
        draft.items += len(items)
        draft.bytes += size
        draft.keep = b""
        draft.finishes += [(end.episode_id, end.items) for end in episode.ends]

    def _append(self, at: _Cursor, stop: int) -> None:
        draft, episode = self._draft, at.episode
        if not draft.items:  # chunks of earlier requests that this item, or a later one, refers to
            draft.earlier_chunks = tuple(episode.chunks[at.needed_from[at.item] : at.chunk])
        end = max(at.chunk, int(at.needed_end[stop - 1]))
        groups = _grouped(episode.chunks[at.chunk : end], self.limits.bytes)
        draft.leading += groups[:-1]
        draft.parts += groups[-1:]
        draft.parts += episode.items[at.item : stop].tolist()
        draft.keys.append(episode.item_keys[at.item : stop])
        draft.finishes += [(one.episode_id, one.items) for one in episode.ends if at.item < one.stop <= stop]
        draft.bytes += at.advance(stop, end)
        draft.items += len(draft.keys[-1])
        if stop == len(episode.items):
            draft.keep = b""
        else:  # chunks sent that items to come refer to
            kept = episode.chunk_key_varints[at.needed_from[stop] : end]
            draft.keep = bytes_field(3, kept.tobytes()) if len(kept) else b""


class _Cursor:
    """The next item of an episode, and the first chunk that was not sent."""

    def __init__(self, episode: EncodedEpisode) -> None:
        self.episode = episode
        self.item = self.chunk = 0
        sizes = np.fromiter(map(len, episode.items.tolist()), np.int64, len(episode.items))
        self._item_bytes: Array = np.concatenate((_ZERO, np.cumsum(sizes)))
        self._chunk_bytes: Array = np.concatenate((_ZERO, np.cumsum([len(chunk) for chunk in episode.chunks])))
        # Chunks needed up to and including each item, and by each item or any later one.
        self.needed_end = np.maximum.accumulate(episode.last_chunk) + 1
        self.needed_from = np.minimum.accumulate(episode.first_chunk[::-1])[::-1]

    def items_that_fit(self, items: int, size: int) -> int:
        """End of the longest run of items, from the next one, within these limits; may be empty."""
        end = min(len(self.episode.items), self.item + items)
        cost = (
            self._item_bytes[self.item + 1 : end + 1]
            - self._item_bytes[self.item]
            + self._chunk_bytes[np.maximum(self.needed_end[self.item : end], self.chunk)]
            - self._chunk_bytes[self.chunk]
        )
        return self.item + int(np.searchsorted(cost, size, side="right"))

    def advance(self, item: int, chunk: int) -> int:
        """Moves to an item and a chunk; returns the bytes passed."""
        size = self._item_bytes[item] - self._item_bytes[self.item]
        size += self._chunk_bytes[chunk] - self._chunk_bytes[self.chunk]
        self.item, self.chunk = item, chunk
        return int(size)


def _grouped(chunks: Sequence[bytes], message_bytes: int) -> list[bytes]:
    """Chunk fields joined to messages of at most `message_bytes`, but at least one chunk each."""
    groups: list[list[bytes]] = []
    size = 0
    for chunk in chunks:
        if not groups or size + len(chunk) > message_bytes:
            groups.append([])
            size = 0
        groups[-1].append(chunk)
        size += len(chunk)
    return [b"".join(group) for group in groups]


# Records of one width as numpy arrays: constant bytes and columns side by side, then one `bytes` per record.


def records(count: int, parts: Sequence[bytes | Array]) -> Array:
    """[count, width] of parts side by side: `bytes` are the same in every record, arrays are [count, n], all of one dtype."""
    widths = list(map(width_of, parts))
    dtype = next((part.dtype for part in parts if not isinstance(part, bytes)), np.dtype(np.uint8))
    out = np.empty((count, sum(widths)), dtype)
    at = 0
    for part, width in zip(parts, widths):
        out[:, at : at + width] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return out


def width_of(part: bytes | Array) -> int:
    """Bytes of a part in every record."""
    return len(part) if isinstance(part, bytes) else part.shape[1]


def as_bytes(block: Array) -> list[bytes]:
    """[n, width] uint8, C-ordered -> one `bytes` per row; copies once."""
    rows: list[bytes] = block.view(f"V{block.shape[1]}").ravel().tolist()
    return rows


# Item and chunk keys: 64-bit hashes with the top bit set. Item keys are a function of (push, episode, table, step): the same push
# sent again makes the same keys, and Reverb assigns rather than duplicates when a key exists. The top bit makes every key a ten-byte
# varint (`protobuf.KEY_BYTES`); 63 bits are left, so 10 million items share a key with probability 5e-6.

TOP_BIT = np.uint64(1 << 63)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed(*parts: str) -> int:
    """64 bits that depend on every part and on where one part ends."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "little")


def keys(seeds: int | Array, counters: Array) -> Array:
    """[n] counters -> [n] uint64 keys, by one seed or one of each; within one seed, distinct counters give distinct 64-bit states.

    The mixing function is SplitMix64 (Steele, Lea, Flood 2014), a bijection on 64 bits.
    """
    # Of arrays, numpy lets sums and products wrap.
    state = np.asarray(seeds, np.uint64) + counters.astype(np.uint64) * _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = (state ^ (state >> np.uint64(31))) | TOP_BIT
    return mixed
