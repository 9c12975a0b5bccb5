"""Samplers on a real server: what its probabilities are, what it hands out how often, which items it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("reverb")

import reverb
from replay_server import TableConfig
from replay_server.tables import MinSize

import rlds2reverb
from rlds2reverb.client import Client
from rlds2reverb.episode import Episode
from rlds2reverb.formats.source import spec_of
from rlds2reverb.learner import server_queue
from rlds2reverb.learner.options import SliceSpec
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.views.prioritized import Prioritized, by_return, return_of
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.trajectory import WholeEpisode, table_signature
from tests.support import strategies
from tests.support.forks import Embedded, Forks

EPISODES = [strategies.episode(np.random.default_rng(seed), 5 + seed, episode_id=f"e{seed}") for seed in range(12)]
WHOLE = table_signature(WholeEpisode().signature(filled_spec(spec_of(EPISODES[0]))))
WANTED = {
    "obs": {},
    "new_obs": {"data_col": "obs", "shift": 1},
    "prev_rewards": {"data_col": "rewards", "shift": "-2:-1"},
}
ALLOWED = ["terminal_discount"]


@pytest.fixture(scope="module")
def server_of_samplers(forks: Forks) -> Iterator[Embedded]:
    view = Requirements(WANTED).signature(filled_spec(spec_of(EPISODES[0])))
    tables = [
        TableConfig("prioritized", sampler="prioritized", priority_exponent=0.6, rate_limiter=MinSize(min_size=1)),
        TableConfig("once_fifo", sampler="fifo", max_times_sampled=1),
        TableConfig("once_uniform", sampler="uniform", max_times_sampled=1),
        TableConfig("thrice", sampler="uniform", max_times_sampled=3),
        TableConfig("heap", sampler="max_heap"),
        TableConfig("whole", WHOLE),
        TableConfig("by_starts", WHOLE, sampler="prioritized", priority_exponent=1.0),
        TableConfig("best", WHOLE, remover="min_heap", max_size=4),
        TableConfig("items", view, sampler="fifo", max_times_sampled=1),
        TableConfig("whole_once", WHOLE, sampler="fifo", max_times_sampled=1),
    ]
    with forks.embedded(tables) as running:
        yield running


@pytest.fixture
def learner(server_of_samplers: Embedded) -> Iterator[Client]:
    with rlds2reverb.connect(server_of_samplers.address) as connected:
        yield connected


def fill(server: Embedded, table: str, priorities: list[float]) -> None:
    """Items that hold their number."""
    client = reverb.Client(server.address)
    client.reset(table)
    for number, priority in enumerate(priorities):
        client.insert([np.array(number)], {table: priority})


def values(batches: Any) -> list[int]:
    return [int(value) for (data,), _ in batches for value in np.ravel(data)]


@pytest.mark.parametrize("formula", ["batch_max", "unscaled", "acme", "table_min"])
def test_weights_are_made_of_what_a_server_tells(learner: Client, server_of_samplers: Embedded, formula: str) -> None:
    priorities = [0.5, 1.0, 2.0, 4.0, 8.0]
    fill(server_of_samplers, "prioritized", priorities)
    options: dict[str, Any] = {"min_priority": 0.5} if formula == "table_min" else {}
    with learner.sample("prioritized", 64, samples=256, weights=formula, beta=0.7, **options) as sampler:
        batches = list(sampler)
    total = sum(priority**0.6 for priority in priorities)
    for (data,), info in batches:
        drawn = np.array(priorities)[np.ravel(data)]
        probability = drawn**0.6 / total
        np.testing.assert_allclose(info.probability, probability, rtol=1e-9)
        expected = {
            "batch_max": (5 * probability) ** -0.7 / ((5 * probability) ** -0.7).max(),
            "unscaled": (5 * probability) ** -0.7,
            "acme": (1 / probability) ** 0.7 / ((1 / probability) ** 0.7).max(),
            "table_min": (probability / (0.5**0.6 / total)) ** -0.7,
        }[formula]
        assert info.weight is not None
        np.testing.assert_allclose(info.weight, expected, rtol=1e-5)


def test_priorities_of_0_are_drawn_alike_once_all_are(learner: Client, server_of_samplers: Embedded) -> None:
    fill(server_of_samplers, "prioritized", [0.0, 0.0, 0.0, 0.0])
    _, info = next(learner.sample("prioritized", 32, samples=32, weights="batch_max", beta=1.0))
    assert info.weight is not None
    assert set(info.weight.tolist()) == {1.0}
    assert set(info.probability.tolist()) == {0.25}
    learner.update_priorities("prioritized", info.key[:1], 1.0)
    _, info = next(learner.sample("prioritized", 32, samples=32))
    assert len(set(info.key.tolist())) == 1


def test_heaps_leave_nothing_to_chance_so_weights_are_1(learner: Client, server_of_samplers: Embedded) -> None:
    fill(server_of_samplers, "heap", [1.0, 3.0, 2.0])
    (data,), info = next(learner.sample("heap", 8, samples=8, weights="batch_max", beta=1.0))
    assert set(np.ravel(data).tolist()) == {1}
    assert info.weight is not None
    assert (set(info.probability.tolist()), set(info.weight.tolist())) == ({1.0}, {1.0})


@pytest.mark.parametrize(("table", "epochs"), [("once_fifo", 1), ("once_uniform", 1), ("thrice", 3)])
@pytest.mark.parametrize("streams", [1, 2])
def test_epochs_give_every_item_as_often(
    learner: Client, server_of_samplers: Embedded, table: str, epochs: int, streams: int
) -> None:
    fill(server_of_samplers, table, [1.0] * 60)
    found = values(learner.sample(table, 7, epochs=epochs, streams=streams))
    assert Counter(found) == dict.fromkeys(range(60), epochs)
    if table == "once_fifo" and streams == 1:
        assert found == list(range(60))
    if table != "once_fifo":
        assert found != sorted(found)
    assert learner.tables()[table].current_size == 0


def test_two_learners_share_an_epoch(
    learner: Client, server_of_samplers: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_queue, "LOOK_SECONDS", 0.2)
    fill(server_of_samplers, "once_uniform", [1.0] * 40)
    with learner.sample("once_uniform", 4, epochs=1) as one, learner.sample("once_uniform", 4, epochs=1) as other:
        found = [next(one), next(other), *one, *other]
    assert Counter(values(found)) == dict.fromkeys(range(40), 1)


def test_the_best_episodes_stay(learner: Client) -> None:
    """Pushed in any order, and again: the table holds the four highest returns."""
    view = Prioritized(WholeEpisode(), by_return)
    returns = sorted(float(episode.columns["reward"][:-1].astype(float).sum()) for episode in EPISODES)
    assert returns[0] < 0 < returns[-1]
    for order in (EPISODES, EPISODES[::-1]):
        learner.push(order, "best", view=view, allow=ALLOWED, allow_eviction=True)
        assert learner.tables()["best"].current_size == 4
        with learner.sample("best", 64, samples=512) as sampler:
            kept = {float(value) for _, info in sampler for value in return_of(info.priority)}
        np.testing.assert_allclose(sorted(kept), returns[-4:], rtol=1e-6)


def push_whole(learner: Client, table: str, **options: Any) -> None:
    learner.reset(table)
    learner.push(EPISODES, table, allow=ALLOWED, **{"view": "episode", **options})


def test_slices_are_those_of_the_episodes_that_were_pushed(learner: Client) -> None:
    push_whole(learner, "whole")
    recorded = {episode.columns["observation"][0].tobytes(): episode for episode in EPISODES}
    whole = {
        int(info.key[number]): recorded[data.observation[number][0].tobytes()]
        for data, info in learner.sample("whole", 1, samples=200)
        for number in range(len(info.key))
    }
    assert len(whole) == len(EPISODES)
    with learner.sample("whole", 30, samples=40, slices=SliceSpec(8, 3, strict=False)) as sampler:
        batches = list(sampler)
    assert sum(batch.size for batch in batches) == 120
    for data, info in batches:
        assert info.start is not None
        assert info.mask is not None
        for number, (key, start) in enumerate(zip(info.key.tolist(), info.start.tolist())):
            expected = whole[key].columns["observation"][start : start + 8]
            assert data.observation[number][info.mask[number]].tobytes() == expected.tobytes()
            assert not data.observation[number][~info.mask[number]].any()


def starts_drawn(learner: Client, table: str, spec: SliceSpec, count: int) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    with learner.sample(table, 500, slices=spec) as sampler:
        while found.total() < count:
            _, info = next(sampler)
            assert info.start is not None
            found.update(zip(info.key.tolist(), info.start.tolist()))
    return found


@pytest.mark.parametrize(("table", "by"), [("whole", "step"), ("by_starts", "step"), ("by_starts", "trajectory")])
def test_every_start_is_equally_likely(learner: Client, table: str, by: str) -> None:
    """6,000 draws of 78 starts: each within 8 standard deviations. By trajectory, of a uniform table, starts differ 12-fold."""

    def starts(episode: Episode, steps: Any) -> Any:
        return np.full(len(steps), len(episode) - 4)

    push_whole(learner, table, view=Prioritized(WholeEpisode(), starts))
    found = starts_drawn(learner, table, SliceSpec(5, by=by), 6_000)
    assert len(found) == sum(len(whole_episode) - 4 for whole_episode in EPISODES)
    share = found.total() / len(found)
    assert max(abs(count - share) for count in found.values()) < 8 * share**0.5


def test_every_episode_is_equally_likely_by_trajectory(learner: Client) -> None:
    push_whole(learner, "whole")
    found = starts_drawn(learner, "whole", SliceSpec(5), 6_000)
    by_key: Counter[int] = Counter()
    for (key, _), count in found.items():
        by_key[key] += count
    share = found.total() / len(EPISODES)
    assert max(abs(count - share) for count in by_key.values()) < 8 * share**0.5


def test_requirements_of_sampled_episodes_are_those_of_a_push(learner: Client) -> None:
    view = Requirements(WANTED)
    learner.reset("items")
    learner.push(EPISODES, "items", view=view, allow=ALLOWED)
    push_whole(learner, "whole_once")
    count = learner.tables()["items"].current_size
    expected, _ = next(learner.sample("items", count, epochs=1))
    found, info = next(learner.sample("whole_once", count, epochs=1, view=view))
    assert set(found) == set(expected) == set(WANTED)
    for name in WANTED:
        assert (found[name].dtype, found[name].shape) == (expected[name].dtype, expected[name].shape)
        assert found[name].tobytes() == expected[name].tobytes()
    assert info.start is not None
    assert info.start.tolist() == [step for episode in EPISODES for step in range(len(episode) - 1)]
