"""The records that parts of files stand for, in order, each with its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.tfds_files.names import id_prefixes
from rlds2reverb.tfds_files.order import Run, interleaved, runs
from rlds2reverb.tfds_files.records import TFRECORD, open_records
from rlds2reverb.tfds_files.splits import Part

_BYTES_AROUND_DATA = 16
"""Of a TFRecord."""


@dataclass(frozen=True)
class Record:
    """One episode as it is stored.

    Attributes:
      name: within the dataset: what TFDS calls `tfds_id`.
      where: file and number; for messages.
      data: a serialized `tf.train.Example`.
    """

    name: str
    where: str
    data: bytes


@dataclass(frozen=True)
class Selection:
    """Records of a version directory.

    Attributes:
      directory: the version directory.
      file_format: of its files.
      parts: in the order of the split's terms.
      cycle: how many files are interleaved; 1 reads file by file.
      lost_records: "refuse" or "skip", see `records.open_records`.
    """

    directory: Path
    file_format: str
    parts: Sequence[Part]
    cycle: int
    lost_records: str

    def path(self, part: Part) -> Path:
        """The file of a part."""
        return self.directory / part.file

    @property
    def file_bytes(self) -> int:
        """Of all files that have records of it.

        Raises:
          SourceError: one cannot be looked at.
        """
        try:
            return sum(path.stat().st_size for path in set(map(self.path, self.parts)))
        except OSError as error:
            raise SourceError(f"{self.directory}: {error}") from error

    def check_files(self) -> None:
        """Looks whether the files are there.

        Raises:
          SourceError: one is missing, or is no regular file.
        """
        folders: dict[Path, set[str]] = {}
        for path in map(self.path, self.parts):
            folders.setdefault(path.parent, set()).add(path.name)
        for folder, names in folders.items():
            for name in sorted(names - _files_among(folder, names)):
                _check_file(folder / name)

    def records(self, on_lost: Callable[[Path, int], None]) -> Iterator[Record]:
        """Reads the records.

        Args:
          on_lost: is told of a file that has fewer records than it should, and how many fewer, where that is no error.

        Raises:
          SourceError: a file cannot be read, a record is damaged, or there are more or fewer than the dataset says.
        """
        prefixes = id_prefixes([self.path(part).as_posix() for part in self.parts])
        return interleaved((self._read(part, prefixes, on_lost) for part in self.parts), self.cycle)

    def records_between(self, start: int, stop: int) -> Iterator[Record]:
        """Reads the records number `start` to `stop` of those that `records` gives; the others are jumped over.

        Only for a selection that loses no records. Raises as `records`, for what is read.
        """
        if start <= 0 and stop >= sum(part.take for part in self.parts):
            yield from self.records(lambda *_: None)
            return
        wanted = list(_between(runs([part.take for part in self.parts], self.cycle), start, stop))
        bounds: dict[int, tuple[int, int]] = {}  # file -> its first record, and the one after its last
        for run in wanted:
            bounds[run.file] = bounds.get(run.file, (run.first, 0))[0], run.first + run.records
        prefixes = id_prefixes([self.path(part).as_posix() for part in self.parts])
        files = {
            file: self._read(replace(part, skip=part.skip + first, take=end - first), prefixes, lambda *_: None)
            for file, (first, end) in bounds.items()
            for part in (self.parts[file],)
        }
        try:
            for run in wanted:
                yield from islice(files[run.file], run.records)
                if run.first + run.records == bounds[run.file][1]:
                    next(files.pop(run.file), None)  # closes the file
        finally:
            for file in files.values():
                file.close()

    def _read(
        self, part: Part, prefixes: dict[str, str], on_lost: Callable[[Path, int], None]
    ) -> Generator[Record, None, None]:
        path, number, size = self.path(part), part.skip, 0
        prefix = prefixes[path.as_posix()]
        found = open_records(
            path, self.file_format, part.skip, part.take, total=part.length, lost_records=self.lost_records
        )
        for data in found:
            yield Record(f"{prefix}__{number}", f"{path}, record {number}", data)
            number += 1
            size += len(data) + _BYTES_AROUND_DATA
        lost = part.skip + part.take - number
        if lost:
            on_lost(path, lost)
        elif part.take == part.length and self.file_format == TFRECORD and path.stat().st_size > size:
            raise SourceError(
                f"{path}: there are more than the {part.length:,} records that the dataset says; prepare or copy it again"
            )


def _between(order: Iterable[Run], start: int, stop: int) -> Iterator[Run]:
    """What of these runs is between two numbers of records."""
    at = 0
    for run in order:
        first, last = max(start, at), min(stop, at + run.records)
        if first < last:
            yield Run(run.file, run.first + first - at, last - first)
        at += run.records
        if at >= stop:
            return


def _files_among(folder: Path, names: Collection[str]) -> set[str]:
    """Which of these names are files of a folder: one look for all of them, for where files are far away, each is a wait."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.name in names and entry.is_file()}
    except (OSError, ValueError):
        return set()


def _check_file(path: Path) -> None:
    try:
        check_regular(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise SourceError(f"{str(path)!r}: no path: {error}") from error
