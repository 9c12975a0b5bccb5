"""Items: whole episodes encoded at once say the same as each item written out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import checked_span, keys
from rlds2reverb.wire.insert.chunks import ChunkLayout
from rlds2reverb.wire.insert.items import ItemBatch, ItemField, ItemPlans, encode_items
from rlds2reverb.wire.messages import Item, ItemColumn, Slice
from tests.support.wire import insert_cuts as cuts

FIRST_KEY, LAST_KEY = 2**63, 2**64 - 1


def decoded(field: bytes) -> Item:
    request = codec.decode_insert_request(field)
    assert not request.chunks
    (item,) = request.items
    return item


def written_out(
    fields: list[ItemField], number: int, anchor: int, chunk_length: int, chunk_keys: list[int]
) -> tuple[ItemColumn, ...]:
    """The columns of one item, one row at a time."""
    columns = []
    for field in fields:
        slices: list[Slice] = []
        own = anchor if field.anchors is None else int(field.anchors[number])
        for window in field.windows:
            first = len(slices)
            for row in range(own + window.start, own + window.stop):
                key, offset = chunk_keys[row // chunk_length], row % chunk_length
                if len(slices) > first and slices[-1].chunk_key == key:
                    slices[-1] = Slice(key, slices[-1].offset, slices[-1].length + 1, field.column)
                else:
                    slices.append(Slice(key, offset, 1, field.column))
        columns.append(ItemColumn(tuple(slices), field.windows[0].squeeze))
    return tuple(columns)


def fields_of(windows: tuple[Window, ...]) -> list[ItemField]:
    """A column for each window."""
    return [ItemField(number, (window,)) for number, window in enumerate(windows)]


def check(
    table: str, fields: list[ItemField], anchors: list[int], priorities: list[float], rows: int, chunk_length: int
) -> None:
    layout = ChunkLayout.of([rows], chunk_length, 11)
    chunk_keys = keys(11, np.arange(layout.count)).tolist()
    item_keys = keys(12, np.array(anchors, np.int64))
    items = ItemBatch(np.array(anchors, np.int64), item_keys, np.array(priorities, np.float64))
    encoded = encode_items(table, fields, items, layout, 1 + max(field.column for field in fields))
    assert encoded.shape == (len(anchors),)
    for number, (field, anchor, key, priority) in enumerate(zip(encoded, anchors, item_keys.tolist(), priorities)):
        columns = written_out(fields, number, anchor, chunk_length, chunk_keys)
        assert decoded(field) == Item(key, table, priority, columns)


def item_fields(cut: Cut) -> list[ItemField]:
    """The fields of a cut as the encoder numbers them."""
    numbers = list(cut.rows)
    return [ItemField(numbers.index(field.column), field.windows, field.anchors) for field in cut.fields.values()]


@given(cuts.hand_made(), cuts.chunk_length(), st.text(max_size=200))
@settings(max_examples=60)
def test_items_of_any_cut_say_what_is_written_out_by_hand(cut: Cut, chunk_length: int, table: str) -> None:
    check(table, item_fields(cut), cut.anchors.tolist(), cut.priorities.tolist(), cut.row_count, chunk_length)


@pytest.mark.parametrize("chunk_length", [1, 2, 127, 128, 129, 300])
def test_lengths_around_a_wider_varint_are_right(chunk_length: int) -> None:
    windows = (Window(0, 300), Window(-3, 2), Window(1, 2, squeeze=True))
    check("table", fields_of(windows), [3, 100, 127, 128, 129, 200], [1.0] * 6, 500, chunk_length)


@pytest.mark.parametrize("columns", [1, 127, 128, 129, 300])
def test_any_number_of_columns_is_right(columns: int) -> None:
    windows = tuple(Window(index % 3, index % 3 + 2) for index in range(columns))
    check("table", fields_of(windows), [0, 1, 5], [1.0, 2.0, 3.0], 10, 3)


def test_groups_stay_apart_when_their_chunk_counts_are_many() -> None:
    # The first window alone decides the group; the code of a group must not wrap around.
    windows = (Window(0, 3), *(Window(-k, 1 - k) for k in range(64)))
    check("table", fields_of(windows), list(range(64, 80)), [1.0] * 16, 100, 4)


@pytest.mark.parametrize("table", ["", "t", "x" * 127, "x" * 128, "x" * 20_000, "日本", "a b/c"])
def test_a_table_of_any_name_is_right(table: str) -> None:
    check(table, fields_of((Window(0, 2),)), [0, 1, 2], [1.0, 2.0, 3.0], 4, 2)


@pytest.mark.parametrize("priority", [0.0, -0.0, 1.0, 5e-324, 1.7e308, math.inf, -1.5])
def test_a_priority_keeps_every_bit(priority: float) -> None:
    check("table", fields_of((Window(0, 1),)), [0], [priority], 1, 1)


def test_a_priority_that_is_no_number_is_sent_as_it_is() -> None:
    items = ItemBatch(np.array([0]), np.array([FIRST_KEY], np.uint64), np.array([math.nan]))
    (field,) = encode_items("table", fields_of((Window(0, 1),)), items, ChunkLayout.of([1], 1, 0), 1)
    assert math.isnan(decoded(field).priority)


@pytest.mark.parametrize("key", [FIRST_KEY, FIRST_KEY + 1, LAST_KEY])
def test_the_smallest_and_the_largest_key_are_right(key: int) -> None:
    items = ItemBatch(np.array([0]), np.array([key], np.uint64), np.ones(1))
    (field,) = encode_items("table", fields_of((Window(0, 1),)), items, ChunkLayout.of([1], 1, 0), 1)
    assert decoded(field).key == key


def test_an_item_has_these_bytes() -> None:
    key = np.frombuffer(bytes.fromhex("85808080808080808001"), np.uint8)
    items = ItemBatch(np.array([1]), np.array([FIRST_KEY + 7], np.uint64), np.array([1.0]))
    (field,) = encode_items(
        "t",
        fields_of((Window(0, 1, squeeze=True),)),
        items,
        replace(ChunkLayout.of([2], 2, 0), key_varints=key[None]),
        1,
    )
    piece = "0a11 08 85808080808080808001 1001 1801 2000"
    trajectory = f"4217 0a15 {piece} 1001"
    assert field.hex() == f"1230 08 87808080808080808001 120174 29000000000000f03f {trajectory}".replace(" ", "")


def test_items_of_one_shape_have_one_size() -> None:
    items = ItemBatch(np.arange(50), keys(0, np.arange(50)), np.ones(50))
    encoded = encode_items("t", fields_of((Window(0, 1), Window(1, 2))), items, ChunkLayout.of([60], 1, 0), 2)
    assert {len(field) for field in encoded} == {len(encoded[0])}


@given(st.lists(st.tuples(cuts.hand_made(), cuts.chunk_length()), min_size=1, max_size=3), st.randoms())
@settings(max_examples=40)
def test_items_filled_into_a_template_are_those_that_are_encoded_alone(
    kinds: list[tuple[Cut, int]], random: Random
) -> None:
    plans = ItemPlans()
    for number in range(9):
        cut, chunk_length = random.choice(kinds)
        fields, count = item_fields(cut), len(cut.anchors)
        priorities = np.array([random.random() for _ in range(count)])
        items = ItemBatch(cut.anchors, keys(number, np.arange(count)), priorities)
        layout = ChunkLayout.of([cut.row_count], chunk_length, number)
        alone = encode_items("table", fields, items, layout, len(cut.rows))
        assert plans.of(cut, cut.row_count).encode("table", items, layout).tolist() == alone.tolist()


@given(cuts.hand_made())
@settings(max_examples=40)
def test_the_span_is_from_the_first_to_the_last_row_an_item_needs(cut: Cut) -> None:
    first, last = checked_span(cut, item_fields(cut))
    for number, anchor in enumerate(cut.anchors.tolist()):
        rows = [
            row
            for field in cut.fields.values()
            for own in [anchor if field.anchors is None else int(field.anchors[number])]
            for window in field.windows
            for row in range(own + window.start, own + window.stop)
        ]
        assert (first[number], last[number]) == (min(rows), max(rows))
