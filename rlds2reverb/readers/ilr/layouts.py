"""Which of il-representations' layouts some files have: told by their contents, or by whoever opens them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.ilr import files, keys, native
from rlds2reverb.readers.ilr.arrays import ArrayRecordings, Part
from rlds2reverb.readers.ilr.options import Options
from rlds2reverb.readers.ilr.shards import ShardRecordings

WEBDATASET, DICT = "webdataset", "dict"
_Native = Callable[[Any, str, str], list[native.Arrays]]
_NATIVE: dict[str, _Native] = {
    "atari": native.atari,
    "dm_control": native.dm_control,
    "magical": native.magical,
    "procgen": native.procgen,
}
LAYOUTS = (WEBDATASET, DICT, *_NATIVE)

SHARDS = (".tar.zst", ".tar.zstd", ".tar", ".zst", ".zstd")
_OTHERS = (".npz", ".pkl.gz", ".pickle.gz", ".pickle", ".pkl")
_PICKLES = (b"\x1f\x8b", b"\x80", b"(", b"}", b"]")
"""How pickles begin, compressed or not."""

Recordings = ShardRecordings | ArrayRecordings


def recordings(path: Path, name: str, options: Options, layout: str | None) -> Recordings:
    """What a file, a folder or a pattern holds.

    Args:
      path: of them.
      name: for people.
      options: see `Options`.
      layout: one of `LAYOUTS`; None for what the contents say.

    Raises:
      SourceError: there is no file, or it is of no such layout.
    """
    found = _files(path)
    start = files.start_of(found[0])
    is_npz = start.startswith(b"PK")
    if layout == WEBDATASET or (layout is None and not is_npz and not _is_pickle(found[0], start)):
        return ShardRecordings(found, name, options)
    parts = [_part(one, layout, options) for one in found]
    return ArrayRecordings(parts, name, options)


def in_memory(arrays: Mapping[str, Any]) -> ArrayRecordings:
    """The dict format in memory."""
    return ArrayRecordings([lambda: [arrays]], "a dict of il-representations", Options())


def _is_pickle(path: Path, start: bytes) -> bool:
    return start.startswith(_PICKLES) and (not path.name.endswith(SHARDS))


def _files(path: Path) -> list[Path]:
    """By name."""
    if path.is_dir():
        for endings in (SHARDS, _OTHERS):
            found = [one for one in path.iterdir() if one.name.endswith(endings) and not one.name.startswith(".")]
            if found:
                return sorted(found)
        raise SourceError(f"{path}: expected files *{', *'.join((*SHARDS, *_OTHERS))} in it")
    if path.exists():
        return [path]
    found = [one for one in path.parent.glob(path.name) if not one.is_dir()] if path.name else []
    if not found:
        raise SourceError(f"{path}: not found; expected a file, a folder, or a pattern that fits some files")
    return sorted(found)


def _part(path: Path, layout: str | None, options: Options) -> Part:
    def read() -> Sequence[Mapping[str, Any]]:
        is_npz = files.start_of(path).startswith(b"PK")
        found = files.npz(path) if is_npz else files.unpickled(path, native.CLASSES)
        kind = layout or _told_by(found, is_npz)
        if kind == DICT:
            if not isinstance(found, Mapping):
                raise SourceError(f"{path}: expected a dictionary of arrays, found a {type(found).__name__}")
            return [found]
        if is_npz != (kind == "atari"):
            raise SourceError(f"{path}: layout={kind}: expected {'npz' if kind == 'atari' else 'a pickle'}")
        return _NATIVE[kind](found, path.name, options.last_step)

    return read


def _told_by(found: Any, is_npz: bool) -> str:
    """The layout of what a file holds."""
    if isinstance(found, Mapping) and any(map(keys.is_observation, found)):
        return "procgen" if all(isinstance(value, list) for value in found.values()) else DICT
    if is_npz:
        return "atari"
    return "magical" if isinstance(found, Mapping) else "dm_control"
