"""A list of episodes as a source: names, counts, spec and shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.sources.base import EpisodeList, check_shard, spec_of
from rlds2reverb.specs import ArraySpec, flatten
from tests import strategies


def counted(rows, start=0, episode_id=""):
    return Episode({"at": np.arange(start, start + rows)}, id=episode_id)


def ids(source):
    return [episode.id for episode in source]


class TestEpisodeList:
    def test_reads_the_same_episodes_in_order_every_time(self):
        episodes = [counted(2, episode_id="a"), counted(3, episode_id="b")]
        source = EpisodeList(episodes)
        assert list(source) == list(source) == episodes
        assert (source.name, source.episode_count, source.step_count) == ("episodes", 2, 5)

    def test_of_nothing_has_no_spec(self):
        assert (EpisodeList([]).episode_count, EpisodeList([]).step_count, list(EpisodeList([]))) == (0, 0, [])
        for empty in ([], [counted(0)]):
            with pytest.raises(SourceError, match="mine: no episode with steps, so there is no step spec"):
                EpisodeList(empty, "mine").spec()

    def test_takes_its_spec_from_the_first_episode_with_steps(self):
        source = EpisodeList(
            [Episode({"a": np.zeros(0)}), Episode({"b": np.zeros((2, 3))}), Episode({"c": np.zeros(1)})]
        )
        assert source.spec() == {"b": ArraySpec((3,), np.dtype(float))}

    def test_names_equal_episodes_by_their_number_and_content(self):
        source = EpisodeList([counted(2), counted(2), counted(3)])
        assert len(set(ids(source))) == 3
        assert ids(source) == ids(EpisodeList([counted(2), counted(2), counted(3)]))
        assert [name.rpartition("#")[2] for name in ids(source)] == ["0", "1", "2"]
        assert ids(source)[0].rpartition("#")[0] == counted(2).id

    def test_keeps_the_names_and_metadata_that_episodes_have(self):
        source = EpisodeList(
            [Episode({"a": np.zeros(1)}, {"agent": 1}, "x"), Episode({"a": np.zeros(1)}, {"agent": 2})]
        )
        assert ids(source)[0] == "x"
        assert [dict(episode.metadata) for episode in source] == [{"agent": 1}, {"agent": 2}]

    def test_refuses_two_episodes_of_one_name(self):
        with pytest.raises(SourceError, match='mine: two episodes have the id "x"; ids must differ, or be left out'):
            EpisodeList([counted(1, episode_id="x"), counted(2, episode_id="y"), counted(3, episode_id="x")], "mine")

    @pytest.mark.parametrize("thing", [3, {"a": np.zeros(2)}, None])
    def test_refuses_what_is_no_episode(self, thing):
        with pytest.raises(SourceError, match=f"episodes: number 1 is a {type(thing).__name__}, expected an Episode"):
            EpisodeList([counted(1), thing])


class TestShards:
    @given(st.integers(0, 12), st.integers(1, 5))
    def test_share_the_episodes_out_and_keep_their_names(self, episodes, count):
        source = EpisodeList([counted(1 + number % 3) for number in range(episodes)], "mine")
        shards = [source.shard(index, count) for index in range(count)]
        for index, shard in enumerate(shards):
            assert ids(shard) == ids(source)[index::count]
            assert shard.name == f"mine[{index}/{count}]"
        assert sum(shard.episode_count for shard in shards) == episodes
        assert ids(shards[0].shard(0, 2)) == ids(shards[0])[::2]

    @pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0), (1, 1)])
    def test_that_do_not_exist_are_refused(self, index, count):
        with pytest.raises(SourceError, match=f"shard {index} of {count}: expected 0 <= index < count"):
            check_shard(index, count)
        with pytest.raises(SourceError, match="shard"):
            EpisodeList([counted(1)]).shard(index, count)


class TestSpecs:
    @settings(max_examples=40)
    @given(strategies.episodes())
    def test_of_an_episode_have_its_paths_shapes_and_dtypes(self, episode):
        leaves = flatten(spec_of(episode))
        assert set(leaves) == set(episode.steps)
        for path, column in episode.steps.items():
            assert leaves[path] == ArraySpec(column.shape[1:], column.dtype)

    @pytest.mark.parametrize("column", [np.array(["a"]), np.array([b"a"]), np.array([b"a"], object)])
    def test_of_text_have_dtype_object(self, column):
        assert spec_of(Episode({"text": column})) == {"text": ArraySpec((), np.dtype(object))}

    def test_of_joined_paths_are_nested(self):
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
    def test_with_a_column_named_as_a_group_are_refused(self, paths, message):
        with pytest.raises(SourceError, match=message):
            spec_of(Episode({path: np.zeros(1) for path in paths}))
