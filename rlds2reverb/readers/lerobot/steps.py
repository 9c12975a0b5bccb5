"""Rows as steps: which columns an episode has, and what stands in the row that is put behind the last action.

| column | in the added row |
| --- | --- |
| action, `next.*` | zeros, or empty text |
| everything else, the discount among it | the last row's value |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, IS_FIRST, IS_LAST, IS_TERMINAL, REWARD, Array, is_under
from rlds2reverb.readers.alignment import MARK, flags, terminal_discount, zero_row
from rlds2reverb.readers.lerobot.features import DONE, Feature
from rlds2reverb.readers.lerobot.reading import NOTHING, TERMINAL, Reading
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec

_FLAG = ArraySpec((), np.dtype(bool))
_NUMBER = ArraySpec((), np.dtype(np.float32))


@dataclass(frozen=True)
class Steps:
    """How a dataset's rows become steps.

    Attributes:
      features: of the columns that are read, by name; `next.done` among them.
      reading: the options.
    """

    features: Mapping[str, Feature]
    reading: Reading

    @cached_property
    def are_recorded(self) -> bool:
        """Whether rows are steps as they are."""
        flags_ = {one.path for one in self.features.values() if one.spec == _FLAG}
        return {IS_FIRST, IS_LAST} <= flags_

    @cached_property
    def done(self) -> Feature | None:
        """The feature that tells how episodes end; None where none does, or it stays a column."""
        if self.are_recorded or self.reading.done_means == NOTHING:
            return None
        return self.features.get(DONE)

    @cached_property
    def columns(self) -> dict[str, Feature]:
        """Those that become columns of their own, by path."""
        done = self.done
        made = () if self.are_recorded else FLAGS if done else (IS_FIRST, IS_LAST)
        return {one.path: one for one in self.features.values() if one is not done and one.path not in made}

    def specs(self) -> dict[str, ArraySpec]:
        """Path -> spec of what `made` gives."""
        specs = {path: feature.spec for path, feature in self.columns.items()}
        if self.are_recorded:
            return specs
        if self.done is not None:
            specs = {DISCOUNT: _NUMBER, **specs, IS_TERMINAL: _FLAG}
        return {**specs, IS_FIRST: _FLAG, IS_LAST: _FLAG}

    def made(self, rows: Mapping[str, Array], done: Array | None) -> dict[str, Array]:
        """The steps of an episode.

        Args:
          rows: path -> [T, ...], the columns.
          done: [T], of the feature `done`.

        Returns:
          [T] or [T + 1, ...].

        Raises:
          BrokenEpisode: it has no rows.
        """
        count = len(next(iter(rows.values()), ()))
        if self.are_recorded:
            return dict(rows)
        if not count:
            raise BrokenEpisode("", "has no rows")
        is_terminal = None if done is None else self.reading.done_means == TERMINAL and bool(np.any(done[-1]))
        if self.reading.last_step != MARK:
            rows = {path: _closed(path, column) for path, column in rows.items()}
            count += 1
        made = {**rows, **flags(count, is_terminal)}
        if is_terminal is not None and DISCOUNT not in rows:
            made[DISCOUNT] = terminal_discount(count, is_terminal)
        return made


def row_behind(path: str, column: Array) -> Array:
    """[1, ...] what is put behind the last action of a column [T, ...]."""
    return zero_row(column) if _is_of_action(path) else column[-1:]


def _closed(path: str, column: Array) -> Array:
    """[T, ...] and the row behind the last action -> [T + 1, ...]."""
    closed = np.empty((len(column) + 1, *column.shape[1:]), column.dtype)
    closed[:-1], closed[-1:] = column, row_behind(path, column)
    return closed


def _is_of_action(path: str) -> bool:
    return is_under(path, ACTION) or path == REWARD or path.startswith("next.")
