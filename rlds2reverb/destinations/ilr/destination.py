"""A shard of il-representations to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlds2reverb.destinations.base import Content, Encode, Loss, State, unchanged
from rlds2reverb.destinations.ilr import LOSSES
from rlds2reverb.destinations.ilr.members import NOT_KEPT, key_of, members_of
from rlds2reverb.destinations.ilr.naming import Target
from rlds2reverb.destinations.ilr.sink import IlrSink
from rlds2reverb.episodes import IS_TERMINAL, Array, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.metadata import metadata_path
from rlds2reverb.readers.alignment import flags
from rlds2reverb.readers.ilr import keys
from rlds2reverb.readers.ilr.metadata import FEATURES
from rlds2reverb.source_options import escaped
from rlds2reverb.specs import ArraySpec


def open_ilr(text: str) -> IlrDestination:
    """The destination of what stands behind "ilr:".

    Raises:
      ConfigError: it names nothing, or an option makes no sense.
    """
    return IlrDestination(Target.parse(text))


class IlrDestination:
    """A folder with one archive, or the archive."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def name(self) -> str:
        """What people call it."""
        return self._target.people

    @property
    def path(self) -> Path:
        """The folder, or the archive."""
        return self._target.path

    def source(self, path: Path) -> str:
        """`ilr:PATH`."""
        return f"ilr:{escaped(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        """Archives."""
        return () if self._target.is_archive else ("*.tar.zst", "*.tar")

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """None: il-representations reads arrays."""
        return {}

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns without a key, and features that the description has not.

        Raises:
          ConfigError: no observation or no action is left.
        """
        placed = {path: key_of(path, spec) for path, spec in content.columns.items() if path not in NOT_KEPT}
        lost = [
            Loss(code, f"{content.columns[path]}: {LOSSES[code]}", path)
            for path, code in placed.items()
            if isinstance(code, str)
        ]
        lost += [
            Loss("metadata", LOSSES["metadata"], metadata_path(name))
            for name in content.metadata
            if name not in FEATURES
        ]
        kept = members_of(content.columns)
        if keys.ACTS not in kept or not any(map(keys.is_observation, kept)):
            raise ConfigError(
                f"{self.name}: needs an observation and an action of numbers with fixed sizes; {content.source} has "
                f"{', '.join(f'{path}: {spec}' for path, spec in content.columns.items())}"
            )
        return lost

    @property
    def least_rows(self) -> int:
        """Two: a step has an action and the observation behind it."""
        return 2

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """Made of the length, and of whether the last step is terminal; all are without terminals=yes."""
        terminal = episode.columns.get(IS_TERMINAL)
        is_terminal = terminal is None or not self._target.terminals or bool(terminal[-1])
        return flags(len(episode), is_terminal)

    def encoder(self, content: Content) -> Encode:
        """None: the sink takes episodes."""
        return unchanged

    def sink(self, work: Path, content: Content, state: State | None) -> IlrSink:
        """Begins to write, or goes on."""
        return IlrSink(work / self._target.archive, self._target, content, state)
