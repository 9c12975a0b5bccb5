"""Format versions of what outlives a process: files, records in a server's own tables, saved states.

Whoever reads such a thing asks its `FormatVersion` first. An older version is read, a newer one is refused in a sentence, and what cannot be
read is neither overwritten nor read in part. docs/versions.md lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rlds2reverb.text import shortened, visible

_MOST_CHARACTERS = 40  # of what a file says, in a message


@cache
def program_version() -> str:
    """The version of rlds2reverb that runs, which stands beside a format's version, so that an older release can name it; "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # 20 ms

    try:
        return version("rlds2reverb")
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class FormatVersion:
    """The versions of one format that this release reads.

    Attributes:
      what: the thing, as in "a ledger".
      version: that this release writes, and the newest that it reads.
      oldest: the oldest that it reads.
      way_out: how to go on without another release; the end of a sentence, "" where there is no way.
    """

    what: str
    version: int
    oldest: int = 1
    way_out: str = ""

    def reads(self, version: object) -> bool:
        return _is_version(version) and self.oldest <= version <= self.version  # type: ignore[operator]

    def is_newer(self, version: object) -> bool:
        """Whether only a later release reads it; what is no version is not newer."""
        return _is_version(version) and version > self.version  # type: ignore[operator]

    def refusal(self, where: object, version: object, program: object = "") -> str:
        """Why this version is not read, and what reads it; "" if this release does.

        Args:
          where: the file, say.
          version: as it stands there, whatever that is.
          program: version of rlds2reverb that wrote it, as it stands there; "" if that is not known.
        """
        if self.reads(version):
            return ""
        newest = (
            f"version {self.version}" if self.oldest == self.version else f"versions {self.oldest} to {self.version}"
        )
        ours = f"this rlds2reverb {program_version()} reads {newest}"
        way_out = f"; {self.way_out}" if self.way_out else ""
        if not _is_version(version):
            shown = shortened(visible(repr(version)), _MOST_CHARACTERS)
            return f"{where}: {shown} is no version of {self.what}; {ours}{way_out}"
        if not self.is_newer(version):
            return f"{where}: {self.what} of version {version}, from before a release; {ours}{way_out}"
        name = shortened(visible(program), _MOST_CHARACTERS) if isinstance(program, str) else ""
        by, needed = (f", written by rlds2reverb {name}", f"{name} or a newer one") if name else ("", "a newer one")
        otherwise = f", or {self.way_out}" if self.way_out else ""
        return f"{where}: {self.what} of version {version}{by}; {ours}: use {needed}{otherwise}"


def _is_version(version: object) -> bool:
    return isinstance(version, int) and not isinstance(version, bool) and version > 0
