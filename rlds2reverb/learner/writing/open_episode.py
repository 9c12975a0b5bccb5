"""One episode while it is recorded, step by step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlds2reverb.episodes import DISCOUNT, FLAGS, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, Array, Episode, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.writing.columns import Columns
from rlds2reverb.learner.writing.options import check_name
from rlds2reverb.learner.writing.steps import Steps
from rlds2reverb.specs import ArraySpec, flatten


class TakesEpisodes(Protocol):
    """What an open episode asks of its writer."""

    def steps_like(self, step: Any) -> Steps:
        """What steps are, of which this may be the first.

        Raises:
          Rlds2ReverbError: such steps do not go into the tables, or the writer has stopped.
        """

    def check(self) -> None:
        """Raises what has ended the sending."""

    def take(self, episode: Episode) -> None:
        """Takes a whole episode; raises as `EpisodeWriter.end_episode` does."""

    def check_new(self, episode_id: str) -> None:
        """Refuses the id of an episode that was there before.

        Raises:
          ConfigError: it was.
        """


class OpenEpisode:
    """An episode that steps are appended to, and after it the next one. Made by `EpisodeWriter.episode`.

    Row t holds the observation o_t, the action a_t taken at it, and what that action earned. The last row holds the final observation; its
    action and reward mean nothing.

    An episode belongs to the thread that appends its first step.

    Args:
      writer: takes the episodes.
      name: of the episodes; they are "NAME/0", "NAME/1", ...
      most_bytes, max_steps: see `WriteOptions`.
    """

    def __init__(self, writer: TakesEpisodes, name: str, most_bytes: int, max_steps: int | None) -> None:
        self._writer, self._name = writer, name
        self._most_bytes, self._max_steps = most_bytes, max_steps
        self._columns: Columns | None = None
        self._steps_spec: Steps | None = None
        self._thread = 0
        self._number = self._pieces = self._room = 0

    def __len__(self) -> int:
        """Steps of the unfinished episode, or of the unfinished part of one that is cut by max_steps."""
        return 0 if self._columns is None else self._columns.rows

    @property
    def id(self) -> str:
        """What the unfinished episode is called unless it is given a name."""
        name = f"{self._name}/{self._number}"
        return f"{name}+{self._pieces}" if self._pieces else name

    def append(self, step: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Appends a step. Its values are copied.

        Args:
          step: the fields of an RLDS step, nested or not: observation, action, reward, discount, flags and any others. The fields that
            follow from the rest may be left out: is_first, is_last, is_terminal, discount.
          fields: the same, by name.

        Raises:
          ConfigError: the step's structure, a dtype or a shape is not that of the first step, which names the column; the episode is
            too long, or another thread's. The episode is as before.
          SpecMismatch, ViewError, SourceError: such steps do not fit the tables; told of the first one.
          InvalidEpisode: the part that max_steps cut off is bad; the step is taken, as the first of the next part.
          Rlds2ReverbError: sending has failed meanwhile; told once.
        """
        if step is None:
            step = fields
        elif fields:
            step = {**step, **fields}
        columns = self._columns
        if columns is None:
            columns = self._begin(step)
        elif self._thread != threading.get_ident():
            self._refuse_thread()
        self._writer.check()
        if columns.rows == self._max_steps:
            self._cut(columns, step)
        else:
            columns.append(step)
            self._columns = columns

    def end_episode(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *,
        terminal: bool | None = None,
        id: str | None = None,  # noqa: A002  as `Episode.id`
        metadata: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Ends the episode, and hands it over to be sent.

        Args:
          step: the last row, of which only the observation has a meaning; what is left out of the others becomes 0, False, or empty
            text. Without any field the step appended last is the last row.
          terminal: whether the last state is a terminal one; False for an episode that was cut off (truncated). To be left out when the
            steps hold is_terminal.
          id: names the episode; the same steps under the same name add nothing.
          metadata: what is said of the whole episode, by path; for views that put it into items.
          fields: the last row's fields by name.

        Raises:
          ConfigError: no step, an unclear end, a name that was there before, a step that differs; the episode is as before.
          InvalidEpisode, ViewError: it is bad, or the view cannot cut it; the next one may begin, nothing of this one is stored.
          Rlds2ReverbError: sending has failed meanwhile; told once.
        """
        self._writer.check()
        columns = self._open_columns()
        last = fields if step is None else {**step, **fields}
        if last:
            self._check_last(last)
        is_terminal = self._checked_terminal(columns, terminal, last)
        episode_id = self._checked_id(id)
        if last:
            self._append_last(columns, last, is_terminal)
        episode = Episode(self._finished(columns, is_terminal), metadata or {}, episode_id)
        self._forget(columns)
        self._number, self._pieces = self._number + 1, 0
        self._writer.take(episode)

    def discard_episode(self) -> int:
        """Drops the unfinished episode; returns how many steps it had. Parts that `max_steps` cut off are stored."""
        steps = len(self)
        if self._columns is not None:
            self._forget(self._columns)
            self._number, self._pieces = self._number + 1, 0
        return steps

    def _begin(self, step: Any) -> Columns:
        steps = self._steps_spec = self._writer.steps_like(step)
        self._thread = threading.get_ident()
        return Columns(steps.layout, steps.specs, self._most_bytes, self._room)

    def _forget(self, columns: Columns) -> None:
        self._room, self._columns = columns.room, None

    def _open_columns(self) -> Columns:
        if self._columns is None:
            raise ConfigError("end_episode: there is no step; append the first one before")
        if self._thread != threading.get_ident():
            self._refuse_thread()
        return self._columns

    def _refuse_thread(self) -> None:
        raise ConfigError(
            f"episode {self.id}: another thread began it, and a writer is not for several at once. Give each thread a writer of its own, or an "
            "episode of its own: writer.episode(key)"
        )

    def _cut(self, columns: Columns, step: Any) -> None:
        """Ends the episode with this step's observation, as truncated; the next part begins with this step."""
        steps = self._known_steps
        following = Columns(steps.layout, steps.specs, self._most_bytes, columns.room)
        following.append(step)  # refuses what is wrong with it
        values = zip(steps.layout.paths, steps.layout.values(step))
        self._append_last(columns, {path: value for path, value in values if is_under(path, OBSERVATION)}, False)
        episode = Episode(self._finished(columns, False), {}, self.id)
        self._pieces += 1
        self._columns = following
        self._writer.take(episode)

    @property
    def _known_steps(self) -> Steps:
        assert self._steps_spec is not None  # known since the first step
        return self._steps_spec

    def _check_last(self, last: Mapping[str, Any]) -> None:
        """Refuses a last row without an observation, or with columns that the steps do not have."""
        paths, given = self._known_steps.layout.paths, flatten(last)
        absent = [path for path in paths if is_under(path, OBSERVATION) and path not in given]
        further = [path for path in given if path not in paths]
        if absent or further:
            said = [f'column "{path}" is not there' for path in absent]
            said += [f'column "{path}" was not there before' for path in further]
            raise ConfigError(f"end_episode: {'; '.join(said)}. The episode is as before")

    def _checked_terminal(self, columns: Columns, terminal: Any, last: Mapping[str, Any]) -> bool:
        """Whether the last state is a terminal one: as the caller says, or the last row, or both alike."""
        if terminal is not None and not isinstance(terminal, (bool, np.bool_)):
            raise ConfigError(f"end_episode: terminal {terminal!r}: expected True or False")
        if IS_TERMINAL in (last or self._known_steps.specs):
            recorded = bool(np.all(last[IS_TERMINAL] if last else columns.last(IS_TERMINAL)))
            if terminal is not None and terminal != recorded:
                raise ConfigError(
                    f"end_episode: terminal={terminal}, and the last step has is_terminal {recorded}. The episode is as before"
                )
            return recorded
        if terminal is None:
            raise ConfigError(
                "end_episode: say terminal=True when the last state is a terminal one (`terminated`), terminal=False when the episode was cut "
                "off (`truncated`). The episode is as before"
            )
        return bool(terminal)

    def _checked_id(self, given: str | None) -> str:
        check_name("id", given)
        if given is None:
            return self.id
        if self._pieces:
            raise ConfigError(
                f'end_episode: id "{given}" comes too late: parts of this episode, cut by max_steps, went as {self._name}/{self._number}; name '
                "the writer instead (client.writer(..., name=...)). The episode is as before"
            )
        self._writer.check_new(given)
        return given

    def _append_last(self, columns: Columns, last: Mapping[str, Any], is_terminal: bool) -> None:
        """Appends the last row; what it does not tell becomes 0, but for the discount of an end that is not terminal, and flags."""
        specs = self._known_steps.specs
        flags = {flag: said for flag, said in ((IS_LAST, True), (IS_TERMINAL, is_terminal)) if flag in specs}
        columns.append_values({**({} if is_terminal else _discounts_of_1(specs)), **flags, **flatten(last)})

    def _finished(self, columns: Columns, is_terminal: bool) -> dict[str, Array]:
        """The episode's columns, with the flags that the steps do not hold."""
        rows = columns.rows
        made = columns.finished()
        if self._pieces and IS_FIRST in made:
            made[IS_FIRST][0] = True
        at = np.arange(rows)
        flags = {IS_FIRST: at == 0, IS_LAST: at == rows - 1, IS_TERMINAL: (at == rows - 1) & is_terminal}
        return {**made, **{flag: flags[flag] for flag in FLAGS if flag not in made}}


def _discounts_of_1(specs: Mapping[str, ArraySpec]) -> dict[str, Any]:
    return {
        path: spec.dtype.type(1)
        for path, spec in specs.items()
        if is_under(path, DISCOUNT) and spec.shape == () and spec.dtype.kind == "f"
    }
