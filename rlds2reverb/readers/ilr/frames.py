"""Members of a shard as steps: those of one prefix, `frame_012`, belong together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.ilr.archives import Member
from rlds2reverb.wording import shortened

METADATA = "_metadata.meta.pickle"
_MOST_STEP_BYTES = 256 << 20
"""Of all values of one step together."""
_MOST_KEYS = 1_000
_MOST_METADATA_BYTES = 64 << 20
_NUMBER = re.compile(r"(\d{1,15})$", re.ASCII)


@dataclass(frozen=True)
class Metadata:
    """A description."""

    data: bytes
    where: str


@dataclass(frozen=True)
class Frame:
    """A step.

    Attributes:
      name: `frame_012`.
      values: key -> (contents, how they are written, where).
    """

    name: str
    values: dict[str, tuple[bytes, str, str]] = field(default_factory=dict)

    @property
    def number(self) -> int | None:
        """That in its name."""
        found = _NUMBER.search(self.name)
        return int(found[1]) if found else None


def frames(members: Iterator[Member], where: str, wanted: Callable[[str], bool]) -> Iterator[Frame | Metadata]:
    """The steps and the descriptions of a shard.

    Args:
      members: of the archive.
      where: what messages call it.
      wanted: whether the values of a key are to be read; asked anew in every step, when the one before has been given out.

    Raises:
      SourceError: a step has a key twice, or values that are too many or too large together.
    """
    frame: Frame | None = None
    held = 0
    for member in members:
        folder, _, base = member.name.rpartition("/")
        stem, _, extension = base.partition(".")
        if base == METADATA:
            if frame is not None:
                yield frame
            frame = None
            _check_size(member, where, member.size, _MOST_METADATA_BYTES)
            yield Metadata(member.read(), f"{where}: {member.name}")
            continue
        key, _, kind = extension.partition(".")
        if not key:
            continue
        name = f"{folder}/{stem}" if folder else stem
        if frame is None or frame.name != name:
            if frame is not None:
                yield frame
            frame, held = Frame(name), 0
        if not wanted(key):
            continue
        held += member.size
        _check_room(frame, key, member, where, held)
        frame.values[key] = (member.read(), kind, f"{where}: {member.name}")
    if frame is not None:
        yield frame


def _check_room(frame: Frame, key: str, member: Member, where: str, held: int) -> None:
    """Refuses a value that a step has already, or that makes it too large."""
    if key in frame.values:
        raise SourceError(f"{where}: {member.name}: stands twice in one step")
    _check_size(member, where, held, _MOST_STEP_BYTES)
    if len(frame.values) == _MOST_KEYS:
        raise SourceError(f"{where}: {shortened(frame.name)}: a step of more than {_MOST_KEYS:,} keys")


def _check_size(member: Member, where: str, size: int, most: int) -> None:
    if size > most:
        raise SourceError(
            f"{where}: {shortened(member.name)}: {size:,} bytes up to its end; expected at most {most:,} of one step"
        )
