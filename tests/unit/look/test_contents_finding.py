"""Episodes are found by number and by name, and no more of the source is read than that takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode, KnownEpisode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import IsKnown, unless_known
from rlds2reverb.look.contents import find
from rlds2reverb.push.keys import EpisodeNames
from tests.support.push.in_memory import Server, episodes, planned


class Counted(EpisodeList):
    """A list that counts what is read of it, and may not tell how long it is."""

    def __init__(self, episodes: list[Episode], knows: bool = True) -> None:
        super().__init__(episodes, "list")
        self.seen: list[str] = []
        self.knows = knows

    @property
    def episode_count(self) -> int | None:
        return super().episode_count if self.knows else None

    def __iter__(self) -> Iterator[Episode]:
        for episode in super().__iter__():
            self.seen.append(episode.id)
            yield episode

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        return unless_known(self._episodes[start:stop], is_known)


def source(count: int = 5, knows: bool = True) -> Counted:
    return Counted(
        [
            Episode({"reward": np.arange(3.0)}, {"nested/episode_id": f"kitchen-{n}".encode()}, f"data#{n}")
            for n in range(count)
        ],
        knows,
    )


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize(
    ("wanted", "number"),
    [("0", 0), ("4", 4), ("-1", 4), ("-5", 0), ("data#2", 2), ("kitchen-3", 3), ("data#3 (episode_id kitchen-3)", 3)],
)
def test_an_episode_is_found(wanted: str, number: int, knows: bool) -> None:
    found = find(source(knows=knows), wanted)
    assert (found.number, found.episode.id) == (number, f"data#{number}")
    if knows:
        assert found.count == 5


@pytest.mark.parametrize(("wanted", "read"), [("data#1", 2), ("kitchen-0", 1)])
def test_a_name_is_looked_for_no_further_than_to_where_it_is(wanted: str, read: int) -> None:
    among = source()
    find(among, wanted)
    assert len(among.seen) == read


def copies() -> Counted:
    """Lengths 3, 2, 3, 3, 2: three episodes of one content, and two of another."""
    return Counted([Episode({"reward": np.arange(float(rows))}) for rows in (3, 2, 3, 3, 2)])


@pytest.mark.parametrize(
    ("first", "copy", "number"), [(0, "", 0), (0, "#2", 2), (0, "#3", 3), (1, "", 1), (1, "#2", 4)]
)
def test_a_copy_is_found_by_its_own_name(first: int, copy: str, number: int) -> None:
    among = copies()
    name = find(among, str(first)).episode.id
    found = find(among, f"{name}{copy}")
    assert found.number == number
    assert found.episode.id == f"{name}{copy}"
    assert len(among.seen) == number + 1


def test_copies_are_called_what_a_push_calls_them() -> None:
    plan = planned(Server(), episodes(1))
    pushed = [episode.id for episode in EpisodeNames(lambda _: False, plan).read(copies())]
    assert len(set(pushed)) == 5
    assert [find(copies(), name).number for name in pushed] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("copy", ["#1", "#4"])
def test_a_copy_that_is_not_there_tells_close_ones(copy: str) -> None:
    name = find(copies(), "0").episode.id
    with pytest.raises(SourceError, match=f"5 episodes looked at, close to it: .*{name}"):
        find(copies(), f"{name}{copy}")


def test_a_copy_is_found_by_what_messages_call_it() -> None:
    among = Counted([Episode({"reward": np.arange(3.0)}, {"episode_id": name}) for name in ("a", "b")])
    name = find(among, "0").episode.id
    assert find(among, f"{name}#2 (episode_id b)").number == 1


def test_an_id_that_a_caller_gave_gets_no_number() -> None:
    class Twice(Counted):
        """Gives its episodes twice, as no list does."""

        def __iter__(self) -> Iterator[Episode]:
            yield from super().__iter__()
            yield from super().__iter__()

    among = Twice([Episode({"reward": np.arange(3.0)}, id="mine")])
    assert find(among, "mine").number == 0
    with pytest.raises(SourceError, match="no episode has this id or episode_id; 2 episodes looked at"):
        find(among, "mine#2")


def test_a_number_is_passed_over_to_where_the_source_can_do_that() -> None:
    among = source()
    assert find(among, "3").episode.id == "data#3"
    assert among.seen == []


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("wanted", ["5", "-6", "999999999999999999"])
def test_a_number_that_is_not_there_tells_how_many_there_are(wanted: str, knows: bool) -> None:
    with pytest.raises(
        SourceError, match=rf"list: episode {wanted}: expected 0 to 4, or -5 to -1 .*there are 5 episodes"
    ):
        find(source(knows=knows), wanted)


@pytest.mark.parametrize("wanted", ["0", "-1", "a"])
def test_an_empty_source_has_none(wanted: str) -> None:
    with pytest.raises(SourceError, match=r"there is no episode|0 episodes looked at"):
        find(source(0), wanted)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("kitchen-9", "close to it: kitchen-"),
        ("data#99", "close to it: data#"),
        ("zzz", "the first is called: data#0"),
        ("1" * 19, "the first is called: data#0"),
    ],
)
def test_a_name_that_is_not_there_tells_close_ones(wanted: str, told: str) -> None:
    with pytest.raises(SourceError) as refused:
        find(source(), wanted)
    assert "5 episodes looked at" in str(refused.value)
    assert told in str(refused.value)


def numbered(count: int = 4) -> Counted:
    """Episodes whose own names are numbers, as RLlib's are."""
    episodes = [Episode({"reward": np.arange(3.0)}, {"episode_id": str(700 + n)}, f"data#{n}") for n in range(count)]
    return Counted(episodes)


def test_a_number_that_is_no_place_may_be_a_name() -> None:
    assert find(numbered(), "702").number == 2
    assert find(numbered(), "2").number == 2
    with pytest.raises(SourceError, match=r'episode "799": no episode has this id or episode_id; 4 episodes looked at'):
        find(numbered(), "799")


def test_a_hostile_name_is_told_harmlessly() -> None:
    hostile: Any = "\x1b[2J\u202e"
    with pytest.raises(SourceError) as refused:
        find(source(), hostile)
    assert str(refused.value).isprintable()
