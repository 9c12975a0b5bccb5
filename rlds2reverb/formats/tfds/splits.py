"""From a source name to the records it asks for: the request, the split, the files and the order in which they are read.

`NAME[/CONFIG][:VERSION][@SPLIT][?OPTIONS]` names a prepared dataset as TFDS writes it, `/path[@SPLIT][?OPTIONS]` a
version directory. OPTIONS are `key=value`, separated by commas:

| option | values | meaning |
| --- | --- | --- |
| `order` | `tfds` (default), `file` | the order of episodes: as TFDS interleaves the files, or file by file |
| `lost_records` | `refuse` (default), `skip` | what to do when a parquet file has fewer records than the dataset says |
| `reader` | `files` (default), `tfds` | who reads: this package from the files, where it can; or TFDS |
| `even` | `INDEXofCOUNT` | one of `tfds.even_splits(SPLIT, COUNT)`, numbered from 0 |
| `drop_remainder` | `no` (default), `yes` | of `even`: make all parts equally long, and leave out what is over |

A split ends a path only when no separator follows its "@", and options only when none follows their "?"; a sign that is part of the path is
written as in `source_options`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.options import Parse, one_of, parted, read_options, unescaped, words
from rlds2reverb.formats.tfds.info import SplitInfo, id_prefixes
from rlds2reverb.formats.tfds.records import LOST_RECORDS, REFUSE, TFRECORD, open_records
from rlds2reverb.text import counted

SYNTAX = "tfds:NAME[/CONFIG][:VERSION][@SPLIT] or tfds:/path[@SPLIT]"

TFDS_ORDER, FILE_ORDER = "tfds", "file"

_NAME = re.compile(
    r"(?:(?P<namespace>[\w\-]+):)?(?P<name>[a-zA-Z]\w*)"
    r"(?:/(?P<config>[\w+\-.]+))?"
    r"(?::(?P<version>(?:\d+|\*)(?:\.(?:\d+|\*)){2}))?"
    r"(?:/(?P<arguments>(?:\w+=[^,]+,?)+))?"
)
_DIRECTORY = re.compile(r"[/~\\]|\.\.?[/\\]|[a-zA-Z]:[/\\]|\w+://")
"""How a directory begins, on Linux, on Windows and in a cloud."""

_SPLIT = re.compile(r"(?P<dataset>.*)@(?P<split>[^/\\]*)", re.DOTALL)
_EVEN = re.compile(r"(?P<index>\d{1,9})of(?P<count>\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class DatasetName:
    """A dataset as TFDS names it.

    Attributes:
      name: in snake case.
      config: "" for none.
      version: "1.2.3", or with "*" for any number; "" for the newest.
    """

    name: str
    config: str = ""
    version: str = ""

    def __str__(self) -> str:
        return self.name + (f"/{self.config}" if self.config else "") + (f":{self.version}" if self.version else "")

    @staticmethod
    def parse(text: str) -> DatasetName:
        """From "NAME[/CONFIG][:VERSION]"; a name in camel case becomes one in snake case.

        Raises:
          SourceError: it is no such name, has a namespace, or has arguments for a builder's code.
        """
        found = _NAME.fullmatch(text)
        if found is None:
            raise SourceError(
                f'tfds:{text}: cannot be opened: "{text}" is no name of a dataset; expected {SYNTAX}, '
                "where VERSION is three numbers, each of which may be *"
            )
        if found["namespace"]:
            raise SourceError(
                f'tfds:{text}: "{found["namespace"]}" is a namespace, and datasets of a namespace come with code to run, '
                "which is not accepted; prepare it first (`tfds build`), and name its directory: tfds:/path/to/version_dir"
            )
        if found["arguments"]:
            raise SourceError(
                f'tfds:{text}: the arguments "{found["arguments"]}" are for the code that prepares a dataset, and only '
                "its files are read; choose among them by tfds:NAME/CONFIG:VERSION or tfds:/path/to/version_dir"
            )
        return DatasetName(in_snake_case(found["name"]), found["config"] or "", found["version"] or "")


@dataclass(frozen=True)
class EvenPart:
    """One of the parts that `tfds.even_splits` makes of a split.

    Attributes:
      index: 0 <= index < count.
      count: how many parts there are.
      drop_remainder: all parts have the same length, and what is over is in none.
    """

    index: int
    count: int
    drop_remainder: bool = False


@dataclass(frozen=True)
class Request:
    """A parsed source name.

    Attributes:
      dataset: a name, or the text of a directory.
      split: as TFDS writes splits.
      order: `TFDS_ORDER` or `FILE_ORDER`.
      lost_records: of `records.LOST_RECORDS`.
      through_tfds: TFDS is to read it, whether it can be read from the files or not.
      even: which even part of the split; None for the whole.
    """

    dataset: DatasetName | str
    split: str = "train"
    order: str = TFDS_ORDER
    lost_records: str = REFUSE
    through_tfds: bool = False
    even: EvenPart | None = None

    @staticmethod
    def parse(text: str, people: str = "") -> Request:
        """Parses the text after "tfds:".

        Args:
          text: "NAME[/CONFIG][:VERSION][@SPLIT][?OPTIONS]" or "/path[@SPLIT][?OPTIONS]".
          people: what messages call it; by default "tfds:" and the text.

        Raises:
          SourceError: there is no dataset, its name is none, or an option is unknown; says what there is.
        """
        people = people or f"tfds:{text}"
        rest, options = parted(text)
        in_parts = _SPLIT.fullmatch(rest)
        dataset, split = (in_parts["dataset"], in_parts["split"]) if in_parts else (rest, "")
        if not dataset:
            raise SourceError(f'"{people}": expected {SYNTAX}')
        wanted = read_options(people, options, _KNOWN)
        drop = wanted.pop("drop_remainder", None)
        if drop is not None:
            if "even" not in wanted:
                raise SourceError(f'"{people}": drop_remainder goes with even=INDEXofCOUNT only')
            wanted["even"] = EvenPart(wanted["even"].index, wanted["even"].count, drop)
        named = _named(unescaped(dataset))
        through_tfds = wanted.pop("reader", False)
        return Request(named, split or "train", through_tfds=through_tfds, **wanted)


def _named(text: str) -> DatasetName | str:
    """A name as written: a dataset's name or a folder. An existing folder counts only if it is written as a path."""
    is_directory = _DIRECTORY.match(text) or (not _NAME.fullmatch(text) and os.path.isdir(text))  # noqa: PTH112 - of no path too long, either
    return text if is_directory else DatasetName.parse(text)


def in_snake_case(name: str) -> str:
    """A name in camel case as TFDS writes it in files: "MyRobot2Data" -> "my_robot2_data"."""
    apart = re.sub("(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub("([a-z0-9])([A-Z])", r"\1_\2", apart).lower()


def _even(text: str) -> EvenPart:
    found = _EVEN.fullmatch(text)
    if found is None or not int(found["index"]) < int(found["count"]):
        raise ValueError("expected INDEXofCOUNT with 0 <= INDEX < COUNT, such as 0of4")
    return EvenPart(int(found["index"]), int(found["count"]))


_KNOWN: dict[str, Parse] = {
    "order": one_of(tfds=TFDS_ORDER, file=FILE_ORDER),
    "lost_records": words(*LOST_RECORDS),
    "reader": one_of(files=False, tfds=True),
    "even": _even,
    "drop_remainder": one_of(yes=True, no=False),
}


# Which records of which files a split stands for.
#
# The language is that of TFDS: terms joined by "+", each the name of a split and at most one slice:
#
# | written | records |
# | --- | --- |
# | `train` | all |
# | `train[10:20]`, `train[:-5]` | by number; below 0 counts from the end |
# | `train[:10%]`, `train[12.5%:]` | by percent of all records, rounded to the nearest number, halves to the even one |
# | `train[1shard]`, `train[:-1shard]`, `train[1shard:3shard]` | whole files |
# | `all` | every split, in the order of the dataset |
#
# Digits may have "_" between them. A unit counts for both ends. Source: tensorflow-datasets 4.9.10, core/splits.py,
# subsplits_utils.py and utils/shard_utils.py.
#
# One thing differs: a slice whose end lies before its beginning is refused. TFDS goes on with it and reads other records.

ALL = "all"

_TERM = re.compile(r"(?P<split>[\w-]+)(?:\[(?P<slice>[\d\w%:.-]+)\])?")
_BOUND = re.compile(r"(?:(?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_PLUS = re.compile(r"\s*\+\s*")
_HINT = "expected such as train, train[:10%], train[10:20], train[1shard:], train+test"


@dataclass(frozen=True)
class Part:
    """Records of one file: `take` of them, after the first `skip`.

    Attributes:
      file: path from the version directory, which a template may lead out of.
      skip: records left out at the beginning.
      take: records read; at least 1.
      length: records of the whole file.
    """

    file: str
    skip: int
    take: int
    length: int


@dataclass(frozen=True)
class _Range:
    """Records [begin, end) of a split, counted over all its files."""

    split: SplitInfo
    begin: int
    end: int


@dataclass(frozen=True)
class _Slice:
    """What stands between brackets: both ends in their unit, None where one is left out."""

    begin: float | None
    end: float | None
    unit: str


def parts_of(split: str, splits: Mapping[str, SplitInfo], even: EvenPart | None = None) -> list[Part]:
    """The parts of files that a split stands for, in the order of its terms; empty when it has no record.

    Args:
      split: as TFDS writes it.
      splits: those of the dataset, in its order.
      even: which even part of every term is meant; None for the whole.

    Raises:
      SourceError: it is not written so, a split does not exist, a bound lies outside, or a slice ends before it begins.
    """
    ranges = _ranges(split, splits)
    if even is not None:
        ranges = [_even_part(one, even) for one in ranges]
    return [part for one in ranges for part in _parts(one)]


def _ranges(text: str, splits: Mapping[str, SplitInfo]) -> list[_Range]:
    if text in splits:  # also one that is called "all"
        return [_whole(splits[text])]
    found: list[_Range] = []
    for term in _PLUS.split(text):
        match = _TERM.fullmatch(term)
        if match is None:
            raise SourceError(f'"{term}" is no split; {_HINT}')
        if match["split"] == ALL:
            if match["slice"]:
                raise SourceError(f'"{term}": all splits together cannot be sliced; slice each of them')
            found += map(_whole, splits.values())
        else:
            found.append(_range(term, match["split"], match["slice"], splits))
    return found


def _whole(split: SplitInfo) -> _Range:
    return _Range(split, 0, split.num_examples)


def _range(term: str, name: str, selector: str | None, splits: Mapping[str, SplitInfo]) -> _Range:
    wanted = _Slice(None, None, "") if selector is None else _parsed_slice(term, selector)
    if name not in splits:
        raise SourceError(f"Unknown split '{name}'")
    split = splits[name]
    begin, end = _in_records(wanted, split)
    count = split.num_examples
    if abs(begin) > count or abs(end) > count:
        raise SourceError(f'"{term}" goes beyond the {counted(count, "record")} of the split')
    begin, end = (bound + count if bound < 0 else bound for bound in (begin, end))
    if begin > end:
        raise SourceError(f'"{term}" ends at record {end:,}, before it begins at {begin:,}')
    return _Range(split, begin, end)


def _parsed_slice(term: str, selector: str) -> _Slice:
    bounds = [_BOUND.fullmatch(bound) for bound in selector.split(":")]
    if not 1 <= len(bounds) <= 2 or not all(bounds) or not any(bound[0] for bound in bounds if bound):
        raise SourceError(f'"{term}" is no split; {_HINT}')
    values = [bound["value"] for bound in bounds if bound]
    unit = next((bound["unit"] for bound in bounds if bound and bound["unit"]), "")
    try:
        if len(values) == 1:
            if unit != "shard":
                raise SourceError(f'"{term}": one number selects a file, [{values[0]}shard]; else write [BEGIN:END]')
            return _Slice(int(values[0]), int(values[0]) + 1, unit)
        kind = float if unit == "%" else int
        begin, end = (None if value is None else kind(value) for value in values)
    except ValueError as error:
        raise SourceError(f'"{term}": {error}; {_HINT}') from error
    if unit == "%" and max(abs(begin or 0), abs(end or 0)) > 100:
        raise SourceError(f'"{term}": expected percentages from -100 to 100')
    return _Slice(begin, end, unit)


def _in_records(wanted: _Slice, split: SplitInfo) -> tuple[int, int]:
    """Both ends as numbers of records; below 0 they count from the end."""
    count, lengths = split.num_examples, split.shard_lengths
    if wanted.unit == "%":
        begin = 0 if wanted.begin is None else round(wanted.begin * count / 100.0)
        return begin, count if wanted.end is None else round(wanted.end * count / 100.0)
    first, last = (None if end is None else int(end) for end in (wanted.begin, wanted.end))
    if wanted.unit == "shard":
        begin = 0 if first is None else sum(lengths[:first])
        if last is not None and last <= 0:
            last += len(lengths)
        return begin, count if last is None else sum(lengths[:last])
    return first or 0, count if last is None else last


def _even_part(one: _Range, even: EvenPart) -> _Range:
    each, over = divmod(one.end - one.begin, even.count)
    if even.drop_remainder:
        over = 0
    begin = one.begin + each * even.index + min(even.index, over)
    return _Range(one.split, begin, begin + each + (even.index < over))


def _parts(one: _Range) -> list[Part]:
    found, first = [], 0
    lengths = one.split.shard_lengths
    for number, length in enumerate(lengths):
        skip, end = max(one.begin - first, 0), min(one.end - first, length)
        if skip < end:
            found.append(Part(one.split.file_names.of_shard(number, len(lengths)), skip, end - skip, length))
        first += length
    return found


# In which order the records of several files are read.
#
# TFDS reads without shuffling through `tf.data.Dataset.interleave` with 16 files open at a time and 16 records from each in
# turn. An ordered dataset (`disable_shuffling`) is read file by file. Source: TensorFlow 2.15, interleave_dataset_op.cc;
# tensorflow-datasets 4.9.10, core/reader.py.

CYCLE, BLOCK = 16, 16

T = TypeVar("T")


def interleaved(files: Iterable[Iterable[T]], cycle: int = CYCLE, block: int = BLOCK) -> Iterator[T]:
    """The records of all files, as TensorFlow interleaves them.

    A cycle of slots is gone round. A slot's turn gives up to `block` records of its file. A file ends when a turn finds
    less than that; the slot's next turn opens the next file. So a file whose length is a multiple of `block` has one more
    turn, without a record.

    Args:
      files: the records of every file, in the order in which files are opened. Each is iterated when its turn comes; an
        iterator with `close` is closed when this one is.
      cycle: how many files are open at a time; 1 reads file by file.
      block: most records of a turn.
    """
    unopened = iter(files)
    slots: list[Iterator[T] | None] = [None] * cycle
    is_any_open = True
    with ExitStack() as closing:
        closing.callback(_close, slots)
        while is_any_open:
            is_any_open = False
            for place, slot in enumerate(slots):
                records = _opened(unopened) if slot is None else slot
                if records is None:
                    continue
                is_any_open, slots[place], given = True, records, 0
                for record in islice(records, block):
                    given += 1
                    yield record
                if given < block:
                    slots[place] = None


class Run(NamedTuple):
    """Records that come one after the other.

    Attributes:
      file: its place among the files.
      first: number of the first record in it.
      records: how many; at least 1.
    """

    file: int
    first: int
    records: int


def runs(lengths: Sequence[int], cycle: int = CYCLE, block: int = BLOCK) -> Iterator[Run]:
    """Which records `interleaved` gives, and in which order, without reading any.

    Args:
      lengths: records of every file.
      cycle, block: as there.
    """
    unopened = iter(range(len(lengths)))
    slots: list[Run | None] = [None] * cycle
    is_any_open = True
    while is_any_open:
        is_any_open = False
        for place, slot in enumerate(slots):
            file, first = _turn(slot, unopened)
            if file is None:
                continue
            turn = Run(file, first, min(block, lengths[file] - first))
            is_any_open, slots[place] = True, turn if turn.records == block else None
            if turn.records:
                yield turn


def _turn(slot: Run | None, unopened: Iterator[int]) -> tuple[int | None, int]:
    """The file at this slot's turn and its first record; None if no file is left."""
    return (next(unopened, None), 0) if slot is None else (slot.file, slot.first + slot.records)


def _opened(unopened: Iterator[Iterable[T]]) -> Iterator[T] | None:
    file = next(unopened, None)
    return None if file is None else iter(file)


def _close(slots: list[Iterator[T] | None]) -> None:
    for slot in slots:
        close = getattr(slot, "close", None)
        if close is not None:
            close()


# The records that parts of files stand for, in order, each with its name.

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
    """Which of these names are files in a folder; one listing for all, because remote look-ups are slow."""
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
