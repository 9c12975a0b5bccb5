"""The names of a split's files: a template with variables, filled in for every shard."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass

from rlds2reverb.errors import SourceError
from rlds2reverb.wording import shortened

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
