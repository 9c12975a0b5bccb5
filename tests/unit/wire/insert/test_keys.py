"""Keys: the published generator, stable across releases, always ten bytes as a varint."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.protobuf import KEY_BYTES, varint
from rlds2reverb.wire.insert import TOP_BIT, keys, seed

MASK = 2**64 - 1

uint64 = st.integers(0, MASK)
parts = st.lists(st.text(max_size=5), max_size=4)


def splitmix64(state: int) -> int:
    """SplitMix64's output function on plain integers."""
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


# The generator's published outputs for seed 0, with the top bit set.
@pytest.mark.parametrize(
    ("counter", "output"), [(1, 0xE220A8397B1DCDAF), (2, 0x6E789E6AA1B965F4), (3, 0x06C45D188009454F)]
)
def test_keys_are_the_published_generator_with_the_top_bit_set(counter: int, output: int) -> None:
    assert keys(0, np.array([counter])).tolist() == [output | 1 << 63]


@given(uint64, st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_keys_agree_with_plain_integers(seed_value: int, counters: list[int]) -> None:
    expected = [splitmix64(seed_value + c * 0x9E3779B97F4A7C15 & MASK) | 1 << 63 for c in counters]
    found = keys(seed_value, np.array(counters, np.int64))
    assert found.dtype == np.uint64
    assert found.tolist() == expected


@given(uint64, st.integers(0, 2**62))
def test_a_key_is_always_a_varint_of_ten_bytes(seed_value: int, first: int) -> None:
    for key in keys(seed_value, np.arange(first, first + 5)):
        assert key & TOP_BIT
        assert len(varint(int(key))) == KEY_BYTES


@given(uint64)
def test_keys_within_one_seed_are_distinct(seed_value: int) -> None:
    assert len(set(keys(seed_value, np.arange(1000)).tolist())) == 1000


@given(parts, parts)
def test_a_seed_tells_any_two_lists_of_parts_apart(one: list[str], other: list[str]) -> None:
    assert (seed(*one) == seed(*other)) == (one == other)


def test_a_seed_knows_where_a_part_ends() -> None:
    assert len({seed("ab", "c"), seed("a", "bc"), seed("abc"), seed("abc", ""), seed("", "abc")}) == 5


# Stored data is found again by these numbers: they must not change between releases.
@pytest.mark.parametrize(
    ("arguments", "value"),
    [((), 0xB4B2797457A0A6E4), (("a",), 0x80489184ECF46FB8), (("5", "replay", "é"), 0xD52AEFB8CE8FBD1C)],
)
def test_seeds_do_not_change_between_releases(arguments: tuple[str, ...], value: int) -> None:
    assert seed(*arguments) == value
