"""What describes a version directory: dataset_info.json, metadata.json, and the names of the files of a split.

dataset_info.json is a message of TFDS in proto3's JSON: field names come in camel case or as in the message, int64 as strings or numbers,
and a field with its default value is absent, or null. A field that tensorflow-datasets 4.9.10 does not know is refused, as it refuses
it: it may say how the files are to be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.files import read_object
from rlds2reverb.formats.source import About
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
_NAMES = ("name", "config_name", "version")
OUR_DESCRIPTION = "Episodes in RLDS form, converted by rlds2reverb."
METADATA, METADATA_FILE = "metadata", "metadata.json"
"""The fact, and the file, of `tfds.core.MetadataDict`."""

SPLIT_FIELDS = ("name", "num_shards", "shard_lengths", "num_bytes", "statistics", "filepath_template")

_NUMBER = r"(\d|[1-9]\d*)"
VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}", re.ASCII)
"""The text of a version; its groups are the three numbers."""
_MOST_NUMBER = 1 << 63
_MOST_RECORDS = 1 << 48
"""Most records of a split: no disk holds more, and `len` of Python is limited to 64 bits."""

MOST_SHARDS = 100_000
"""Most files of a split, and of all splits together. Each costs looks at the folder and some objects in memory: seconds in all, not minutes."""

DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
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
        return self._fill(self.dataset, self.file_format, f"{index:0{digits}d}", f"{count:0{digits}d}")

    def of_any_shard(self) -> re.Pattern[str]:
        """Matches the end of a path of any shard, of any number of them, in any file format and of a dataset of any name; its group
        `shard` is the shard's number.
        """
        number = rf"\d{{{_LEAST_DIGITS},{_MOST_DIGITS}}}"
        wild = {"dataset": r"[\w.-]+?", "format": "|".join(FILE_FORMATS), "shard": number, "count": number}
        pattern = re.escape(self._fill(*(f"\0{name}\0" for name in wild)))
        for name, value in wild.items():
            # What comes twice has one value, which also keeps a template from making a pattern that is slow.
            place = f"\0{name}\0"
            pattern = pattern.replace(place, f"(?P<{name}>{value})", 1).replace(place, f"(?P={name})")
        return re.compile(f"(?:^|/){pattern}$")

    def _fill(self, dataset: str, file_format: str, shard: str, shards: str) -> str:
        values = {
            "DATASET": dataset,
            "SPLIT": self.split,
            "FILEFORMAT": file_format,
            "SHARD_INDEX": shard,
            "NUM_SHARDS": shards,
            "SHARD_X_OF_Y": f"{shard}-of-{shards}",
        }

        def value_at(place: re.Match[str]) -> str:
            if place[0] in ("{{", "}}"):
                return place[0][0]
            value = values.get(place["variable"] or "")
            if not value:
                raise SourceError(
                    f'file names of split "{self.split}": "{shortened(self.template)}" cannot be filled in at "{place[0]}"; '
                    f"there are: {', '.join(f'{{{name}}}' for name, value in values.items() if value)}"
                )
            return value

        # Not str.format: a template comes from outside, and "{SPLIT.__class__}" would be looked up.
        return _PLACE.sub(value_at, self.template or DEFAULT_TEMPLATE)


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
    """The part of dataset_info.json that readers need. Splits are in the order of the file.

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
    fields = _read_fields(str(path), read_object(path, EXPECTED), INFO_FIELDS, _OF_DATASET)
    name, config, version = fields["name"], fields["config_name"], fields["version"]
    if not VERSION.fullmatch(version):
        raise SourceError(f'{path}: version "{shortened(version)}": expected MAJOR.MINOR.PATCH, such as 1.0.0')
    # TFDS blocks a version together with a config (read_only_builder.py), so that without a config the field blocks nothing.
    if fields["is_blocked"] and config:
        raise SourceError(f"{path}: the makers of the dataset blocked this version: {shortened(fields['is_blocked'])}")
    file_format = fields["file_format"] or TFRECORD
    if file_format not in FILE_FORMATS:
        raise SourceError(f'{path}: fileFormat "{shortened(file_format)}": expected {", ".join(FILE_FORMATS)}')
    splits: dict[str, SplitInfo] = {}
    for number, value in enumerate(fields["splits"]):
        where = f"{path}: splits[{number}]"
        if not isinstance(value, dict):
            raise SourceError(f"{where}: expected an object, found {shortened(json.dumps(value))}")
        about = _read_fields(where, value, SPLIT_FIELDS, _OF_SPLIT)
        split = about["name"]
        if not any(character.isalnum() for character in split):
            raise SourceError(f'{where}: name "{shortened(split)}": expected a letter or a digit in it')
        if split in splits:
            raise SourceError(f'{path}: splits: there are two of the name "{split}"')
        names = FileNames(name, split, file_format, about["filepath_template"])
        splits[split] = SplitInfo(split, about["shard_lengths"], about["num_bytes"], names)
    shards = sum(len(split.shard_lengths) for split in splits.values())
    if shards > MOST_SHARDS:
        raise SourceError(
            f"{path}: its {counted(len(splits), 'split')} have {shards:,} shards; expected at most {MOST_SHARDS:,} in all, the most that are read: "
            "prepare the dataset with fewer and larger files"
        )
    return DatasetInfo(name, config, version, file_format, splits, fields["disable_shuffling"], fields["features"])


def read_about(directory: Path) -> About:
    """What dataset_info.json and metadata.json of a version directory say of the dataset as a whole.

    Raises:
      SourceError: as `read_info`; or metadata.json holds no JSON object.
    """
    path = directory / INFO_FILE
    fields = _present_fields(str(path), read_object(path, EXPECTED), INFO_FIELDS)
    facts = {name: value for name, value in fields.items() if name not in _SAID_ANEW and value != OUR_DESCRIPTION}
    if (directory / METADATA_FILE).exists():
        facts[METADATA] = read_object(directory / METADATA_FILE, "the metadata of a dataset of TFDS")
    return About.of("tfds", facts, own={name: fields.get(name) for name in _NAMES})


def written_about(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of dataset_info.json that say these facts, and `METADATA` for metadata.json."""
    return {name if name == METADATA else _in_camel_case(name): value for name, value in facts.items()}


_Parsers = Mapping[str, tuple[Callable[[Any], Any], Any]]
"""Name of a field -> how its value is read, and its default."""


def _read_fields(where: str, values: dict[str, Any], names: tuple[str, ...], parsers: _Parsers) -> dict[str, Any]:
    """The values of the fields in `parsers`. Raises `SourceError` as `_present_fields`, and where one has a value of another kind."""
    fields = _present_fields(where, values, names)
    parsed = {}
    for name, (parse, default) in parsers.items():
        try:
            parsed[name] = parse(fields[name]) if name in fields else default
        except ValueError as error:
            value = shortened(json.dumps(fields[name]))
            raise SourceError(f"{where}: {_in_camel_case(name)}: {error}, found {value}") from error
    return parsed


def _present_fields(where: str, values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The fields that have a value, in one spelling. Raises `SourceError` for one that has no such name, or comes twice."""
    by_spelling = {name: name for name in names} | {_in_camel_case(name): name for name in names}
    fields: dict[str, Any] = {}
    for key, value in values.items():
        if key not in by_spelling:
            raise SourceError(f'{where}: there is no field named "{shortened(key)}"; expected {", ".join(names)}')
        if by_spelling[key] in fields:
            raise SourceError(f'{where}: field "{by_spelling[key]}" is there twice')
        if value is not None:
            fields[by_spelling[key]] = value
    return fields


def _check_kind(kind: type, expected: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"expected {expected}")  # noqa: TRY004 - `_read_fields` turns it into a SourceError
    return value


def _read_whole_number(value: Any) -> int:
    """Reads an int64 of proto3's JSON: a number, or its text, for JavaScript's numbers hold 53 bits only."""
    is_text = isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII)
    is_whole = isinstance(value, float) and value.is_integer()
    if isinstance(value, bool) or not (is_text or is_whole or isinstance(value, int)):
        raise ValueError("expected a whole number")
    number = int(value)
    if not -_MOST_NUMBER <= number < _MOST_NUMBER:
        raise ValueError("expected a number of 64 bits")
    return number


def _read_counts(values: Any) -> tuple[int, ...]:
    if len(_check_kind(list, "a list", values)) > MOST_SHARDS:
        raise ValueError(f"expected at most {MOST_SHARDS:,} shards, the most that are read, of {len(values):,}")
    numbers = tuple(map(_read_whole_number, values))
    if any(number < 0 for number in numbers):
        raise ValueError("expected numbers of at least 0")
    if sum(numbers) > _MOST_RECORDS:
        raise ValueError(f"expected at most {_MOST_RECORDS:,} in all")
    return numbers


_text, _flag = partial(_check_kind, str, "a text"), partial(_check_kind, bool, "true or false")
_OF_DATASET: _Parsers = {
    **dict.fromkeys(("name", "config_name", "version", "is_blocked", "file_format"), (_text, "")),
    "splits": (partial(_check_kind, list, "a list"), ()),
    "disable_shuffling": (_flag, False),
    "features": (lambda _: True, False),
}
_OF_SPLIT: _Parsers = {
    "name": (_text, ""),
    "filepath_template": (_text, ""),
    "shard_lengths": (_read_counts, ()),
    "num_bytes": (_read_whole_number, 0),
}


def _in_camel_case(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(map(str.capitalize, words))
