"""Draws with replacement, by chance or by priority, and slices with starts of their own each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Local, SliceSpec, local
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.local.orders import Draws
from rlds2reverb.specs import flatten


def episodes(*lengths: int) -> list[Episode]:
    """Observations tell the episode and the step; priorities are 1 + the step, 0 in every third episode."""
    made = []
    for number, length in enumerate(lengths):
        step = np.arange(length)
        columns: dict[str, Array] = {
            "observation": np.stack([np.full(length, number), step], 1).astype(np.float32),
            "action": 100 * number + step,
            "reward": np.ones(length, np.float32),
            "discount": np.ones(length, np.float32),
            "priority": np.zeros(length) if number % 3 == 2 else 1.0 + step,
            "is_first": step == 0,
            "is_last": step == length - 1,
            "is_terminal": np.zeros(length, bool),
        }
        made.append(Episode(columns, {}, f"episode {number}"))
    return made


LENGTHS = (5, 9, 6, 3)
VIEW = "transition:priority=priority"


def is_likely(counts: Array, shares: Array) -> bool:
    """Whether counts are near their shares: within six standard deviations each."""
    expected = counts.sum() * shares
    return bool((np.abs(counts - expected) <= 6 * np.sqrt(expected * (1 - shares)) + 1e-9).all())


@given(st.integers(1, 40), st.integers(0, 3), st.integers(0, 60))
def test_draws_are_a_function_of_their_place(count: int, epoch: int, start: int) -> None:
    for cumulative in (None, np.cumsum(np.arange(count) % 3 + 0.0 + (count < 3))):
        draws = Draws(count, cumulative, "seed", str(epoch))
        whole = draws.at(0, 80)
        assert ((whole >= 0) & (whole < count)).all()
        np.testing.assert_array_equal(draws.at(start, 80), whole[start:])
        if cumulative is not None:
            assert np.diff(cumulative, prepend=0)[whole].all()


def test_each_item_is_equally_likely() -> None:
    with local(episodes(*LENGTHS), VIEW, 19, sampler="uniform", epochs=400) as batches:
        data = list(batches)
    actions, counts = np.unique(np.concatenate([batch.data["action"] for batch in data]), return_counts=True)
    assert len(actions) == sum(LENGTHS) - len(LENGTHS)
    assert counts.sum() == 400 * len(actions)
    assert is_likely(counts, np.full(len(actions), 1 / len(actions)))
    np.testing.assert_allclose(data[0].info.probability, 1 / 19)
    draws = np.concatenate([batch.info.times_sampled for batch in data])
    assert len(np.unique(draws)) == len(draws)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_an_item_is_as_likely_as_its_priority(exponent: float) -> None:
    with local(
        episodes(*LENGTHS),
        VIEW,
        19,
        sampler="prioritized",
        exponent=exponent,
        weights="table_min",
        beta=0.4,
        epochs=400,
    ) as batches:
        data = list(batches)
    actions = np.concatenate([batch.data["action"] for batch in data])
    numbers, counts = np.unique(actions, return_counts=True)
    assert not (numbers // 100 == 2).any()  # of priority 0
    raised = (1.0 + numbers % 100) ** exponent
    assert is_likely(counts, raised / raised.sum())
    for batch in data[:5]:
        own = 1.0 + batch.data["action"] % 100
        np.testing.assert_allclose(batch.info.priority, own)
        np.testing.assert_allclose(batch.info.probability, own**exponent / raised.sum())
        assert batch.info.weight is not None
        np.testing.assert_allclose(batch.info.weight, own ** (-exponent * 0.4), rtol=1e-6)
        assert (batch.info.table_size == 19).all()


def test_items_of_priority_0_come_only_while_all_are_0() -> None:
    only_zeros = [episode for episode in episodes(5, 5, 6, 5, 5, 4) if not episode.columns["priority"].any()]
    with local(only_zeros, VIEW, 8, sampler="prioritized") as batches:
        data, info = next(batches)
    assert set(data["action"] // 100) <= {2, 5}
    np.testing.assert_allclose(info.probability, 1 / 8)


def test_episodes_that_are_left_out_are_never_drawn() -> None:
    held = episodes(*LENGTHS)
    held[1].columns["observation"].flags.writeable = True
    held[1].columns["observation"][3] = np.nan
    for sampler in ("uniform", "prioritized"):
        with local(
            held, VIEW, 16, sampler=sampler, on_invalid="skip", allow=("last_observation_shared",), epochs=20
        ) as batches:
            drawn = np.concatenate([batch.data["action"] for batch in batches])
        assert set(drawn // 100) == ({0, 2, 3} if sampler == "uniform" else {0, 3})


@pytest.mark.parametrize("strict", [True, False])
def test_each_episode_gives_one_slice_an_epoch(strict: bool) -> None:
    """As SliceSamplerWithoutReplacement: a trajectory comes once, with a start drawn anew; shorter ones are left out if strict."""
    starts: dict[int, list[int]] = {}
    with local(
        episodes(*LENGTHS), batch_size=4, slices=SliceSpec(5, strict=strict), shuffle="global", epochs=300
    ) as batches:
        seen = [batch for batch in batches if batch.size == 4 or not strict]
    for batch in seen:
        observation, mask = batch.data.observation, batch.info.mask
        assert mask is not None
        for row in range(batch.size):
            number, start = int(observation[row, 0, 0]), int(observation[row, 0, 1])
            starts.setdefault(number, []).append(start)
            own = observation[row][mask[row]]
            np.testing.assert_array_equal(own[:, 1], start + np.arange(len(own)))
            assert (own[:, 0] == number).all()
            assert len(own) == min(5, LENGTHS[number])
    eligible = [number for number, length in enumerate(LENGTHS) if length >= 5 or not strict]
    assert sorted(starts) == eligible
    for number, drawn in starts.items():
        counts = np.bincount(drawn, minlength=max(1, LENGTHS[number] - 4))
        assert is_likely(counts, np.full(len(counts), 1 / len(counts)))
        assert len(drawn) in range(298, 301)


def test_slices_of_episodes_that_are_drawn_have_starts_of_their_own() -> None:
    """As SliceSampler: each trajectory is equally likely, and each start in it; an episode that comes twice has two starts."""
    with local(episodes(12, 5), batch_size=64, slices=SliceSpec(5), sampler="uniform", epochs=None) as batches:
        drawn = [next(batches) for _ in range(40)]
    observation = np.concatenate([batch.data.observation[:, 0] for batch in drawn])
    assert is_likely(np.bincount(observation[:, 0].astype(int)), np.array([0.5, 0.5]))
    starts = np.bincount(observation[observation[:, 0] == 0, 1].astype(int), minlength=8)
    assert is_likely(starts, np.full(8, 1 / 8))


CASES: dict[str, dict[str, Any]] = {
    "uniform": {"view": VIEW, "sampler": "uniform"},
    "prioritized": {"view": VIEW, "sampler": "prioritized", "exponent": 0.6},
    "slices": {"slices": SliceSpec(4), "shuffle": "global"},
    "slices drawn": {"slices": SliceSpec(4, strict=False), "sampler": "uniform"},
    "slices in order": {"slices": SliceSpec(4), "shuffle": 2},
}


def flat(batches: Local) -> list[bytes]:
    return [
        batch.info.key.tobytes() + (b"" if batch.info.start is None else batch.info.start.tobytes())
        for batch in batches
    ]


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12)
@given(st.integers(0, 9), st.sampled_from([1 << 20, 200]))
def test_restored_at_every_position_it_gives_the_same_tail(case: str, stop: int, shuffle_bytes: int) -> None:
    def opened() -> Local:
        return local(episodes(*LENGTHS), batch_size=3, epochs=3, shuffle_bytes=shuffle_bytes, **CASES[case])

    with opened() as whole:
        given_batches = flat(whole)
    with opened() as first:
        for _ in range(min(stop, len(given_batches))):
            first.next_batch()
        state = first.state()
    with opened() as second:
        second.restore(state)
        assert flat(second) == given_batches[stop:]


@pytest.mark.parametrize("case", ["uniform", "prioritized", "slices drawn"])
def test_ranks_share_the_draws(case: str) -> None:
    with local(episodes(*LENGTHS), batch_size=4, epochs=2, **CASES[case]) as whole:
        keys = np.concatenate([batch.info.key for batch in whole])
    of_ranks = []
    for rank in range(2):
        with local(episodes(*LENGTHS), batch_size=2, epochs=2, rank=rank, world_size=2, **CASES[case]) as batches:
            of_ranks.append(np.concatenate([batch.info.key for batch in batches]))
    assert len(of_ranks[0]) == len(of_ranks[1])
    assert sorted(np.concatenate(of_ranks).tolist()) == sorted(keys[: 2 * len(of_ranks[0])].tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "best"}, "sampler"),
        ({"sampler": "uniform", "shuffle": True}, "draws items, so shuffle"),
        ({"sampler": "uniform", "exponent": 0.5}, 'exponent goes with sampler="prioritized"'),
        ({"weights": "batch_max", "beta": 0.4}, 'weights goes with sampler="prioritized"'),
        ({"sampler": "prioritized", "exponent": -1.0}, "exponent"),
        ({"sampler": "prioritized", "weights": "batch_max"}, "weights and beta go together"),
        ({"sampler": "prioritized", "weights": "batch_max", "beta": lambda _: 0.4}, "expected a number"),
        ({"slices": 5}, "expected a SliceSpec"),
        ({"slices": SliceSpec(5, per_episode=2)}, "one slice of each episode"),
        ({"slices": SliceSpec(5, by="step")}, "one slice of each episode"),
        ({"slices": SliceSpec(5), "world_size": 2}, "strict=False"),
        ({"sampler": "uniform", "view": "across_episodes"}, 'sampler="uniform"'),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        local(episodes(*LENGTHS), **options)


def test_slices_that_no_episode_is_long_enough_for_end_or_are_refused() -> None:
    with local(episodes(*LENGTHS), batch_size=2, slices=SliceSpec(50), epochs=3) as batches:
        assert list(batches) == []
    with local(episodes(*LENGTHS), batch_size=2, slices=SliceSpec(50), epochs=None) as batches:
        with pytest.raises(ConfigError, match="gave nothing"):
            next(batches)


def test_a_state_of_another_sampler_is_refused() -> None:
    with local(episodes(*LENGTHS), VIEW, 4, sampler="prioritized", exponent=0.5) as batches:
        next(batches)
        state = batches.state()
    with local(episodes(*LENGTHS), VIEW, 4, sampler="prioritized", exponent=0.6) as other:
        with pytest.raises(ConfigError, match="exponent"):
            other.restore(state)


@pytest.mark.parametrize("order", [{"shuffle": "global"}, {"sampler": "uniform"}, {"sampler": "prioritized"}])
@pytest.mark.parametrize("lengths", [LENGTHS, (7, 7, 7, 7)])
@pytest.mark.parametrize("has_text", [False, True])
@pytest.mark.parametrize("ranks", [{}, {"rank": 1, "world_size": 2}])
def test_slices_do_not_depend_on_what_is_kept_in_memory(
    order: dict[str, Any], lengths: tuple[int, ...], has_text: bool, ranks: dict[str, Any]
) -> None:
    """With the fewest bytes an episode is prepared again for each slice; with most no episode is, after the first epoch."""
    source = episodes(*lengths)
    if has_text:
        for number, episode in enumerate(source):
            texts = np.array([f"{number} {step}".encode() for step in range(len(episode))], object)
            source[number] = Episode({**episode.columns, "says": texts}, {}, episode.id)
    given_batches = []
    for most_bytes in (1, 700, 1 << 20):
        with local(
            source,
            "episode:extras=says" if has_text else "episode",
            batch_size=3,
            slices=SliceSpec(4, strict=False),
            epochs=6,
            shuffle_bytes=most_bytes,
            **order,
            **ranks,
        ) as batches:
            given_batches.append(list(batches))
    first, *others = given_batches
    assert len(first) >= 4
    for other in others:
        for batch, same in zip(first, other, strict=True):
            _assert_equal(batch, same)
    for batch in first:  # a slice is rows of one episode, one after the other
        seen, mask = batch.data.observation, batch.info.mask
        assert mask is not None
        assert (seen[..., 0] == seen[:, :1, 0])[mask].all()
        assert (np.diff(seen[..., 1], axis=1)[mask[:, 1:]] == 1).all()


def _assert_equal(batch: Any, same: Any) -> None:
    for values, others in zip([*batch.info], [*same.info], strict=True):
        np.testing.assert_array_equal(values, others)
    columns, other_columns = flatten(batch.data), flatten(same.data)
    assert columns.keys() == other_columns.keys()
    for path, column in columns.items():
        np.testing.assert_array_equal(column, other_columns[path], path)


def test_batches_of_slices_do_not_change_with_later_ones() -> None:
    with local(episodes(9), batch_size=4, slices=SliceSpec(9), sampler="uniform", epochs=None) as batches:
        first = next(batches)
        kept = first.data.observation.copy()
        first.data.observation[:] = -1
        np.testing.assert_array_equal(next(batches).data.observation, kept)
