"""How many files there are, and where they are cut: TFDS' rule."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.formats.tfds.write import bounds, shard_count, shards_of_at_most

MIB, GIB = 1 << 20, 1 << 30

KNOWN = {
    (10, 10): 1,
    (128 * MIB, 10): 2,
    (128 * MIB, 1): 1,
    (256 * MIB, 3): 2,
    (3 * GIB, 100): 32,
    (3 * GIB, 7): 4,
    (70 * GIB, 5_000): 1024,
    (2_000 * GIB, 5_000): 2048,
    (5_000 * GIB, 10_000): 5120,
}
"""Bytes and episodes -> files, as `ShardConfig.get_number_shards` of TFDS 4.9.10 says."""


@pytest.mark.parametrize(("total", "episodes"), KNOWN)
def test_there_are_as_many_files_as_tfds_writes(total: int, episodes: int) -> None:
    assert shard_count(total, episodes) == KNOWN[total, episodes]


@pytest.mark.full
@given(st.integers(0, 1 << 42), st.integers(1, 1 << 16))
def test_there_are_as_many_files_as_tfds_says(total: int, episodes: int) -> None:
    utils = pytest.importorskip("tensorflow_datasets.core.utils.shard_utils")
    if (total + 16 * episodes) // GIB > 1024 > episodes // 2:
        return  # TFDS looks for a number for ever
    if (total + 16 * episodes) // GIB <= episodes:
        assert shard_count(total, episodes) == utils.ShardConfig().get_number_shards(total, episodes)


@pytest.mark.full
@given(st.integers(1, 10_000), st.integers(1, 64))
def test_files_are_cut_where_tfds_cuts_them(episodes: int, shards: int) -> None:
    utils = pytest.importorskip("tensorflow_datasets.core.utils.shard_utils")
    if shards <= episodes:
        assert list(bounds(episodes, shards)[1:]) == list(utils.get_shard_boundaries(episodes, shards))


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_no_file_is_without_an_episode(episodes: int, shards: int) -> None:
    cuts = bounds(episodes, min(shards, episodes))
    assert cuts[0] == 0
    assert cuts[-1] == episodes
    assert all(start < stop for start, stop in pairwise(cuts))


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 20))
def test_the_count_is_never_more_than_the_episodes(total: int, episodes: int) -> None:
    assert 1 <= shard_count(total, episodes) <= max(episodes, 1024)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 20), st.integers(1, 1 << 30))
def test_files_of_a_size_that_is_asked_for(total: int, episodes: int, most: int) -> None:
    shards = shards_of_at_most(most, total, episodes)
    assert 1 <= shards <= episodes
    assert shards == episodes or (total + 16 * episodes) / shards <= most
