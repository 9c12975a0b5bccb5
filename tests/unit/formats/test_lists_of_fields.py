"""Lists of objects with the fields of Minari's episodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlds2reverb import open_source
from rlds2reverb.errors import SourceError


def fields(**changes: Any) -> SimpleNamespace:
    steps = 3
    ends = np.arange(steps) == steps - 1
    plain = {
        "observations": {"a": np.zeros((steps + 1, 2), np.float32), "b": (np.arange(steps + 1), ["x"] * (steps + 1))},
        "actions": np.ones(steps, np.int64),
        "rewards": np.ones(steps),
        "terminations": ends,
        "truncations": ~ends & ends,
        "infos": {"at": {"x": np.arange(steps + 1)}},
    }
    return SimpleNamespace(**{**plain, **changes})


def test_columns_of_every_field() -> None:
    source = open_source([fields(), fields(seed=5)])
    first, second = source
    columns = first.columns
    assert columns["observation/b/_index_0"].tolist() == [0, 1, 2, 3]
    assert columns["observation/b/_index_1"].tolist() == [b"x"] * 4
    assert columns["action"].tolist() == [1, 1, 1, 0]
    assert columns["reward"].tolist() == [1, 1, 1, 0]
    assert columns["discount"].tolist() == [1, 1, 0, 0]
    assert columns["is_terminal"].tolist() == [False, False, False, True]
    assert columns["infos/at/x"].dtype == np.int64
    assert second.metadata == {"seed": 5}


@pytest.mark.parametrize("infos", [None, {}])
def test_without_an_end_or_infos_it_is_cut_off(infos: Any) -> None:
    nothing = np.zeros(3, bool)
    (episode,) = open_source([fields(terminations=nothing, truncations=nothing, infos=infos)])
    assert not episode.columns["is_terminal"].any()
    assert episode.columns["is_last"].tolist() == [False, False, False, True]
    assert episode.columns["discount"].all()


def test_an_episode_without_a_step() -> None:
    none = np.zeros(0)
    lone = fields(
        observations=np.zeros((1, 2)), actions=none, rewards=none, terminations=none, truncations=none, infos={}
    )
    (episode,) = open_source([lone])
    assert len(episode) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"observations": np.zeros((3, 2))}, "observations: expected 4 rows, got 3"),
        ({"actions": np.zeros(4)}, "actions: expected 3 rows, got 4"),
        ({"truncations": np.zeros(2, bool)}, "truncations: expected 3 rows, got 2"),
        ({"infos": {"x": np.zeros(3)}}, "infos/x: expected 4 rows, got 3"),
        ({"terminations": np.array([True, False, True])}, "ends at step 0 of 3"),
        ({"observations": {}}, "observations: there are none"),
        ({"actions": [object(), object(), object()]}, "expected arrays of numbers or text"),
        ({"rewards": 3.0}, "rewards: expected arrays"),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(SourceError, match=f"number 1: .*{why}"):
        open_source([fields(), fields(**changes)])


def test_something_else_is_told() -> None:
    with pytest.raises(SourceError, match="number 0 is a int, expected an Episode, or an object with observations"):
        open_source([3])
