"""What every layout offers: trajectories by number, each key by itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rlds2reverb.episodes import Array
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec


class Rows(Protocol):
    """Reads the rows of trajectories."""

    def step(self, key: str, number: int) -> Array:
        """A key of `Trajectories.steps` of one trajectory: [T, ...]."""

    def observe(self, key: str, number: int) -> Array:
        """A key of `Trajectories.observed` of one trajectory, with what came after its last step: [T + 1, ...]."""

    def id(self, number: int) -> Any:
        """What `Trajectories.id_key` has in the first step of one trajectory."""


class Trajectories(Protocol):
    """The trajectories of a buffer."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def steps(self) -> Mapping[str, ArraySpec]:
        """Keys with T rows; those of the step after begin with `next/`: reward, terminated, truncated, done."""

    @property
    def observed(self) -> Mapping[str, ArraySpec]:
        """Keys with T + 1 rows."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """Key -> a value of the whole buffer that is no tensor."""

    @property
    def id_key(self) -> str:
        """The key of trajectories' ids, "" for none."""

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What was found at opening."""

    def reading(self) -> AbstractContextManager[Rows]:
        """Opens what is read from."""
