"""Episodes named by what a user says is stable: by that alone, and none of two with one name is taken for the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2reverb.episode import Array, Episode, KnownEpisode, gaps_around
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.filtered import Filtered
from rlds2reverb.formats.filters import KeepRanges
from rlds2reverb.formats.identity import Identified, identity_of, with_identity
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import MixedSource
from rlds2reverb.specs import flatten

FLAGS = {"is_first": np.arange(3) == 0, "is_last": np.arange(3) == 2}


def make_episode(
    number: int, metadata: Mapping[str, Any] | None = None, where: str = "", columns: Mapping[str, Array] | None = None
) -> Episode:
    own = {
        "observation/state": np.full((3, 2), number, np.float32),
        "observation/image": np.full((3, 4, 4, 3), number, np.uint8),
        "action": np.arange(3, dtype=np.float32) + number,
        "task": np.array([b"a", b"b", b"c"], object),
        **FLAGS,
    }
    return Episode(
        {**own, **(columns or {})}, metadata or {"episode_id": np.int64(number)}, "", where=where or f"here#{number}"
    )


def names(identity: str, *episodes: Episode) -> list[str]:
    return [episode.id for episode in with_identity(EpisodeList(episodes, "test"), identity_of(identity))]


@pytest.mark.parametrize(
    "text",
    ["", "columns", "columns=", "column=a", "id=", "id=a,b", "id=a,name=", "columns=a,,b", "columns=a,a", 3, "numeric"],
)
def test_what_is_no_identity_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match=r"identity \(--identity\)"):
        identity_of(text)
    with pytest.raises(ConfigError, match="all columns of numbers"):
        identity_of("columns=numeric,action")


def test_none_is_no_identity() -> None:
    source = EpisodeList([make_episode(0)])
    assert with_identity(source, identity_of(None)) is source


def test_columns_alone_decide() -> None:
    image = np.zeros((3, 4, 4, 3), np.uint8)
    [one] = names("columns=observation/state,action", make_episode(1))
    assert names(
        "columns=action,observation/state", make_episode(1, {"other": 1}, "there#7", {"observation/image": image})
    ) == [one]
    assert names("columns=observation/state,action", make_episode(1, columns={"action": np.zeros(3, np.float32)})) != [
        one
    ]
    assert names("columns=observation", make_episode(1)) != [one]


def test_numeric_columns_are_those_that_are_neither_text_nor_pictures() -> None:
    [one] = names("columns=numeric", make_episode(1))
    other: dict[str, Array] = {
        "observation/image": np.ones((3, 9, 9, 3), np.uint8),
        "task": np.array([b"x"] * 3, object),
    }
    assert names("columns=numeric", make_episode(1, columns=other)) == [one]
    assert names("columns=numeric", make_episode(1, columns={"observation/state": np.full((3, 2), 1, np.float64)})) != [
        one
    ]
    assert names("columns=numeric", make_episode(1, columns={"matrix": np.zeros((3, 2, 2))})) != [one]


@pytest.mark.parametrize("path", ["episode_id", "metadata/episode_id"])
@pytest.mark.parametrize(
    "value", [7, np.int64(7), np.uint8(7), np.array([7]), 7.0, np.float32(7), b"7", "7", np.array(b"7", object)]
)
def test_an_id_is_the_same_in_every_dtype_and_as_text(path: str, value: Any) -> None:
    [one] = names("id=episode_id", make_episode(7))
    assert names(f"id={path}", make_episode(0, {"episode_id": value})) == [one]
    assert names(f"id={path}", make_episode(7, {"episode_id": 8})) != [one]


def test_other_floats_are_compared_as_float64() -> None:
    [tenth] = names("id=episode_id", make_episode(0, {"episode_id": 0.1}))
    assert names("id=episode_id", make_episode(0, {"episode_id": np.float64(0.1)})) == [tenth]
    assert names("id=episode_id", make_episode(0, {"episode_id": np.float32(0.1)})) != [tenth]
    [half] = names("id=episode_id", make_episode(0, {"episode_id": np.float32(0.5)}))
    assert names("id=episode_id", make_episode(0, {"episode_id": np.float16(0.5)})) == [half]
    assert (
        len({*names("id=episode_id", *(make_episode(0, {"episode_id": number}) for number in (np.inf, np.nan, 0.0)))})
        == 3
    )


def test_an_id_may_be_a_column() -> None:
    column = np.full(3, 7)
    assert names("id=index", make_episode(1, columns={"index": column})) == names("id=episode_id", make_episode(7))


def test_ids_count_the_episodes_of_one_dataset() -> None:
    here, part, there = (make_episode(1, where=where) for where in ("a#1", "a?episodes=1:#0", "b#1"))
    assert names("id=episode_id", here) == names("id=episode_id", part)
    assert names("id=episode_id", here) != names("id=episode_id", there)
    assert names("id=episode_id,name=x", here) == names("id=episode_id,name=x", there)
    assert names("id=episode_id,name=x", here) != names("id=episode_id,name=y", here)


@pytest.mark.parametrize("identity", ["columns=observatoin", "id=episode", "columns=action,x"])
def test_what_the_dataset_lacks_is_refused_before_reading(identity: str) -> None:
    with pytest.raises(SourceError, match=r"there are: .*action"):
        with_identity(EpisodeList([make_episode(0)], "test"), identity_of(identity))
    texts = Episode({"task": np.array([b"a"], object)})
    source = EpisodeList([texts], "test")
    with pytest.raises(SourceError, match='no "numeric"'):
        with_identity(source, identity_of("columns=numeric"))


@pytest.mark.parametrize(
    ("identity", "bad", "why"),
    [
        ("id=episode_id", make_episode(1, {"other": 1}), "no such metadata"),
        ("id=episode_id", make_episode(1, {"episode_id": np.arange(2)}), "one text or number"),
        ("id=action", make_episode(1), "that all its rows share"),
        ("columns=observation/state", Episode({"action": np.zeros(3), **FLAGS}, {}, "given"), "no such column"),
    ],
)
def test_an_episode_without_what_names_it_is_a_bad_one(identity: str, bad: Episode, why: str) -> None:
    good = make_episode(0, columns={"action": np.full(3, 4)})
    source = with_identity(EpisodeList([good, bad], "test"), identity_of(identity))
    first, second = source.episodes()
    assert not first.faults
    assert not second.columns
    assert why in second.faults[0][1]
    assert second.id == bad.id


def test_two_episodes_of_one_identity_are_refused_by_their_names() -> None:
    episodes = [make_episode(0), make_episode(1), make_episode(2, {"episode_id": 1})]
    source = with_identity(EpisodeList(episodes, "test"), identity_of("id=episode_id"))
    with pytest.raises(SourceError, match=r"two episodes have one identity \(id=episode_id\).*here#1 \(.*and here#2"):
        list(source)
    assert len(list(source.slice(0, 2).episodes())) == 2


def test_an_episode_that_is_known_is_not_given() -> None:
    source = with_identity(EpisodeList([make_episode(0), make_episode(1)], "test"), identity_of("columns=action"))
    first, second = source
    assert [type(episode) for episode in source.read(is_known=lambda name: name == first.id)] == [KnownEpisode, Episode]
    assert [episode.id for _, episode in source.at([1])] == [second.id]
    assert [episode.id for episode in source.shard(1, 2)] == [second.id]
    assert [episode.id for episode in source.first(1)] == [first.id]
    assert isinstance(source, Identified)


@pytest.mark.parametrize("identity", ["columns=numeric", "columns=action,observation/state", "id=index"])
def test_names_do_not_depend_on_what_is_left_out(identity: str) -> None:
    episodes = [make_episode(number, columns={"index": np.full(3, number)}) for number in range(2)]
    source = with_identity(EpisodeList(episodes, "test"), identity_of(identity))
    paths = ("action", "observation/image", "index", "nothing")
    fewer = source.without(paths)
    assert [episode.id for episode in fewer] == [episode.id for episode in source]
    assert [episode.id for _, episode in fewer.at([0, 1])] == [episode.id for episode in source]
    assert {path for episode in fewer for path in episode.columns} == set(episodes[0].columns) - set(paths)
    assert set(flatten(fewer.spec())) == set(episodes[0].columns) - set(paths)


def test_runs_that_filters_of_a_mix_leave_stay_apart_with_their_gaps() -> None:
    rows = np.arange(6)
    columns = {"action": rows.astype(float), "is_first": rows == 0, "is_last": rows == 5}
    whole = EpisodeList([Episode(columns, {"run": 3})], "runs")
    ranges = KeepRanges.of({episode.id: [[0, 2], [4, 6]] for episode in whole})
    mix = MixedSource([Filtered(whole, [ranges])], length=4)
    run_names = [episode.id for episode in with_identity(mix, identity_of("id=run,name=runs"))]
    assert len(set(run_names)) == 4
    assert [gaps_around(name) for name in run_names] == [(False, True), (True, False)] * 2


def test_passes_of_a_mix_stay_apart() -> None:
    parts = [EpisodeList([replace(make_episode(number), id="") for number in range(2)], "part")]
    mix = MixedSource(parts, [1], length=4)
    found = [episode.id for episode in with_identity(mix, identity_of("columns=action"))]
    assert len(set(found)) == 4
    assert found[2:] == [f"{name}|2" for name in found[:2]]


@given(st.lists(arrays.arrays(np.int16, (3, 2)), min_size=1, max_size=6))
def test_names_are_equal_where_the_columns_are(states: list[Array]) -> None:
    found = []
    for number, state in enumerate(states):
        found += names("columns=observation/state", make_episode(number, columns={"observation/state": state}))
    for position, name in zip(states, found):
        for other, its in zip(states, found):
            assert (name == its) == (position.tobytes() == other.tobytes())
