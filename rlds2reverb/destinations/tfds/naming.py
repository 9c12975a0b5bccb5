"""What the name of a TFDS destination says: which folder, which dataset, and how its files are to be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlds2reverb.destinations.tfds.features import PNG, TENSOR
from rlds2reverb.errors import ConfigError
from rlds2reverb.source_options import Parse, at_least_one, one_of, path_and_options, unescaped, words
from rlds2reverb.tfds_files.features import ENCODINGS, NONE
from rlds2reverb.tfds_files.locate import data_folders
from rlds2reverb.tfds_files.records import ARRAY_RECORD, PARQUET, TFRECORD
from rlds2reverb.tfds_files.requests import in_snake_case

_NAMED = re.compile(
    r"(?P<dataset>.+?)(?::(?P<version>[^:@/\\]*))?(?:@(?P<split>[^@/\\]*))?",
    re.DOTALL,
)
_NAME = re.compile(r"[a-z]\w*", re.ASCII)
_VERSION = re.compile(r"(\d|[1-9]\d{1,8})(\.(\d|[1-9]\d{1,8})){2}", re.ASCII)
_SPLIT = re.compile(r"[a-zA-Z0-9_]+")
_MOST_SHARDS = 99_999
_SYNTAX = "tfds:/data_dir/NAME[:VERSION][@SPLIT]"


@dataclass(frozen=True)
class Target:
    """A dataset to be.

    Attributes:
      people: what messages call it.
      data_dir: the folder of all datasets.
      name, version, split: of this one.
      file_format: "tfrecord", "array_record" or "parquet".
      shards: how many files; None for as many as TFDS would write.
      shard_bytes: how large a file may become, where `shards` does not say how many there are; None for TFDS' rule.
      encoding: how numbers are stored that a list of an Example does not hold exactly: "bytes" or "zlib".
      images: what becomes of image columns of numbers: "png" files, or a "tensor" as any other.
    """

    people: str
    data_dir: Path
    name: str
    version: str = "1.0.0"
    split: str = "train"
    file_format: str = TFRECORD
    shards: int | None = None
    shard_bytes: int | None = None
    encoding: str = "bytes"
    images: str = PNG

    @property
    def path(self) -> Path:
        """The version directory."""
        return self.data_dir / self.name / self.version

    @staticmethod
    def parse(text: str) -> Target:
        """From what stands behind "tfds:".

        Raises:
          ConfigError: it names no dataset, or an option makes no sense.
        """
        people = f"tfds:{text}"
        rest, wanted = path_and_options(people, text, _KNOWN, ConfigError)
        found = _NAMED.fullmatch(rest)
        if found is None:
            raise ConfigError(f'"{people}": expected {_SYNTAX}')
        folder = Path(unescaped(found["dataset"])).expanduser()
        alone = folder.parent == Path() and not found["dataset"].startswith(".")
        data_dir = data_folders()[0] if alone else folder.parent
        version, split = found["version"] or "1.0.0", found["split"] or "train"
        _check(people, folder.name, version, split)
        return Target(people, data_dir, folder.name, version, split, **wanted)


def _check(people: str, name: str, version: str, split: str) -> None:
    if not _NAME.fullmatch(name) or name != in_snake_case(name):
        raise ConfigError(
            f'"{people}": "{name}": expected a name of a dataset in lower case, such as my_dataset ({_SYNTAX})'
        )
    if not _VERSION.fullmatch(version):
        raise ConfigError(f'"{people}": version "{version}": expected three numbers, such as 1.0.0')
    if not _SPLIT.fullmatch(split) or split == "all":
        raise ConfigError(f'"{people}": split "{split}": expected one name of letters, digits and _, such as train')


def _shards(text: str) -> int:
    number = at_least_one(text)
    if number > _MOST_SHARDS:
        raise ValueError(f"expected 1 to {_MOST_SHARDS:,}, for names of files number them by five digits")
    return number


_KNOWN: dict[str, Parse] = {
    "file_format": words(TFRECORD, ARRAY_RECORD, PARQUET),
    "shards": _shards,
    "shard_bytes": at_least_one,
    "encoding": one_of(**{name: name for name in ENCODINGS if name != NONE}),
    "images": one_of(png=PNG, tensor=TENSOR),
}
