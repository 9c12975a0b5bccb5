"""TorchRL's buffers as recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings
from rlds2reverb.readers.ted.keys import CHECK, KEEP, TedOptions
from rlds2reverb.readers.ted.ring import RingTrajectories
from rlds2reverb.readers.ted.roles import Roles
from rlds2reverb.readers.ted.text import as_metadata
from rlds2reverb.readers.ted.trajectories import Rows, Trajectories
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest, column_spec
from rlds2reverb.wording import counted

_ID = "trajectory_id"
_LOOKED_AT = 32
"""Trajectories, and steps of each, in which `next` is compared with what the next step saw."""


class TedRecordings(Recordings):
    """The trajectories of one buffer.

    Args:
      name: what people call it.
      held: its trajectories.
      options: how to read.

    Raises:
      SourceError: its keys make no columns.
    """

    def __init__(self, name: str, held: Trajectories, options: TedOptions) -> None:
        self.name, self._held, self._options = name, held, options
        self._roles = Roles.of(held)
        if not self._roles.observed and not self._roles.steps:
            raise SourceError(f"{name}: no key that could be a column")
        self._constants = {key: as_metadata(value) for key, value in held.constants.items()}
        if _ID in self._constants and held.id_key:
            raise SourceError(f'{name}: a value "{_ID}" stands beside the ids of trajectories')

    @property
    def count(self) -> int:
        """How many trajectories."""
        return self._held.count

    @cached_property
    def remarks(self) -> tuple[Remark, ...]:
        """What was guessed, where recording stopped, and whether `next` is what the next step saw."""
        return (*self._held.remarks, *self._roles.remarks, *self._next_remarks())

    def spec(self) -> Nest:
        """Columns by path."""
        return self._roles.spec(self._held, self._options)

    def metadata_spec(self) -> Nest:
        """The trajectory's id, and values of the whole buffer."""
        made: dict[str, ArraySpec] = {key: column_spec(_one(value)) for key, value in self._constants.items()}
        if self._held.id_key:
            keys = {**self._held.observed, **self._held.steps}
            made[_ID] = ArraySpec((), keys[self._held.id_key].dtype)
        return made

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The trajectories of these numbers."""
        with self._held.reading() as rows:
            for number in numbers:
                try:
                    yield self._one(rows, number)
                except BrokenEpisode as broken:
                    yield Recording({}, self._constants, faults=((broken.path, broken.why),))

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """What is known of a trajectory without its steps."""
        if not self._held.id_key:
            return self._constants
        with self._held.reading() as rows:
            return self._metadata(rows, number)

    def _one(self, rows: Rows, number: int) -> Recording:
        columns = self._roles.columns(rows, number, self._options)
        if self._options.next == CHECK and isinstance(self._held, RingTrajectories):
            for key in self._held.observed:
                differing = self._held.differs(key, number)
                if len(differing):
                    raise BrokenEpisode(
                        key,
                        f"next is not what the step after saw, in {len(differing):,} steps, first in step {int(differing[0])}; "
                        "next=keep keeps both, trajectories=rows makes every step an episode",
                    )
        return Recording(columns, self._metadata(rows, number))

    def _metadata(self, rows: Rows, number: int) -> Mapping[str, Any]:
        return {**self._constants, _ID: rows.id(number)} if self._held.id_key else self._constants

    def _next_remarks(self) -> tuple[Remark, ...]:
        """Looks at some steps; MultiStep, for one, puts a later observation under `next`."""
        held = self._held
        if not isinstance(held, RingTrajectories) or self._options.next == KEEP:
            return ()
        looked_at = _sampled(held.count, _LOOKED_AT)
        differing = {
            key: sum(len(held.differs(key, number, _LOOKED_AT)) for number in looked_at)
            for key in sorted(held.observed)
        }
        keys = [f"next.{key.replace('/', '.')}" for key, count in differing.items() if count]
        if not keys:
            return ()
        text = (
            f"{', '.join(keys)}: not what the step after saw, in up to {counted(max(differing.values()), 'step')} of those looked at, as after "
            "MultiStep; only the last of each trajectory is read. next=keep keeps both, next=check refuses such trajectories, "
            "trajectories=rows makes every step an episode"
        )
        return (Remark("next_differs", text, max(differing.values())),)


def _sampled(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, spread evenly, with the first and the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).astype(int).tolist())) if count else []


def _one(value: Any) -> np.ndarray[Any, Any]:
    """[1, ...] the value, text as an object."""
    if isinstance(value, bytes):
        column = np.empty(1, object)
        column[0] = value
        return column
    return np.asarray(value)[None]
