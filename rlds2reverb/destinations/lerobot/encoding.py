"""Episodes -> columns of Arrow and their statistics: all of a LeRobot dataset that no other episode has a part in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rlds2reverb.destinations.base import Loss
from rlds2reverb.destinations.lerobot import LOSSES, arrow, finishing, stats
from rlds2reverb.destinations.lerobot.fields import FILES, PIXELS, TEXT, Plan
from rlds2reverb.destinations.lerobot.rows import Written, rows_of
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.images import decode_images
from rlds2reverb.metadata import metadata_path
from rlds2reverb.readers.lerobot.dataset import LANGUAGE_INSTRUCTION
from rlds2reverb.readers.lerobot.episodes import METADATA
from rlds2reverb.readers.lerobot.features import DONE, FRAME_INDEX, TIMESTAMP


@dataclass(frozen=True)
class Encoded:
    """What the sink is given of an episode.

    Attributes:
      rows: how many.
      columns: feature -> [rows], in the order of the table; without those that count over all episodes.
      stats: of these.
      tasks: the task of each row, or the one of all rows.
      metadata: what meta/episodes says beside.
      fps: rows per second, by this episode where no option tells.
      losses: what is lost.
    """

    rows: int
    columns: Mapping[str, pa.Array]
    stats: Mapping[str, stats.Stats]
    tasks: list[str]
    metadata: Mapping[str, Any]
    fps: int
    losses: tuple[Loss, ...]


@dataclass(frozen=True)
class Encoder:
    """Encodes as a plan says."""

    plan: Plan

    def __call__(self, episode: Episode) -> Encoded:
        """See `destinations.base.Encode`."""
        plan = self.plan
        written = rows_of(episode, plan, plan.choices.fps or finishing.FPS)
        columns: dict[str, pa.Array] = {}
        told: dict[str, stats.Stats] = {}
        changed: list[str] = []
        for one in plan.fields:
            values = written.columns[one.path]
            columns[one.name], is_changed = arrow.column(one, values)
            changed += [one.path] if is_changed else []
            if one.kind in (PIXELS, FILES):
                some = values[stats.sampled(len(values))]
                told[one.name] = stats.of_images(
                    some if one.kind == PIXELS else decode_images(some, one.spec, exact=True)
                )
            elif one.kind != TEXT:
                told[one.name] = stats.of_numbers(values)
        for name, values in _counted(written).items():
            columns[name] = arrow.numbers(values)
            told[name] = stats.of_numbers(values)
        tasks, is_changed = _texts(written.tasks)
        changed += self._changed_task() if is_changed else []
        metadata, changed_too = self._metadata(episode)
        lost = tuple(Loss("text", LOSSES["text"], path) for path in (*changed, *changed_too))
        return Encoded(written.rows, columns, told, tasks, metadata, self._fps(episode), (*written.losses, *lost))

    def _fps(self, episode: Episode) -> int:
        if self.plan.choices.fps:
            return self.plan.choices.fps
        return finishing.fps_of(episode) if self.plan.has_time else finishing.FPS

    def _changed_task(self) -> list[str]:
        """Where the text of the task stands, if nowhere else: the path of its column or feature."""
        plan = self.plan
        if plan.tells_task:
            return [plan.task]
        return [metadata_path(plan.task_feature)] if plan.task_feature == LANGUAGE_INSTRUCTION else []

    def _metadata(self, episode: Episode) -> tuple[dict[str, Any], list[str]]:
        told: dict[str, Any] = {}
        changed = []
        for path in self.plan.metadata:
            value = _plain(episode.metadata[path])
            if isinstance(value, (bytes, str)):
                (value,), is_changed = arrow.as_texts([value])
                changed += [metadata_path(path)] if is_changed else []
            told[METADATA + path] = value
        return told, changed


def _counted(written: Written) -> dict[str, Array]:
    """Columns that LeRobot has beside the features, and that begin anew with every episode."""
    return {
        **({} if written.done is None else {DONE: written.done}),
        TIMESTAMP: written.timestamp,
        FRAME_INDEX: np.arange(written.rows),
    }


def _texts(tasks: Any) -> tuple[list[str], bool]:
    is_column = isinstance(tasks, np.ndarray) and tasks.ndim
    return arrow.as_texts(list(tasks) if is_column else [_plain(tasks)])


def _plain(value: Any) -> Any:
    """A number or a text without numpy around it."""
    array = value if isinstance(value, (bytes, str)) else np.asarray(value)
    return array if isinstance(array, (bytes, str)) else array if array.dtype.kind in "biuf" else array.item()
