"""The view of n steps beside Acme itself: its NStepTransitionAdder, which fills a real Reverb server step by step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import dm_env
import numpy as np
import pytest
import reverb

from rlds2reverb.episode import Episode, columns_under
from rlds2reverb.formats.source import spec_of
from rlds2reverb.specs import flatten
from rlds2reverb.views.n_step import NStep
from tests.systems.peers.episodes import LENGTHS, items, random_episode, random_episodes

# Acme imports Launchpad, which has no wheel for this Python, and JAX; its adders call neither. Of JAX the adders name
# one class of array, in a place that numpy arrays do not reach.
with pytest.MonkeyPatch.context() as patch:
    for name in ("launchpad", "jax", "jax.numpy"):
        patch.setitem(sys.modules, name, ModuleType(name))
    patch.setattr(sys.modules["jax"], "numpy", sys.modules["jax.numpy"], raising=False)
    from acme.adders.reverb import NStepTransitionAdder

TABLE = "priority_table"
FIELDS = ("observation", "action", "reward", "discount", "next_observation")
OF_TRANSITION = (*FIELDS, "extras")


class Client(reverb.Client):
    """A client that takes the timeout which Acme gives, and which Reverb's clients no longer have."""

    def trajectory_writer(self, *args: Any, get_signature_timeout_ms: int, **options: Any) -> reverb.TrajectoryWriter:
        return super().trajectory_writer(*args, **options)


@pytest.fixture(scope="module")
def server() -> Iterator[reverb.Server]:
    """A server in this process, on a free port; its table hands out every item once, in the order of insertion."""
    running = reverb.Server([reverb.Table.queue(TABLE, 10_000)], port=None)
    yield running
    running.stop()


def added(server: reverb.Server, episode: Episode, n: int, gamma: float) -> list[dict[str, Any]]:
    """The items that the adder makes of an episode, in order."""
    steps = episode.columns
    client = Client(f"localhost:{server.port}")
    adder = NStepTransitionAdder(client, n, gamma)
    adder.add_first(dm_env.restart(steps["observation"][0]))
    for row in range(len(episode) - 1):
        kind = dm_env.StepType.LAST if steps["is_last"][row + 1] else dm_env.StepType.MID
        reward, discount = (_nest_at(episode, name, row) for name in ("reward", "discount"))
        following = dm_env.TimeStep(kind, reward, discount, steps["observation"][row + 1])
        adder.add(steps["action"][row], following, *([{"state": steps["state"][row]}] if "state" in steps else []))
    adder.reset()  # flushes
    count = client.server_info()[TABLE].current_size
    samples = client.sample(TABLE, num_samples=count, emit_timesteps=False)
    names = [path for path in flatten(NStep(extras="all").signature(spec_of(episode))) if path != "steps"]
    order = sorted(
        names, key=lambda path: OF_TRANSITION.index(path.split("/")[0])
    )  # Acme's transitions are namedtuples
    return [dict(zip(order, sample.data)) for sample in samples]


def _nest_at(episode: Episode, name: str, row: int) -> Any:
    """A step field at a row: an array, or a dict of arrays."""
    found = {path[len(name) + 1 :]: column[row] for path, column in columns_under(episode.columns, name).items()}
    return found.get("", found)


NESTS: dict[str, tuple[Any, Any]] = {
    "rewards": ({"a": (), "b": ()}, ()),
    "discounts": ((), {"a": (), "b": ()}),
    "both": ({"a": (), "b": (3,)}, {"a": (), "b": ()}),
    "vectors": ((2,), ()),
    "broadcast": ({"a": (1, 2)}, (2, 1)),
}
"""Shapes of a step's reward and discount."""


def structured(rows: int, nests: tuple[Any, Any]) -> Episode:
    """A random episode whose reward and discount are such nests."""
    rng = np.random.default_rng(rows)
    columns = {
        path: column for path, column in random_episode(rows).columns.items() if path not in ("reward", "discount")
    }
    for name, nest in zip(("reward", "discount"), nests):
        for below, shape in nest.items() if isinstance(nest, dict) else [("", nest)]:
            path = f"{name}/{below}" if below else name
            columns[path] = rng.uniform(0.1, 1, (rows, *shape)).astype(np.float32)
    return Episode(columns, {}, "e")


@pytest.mark.parametrize("nests", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_structured_rewards_and_discounts_are_those_of_the_adder(server: reverb.Server, n: int, nests: Any) -> None:
    for rows in LENGTHS:
        episode = structured(rows, nests)
        view = NStep(n, 0.9, early=True)
        leaves = {path for path in flatten(view.signature(spec_of(episode))) if path != "steps"}
        ours, theirs = items(view, episode), added(server, episode, n, 0.9)
        assert len(ours) == len(theirs)
        for our, other in zip(ours, theirs):
            assert set(other) == leaves
            for path in leaves:
                assert (our[path].dtype, our[path].shape) == (other[path].dtype, other[path].shape)
                np.testing.assert_allclose(our[path], other[path], rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("n", [1, 3])
def test_extras_are_those_of_the_step_as_with_the_adder(server: reverb.Server, n: int) -> None:
    for episode in random_episodes():
        episode = episode.with_columns(state=np.arange(len(episode)))
        ours, theirs = items(NStep(n, early=True, extras="state"), episode), added(server, episode, n, 0.99)
        assert [our["extras/state"] for our in ours] == [other["extras/state"] for other in theirs]


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Asserts that two transitions are one; returns and discounts up to rounding (theirs sums in float32)."""
    for field in FIELDS:
        assert ours[field].dtype == theirs[field].dtype
        if field in ("reward", "discount"):
            np.testing.assert_allclose(ours[field], theirs[field], rtol=1e-5, atol=1e-6, err_msg=field)
        else:
            np.testing.assert_array_equal(ours[field], theirs[field], err_msg=field)


@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.3])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("terminal", [True, False])
def test_n_steps_are_those_of_the_adder(server: reverb.Server, n: int, gamma: float, terminal: bool) -> None:
    for episode in random_episodes(terminal):
        ours, theirs = items(NStep(n, gamma, early=True), episode), added(server, episode, n, gamma)
        assert len(ours) == len(theirs)
        for our, other in zip(ours, theirs):
            same(our, other)
        # Without `early` there is one item per row, the longest: the adder's without those that it makes first.
        longest = items(NStep(n, gamma), episode)
        assert len(longest) == len(episode) - 1
        for mine, other in zip(longest, theirs[-len(longest) :]):
            same(mine, other)


def test_an_episode_that_is_cut_off_keeps_its_discount(server: reverb.Server) -> None:
    """The end alone is no terminal state: only the data's discounts say whether there is a value after it."""
    for terminal in (True, False):
        for episode in random_episodes(terminal):
            ours, theirs = items(NStep(3, 0.9), episode), added(server, episode, 3, 0.9)
            assert (ours[-1]["discount"] == 0) == (theirs[-1]["discount"] == 0) == terminal
