"""Mixes: every episode once, or as InterleavedDataset does; the order is a function of the seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode, Notice, gaps_around, name_of_whole
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import Filtered
from rlds2reverb.formats.filters import KeepRanges
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import COMMON, MixedSource
from rlds2reverb.formats.source import as_source
from rlds2reverb.specs import ImageSpec, flatten
from tests.support.profiles import examples


def make_episode(name: str, **more: Any) -> Episode:
    flags = {"is_first": np.array([True, False]), "is_last": np.array([False, True])}
    columns: dict[str, Any] = {"observation": np.zeros((2, 3), np.float32), "action": np.zeros(2, np.int64), **flags}
    return Episode({**columns, **more}, {"name": name}, name)


def part(name: str, count: int, **more: Any) -> EpisodeList:
    return EpisodeList([make_episode(f"{name}{at}", **more) for at in range(count)], name)


class Uncounted:
    """A part that does not know how many episodes it has."""

    episode_count = None

    def __init__(self, inner: EpisodeList) -> None:
        self._inner, self.name = inner, inner.name
        self.notices = (Notice("odd", "something"),)

    def spec(self) -> Any:
        return self._inner.spec()

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._inner)

    def shard(self, index: int, count: int) -> Any:
        return Uncounted(self._inner.shard(index, count))


def ids(source: Any) -> list[str]:
    return [episode.id for episode in source]


@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.1, 9), min_size=4, max_size=4),
    seed=st.integers(0, 99),
    first=st.integers(0, 26),
    length=st.none() | st.integers(1, 20),
    is_counted=st.booleans(),
)
def test_one_pass_gives_every_episode_once_and_any_position_the_same_tail(
    counts: list[int], weights: list[float], seed: int, first: int, length: int | None, is_counted: bool
) -> None:
    counts = [max(1, count) for count in counts]
    parts: list[Any] = [part("abcd"[at], count) for at, count in enumerate(counts)]
    parts = parts if is_counted else list(map(Uncounted, parts))
    mix = MixedSource(parts, weights[: len(counts)], seed, length=length)
    whole = ids(mix)
    if length is None:
        assert Counter(whole) == Counter(name for each in parts for name in ids(each))
        assert mix.episode_count == (sum(counts) if is_counted else None)
        for each in parts:
            assert [name for name in whole if name.startswith(each.name)] == ids(each)
    else:
        assert len(whole) == length == len(set(whole)) == mix.episode_count
    assert [tally.episodes for tally in mix.tallies] == [
        sum(name.startswith(each.name) for name in whole) for each in parts
    ]
    assert ids(mix.episodes(first)) == whole[first:]
    assert ids(mix.shard(0, 2)) == whole[::2]
    assert ids(mix.shard(1, 3).episodes(2)) == whole[1::3][2:]


def test_a_nominal_length_draws_as_il_representations_does() -> None:
    rng = np.random.RandomState(5)
    drawn = "".join("ab"[rng.choice(2)] for _ in range(12))
    whole = ids(MixedSource([part("a", 2), part("b", 20)], seed=5, length=12))
    assert "".join(name[0] for name in whole) == drawn
    assert [name for name in whole if name[0] == "a"][:5] == ["a0", "a1", "a0|2", "a1|2", "a0|3"]


def test_weights_are_shares() -> None:
    whole = ids(MixedSource([part("a", 4000), part("b", 4000)], [3, 1]))[:4000]
    assert 2850 < sum(name[0] == "a" for name in whole) < 3150


def test_the_same_seed_gives_the_same_order_and_another_one_another() -> None:
    orders = [ids(MixedSource([part("a", 9), part("b", 9)], seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_an_empty_part_of_one_pass_is_no_matter_and_of_a_nominal_length_an_error() -> None:
    empty = part("a", 1).first(0)
    assert ids(MixedSource([part("b", 2), empty])) == ["b0", "b1"]
    with pytest.raises(SourceError, match="has no episode, so a mix of a nominal length cannot continue"):
        ids(MixedSource([part("b", 2), empty], length=50))


def test_differences_are_named_for_every_column() -> None:
    other = part("b", 1, observation=np.zeros((2, 4), np.float32), reward=np.zeros(2))
    with pytest.raises(SourceError) as caught:
        MixedSource([part("a", 1), other]).spec()
    assert "b: observation: expected float32[3], found float32[4]" in str(caught.value)
    assert "b: reward" in str(caught.value)


def test_common_columns_are_those_that_all_parts_have_alike() -> None:
    mix = MixedSource([part("a", 1), part("b", 1, reward=np.zeros(2))], columns=COMMON)
    assert set(flatten(mix.spec())) == {"observation", "action", "is_first", "is_last"}
    assert all(set(episode.columns) == set(flatten(mix.spec())) for episode in mix)
    assert [(notice.code, notice.text) for notice in mix.notices] == [
        ("not_common", "left out, for not all parts have them alike: reward")
    ]
    with pytest.raises(SourceError, match="action"):
        MixedSource([part("a", 1), part("b", 1, action=np.zeros(2))], columns=COMMON).spec()


def test_features_are_those_that_all_parts_have_alike() -> None:
    other = EpisodeList([Episode(make_episode("x").columns, {"name": "x", "seed": 3}, "x")], "other")
    mix = MixedSource([other, part("a", 1)])
    assert set(flatten(mix.metadata_spec())) == {"name"}
    assert [set(episode.metadata) for episode in mix] == [{"name"}, {"name"}]


def test_remarks_of_parts_come_with_their_names() -> None:
    mix = MixedSource([as_source(Uncounted(part("a", 1))), part("b", 1)])
    assert [notice.text for notice in mix.notices] == ["a: something"]
    assert mix.shard(0, 2).notices == mix.notices


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1]}, "expected 2 positive numbers"),
        ({"weights": [1, 0]}, "expected 2 positive numbers"),
        ({"weights": [1, float("inf")]}, "expected 2 positive numbers"),
        ({"weights": [1e308, 1e308]}, "expected 2 positive numbers with a finite sum"),
        ({"weights": [1, 10**400]}, "expected 2 positive numbers with a finite sum"),
        ({"seed": -1}, "seed -1"),
        ({"length": 0}, "length 0"),
        ({"columns": "some"}, 'columns "some"'),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixedSource([part("a", 1), part("b", 1)], **options)


def test_no_parts_and_a_part_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="no parts"):
        MixedSource([])
    one = part("a", 1)
    with pytest.raises(SourceError, match="a is there twice"):
        MixedSource([one, one])


@pytest.mark.parametrize("seed", range(3))
def test_what_two_parts_have_is_there_twice(seed: int) -> None:
    whole = [Episode({**make_episode("").columns, "reward": np.full(2, at)}) for at in range(6)]
    mix = MixedSource([EpisodeList(whole[:4], "here"), EpisodeList(whole[3:], "there")], seed=seed)
    assert sorted(ids(mix)) == sorted(episode.id for episode in (*whole[:4], *whole[3:]))


def test_lists_without_names_can_be_mixed() -> None:
    lists = [
        [Episode({**make_episode("").columns, "reward": np.full(2, at)}) for at in numbers]
        for numbers in ((1, 2), (3,))
    ]
    found = list(MixedSource(list(map(open_source, lists))))
    assert sorted(int(episode.columns["reward"][0]) for episode in found) == [1, 2, 3]
    assert len({episode.id for episode in found}) == 3


class WithImages(EpisodeList):
    """A part whose images can be kept encoded."""

    def __init__(self, name: str) -> None:
        super().__init__(list(part(name, 2)), name)

    def images(self) -> dict[str, ImageSpec]:
        return {"observation": ImageSpec((2, 3, 3), np.dtype(np.uint8))}

    def encoded(self, _: Any) -> WithImages:
        return WithImages(self.name)


def test_what_parts_gave_is_told_of_an_encoded_mix_as_well() -> None:
    mix = MixedSource([WithImages("a"), WithImages("b")])
    assert len(list(mix.with_encoded(["observation"]))) == 4
    assert [(tally.name, tally.episodes, tally.steps) for tally in mix.tallies] == [("a", 2, 4), ("b", 2, 4)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mix:", "expected mix:SOURCE"),
        ("mix:bundled:cartpole||bundled:half_cheetah", "expected mix:SOURCE"),
        ("mix:|?seed=1", "expected mix:SOURCE"),
        ("mix:bundled:cartpole|?seed=x", "expected a whole number"),
        ("mix:bundled:cartpole|?weights=a+b", "expected numbers"),
        ("mix:bundled:cartpole|?weights=1+2", "expected 1 positive numbers"),
        ("mix:bundled:nothing|bundled:cartpole", "nothing"),
        ("mix:bundled:cartpole|bundled:cartpole", "there twice"),
    ],
)
def test_names_without_sense_are_refused(name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(name)


def test_images_that_all_parts_keep_stay_encoded() -> None:
    mix = MixedSource([part("a", 1), part("b", 1)])
    assert mix.images() == {}
    assert mix.shard(0, 2).images() == {}


@given(
    lengths=st.lists(st.integers(2, 9), min_size=2, max_size=5, unique=True),
    seed=st.integers(0, 99),
    further=st.tuples(st.booleans(), st.booleans()),
    length=st.none() | st.integers(6, 20),
)
@examples(40)
def test_runs_of_a_filter_keep_their_gaps_where_columns_are_left_out(
    lengths: list[int], seed: int, further: tuple[bool, bool], length: int | None
) -> None:
    rng = np.random.default_rng(seed)
    parts = []
    for at, has_more in enumerate(further):
        episodes = []
        for rows in lengths:
            numbers = np.arange(rows)
            columns = {
                "observation": rng.normal(size=(rows, 2)),
                "action": rng.normal(size=rows),
                "is_first": numbers == 0,
                "is_last": numbers == rows - 1,
                **({"more": rng.normal(size=rows)} if has_more else {}),
            }
            episodes.append(Episode(columns, {"name": f"{at}{rows}"}))
        whole = EpisodeList(episodes, "ab"[at])
        ranges = {
            recorded.id: [
                [0, int(rng.integers(1, len(recorded) + 1))],
                [int(rng.integers(1, len(recorded))), len(recorded)],
            ]
            for recorded in whole
        }
        parts.append(Filtered(whole, [KeepRanges.of(ranges)]))
    runs = {(run.metadata["name"], run.columns["action"].tobytes()): run for part in parts for run in part}
    mixed = list(MixedSource(parts, columns=COMMON, length=length))
    wholes: dict[str, set[str]] = {}
    for run in mixed:
        of_part = runs[run.metadata["name"], run.columns["action"].tobytes()]
        assert gaps_around(run.id) == gaps_around(of_part.id)
        if any(gaps_around(run.id)):
            wholes.setdefault(run.metadata["name"], set()).add(name_of_whole(run.id))
            is_cut_down = further[int(run.metadata["name"][0])] and not all(further)
            assert ("|common=" in run.id) == is_cut_down  # nothing else counts as stored, or as new, wrongly
            assert run.id.startswith(f"{of_part.id}|common=" if is_cut_down else of_part.id)
    assert all(len(names) == 1 for names in wholes.values())  # by which `choose` draws once for an episode
    if length is None:
        assert len({run.id for run in mixed}) == len(mixed) == len(runs)


def test_mixes_too_deep_within_one_another_are_refused() -> None:
    assert open_source(f"{'mix:' * 16}bundled:cartpole").episode_count
    with pytest.raises(SourceError, match="at most 16 mixes within one another"):
        open_source(f"{'mix:' * 3000}bundled:cartpole")
