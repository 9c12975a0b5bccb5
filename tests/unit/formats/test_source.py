"""What sources share: shards, the first episodes, and specs."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import Source, check_shard, checked_spec, columns_of, read_ahead, spec_of
from rlds2reverb.specs import ArraySpec, flatten
from tests.support import strategies


def numbered(rows: int, start: int = 0, episode_id: str = "") -> Episode:
    return Episode({"at": np.arange(start, start + rows)}, id=episode_id)


def ids(source: Source) -> list[str]:
    return [episode.id for episode in source]


class TestShards:
    @given(st.integers(0, 12), st.integers(1, 5))
    def test_share_the_episodes_out_and_keep_their_names(self, episodes: int, count: int) -> None:
        source = EpisodeList([numbered(1 + number % 3) for number in range(episodes)], "mine")
        shards = [source.shard(index, count) for index in range(count)]
        for index, shard in enumerate(shards):
            assert ids(shard) == ids(source)[index::count]
            assert shard.name == f"mine[{index}/{count}]"
        assert sum(shard.episode_count or 0 for shard in shards) == episodes
        assert ids(shards[0].shard(0, 2)) == ids(shards[0])[::2]

    @given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 5))
    def test_the_first_episodes_are_those_of_the_whole_and_shared_out_alike(
        self, episodes: int, wanted: int, count: int
    ) -> None:
        source = EpisodeList([numbered(1 + number % 3) for number in range(episodes)], "mine")
        first = source.first(wanted)
        assert ids(first) == ids(first) == ids(source)[:wanted]
        assert first.episode_count == len(ids(first))
        for index in range(count):
            assert ids(first.shard(index, count)) == ids(first)[index::count]
        assert first.name == f"mine, first {wanted}"
        assert source.first(None) is source

    @pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0), (1, 1)])
    def test_that_do_not_exist_are_refused(self, index: int, count: int) -> None:
        with pytest.raises(SourceError, match=f"shard {index} of {count}: expected 0 <= index < count"):
            check_shard(index, count)
        with pytest.raises(SourceError, match="shard"):
            EpisodeList([numbered(1)]).shard(index, count)


class TestSpecs:
    @settings(max_examples=40)
    @given(strategies.episodes())
    def test_of_an_episode_have_its_paths_shapes_and_dtypes(self, episode: Episode) -> None:
        leaves = flatten(spec_of(episode))
        assert set(leaves) == set(episode.columns)
        for path, column in episode.columns.items():
            assert leaves[path] == ArraySpec(column.shape[1:], column.dtype)

    @pytest.mark.parametrize("column", [np.array(["a"]), np.array([b"a"]), np.array([b"a"], object)])
    def test_of_text_have_dtype_object(self, column: np.ndarray) -> None:
        assert spec_of(Episode({"text": column})) == {"text": ArraySpec((), np.dtype(object))}

    def test_of_joined_paths_are_nested(self) -> None:
        episode = Episode({path: np.zeros(1) for path in ("a/b/c", "a/d", "e")})
        leaf = ArraySpec((), np.dtype(float))
        assert spec_of(episode) == {"a": {"b": {"c": leaf}, "d": leaf}, "e": leaf}

    @pytest.mark.parametrize(
        ("paths", "message"),
        [
            (("a", "a/b"), 'column "a/b" lies below another column'),
            (("a/b", "a"), 'column "a" has the name of a group of columns'),
            (("a/b", "a/b/c"), 'column "a/b/c" lies below another column'),
        ],
    )
    def test_with_a_column_named_as_a_group_are_refused(self, paths: tuple[str, str], message: str) -> None:
        with pytest.raises(SourceError, match=message):
            spec_of(Episode({path: np.zeros(1) for path in paths}))

    def test_of_a_source_are_checked_for_two_columns_of_one_name(self) -> None:
        class Odd(EpisodeList):
            def spec(self) -> dict[str, dict[str, int] | int]:
                return {"a": {"b": 1}, "a/b": 2}

        said = 'mine: two columns are both named "a/b": a key holds a "/"; rename it in the dataset'
        with pytest.raises(SourceError, match=said):
            checked_spec(Odd([], "mine"))
        with pytest.raises(SourceError, match=said):
            columns_of(Odd([]).spec(), "mine")
        source = EpisodeList([numbered(2)])
        assert checked_spec(source) == source.spec()
        assert columns_of({"a": {"b": 1}}, "mine") == {"a/b": 1}


# Reading ahead in a thread: the same items, a bounded number ahead, and no thread left behind.

MEGABYTE = 1 << 20


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-read-ahead"]


class Items:
    """Numbers that say how far they were read."""

    def __init__(self, count: int, breaks: bool = False) -> None:
        self.count, self.breaks = count, breaks
        self.read = 0
        self.is_closed = False

    def __call__(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                self.read += 1
                yield number
            if self.breaks:
                raise ValueError("damaged")
        finally:
            self.is_closed = True


@given(st.lists(st.integers(0, MEGABYTE), max_size=100))
def test_the_same_items_come_in_the_same_order(sizes: list[int]) -> None:
    assert list(read_ahead((size for size in sizes), lambda size: size)) == sizes
    assert threads() == []


@given(st.integers(0, 100))
def test_what_was_read_before_an_error_comes_before_it(count: int) -> None:
    items = Items(count, breaks=True)
    found: list[int] = []
    with pytest.raises(ValueError, match="damaged"):
        found += read_ahead(items(), lambda _: 1)
    # The list is extended item by item, so it has all that came.
    assert found == list(range(count))
    assert items.is_closed
    assert threads() == []


def test_of_large_items_two_are_read_ahead_at_most() -> None:
    items = Items(1000)
    reading = read_ahead(items(), lambda _: MEGABYTE)
    for number in range(20):
        assert next(reading) == number
        assert items.read <= number + 3
    close(reading)
    assert items.read <= 23


def test_small_items_come_by_the_batch() -> None:
    items = Items(10_000)
    reading = read_ahead(items(), lambda _: 1)
    for number in range(200):
        assert next(reading) == number
        assert items.read <= number + 1 + 3 * 32
    close(reading)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_reading_that_is_dropped_ends_its_thread(taken: int) -> None:
    items = Items(10_000)
    reading = read_ahead(items(), lambda _: MEGABYTE)
    for _ in range(taken):
        next(reading)
    assert len(threads()) == (1 if taken else 0)
    del reading
    gc.collect()
    assert threads() == []
    assert items.is_closed == bool(taken)


def test_nothing_is_read_before_the_first_item_is_asked_for() -> None:
    items = Items(3)
    reading = read_ahead(items(), lambda _: 1)
    assert items.read == 0
    assert threads() == []
    assert list(reading) == [0, 1, 2]


def test_a_program_ends_that_has_not_read_all() -> None:
    """From Python 3.13 on, a thread that is joined when the interpreter shuts down never ends."""
    lines = (
        "from itertools import count",
        "from rlds2reverb.formats.source import read_ahead",
        "reading = read_ahead((number for number in count()), lambda number: 1 << 20)",
        "print(next(reading))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_the_end_of_the_program_closes_what_is_read_ahead() -> None:
    lines = (
        "from rlds2reverb.formats.source import read_ahead",
        "def items():",
        "    try:",
        "        while True: yield 0",
        "    finally: print('closed', flush=True)",
        "reading = read_ahead(items(), lambda _: 1)",
        "next(reading)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def close(reading: Iterator[int]) -> None:
    reading.close()  # type: ignore[attr-defined]
    assert threads() == []
