"""Draws: a function of what they are for, and even."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.learner.slices import picks, uniforms

ANY_KEY = st.integers(0, 2**64 - 1)


def slow_uniform(seed: int, *numbers: int) -> float:
    """SplitMix64 in whole numbers of any size."""
    bits = 2**64
    state = seed % bits
    for number in numbers:
        state = ((state ^ (number % bits)) + 0x9E3779B97F4A7C15) % bits
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % bits
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % bits
        state ^= state >> 31
    return (state >> 11) / 2**53


@given(st.integers(), st.lists(st.tuples(ANY_KEY, st.integers(1, 2**31 - 1), st.integers(-1, 100)), min_size=1))
def test_draws_are_those_of_whole_numbers(seed: int, rows: list[tuple[int, int, int]]) -> None:
    keys, times, ranks = (list(column) for column in zip(*rows))
    drawn = uniforms(seed, np.array(keys, np.uint64), np.array(times, np.int32), np.array(ranks, np.int64))
    assert drawn.tolist() == [slow_uniform(seed, *row) for row in rows]


@given(st.integers(), st.lists(st.tuples(ANY_KEY, st.integers(1, 9), st.integers(0, 5), st.integers(1, 50))))
def test_picks_do_not_depend_on_what_stands_beside_them(seed: int, rows: list[tuple[int, int, int, int]]) -> None:
    columns = list(zip(*rows)) or [(), (), (), ()]
    keys, times, counts, among = (np.array(one, kind) for one, kind in zip(columns, ("u8", "i4", "i8", "i8")))
    found = picks(seed, keys, times, counts, among) if rows else []
    for (key, time, count, below), one in zip(rows, found):
        assert one.tolist() == [int(slow_uniform(seed, key, time, rank) * below) for rank in range(count)]


def test_picks_are_even() -> None:
    """36,000 picks among 36: each cell's share is within 6 standard deviations, for neighbouring keys and times."""
    keys, times = np.divmod(np.arange(3600), 60)
    found = picks(0, keys.astype(np.uint64), times + 1, np.full(3600, 10), np.full(3600, 36))
    counts = np.bincount(np.concatenate(found), minlength=36)
    assert np.abs(counts - 1000).max() < 6 * np.sqrt(1000)
    pairs = np.bincount([6 * (one[0] // 6) + one[1] // 6 for one in found], minlength=36)
    assert np.abs(pairs - 100).max() < 6 * np.sqrt(100)


def test_another_seed_draws_otherwise() -> None:
    keys, ones = np.arange(100, dtype=np.uint64), np.ones(100, np.int64)
    one, other = (np.concatenate(picks(seed, keys, ones, ones, 1000 * ones)) for seed in (0, 1))
    assert np.count_nonzero(one == other) < 10
