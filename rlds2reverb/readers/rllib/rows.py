"""The pieces of an episode, put together in RLDS' rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, Array
from rlds2reverb.readers.alignment import MARK, steps, with_last
from rlds2reverb.readers.casts import exactly
from rlds2reverb.readers.differences import differing
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib import names as n
from rlds2reverb.readers.rllib.index import Piece
from rlds2reverb.readers.rllib.store import Reader
from rlds2reverb.readers.rllib.values import Leaves

_FIELDS = {n.OBS: OBSERVATION, n.NEXT_OBS: OBSERVATION, n.ACTIONS: ACTION, n.REWARDS: REWARD}


class Rows:
    """Makes episodes of pieces.

    Args:
      reader: of the columns.
      available: names of columns that every record has.
      last_step: see `alignment`.
    """

    def __init__(self, reader: Reader, available: frozenset[str], last_step: str) -> None:
        self._reader, self._available, self._last_step = reader, available, last_step

    def check_seams(self, pieces: list[Piece]) -> None:
        """Refuses an episode in which a piece begins with another observation than the one before it led to.

        Raises:
          BrokenEpisode: that, or a column cannot be read.
        """
        for before, after in pairwise(pieces):
            ends, begins = self._last([before]), self._column(after, n.OBS)
            if ends is not None and any(
                not _same(ends.get(path), column[after.start]) for path, column in begins.items()
            ):
                raise BrokenEpisode(
                    OBSERVATION,
                    "steps are missing: a record goes on from another observation than the record before it led to",
                )

    def episode(self, pieces: list[Piece], is_terminal: bool, others: Iterable[str]) -> dict[str, Array]:
        """RLDS columns.

        Args:
          pieces: in the order of their steps.
          is_terminal: whether the last step's end is terminal.
          others: names of further columns.

        Raises:
          BrokenEpisode: a column cannot be read, or its pieces do not go together.
        """
        observation = self._joined(pieces, n.OBS)
        action = self._joined(pieces, n.ACTIONS)
        reward = self._joined(pieces, n.REWARDS)[""] if n.REWARDS in self._available else None
        if reward is not None:
            reward = _number_per_step(reward)
        further = {
            f"{name}/{path}" if path else name: column
            for name in others
            for path, column in self._joined(pieces, name).items()
        }
        if n.INFOS in further and (info := self._last(pieces, n.NEXT_INFOS)) is not None:
            further[n.INFOS] = with_last(further[n.INFOS], np.asarray(info[""], object))
        last = self._last(pieces)
        if last is None and self._last_step == MARK:
            action, reward = _shortened(action), None if reward is None else reward[:-1]
            further = _shortened(further)
        else:
            observation = _closed(
                observation, {path: column[-1] for path, column in observation.items()} if last is None else last
            )
        return steps(observation, action, reward, is_terminal, further)

    def _last(self, pieces: list[Piece], name: str = n.NEXT_OBS) -> dict[str, Array] | None:
        """The observation after the last step, or what goes with it; None where it is not recorded."""
        try:
            found = self._checked(pieces[-1], name)
        except LookupError:
            return None
        return {path: column[pieces[-1].stop - 1] for path, column in found.items()}

    def _column(self, piece: Piece, name: str) -> Leaves:
        try:
            return self._checked(piece, name)
        except LookupError as error:
            raise BrokenEpisode(_path(name), f'no column "{name}" in {error.args[0]}') from error

    def _checked(self, piece: Piece, name: str) -> Leaves:
        """A column of the record of a piece, which has that many rows unless the file is another one by now."""
        try:
            found = self._reader.column(piece.place, name)
        except BrokenEpisode as broken:
            raise BrokenEpisode(_path(broken.path), broken.why) from broken
        if any(len(column) < piece.stop for column in found.values()):
            raise BrokenEpisode(_path(name), f'column "{name}": the file changed while it was read')
        return found

    def differing(self, pieces: list[Piece]) -> int:
        """How many next observations are not the observations of the steps that follow.

        Raises:
          BrokenEpisode: a column cannot be read, or its pieces do not go together.
        """
        now, following = self._joined(pieces, n.OBS), self._joined(pieces, n.NEXT_OBS)
        odd = [differing(column[1:], following[path][:-1]) for path, column in now.items() if path in following]
        return int(np.any(odd, axis=0).sum()) if odd else 0

    def _joined(self, pieces: list[Piece], name: str) -> Leaves:
        parts = [self._column(piece, name) for piece in pieces]
        slices = [
            {path: column[piece.start : piece.stop] for path, column in leaves.items()}
            for piece, leaves in zip(pieces, parts)
        ]
        if any(one.keys() != slices[0].keys() for one in slices):
            raise BrokenEpisode(_path(name), f'column "{name}": its parts have different columns below them')
        return {path: _concatenated(name, [one[path] for one in slices]) for path in slices[0]}


def _same(one: Array | None, other: Array) -> bool:
    return one is not None and np.array_equal(one, other, equal_nan=np.asarray(other).dtype.kind in "fc")


def _path(name: str) -> str:
    """The RLDS column of one of RLlib's."""
    return _FIELDS.get(name, name)


def _concatenated(name: str, parts: list[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) > 1:
        raise BrokenEpisode(_path(name), f'column "{name}": its parts have shapes {[part.shape for part in parts][:3]}')
    kinds = {part.dtype for part in parts}
    if len(kinds) > 1 and not all(kind.kind in "if" for kind in kinds):
        raise BrokenEpisode(_path(name), f'column "{name}": its parts have dtypes {sorted(map(str, kinds))}')
    return np.concatenate(_alike(name, parts))


def _alike(name: str, parts: list[Array]) -> list[Array]:
    """Parts of one dtype: whole numbers of JSON, whose point is not written, become the floats that the others are."""
    dtypes = {part.dtype for part in parts}
    if len(dtypes) == 1:
        return parts
    wanted = np.result_type(*({dtype for dtype in dtypes if dtype.kind == "f"} or dtypes))
    made = [exactly(part, wanted) for part in parts]
    if any(part is None for part in made):
        raise BrokenEpisode(
            _path(name),
            f'column "{name}": its parts have dtypes {sorted(map(str, dtypes))}, and {wanted} does not hold them exactly',
        )
    return [part for part in made if part is not None]


def _number_per_step(reward: Array) -> Array:
    if reward.size != len(reward) or reward.dtype.kind not in "biuf":
        raise BrokenEpisode(REWARD, f"has shape {reward.shape} and dtype {reward.dtype}; expected a number per step")
    flat = reward.reshape(-1)
    if flat.dtype.kind == "f":
        return flat
    made = exactly(flat.astype(np.int8) if flat.dtype == bool else flat, np.dtype(np.float64))
    if made is None:
        raise BrokenEpisode(REWARD, f"whole numbers of {flat.dtype} that float64 does not hold exactly")
    return made


def _shortened(columns: Leaves) -> Leaves:
    return {path: column[:-1] for path, column in columns.items()}


def _closed(columns: Leaves, last: dict[str, Array]) -> Leaves:
    if columns.keys() != last.keys() or any(
        np.shape(last[path]) != column.shape[1:] for path, column in columns.items()
    ):
        raise BrokenEpisode(OBSERVATION, "the last next observation has another shape than the observations")
    return {path: _with_last(column, last[path]) for path, column in columns.items()}


def _with_last(column: Array, last: Array) -> Array:
    """A column and the last next observation, of one dtype."""
    row = np.asarray(last, object if column.dtype == object else None)
    if row.dtype != column.dtype:
        made = exactly(row, column.dtype)
        if made is None and (column.dtype != np.int64 or row.dtype.kind != "f"):
            raise BrokenEpisode(
                OBSERVATION, f"{column.dtype} does not hold the last next observation, which is {row.dtype}, exactly"
            )
        column, row = (column, made) if made is not None else _alike(n.OBS, [column, row])
    return with_last(column, row)
