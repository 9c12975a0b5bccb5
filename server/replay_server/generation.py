"""One generation: its files, its manifest, and whether they are what was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from replay_server.errors import CheckpointError
from replay_server.reading import listed, read_small
from replay_server.record_files import DONE, MANIFEST, RECORD_FILES, FileEntry, entry_of

GENERATIONS, SET_ASIDE = "generations", "set_aside"
"""Folders in a checkpoint folder: of the generations, and of what was put away."""

LEFT_OUT_NAME = "-left-out-"
"""In the name of a generation in `SET_ASIDE` between its number and the date on which a start left something out of it."""

_MANIFEST_BYTES = 1 << 24
"""Most bytes of a manifest, which has a line per table."""


class Manifest(msgspec.Struct, frozen=True):
    """What a generation is made of.

    Attributes:
      created: Unix time.
      seconds: how long it took, from the request to the finished generation.
      files: by name.
      items: table -> items held.
      xxh3: of all this, see `digest`.
    """

    created: float
    seconds: float
    files: dict[str, FileEntry]
    items: dict[str, int] = {}
    xxh3: str = ""

    def digest(self) -> str:
        """xxh3-128 of everything but `xxh3` itself."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(msgspec.structs.replace(self, xxh3="")))


@dataclass(frozen=True)
class Generation:
    """One checkpoint: `number` grows by one with each."""

    number: int
    folder: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(entry.bytes for entry in self.manifest.files.values())

    def summary(self) -> dict[str, Any]:
        """What is told of it over HTTP."""
        return {
            "generation": self.number,
            "items": self.manifest.items,
            "bytes": self.bytes,
            "seconds": self.manifest.seconds,
        }


def numbered(folder: Path) -> list[Path]:
    """The generations in a folder, newest first; not verified.

    Raises:
      CheckpointUnreadable: it cannot be listed.
      CheckpointError: it is no folder.
    """
    return sorted((path for path in listed(folder) if path.name.isdecimal()), key=number_of, reverse=True)


def read_generation(folder: Path) -> Generation:
    """A generation whose files are those of its manifest.

    Raises:
      CheckpointUnreadable: a file is there and cannot be read; says which.
      CheckpointError: no manifest, or a file is missing or changed; says which.
    """
    data = read_small(folder / MANIFEST, _MANIFEST_BYTES)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: not a manifest ({error})") from error
    if manifest.xxh3 != manifest.digest():
        raise CheckpointError(f"{folder / MANIFEST}: changed since it was written")
    missing = {*RECORD_FILES, DONE} - manifest.files.keys()
    if missing:
        raise CheckpointError(f"{folder}: its manifest lacks {', '.join(sorted(missing))}")
    for name, wanted in manifest.files.items():
        found = entry_of(folder / name)
        if found != wanted:
            raise CheckpointError(
                f"{folder / name}: {found.bytes} bytes ({found.xxh3}), expected {wanted.bytes} ({wanted.xxh3})"
            )
    return Generation(number_of(folder), folder, manifest)


def number_of(path: Path) -> int:
    """The number of a generation, or of one that was set aside; 0 for anything else."""
    digits = path.name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0
