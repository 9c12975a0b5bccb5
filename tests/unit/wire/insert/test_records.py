"""Records: constant bytes and columns side by side, one `bytes` per record, nothing lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.wire.insert.records import as_bytes, records, width_of


@st.composite
def parts_of(draw: st.DrawFn) -> tuple[int, list]:
    """A number of records, and their parts: zeros are frequent, because records may end in them."""
    count = draw(st.integers(0, 8))
    byte = st.one_of(st.just(0), st.integers(0, 255))
    column = st.integers(0, 5).flatmap(
        lambda width: st.lists(st.lists(byte, min_size=width, max_size=width), min_size=count, max_size=count).map(
            lambda rows: np.array(rows, np.uint8).reshape(count, width)
        )
    )
    return count, draw(st.lists(st.one_of(st.lists(byte, max_size=5).map(bytes), column), min_size=1, max_size=5))


@given(parts_of())
@settings(max_examples=50)
def test_a_record_is_its_parts_one_after_the_other(case: tuple[int, list[bytes | np.ndarray]]) -> None:
    count, parts = case
    block = records(count, parts)
    expected = [b"".join(p if isinstance(p, bytes) else p[row].tobytes() for p in parts) for row in range(count)]
    assert block.dtype == np.uint8
    assert block.shape == (count, sum(map(width_of, parts)))
    assert [row.tobytes() for row in block] == expected
    if block.shape[1]:
        assert as_bytes(block) == expected


def test_the_width_of_a_part_is_that_of_one_record() -> None:
    assert width_of(b"abc") == 3
    assert width_of(np.zeros((7, 2), np.uint8)) == 2


def test_bytes_made_of_a_block_do_not_change_with_it() -> None:
    block = np.zeros((2, 3), np.uint8)
    made = as_bytes(block)
    block[...] = 1
    assert made == [b"\0\0\0", b"\0\0\0"]
