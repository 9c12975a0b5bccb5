"""D4RL: one HDF5 file of rows; terminals and timeouts end episodes.

Source of the layout: d4rl/offline_env.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.alignment import steps, with_last
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, each
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest

_MANDATORY = ("observations", "actions", "rewards", "terminals")


class D4rlRecordings:
    """The episodes of a D4RL file."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self._path = name, path
        with hdf5.opened(path) as file:
            try:
                missing = [key for key in _MANDATORY if hdf5.found(file, key) is None]
                if missing:
                    expected = f"expected a D4RL file with {', '.join(_MANDATORY)}"
                    raise SourceError(f"{path}: no {', '.join(missing)}; {expected}")
                ends = _flags(hdf5.column(file, "terminals", "terminals"))
                if hdf5.found(file, "timeouts") is not None:
                    ends = ends | _flags(hdf5.column(file, "timeouts", "timeouts"))
                self._spec = {
                    "observation": _leaf(hdf5.column(file, "observations", "observation", slice(0, 1))),
                    "action": _leaf(hdf5.column(file, "actions", "action", slice(0, 1))),
                }
            except BrokenEpisode as broken:
                raise SourceError(f"{path}: {broken.why}") from broken
        stops = np.flatnonzero(ends) + 1
        self._stops = stops if len(stops) and stops[-1] == len(ends) else np.append(stops, len(ends))

    fingerprint = "d4rl"
    remarks: tuple[Remark, ...] = ()

    @property
    def count(self) -> int:
        """How many episodes the flags make."""
        return len(self._stops)

    def spec(self) -> Nest:
        """Observation, action, reward, discount and the flags."""
        flag = ArraySpec((), np.dtype(bool))
        number = ArraySpec((), np.dtype(np.float32))
        flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), flag)
        return {**self._spec, "reward": number, "discount": number, **flags}

    def metadata_spec(self) -> Nest:
        """None."""
        return {}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        return each(self, numbers)

    def one(self, number: int) -> Recording:
        """One episode."""
        rows = slice(int(self._stops[number - 1]) if number else 0, int(self._stops[number]))
        with hdf5.opened(self._path) as file:
            observation = hdf5.column(file, "observations", "observation", rows)
            last = observation[-1]
            if hdf5.found(file, "next_observations") is not None:
                last = hdf5.column(file, "next_observations", "observation", slice(rows.stop - 1, rows.stop))[0]
            terminal = bool(_flags(hdf5.column(file, "terminals", "is_terminal", slice(rows.stop - 1, rows.stop)))[0])
            columns = steps(
                {"": with_last(observation, last)},
                {"": hdf5.column(file, "actions", "action", rows)},
                hdf5.column(file, "rewards", "reward", rows).reshape(-1).astype(np.float32),
                terminal,
            )
        return Recording(columns)


def _flags(column: Array) -> Array:
    return np.asarray(column.reshape(len(column), -1).any(axis=1))


def _leaf(column: Array) -> ArraySpec:
    return ArraySpec(column.shape[1:], column.dtype)
