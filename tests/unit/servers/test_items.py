"""Items of several servers changed and deleted by their keys, and what else reaches all of them."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.errors import ConfigError, TransportError
from rlds2reverb.testing import MemoryServer
from tests.support.learner.reading import next_of
from tests.support.servers.memory import filled, group_of, priorities, server_of


def test_priorities_reach_the_server_that_a_key_came_from() -> None:
    """Key 7 is on both: it is changed where it was sampled last."""
    one, two = server_of(1, 7), server_of()
    with group_of(one, two, ask_seconds=1e-9) as group:
        with group.sample("replay", 64) as sampler:
            keys = np.unique(next_of(sampler).info.key)
        assert keys.tolist() == [1, 7]
        filled(two, 2, 7)
        group.update_priorities("replay", [7, 2], [5.0, 6.0])
        assert priorities(one) == {1: 1.0, 7: 5.0}
        assert priorities(two) == {2: 6.0, 7: 1.0}
        group.update_priorities("replay", np.array([2, 99], np.uint64), 3.0)
        assert priorities(two) == {2: 3.0, 7: 1.0}
        with pytest.raises(ConfigError, match="priorities: 1 for 2 keys"):
            group.update_priorities("replay", [1, 2], [1.0])
        with pytest.raises(ConfigError, match='no table "other"'):
            group.update_priorities("other", [1], [1.0])


def test_items_are_deleted_on_the_server_that_their_keys_came_from() -> None:
    """Key 7 is on both: it is taken out where it was sampled last. Keys that nobody sampled are looked for everywhere."""
    one, two = server_of(1, 7), server_of()
    with group_of(one, two, ask_seconds=1e-9) as group:
        with group.sample("replay", 64) as sampler:
            assert np.unique(next_of(sampler).info.key).tolist() == [1, 7]
        filled(two, 2, 7)
        two.is_away = True
        group.delete("replay", [7])  # nobody asks the other one
        two.is_away = False
        assert (list(priorities(one)), list(priorities(two))) == ([1], [2, 7])
        group.delete("replay", [1, 2, 99])
        assert (list(priorities(one)), list(priorities(two))) == ([], [7])
        with pytest.raises(ConfigError, match='no table "other"'):
            group.delete("other", [1])


def test_deleting_what_nobody_sampled_and_emptying_reach_all_that_have_the_table() -> None:
    one, two, without = server_of(1, 2), server_of(2, 3), MemoryServer("elsewhere")
    with group_of(one, two, without) as group:
        group.delete("replay", [2, 9])
        assert (list(priorities(one)), list(priorities(two))) == ([1], [3])
        group.reset("replay")
        assert (list(priorities(one)), list(priorities(two))) == ([], [])
        with pytest.raises(ConfigError, match='no table "other"'):
            group.reset("other")


def test_checkpoints_are_written_by_all() -> None:
    one, two = server_of(), server_of()
    one.checkpoint_path, two.checkpoint_path = "/a", "/b"
    with group_of(one, two) as group:
        assert group.checkpoint() == {"a:8000": "/a", "b:8000": "/b"}
        two.checkpoint_path = None
        with pytest.raises(TransportError):
            group.checkpoint()


@pytest.mark.parametrize("method", ["target", "writer"])
def test_what_is_for_one_server_is_refused_in_words(method: str) -> None:
    with (
        group_of(server_of(), server_of()) as group,
        pytest.raises(ConfigError, match=f"{method}: .* connect to one of a:8000, b:8000"),
    ):
        getattr(group, method)([], "replay")
