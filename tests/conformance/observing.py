"""What the suites of observers share: data, TF-Agents' observers by their options, and what a push left in the tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils, rlds_to_reverb

from rlds2reverb.tf_agents import push_rlds_to_reverb
from tests.support import reference, rlds_data

SPECS: dict[str, dict[str, Any]] = {
    "flat": {},
    "mixed": {
        "observation": ("uint8", (2, 3)),
        "action": ("int64", ()),
        "reward": ("float64", (2,)),
    },
    "text": {"observation": ("object", ()), "action": ("object", (2,))},
    "hollow": {"observation": ("float32", (0,)), "action": ("int64", (0, 3)), "reward": ("float32", (3, 0))},
    "nested": {
        "observation": {"camera": {"left": ("uint8", (2, 2)), "right": ("uint8", (2, 2))}, "a": ("float32", ())},
        "action": [("float32", (2,)), {"grip": ("int32", ())}],
    },
}
"""What the steps hold; see `rlds_data.episode`."""

SIDES = {"ours": push_rlds_to_reverb, "theirs": rlds_to_reverb.push_rlds_to_reverb}
"""Who pushes."""


def like(spec: str) -> dict[str, Any]:
    """Two rows of a spec."""
    return rlds_data.episode(np.random.default_rng(0), 2, **SPECS[spec])


def tables_of_both_sides() -> list[Any]:
    """For every spec the tables SPEC/theirs/1, SPEC/ours/1 and so on, with its signature."""
    sides = [f"{side}/{number}" for side in SIDES for number in (1, 2)]
    return [
        rlds_data.once(f"{spec}/{side}", rlds_data.trajectory_signature(like(spec))) for spec in SPECS for side in sides
    ]


# Data: one dataset a spec, whose episodes are replaced before each use, because building one takes its time.

_episodes: dict[str, list[Any]] = {spec: [] for spec in SPECS}
_datasets: dict[str, tf.data.Dataset] = {}


@pytest.fixture(scope="module", autouse=True)
def traced_once() -> Iterator[None]:
    """For modules that import it: datasets are built once, and TF-Agents' two functions called once per dataset.

    At the end all is forgotten: TensorFlow complains of functions that outlive it.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("convert_rlds_to_trajectories", "create_trajectory_data_spec"):
            patch.setattr(rlds_to_reverb, name, cache(getattr(rlds_to_reverb, name)))
        yield
    _datasets.clear()


def dataset(spec: str, episodes: list[Any]) -> tf.data.Dataset:
    if spec not in _datasets:
        _datasets[spec] = rlds_data.dataset(_episodes[spec], like(spec))
    _episodes[spec][:] = episodes
    return _datasets[spec]


def make_episodes(spec: str, lengths: list[int], seed: int = 0) -> list[Any]:
    """Episodes of these lengths; some end terminal, some do not."""
    rng = np.random.default_rng(seed)
    return [rlds_data.episode(rng, rows, bool(rng.integers(2)), **SPECS[spec]) for rows in lengths]


def all_steps(episodes: list[Any]) -> list[reference.Step]:
    return [step for columns in episodes for step in reference.steps_of(columns)]


# Observers.


@dataclass(frozen=True)
class Windows:
    """A `ReverbAddTrajectoryObserver`."""

    length: int = 2
    stride: int = 1
    pad: bool = False
    tile: bool = False
    priority: float = 1
    tables: int = 1

    kind: ClassVar[Any] = reverb_utils.ReverbAddTrajectoryObserver

    def observer(self, client: Any, tables: list[str]) -> Any:
        names = tables[: self.tables] if self.tables > 1 else tables[0]
        return self.kind(client, names, self.length, self.stride, self.priority, self.pad, self.tile)

    def items(self, rows: list[reference.Row], next_index: int) -> list[list[Any]]:
        return reference.sequence_items(rows, next_index, self.length, self.stride, self.pad, self.tile)


@dataclass(frozen=True)
class Episodes:
    """A `ReverbAddEpisodeObserver`."""

    max_length: int = 100
    bypass: bool = False
    priority: float = 1
    tables: int = 1

    def observer(self, client: Any, tables: list[str]) -> Any:
        return reverb_utils.ReverbAddEpisodeObserver(
            client, tables[: self.tables], self.max_length, self.priority, self.bypass
        )

    def items(self, rows: list[reference.Row], _: int) -> list[list[Any]]:
        return reference.episode_items(rows, self.max_length)


@dataclass(frozen=True)
class Stream(Windows):
    """A `ReverbTrajectorySequenceObserver`."""

    kind: ClassVar[Any] = reverb_utils.ReverbTrajectorySequenceObserver

    def items(self, rows: list[reference.Row], _: int) -> list[list[Any]]:
        starts = range(0, len(rows) - self.length + 1, self.stride)
        return [reference.stack(rows[start : start + self.length]) for start in starts]


Options = Windows | Episodes | Stream


@dataclass
class Outcome:
    """What one push returned or raised, and what it left in the tables."""

    returned: int | None = None
    error: tuple[type[BaseException], str] | None = None
    stored: list[list[rlds_data.StoredItem]] = field(default_factory=list)


def outcome(
    push: Callable[..., int], data: tf.data.Dataset, observer: Any, tables: list[str], info_fn: Any = None
) -> Outcome:
    """Pushes, and empties the tables."""
    result = Outcome()
    try:
        result.returned = push(data, observer, info_fn)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        result.error = type(error), str(error)
    with contextlib.suppress(ValueError):  # closed
        observer.flush()
    result.stored = [rlds_data.take_all(observer.py_client, table) for table in tables]
    observer.close()
    return result


def assert_same_outcome(ours: Outcome, theirs: Outcome) -> None:
    assert (ours.returned, ours.error) == (theirs.returned, theirs.error)
    for mine, other in zip(ours.stored, theirs.stored, strict=True):
        reference.assert_same_items([item.columns for item in mine], [item.columns for item in other])
        assert [item.priority for item in mine] == [item.priority for item in other]


def compare(
    client: Any, spec: str, episodes: list[Any], options: Options, info_fn: Any = None
) -> tuple[Outcome, Outcome]:
    """The outcomes of our push and of TF-Agents', found to be the same."""
    data = dataset(spec, episodes)
    outcomes = []
    for side, push in SIDES.items():
        tables = [f"{spec}/{side}/{number}" for number in (1, 2)]
        for table in tables:
            client.reset(table)
        outcomes.append(outcome(push, data, options.observer(client, tables), tables, info_fn))
    assert_same_outcome(*outcomes)
    return outcomes[0], outcomes[1]
