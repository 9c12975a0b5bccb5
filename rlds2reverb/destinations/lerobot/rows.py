"""An episode's steps as rows: without the last one, unless that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.destinations.base import LAST_ROW, Loss
from rlds2reverb.destinations.lerobot import LOSSES
from rlds2reverb.destinations.lerobot.fields import FILES, KEEP, PIXELS, Field, Plan
from rlds2reverb.episodes import ACTION, DISCOUNT, IS_TERMINAL, OBSERVATION, REWARD, Array, Episode, is_under
from rlds2reverb.readers.lerobot.features import TIMESTAMP


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
    """The rows of an episode; none where it has no action."""
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
    if not rows:
        yield Loss("single_step", LOSSES["single_step"])
        return
    observations = [one for one in plan.fields if is_under(one.path, OBSERVATION)]
    if any(not _repeats(columns[one.path]) for one in observations):
        yield Loss("last_observation", LOSSES["last_observation"], OBSERVATION, LAST_ROW)
    for one in plan.fields:
        if one not in observations and one.path != DISCOUNT and not _follows(one, columns[one.path]):
            yield Loss("last_row", LOSSES["last_row"], one.path, LAST_ROW)


def _repeats(column: Array) -> bool:
    last, before = column[-1:], column[-2:-1]
    if column.dtype == object:
        return bool((last == before).all())
    return last.tobytes() == before.tobytes()


def _follows(one: Field, column: Array) -> bool:
    """Whether the last row of a column that is no observation is what reading puts there."""
    is_of_action = is_under(one.path, ACTION) or one.path == REWARD or one.path.startswith("next.")
    if one.kind in (PIXELS, FILES) or not is_of_action:
        return _repeats(column)
    return not any(column[-1:].ravel())
