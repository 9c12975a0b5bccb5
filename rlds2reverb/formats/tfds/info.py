"""What a version directory says of its dataset: dataset_info.json, a message of TFDS in proto3's JSON.

Field names come in camel case or as in the message, int64 as strings or numbers, and a field with its default value is
absent, or null. A field that tensorflow-datasets 4.9.10 does not know is refused, as it refuses it: it may say how the
files are to be read.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rlds2reverb.errors import SourceError
from rlds2reverb.files import read_object
from rlds2reverb.formats.tfds.records import ARRAY_RECORD, PARQUET, RIEGELI, TFRECORD
from rlds2reverb.text import shortened

INFO_FILE = "dataset_info.json"
FEATURES_FILE = "features.json"
EXPECTED = f"a version directory with {INFO_FILE} and {FEATURES_FILE}"

FILE_FORMATS = (TFRECORD, RIEGELI, ARRAY_RECORD, PARQUET)

INFO_FIELDS = (
    "name", "description", "version", "release_notes", "config_name", "config_description", "config_tags", "features",
    "citation", "size_in_bytes", "download_size", "location", "download_checksums", "schema", "splits",
    "supervised_keys", "redistribution_info", "module_name", "disable_shuffling", "file_format",
    "alternative_file_formats", "data_source_accesses", "is_blocked", "nondeterministic_order",
)  # fmt: skip
SPLIT_FIELDS = ("name", "num_shards", "shard_lengths", "num_bytes", "statistics", "filepath_template")

_VERSION = re.compile(r"(\d|[1-9]\d*)(\.(\d|[1-9]\d*)){2}", re.ASCII)
_MOST_NUMBER = 1 << 63
_MOST_RECORDS = 1 << 48
"""Most records of a split: no disk holds more, and Python counts no further than 64 bits."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class SplitInfo:
    """One split.

    Attributes:
      name: of the split.
      shard_lengths: records of every file.
      num_bytes: of all records, as the dataset says.
      file_names: how its files are called.
    """

    name: str
    shard_lengths: tuple[int, ...]
    num_bytes: int
    file_names: FileNames

    @property
    def num_examples(self) -> int:
        """Records of all files."""
        return sum(self.shard_lengths)


@dataclass(frozen=True)
class DatasetInfo:
    """What is needed of dataset_info.json.

    Attributes:
      name: of the dataset.
      config: "" for none.
      version: three numbers.
      file_format: one of `FILE_FORMATS`.
      splits: by name, in the order of the file.
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
        """Name, config and version: what TFDS calls the dataset."""
        names = (self.name, self.config, self.version) if self.config else (self.name, self.version)
        return posixpath.join(*names)


def read_info(directory: Path) -> DatasetInfo:
    """Reads dataset_info.json of a version directory.

    Raises:
      SourceError: it is missing, too large, not JSON, a field is unknown or has a value that it cannot have, or the
        dataset's makers blocked this version.
    """
    path = directory / INFO_FILE
    fields = _Fields(str(path), read_object(path, EXPECTED), INFO_FIELDS)
    name, config, version = fields.text("name"), fields.text("config_name"), fields.text("version")
    if not _VERSION.fullmatch(version):
        raise SourceError(f'{path}: version "{shortened(version)}": expected MAJOR.MINOR.PATCH, such as 1.0.0')
    blocked = fields.text("is_blocked")
    if blocked and config:
        raise SourceError(f"{path}: the makers of the dataset blocked this version: {shortened(blocked)}")
    file_format = fields.text("file_format") or TFRECORD
    if file_format not in FILE_FORMATS:
        raise SourceError(f'{path}: fileFormat "{shortened(file_format)}": expected {", ".join(FILE_FORMATS)}')
    splits: dict[str, SplitInfo] = {}
    for number, value in enumerate(fields.values("splits")):
        split = _split(f"{path}: splits[{number}]", value, name, file_format)
        if split.name in splits:
            raise SourceError(f'{path}: splits: there are two of the name "{split.name}"')
        splits[split.name] = split
    return DatasetInfo(
        name, config, version, file_format, splits, fields.flag("disable_shuffling"), fields.has("features")
    )


def _split(where: str, value: Any, dataset: str, file_format: str) -> SplitInfo:
    if not isinstance(value, dict):
        raise SourceError(f"{where}: expected an object, found {_shown(value)}")
    fields = _Fields(where, value, SPLIT_FIELDS)
    name = fields.text("name")
    if not any(character.isalnum() for character in name):
        raise SourceError(f'{where}: name "{shortened(name)}": expected a letter or a digit in it')
    return SplitInfo(
        name,
        fields.checked("shard_lengths", _counts, ()),
        fields.checked("num_bytes", _whole_number, 0),
        FileNames(dataset, name, file_format, fields.text("filepath_template")),
    )


class _Fields:
    def __init__(self, where: str, values: dict[str, Any], known: tuple[str, ...]) -> None:
        self._where = where
        by_name = {name: name for name in known} | {_in_camel_case(name): name for name in known}
        self._values: dict[str, Any] = {}
        for key, value in values.items():
            if key not in by_name:
                raise SourceError(f'{where}: there is no field named "{shortened(key)}"; expected {", ".join(known)}')
            if by_name[key] in self._values:
                raise SourceError(f'{where}: field "{by_name[key]}" is there twice')
            if value is not None:
                self._values[by_name[key]] = value

    def has(self, name: str) -> bool:
        return name in self._values

    def checked(self, name: str, parse: Callable[[Any], Value], default: Value) -> Value:
        """A field's value; the default if the field is absent."""
        if name not in self._values:
            return default
        try:
            return parse(self._values[name])
        except ValueError as error:
            found = _shown(self._values[name])
            raise SourceError(f"{self._where}: {_in_camel_case(name)}: {error}, found {found}") from error

    def text(self, name: str) -> str:
        return self.checked(name, _of_kind(str, "a text"), "")

    def flag(self, name: str) -> bool:
        return self.checked(name, _of_kind(bool, "true or false"), False)

    def values(self, name: str) -> list[Any]:
        return self.checked(name, _of_kind(list, "a list"), [])


def _of_kind(kind: type[Value], expected: str) -> Callable[[Any], Value]:
    def parse(value: Any) -> Value:
        if not isinstance(value, kind):
            raise ValueError(f"expected {expected}")  # noqa: TRY004 - `checked` turns it into a SourceError
        return value

    return parse


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
    if not isinstance(values, list):
        raise ValueError("expected a list")  # noqa: TRY004 - as above
    numbers = tuple(map(_whole_number, values))
    if any(number < 0 for number in numbers):
        raise ValueError("expected numbers of at least 0")
    if sum(numbers) > _MOST_RECORDS:
        raise ValueError(f"expected at most {_MOST_RECORDS:,} in all")
    return numbers


def _in_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _shown(value: Any) -> str:
    return shortened(json.dumps(value))


# The names of a split's files: a template with variables, filled in for every shard.

DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"

_LEAST_DIGITS = 5
_PART = re.compile(r"\{\{|\}\}|\{(?P<variable>\w+)\}|[{}]")


@dataclass(frozen=True)
class FileNames:
    """How the files of one split are called.

    Attributes:
      dataset: {DATASET}.
      split: {SPLIT}.
      file_format: {FILEFORMAT}.
      template: what the dataset says; "" stands for the usual one.
    """

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
        values = {name: value for name, value in values.items() if value}
        return _PART.sub(lambda found: self._filled(found, values), self.template or DEFAULT_TEMPLATE)

    def _filled(self, found: re.Match[str], values: dict[str, str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        value = values.get(found["variable"] or "")
        if value is None:
            raise SourceError(
                f'file names of split "{self.split}": "{shortened(self.template)}" cannot be filled in at "{found[0]}"; '
                f"there are: {', '.join(f'{{{name}}}' for name in values)}"
            )
        return value


def id_prefixes(paths: Collection[str]) -> dict[str, str]:
    """What the names of a file's records begin with, for every file.

    That is its own name, or, where the files are in several directories, its path from the directory that differs on.
    Source: tensorflow-datasets 4.9.10, core/reader.py, whose names of records are part of item keys.

    Args:
      paths: with "/" between their parts.
    """
    folders = {posixpath.dirname(path) for path in paths}
    if len(folders) == 1:
        return {path: posixpath.basename(path) for path in paths}
    backwards = [folder[::-1] for folder in folders]
    common = re.escape(posixpath.commonprefix(backwards)[::-1])
    return {path: re.sub(rf".*/([^/]+{common}/[^/]+)", r"\1", path) for path in paths}
