"""meta/info.json, and the paths that it makes: templates filled in by this module only, never by `str.format`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.json_files import read_object
from rlds2reverb.readers.lerobot.features import Feature, features_of, tells_of_tasks
from rlds2reverb.readers.paths import check_link
from rlds2reverb.wording import shortened

_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(\.\d{1,3})?", re.ASCII)
_FIELD = re.compile(r"\{(\w{1,32})(?::0?(\d{1,2})d?)?\}", re.ASCII)
_LONGEST_PATH = 1000


@dataclass(frozen=True)
class Info:
    """What info.json says, as far as it is needed.

    Attributes:
      root: the dataset's folder.
      version: (2, 0), (2, 1), (3, 0).
      chunks_size: episodes (version 2) or files (version 3) in a folder.
      data_path, video_path: templates; the second is "" without videos.
      features: by name, in the order of the file.
      task_is_column: whether the task was a column of what the dataset was written from, by rlds2reverb.
    """

    root: Path
    version: tuple[int, int]
    chunks_size: int
    data_path: str
    video_path: str
    features: Mapping[str, Feature]
    task_is_column: bool = False

    def data_file(self, fields: Mapping[str, int]) -> Path:
        """The file of this episode or chunk; where it leads is not looked at.

        Raises:
          SourceError: the template leads out of the dataset, or has another field.
        """
        return below(self.root, _filled(self.root, self.data_path, fields))

    def video_file(self, key: str, fields: Mapping[str, int]) -> Path:
        """The video of a feature, as `data_file`."""
        return below(self.root, _filled(self.root, self.video_path, {"video_key": key, **fields}))


def read_info(root: Path) -> Info:
    """Reads meta/info.json.

    Raises:
      SourceError: there is none, or it is not that of a dataset of version 2 or 3.
    """
    path = inside(root, "meta/info.json")
    found = read_object(path, "a LeRobot dataset: a folder with meta/info.json")
    version = _version(path, found.get("codebase_version"))
    chunks_size = found.get("chunks_size", 1000)
    if type(chunks_size) is not int or chunks_size < 1:
        raise SourceError(f"{path}: chunks_size: expected a whole number of at least 1, found {_shown(chunks_size)}")
    data_path, video_path = (_template(path, key, found.get(key)) for key in ("data_path", "video_path"))
    features = features_of(path, found.get("features"))
    is_column = tells_of_tasks(found["features"])
    return Info(root, version, chunks_size, data_path, video_path, features, is_column)


def _template(path: Path, key: str, found: Any) -> str:
    """A path with fields; empty where there is none."""
    if found is not None and not (isinstance(found, str) and len(found) <= _LONGEST_PATH):
        raise SourceError(f"{path}: {key}: expected the template of a path, found {_shown(found)}")
    return found or ""


def inside(root: Path, relative: str) -> Path:
    """A path in the dataset's folder, links followed. Of a snapshot in Hugging Face's cache, links lead into the cache's folder of that dataset.

    Raises:
      SourceError: it leads elsewhere.
    """
    path = below(root, relative)
    check_link(root, path)
    return path


def below(root: Path, relative: str) -> Path:
    """A path in the dataset's folder by its words; where it leads is not looked at.

    Raises:
      SourceError: it leads elsewhere.
    """
    parts = relative.replace("\\", "/").split("/")
    if relative.startswith("/") or ".." in parts or "\0" in relative:
        raise SourceError(f'{root}: the path "{shortened(relative)}" leads out of the dataset')
    return root / relative


def _filled(root: Path, template: str, fields: Mapping[str, Any]) -> str:
    def field(found: re.Match[str]) -> str:
        value, width = fields.get(found[1]), int(found[2] or 0)
        if value is None or (isinstance(value, str) and width):
            raise SourceError(
                f'{root}: meta/info.json: path "{template}": no field {found[0]}; there are {_names(fields)}'
            )
        return str(value).zfill(width)

    filled = _FIELD.sub(field, template)
    if "{" in _FIELD.sub("", template) or "}" in _FIELD.sub("", template) or not filled:
        raise SourceError(f'{root}: meta/info.json: path "{template}": expected fields such as {_names(fields)}')
    return filled


def _names(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{{{name}}}" for name in fields)


def _version(path: Path, found: Any) -> tuple[int, int]:
    match = _VERSION.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise SourceError(f"{path}: codebase_version: expected v2.0, v2.1 or v3.0, found {_shown(found)}")
    version = int(match[1]), int(match[2])
    if version[0] not in (2, 3):
        raise SourceError(f"{path}: version {found}; v2.0, v2.1 and v3.0 are read: convert it with lerobot's scripts")
    return version


def _shown(found: Any) -> str:
    return shortened(repr(found))
