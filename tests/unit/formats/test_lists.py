"""A list of episodes as a source: names, counts and spec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.specs import ArraySpec, flatten
from tests.support.pictures import CAMERA, IMAGE, WRIST, Pictures, episodes


def numbered(rows: int, start: int = 0, episode_id: str = "") -> Episode:
    return Episode({"at": np.arange(start, start + rows)}, id=episode_id)


def ids(source: EpisodeList) -> list[str]:
    return [episode.id for episode in source]


class TestEpisodeList:
    def test_reads_the_same_episodes_in_order_every_time(self) -> None:
        episodes = [numbered(2, episode_id="a"), numbered(3, episode_id="b")]
        source = EpisodeList(episodes)
        assert list(source) == list(source) == episodes
        assert (source.name, source.episode_count) == ("episodes", 2)

    def test_of_nothing_has_no_spec(self) -> None:
        assert (EpisodeList([]).episode_count, list(EpisodeList([]))) == (0, [])
        for empty in ([], [numbered(0)]):
            with pytest.raises(SourceError, match="mine: no episode with steps, so there is no step spec"):
                EpisodeList(empty, "mine").spec()

    def test_takes_its_spec_from_the_first_episode_with_steps(self) -> None:
        source = EpisodeList(
            [Episode({"a": np.zeros(0)}), Episode({"b": np.zeros((2, 3))}), Episode({"c": np.zeros(1)})]
        )
        assert source.spec() == {"b": ArraySpec((3,), np.dtype(float))}

    def test_names_equal_episodes_alike(self) -> None:
        source = EpisodeList([numbered(2), numbered(2), numbered(3)])
        assert ids(source) == [numbered(2).id, numbered(2).id, numbered(3).id]

    def test_keeps_the_names_and_metadata_that_episodes_have(self) -> None:
        source = EpisodeList(
            [Episode({"a": np.zeros(1)}, {"agent": 1}, "x"), Episode({"a": np.zeros(1)}, {"agent": 2})]
        )
        assert ids(source)[0] == "x"
        assert [dict(episode.metadata) for episode in source] == [{"agent": 1}, {"agent": 2}]

    def test_refuses_two_episodes_of_one_name(self) -> None:
        with pytest.raises(SourceError, match='mine: two episodes have the id "x"; ids must differ, or be left out'):
            EpisodeList([numbered(1, episode_id="x"), numbered(2, episode_id="y"), numbered(3, episode_id="x")], "mine")

    @pytest.mark.parametrize("thing", [3, {"a": np.zeros(2)}, None])
    def test_refuses_what_is_no_episode(self, thing: Any) -> None:
        with pytest.raises(SourceError, match=f"episodes: number 1 is a {type(thing).__name__}, expected an Episode"):
            EpisodeList([numbered(1), thing])

    @pytest.mark.parametrize("odd", range(3))
    def test_an_odd_episode_does_not_decide_for_the_others(self, odd: int) -> None:
        episodes = [
            Episode({"a": np.zeros(2, np.float32), **({"b": np.zeros(2)} if number == odd else {})})
            for number in range(3)
        ]
        source = EpisodeList([*episodes, Episode({"a": np.zeros((2, 4))}), Episode({})])
        assert source.spec() == {"a": ArraySpec((), np.dtype(np.float32))}
        assert {(notice.path, notice.count, notice.is_note) for notice in source.notices} == {
            ("a", 1, True),
            ("b", 1, True),
        }
        assert EpisodeList(episodes[:odd]).notices == ()


# Sources that keep images encoded, and those that cannot.

SOURCE = Pictures(episodes())


def encoded_columns(source: object) -> list[str]:
    return [path for path, leaf in flatten(source.spec()).items() if leaf.image is not None]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ((), []),
        ((CAMERA,), [CAMERA]),
        ((WRIST, CAMERA), [CAMERA, WRIST]),
        (("observation",), [CAMERA, WRIST]),
        (("all",), [CAMERA, WRIST]),
        (("all", WRIST), [CAMERA, WRIST]),
    ],
)
@pytest.mark.parametrize("part", [None, 2])
def test_the_columns_that_were_asked_for_hold_files(asked: tuple[str, ...], kept: list[str], part: int | None) -> None:
    source = SOURCE.first(part).with_encoded(asked)
    assert encoded_columns(source) == kept
    assert all(leaf.image in (None, IMAGE) for leaf in flatten(source.spec()).values())
    for episode, decoded in zip(source, SOURCE):
        assert episode.id == decoded.id
        assert {path for path, column in episode.columns.items() if column.dtype == object} == set(kept)
        assert all(file.startswith(b"\x89PNG") for path in kept for file in episode.columns[path])


@pytest.mark.parametrize("path", ["observation/state", "observation/cam", "camera", "all/observation", "observation/"])
def test_a_path_to_no_image_is_refused_with_what_there_is(path: str) -> None:
    with pytest.raises(SourceError) as caught:
        SOURCE.with_encoded((CAMERA, path))
    assert f'pictures: encoded "{path}": expected image columns, which are {CAMERA}, {WRIST}; or "all"' == str(
        caught.value
    )


@pytest.mark.parametrize("part", [None, 1])
def test_a_source_that_cannot_is_refused(part: int | None) -> None:
    source = EpisodeList(episodes()).first(part)
    assert source.images() == {}
    with pytest.raises(
        SourceError, match="encoded: has no step columns whose JPEG or PNG files can be kept as they are"
    ):
        source.with_encoded(("all",))
    assert source.with_encoded(()) is source


def test_a_shard_keeps_its_files() -> None:
    assert np.array_equal([len(episode) for episode in SOURCE.shard(1, 2).with_encoded(("all",))], [3])
