"""Which records of a version directory are read, in which order, and how each is called.

TFDS reads without shuffling through `tf.data.Dataset.interleave` with 16 files open at a time and 16 records from each in turn. The slots of a
cycle take turns. A file ends when a turn finds fewer records than it may take; the slot's next turn opens the next file. So a file whose length
is a multiple of 16 has one more turn, without a record. An ordered dataset (`disable_shuffling`) is read file by file: a cycle of one.
Source: TensorFlow 2.15, interleave_dataset_op.cc; tensorflow-datasets 4.9.10, core/reader.py.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.buckets import canonical
from rlds2reverb.formats.paths import stamp_of
from rlds2reverb.formats.tfds import index
from rlds2reverb.formats.tfds.info import TFRECORD
from rlds2reverb.formats.tfds.records import count_rows, open_records
from rlds2reverb.formats.tfds.splits import Part
from rlds2reverb.formats.tfds.tfrecord import FRAME_BYTES, check_end, index_file

CYCLE, BLOCK = 16, 16
"""Files that TFDS has open at a time, and records of one turn."""


class Run(NamedTuple):
    """Consecutive records of one file (by its place among the files), from its record `first` on; `number` is the first one's in the whole order."""

    file: int
    first: int
    records: int
    number: int


def runs(
    lengths: Sequence[int], cycle: int = CYCLE, start: int = 0, stop: int = sys.maxsize, block: int = BLOCK
) -> Iterator[Run]:
    """The records number `start` to `stop` of all files, as TensorFlow interleaves them.

    Args:
      lengths: the records of every file, in the order in which files are opened.
      cycle: number of files open at a time; 1 reads file by file.
      block: most records of a turn.
    """
    unopened = iter(range(len(lengths)))
    slots: list[tuple[int, int] | None] = [None] * cycle  # file, first record of its next turn
    number, is_any_open, may_open = 0, True, True
    while is_any_open:
        is_any_open = False
        held = [slot for slot in slots if slot is not None]
        # While no slot opens or ends a file, rounds are alike: a late start jumps over them and does not walk a million records.
        if held and number < start and (len(held) == cycle or not may_open):
            rounds = min(
                (start - number) // (block * len(held)), *((lengths[file] - first) // block for file, first in held)
            )
            slots = [None if slot is None else (slot[0], slot[1] + rounds * block) for slot in slots]
            number += rounds * block * len(held)
        for place, slot in enumerate(slots):
            if slot is None:
                file_to_open = next(unopened, None)
                if file_to_open is None:
                    may_open = False
                    continue
                slot = file_to_open, 0
            is_any_open, (file, first) = True, slot
            records = min(block, lengths[file] - first)
            slots[place] = (file, first + records) if records == block else None
            begin, end = max(start - number, 0), min(stop - number, records)
            if begin < end:
                yield Run(file, first + begin, end - begin, number + begin)
            number += records
            if number >= stop:
                return


@dataclass(frozen=True)
class Record:
    """One episode as it is stored: its `tfds_id`, the file and its number there for messages, and the serialized `tf.train.Example`."""

    name: str
    where: str
    data: bytes


@dataclass(frozen=True)
class IndexedShard:
    """A shard, its number of records, and the file of its index."""

    file: str
    records: int
    index: str


def id_prefixes(paths: Collection[str]) -> dict[str, str]:
    """What the names of a file's records begin with: the file's own name, or its path from the directory that differs on.

    Source: tensorflow-datasets 4.9.10, core/reader.py.
    """
    folders = {posixpath.dirname(path) for path in paths}
    if len(folders) == 1:
        return {path: posixpath.basename(path) for path in paths}
    backwards = [folder[::-1] for folder in folders]
    common = re.escape(posixpath.commonprefix(backwards)[::-1])
    return {path: re.sub(rf".*/([^/]+{common}/[^/]+)", r"\1", path) for path in paths}


_READ_ANYWAY_BYTES = 1 << 20
"""Bytes between two records that are read rather than jumped over: a seek costs as much, or a request to a bucket."""


@dataclass(frozen=True)
class Selection:
    """Records of a version directory: of `parts`, in the order of the split's terms, with `cycle` files interleaved (1: file by file).

    What reads records raises `SourceError` where a file cannot be read, a record is damaged, or there are more or fewer than the dataset says.
    """

    directory: Path
    file_format: str
    parts: Sequence[Part]
    cycle: int

    @property
    def count(self) -> int:
        return sum(part.take for part in self.parts)

    @cached_property
    def _prefixes(self) -> dict[str, str]:
        """File -> what the names of its records begin with."""
        paths = {part.file: (self.directory / part.file).as_posix() for part in self.parts}
        prefixes = id_prefixes(paths.values())
        return {file: prefixes[path] for file, path in paths.items()}

    @cached_property
    def _datasets(self) -> dict[str, str]:
        """What the names of a file's records begin with -> `dataset_of` them."""
        directory = canonical(self.directory)
        return {self._prefixes[part.file]: f"{directory}@{part.split}" for part in self.parts}

    def dataset_of(self, name: str) -> str:
        """What the record of this name calls its dataset (`Episode.dataset`): its split, whichever records of which splits are read."""
        return self._datasets[name.rpartition("__")[0]]

    @property
    def lengths(self) -> dict[str, int]:
        """File -> number of all its records."""
        return {part.file: part.length for part in self.parts}

    @property
    def file_bytes(self) -> int:
        """Bytes of all files that have records of it. Raises `SourceError` if the system cannot say it."""
        try:
            return sum((self.directory / file).stat().st_size for file in self.lengths)
        except OSError as error:
            raise SourceError(f"{self.directory}: {error}") from error

    def without_lost(self) -> tuple[Selection, dict[Path, int]]:
        """The records that its Parquet files still have; and file -> number of the missing ones."""
        lost: dict[Path, int] = {}
        parts = []
        for part in self.parts:
            path = self.directory / part.file
            length = min(part.length, count_rows(path))
            take = max(0, min(part.take, length - part.skip))
            if take < part.take:
                lost[path] = lost.get(path, 0) + part.take - take
            parts.append(replace(part, take=take, length=length))
        return replace(self, parts=parts), lost

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Reads the records number `start` to `stop`; the rest are jumped over."""
        turns = list(self._runs(start, stop))
        # Each file is opened once, from its first record here to its last, and its reader goes on at its next turn.
        bounds: dict[int, tuple[int, int]] = {}  # file -> its first record, and the one after its last
        for run in turns:
            bounds[run.file] = bounds.get(run.file, (run.first, 0))[0], run.first + run.records
        files = {}
        for file, (first, end) in bounds.items():
            part = self.parts[file]
            files[file] = self._read(part, part.skip + first, end - first)
        try:
            for run in turns:
                yield from islice(files[run.file], run.records)
                if run.first + run.records == bounds[run.file][1]:
                    next(files.pop(run.file), None)  # checks the end, and closes the file
        finally:
            for unread in files.values():
                unread.close()

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Record]]:
        """Reads the records of these ascending numbers, each with its number, file by file; what lies between them is read where it is little."""
        ascending = np.asarray(numbers, np.int64)
        of_file: dict[int, list[tuple[int, int]]] = {}  # file -> (record of the part, number), both ascending
        for run in self._runs(int(ascending[0])):
            first, stop = np.searchsorted(ascending, (run.number, run.number + run.records))
            if first < stop:
                inside = ascending[first:stop].tolist()
                of_file.setdefault(run.file, []).extend((run.first + number - run.number, number) for number in inside)
            if stop == len(ascending):
                break
        for file, places in of_file.items():
            part = self.parts[file]
            gap = _READ_ANYWAY_BYTES * part.length // max(1, stamp_of(self.directory / part.file)[0])
            begins = [at for at in range(len(places)) if not at or places[at][0] - places[at - 1][0] > 1 + gap]
            for begin, end in zip(begins, [*begins[1:], len(places)]):
                number_of = dict(places[begin:end])
                first, last = places[begin][0], places[end - 1][0]
                for place, record in enumerate(self._read(part, part.skip + first, last + 1 - first), first):
                    if place in number_of:
                        yield number_of[place], record

    def rows(self, rows_of: Callable[[Record], int | None]) -> Array | None:
        """[count] uint64 rows of every record, in order; None where a record does not say them. They are kept in the cache."""
        of_file: dict[str, Array] = {}
        for part in self.parts:
            path = self.directory / part.file
            stamp = stamp_of(path)
            # Before memory is taken for as many numbers as dataset_info.json says.
            if self.file_format == TFRECORD and part.length > stamp[0] // FRAME_BYTES:
                raise SourceError(
                    f"{path}: expected {part.length:,} records, as dataset_info.json says; {stamp[0]:,} bytes cannot hold them: prepare "
                    "or copy it again"
                )
            if part.file not in of_file:
                of_file[part.file] = index.load_rows(path, stamp, part.length)
            counts = of_file[part.file]
            missing = part.skip + np.flatnonzero(counts[part.skip : part.skip + part.take] == index.UNCOUNTED)
            if not len(missing):
                continue
            first, stop = int(missing[0]), int(missing[-1]) + 1
            for place, record in enumerate(self._read(part, first, stop - first), first):
                rows = rows_of(record)
                if rows is None:
                    return None
                counts[place] = rows
            index.save_rows(path, stamp, counts)
        pieces = []
        for run in self._runs():
            part = self.parts[run.file]
            pieces.append(of_file[part.file][part.skip + run.first :][: run.records])
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint64)

    def index(self, beside: bool, on_walked: Callable[[int], None]) -> Iterator[IndexedShard]:
        """Saves the index of each of its files, one after the other; see `index_file`.

        Raises:
          SourceError: they are no TFRecord files; or as `index_file`.
          WriteError: as `index_file`.
        """
        if self.file_format != TFRECORD:
            raise SourceError(
                f"{self.directory}: {self.file_format} files say themselves where their records begin; only {TFRECORD} files need an index"
            )
        for file, records in self.lengths.items():
            path = self.directory / file
            yield IndexedShard(str(path), records, str(index_file(path, records, beside, on_walked)))

    def _runs(self, start: int = 0, stop: int = sys.maxsize) -> Iterator[Run]:
        return runs([part.take for part in self.parts], self.cycle, start, stop)

    def _read(self, part: Part, skip: int, take: int) -> Generator[Record, None, None]:
        """Reads `take` records of a part's file after the first `skip`. Where that is all of it, nothing may be left behind them."""
        path, size = self.directory / part.file, 0
        prefix = self._prefixes[part.file]
        for number, data in enumerate(open_records(path, self.file_format, skip, take, part.length), skip):
            yield Record(f"{prefix}__{number}", f"{path}, record {number}", data)
            size += len(data) + FRAME_BYTES
        if take == part.length and self.file_format == TFRECORD:
            check_end(path, part.length, size)
