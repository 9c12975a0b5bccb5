"""What sources share: shards, the first episodes, and specs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import Source, check_shard, checked_spec, columns_of, spec_of
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
