"""How many files there are, and where they are cut: TFDS' rule."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.tfds.write import Target, bounds, shard_count, shards_of_at_most

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


# What the name of a TFDS destination says, and what it must not.


def test_a_name_says_folder_version_split_and_options() -> None:
    found = Target.parse("/data/a:b@c/my_set:1.2.30@test?file_format=parquet,shards=3,encoding=zlib,images=tensor")
    assert found.path == Path("/data/a:b@c/my_set/1.2.30")
    assert (found.split, found.file_format, found.shards) == ("test", "parquet", 3)
    assert (found.encoding, found.images, found.shard_bytes) == ("zlib", "tensor", None)


def test_what_is_not_said_is_usual() -> None:
    found = Target.parse("/data/my_set")
    assert found.path == Path("/data/my_set/1.0.0")
    assert (found.split, found.file_format, found.shards) == ("train", "tfrecord", None)


def test_a_name_alone_is_in_the_folder_of_tfds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert Target.parse("my_set:2.0.0").path == tmp_path / "my_set" / "2.0.0"
    assert Target.parse("./my_set").path == Path("my_set/1.0.0")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected tfds:/data_dir"),
        ("/data/MySet", "lower case"),
        ("/data/mySet", "lower case"),
        ("/data/my-set", "lower case"),
        ("/data/1set", "lower case"),
        ("/", "lower case"),
        ("/data/my_set:1.0", "three numbers"),
        ("/data/my_set:1.0.01", "three numbers"),
        ("/data/my_set:*.0.0", "three numbers"),
        ("/data/my_set@train[:3]", "one name of letters"),
        ("/data/my_set@all", "one name of letters"),
        ("/data/my_set?shards=0", "at least 1"),
        ("/data/my_set?shards=x", "whole number"),
        ("/data/my_set?shards=100000", "expected 1 to 99,999"),
        ("/data/my_set?encoding=none", "bytes or zlib"),
        ("/data/my_set?file_format=riegeli", "expected tfrecord"),
        ("/data/my_set?nonsense=1", 'unknown option "nonsense=1"'),
        ("/data/my_set?shards=1,shards=2", "twice"),
    ],
)
def test_names_that_make_no_sense_are_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Target.parse(text)
