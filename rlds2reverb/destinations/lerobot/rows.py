"""An episode's steps as rows: without the last one, unless that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.destinations.base import LAST_ROW, Loss
from rlds2reverb.destinations.comparing import are_equal
from rlds2reverb.destinations.lerobot import LOSSES
from rlds2reverb.destinations.lerobot.fields import KEEP, Plan
from rlds2reverb.episodes import IS_TERMINAL, OBSERVATION, Array, Episode, is_under
from rlds2reverb.readers.lerobot.features import TIMESTAMP
from rlds2reverb.readers.lerobot.steps import row_behind


@dataclass(frozen=True)
class Written:
    """What is written of an episode.

    Attributes:
      columns: path -> [rows, ...], of the plan's fields.
      rows: how many.
      done: [rows] bool, or None.
      timestamp: [rows] float32.
      tasks: [rows] texts, or the one of all rows.
      losses: what is lost.
    """

    columns: Mapping[str, Array]
    rows: int
    done: Array | None
    timestamp: Array
    tasks: Any
    losses: tuple[Loss, ...] = field(default=())


def rows_of(episode: Episode, plan: Plan, fps: int) -> Written:
    """The rows of an episode, of which there is one."""
    columns = episode.columns
    steps = len(episode)
    rows = steps if plan.choices.last_step == KEEP else steps - 1
    losses = () if rows == steps else tuple(_lost(columns, plan, rows))
    done = np.asarray(columns[IS_TERMINAL][1:], bool) if plan.done else None
    timestamp = columns[TIMESTAMP][:rows] if plan.has_time else (np.arange(rows) / fps).astype(np.float32)
    task = columns[plan.task][:rows] if plan.task else episode.metadata.get(plan.task_feature, b"")
    kept = {one.path: columns[one.path][:rows] for one in plan.fields}
    return Written(kept, rows, done, timestamp, task, losses)


def _lost(columns: Mapping[str, Array], plan: Plan, rows: int) -> Iterator[Loss]:
    """What of the last row is more than reading gives back there; see `readers.lerobot.steps`."""
    odd = [path for path in plan.paths if not are_equal(columns[path][rows:], row_behind(path, columns[path][:rows]))]
    if any(is_under(path, OBSERVATION) for path in odd):
        yield Loss("last_observation", LOSSES["last_observation"], OBSERVATION, LAST_ROW)
    for path in odd:
        if not is_under(path, OBSERVATION):
            yield Loss("last_row", LOSSES["last_row"], path, LAST_ROW)
