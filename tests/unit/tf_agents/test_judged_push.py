"""Episodes that a push by TF-Agents' function judges, where it is asked to."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tf_agents")

from tf_agents.specs import tensor_spec

from rlds2reverb import Client, create_trajectory_data_spec, push_rlds_to_reverb
from rlds2reverb.errors import ConfigError, InvalidEpisode
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from tests.support.rlds_data import dataset, episode, trajectory_signature

ROWS = (4, 5, 3)
BAD = 1


@pytest.fixture(scope="module")
def data() -> tf.data.Dataset:
    """Three episodes, of which the second has NaN in an observation, and an infinite value in a field that no trajectory has."""
    rng = np.random.default_rng(1)
    episodes = [episode(rng, rows, True, observation=("float32", (3,))) for rows in ROWS]
    for columns in episodes:
        columns["distance"] = np.zeros(len(columns["is_first"]), np.float32)
    episodes[BAD]["observation"][2, 1] = np.nan
    episodes[0]["distance"][1] = np.inf
    return dataset(episodes, episodes[0])


@pytest.fixture
def server() -> MemoryServer:
    steps = episode(np.random.default_rng(1), 2, True, observation=("float32", (3,)))
    return MemoryServer(table_info("replay", signature=trajectory_signature(steps)))


def pushed(data: tf.data.Dataset, server: MemoryServer, view: str = "two_step", **options: Any) -> int:
    with Client(MemoryTransport(server)) as client:
        return push_rlds_to_reverb(data, client.target("replay", view=view), **options)


def stored(server: MemoryServer) -> Any:
    """[items, steps, 3] the observations."""
    return np.stack([item[1] for item in server.contents()])


@pytest.mark.parametrize(
    "options", [{}, {"on_invalid": "raise", "allow": ["nan"]}, {"on_invalid": "skip", "allow": ["nan"]}]
)
def test_nan_is_stored_where_nobody_asks(data: tf.data.Dataset, server: MemoryServer, options: Any) -> None:
    assert pushed(data, server, **options) == sum(ROWS)
    assert len(server.contents()) == sum(rows - 1 for rows in ROWS)
    assert np.isnan(stored(server)).sum() == 2


@pytest.mark.parametrize("view", ["two_step", "across_episodes:length=2,stride=1"])
def test_a_bad_episode_ends_the_push_and_those_before_it_are_stored(
    data: tf.data.Dataset, server: MemoryServer, view: str
) -> None:
    with pytest.raises(InvalidEpisode, match=r"episode number 1: nan: column .observation.*step 2"):
        pushed(data, server, view, on_invalid="raise")
    assert len(server.contents()) == ROWS[0] - 1
    assert not np.isnan(stored(server)).any()


def test_a_bad_episode_is_left_out_and_counted(
    data: tf.data.Dataset, server: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert pushed(data, server, on_invalid="skip") == sum(ROWS) - ROWS[BAD]
    assert caplog.messages == ["Left out as bad: nan 1."]
    assert len(server.contents()) == ROWS[0] + ROWS[2] - 2
    assert not np.isnan(stored(server)).any()


def test_what_is_no_policy_is_refused(data: tf.data.Dataset, server: MemoryServer) -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"on_invalid": "quarantine"},
        {"allow": ["nan"]},
        {"on_invalid": "raise", "allow": ["nnn"]},
    )
    for options in refused:
        with pytest.raises(ConfigError, match=r"on_invalid|unknown code"):
            pushed(data, server, **options)
    assert server.contents() == []


def test_an_observer_that_is_called_step_by_step_is_not_judged(data: tf.data.Dataset) -> None:
    class Observer:
        seen = 0

        def get_table_signature(self) -> Any:
            return tensor_spec.add_outer_dim(create_trajectory_data_spec(data))

        def __call__(self, entry: Any) -> None:
            self.seen += 1

    observer = Observer()
    with pytest.raises(ConfigError, match="called step by step"):
        push_rlds_to_reverb(data, observer, on_invalid="raise")
    assert observer.seen == 0
    assert push_rlds_to_reverb(data, observer) == observer.seen == sum(ROWS)
