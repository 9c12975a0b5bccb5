"""Writes the episodes of an environment loop to tables: `append` each step, `end_episode`, continue.

OpenEpisode     records steps; one per key
EpisodeWriter   what the loop calls, and an open episode itself: checks an episode when it ends, and hands it over
SendingThread   encodes and sends, so that the network does not hold up the loop
"""

from __future__ import annotations

import atexit
import math
import os
import secrets
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episode import (
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    Array,
    Episode,
    Occurrences,
    copy_name,
    is_under,
)
from rlds2reverb.errors import ConfigError, keep_report, reason_of
from rlds2reverb.learner.recording import (
    LiveSource,
    RecordedColumns,
    Steps,
    WriteOptions,
    check_held,
    check_name,
    cut_columns,
    end_values,
    steps_of,
    steps_of_spec,
)
from rlds2reverb.learner.server_queue import LOG
from rlds2reverb.prepare.progress import Progress, ignored
from rlds2reverb.push.journal import PushJournal
from rlds2reverb.push.plan import Tuning, plan_push, push_servers
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.server_push import TOGETHER_BYTES, TOGETHER_ROWS, Outgoing, ServerPush
from rlds2reverb.servers.episodes import gather_deletions
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import column_spec, flatten, nested, same_dtype
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.stream import Reason
from rlds2reverb.views.base import wants_metadata
from rlds2reverb.wire.messages import ServerInfo


class _OpenStream(NamedTuple):
    """An open stream: episodes handed in to `source` come out of `reading`, are prepared by `push` and sent by `sending`."""

    source: LiveSource
    reading: Iterable[Episode]
    push: ServerPush
    sending: SendingThread
    finalizer: weakref.finalize


class OpenEpisode:
    """An episode that steps are appended to, and after it the next one. Made by `EpisodeWriter.episode`.

    Row t holds the observation o_t, the action a_t taken at it, and what that action earned. The last row holds the final observation; its
    action and reward mean nothing.

    An episode belongs to the thread that appends its first step.
    """

    def __init__(self, writer: EpisodeWriter, name: str, options: WriteOptions) -> None:
        self._writer, self._name = writer, name
        self._most_bytes, self._max_steps = options.most_episode_bytes, options.max_steps
        self._columns: RecordedColumns | None = None
        self._thread = 0
        self._number = self._pieces = self._room = 0

    def __len__(self) -> int:
        """Steps of the unfinished episode, or of the unfinished part of one that is cut by max_steps."""
        return 0 if self._columns is None else self._columns.rows

    @property
    def id(self) -> str:
        """The unfinished episode's name, unless `end_episode` is given another one."""
        name = f"{self._name}/{self._number}"
        return f"{name}+{self._pieces}" if self._pieces else name

    def append(self, step: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Appends a step. Its values are copied.

        Args:
          step: the fields of an RLDS step, nested or not: observation, action, reward, discount, flags and any further ones. Fields that
            follow from the rest may be left out: is_first, is_last, is_terminal, discount.
          fields: the same, by name.

        Raises:
          ConfigError: the step's structure, a dtype or a shape is not that of the first step, which names the column; the episode is
            too long, or another thread's. The episode is as before.
          SpecMismatch, ViewError, SourceError: such steps do not fit the tables; raised by the first one.
          InvalidEpisode: the part that max_steps cut off is bad; this step is kept, as the first of the next part.
          Rlds2ReverbError: sending has failed meanwhile; raised once.
        """
        if step is None:
            step = fields
        elif fields:
            step = {**step, **fields}
        columns = self._columns
        if columns is None:
            steps = self._writer.steps_like(step)
            self._thread = threading.get_ident()
            columns = RecordedColumns(steps.layout, steps.specs, self._most_bytes, self._room)
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
          step: the last row, of which only the observation has a meaning; fields that are left out become 0, False, or empty
            text. Without any field the step appended last is the last row.
          terminal: True if the last state is a terminal one, False if the episode was cut off (truncated). To be left out when the
            steps hold is_terminal.
          id: names the episode; the same steps under the same name add nothing.
          metadata: of the whole episode, by path; for views that put it into items.
          fields: the last row's fields by name.

        Raises:
          ConfigError: no step, an unclear end, a name that was there before, a step that differs; the episode is as before.
          InvalidEpisode, ViewError: it is bad, or the view cannot cut it; the next one may begin, nothing of this one is stored.
          Rlds2ReverbError: sending has failed meanwhile; raised once.
        """
        self._writer.check()
        columns = self._columns
        if columns is None:
            raise ConfigError("end_episode: there is no step; append the first one before")
        if self._thread != threading.get_ident():
            self._refuse_thread()
        last_step = fields if step is None else {**step, **fields}
        last = flatten(last_step)
        if last_step:
            self._check_last(columns, last)
        is_terminal = self._check_terminal(columns, terminal, last)
        episode_id = self._check_id(id)
        if last:
            self._append_last(columns, last, is_terminal)
        episode = Episode(self._finish(columns, is_terminal), metadata or {}, episode_id)
        self._forget(columns)
        self._writer.take(episode)

    def discard_episode(self) -> int:
        """Drops the unfinished episode; returns the number of its steps. Parts that `max_steps` cut off are stored."""
        steps = len(self)
        if self._columns is not None:
            self._forget(self._columns)
        return steps

    def _forget(self, columns: RecordedColumns) -> None:
        self._room, self._columns = columns.room, None
        self._number, self._pieces = self._number + 1, 0

    def _refuse_thread(self) -> None:
        raise ConfigError(
            f"episode {self.id}: another thread began it, and a writer is for one thread. Give each thread a writer of its own, or an "
            "episode of its own: writer.episode(key)"
        )

    def _cut(self, columns: RecordedColumns, step: Any) -> None:
        """Ends the episode with this step's observation, as truncated; the next part begins with this step."""
        layout = columns.layout
        following = RecordedColumns(layout, columns.specs, self._most_bytes, columns.room)
        following.append(step)  # raises before anything changes
        values = zip(layout.paths, layout.values(step))
        self._append_last(columns, {path: value for path, value in values if is_under(path, OBSERVATION)}, False)
        episode = Episode(self._finish(columns, False), {}, self.id)
        self._pieces += 1
        self._columns = following
        self._writer.take(episode)

    def _check_last(self, columns: RecordedColumns, last: Mapping[str, Any]) -> None:
        """Refuses a last row without an observation, or with columns that the steps do not have."""
        paths = columns.layout.paths
        lines = [f'column "{path}" is not there' for path in paths if is_under(path, OBSERVATION) and path not in last]
        lines += [f'column "{path}" was not there before' for path in last if path not in paths]
        if lines:
            raise ConfigError(f"end_episode: {'; '.join(lines)}. The episode is as before")

    def _check_terminal(self, columns: RecordedColumns, terminal: Any, last: Mapping[str, Any]) -> bool:
        """Whether the last state is a terminal one, by the argument, by the last row, or by both alike."""
        if terminal is not None and not isinstance(terminal, (bool, np.bool_)):
            raise ConfigError(f"end_episode: terminal {terminal!r}: expected True or False")
        if IS_TERMINAL in (last or columns.specs):
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

    def _check_id(self, episode_id: str | None) -> str:
        check_name("id", episode_id)
        if episode_id is None:
            return self.id
        if self._pieces:
            raise ConfigError(
                f'end_episode: id "{episode_id}" comes too late: parts of this episode, cut by max_steps, went as {self._name}/{self._number}; name '
                "the writer instead (client.writer(..., name=...)). The episode is as before"
            )
        self._writer.check_new(episode_id)
        return episode_id

    def _append_last(self, columns: RecordedColumns, last: Mapping[str, Any], is_terminal: bool) -> None:
        """Appends the last row; its missing values become 0, except flags, and discounts of 1 where the end is not terminal."""
        columns.append_values({**end_values(columns.specs, is_terminal), **last})

    def _finish(self, columns: RecordedColumns, is_terminal: bool) -> dict[str, Array]:
        """The episode's columns, with the flags that the steps do not hold."""
        rows = columns.rows
        recorded = columns.finished()
        # `max_steps` cut the recording before this part, so its first step says that it is not the first; the part is an episode of its own.
        if self._pieces and IS_FIRST in recorded:
            recorded[IS_FIRST][0] = True
        at = np.arange(rows)
        flags = {IS_FIRST: at == 0, IS_LAST: at == rows - 1, IS_TERMINAL: (at == rows - 1) & is_terminal}
        return {**recorded, **{flag: flags[flag] for flag in FLAGS if flag not in recorded}}


class EpisodeWriter(OpenEpisode):
    """Writes the episodes of an environment loop to tables. Made by `Client.writer`; use it as a context manager.

    It is itself an open episode, which steps are appended to, one episode after the other; `episode` gives further ones.

    A step is appended when its action has been taken: the observation that the action was chosen for, the action, and what it earned.
    Episodes are checked when they end, by the rules of a push, and sent in the background; items are in the tables some milliseconds
    later, or when `flush` returns.

    A writer is for one thread. Each actor has a writer of its own; they may write to the same tables.

    Close it: a writer that is dropped, or left open when the interpreter ends, still sends the episodes that have ended, and logs a
    warning to `rlds2reverb.learner`. The interpreter's end waits five seconds for that; what was not confirmed by then is logged.

    As long as it lives, a writer keeps the names that episodes were given (`id=`), to refuse a name that comes again, and a number for
    each key of `episode`, to name the next one. So number environments, not episodes, and leave out `id` in a loop without an end.

    Args:
      transport: to the server.
      info: the server's tables.
      options: tables, views and limits.
      tuning: of the sending; None to derive it from the options.

    Attributes:
      name: prefix of the episodes' names.

    Raises:
      ConfigError: the server has no such table.
      Rlds2ReverbError: steps of the spec in the options do not fit the tables.
    """

    def __init__(
        self, transport: Transport, info: ServerInfo, options: WriteOptions, tuning: Tuning | None = None
    ) -> None:
        for table in options.tables:
            table_of(info, table)
        options.check_files()
        self.name = options.name or secrets.token_hex(8)
        self._title = f"writer {self.name}"
        super().__init__(self, self.name, options)
        self._transport, self._info, self._options, self._tuning = transport, info, options, tuning
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._ids: set[str] = set()
        self._contents = Occurrences()
        self._written = 0  # whole episodes
        self._open: _OpenStream | None = None
        self._is_closed = False
        self._needs_metadata = wants_metadata([output.view for output in options.outputs])
        self._steps = None if options.spec is None else steps_of_spec(options.spec)
        self._episodes: dict[str, OpenEpisode] = {}
        # Which metadata there are shows with the first episode, so where items hold some, that opens the stream.
        if self._steps is not None and not self._needs_metadata:
            self._start(self._steps)

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes the writer.

        After an error in the block the episodes that had ended are still sent, and that error is the one raised.
        """
        if error is None:
            self._close()
        elif not self._is_closed:
            self._end()

    def episode(self, key: int | str) -> OpenEpisode:
        """Returns the open episode of a key: for episodes that are open at the same time, such as those of a vector of environments.

        Args:
          key: of the episode; the episodes under it are named "NAME/KEY/0", "NAME/KEY/1", ...

        Raises:
          ConfigError: the key is neither a whole number nor a text that is not empty.
        """
        if isinstance(key, bool) or not isinstance(key, (int, str)) or key == "":
            raise ConfigError(f"writer: episode {key!r}: expected a whole number or a text")
        with self._lock:
            if str(key) not in self._episodes:
                self._episodes[str(key)] = OpenEpisode(self, f"{self.name}/{key}", self._options)
            return self._episodes[str(key)]

    def write_episode(
        self,
        columns: Mapping[str, Array],
        *,
        terminal: bool | None = None,
        id: str | None = None,  # noqa: A002  as `Episode.id`
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Hands over a whole episode, as `append` of its rows and `end_episode` would, at the cost of one call.

        Args:
          columns: path -> [T + 1, ...], as `Episode.columns`: row t has an observation, the action taken at it and what that action earned; the
            last row has the final observation. They are not copied: change them no more. Flags (is_first, is_last, is_terminal) may be left out.
          terminal: whether the last state is a terminal one, where the columns have no is_terminal.
          id: names the episode; the same steps under the same name add nothing. By default "NAME/episodes/0", "NAME/episodes/1", ... Parts
            that max_steps cuts off behind the first are "ID+1", "ID+2", ...
          metadata: of the episode, by path; for views that put it into items.

        Raises:
          ConfigError: no rows, an unclear end, an id that was there before; or columns, dtypes or shapes differ from those of earlier steps.
            Nothing of it was taken.
          SpecMismatch, ViewError, SourceError: such steps do not fit the tables; raised for the first ones.
          InvalidEpisode: it is bad. Nothing of it is stored, except parts that max_steps cut off before; others may follow.
          Rlds2ReverbError: sending has failed meanwhile; raised once.
        """
        self.check()
        check_name("id", id)
        count = len(next(iter(columns.values()), ()))
        if not count:
            raise ConfigError("write_episode: no rows")
        if (IS_TERMINAL in columns) == (terminal is not None):
            raise ConfigError(
                "write_episode: say by terminal= or by a column is_terminal whether the last state is terminal, not by both"
            )
        if terminal is not None and not isinstance(terminal, (bool, np.bool_)):
            raise ConfigError(f"write_episode: terminal {terminal!r}: expected True or False")
        with self._lock:
            if id is not None:
                self.check_new(id)
            self._check_columns(columns)
            at = np.arange(count)
            flags = {IS_FIRST: at == 0, IS_LAST: at == count - 1, IS_TERMINAL: (at == count - 1) & bool(terminal)}
            parts = cut_columns({**flags, **columns}, self._max_steps)
            name = f"{self.name}/episodes/{self._written}" if id is None else id
            names = [f"{name}+{number}" if number else name for number in range(len(parts))]
            if id is not None:
                for further in names[1:]:
                    self.check_new(further)
            self._written += 1
        for part_name, part in zip(names, parts):
            self.take(Episode(part, metadata or {}, part_name))

    def name_of_content(self, content: str) -> str:
        """The name of one more episode of a content, for `write_episode(id=...)`: the second is `CONTENT#2`, as in a push.

        So equal episodes are several, and whoever writes the same ones once more, in another process, stores nothing twice.
        """
        with self._lock:
            return copy_name(content, self._contents.count(content))

    def _check_columns(self, columns: Mapping[str, Array]) -> None:
        """Compares the columns of a whole episode with the steps before; the first ones open the stream."""
        specs = {path: column_spec(column) for path, column in columns.items()}
        if self._steps is None:
            steps = steps_of_spec(nested({path: spec for path, spec in specs.items() if path not in FLAGS}))
            if not self._needs_metadata:
                self._start(steps)
            self._steps = steps
        before, lines = self._steps.specs, []
        for path in sorted(specs.keys() | before):
            spec, expected = specs.get(path), before.get(path)
            if spec is None or expected is None:
                is_alike = path in FLAGS
            else:
                is_alike = spec.shape == expected.shape and same_dtype(spec.dtype, expected.dtype)
            if not is_alike:
                lines.append(f'column "{path}" is {spec or "not there"}, and was {expected or "not there"}')
        if lines:
            raise ConfigError(f"write_episode: {'; '.join(lines)}. Nothing of this episode was taken")

    def flush(self) -> None:
        """Waits until every item of the episodes that have ended is confirmed.

        Raises:
          TransportError: sending failed; `report` of the error says what is stored.
          CapacityError: items would evict stored ones, which the options do not allow.
          ConfigError: the writer has stopped or is closed.
        """
        self.check()
        self._check_process()
        if self._open is not None:
            self._open.sending.drain()

    def close(self) -> None:
        """Flushes, and ends the sending. An unfinished episode is not stored, and a warning says so; closing twice is harmless.

        Raises:
          TransportError, CapacityError: as `flush`.
        """
        self._close()

    def _close(self) -> None:
        if self._is_closed or os.getpid() != self._process:
            return
        if (failure := self._end()) is not None:
            raise failure
        if words := self._unfinished():
            warnings.warn(words, stacklevel=3)  # where the block or `close` is

    def _end(self) -> BaseException | None:
        """Sends what is finished; returns a failure that was not raised before.

        An interrupt leaves the rest to the interpreter's end.
        """
        self._is_closed = True
        if self._open is None:
            return None
        failure = self._open.sending.close() if os.getpid() == self._process else None
        self._open.finalizer.detach()
        if self._options.name is not None:
            self._warn_of_items_there(self._open.sending.report)
        return failure

    def _warn_of_items_there(self, report: PushReport) -> None:
        """Warns that items of these names were there before, since whether their steps are the same ones cannot be seen."""
        if report.items_new is not None and report.items_new < report.items_confirmed:
            LOG.warning(
                "%s: of %s, %s were in the tables before, under the same names, and stay as they are. That is right where the same episodes "
                "were written once more; other ones are lost: give each actor and each run a name of its own, or none",
                self._title,
                counted(report.items_confirmed, "item"),
                f"{report.items_confirmed - report.items_new:,}",
            )

    def _unfinished(self) -> str:
        """A warning about the unfinished episodes; "" without any."""
        episodes = (self, *self._episodes.values())
        listed = ", ".join(f"{episode.id} ({len(episode):,} steps)" for episode in episodes if len(episode))
        return listed and (
            f"writer: closed before the end of {listed}; nothing of these steps is stored. end_episode(..., terminal=False) stores an "
            "episode that was cut off, discard_episode() drops it without this warning"
        )

    def report(self) -> PushReport:
        """The report so far, as that of a push; `stopped` is the error that ended the sending, or empty."""
        if self._open is not None:
            return self._open.sending.report
        views = ", ".join(dict.fromkeys(output.view_name for output in self._options.outputs))
        return PushReport(source=self._title, tables=self._options.tables, view=views)

    # Called by open episodes.

    def check(self) -> None:
        """Raises the error that ended the sending, or an error when the writer is closed.

        Raises:
          TransportError, CapacityError: sending failed; the first time.
          ConfigError: it failed earlier, or the writer is closed.
        """
        if self._open is not None and self._open.sending.failure is not None:
            self._open.sending.check()
        if self._is_closed:
            raise ConfigError(
                "writer: it has been closed; nothing more is stored by it. Make another one (client.writer)"
            )

    def steps_like(self, step: Any) -> Steps:
        """Returns the layout and specs of steps. The first step defines them, and opens the stream.

        Raises:
          Rlds2ReverbError: such steps do not fit the tables, or the writer has stopped.
        """
        self.check()
        with self._lock:
            if self._steps is None:
                steps = steps_of(step, self._options, self._info)
                if not self._needs_metadata:
                    self._start(steps)
                self._steps = steps
            return self._steps

    def take(self, episode: Episode) -> None:
        """Checks an episode, cuts it, and hands its items over to be sent.

        Raises:
          InvalidEpisode, ViewError: the episode is bad, or the view cannot cut it.
          Rlds2ReverbError: sending has failed.
        """
        self._check_process()
        with self._lock:
            assert self._steps is not None  # there are no episodes without steps
            opened = self._open or self._start(self._steps, episode)
            if not episode.id.startswith(f"{self.name}/"):
                self._ids.add(episode.id)
            opened.source.hand_in(episode)
            for handed_in in opened.reading:
                if (outgoing := opened.push.prepare(handed_in)) is not None:
                    opened.sending.put(outgoing)

    def check_new(self, episode_id: str) -> None:
        """Refuses an id that an earlier episode has, or may have.

        Raises:
          ConfigError: the id is taken.
        """
        with self._lock:
            if episode_id in self._ids or episode_id.startswith(f"{self.name}/"):
                raise ConfigError(
                    f'end_episode: id "{episode_id}": this writer has an episode of that name, whose items would have the same keys. The episode '
                    "is as before"
                )

    def _check_process(self) -> None:
        """A forked process has the writer, and not its thread."""
        if os.getpid() != self._process:
            raise ConfigError("writer: it was made in another process; connect, and make a writer, in each")

    def _start(self, steps: Steps, example: Episode | None = None) -> _OpenStream:
        """Makes all checks of a push, and opens the stream."""
        source = LiveSource(self._title, steps.spec, example)
        transport = self._transport
        plan = plan_push(
            source, self._options, lambda: {transport.address: transport.server_info()}, tuning=self._tuning
        )
        check_held(plan)

        def on_wait(reason: Reason) -> None:
            plan.options.on_progress(push.progress(reason))

        servers = push_servers(plan, {transport.address: transport})
        push = ServerPush(plan, servers[0], plan.ready.preparer(), on_wait)
        push.deletions = gather_deletions(servers, plan.infos, plan.tuning.deadlines.stall)
        journal = PushJournal("write", plan, servers, push.report)
        push.open()
        journal.begin()
        journal.wait_begun()
        sending = SendingThread(push, self._options.most_waiting_bytes, plan.options.on_progress, journal.end)
        unfinished = partial(_unfinished_of, weakref.ref(self))
        finalizer = weakref.finalize(self, end_unclosed, sending, self._title, self._process, unfinished)
        self._open = _OpenStream(source, plan.source, push, sending, finalizer)
        return self._open


def _unfinished_of(writer: weakref.ref[EpisodeWriter]) -> str:
    return "" if (there := writer()) is None else there._unfinished()


_CHECK_SECONDS = 0.25  # how often the thread checks the connection while something is unconfirmed
_KEPT_SECONDS = 0.02  # how long an incomplete request waits for further episodes while another one is unconfirmed


class SendingThread:
    """Sends prepared episodes, in the order of `put`. Any thread may call.

    A request is sent when it is full, when nothing is unconfirmed, or after a moment: so short episodes share requests, and none waits
    for the next one. Where episodes end faster than that moment, they are sent together after it. The loop waits while too many bytes do.

    Args:
      push: open; the thread closes it when it ends.
      most_bytes: of the episodes that wait.
      on_end: called in the thread when all is sent, or with the error that ended it.
    """

    def __init__(
        self,
        push: ServerPush,
        most_bytes: int,
        on_progress: Callable[[Progress], object] = ignored,
        on_end: Callable[[BaseException | None], object] = lambda _: None,
    ) -> None:
        self._push, self._most_bytes, self._on_progress, self._on_end = push, most_bytes, on_progress, on_end
        self._changed = threading.Condition()
        self._waiting: deque[Outgoing] = deque()
        self._bytes = self._rows = 0  # of the waiting episodes
        self._put_at, self._pause = -math.inf, math.inf  # when the last was put, and the seconds between the last two
        self._drains_requested = self._drains_done = 0
        self._is_closing = False
        self.failure: BaseException | None = None
        self._was_raised = False
        self._is_kept = False  # whether the incomplete request has items
        self._thread = threading.Thread(target=self._run, name="rlds2reverb-write", daemon=True)
        self._thread.start()

    @property
    def report(self) -> PushReport:
        failure = self.failure
        return replace(self._push.report(), stopped="" if failure is None else reason_of(failure))

    def check(self) -> None:
        """Raises the error that ended the sending: itself the first time, a ConfigError afterwards, and after `close`."""
        with self._changed:
            if self.failure is None and not self._is_closing:
                return
            if self.failure is not None and not self._was_raised:
                self._was_raised = True
                raise self.failure
            why = "has been closed" if self.failure is None else f"stopped earlier ({reason_of(self.failure)})"
        raise ConfigError(f"writer: it {why}; nothing more is stored by it. Make another one (client.writer)")

    def put(self, prepared: Outgoing) -> None:
        """Adds an episode; waits while too many bytes do. When it raises, as `check` does, the episode was not added."""
        with self._changed:
            self._wait(lambda: self._bytes <= self._most_bytes)
            self._waiting.append(prepared)
            self._bytes += prepared.episode.nbytes
            self._rows += len(prepared.episode)
            now = time.monotonic()
            self._put_at, self._pause = now, now - self._put_at
            # Not for every episode: the thread takes all that wait together, and waking it takes time from the environment loop.
            if len(self._waiting) == 1 or self._has_enough():
                self._changed.notify_all()

    def drain(self) -> None:
        """Waits until everything is confirmed; raises as `check` does."""
        with self._changed:
            self.check()
            self._drains_requested += 1
            mine = self._drains_requested
            self._changed.notify_all()
            self._wait(lambda: self._drains_done >= mine)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was put is confirmed."""
        return not self._bytes and not self._is_kept and self._push.awaits_nothing

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def close(self, seconds: float | None = None) -> BaseException | None:
        """Waits until everything is confirmed or sending has failed, and ends the thread; returns a failure that was not raised before.

        After `seconds` the thread is left running.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        was_raised, self._was_raised = self._was_raised, True
        return None if was_raised else self.failure

    def _wait(self, done: Callable[[], bool]) -> None:
        """Waits with the lock held."""
        self._changed.wait_for(lambda: done() or self.failure is not None)
        self.check()

    # In the sending thread.

    def _run(self) -> None:
        try:
            while self._work():
                pass
            self._push.finish()
            self._note()
            self._on_end(None)
        except BaseException as error:  # not handled here: raised in the caller's thread
            self._push.wind_up(error)
            self._on_end(error)
            keep_report(error, replace(self._push.report(), stopped=reason_of(error)))
            with self._changed:
                self.failure = error
                self._waiting.clear()
                self._changed.notify_all()
        finally:
            self._push.close()

    def _work(self) -> bool:
        """Waits for work and does one piece of it; False when it was the last."""
        idle_seconds = None if self._push.awaits_nothing else _CHECK_SECONDS
        seconds = _KEPT_SECONDS if self._is_kept else idle_seconds
        together, drains, is_over = list[Outgoing](), 0, False
        with self._changed:
            if self._changed.wait_for(self._has_work, seconds):
                if self._pause < _KEPT_SECONDS:
                    self._changed.wait_for(self._has_enough, _KEPT_SECONDS)
                together = self._take_together()
                # Episodes that wait may have been put before the drain was requested, so they are sent first.
                drains = 0 if together else self._drains_requested
                is_over = self._is_closing and not together
        if together:
            self._push.send(together)
            self._is_kept = True
            if self._push.awaits_nothing:
                self._flush()
            with self._changed:
                self._bytes -= sum(outgoing.episode.nbytes for outgoing in together)
                self._changed.notify_all()
        elif drains > self._drains_done:
            self._push.drain()
            self._is_kept = False
            self._note()
            with self._changed:
                self._drains_done = drains
                self._changed.notify_all()
        elif not is_over:
            self._push.check()
            self._flush()
        self._push.record()
        return not is_over

    def _note(self) -> None:
        self._push.record()
        self._on_progress(self._push.progress())

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._drains_requested > self._drains_done or self._is_closing

    def _take_together(self) -> list[Outgoing]:
        """Removes waiting episodes, as many as are sent together."""
        taken, rows, size = list[Outgoing](), 0, 0
        while self._waiting and size < TOGETHER_BYTES:
            if taken and rows + len(self._waiting[0].episode) > TOGETHER_ROWS:
                break
            taken.append(self._waiting.popleft())
            rows, size = rows + len(taken[-1].episode), size + taken[-1].episode.nbytes
        self._rows -= rows
        return taken

    def _has_enough(self) -> bool:
        is_full = self._rows >= TOGETHER_ROWS or self._bytes >= min(TOGETHER_BYTES, self._most_bytes)
        return is_full or self._drains_requested > self._drains_done or self._is_closing

    def _flush(self) -> None:
        self._push.flush()
        self._is_kept = False


EXIT_SECONDS = 5.0
"""How long the end of the interpreter waits for confirmations."""


def end_unclosed(sending: SendingThread, title: str, process: int, unfinished: Callable[[], str]) -> None:
    """Ends the sending of a writer that is dropped, or still open when the interpreter ends.

    The garbage collector may run anywhere, with any lock held: so a thread does it. At its end, the interpreter starts no thread.

    Args:
      title: of the writer, for messages.
      process: the one that has the sending thread; in any other, this does nothing.
      unfinished: returns a warning about unfinished episodes; "" without any, or when the writer is gone.
    """
    if os.getpid() != process:
        return
    at_exit = partial(_end, sending, title, EXIT_SECONDS, "the interpreter ends")
    if not threading.main_thread().is_alive():
        at_exit()
        if words := unfinished():
            LOG.warning("%s", words)
        return

    def end() -> None:
        atexit.register(at_exit)  # this thread may not live to see it through
        _end(sending, title, None, "nobody holds it any more")
        atexit.unregister(at_exit)

    threading.Thread(target=end, name="rlds2reverb-close", daemon=True).start()


def _end(sending: SendingThread, title: str, seconds: float | None, why: str) -> None:
    """Warns that the writer was not closed, where that matters, and about what is not confirmed."""
    if seconds is None or not sending.is_idle:
        LOG.warning(
            "%s: not closed, and %s: episodes that have ended are still sent, steps of unfinished ones are not stored. close() it, or "
            "use it as a context manager",
            title,
            why,
        )
    failure = sending.close(seconds)
    if failure is not None or not sending.is_over:
        report = sending.report
        cause = f"not confirmed within {seconds} s" if failure is None else reason_of(failure)
        LOG.warning(
            "%s: of %s that had ended not all items may be stored: %s",
            title,
            counted(report.episodes_unconfirmed, "episode"),
            cause,
        )
