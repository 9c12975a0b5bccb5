"""Items of a whole source in a random order: every epoch a permutation, the same by whatever windows it is read, and resumed anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode, local, mix
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.learner.local.options import GLOBAL
from rlds2reverb.learner.local.orders import Permutation
from tests.support import strategies
from tests.support.profiles import examples
from tests.unit.learner.local.test_local import assert_resumes, assert_same, bad, keys_of, of_lengths
from tests.unit.push.test_run_encoded import CAMERA, Pictures
from tests.unit.push.test_run_encoded import episodes as pictures

VIEWS = ("two_step", "sequence:length=3,stride=2,pad_end=true", "episode", "n_step:n=2,early=true", "transition")


def shuffled(source: Any, **options: Any) -> Any:
    return local(source, shuffle=GLOBAL, **options)


class Reading(EpisodeList):
    """Counts how often each episode is read by its number."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        super().__init__(episodes, "reading")
        self.reads = [0] * len(episodes)

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        assert list(numbers) == sorted(set(numbers))
        for number, episode in super().at(numbers):
            self.reads[number] += 1
            yield number, episode


# The permutation.


@given(st.integers(1, 300), st.integers(0, 9), st.data())
def test_a_permutation_has_each_number_once_and_any_part_of_it_can_be_computed(
    count: int, name: int, data: st.DataObject
) -> None:
    whole = Permutation(count, str(name)).at(0, count)
    assert sorted(whole.tolist()) == list(range(count))
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    assert Permutation(count, str(name)).at(start, stop).tolist() == whole[start:stop].tolist()


@pytest.mark.parametrize("count", [4, 5])
def test_all_pairs_of_neighbours_are_equally_likely(count: int) -> None:
    """Chi-squared of 11 or 19 degrees of freedom is over 55 in one of 40,000 cases or fewer."""
    drawn = 100 * count * (count - 1)
    pairs = np.zeros((count, count))
    for number in range(drawn):
        first, second = Permutation(count, str(number)).at(0, 2)
        pairs[first, second] += 1
    off_diagonal = pairs[~np.eye(count, dtype=bool)]
    assert off_diagonal.sum() == drawn
    assert (np.square(off_diagonal - 100) / 100).sum() < 55


def test_every_item_is_equally_likely_at_every_position() -> None:
    """Chi-squared of 81 degrees of freedom is over 145 in one of 50,000 cases."""
    source = of_lengths(3, 5, 2, 4)
    place = {key: number for number, key in enumerate(keys_of(local(source)))}
    counts = np.zeros((10, 10))
    for number, key in enumerate(keys_of(shuffled(source, epochs=600))):
        counts[number % 10, place[key]] += 1
    assert (np.square(counts - 60) / 60).sum() < 145


# Epochs of a source.


@given(st.data())
@examples(20, 100)
def test_an_epoch_is_a_permutation_of_exactly_the_items_that_a_push_makes(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    view, size = data.draw(st.sampled_from(VIEWS)), data.draw(st.integers(1, 9))
    allow = ("last_observation_shared",)
    options: dict[str, Any] = {"view": view, "batch_size": size, "on_invalid": "skip", "allow": allow}
    options["last_observation"] = data.draw(st.sampled_from(["as_recorded", "drop"]))
    source, seed = of_lengths(*lengths), data.draw(st.integers(0, 99))
    whole = keys_of(local(source, **options))
    made = shuffled(source, **options, seed=seed, epochs=2)
    batches = list(made)
    keys = keys_of(batches)
    assert sorted(keys[: len(whole)]) == sorted(keys[len(whole) :]) == sorted(whole)
    assert [batch.size for batch in batches[:-1]] == [size] * (len(batches) - 1)
    in_windows = list(shuffled(source, **options, seed=seed, epochs=2, shuffle_bytes=data.draw(st.integers(1, 20_000))))
    for at_once, other in zip(batches, in_windows, strict=True):
        assert_same(at_once, other, made.structure)
        np.testing.assert_array_equal(at_once.info.table_size, other.info.table_size)


def test_items_are_those_of_a_table_to_the_bit() -> None:
    source = of_lengths(4, 7, 3)
    in_order = {int(batch.info.key[0]): batch for batch in local(source, batch_size=1)}
    made = shuffled(source, batch_size=1)
    for batch in made:
        assert_same(batch, in_order.pop(int(batch.info.key[0])), made.structure)
    assert not in_order


def test_epochs_and_seeds_have_orders_of_their_own_and_a_seed_repeats_its() -> None:
    source = of_lengths(30, 30)
    keys = keys_of(shuffled(source, epochs=2))
    assert keys == keys_of(shuffled(source, epochs=2))
    assert keys[:58] != keys[58:]
    assert keys[:58] != keys_of(shuffled(source, seed=1))
    made = shuffled(source)
    assert keys == keys_of(made) + (made.restart(), keys_of(made))[1]


def test_the_info_says_from_how_many_items_one_was_drawn() -> None:
    (batch,) = shuffled(of_lengths(4, 5))
    assert batch.info.table_size.tolist() == [7, 6, 5, 4, 3, 2, 1]
    np.testing.assert_allclose(batch.info.probability * batch.info.table_size, 1)
    assert batch.info.times_sampled.tolist() == [1] * 7


def test_an_episode_is_read_once_where_the_items_fit_and_once_a_window_else() -> None:
    source = Reading(of_lengths(*[9] * 40))
    item = sum(column.nbytes for column in _columns(next(iter(shuffled(source, batch_size=1)))))
    source.reads[:] = [0] * 40
    list(shuffled(source, batch_size=64))
    assert source.reads == [1] * 40
    source.reads[:] = [0] * 40
    list(shuffled(source, batch_size=4, shuffle_bytes=80 * item))
    windows = (
        1 + -(-40 * 8 // 72) + 1
    )  # a first one of a batch; then as many items as 0.9 of the bytes hold; a few may be drawn again
    assert max(source.reads) <= windows
    assert sum(source.reads) > 40


def _columns(batch: Any) -> list[Any]:
    return [getattr(batch.data, name) for name in batch.data._fields if hasattr(getattr(batch.data, name), "nbytes")]


# Bad episodes.


def test_a_bad_episode_is_passed_over_and_reported_once(tmp_path: Path) -> None:
    report = tmp_path / "bad.jsonl"
    source = [*of_lengths(4, 4), bad(7), *of_lengths(2, 2, 3)[2:], strategies.episode(np.random.default_rng(9), 4)]
    allow = ("last_observation_shared",)
    whole = keys_of(local(source, on_invalid="skip", allow=allow))
    made = shuffled(
        source, on_invalid="quarantine", quarantine=report, allow=allow, epochs=3, batch_size=2, shuffle_bytes=400
    )
    keys = keys_of(made)
    epochs = [keys[number * len(whole) : (number + 1) * len(whole)] for number in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(whole)] * 3
    assert len(report.read_text().splitlines()) == 1
    with pytest.raises(InvalidEpisode, match="is_last"):
        list(shuffled(source))


@pytest.mark.parametrize("rows", [0, 1])
def test_an_episode_too_short_for_any_item_is_as_bad_as_in_order(rows: int) -> None:
    one = strategies.episode(np.random.default_rng(5), 1)
    source = [*of_lengths(4), replace(one, columns={path: column[:rows] for path, column in one.columns.items()})]
    orders: list[int | str] = [0, GLOBAL]
    for shuffle in orders:
        with pytest.raises(InvalidEpisode):
            list(local(source, shuffle=shuffle))


def test_an_episode_with_more_items_than_its_length_allows_ends_it() -> None:
    class Wrong(EpisodeList):
        def episode_lengths(self) -> list[int]:
            return [4, 2]

    with pytest.raises(SourceError, match="episode 1: makes 3 items; expected at most 1"):
        list(shuffled(Wrong(of_lengths(4, 4))))


# Where it stands.


@given(st.data())
@examples(12, 100)
def test_restored_at_every_position_it_gives_the_same_tail(data: st.DataObject) -> None:
    source: list[Episode] = of_lengths(*data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=6)))
    if data.draw(st.booleans()):
        source.insert(data.draw(st.integers(0, len(source))), bad(77))
    options: dict[str, Any] = {
        "view": data.draw(st.sampled_from(VIEWS)),
        "batch_size": data.draw(st.integers(1, 9)),
        "epochs": data.draw(st.integers(1, 3)),
        "seed": data.draw(st.integers(0, 5)),
        "on_invalid": "skip",
        "allow": ("last_observation_shared",),
    }
    sizes = st.sampled_from([1, 2_000, 1 << 20])  # the order does not depend on them
    assert_resumes(data, lambda: shuffled(source, **options, shuffle_bytes=data.draw(sizes)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"place": -1}, "place is -1"),
        ({"place": 10**9}, "other data"),
        ({"drawn": "x"}, "drawn is 'x'"),
        ({"bad": 3}, "bad is 3"),
        ({"bad": [1.5]}, "bad is 1.5"),
        ({"bad": [2]}, "other data"),
        ({"ids": None}, "other data"),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_is_changed(change: dict[str, Any], said: str) -> None:
    made = shuffled(of_lengths(5, 6), batch_size=6)
    made.next_batch()
    state, fresh = made.state(), shuffled(of_lengths(5, 6), batch_size=6)
    with pytest.raises(ConfigError, match=said):
        fresh.restore({**state, **change})
    assert keys_of(fresh) == keys_of(shuffled(of_lengths(5, 6)))


def test_a_state_of_another_order_or_of_other_data_is_refused() -> None:
    made = shuffled(of_lengths(5, 6), batch_size=6)
    made.next_batch()
    others: list[tuple[dict[str, Any], str]] = [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"shuffle": 9}, "shuffle was 'global', is 9"),
    ]
    for options, said in others:
        with pytest.raises(ConfigError, match=said):
            local(of_lengths(5, 6), batch_size=6, **{"shuffle": GLOBAL, **options}).restore(made.state())
    with pytest.raises(ConfigError, match="other data under the same name"):
        shuffled(of_lengths(6, 5), batch_size=6).restore(made.state())
    renamed = [replace(length, id=f"another {length.id}") for length in of_lengths(5, 6)]
    with pytest.raises(ConfigError, match="other data under the same name"):
        shuffled(renamed, batch_size=6).restore(made.state())


# What it cannot do.


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("mix:bundled:cartpole@train[:3]|bundled:cartpole@train[3:5]", {}, "rlds2reverb.mix"),
        (of_lengths(4), {"view": "across_episodes:length=2"}, "depend on the episodes before; use a shuffle buffer"),
        (of_lengths(4), {"on_invalid": "skip"}, 'allow=\\("last_observation_shared",\\)'),
        (of_lengths(4), {"shuffle": "all"}, 'or "global"'),
        (of_lengths(4), {"shuffle_bytes": 0}, "shuffle_bytes 0"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_way_out(source: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        local(source, **{"shuffle": GLOBAL, **options})


def test_a_view_that_does_not_count_its_items_is_refused() -> None:
    class Whole:
        label = "whole"

        def __init__(self) -> None:
            self._view = local(of_lengths(3), "episode")._ready.outputs[0].view

        def signature(self, step_spec: Any, metadata_spec: Any = ()) -> Any:
            return self._view.signature(step_spec)

        def reads(self, step_spec: Any) -> tuple[str, ...]:
            return self._view.reads(step_spec)

        def cut(self, episode: Episode) -> Any:
            return self._view.cut(episode)

    assert len(keys_of(local(of_lengths(3, 4), Whole()))) == 2
    with pytest.raises(ConfigError, match="does not say how many items"):
        shuffled(of_lengths(3, 4), view=Whole())


# Beside other parts.


def test_parts_of_a_mix_may_have_it() -> None:
    sources = of_lengths(9, 9), of_lengths(20, 20)[1:]
    made = mix([(shuffled(source, seed=3), 1) for source in sources], 8, samples=16, seed=1)
    first = made.next_batch()
    state, second = made.state(), made.next_batch()
    again = mix([(shuffled(source, seed=3), 1) for source in sources], 8, samples=16, seed=1)
    again.restore(json.loads(json.dumps(state)))
    assert keys_of([again.next_batch()]) == keys_of([second])
    assert first.size == second.size == 8


def test_encoded_images_are_decoded_as_in_order() -> None:
    source = EpisodeList(list(Pictures(pictures()).with_encoded((CAMERA,))))
    in_order = {int(batch.info.key[0]): batch for batch in local(source, batch_size=1)}
    made = shuffled(source, batch_size=1, shuffle_bytes=1000)
    for batch in made:
        assert_same(batch, in_order[int(batch.info.key[0])], made.structure)
