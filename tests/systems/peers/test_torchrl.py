"""Our views beside TorchRL itself: MultiStep, SliceSampler, and the transitions (TED) that its environments write."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.data import Composite, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer, Unbounded
from torchrl.data.postprocs import MultiStep
from torchrl.envs import EnvBase

from rlds2reverb.episode import Episode
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.transition import Transition
from tests.systems.peers.episodes import columns, items, random_episode, random_episodes


class Replay(EnvBase):
    """An environment that plays a recorded episode, whatever the action: its rollouts are TED as TorchRL writes it."""

    def __init__(self, episode: Episode) -> None:
        super().__init__()
        self.steps, self.row = {name: torch.tensor(column) for name, column in episode.columns.items()}, 0
        self.observation_spec = Composite(observation=Unbounded((2,), dtype=self.steps["observation"].dtype))
        self.action_spec = Unbounded((3,))
        self.reward_spec = Unbounded((1,), dtype=self.steps["reward"].dtype)

    def _reset(self, tensordict: TensorDict | None = None, **_: Any) -> TensorDict:
        self.row = 0
        return self._now()

    def _step(self, tensordict: TensorDict) -> TensorDict:
        earned = self.steps["reward"][self.row].reshape(1)
        self.row += 1
        return self._now().set("reward", earned)

    def _now(self) -> TensorDict:
        last, terminal = self.steps["is_last"][self.row], self.steps["is_terminal"][self.row]
        flags = {"done": last, "terminated": last & terminal, "truncated": last & ~terminal}
        observed = {"observation": self.steps["observation"][self.row]}
        return TensorDict({**observed, **{name: flag.reshape(1) for name, flag in flags.items()}})

    def _set_seed(self, seed: int | None) -> None:
        pass


class Recorded(TensorDictModuleBase):
    """A policy that takes the recorded actions, one after the other."""

    in_keys: ClassVar[list[str]] = []
    out_keys: ClassVar[list[str]] = ["action"]

    def __init__(self, episode: Episode) -> None:
        super().__init__()
        self.actions = iter(torch.tensor(episode.columns["action"]))

    def forward(self, tensordict: TensorDict) -> TensorDict:
        return tensordict.set("action", next(self.actions))


def rollout(episode: Episode) -> TensorDict:
    """[T - 1] transitions; it ends where the environment says so."""
    return Replay(episode).rollout(len(episode) + 5, policy=Recorded(episode))


def flat(data: TensorDict) -> dict[str, np.ndarray]:
    """Paths -> arrays."""
    leaves = data.items(include_nested=True, leaves_only=True)
    return {"/".join(key) if isinstance(key, tuple) else key: value.numpy() for key, value in leaves}


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transitions_are_those_that_an_environment_writes(terminal: bool, dtype: type) -> None:
    for episode in random_episodes(terminal, dtype):
        theirs, ours = flat(rollout(episode)), columns(Transition(), episode)
        # At the root they also have the flags, False in every row that an episode goes on from; the view leaves them out.
        for flag in ("done", "terminated", "truncated"):
            assert not theirs.pop(flag).any()
        assert set(ours) == set(theirs)
        for path, values in theirs.items():
            assert ours[path].dtype == values.dtype
            np.testing.assert_array_equal(ours[path], values, err_msg=path)


@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.3])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("terminal", [True, False])
def test_n_steps_are_those_of_multi_step(n: int, gamma: float, terminal: bool) -> None:
    for episode in random_episodes(terminal):
        ours = columns(NStep(n, gamma, "torchrl"), episode)
        theirs = flat(MultiStep(gamma, n)(rollout(episode)[None])[0])
        np.testing.assert_array_equal(ours["observation"], theirs["observation"])
        np.testing.assert_array_equal(ours["action"], theirs["action"])
        np.testing.assert_allclose(ours["reward"], theirs["next/reward"][:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ours["discount"], theirs["gamma"], rtol=1e-6)
        np.testing.assert_array_equal(ours["next_observation"], theirs["next/observation"])
        np.testing.assert_array_equal(ours["steps"], theirs["steps_to_next_obs"])


def test_the_steps_of_a_batch_stay_within_their_episodes() -> None:
    """One after the other in one batch, as a collector hands them over: no return runs into the next episode."""
    episodes = random_episodes()
    ours = [columns(NStep(4, 0.9, "torchrl"), episode) for episode in episodes]
    together = torch.cat([rollout(episode) for episode in episodes])
    theirs = flat(MultiStep(0.9, 4)(together[None])[0])
    joined = {path: np.concatenate([our[path] for our in ours]) for path in ours[0]}
    np.testing.assert_allclose(joined["reward"], theirs["next/reward"][:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(joined["next_observation"], theirs["next/observation"])
    np.testing.assert_array_equal(joined["steps"], theirs["steps_to_next_obs"])


DRAWS = 4000
"""Slices drawn to see all that there are: each is drawn with a chance of at least 1 / 78, so none is missed."""


def drawn(trajectories: list[TensorDict], length: int, strict: bool) -> list[TensorDict]:
    """Slices that a buffer of these trajectories gives; it marks the last step of each as truncated."""
    sampler = SliceSampler(slice_len=length, end_key=("next", "done"), strict_length=strict)
    data = torch.cat(trajectories)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)), sampler=sampler, batch_size=DRAWS * length)
    buffer.extend(data)
    torch.manual_seed(0)
    found = buffer.sample()
    ends = found["next", "truncated"][:, 0].nonzero()[:, 0] + 1
    lengths = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.int64)).tolist()
    assert len(lengths) == DRAWS
    assert set(lengths) <= ({length} if strict else set(range(1, length + 1)))
    return list(found.split(lengths))


def as_rows(episode: Episode) -> TensorDict:
    """One entry per row, as the view counts; the end of the trajectory is the last row."""
    steps = {name: torch.tensor(column) for name, column in episode.columns.items()}
    ends = {"done": steps["is_last"][:, None], "terminated": steps["is_terminal"][:, None]}
    ends["truncated"] = ends["done"] & ~ends["terminated"]
    return TensorDict({**steps, "next": TensorDict(ends, [len(episode)])}, [len(episode)])


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("length", [1, 2, 4, 8, 13])
def test_the_slices_that_there_are_are_those_of_the_slice_sampler(length: int, strict: bool) -> None:
    episodes = random_episodes()
    theirs = drawn([as_rows(episode) for episode in episodes], length, strict)
    possible = {item["observation"].numpy().tobytes(): item for item in theirs}
    every = [item for episode in episodes for item in items(Slices(length, len(episode), strict), episode)]
    assert len(every) == len(possible)  # each once, as there are no more than `per_episode`
    for ours in every:
        one = possible[ours["observation"].tobytes()]
        for path, values in ours.items():
            np.testing.assert_array_equal(values, one[path].numpy(), err_msg=path)
    for seed in range(5):  # and a few of them are a few of those
        for episode in episodes:
            few = [ours["observation"].tobytes() for ours in items(Slices(length, 2, strict, seed), episode)]
            assert len(few) == len(set(few)) <= 2
            assert set(few) <= set(possible)


def test_where_no_episode_is_long_enough_both_give_nothing() -> None:
    episodes = random_episodes()
    assert [items(Slices(14), episode) for episode in episodes] == [[]] * len(episodes)
    with pytest.raises(RuntimeError, match="Did not find a single trajectory with sufficient length"):
        drawn([as_rows(episode) for episode in episodes], 14, strict=True)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("length", [1, 2, 4, 8, 12])
def test_a_slice_of_transitions_is_one_row_longer_here(length: int, strict: bool) -> None:
    """TED has no row for the final observation: their slice of L transitions spans L + 1 of our rows."""
    episodes = random_episodes(terminal=False)
    theirs = {
        np.concatenate([trajectory["observation"], trajectory["next", "observation"][-1:]]).tobytes()
        for trajectory in drawn([rollout(episode) for episode in episodes], length, strict)
    }
    made = [item for episode in episodes for item in items(Slices(length + 1, len(episode), strict), episode)]
    assert {trajectory["observation"].tobytes() for trajectory in made} == theirs


def test_only_their_slices_are_marked_as_truncated() -> None:
    """A deliberate difference: SliceSampler marks the last step of a slice as truncated, for estimators that look at the
    flags; the view stores rows as recorded, and a slice's border is the border of the item."""
    episode = random_episode(13)
    for slice_drawn in drawn([as_rows(episode)], 4, strict=True)[:50]:
        assert slice_drawn["next", "truncated"][:, 0].tolist() == [False, False, False, True]
        assert slice_drawn["next", "done"][-1, 0]
    ends = [item["is_last"].any() for item in items(Slices(4, 13), episode)]
    assert ends == [False] * 9 + [True]
