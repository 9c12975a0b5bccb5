"""What the steps of a dataset have: a way to read each key's values, told by the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import steps, with_last
from rlds2reverb.readers.ilr import keys
from rlds2reverb.readers.ilr.values import Row, Values
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec

_FLAGS = ("is_first", "is_last", "is_terminal")


def column_specs(leaves: Mapping[str, Mapping[str, ArraySpec]]) -> dict[str, ArraySpec]:
    """Path of a column -> its spec, of all that episodes have.

    Args:
      leaves: key -> path within its value -> spec.
    """
    found = {
        f"{column}/{path}" if path else column: spec
        for key, below in leaves.items()
        if (column := keys.column_of(key)) is not None
        for path, spec in below.items()
    }
    flags = dict.fromkeys(_FLAGS, ArraySpec((), np.dtype(bool)))
    return {**found, "discount": ArraySpec((), np.dtype(np.float32)), **flags}


def aligned(
    columns: Mapping[str, Mapping[str, Array]], last: Mapping[str, Mapping[str, Array]], is_terminal: bool
) -> dict[str, Array]:
    """RLDS columns of T + 1 rows.

    Args:
      columns: key -> path within its value -> [T, ...].
      last: key of an observation -> path -> what was seen after the last step; without it the last one of `columns` stands there again.
      is_terminal: whether the last row is.

    Raises:
      BrokenEpisode: columns do not go together.
    """
    observation: dict[str, Array] = {}
    parts: dict[str, dict[str, Array]] = {ACTION: {}, REWARD: {}, "": {}}
    for key, below in columns.items():
        column = keys.column_of(key)
        if column is None:
            continue
        for path, values in below.items():
            whole = f"{column}/{path}" if path else column
            if keys.is_observation(key):
                behind = last.get(key, {}).get(path)
                observation[whole[len(OBSERVATION) + 1 :]] = with_last(values, values[-1] if behind is None else behind)
            else:
                is_part = column == ACTION or whole == REWARD  # rewards that are several stand beside the others
                where, inner = (column, path) if is_part else ("", whole)
                parts[where][inner] = values
    reward = parts[REWARD].get("")
    return steps(observation, parts[ACTION], reward, is_terminal, parts[""])


@dataclass(frozen=True)
class Layout:
    """How every key of a shard is read.

    Attributes:
      values: key -> how its values are read; of `dones` and `frame`, too.
    """

    values: Mapping[str, Values]

    @staticmethod
    def of(first: Mapping[str, tuple[bytes, str, str]]) -> Layout:
        """Learns from the first step.

        Args:
          first: key -> (contents, how they are written, where).

        Raises:
          SourceError: a value cannot be read, or obs, acts or dones is missing.
        """
        where = next((where for *_, where in first.values()), "")
        missing = [key for key in (keys.ACTS, keys.DONES) if key not in first]
        missing += [] if any(map(keys.is_observation, first)) else [keys.OBS]
        if missing:
            raise SourceError(
                f"{where}: the first step has no {', '.join(missing)}; expected obs, acts, dones and next_obs"
            )
        values = {key: Values.of_pickle(*value) for key, value in sorted(first.items())}
        for key in first:
            if not values[key].leaves and key in (keys.OBS, keys.ACTS, keys.DONES):
                raise SourceError(f"{first[key][2]}: {key}: expected an array or a number")
            if keys.is_next(key) and values[key].leaves != values.get(key[len("next_") :], values[key]).leaves:
                raise SourceError(f"{first[key][2]}: {key}: of another shape or dtype than {key[len('next_') :]}")
        return Layout(values)

    def specs(self) -> dict[str, ArraySpec]:
        """Path of a column -> its spec."""
        return column_specs({key: values.leaves for key, values in self.values.items()})

    def columns(
        self, rows: Mapping[str, Sequence[Row]], last: Mapping[str, Row], is_terminal: bool
    ) -> dict[str, Array]:
        """RLDS columns of a trajectory.

        Args:
          rows: key -> its values; not of `dones` and next observations.
          last: key of an observation -> the one behind the last step.
          is_terminal: whether that is terminal.

        Raises:
          BrokenEpisode: there is none of some key in a step.
        """
        count = max(map(len, rows.values()), default=0)
        for key, found in rows.items():
            if len(found) != count:
                raise BrokenEpisode(
                    keys.column_of(key) or key, f"{count - len(found):,} of {count:,} steps have no {key}"
                )
        columns = {key: self.values[key].columns(found) for key, found in rows.items()}
        behind = {
            key: {path: one[0] for path, one in self.values[key].columns([row]).items()} for key, row in last.items()
        }
        return aligned(columns, behind, is_terminal)

    def is_true(self, key: str, data: bytes, kind: str, where: str) -> bool:
        """A flag: whether a trajectory ends with a step, say.

        Raises:
          BrokenEpisode: neither 0 nor 1.
        """
        values = self.values[key]
        column = values.columns([values.row(data, kind, key, where)]).get("")
        flat = [] if column is None else column.ravel().tolist()
        if len(flat) != 1 or flat[0] not in (0, 1):
            raise BrokenEpisode(key, f"{where}: expected true or false, found {flat[:3]}")
        return bool(flat[0])
