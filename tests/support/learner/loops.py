"""Environment loops over ready episodes, and writers to servers in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from rlds2reverb import Episode, EpisodeWriter
from rlds2reverb.learner.recording import WriteOptions
from rlds2reverb.push.plan import Tuning
from rlds2reverb.testing import MemoryServer, MemoryTransport
from rlds2reverb.transport.retry import Deadlines
from tests.support import reference

TUNING = {field.name for field in fields(Tuning)}

QUICK = Deadlines(call=0.2, reconnect=0.5, notice=0.05, silence=0.2, stall=20.0, backoff_first=0.001, backoff_most=0.01)
"""Short waits; the longest only where something hangs."""


def writer(server: MemoryServer, table: Any = "replay", view: Any = None, **options: Any) -> EpisodeWriter:
    """A writer; limits, window and deadlines among the options are how it sends."""
    tuning = Tuning(**{"deadlines": QUICK, **{name: options.pop(name) for name in TUNING & options.keys()}})
    transport = MemoryTransport(server, call_seconds=0.2)
    return EpisodeWriter(transport, server.server_info(), WriteOptions(table, view, **options), tuning)


def step(number: float = 0.0) -> dict[str, Any]:
    """A step whose values tell its number."""
    return {"observation": np.full(3, number, np.float32), "action": np.int64(number), "reward": float(number)}


def steps_of(episode: Episode, *left_out: str) -> Iterator[dict[str, Any]]:
    """The steps of an episode, nested, as an environment gives them."""
    for row in range(len(episode)):
        columns = {path: column[row] for path, column in episode.columns.items() if path not in left_out}
        yield reference.nested(columns)


def write(to: Any, episode: Episode, name: str | None = None, left_out: Sequence[str] = ()) -> None:
    """Appends all steps of an episode, and ends it."""
    for step in steps_of(episode, *left_out):
        to.append(step)
    terminal = bool(episode.columns["is_terminal"][-1])
    to.end_episode(id=name, terminal=terminal)


def write_as_loop(to: Any, episode: Episode, name: str | None = None) -> None:
    """Writes as a loop over an environment does: transitions, and at the end the last observation."""
    *steps, last = steps_of(episode, "is_first", "is_last", "is_terminal", "discount")
    for step in steps:
        to.append(**step)
    to.end_episode(observation=last["observation"], terminal=bool(episode.columns["is_terminal"][-1]), id=name)
