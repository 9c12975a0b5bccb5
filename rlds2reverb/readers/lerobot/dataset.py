"""What is known of a dataset before its rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.lerobot.episodes import Episodes, read_episodes, read_tasks
from rlds2reverb.readers.lerobot.features import EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX, VIDEO, Feature
from rlds2reverb.readers.lerobot.info import Info, read_info
from rlds2reverb.readers.lerobot.reading import COLUMN, METADATA, SKIP, Reading
from rlds2reverb.readers.lerobot.steps import Steps
from rlds2reverb.readers.paths import check_link
from rlds2reverb.specs import ArraySpec

LANGUAGE_INSTRUCTION = "language_instruction"
_TASK = "task"
"""Its name where a feature has the other one."""
_TEXT = ArraySpec((), np.dtype(object))
_NOT_STEPS = (FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX)
"""What follows from a row's place, or stands in the metadata."""


class WrittenAnew(SourceError):
    """A file is not the one that was opened before."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset and how it is read.

    Attributes:
      info: of meta/info.json.
      episodes: of meta/.
      tasks: number -> text; {} where the dataset has none.
      task: where the text goes: COLUMN, METADATA or SKIP.
      reading: the options.
      steps: how rows become steps.
      stamps: of files that were opened, what they were then.
    """

    info: Info
    episodes: Episodes
    tasks: Mapping[int, bytes]
    task: str
    reading: Reading
    steps: Steps
    stamps: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def check(self, path: Path) -> None:
        """Looks at a file with rows or frames before it is opened.

        Raises:
          SourceError: it is a link that leads out of the dataset.
          WrittenAnew: it is not the file that was opened before.
        """
        check_link(self.info.root, path)
        try:
            told = path.stat()
        except OSError:
            return  # whoever opens it says so
        stamp = told.st_size, told.st_mtime_ns
        if self.stamps.setdefault(path, stamp) != stamp:
            raise WrittenAnew(f"{path}: was written anew after it was first looked at; open the source again")

    @property
    def task_path(self) -> str:
        """The column of the task's text."""
        return _TASK if LANGUAGE_INSTRUCTION in self.steps.columns else LANGUAGE_INSTRUCTION

    def specs(self) -> dict[str, ArraySpec]:
        """Path -> spec of a step's value."""
        return {**self.steps.specs(), **({self.task_path: _TEXT} if self.task == COLUMN else {})}

    def metadata_of(self, number: int) -> dict[str, Any]:
        """One episode's: `episode_index`, the task where it is one per episode, and further columns of meta/episodes."""
        told: dict[str, Any] = {name: values[number] for name, values in self.episodes.metadata.items()}
        told[EPISODE_INDEX] = self.episodes.columns[EPISODE_INDEX][number]
        if self.task == METADATA:
            told.setdefault(_TASK if LANGUAGE_INSTRUCTION in told else LANGUAGE_INSTRUCTION, self.task_of(number))
        return told

    def task_of(self, number: int) -> bytes:
        """The task of an episode, as meta/episodes tells it; "" where it tells none."""
        tasks = self.episodes.tasks[number] if self.episodes.tasks else ()
        return tasks[0].encode(errors="backslashreplace") if tasks else b""

    def check_templates(self) -> None:
        """Refuses templates that lead nowhere, or out of the dataset.

        Raises:
          SourceError: says which.
        """
        for _ in self._files():
            pass

    def _files(self) -> Iterator[Path]:
        videos = [one.name for one in self.info.features.values() if one.kind == VIDEO]
        for number in self.episodes.with_own_file("data"):
            yield self.episodes.rows(number)[0]
        for key in videos if self.reading.videos != SKIP else ():
            for number in self.episodes.with_own_file(f"videos/{key}"):
                yield self.episodes.video(number, key)[0]


def read_dataset(root: Path, reading: Reading) -> Dataset:
    """Reads meta/.

    Raises:
      SourceError: it is missing, damaged or makes no sense.
    """
    info = read_info(root)
    if EPISODE_INDEX not in info.features:
        raise SourceError(f"{root}: meta/info.json: no feature {EPISODE_INDEX}, which every dataset of LeRobot has")
    episodes = read_episodes(info)
    tasks = read_tasks(info) if TASK_INDEX in info.features and reading.task != SKIP else {}
    read = {name: feature for name, feature in info.features.items() if _is_read(feature, reading)}
    return Dataset(info, episodes, tasks, _place_of_task(tasks, episodes, reading), reading, Steps(read, reading))


def _is_read(feature: Feature, reading: Reading) -> bool:
    if feature.kind == VIDEO and reading.videos == SKIP:
        return False
    return reading.reserved or feature.name not in _NOT_STEPS


def _place_of_task(tasks: Mapping[int, bytes], episodes: Episodes, reading: Reading) -> str:
    if not tasks:
        return SKIP
    if reading.task is not None:
        return reading.task
    is_told = episodes.tasks is not None and not episodes.info.task_is_column
    is_one = is_told and all(len(one) <= 1 for one in episodes.tasks or ())
    return METADATA if is_one else COLUMN
