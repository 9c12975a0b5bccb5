"""Batches are what the slow reference makes of the same responses, whatever the arena; broken responses are refused.

All of it holds for the compiled reader, and for the plain one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample import native
from rlds2reverb.wire.sample.batches import ChunkCache, FlatBatch, batch_builder
from rlds2reverb.wire.schema import message_class
from tests.support.wire import mutants, responses
from tests.support.wire.sample_reference import SlowBuilder, bits

BOTH = [False] if native.LIBRARY is None else [False, True]
WAYS = st.sampled_from(BOTH)
"""Whether the compiled reader is used."""

FLOATS = np.arange(12, dtype=np.float32).reshape(6, 2)
WORDS = np.array([b"", b"one", b"two", b"three", b"4", b"5" * 200], object)


def taken(builder: Any, message: bytes) -> list[FlatBatch]:
    if isinstance(builder, SlowBuilder):
        return builder.take(message)
    full: list[FlatBatch] = []
    builder.take(message, full)
    return full


def built(builder: Any, messages: Sequence[bytes]) -> list[FlatBatch]:
    batches = [batch for message in messages for batch in taken(builder, message)]
    rest = builder.rest()
    return batches if rest is None else [*batches, rest]


@contextmanager
def by_threads(count: int) -> Iterator[None]:
    """Missing chunks are decoded by so many threads, however few there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_PROCESSORS", count)
        patch.setattr(native, "_MANY_BYTES", 0)
        yield


@given(responses.streams(), st.integers(1, 12), responses.ARENA_BYTES, WAYS, st.integers(1, 2))
def test_batches_are_those_of_the_reference(
    messages: list[bytes], batch_size: int, arena_bytes: int, is_compiled: bool, threads: int
) -> None:
    expected = built(SlowBuilder(batch_size), messages)
    with by_threads(threads):
        found = built(batch_builder(batch_size, ChunkCache(arena_bytes, is_compiled)), messages)
    assert list(map(bits, found)) == list(map(bits, expected))


@given(responses.streams(), responses.streams(), st.integers(1, 5), responses.ARENA_BYTES, WAYS)
def test_a_stream_that_broke_leaves_no_trace(
    first: list[bytes], second: list[bytes], batch_size: int, arena_bytes: int, is_compiled: bool
) -> None:
    builder = batch_builder(batch_size, ChunkCache(arena_bytes, is_compiled))
    for message in first[:-1]:
        taken(builder, message)
    builder.rest()
    builder.lost()
    assert list(map(bits, built(builder, first))) == list(map(bits, built(SlowBuilder(batch_size), first)))
    fresh = built(batch_builder(batch_size, ChunkCache(1 << 20, is_compiled)), second)
    assert list(map(bits, fresh)) == list(map(bits, built(SlowBuilder(batch_size), second)))


@given(responses.streams(), st.integers(1, 5), responses.ARENA_BYTES, WAYS)
def test_arrays_are_the_callers_own(
    messages: list[bytes], batch_size: int, arena_bytes: int, is_compiled: bool
) -> None:
    builder = batch_builder(batch_size, ChunkCache(arena_bytes, is_compiled))
    first = built(builder, messages)
    before = list(map(bits, first))
    for batch in first:
        for column in batch.columns:
            for array in column if isinstance(column, list) else [column]:
                assert array.flags.writeable
                array[...] = b"changed" if array.dtype == object else 0
    assert list(map(bits, built(builder, messages))) == before


@pytest.mark.parametrize("is_compiled", BOTH)
def test_batches_before_an_error_are_there(is_compiled: bool) -> None:
    column: responses.ColumnSlices = ([(1, 0, 1, 0)], False)
    chunk = responses.chunk(1, [FLOATS])
    message = one_item([chunk], [column]) + one_item([chunk], [([(1, 9, 1, 0)], False)])
    full: list[FlatBatch] = []
    with pytest.raises(WireError, match="outside"):
        batch_builder(1, ChunkCache(1 << 16, is_compiled)).take(message, full)
    assert [len(batch) for batch in full] == [1]


@pytest.mark.skipif(native.LIBRARY is None, reason="of the compiled reader")
def test_memory_is_used_again_once_nobody_holds_an_array_of_it() -> None:
    images = np.arange(2 * 200_000, dtype=np.uint8).reshape(2, -1)
    chunk = responses.chunk(1, [images])
    first, second = (one_item([chunk], [([(1, row, 1, 0)], False)]) for row in range(2))
    builder = batch_builder(1, ChunkCache(1 << 20))

    def address(message: bytes) -> tuple[int, Any]:
        ((column,),) = ([batch.columns[0] for batch in taken(builder, message)],)
        assert isinstance(column, np.ndarray)
        return column.ctypes.data, column

    place, column = address(first)
    view = column[0, 0, 10:]
    del column
    other, _ = address(second)
    assert other != place
    assert (view == images[0, 10:]).all()
    del view
    assert address(second)[0] in (place, other)


@given(st.data())
def test_broken_responses_are_refused_or_read_as_the_reference_reads_them(data: st.DataObject) -> None:
    messages = data.draw(responses.streams(4))
    broken = [data.draw(mutants.mutated([message])) if data.draw(st.booleans()) else message for message in messages]
    batch_size = data.draw(st.integers(1, 3))
    with by_threads(data.draw(st.integers(1, 2))):
        outcome = outcome_or_none(batch_builder(batch_size, ChunkCache(1 << 16, data.draw(WAYS))), broken, WireError)
    expected = outcome_or_none(SlowBuilder(batch_size), broken, WireError, DecodeError)
    assert outcome == expected or None in (outcome, expected)


@given(st.lists(mutants.messages("SampleStreamResponse"), min_size=1, max_size=3), WAYS)
def test_any_values_in_a_response_are_refused_or_read_as_the_reference_reads_them(
    protos: list[Any], is_compiled: bool
) -> None:
    messages = [proto.SerializeToString() for proto in protos]
    outcome = outcome_or_none(batch_builder(2, ChunkCache(1 << 16, is_compiled)), messages, WireError)
    expected = outcome_or_none(SlowBuilder(2), messages, WireError, DecodeError)
    assert outcome == expected or None in (outcome, expected)


def outcome_or_none(builder: Any, messages: Sequence[bytes], *errors: type[Exception]) -> Any:
    """The bits of all batches; None when the builder refuses the messages."""
    try:
        return list(map(bits, built(builder, messages)))
    except errors:
        return None


def one_item(chunks: Sequence[responses.StoredChunk], columns: Sequence[responses.ColumnSlices]) -> bytes:
    """A response of one sample."""
    item = responses.StoredItem(responses.trajectory(columns), [chunk.key for chunk in chunks])
    stored = responses.Stored({chunk.key: chunk for chunk in chunks}, [item])
    return responses.message(responses.entries_of(stored, item, 7, 1))


WRONG: dict[str, tuple[list[responses.ColumnSlices], str]] = {
    "chunk": ([([(2, 0, 1, 0)], False)], "not there"),
    "tensor": ([([(1, 0, 1, 2)], False)], "not there"),
    "tensor below 0": ([([(1, 0, 1, -1)], False)], "not there"),
    "rows": ([([(1, 5, 2, 0)], False)], "outside the chunk's 6 rows"),
    "offset below 0": ([([(1, -1, 2, 0)], False)], "outside the chunk's 6 rows"),
    "no rows": ([([(1, 2, 0, 0)], False)], "outside the chunk's 6 rows"),
    "length below 0": ([([(1, 2, -1, 0)], False)], "outside the chunk's 6 rows"),
    "unlike slices": ([([(1, 0, 1, 0), (1, 0, 1, 1)], False)], "unequal dtype or shape"),
    "squeezed": ([([(1, 0, 2, 0)], True)], "a squeezed column of 2 rows"),
    "squeezed slices": ([([(1, 0, 1, 0), (1, 0, 1, 0)], True)], "a squeezed column of 2 rows"),
    "no columns": ([], "no columns"),
    "no slices": ([([(1, 0, 1, 0)], False), ([], False)], "without slices"),
}


@pytest.mark.parametrize("is_compiled", BOTH)
@pytest.mark.parametrize("case", WRONG)
def test_what_points_to_nothing_is_refused(case: str, is_compiled: bool) -> None:
    columns, reason = WRONG[case]
    message = one_item([responses.chunk(1, [FLOATS, WORDS])], columns)
    with pytest.raises(WireError) as caught:
        taken(batch_builder(1, ChunkCache(1 << 16, is_compiled)), message)
    assert reason in str(caught.value)


def test_rows_without_number_are_refused_before_room_is_made_for_them() -> None:
    empty = np.zeros((2**31, 0), np.float32)
    message = one_item([responses.chunk(1, [empty])], [([(1, 0, 2**31 - 1, 0)], False)])
    with pytest.raises(WireError, match="rows"):
        taken(batch_builder(1, ChunkCache(1 << 16)), message)


@pytest.mark.parametrize("is_compiled", BOTH)
def test_an_item_that_repeats_its_rows_without_end_is_refused_before_room_is_made_for_it(is_compiled: bool) -> None:
    """Rows of zeros, which are small on the way, and each of many slices is all of them: some kilobytes ask for gigabytes."""
    zeros = responses.chunk(1, [np.zeros((64, 1 << 15), np.uint8)])
    message = one_item([zeros], [([(1, 0, 64, 0)] * 5_000, False)])
    assert len(message) < 300_000
    with pytest.raises(WireError, match=r"sampled item 7: 10,485,760,000 bytes, more than"):
        taken(batch_builder(1, ChunkCache(1 << 24, is_compiled)), message)


@pytest.mark.parametrize("is_compiled", BOTH)
def test_an_item_may_repeat_a_row_as_a_padded_window_does(is_compiled: bool) -> None:
    image = np.zeros((1, 1 << 15), np.uint8)
    message = one_item([responses.chunk(1, [image])], [([(1, 0, 1, 0)] * 2_000, False)])
    (batch,) = taken(batch_builder(1, ChunkCache(1 << 24, is_compiled)), message)
    (column,) = batch.columns
    assert np.shape(column) == (1, 2_000, 1 << 15)


@pytest.mark.skipif(native.LIBRARY is None, reason="the plain reader makes no room ahead")
def test_a_batch_that_no_memory_holds_is_an_error_of_ours() -> None:
    message = one_item([responses.chunk(1, [np.zeros((1, 1 << 20), np.uint8)])], [([(1, 0, 1, 0)], False)])
    with pytest.raises(
        WireError, match=r"no memory for batches of 1,152,921,504,606 of its samples .*smaller batch_size"
    ):
        taken(batch_builder((1 << 60) // 10**6, ChunkCache(1 << 24)), message)


@pytest.mark.parametrize("entries", [[{}], [{"end_of_sequence": True}], [{"info": {}}, {"info": {}}]])
def test_entries_out_of_order_are_refused(entries: list[dict[str, Any]]) -> None:
    message = message_class("SampleStreamResponse")(entries=entries).SerializeToString()
    with pytest.raises(WireError, match=r"entry|began"):
        taken(batch_builder(1, ChunkCache(1 << 16)), message)


def test_items_with_unequal_columns_are_refused_in_one_batch_only() -> None:
    column: responses.ColumnSlices = ([(1, 0, 1, 0)], False)
    floats = responses.chunk(1, [FLOATS])
    messages = [one_item([floats], [column]), one_item([floats], [column, column])]
    assert [len(batch.columns) for batch in built(batch_builder(1, ChunkCache(1 << 16)), messages)] == [1, 2]
    with pytest.raises(WireError, match=r"\[1, 2\] columns; batch_size=1"):
        built(batch_builder(2, ChunkCache(1 << 16)), messages)
