"""The last action of an episode, where no observation follows it.

In many datasets, those of Open X-Embodiment among them, the last row has an action. By RLDS' convention it has no meaning, so no learner sees it.
`last_step=repeat` puts a row behind such a last row, with the same observation and without an action (`rows.with_row_behind`): T rows give T
actions. It is an option of every command (`prepare.conventions`), and of the name of a dataset (`take_last_step`), where formats whose files hold
no last observation have it as an option of their own (`rows`; `Reading.has_last_step`).

A last row without an action or a reward stays the last one: it was added for the last observation. So the option changes nothing where RLDS'
convention is kept already; a transform that makes actions leaves such a row without any (`transformed.LastRow`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    REWARD,
    ROW_BEHIND,
    Episode,
    KnownEpisode,
    Notice,
    columns_under,
    gaps_around,
    is_under,
    note,
)
from rlds2reverb.formats.options import read_options, take_options, words
from rlds2reverb.formats.rows import MARK, REPEAT, with_row_behind
from rlds2reverb.formats.source import IsKnown, Source, Without, Wrapper, columns_of, unless_known

LAST_STEP = "last_step"


def last_row_is_added(episode: Episode) -> bool:
    """Whether the last row holds no transition: its action and reward are 0 (or empty text), or not there.

    A transform may have made zeros of a recorded action; it says so by `is_last_recorded`. Columns are of one length.
    """
    return not episode.is_last_recorded and not any(
        any(column[-1:].ravel()) if column.dtype.kind in "OSU" else np.any(column[-1:] != 0)
        for name in (ACTION, REWARD)
        for column in columns_under(episode.columns, name).values()
        if column.dtype.kind in "biufcOSU" or column.dtype.name == "bfloat16"
    )


def has_added_row(episode: Episode) -> bool:
    """As `last_row_is_added`, but False before a gap: the last row of a run was recorded in the middle, even if its action and reward are 0."""
    return not gaps_around(episode.id)[1] and last_row_is_added(episode)


def decides_last_row(path: str) -> bool:
    """Whether a column is an action or a reward, by which `last_row_is_added` decides."""
    return is_under(path, ACTION) or is_under(path, REWARD)


def repeat_last_step(episode: Episode) -> Episode:
    """The episode with a row behind the last one; it keeps its name."""
    longer = with_row_behind(episode.columns)
    if IS_FIRST in longer:
        longer[IS_FIRST][-1:] = False
    for path in (IS_LAST, IS_TERMINAL):
        if path in longer:
            longer[path][-2:-1] = False
    return replace(episode, columns=longer, is_last_recorded=False)


def take_last_step(name: str) -> tuple[str, bool]:
    """Splits the name of a dataset into the name without the option, and whether it says `repeat`.

    Raises:
      SourceError: the option has another value than `repeat` and `mark`.
    """
    bare_name, own = take_options(name, lambda option, _: option == LAST_STEP)
    if not own:
        return name, False
    return bare_name, read_options(name, ",".join(own), {LAST_STEP: words(MARK, REPEAT)})[LAST_STEP] == REPEAT


class LastStep(Wrapper):
    """The episodes of a source, with a row behind each last one that has an action or a reward. A changed episode has another name."""

    def encoded(self, paths: Collection[str]) -> LastStep:
        return LastStep(self._source.encoded(paths), self.name)

    def without(self, paths: Collection[str]) -> Source:
        """Actions and rewards are read, and dropped once it is known whether the last row has any."""
        columns = columns_of(self._source.spec(), self.name)
        deciding = {path for path in paths if path in columns and decides_last_row(path)}
        longer = LastStep(self._source.without(set(paths) - deciding), self.name)
        return Without(longer, deciding) if deciding else longer

    def episode_lengths(self) -> Sequence[int] | None:
        return None  # which episodes get a row is known once they are read

    def count_lengths(self) -> Sequence[int]:
        names = (ACTION, REWARD, IS_FIRST, IS_LAST)
        columns = columns_of(self._source.spec(), self.name)
        light = self.without([path for path in columns if not any(is_under(path, name) for name in names)])
        return [len(episode) for episode in light.episodes()]

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        # The source is not asked: what an episode is called here follows from its last row.
        return unless_known(map(self._longer, self._source.episodes(start, stop)), is_known)

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return ((number, self._longer(episode)) for number, episode in self._source.at(numbers))

    def metadata_of(self, number: int) -> Mapping[str, object] | None:
        return self._source.metadata_of(number)

    @property
    def notices(self) -> tuple[Notice, ...]:
        text = (
            "an episode whose last row has an action or a reward ends with its observation once more (last_step=repeat)"
        )
        return (*self._source.notices, note(LAST_STEP, text))

    @staticmethod
    def _longer(episode: Episode) -> Episode:
        rows = len(episode)
        is_whole = rows > 0 and all(len(column) == rows for column in episode.columns.values())
        if episode.faults or not is_whole or has_added_row(episode):
            return episode  # validation judges what is broken
        return replace(repeat_last_step(episode), id=f"{episode.id}{ROW_BEHIND}")
