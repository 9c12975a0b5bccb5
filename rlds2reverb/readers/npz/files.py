"""A .npz file for each episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episodes import ACTION, DISCOUNT, OBSERVATION, REWARD, Array, columns_below, is_under
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import ENDINGS, MARK, NEXT, NEXT_OBSERVATION, last_step_of, marked, steps, with_last
from rlds2reverb.readers.features import Features, gathered, left_out_remarks
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.npz.ends import ends_terminal
from rlds2reverb.readers.npz.keys import Keys, is_other, keys_of
from rlds2reverb.readers.npz.members import Member, keys_in, opened
from rlds2reverb.readers.npz.options import NpzOptions
from rlds2reverb.readers.npz.telling import left_out_remark
from rlds2reverb.readers.paths import by_number
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings, each
from rlds2reverb.remarks import Remark, note
from rlds2reverb.specs import Nest, column_spec


class NpzFiles(Recordings):
    """Episodes in files of their own, in the order of their names; numbers in these count as numbers.

    Args:
      paths: of the files.
      name: what people call them.
      options: how they are read.

    Raises:
      SourceError: there are none, or the first cannot be read.
    """

    def __init__(self, paths: Sequence[Path], name: str, options: NpzOptions) -> None:
        self.name, self._options = name, options
        self._paths = sorted(paths, key=lambda path: by_number(path.name))
        if not self._paths:
            raise SourceError(f"{name}: no .npz files there")
        self._last_step: str | None = None
        try:
            first = self.one(0)
        except BrokenEpisode as broken:
            raise SourceError(f"{broken.why}; the first file says what all of them have") from broken
        self._first = {path: column_spec(column) for path, column in first.decoded().items()}

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self._paths)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """How ends are read, and what is no column."""
        ending = () if self._last_step is None else (note("last_step", ENDINGS[self._last_step]),)
        features = self._features.left_out if "_features" in vars(self) else ()
        return (*ending, *left_out_remark(self._left_out), *left_out_remarks(features))

    def spec(self) -> Nest:
        """That of the first file."""
        return nested(self._first, self.name)

    def metadata_spec(self) -> Nest:
        """Of the single values that all files have."""
        return dict(self._features.spec)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """All single values of a file."""
        return self._features.of_each[number]

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        return each(self, numbers, lambda number: self._paths[number].stem, self._features.common)

    def one(self, number: int) -> Recording:
        """One episode."""
        path = self._paths[number]
        try:
            with opened(path) as members:
                keys = keys_of(str(path), members)
                columns = {one: members[key].rows() for one, key in keys.columns.items()}
                if number == 0:
                    self._left_out = [*keys.unused, *(key for key in keys.others if members[key].shape)]
                made = self._made(path, keys, columns, members)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        return Recording(made, self._features.common(number), path.stem)

    @cached_property
    def _features(self) -> Features:
        return gathered(map(_values, self._paths))

    def _made(
        self, path: Path, keys: Keys, columns: dict[str, Array], members: Mapping[str, Member]
    ) -> dict[str, Array]:
        if keys.is_of_rlds:
            return _without_next(columns)
        observation, action = columns_below(columns, OBSERVATION), columns_below(columns, ACTION)
        rows = max(map(len, action.values()))
        if not rows:
            raise BrokenEpisode("", f"{path}: no steps")
        is_terminal = ends_terminal(path, members, keys, rows)
        lengths = {len(column) for column in observation.values()}
        if lengths != {rows + 1}:
            last_step = last_step_of(str(path), columns, self._options.last_step)
            self._last_step = last_step
            if last_step == MARK:
                return marked(_without_next(columns), is_terminal)
            observation = {at: with_last(one, _last(columns, at, one, last_step)) for at, one in observation.items()}
        return steps(observation, action, columns.get(REWARD), is_terminal, discount=columns.get(DISCOUNT))


def _last(columns: Mapping[str, Array], path: str, column: Array, last_step: str) -> Array:
    after = columns.get(f"{NEXT_OBSERVATION}/{path}" if path else NEXT_OBSERVATION, column)
    if last_step != NEXT:
        after = column
    if not len(after):
        raise BrokenEpisode(OBSERVATION, "no rows")
    return np.asarray(after[-1])


def _without_next(columns: Mapping[str, Array]) -> dict[str, Array]:
    return {path: column for path, column in columns.items() if not is_under(path, NEXT_OBSERVATION)}


def _values(path: Path) -> dict[str, Any] | None:
    """The single values of a file; None for one that cannot be read, which is a bad episode."""
    try:
        others = list(filter(is_other, keys_in(path)))
        with opened(path, others) if others else nullcontext({}) as members:
            return {key: one.value() for key, one in members.items() if not one.shape}
    except (SourceError, BrokenEpisode):
        return None
