"""What a source name asks for: which dataset, which episodes of it, and how they are read.

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
from dataclasses import dataclass

from rlds2reverb.errors import SourceError
from rlds2reverb.source_options import Parse, one_of, parted, read_options, unescaped, words
from rlds2reverb.tfds_files.records import LOST_RECORDS, REFUSE

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
        """From what stands behind "tfds:".

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
    """What is read: a name, or a directory. A folder that is there is one where its path is no name."""
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
