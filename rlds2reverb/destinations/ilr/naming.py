"""What the name of a shard to be says: where it is, and what its description tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlds2reverb.errors import ConfigError
from rlds2reverb.source_options import Parse, at_least_one, one_of, path_and_options, unescaped, whole_number

ARCHIVE = "demos.tar.zst"
_ENDINGS = (".tar.zst", ".tar")


@dataclass(frozen=True)
class Target:
    """A shard to be.

    Attributes:
      people: what messages call it.
      path: the folder, or the archive.
      told: of the description, what the episodes do not tell, or otherwise.
      actions: how many discrete actions there are; None for as many as occur.
      level: of zstd.
      terminals: whether a key of our own tells which ends are terminal.
    """

    people: str
    path: Path
    told: Mapping[str, str]
    actions: int | None = None
    level: int = 3
    terminals: bool = False

    @staticmethod
    def parse(text: str) -> Target:
        """From what stands behind "ilr:".

        Raises:
          ConfigError: it names nothing, or an option makes no sense.
        """
        people = f"ilr:{text}"
        path, wanted = path_and_options(people, text, _KNOWN, ConfigError)
        if not path:
            raise ConfigError(f'"{people}": expected ilr:FOLDER, or an archive: ilr:NAME.tar.zst')
        told = {name: wanted.pop(option) for option, name in _TOLD.items() if option in wanted}
        return Target(people, Path(unescaped(path)).expanduser(), told, **wanted)

    @property
    def is_archive(self) -> bool:
        """Whether the path is that of the archive."""
        return self.path.name.endswith(_ENDINGS)

    @property
    def archive(self) -> str:
        """The archive's name."""
        return self.path.name if self.is_archive else ARCHIVE

    @property
    def zstd_level(self) -> int | None:
        """None for an archive that is not compressed."""
        return None if self.archive.endswith(".tar") else self.level


def _level(text: str) -> int:
    level = whole_number(text)
    if not 1 <= level <= 19:
        raise ValueError("expected 1 to 19")
    return level


_TOLD = {"benchmark": "benchmark_name", "task": "task_name", "color": "color_space"}
_KNOWN: dict[str, Parse] = {
    "benchmark": str,
    "task": str,
    "color": one_of(RGB="RGB", GRAY="GRAY"),
    "actions": at_least_one,
    "level": _level,
    "terminals": one_of(yes=True, no=False),
}
