"""Pages of episodes that a test made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rlds2reverb.episode import Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.inspection.workers import InspectJob, inspect_by_workers
from rlds2reverb.look.charts import Dataset
from rlds2reverb.look.collector import Collector
from rlds2reverb.look.report import page_of
from rlds2reverb.views import view_of
from tests.support import strategies
from tests.support.workers_in_threads import InThreads

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\u2028\x1b[2J\x07"
"""A text that would act, turn around, or end what it stands in."""

VIEWS = {"replay": view_of("two_step")}


def robot(number: int, steps: int = 12, reward: float = 0.0) -> Episode:
    """An episode with images, flags, discrete and continuous values, and words."""
    rng = np.random.default_rng(number)
    one = strategies.episode(rng, steps, episode_id=f"train#{number}")
    rewards = one.columns["reward"].copy()
    rewards[0] += reward
    shades = np.linspace(0, 255, 24 * 32 * 3).reshape(24, 32, 3)
    columns = {
        "observation/image": np.stack([np.roll(shades, at, axis=1) for at in range(steps)]).astype(np.uint8),
        "observation/gripper_open": rng.integers(0, 2, steps).astype(bool),
        "observation/task": rng.integers(0, 5, steps),
        "language_instruction": np.array([f"lift cup {number % 3} {HOSTILE}".encode()] * steps, object),
        "reward": rewards,
    }
    state = one.columns["observation"]
    rest = {path: column for path, column in one.columns.items() if path not in ("observation", "reward")}
    return replace(one, columns={"observation/state": state, **columns, **rest})


def robots(count: int = 6, bad: Sequence[int] = ()) -> list[Episode]:
    """Several; the bad ones have a NaN."""
    return [robot(number, 8 + number % 5, np.nan if number in bad else 0.0) for number in range(count)]


def dataset(episodes: Sequence[Episode], name: str = "robots", seed: int = 0, views: Any = None) -> Dataset:
    """Inspected in one pass."""
    source = EpisodeList(list(episodes), name)
    return Dataset(inspect_source(source, views or VIEWS, watch=partial(Collector, seed)))


def by_workers(episodes: Sequence[Episode], workers: int, most: int, lost: frozenset[int] = frozenset()) -> Dataset:
    """Inspected in parts."""
    wanted = InspectJob(NamedSource(EpisodeList(list(episodes), "robots")), views=VIEWS, watch=partial(Collector, 0))
    return Dataset(inspect_by_workers(wanted, lambda job: InThreads(job, workers, lost), most))


def page(*datasets: Dataset, seed: int = 0, **options: Any) -> str:
    """The page's text."""
    return page_of(datasets, seed, **options).decode()
