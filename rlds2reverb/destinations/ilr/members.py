"""Columns of an episode as the members of its steps: which key each belongs to, and the pickles of every row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlds2reverb.destinations.ilr.pickling import around, joined, part_of, row_pickles, whole
from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, OBSERVATION, REWARD, STEP_FIELDS, Array
from rlds2reverb.metadata import METADATA
from rlds2reverb.readers.ilr import keys
from rlds2reverb.specs import ArraySpec

NOT_KEPT = (*FLAGS, DISCOUNT)
"""Columns that no member has: `dones` stands for them."""

_OWN = (keys.OBS, keys.NEXT_OBS, keys.ACTS, keys.REWS, keys.INFOS, *keys.NOT_COLUMNS)
_KEYS = {OBSERVATION: keys.OBS, ACTION: keys.ACTS, REWARD: keys.REWS, keys.INFOS: keys.INFOS}


@dataclass
class Member:
    """The members of one key.

    Attributes:
      leaves: path within the value, () for a plain one -> path of the column.
    """

    leaves: dict[tuple[str, ...], str] = field(default_factory=dict)

    def rows(self, columns: Mapping[str, Array], rows: slice) -> list[bytes]:
        """The pickles of these rows."""
        if () in self.leaves:
            column = columns[self.leaves[()]][rows]
            if column.dtype == object:
                return [whole(part_of(text)) for text in column]
            return row_pickles(_bytes(column), column.dtype, column.shape[1:])
        parts = {path: _parts(columns[name][rows]) for path, name in self.leaves.items()}
        return [whole(joined(_nested(path_parts))) for path_parts in _by_row(parts)]


def key_of(path: str, spec: ArraySpec) -> tuple[str, tuple[str, ...]] | str:
    """The key of a column, and the path within its values; or the code of what keeps it from having one."""
    if spec.dtype.kind not in "biufcO" or None in spec.shape or (spec.dtype.kind == "O" and spec.shape):
        return "kinds"
    field_name, *rest = path.split("/")
    if field_name == OBSERVATION and rest:
        key, rest = f"{keys.OBS}_{rest[0]}", rest[1:]
    elif field_name in _KEYS and (field_name != keys.INFOS or rest):
        key = _KEYS[field_name]
    elif field_name == keys.EXTRAS and rest and rest[0] in (*STEP_FIELDS, METADATA):
        key, rest = rest[0], rest[1:]
    else:
        key = field_name
        if key in (*_OWN, *STEP_FIELDS, METADATA) or keys.is_observation(key) or keys.is_next(key):
            return "names"
    return "names" if not key or "." in key or len(key.encode()) > 60 or "" in rest else (key, tuple(rest))


def members_of(columns: Mapping[str, ArraySpec]) -> dict[str, Member]:
    """Key -> its members, of those columns that have one."""
    found: dict[str, Member] = {}
    for path, spec in columns.items():
        placed = key_of(path, spec)
        if path not in NOT_KEPT and not isinstance(placed, str):
            key, leaf = placed
            found.setdefault(key, Member()).leaves[leaf] = path
    return found


def _bytes(column: Array) -> Iterator[bytes]:
    """The bytes of every row."""
    data = column.tobytes()
    size = column[:1].nbytes if len(column) else 0
    return (data[at * size : (at + 1) * size] for at in range(len(column)))


def _parts(column: Array) -> list[bytes]:
    """Of every row, the part of a pickle that makes it."""
    if column.dtype == object:
        return [part_of(text) for text in column]
    start, end = around(column.dtype, column.shape[1:])
    return [start + row + end for row in _bytes(column)]


def _by_row(parts: Mapping[tuple[str, ...], Sequence[bytes]]) -> Iterator[dict[tuple[str, ...], bytes]]:
    return (dict(zip(parts, row)) for row in zip(*parts.values()))


def _nested(parts: Mapping[tuple[str, ...], bytes]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, part in sorted(parts.items()):
        level = made
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = part
    return made
