"""The files of a version directory: their description in dataset_info.json, the records of a split, the order of reading, and the records.

dataset_info.json is a message of TFDS in proto3's JSON: field names come in camel case or as in the message, int64 as strings or numbers,
and a field with its default value is absent, or null. A field that tensorflow-datasets 4.9.10 does not know is refused, as it refuses
it: it may say how the files are to be read.
"""

from __future__ import annotations

import inspect
import json
import os
import posixpath
import re
import struct
from array import array
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import google_crc32c
import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.files import check_regular, read_object
from rlds2reverb.formats.buckets import BucketPath, canonical, for_library, local_copy
from rlds2reverb.formats.paths import Stamp, stamp_of
from rlds2reverb.formats.source import About
from rlds2reverb.formats.tfds import index
from rlds2reverb.text import counted, shortened

INFO_FILE = "dataset_info.json"
FEATURES_FILE = "features.json"
EXPECTED = f"a version directory with {INFO_FILE} and {FEATURES_FILE}"

TFRECORD, ARRAY_RECORD, PARQUET, RIEGELI = "tfrecord", "array_record", "parquet", "riegeli"
FILE_FORMATS = (TFRECORD, RIEGELI, ARRAY_RECORD, PARQUET)

INFO_FIELDS = (
    "name", "description", "version", "release_notes", "config_name", "config_description", "config_tags", "features",
    "citation", "size_in_bytes", "download_size", "location", "download_checksums", "schema", "splits",
    "supervised_keys", "redistribution_info", "module_name", "disable_shuffling", "file_format",
    "alternative_file_formats", "data_source_accesses", "is_blocked", "nondeterministic_order",
)  # fmt: skip
_SAID_ANEW = frozenset(
    [
        "name", "version", "config_name", "module_name", "splits", "features", "size_in_bytes", "disable_shuffling",
        "file_format", "alternative_file_formats", "is_blocked", "nondeterministic_order",
    ]
)  # fmt: skip
"""Fields that follow from the records of a dataset, from its name and from what made it."""
OUR_DESCRIPTION = "Episodes in RLDS form, converted by rlds2reverb."
METADATA, METADATA_FILE = "metadata", "metadata.json"
"""The fact, and the file, of `tfds.core.MetadataDict`."""

SPLIT_FIELDS = ("name", "num_shards", "shard_lengths", "num_bytes", "statistics", "filepath_template")

_VERSION = re.compile(r"(\d|[1-9]\d*)(\.(\d|[1-9]\d*)){2}", re.ASCII)
_MOST_NUMBER = 1 << 63
_MOST_RECORDS = 1 << 48
"""Most records of a split: no disk holds more, and `len` of Python is limited to 64 bits."""

MOST_SHARDS = 100_000
"""Most files of a split, and of all splits together. Each costs looks at the folder and some objects in memory: seconds in all, not minutes."""

_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_LEAST_DIGITS, _MOST_DIGITS = 5, 19
_PLACE = re.compile(r"\{\{|\}\}|\{(?P<variable>\w+)\}|[{}]")


@dataclass(frozen=True)
class FileNames:
    """Names of the files of one split, by a template with variables such as {DATASET}; "" stands for the default one."""

    dataset: str
    split: str
    file_format: str
    template: str = ""

    def of_shard(self, index: int, count: int) -> str:
        """The path of one shard of so many, from the version directory; shard numbers have five digits, or as many as the count.

        Raises:
          SourceError: the template has a variable that does not exist or has no value, or lone braces.
        """
        digits = max(_LEAST_DIGITS, len(str(count)))
        shard, shards = f"{index:0{digits}d}", f"{count:0{digits}d}"
        values = {
            "DATASET": self.dataset,
            "SPLIT": self.split,
            "FILEFORMAT": self.file_format,
            "SHARD_INDEX": shard,
            "NUM_SHARDS": shards,
            "SHARD_X_OF_Y": f"{shard}-of-{shards}",
        }
        return self._fill(values)

    def of_any_shard(self) -> re.Pattern[str]:
        """Matches the end of a path of any shard, of any number of them, in any file format and of a dataset of any name; its group
        `shard` is the shard's number.
        """
        number = rf"\d{{{_LEAST_DIGITS},{_MOST_DIGITS}}}"
        wild = {"shard": number, "count": number, "format": "|".join(FILE_FORMATS), "dataset": r"[\w.-]+?"}
        places = {name: f"\0{name}\0" for name in wild}
        values = {
            "DATASET": places["dataset"],
            "SPLIT": self.split,
            "FILEFORMAT": places["format"],
            "SHARD_INDEX": places["shard"],
            "NUM_SHARDS": places["count"],
            "SHARD_X_OF_Y": f"{places['shard']}-of-{places['count']}",
        }
        pattern = re.escape(self._fill(values))
        for (
            name,
            place,
        ) in places.items():  # what comes twice has one value, which also keeps a template from making a slow pattern
            pattern = pattern.replace(place, f"(?P<{name}>{wild[name]})", 1).replace(place, f"(?P={name})")
        return re.compile(f"(?:^|/){pattern}$")

    def _fill(self, values: Mapping[str, str]) -> str:
        def filled(found: re.Match[str]) -> str:
            if found[0] in ("{{", "}}"):
                return found[0][0]
            value = values.get(found["variable"] or "")
            if not value:
                raise SourceError(
                    f'file names of split "{self.split}": "{shortened(self.template)}" cannot be filled in at "{found[0]}"; '
                    f"there are: {', '.join(f'{{{name}}}' for name, value in values.items() if value)}"
                )
            return value

        return _PLACE.sub(filled, self.template or _DEFAULT_TEMPLATE)


@dataclass(frozen=True)
class SplitInfo:
    """One split: the records of every file, the bytes of all records as the dataset says, and the files' names."""

    name: str
    shard_lengths: tuple[int, ...]
    num_bytes: int
    file_names: FileNames

    @property
    def num_examples(self) -> int:
        return sum(self.shard_lengths)


@dataclass(frozen=True)
class DatasetInfo:
    """What is needed of dataset_info.json. Splits are in the order of the file.

    Attributes:
      is_ordered: the files keep the order in which the dataset was written (`disable_shuffling`).
      has_features: it describes the features itself, beside features.json.
    """

    name: str
    config: str
    version: str
    file_format: str
    splits: dict[str, SplitInfo]
    is_ordered: bool = False
    has_features: bool = False

    @property
    def full_name(self) -> str:
        return "/".join(filter(None, (self.name, self.config, self.version)))


def read_info(directory: Path) -> DatasetInfo:
    """Reads dataset_info.json of a version directory.

    Raises:
      SourceError: it is missing, too large, not JSON, a field is unknown or has an impossible value, or the
        dataset's makers blocked this version.
    """
    path = directory / INFO_FILE
    found = _fields(str(path), read_object(path, EXPECTED), INFO_FIELDS, _OF_DATASET)
    name, config, version = found["name"], found["config_name"], found["version"]
    if not _VERSION.fullmatch(version):
        raise SourceError(f'{path}: version "{shortened(version)}": expected MAJOR.MINOR.PATCH, such as 1.0.0')
    if found["is_blocked"] and config:
        raise SourceError(f"{path}: the makers of the dataset blocked this version: {shortened(found['is_blocked'])}")
    file_format = found["file_format"] or TFRECORD
    if file_format not in FILE_FORMATS:
        raise SourceError(f'{path}: fileFormat "{shortened(file_format)}": expected {", ".join(FILE_FORMATS)}')
    splits: dict[str, SplitInfo] = {}
    for number, value in enumerate(found["splits"]):
        where = f"{path}: splits[{number}]"
        if not isinstance(value, dict):
            raise SourceError(f"{where}: expected an object, found {shortened(json.dumps(value))}")
        one = _fields(where, value, SPLIT_FIELDS, _OF_SPLIT)
        split = one["name"]
        if not any(character.isalnum() for character in split):
            raise SourceError(f'{where}: name "{shortened(split)}": expected a letter or a digit in it')
        if split in splits:
            raise SourceError(f'{path}: splits: there are two of the name "{split}"')
        files = FileNames(name, split, file_format, one["filepath_template"])
        splits[split] = SplitInfo(split, one["shard_lengths"], one["num_bytes"], files)
    shards = sum(len(split.shard_lengths) for split in splits.values())
    if shards > MOST_SHARDS:
        raise SourceError(
            f"{path}: its {counted(len(splits), 'split')} have {shards:,} shards; expected at most {MOST_SHARDS:,} in all, the most that are read: "
            "prepare the dataset with fewer and larger files"
        )
    return DatasetInfo(name, config, version, file_format, splits, found["disable_shuffling"], found["features"])


def read_about(directory: Path) -> About:
    """What dataset_info.json and metadata.json of a version directory say of the dataset as a whole.

    Raises:
      SourceError: as `read_info`; or metadata.json holds no JSON object.
    """
    path = directory / INFO_FILE
    said = _by_name(str(path), read_object(path, EXPECTED), INFO_FIELDS)
    facts = {name: value for name, value in said.items() if name not in _SAID_ANEW and value != OUR_DESCRIPTION}
    if (directory / METADATA_FILE).exists():
        facts[METADATA] = read_object(directory / METADATA_FILE, "the metadata of a dataset of TFDS")
    return About.of("tfds", facts)


def written_about(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of dataset_info.json that say these facts, and `METADATA` for metadata.json."""
    return {name if name == METADATA else _in_camel_case(name): value for name, value in facts.items()}


_Read = Mapping[str, tuple[Callable[[Any], Any], Any]]
"""Name of a field -> how its value is read, and its default."""


def _fields(where: str, values: dict[str, Any], known: tuple[str, ...], read: _Read) -> dict[str, Any]:
    """The values of the fields in `read`. Raises `SourceError` as `_by_name`, and where one has a value of another kind."""
    found = _by_name(where, values, known)
    parsed = {}
    for name, (parse, default) in read.items():
        try:
            parsed[name] = parse(found[name]) if name in found else default
        except ValueError as error:
            value = shortened(json.dumps(found[name]))
            raise SourceError(f"{where}: {_in_camel_case(name)}: {error}, found {value}") from error
    return parsed


def _by_name(where: str, values: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """The fields that have a value, in one spelling. Raises `SourceError` for one that is not `known`, or comes twice."""
    by_spelling = {name: name for name in known} | {_in_camel_case(name): name for name in known}
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in by_spelling:
            raise SourceError(f'{where}: there is no field named "{shortened(key)}"; expected {", ".join(known)}')
        if by_spelling[key] in found:
            raise SourceError(f'{where}: field "{by_spelling[key]}" is there twice')
        if value is not None:
            found[by_spelling[key]] = value
    return found


def _of_kind(kind: type, expected: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"expected {expected}")  # noqa: TRY004 - `_fields` turns it into a SourceError
    return value


def _whole_number(value: Any) -> int:
    """An int64 of proto3's JSON: a number or its text."""
    is_text = isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII)
    is_whole = isinstance(value, float) and value.is_integer()
    if isinstance(value, bool) or not (is_text or is_whole or isinstance(value, int)):
        raise ValueError("expected a whole number")
    number = int(value)
    if not -_MOST_NUMBER <= number < _MOST_NUMBER:
        raise ValueError("expected a number of 64 bits")
    return number


def _counts(values: Any) -> tuple[int, ...]:
    if len(_of_kind(list, "a list", values)) > MOST_SHARDS:
        raise ValueError(f"expected at most {MOST_SHARDS:,} shards, the most that are read, of {len(values):,}")
    numbers = tuple(map(_whole_number, values))
    if any(number < 0 for number in numbers):
        raise ValueError("expected numbers of at least 0")
    if sum(numbers) > _MOST_RECORDS:
        raise ValueError(f"expected at most {_MOST_RECORDS:,} in all")
    return numbers


_text, _flag = partial(_of_kind, str, "a text"), partial(_of_kind, bool, "true or false")
_OF_DATASET: _Read = {
    **dict.fromkeys(("name", "config_name", "version", "is_blocked", "file_format"), (_text, "")),
    "splits": (partial(_of_kind, list, "a list"), ()),
    "disable_shuffling": (_flag, False),
    "features": (lambda _: True, False),
}
_OF_SPLIT: _Read = {
    "name": (_text, ""),
    "filepath_template": (_text, ""),
    "shard_lengths": (_counts, ()),
    "num_bytes": (_whole_number, 0),
}


def _in_camel_case(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(map(str.capitalize, words))


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
# One thing differs: a slice whose end lies before its beginning is refused. TFDS accepts it and reads other records.

_TERM = re.compile(r"(?P<split>[\w-]+)(?:\[(?P<slice>[\d\w%:.-]+)\])?")
_BOUND = re.compile(r"(?:(?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_PLUS = re.compile(r"\s*\+\s*")
_HINT = "expected such as train, train[:10%], train[10:20], train[1shard:], train+test"


@dataclass(frozen=True)
class EvenPart:
    """One of the `count` parts that `tfds.even_splits` makes of a split; with `drop_remainder`, all have the same length, and what is over is in none."""

    index: int
    count: int
    drop_remainder: bool = False


@dataclass(frozen=True)
class Part:
    """Records of one file of a split: `take` of them, after the first `skip`, of `length` in all. The path begins at the version directory,
    which a template may lead out of.
    """

    file: str
    skip: int
    take: int
    length: int
    split: str = ""


def parts_of(split: str, splits: Mapping[str, SplitInfo], even: EvenPart | None = None) -> list[Part]:
    """The parts of files that a split stands for, in the order of its terms, or an even part of every term; empty when it has no record.

    Raises:
      SourceError: it is written wrongly, a split does not exist, a bound lies outside, or a slice ends before it begins.
    """
    found = []
    for one, begin, end in _ranges(split, splits):
        if even is not None:
            each, over = divmod(end - begin, even.count)
            over = 0 if even.drop_remainder else over
            begin += each * even.index + min(even.index, over)
            end = begin + each + (even.index < over)
        first = 0
        for number, length in enumerate(one.shard_lengths):
            skip, stop = max(begin - first, 0), min(end - first, length)
            if skip < stop:
                file = one.file_names.of_shard(number, len(one.shard_lengths))
                found.append(Part(file, skip, stop - skip, length, one.name))
            first += length
    return found


def _ranges(text: str, splits: Mapping[str, SplitInfo]) -> Iterator[tuple[SplitInfo, int, int]]:
    """Records [begin, end) of splits, counted over all their files: one range for each term."""
    if text in splits:  # also one that is called "all"
        yield splits[text], 0, splits[text].num_examples
        return
    for term in _PLUS.split(text):
        match = _TERM.fullmatch(term)
        if match is None:
            raise SourceError(f'"{term}" is no split; {_HINT}')
        name, selector = match["split"], match["slice"]
        if name == "all":
            if selector:
                raise SourceError(f'"{term}": all splits together cannot be sliced; slice each of them')
            yield from ((split, 0, split.num_examples) for split in splits.values())
            continue
        if name not in splits:
            raise SourceError(f"Unknown split '{name}'")
        split = splits[name]
        records = split.num_examples
        begin, end = (0, records) if selector is None else _bounds(term, selector, split)
        if abs(begin) > records or abs(end) > records:
            raise SourceError(f'"{term}" goes beyond the {counted(records, "record")} of the split')
        begin, end = (bound + records if bound < 0 else bound for bound in (begin, end))
        if begin > end:
            raise SourceError(f'"{term}" ends at record {end:,}, before it begins at {begin:,}')
        yield split, begin, end


def _bounds(term: str, selector: str, split: SplitInfo) -> tuple[int, int]:
    """Both ends of a slice as numbers of records; below 0 they count from the end."""
    bounds = [_BOUND.fullmatch(bound) for bound in selector.split(":")]
    if not 1 <= len(bounds) <= 2 or not all(bounds) or not any(bound[0] for bound in bounds if bound):
        raise SourceError(f'"{term}" is no split; {_HINT}')
    texts = [bound["value"] for bound in bounds if bound]
    unit = next((bound["unit"] for bound in bounds if bound and bound["unit"]), "")
    records, lengths = split.num_examples, split.shard_lengths
    first: int | None
    last: int | None
    try:
        if len(texts) == 1:
            if unit != "shard":
                raise SourceError(f'"{term}": one number selects a file, [{texts[0]}shard]; else write [BEGIN:END]')
            first, last = int(texts[0]), int(texts[0]) + 1
        elif unit == "%":
            low, high = (None if text is None else float(text) for text in texts)
            if max(abs(low or 0), abs(high or 0)) > 100:
                raise SourceError(f'"{term}": expected percentages from -100 to 100')
            begin = 0 if low is None else round(low * records / 100.0)
            return begin, records if high is None else round(high * records / 100.0)
        else:
            first, last = (None if text is None else int(text) for text in texts)
    except ValueError as error:
        raise SourceError(f'"{term}": {error}; {_HINT}') from error
    if unit == "shard":
        begin = 0 if first is None else sum(lengths[:first])
        if last is not None and last <= 0:
            last += len(lengths)
        return begin, records if last is None else sum(lengths[:last])
    return first or 0, records if last is None else last


# In which order the records of several files are read.
#
# TFDS reads without shuffling through `tf.data.Dataset.interleave` with 16 files open at a time and 16 records from each in
# turn. An ordered dataset (`disable_shuffling`) is read file by file. Source: TensorFlow 2.15, interleave_dataset_op.cc;
# tensorflow-datasets 4.9.10, core/reader.py.

CYCLE, BLOCK = 16, 16


class Run(NamedTuple):
    """Consecutive records of one file (by its place among the files), from number `first` on; at least one."""

    file: int
    first: int
    records: int


def runs(lengths: Sequence[int], cycle: int = CYCLE, block: int = BLOCK) -> Iterator[Run]:
    """The records of all files, as TensorFlow interleaves them.

    The slots of a cycle take turns. A slot's turn gives up to `block` records of its file. A file ends when a turn finds
    fewer; the slot's next turn opens the next file. So a file whose length is a multiple of `block` has one more
    turn, without a record.

    Args:
      lengths: the records of every file, in the order in which files are opened.
      cycle: number of files open at a time; 1 reads file by file.
      block: most records of a turn.
    """
    return (run for _, run in _numbered_runs(lengths, cycle, block, 0))


def runs_between(lengths: Sequence[int], cycle: int, start: int, stop: int) -> Iterator[Run]:
    """The runs, cut to the records number `start` to `stop`."""
    for at, run in _numbered_runs(lengths, cycle, BLOCK, start):
        if at >= stop:
            return
        first, last = max(start, at), min(stop, at + run.records)
        if first < last:
            yield Run(run.file, run.first + first - at, last - first)


def _numbered_runs(lengths: Sequence[int], cycle: int, block: int, start: int) -> Iterator[tuple[int, Run]]:
    """The runs, each with the number of its first record; from `start` on all, and not all before."""
    unopened = iter(range(len(lengths)))
    slots: list[tuple[int, int] | None] = [None] * cycle  # file, first record of its next turn
    at, is_any_open, may_open = 0, True, True
    while is_any_open:
        is_any_open = False
        held = [slot for slot in slots if slot is not None]
        if held and at < start and (len(held) == cycle or not may_open):  # jumps over rounds of full turns
            rounds = min(
                (start - at) // (block * len(held)), *((lengths[file] - first) // block for file, first in held)
            )
            slots = [None if slot is None else (slot[0], slot[1] + rounds * block) for slot in slots]
            at += rounds * block * len(held)
        for place, slot in enumerate(slots):
            if slot is None:
                opened = next(unopened, None)
                if opened is None:
                    may_open = False
                    continue
                slot = opened, 0
            is_any_open, (file, first) = True, slot
            records = min(block, lengths[file] - first)
            slots[place] = (file, first + records) if records == block else None
            if records:
                yield at, Run(file, first, records)
                at += records


# The records that parts of files stand for, in order, each with its name.


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
    """Records of a version directory: of `parts`, in the order of the split's terms, with `cycle` files interleaved (1: file by file)."""

    directory: Path
    file_format: str
    parts: Sequence[Part]
    cycle: int

    @property
    def count(self) -> int:
        return sum(part.take for part in self.parts)

    @cached_property
    def _datasets(self) -> dict[str, str]:
        """What the names of a file's records begin with -> `dataset_of` them."""
        directory = canonical(self.directory)
        prefixes = id_prefixes([(self.directory / part.file).as_posix() for part in self.parts])
        return {prefixes[(self.directory / part.file).as_posix()]: f"{directory}@{part.split}" for part in self.parts}

    def dataset_of(self, name: str) -> str:
        """What the record of this name calls its dataset (`Episode.dataset`): its split, whichever records of which splits are read."""
        return self._datasets[name.rpartition("__")[0]]

    @property
    def lengths(self) -> dict[str, int]:
        """File -> number of all its records."""
        return {part.file: part.length for part in self.parts}

    @property
    def file_bytes(self) -> int:
        """Of all files that have records of it. Raises `SourceError` if the system cannot say it."""
        try:
            return sum(path.stat().st_size for path in {self.directory / part.file for part in self.parts})
        except OSError as error:
            raise SourceError(f"{self.directory}: {error}") from error

    def without_lost(self) -> tuple[Selection, dict[Path, int]]:
        """The records that its Parquet files still have; and file -> number of the missing ones."""
        lost: dict[Path, int] = {}
        parts = []
        for part in self.parts:
            path = self.directory / part.file
            with _parquet(path) as file:
                length = min(part.length, file.metadata.num_rows)
            take = max(0, min(part.take, length - part.skip))
            if take < part.take:
                lost[path] = lost.get(path, 0) + part.take - take
            parts.append(replace(part, take=take, length=length))
        return replace(self, parts=parts), lost

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Reads the records number `start` to `stop`; the rest are jumped over.

        Raises:
          SourceError: a file cannot be read, a record is damaged, or there are more or fewer than the dataset says.
        """
        wanted = list(runs_between([part.take for part in self.parts], self.cycle, start, stop))
        bounds: dict[int, tuple[int, int]] = {}  # file -> its first record, and the one after its last
        for run in wanted:
            bounds[run.file] = bounds.get(run.file, (run.first, 0))[0], run.first + run.records
        prefixes = id_prefixes([(self.directory / part.file).as_posix() for part in self.parts])
        files = {}
        for file, (first, end) in bounds.items():
            part = self.parts[file]
            files[file] = self._read(replace(part, skip=part.skip + first, take=end - first), prefixes)
        try:
            for run in wanted:
                yield from islice(files[run.file], run.records)
                if run.first + run.records == bounds[run.file][1]:
                    next(files.pop(run.file), None)  # checks the end, and closes the file
        finally:
            for unread in files.values():
                unread.close()

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Record]]:
        """Reads the records of these ascending numbers, each with its number, file by file; what lies between them is read where it is little.

        Raises:
          SourceError: as `records`.
        """
        wanted = np.asarray(numbers, np.int64)
        of_file: dict[int, list[tuple[int, int]]] = {}  # file -> (record of the part, number), both ascending
        for at, run in _numbered_runs([part.take for part in self.parts], self.cycle, BLOCK, int(wanted[0])):
            first, stop = np.searchsorted(wanted, (at, at + run.records))
            if first < stop:
                inside = wanted[first:stop].tolist()
                of_file.setdefault(run.file, []).extend((run.first + number - at, number) for number in inside)
            if stop == len(wanted):
                break
        prefixes = id_prefixes([(self.directory / part.file).as_posix() for part in self.parts])
        for file, found in of_file.items():
            part = self.parts[file]
            gap = _READ_ANYWAY_BYTES * part.length // max(1, stamp_of(self.directory / part.file)[0])
            begins = [at for at in range(len(found)) if not at or found[at][0] - found[at - 1][0] > 1 + gap]
            for begin, end in zip(begins, [*begins[1:], len(found)]):
                number_of = dict(found[begin:end])
                first, last = found[begin][0], found[end - 1][0]
                records = self._read(replace(part, skip=part.skip + first, take=last + 1 - first), prefixes)
                for place, record in enumerate(records, first):
                    if place in number_of:
                        yield number_of[place], record

    def rows(self, rows_of: Callable[[Record], int | None]) -> Array | None:
        """[count] uint64 rows of every record, in order; None where a record does not say them. They are kept in the cache.

        Raises:
          SourceError: as `records`.
        """
        prefixes = id_prefixes([(self.directory / part.file).as_posix() for part in self.parts])
        of_file: dict[str, Array] = {}
        for part in self.parts:
            path = self.directory / part.file
            stamp = stamp_of(path)
            if (
                self.file_format == TFRECORD and part.length > stamp[0] // FRAME_BYTES
            ):  # before memory is taken for them
                raise SourceError(
                    f"{path}: expected {part.length:,} records, as dataset_info.json says; {stamp[0]:,} bytes cannot hold them: prepare "
                    "or copy it again"
                )
            if part.file not in of_file:
                of_file[part.file] = index.load_rows(path, stamp, part.length)
            known = of_file[part.file]
            missing = part.skip + np.flatnonzero(known[part.skip : part.skip + part.take] == index.UNCOUNTED)
            if not len(missing):
                continue
            first, stop = int(missing[0]), int(missing[-1]) + 1
            for place, record in enumerate(self._read(replace(part, skip=first, take=stop - first), prefixes), first):
                rows = rows_of(record)
                if rows is None:
                    return None
                known[place] = rows
            index.save_rows(path, stamp, known)
        runs = _numbered_runs([part.take for part in self.parts], self.cycle, BLOCK, 0)
        pieces = [
            of_file[part.file][part.skip + run.first :][: run.records]
            for _, run in runs
            for part in [self.parts[run.file]]
        ]
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
            place = index_file(path, records, beside, on_walked)
            yield IndexedShard(str(path), records, str(place))

    def _read(self, part: Part, prefixes: dict[str, str]) -> Generator[Record, None, None]:
        path, size = self.directory / part.file, 0
        prefix = prefixes[path.as_posix()]
        found = open_records(path, self.file_format, part.skip, part.take, part.length)
        for number, data in enumerate(found, part.skip):
            yield Record(f"{prefix}__{number}", f"{path}, record {number}", data)
            size += len(data) + FRAME_BYTES
        if part.take == part.length and self.file_format == TFRECORD and path.stat().st_size > size:
            raise _too_many(path, part.length)


# The records of one file: `bytes` of one `tf.train.Example` each.


def open_records(path: Path, file_format: str, skip: int, take: int, total: int = 0) -> Iterator[bytes]:
    """Reads records `skip` to `skip + take` of one shard, which should have `total` (0 where unknown). Nothing is read ahead.

    Raises:
      SourceError: a missing library, a file that cannot be read or has fewer records, or a damaged record; the message says which.
    """
    if file_format == PARQUET:
        return parquet_records(path, skip, take, total)
    return tfrecords(path, skip, take) if file_format == TFRECORD else array_records(path, skip, take)


def check_format(file_format: str, where: str) -> None:
    """Raises `SourceError`, with what to do about it, for the file format that cannot be read."""
    if file_format == RIEGELI:
        raise SourceError(
            f"{where}: riegeli files are not read here, nor by tensorflow-datasets' wheels; prepare the dataset again "
            f'with file_format="{TFRECORD}" or "{ARRAY_RECORD}"'
        )


def _check_file(path: Path) -> None:
    try:
        check_regular(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


# TFRecord files. A record is its length (8 bytes, little-endian), a checksum of that (4), the data, and a checksum of it (4). There is
# no header. A checksum is CRC-32C, rotated and shifted ("masked"). TFDS never compresses these files.
#
# A length is compared with the file's before memory is allocated: a length of 2^40 is refused.
# Source: record_reader.cc and crc32c.h of TensorFlow 2.15.

_HEAD = struct.Struct("<QI")
_LENGTH_BYTES = 8
_SUM_BYTES = 4
FRAME_BYTES = 16
_BUFFER_BYTES = 1 << 20
_HEADS_BUFFER_BYTES = 1 << 13  # where only heads are read: of large records, what lies between them stays unread
_WALKED_AT_ONCE = 1 << 16  # records, between two calls of `on_walked`
MOST_BYTES = 1 << 31
"""No record is longer: it holds a `tf.train.Example`, and protobuf reads no message of 2 GiB."""


def masked_checksum(data: bytes) -> int:
    """The masked CRC-32C of some bytes, as TFRecord files store it."""
    plain: int = google_crc32c.value(data)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> tuple[bytes, bytes]:
    """What stands before and after a record in a TFRecord file."""
    length = len(record).to_bytes(_LENGTH_BYTES, "little")
    return _HEAD.pack(len(record), masked_checksum(length)), masked_checksum(record).to_bytes(_SUM_BYTES, "little")


def check_records(path: Path, most: int | None = None) -> None:
    """Refuses a file with a record longer than the file or 2 GiB among its first `most` (None for all); reads 8 bytes per record.

    A file that ends in the middle of a record passes; reading it raises the error.
    """
    try:
        check_regular(path)
        with path.open("rb", buffering=0) as file:
            size, start = path.stat().st_size, 0
            for number in count() if most is None else range(most):
                file.seek(start)
                head = file.read(_LENGTH_BYTES)
                if len(head) < _LENGTH_BYTES:
                    return
                length = int.from_bytes(head, "little")
                if length > min(size, MOST_BYTES):
                    raise _absurd(path, number, start, length, size)
                start += length + FRAME_BYTES
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def tfrecords(path: Path, skip: int, take: int) -> Iterator[bytes]:
    """Records number `skip` to `skip + take` of a file, checksums verified; raises as `open_records`.

    Those before are jumped over: by the file's index where there is one, else by the lengths in their heads. What was walked over becomes
    an index, where it was much.
    """
    try:
        check_regular(path)
        stamp = stamp_of(path)
        size, ends = stamp[0], array("Q")
        with ExitStack() as files:
            # From the first record on a disk's file needs no index; of an object it says where the last one ends.
            known = index.load(path, stamp) if skip or isinstance(path, BucketPath) else index.NOTHING
            places, file = known, None
            if skip + 1 < len(known):
                end = int(known[skip + take]) if skip + take < len(known) else size
                file = files.enter_context(_opened(path, int(known[skip]), end, _BUFFER_BYTES))
                if not _agrees(file, known, skip):
                    index.forget(path)
                    file, known = None, index.NOTHING
            if file is None:
                places = walked(path, stamp, known, skip)
                if places[len(known) - 1] != known[-1]:
                    known = index.NOTHING  # it was wrong
                file = files.enter_context(_opened(path, int(places[skip]), size, _BUFFER_BYTES))
            at = int(places[skip])
            try:
                for number in range(skip, skip + take):
                    length = _length(path, file, number, at, size)
                    if number + 1 < len(known) and known[number + 1] != at + length + FRAME_BYTES:
                        index.forget(path)  # it is wrong from here on, and so may be the end of what was opened
                        known = index.NOTHING
                        file = files.enter_context(_opened(path, at, size, _BUFFER_BYTES))
                        length = _length(path, file, number, at, size)
                    data, checksum = file.read(length), file.read(_SUM_BYTES)
                    if len(checksum) < _SUM_BYTES:
                        raise _cut(path, number, size)
                    if int.from_bytes(checksum, "little") != masked_checksum(data):
                        raise _damaged(path, number, "the checksum of its data is wrong")
                    at += length + FRAME_BYTES
                    ends.append(at)
                    yield data
            finally:
                index.save_walked(path, stamp, known, places[: skip + 1], ends)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def walked(path: Path, stamp: Stamp, known: Array, until: int) -> Array:
    """The places of a file's records up to number `until`, by their heads: from the last one that is `known` on, or from the first where that is wrong.

    Raises:
      SourceError: a head is damaged, or the file ends before.
      OSError: it cannot be read.
    """
    number, size, ends = max(0, len(known) - 2), stamp[0], array("Q")
    at = int(known[number])
    with _opened(path, at, size, _HEADS_BUFFER_BYTES) as file:
        if len(known) > 1 and not _agrees(file, known, number):
            index.forget(path)
            return walked(path, stamp, index.NOTHING, until)
        for one in range(number, until):
            length = _length(path, file, one, at, size)
            at += length + FRAME_BYTES
            if at > size:
                raise _cut(path, one, size)
            file.seek(length + _SUM_BYTES, os.SEEK_CUR)
            ends.append(at)
    return index.joined(known[: number + 1], ends)


def index_file(path: Path, records: int, beside: bool, on_walked: Callable[[int], None]) -> Path:
    """Saves the index of a file, and returns where.

    Args:
      records: number that the dataset says.
      beside: into the file's folder, in place of the cache.
      on_walked: is called with the number of records that came to those so far.

    Raises:
      SourceError: the file cannot be read, is damaged, or has another number of records; or nothing is put beside it.
      WriteError: the folder of the index cannot be written.
    """
    if beside:
        index.check_beside(path)  # before anything is read
    try:
        check_regular(path)
        stamp = stamp_of(path)
        places = index.load(path, stamp)
        on_walked(len(places) - 1)
        while (count := len(places)) <= records:
            places = walked(path, stamp, places, min(records, count + _WALKED_AT_ONCE))
            on_walked(len(places) - count)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    if len(places) != records + 1 or places[records] < stamp[0]:
        raise _too_many(path, records)
    return index.save(path, stamp, places, beside)


def _opened(path: Path, start: int, stop: int, buffer_bytes: int) -> IO[bytes]:
    """A file, open at byte `start`; nothing from `stop` on is asked of a bucket."""
    if isinstance(path, BucketPath):
        return path.open_part(start, stop, buffer_bytes)
    file = path.open("rb", buffering=buffer_bytes)
    file.seek(start)
    return file


def _agrees(file: IO[bytes], places: Array, number: int) -> bool:
    """Whether the file has, where it stands, the head of a record as long as its index says."""
    head = file.read(_HEAD.size)
    file.seek(-len(head), os.SEEK_CUR)
    length = int(places[number + 1]) - int(places[number]) - FRAME_BYTES
    return len(head) == _HEAD.size and _HEAD.unpack(head) == (length, masked_checksum(head[:_LENGTH_BYTES]))


def _length(path: Path, file: IO[bytes], number: int, start: int, size: int) -> int:
    """Reads the length in the head of the record that begins at byte `start`; the file position is at its data afterwards."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise _cut(path, number, size)
    length, checksum = _HEAD.unpack(head)
    if checksum != masked_checksum(head[:_LENGTH_BYTES]):
        raise _damaged(path, number, "the checksum of its length is wrong")
    if length > MOST_BYTES:
        raise _absurd(path, number, start, length, size)
    if length > size:
        raise _cut(path, number, size)
    return int(length)


def _too_many(path: Path, records: int) -> SourceError:
    return SourceError(
        f"{path}: there are more than the {records:,} records that the dataset says; prepare or copy it again"
    )


def _absurd(path: Path, number: int, start: int, length: int, size: int) -> SourceError:
    return SourceError(
        f"{path}: record {number}, at byte {start}, says that it has {length:,} bytes, and the file has "
        f"{size:,}: it is damaged there or before; prepare or copy it again"
    )


def _cut(path: Path, number: int, size: int) -> SourceError:
    return SourceError(
        f"{path}: the file ends before the end of record {number}, after {size:,} bytes; prepare or copy it again"
    )


def _damaged(path: Path, number: int, what: str) -> SourceError:
    return SourceError(f"{path}: record {number} is damaged: {what}; prepare or copy the file again")


# ArrayRecord files, read by their own package `array_record`, which is optional. TFDS writes one record per group, so that each can be
# read alone. Source: array_record 0.8's Python bindings.

_AT_ONCE = 64
"""Records read in one call."""


def array_records(path: Path, skip: int, take: int) -> Iterator[bytes]:
    """Records number `skip` to `skip + take` of a file; the package verifies its checksums. Raises as `open_records`."""
    _check_file(path)
    with needing(f"{path}: reading array_record files", "array-record", SourceError):
        from array_record.python.array_record_module import ArrayRecordReader
    which, reader = "", None
    try:
        reader = ArrayRecordReader(str(local_copy(path)))
        found = reader.num_records()
        if found < skip + take:
            raise SourceError(f"{path}: has {found:,} records; expected at least {skip + take:,}; copy the file again")
        for start in range(skip, skip + take, _AT_ONCE):
            end = min(start + _AT_ONCE, skip + take)
            which = f", records {start} to {end - 1}"
            yield from reader.read(start, end)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SourceError(f"{path}{which}: cannot be read as array_record: {reason}; copy the file again") from error
    finally:
        with suppress(RuntimeError):  # a damaged file raises the same error again
            if reader is not None:
                reader.close()


# Parquet files as TFDS writes them: one binary column `data`, a record per row. Read by `pyarrow`, which is optional.
# Parquet has checksums of its own, which are verified where they are present; TFDS writes none.
#
# TFDS 4.9.10 writes row groups of 100 records and loses what comes after in each batch that it writes, while
# dataset_info.json keeps the full number. A file that lost rows looks complete.
# Source: file_adapters.py of TFDS 4.9.10 (`ParquetFileAdapter`).

_COLUMN = "data"
_BINARY = ("binary", "large_binary")
_ROWS_AT_ONCE = 16


def parquet_records(path: Path, skip: int, take: int, total: int = 0) -> Iterator[bytes]:
    """Rows number `skip` to `skip + take`; raises as `open_records`. The loss of rows is noticed also when only a part is read."""
    with _parquet(path) as file:
        columns = {field.name: str(field.type) for field in file.schema_arrow}
        if columns.get(_COLUMN) not in _BINARY:
            raise SourceError(f'{path}: expected a column "{_COLUMN}" of binary records, found {columns}')
        found, expected = file.metadata.num_rows, max(skip + take, total)
        if found < expected:
            raise SourceError(
                f"{path}: has {found:,} records; expected {expected:,}, as dataset_info.json says: TFDS's parquet writer "
                'loses records past 100 per row group; prepare the dataset again as tfrecord, or read what is left with "?lost_records=skip" behind the name'
            )
        first, end = 0, skip + take  # first row of a group
        for group in range(file.metadata.num_row_groups):  # so a damaged group does not shift the rows of the rest
            rows = file.metadata.row_group(group).num_rows
            start, stop = max(skip - first, 0), min(end - first, rows)
            first += rows
            if start < stop:
                yield from _rows(path, file, group, start, stop)
        if first < end:
            raise SourceError(f"{path}: its row groups have {first:,} rows, and it says {end:,}; copy the file again")


def _rows(path: Path, file: Any, group: int, start: int, stop: int) -> Iterator[bytes]:
    row = 0
    for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[_COLUMN]):
        column = batch.column(0)[max(start - row, 0) : max(stop - row, 0)]
        if column.null_count:
            raise SourceError(f"{path}: a row without a record")
        yield from column.to_pylist()
        row += batch.num_rows
        if row >= stop:
            return
    raise SourceError(f"{path}: row group {group} ends after {row:,} rows; expected {stop:,}; copy the file again")


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The open file. What pyarrow raises inside becomes a `SourceError`."""
    _check_file(path)
    with needing(f"{path}: reading parquet files", "parquet", SourceError):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    verify = "page_checksum_verification"  # from pyarrow 15.0 on
    options = {verify: True} if verify in inspect.signature(ParquetFile).parameters else {}
    try:
        with ParquetFile(for_library(path), **options) as file:
            yield file
    except (ArrowException, OSError, ValueError, IndexError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SourceError(f"{path}: cannot be read as parquet: {reason}; copy the file again") from error
