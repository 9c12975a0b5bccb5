"""Trajectories are read as protobuf reads them, with and without the compiled reader."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import WireError
from rlds2reverb.protobuf import varint_columns
from rlds2reverb.wire.sample.trajectories import Pointers, read_plainly, read_trajectories
from rlds2reverb.wire.schema import message_class
from tests.support.wire import mutants, responses

Plain = list[list[tuple[list[tuple[int, int, int, int]], bool]]]

KEYS = st.one_of(
    st.sampled_from([1, 127, 128, 2**56 - 1, 2**56, 2**63 - 1, 2**63, 2**64 - 1]), st.integers(1, 2**64 - 1)
)
NUMBERS = st.one_of(st.integers(0, 200), st.integers(0, 2**31 - 1))


@st.composite
def trajectories(draw: st.DrawFn) -> list[bytes]:
    """Of a few layouts, many times each with other numbers."""
    layouts = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3))
    made = []
    for layout in draw(st.lists(st.sampled_from(layouts), min_size=1, max_size=20)):
        key = draw(KEYS)
        columns: list[responses.ColumnSlices] = [
            (
                [
                    (draw(st.sampled_from([key, draw(KEYS)])), draw(NUMBERS), draw(NUMBERS) or 1, at)
                    for _ in range(slices)
                ],
                draw(st.booleans()),
            )
            for at, slices in enumerate(layout)
        ]
        made.append(responses.trajectory(columns))
    return made


@given(trajectories())
def test_all_is_read_as_protobuf_reads_it(messages: list[bytes]) -> None:
    assert plain(read_trajectories(messages)) == plain(read_plainly(messages)) == expected(messages)


@given(trajectories(), st.data())
def test_what_is_broken_is_refused_or_read_as_protobuf_reads_it(good: list[bytes], data: st.DataObject) -> None:
    broken = [data.draw(mutants.mutated([answer])) if data.draw(st.booleans()) else answer for answer in good]
    try:
        read = plain(read_trajectories(broken))
    except WireError:
        return
    assert read == expected(broken)


@pytest.mark.parametrize("key", [5, 2**50, 2**57, 2**63 - 1, 2**63, 2**64 - 1])
def test_keys_of_ten_bytes_may_be_small(key: int) -> None:
    made = [
        b"\x0a\x0f\x0a\x0d\x08" + varint_columns(np.array([number], np.uint64), 10).tobytes() + b"\x18\x01"
        for number in (key, key ^ 3, key ^ 1 << 40)
    ]
    assert plain(read_trajectories(made)) == expected(made)


def plain(pointers: Pointers) -> Plain:
    slices = iter(list(zip(*(values.tolist() for values in pointers.slices))))
    columns = iter(
        [
            ([next(slices) for _ in range(count)], squeeze)
            for count, squeeze in zip(pointers.slice_counts.tolist(), pointers.squeezed.tolist())
        ]
    )
    return [[next(columns) for _ in range(count)] for count in pointers.column_counts.tolist()]


def expected(messages: Sequence[bytes]) -> Plain:
    protos = map(message_class("FlatTrajectory").FromString, messages)
    return [
        [
            (
                [
                    (chunk_slice.chunk_key, chunk_slice.offset, chunk_slice.length, chunk_slice.index)
                    for chunk_slice in column.chunk_slices
                ],
                column.squeeze,
            )
            for column in proto.columns
        ]
        for proto in protos
    ]
