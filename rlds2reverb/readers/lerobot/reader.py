"""Reads the steps of episodes, one after the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds2reverb.episodes import Array, content_hash
from rlds2reverb.errors import SourceError
from rlds2reverb.identity import content_name
from rlds2reverb.readers.lerobot.dataset import Dataset, WrittenAnew
from rlds2reverb.readers.lerobot.features import (
    DONE,
    EPISODE_INDEX,
    FRAME_INDEX,
    IMAGE,
    INDEX,
    NUMBER,
    TASK_INDEX,
    TIMESTAMP,
    VIDEO,
    Feature,
)
from rlds2reverb.readers.lerobot.pictures import check_libraries, decoded
from rlds2reverb.readers.lerobot.reading import COLUMN, METADATA, SKIP
from rlds2reverb.readers.lerobot.tables import Rows, Taken
from rlds2reverb.readers.lerobot.values import column, image_files
from rlds2reverb.readers.lerobot.videos import Clip
from rlds2reverb.readers.recordings import BrokenEpisode, Recording

_COUNTED = (FRAME_INDEX, INDEX)


class Reader:
    """Holds one file with rows open.

    Args:
      dataset: what is read.
      as_files: paths of images that are given as their files' bytes.
      odd: gets the numbers of the episodes in which something is odd, by the codes of `reading.ODD`.

    Raises:
      SourceError: a library that decodes images is missing.
    """

    def __init__(self, dataset: Dataset, as_files: Collection[str], odd: MutableMapping[str, set[int]]) -> None:
        self._dataset, self._as_files, self._odd = dataset, as_files, odd
        self._rows: Rows | None = None
        if any(
            one.kind == IMAGE and not one.is_depth and to not in as_files for to, one in dataset.steps.columns.items()
        ):
            check_libraries()

    def close(self) -> None:
        """Lets go of the file."""
        if self._rows is not None:
            self._rows.close()
        self._rows = None

    def one(self, number: int) -> Recording:
        """One episode.

        Raises:
          BrokenEpisode: its rows or its videos cannot be read, or are not those that meta/ tells of.
          WrittenAnew: its files are not those that were opened before.
        """
        try:
            path, first, count = self._dataset.episodes.rows(number)
            read = self._opened(path, count).read(first, first + count)
            return self._recording(number, path, read)
        except WrittenAnew:
            raise
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error

    def _opened(self, path: Path, count: int) -> Rows:
        """The file; of version 2, it has the episode's rows and no other."""
        if self._rows is None or (self._rows.path is not path and self._rows.path != path):
            self.close()
            self._dataset.check(path)
            self._rows = Rows(path, self._names(), self._row_bytes())
        if self._dataset.info.version[0] == 2 and self._rows.count != count:
            raise BrokenEpisode(
                "", f"{path}: has {self._rows.count:,} rows; expected {count:,}, as meta/episodes.jsonl says"
            )
        return self._rows

    def _names(self) -> list[str]:
        """Columns that are read."""
        dataset = self._dataset
        features = dataset.info.features
        names = [name for name, one in dataset.steps.features.items() if one.kind != VIDEO]
        needed = [EPISODE_INDEX, *(name for name in _COUNTED if name in features)]
        needed += [TASK_INDEX] if dataset.task != SKIP else []
        needed += [TIMESTAMP] if len(names) < len(dataset.steps.features) else []
        return list(dict.fromkeys((*names, *needed)))

    def _row_bytes(self) -> int:
        """Of the numbers of a row, as info.json tells."""
        features = self._dataset.info.features
        numbers = [features[name] for name in self._names() if name in features and features[name].kind == NUMBER]
        return sum(one.size * one.dtype.itemsize for one in numbers)

    def _recording(self, number: int, path: Path, read: Taken) -> Recording:
        dataset = self._dataset
        self._check(number, path, read)
        stored = {to: self._stored(one, number, path, read) for to, one in dataset.steps.columns.items()}
        if dataset.task == COLUMN:
            stored[dataset.task_path] = self._texts(path, read)
        elif dataset.task == METADATA:
            self._check_task(dataset.task_of(number), path, read)
        done = dataset.steps.done
        flags = None if done is None else self._plain(done.name, path, read)
        if flags is not None and flags[:-1].any():
            self._found("done_inside", number)

        def decode() -> Mapping[str, Array]:
            try:
                columns = {
                    to: one if isinstance(one, np.ndarray) else self._decoded(one, path) for to, one in stored.items()
                }
                return dataset.steps.made(columns, flags)
            except SourceError as error:
                raise BrokenEpisode("", str(error)) from error

        return Recording(decode, dataset.metadata_of(number), content=self._name(stored, flags))

    def _stored(self, feature: Feature, number: int, path: Path, read: Taken) -> Array | _Files | Clip:
        """[T, ...] as it is stored: numbers and texts, the files of images, or a part of a video."""
        if feature.kind == VIDEO:
            return self._clip(feature, number, path, read)
        if feature.kind != IMAGE:
            return _values(feature, path, read)
        return _Files(feature, image_files(feature, read.column(feature.name), path))

    def _decoded(self, stored: _Files | Clip, path: Path) -> Array:
        if isinstance(stored, Clip):
            return stored.frames()
        if stored.feature.path in self._as_files:
            return stored.column
        return decoded(stored.feature, stored.files, f'{path}: column "{stored.feature.name}"')

    def _name(self, stored: Mapping[str, Array | _Files | Clip], flags: Array | None) -> str:
        """The episode's name, by its rows, the bytes of its images and videos, and the options that make other steps of these."""
        rows = {
            to: one.column if isinstance(one, _Files) else one
            for to, one in stored.items()
            if not isinstance(one, Clip)
        }
        digest = content_hash(rows if flags is None else {**rows, DONE: flags})
        digest.update(self._dataset.reading.label.encode())
        for to, one in sorted(stored.items()):
            if isinstance(one, Clip):
                digest.update(f"{to}|".encode())
                one.add_to(digest)
        return content_name(digest.hexdigest())

    def _clip(self, feature: Feature, number: int, path: Path, read: Taken) -> Clip:
        video, begin = self._dataset.episodes.video(number, feature.name)
        self._dataset.check(video)
        seconds = begin + self._plain(TIMESTAMP, path, read).astype(np.float64)
        if not np.isfinite(seconds).all():
            raise BrokenEpisode(feature.path, f"{path}: timestamps that are no finite numbers")
        return Clip(feature, video, seconds, self._dataset.reading.tolerance)

    def _plain(self, name: str, path: Path, read: Taken) -> Array:
        """[T] of a feature with one value per row."""
        feature = self._dataset.info.features.get(name)
        if feature is None or feature.size != 1:
            raise BrokenEpisode(
                "", f'{self._dataset.info.root}: meta/info.json: expected a feature "{name}" of the shape [1]'
            )
        return _values(feature, path, read).reshape(-1)

    def _check(self, number: int, path: Path, read: Taken) -> None:
        """That the rows are the episode's."""
        index = self._dataset.episodes.index(number)
        found = self._plain(EPISODE_INDEX, path, read)
        if (found != index).any():
            raise BrokenEpisode(
                "",
                f"{path}: rows of episode {int(found[found != index][0])} where meta/episodes has those of episode {index}",
            )
        counted = [self._plain(name, path, read) for name in _COUNTED if name in self._dataset.info.features]
        if not all(map(_counts, counted)):
            self._found("frame_index", number)

    def _texts(self, path: Path, read: Taken) -> Array:
        """[T] texts of the rows' tasks."""
        numbers, of = np.unique(self._plain(TASK_INDEX, path, read), return_inverse=True)
        texts = np.empty(len(numbers), object)
        texts[:] = [self._text(int(one), path) for one in numbers]
        return np.asarray(texts[of.reshape(-1)])

    def _check_task(self, told: bytes, path: Path, read: Taken) -> None:
        numbers = self._plain(TASK_INDEX, path, read)
        numbers = numbers[:1] if (numbers == numbers[:1]).all() else np.unique(numbers)
        if {self._text(int(one), path) for one in numbers} - {told}:
            raise BrokenEpisode(
                self._dataset.task_path,
                f"{path}: rows with other tasks than the one that meta/episodes tells; read them with task=column",
            )

    def _text(self, number: int, path: Path) -> bytes:
        text = self._dataset.tasks.get(number)
        if text is None:
            raise BrokenEpisode(
                self._dataset.task_path, f"{path}: task_index {number}, of which meta/tasks knows nothing"
            )
        return text

    def _found(self, code: str, number: int) -> None:
        self._odd.setdefault(code, set()).add(number)


@dataclass(frozen=True)
class _Files:
    """The files of an image column, one a row."""

    feature: Feature
    files: list[bytes]

    @property
    def column(self) -> Array:
        """[T] of objects."""
        found = np.empty(len(self.files), object)
        found[:] = self.files
        return found


def _counts(column: Array) -> bool:
    """Whether each number is one more than the one before."""
    return column.dtype != bool and bool((column[1:] - column[:-1] == 1).all())


def _values(feature: Feature, path: Path, read: Taken) -> Array:
    """[T, ...] of a feature that is neither images nor a video."""
    if feature.kind == NUMBER:
        return read.made(feature.name, lambda found: column(feature, found, path))
    return column(feature, read.column(feature.name), path)
