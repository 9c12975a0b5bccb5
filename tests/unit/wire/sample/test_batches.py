"""Batches are what the slow reference makes of the same responses, whatever the arena; broken responses are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample.batches import BatchBuilder, FlatBatch
from rlds2reverb.wire.schema import message_class
from tests.unit.wire import mutants
from tests.unit.wire.sample import responses
from tests.unit.wire.sample.reference import SlowBuilder, bits

FLOATS = np.arange(12, dtype=np.float32).reshape(6, 2)
WORDS = np.array([b"", b"one", b"two", b"three", b"4", b"5" * 200], object)


def built(builder: Any, messages: Sequence[bytes]) -> list[FlatBatch]:
    batches = [batch for message in messages for batch in builder.take(message)]
    rest = builder.rest()
    return batches if rest is None else [*batches, rest]


@given(responses.streams(), st.integers(1, 12), responses.ARENA_BYTES)
def test_batches_are_those_of_the_reference(messages: list[bytes], batch_size: int, arena_bytes: int) -> None:
    expected = built(SlowBuilder(batch_size), messages)
    assert list(map(bits, built(BatchBuilder(batch_size, arena_bytes), messages))) == list(map(bits, expected))


@given(responses.streams(), responses.streams(), st.integers(1, 5), responses.ARENA_BYTES)
def test_a_stream_that_broke_leaves_no_trace(
    first: list[bytes], second: list[bytes], batch_size: int, arena_bytes: int
) -> None:
    builder = BatchBuilder(batch_size, arena_bytes)
    for message in first[:-1]:
        builder.take(message)
    builder.rest()
    builder.lost()
    assert list(map(bits, built(builder, first))) == list(map(bits, built(SlowBuilder(batch_size), first)))
    fresh = built(BatchBuilder(batch_size, 1 << 20), second)
    assert list(map(bits, fresh)) == list(map(bits, built(SlowBuilder(batch_size), second)))


@given(responses.streams(), st.integers(1, 5), responses.ARENA_BYTES)
def test_arrays_are_the_callers_own(messages: list[bytes], batch_size: int, arena_bytes: int) -> None:
    builder = BatchBuilder(batch_size, arena_bytes)
    first = built(builder, messages)
    before = list(map(bits, first))
    for batch in first:
        for column in batch.columns:
            for array in column if isinstance(column, list) else [column]:
                assert array.flags.writeable
                array[...] = b"changed" if array.dtype == object else 0
    assert list(map(bits, built(builder, messages))) == before


@given(st.data())
def test_broken_responses_are_refused_or_read_as_the_reference_reads_them(data: st.DataObject) -> None:
    messages = data.draw(responses.streams(4))
    broken = [data.draw(mutants.mutated([message])) if data.draw(st.booleans()) else message for message in messages]
    batch_size = data.draw(st.integers(1, 3))
    outcome = outcome_or_none(BatchBuilder(batch_size, 1 << 16), broken, WireError)
    expected = outcome_or_none(SlowBuilder(batch_size), broken, WireError, DecodeError)
    assert outcome == expected or None in (outcome, expected)


@given(st.lists(mutants.messages("SampleStreamResponse"), min_size=1, max_size=3))
def test_any_values_in_a_response_are_refused_or_read_as_the_reference_reads_them(protos: list[Any]) -> None:
    messages = [proto.SerializeToString() for proto in protos]
    outcome = outcome_or_none(BatchBuilder(2, 1 << 16), messages, WireError)
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
    "chunk": ([([(2, 0, 1, 0)], False)], "a chunk that did not come"),
    "tensor": ([([(1, 0, 1, 2)], False)], "a tensor that the chunk does not have"),
    "tensor below 0": ([([(1, 0, 1, -1)], False)], "a tensor that the chunk does not have"),
    "rows": ([([(1, 5, 2, 0)], False)], "rows that the chunk does not have"),
    "offset below 0": ([([(1, -1, 2, 0)], False)], "rows that the chunk does not have"),
    "no rows": ([([(1, 2, 0, 0)], False)], "rows that the chunk does not have"),
    "length below 0": ([([(1, 2, -1, 0)], False)], "rows that the chunk does not have"),
    "unlike slices": ([([(1, 0, 1, 0), (1, 0, 1, 1)], False)], "another dtype or shape"),
    "squeezed": ([([(1, 0, 2, 0)], True)], "a squeezed column of 2 rows"),
    "squeezed slices": ([([(1, 0, 1, 0), (1, 0, 1, 0)], True)], "a squeezed column of 2 rows"),
    "no columns": ([], "no columns"),
    "no slices": ([([(1, 0, 1, 0)], False), ([], False)], "without slices"),
}


@pytest.mark.parametrize("arena_bytes", [1, 1 << 16])
@pytest.mark.parametrize("case", WRONG)
def test_what_points_to_nothing_is_refused(case: str, arena_bytes: int) -> None:
    columns, told = WRONG[case]
    message = one_item([responses.chunk(1, [FLOATS, WORDS])], columns)
    with pytest.raises(WireError) as caught:
        BatchBuilder(1, arena_bytes).take(message)
    assert arena_bytes == 1 or told in str(caught.value)


def test_rows_without_number_are_refused_before_room_is_made_for_them() -> None:
    empty = np.zeros((2**31, 0), np.float32)
    message = one_item([responses.chunk(1, [empty])], [([(1, 0, 2**31 - 1, 0)], False)])
    with pytest.raises(WireError, match="rows"):
        BatchBuilder(1, 1 << 16).take(message)


@pytest.mark.parametrize("entries", [[{}], [{"end_of_sequence": True}], [{"info": {}}, {"info": {}}]])
def test_entries_out_of_order_are_refused(entries: list[dict[str, Any]]) -> None:
    message = message_class("SampleStreamResponse")(entries=entries).SerializeToString()
    with pytest.raises(WireError, match=r"entry|began"):
        BatchBuilder(1, 1 << 16).take(message)


def test_items_with_unequal_columns_are_refused_in_one_batch_only() -> None:
    column: responses.ColumnSlices = ([(1, 0, 1, 0)], False)
    floats = responses.chunk(1, [FLOATS])
    messages = [one_item([floats], [column]), one_item([floats], [column, column])]
    assert [len(batch.columns) for batch in built(BatchBuilder(1, 1 << 16), messages)] == [1, 2]
    with pytest.raises(WireError, match=r"\[1, 2\] columns; batch_size=1"):
        built(BatchBuilder(2, 1 << 16), messages)
