"""The way of an environment loop into tables: `append` each step, `end_episode`, continue.

EpisodeWriter     what the loop calls: records, judges an episode when it ends, hands it over
SendingThread   encodes and sends, so that the loop is not held up by the network
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, keep_report, reason_of
from rlds2reverb.learner.batch_queue import LOG
from rlds2reverb.learner.recording import (
    LiveSource,
    OpenEpisode,
    Steps,
    WriteOptions,
    check_held,
    steps_of,
    steps_of_spec,
)
from rlds2reverb.push.options import Tuning
from rlds2reverb.push.plan import plan_push
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.shard import Outgoing, Shard
from rlds2reverb.push.tables import table_of
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Transport
from rlds2reverb.views.extras import wants_metadata
from rlds2reverb.wire.messages import ServerInfo


class EpisodeWriter:
    """Writes the episodes of an environment loop to tables. Made by `Client.writer`; use it as a context manager.

    A step is appended when its action has been taken: the observation that the action was chosen for, the action, and what it earned. Episodes
    are judged when they end, by the rules of a push, and sent in the background; items are in the tables some milliseconds later, or when
    `flush` returns.

    One writer is for one thread. Several actors have a writer each, also on the same tables.

    Close it: one that is dropped, or left open when the interpreter ends, still sends the episodes that have ended, and tells the log
    `rlds2reverb.learner`. The interpreter's end waits five seconds for that; the log has what was not confirmed by then.

    For as long as it lives a writer keeps the names that episodes were given (`id=`), to refuse one that comes again, and a number for each
    key of `episode`, to name the next one. So number environments, not episodes, and leave out `id` where a loop goes on for ever.

    Args:
      transport: the way to the server.
      info: its tables.
      options: what goes where, and how.
      tuning: how it sends; None for what the options say.

    Attributes:
      name: of the writer, which begins the names of its episodes.

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
        self._transport, self._info, self._options, self._tuning = transport, info, options, tuning
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._ids: set[str] = set()
        self._source: LiveSource | None = None
        self._reading: Iterable[Episode] = ()
        self._push: Shard | None = None
        self._sending: SendingThread | None = None
        self._finalizer: weakref.finalize | None = None
        self._is_closed = False
        self._needs_metadata = wants_metadata([output.view for output in options.outputs])
        self._steps = None if options.spec is None else steps_of_spec(options.spec)
        self._episodes: dict[str, OpenEpisode] = {}
        self._own = self._new_episode(self.name)
        if self._steps is not None and not self._needs_metadata:
            self._start(self._steps)

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes the writer. After an error in the block the episodes that had ended are still sent, and that error is the one raised."""
        if error is None:
            self._close(stacklevel=3)
            return
        if not self._is_closed:
            self._end()

    def __len__(self) -> int:
        """Steps of the unfinished episode."""
        return len(self._own)

    def append(self, step: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Appends a step; see `OpenEpisode.append`."""
        self._own.append(step, **fields)

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
        """Ends the episode; see `OpenEpisode.end_episode`."""
        self._own.end_episode(step, terminal=terminal, id=id, metadata=metadata, **fields)

    def discard_episode(self) -> int:
        """Drops the unfinished episode; returns how many steps it had."""
        return self._own.discard_episode()

    def episode(self, key: int | str) -> OpenEpisode:
        """One of several episodes that are open at the same time, such as those of a vector of environments.

        Args:
          key: which; the episodes under it are called "NAME/KEY/0", "NAME/KEY/1", ...

        Raises:
          ConfigError: the key is neither a whole number nor a text that is not empty.
        """
        if isinstance(key, bool) or not isinstance(key, (int, str)) or key == "":
            raise ConfigError(f"writer: episode {key!r}: expected a whole number or a text")
        with self._lock:
            if str(key) not in self._episodes:
                self._episodes[str(key)] = self._new_episode(f"{self.name}/{key}")
            return self._episodes[str(key)]

    def flush(self) -> None:
        """Waits until every item of the episodes that have ended is confirmed.

        Raises:
          TransportError: sending failed; `report` of the error says what is stored.
          CapacityError: items would evict others, which was not allowed.
          ConfigError: the writer has stopped or is closed.
        """
        self.check()
        self._check_process()
        if self._sending is not None:
            self._sending.drain()

    def close(self) -> None:
        """Flushes, and ends the sending. An episode that has not ended is not stored, and a warning says so; closing twice is harmless.

        Raises:
          TransportError, CapacityError: as `flush`.
        """
        self._close(stacklevel=3)

    def _close(self, stacklevel: int) -> None:
        if self._is_closed or os.getpid() != self._process:
            return
        if (failure := self._end()) is not None:
            raise failure
        if words := self._unfinished():
            warnings.warn(words, stacklevel=stacklevel)

    def _end(self) -> BaseException | None:
        """Sends what is finished; what failed, unless it was raised before. An interrupt leaves the rest to the interpreter's end."""
        self._is_closed = True
        failure = None
        if self._sending is not None and os.getpid() == self._process:
            failure = self._sending.close()
        if self._finalizer is not None:
            self._finalizer.detach()
        return failure

    def _unfinished(self) -> str:
        """Tells of the episodes that have not ended; "" when there are none."""
        unfinished = [episode for episode in (self._own, *self._episodes.values()) if len(episode)]
        return _words_of(unfinished) if unfinished else ""

    def report(self) -> PushReport:
        """The account so far, as that of a push; `stopped` says what has ended the sending, if anything has."""
        if self._sending is not None:
            return self._sending.report
        views = ", ".join(dict.fromkeys(output.view_name for output in self._options.outputs))
        return PushReport(source=self._title, tables=self._options.tables, view=views)

    # What open episodes ask for.

    def check(self) -> None:
        """Raises what has ended the sending, or that the writer is closed.

        Raises:
          TransportError, CapacityError: sending failed; the first time.
          ConfigError: it failed earlier, or the writer is closed.
        """
        sending = self._sending
        if sending is not None and sending.has_failed:
            sending.check()
        if self._is_closed:
            raise ConfigError(
                "writer: it has been closed; nothing more is stored by it. Make another one (client.writer)"
            )

    def steps_like(self, step: Any) -> Steps:
        """What steps are, of which this may be the first.

        Raises:
          Rlds2ReverbError: such steps do not go into the tables.
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
        """Judges an episode, and hands it over to be sent.

        Raises:
          InvalidEpisode, ViewError: it is bad.
          Rlds2ReverbError: sending has failed.
        """
        self._check_process()
        with self._lock:
            if self._sending is None:
                assert self._steps is not None  # there are no episodes without steps
                self._start(self._steps, episode)
            assert self._source is not None  # just started, as the next two
            assert self._push is not None
            assert self._sending is not None
            if not episode.id.startswith(f"{self.name}/"):
                self._ids.add(episode.id)
            self._source.hand_in(episode)
            for made in self._reading:
                if (outgoing := self._push.prepare(made)) is not None:
                    self._sending.put(outgoing)

    def check_new(self, episode_id: str) -> None:
        """Refuses the id of an episode that was there before.

        Raises:
          ConfigError: it was, or may be.
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

    @property
    def _title(self) -> str:
        return f"writer {self.name}"

    def _new_episode(self, name: str) -> OpenEpisode:
        return OpenEpisode(self, name, self._options.most_episode_bytes, self._options.max_steps)

    def _start(self, steps: Steps, example: Episode | None = None) -> None:
        """Makes all checks of a push, and opens the stream."""
        source = steps.source(self._title, example)
        transport = self._transport
        plan = plan_push(
            source, self._options, lambda: {transport.address: transport.server_info()}, tuning=self._tuning
        )
        check_held(plan)
        push = Shard(plan, transport.address, transport)
        push.open()
        self._source, self._reading, self._push = source, plan.source, push
        sending = self._sending = SendingThread(push, self._options.most_waiting_bytes)
        unfinished = partial(_unfinished_of, weakref.ref(self))
        self._finalizer = weakref.finalize(self, end_unclosed, sending, self._title, self._process, unfinished)


def _unfinished_of(writer: weakref.ref[EpisodeWriter]) -> str:
    return "" if (there := writer()) is None else there._unfinished()


def _words_of(episodes: list[OpenEpisode]) -> str:
    listed = ", ".join(f"{episode.id} ({len(episode):,} steps)" for episode in episodes)
    return (
        f"writer: closed before the end of {listed}; nothing of these steps is stored. end_episode(..., terminal=False) stores an episode that "
        "was cut off, discard_episode() drops it without this warning"
    )


_LOOK_SECONDS = 0.25
"""How often the thread looks whether the sending goes well, while something is on its way."""

_KEPT_SECONDS = 0.02
"""How long a request that is not full waits for further episodes, while another one is on its way."""


class SendingThread:
    """Sends what is judged. Any thread may call; the order of `put` is the order of sending.

    A request goes when it is full, when nothing is on its way, or a moment after: so short episodes share requests, and none waits for
    the next one. The loop waits when too many bytes do.

    Args:
      push: open; the thread closes it when it ends.
      most_bytes: of the episodes that wait.
    """

    def __init__(self, push: Shard, most_bytes: int) -> None:
        self._push, self._most_bytes = push, most_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Outgoing] = deque()
        self._bytes = 0
        self._asked = self._drained = 0  # how often a drain was asked for, and which of these is done
        self._is_closing = False
        self._failure: BaseException | None = None
        self._was_raised = False
        self._is_kept = False  # whether a request in the making has items
        self._thread = threading.Thread(target=self._run, name="rlds2reverb-write", daemon=True)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether nothing is sent any more."""
        return self._failure is not None

    @property
    def report(self) -> PushReport:
        """The account so far."""
        failure = self._failure
        return replace(self._push.report(), stopped="" if failure is None else reason_of(failure))

    def check(self) -> None:
        """Raises what has ended the sending: itself the first time, and that the writer has stopped from then on.

        Raises:
          TransportError, CapacityError: sending failed.
          ConfigError: the writer has stopped, or is closed.
        """
        with self._changed:
            self._check()

    def put(self, judged: Outgoing) -> None:
        """Hands over an episode; waits while too many bytes wait.

        Raises:
          Exception: as `check`; the episode was not taken.
        """
        with self._changed:
            self._wait(lambda: self._bytes <= self._most_bytes)
            self._waiting.append(judged)
            self._bytes += judged.episode.nbytes
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until everything is confirmed; raises as `check` does."""
        with self._changed:
            self._check()
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            self._wait(lambda: self._drained >= mine)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was handed over is confirmed."""
        return not self._bytes and not self._is_kept and self._push.awaits_nothing

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def close(self, seconds: float | None = None) -> BaseException | None:
        """Waits until everything is confirmed or sending has failed, and ends the thread; what failed, unless it was raised before.

        Args:
          seconds: wait no longer, and leave the thread at it; None for as long as it takes.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        was_raised, self._was_raised = self._was_raised, True
        return None if was_raised else self._failure

    def _wait(self, done: Callable[[], bool]) -> None:
        """Waits with the lock held."""
        self._changed.wait_for(lambda: done() or self._failure is not None)
        self._check()

    def _check(self) -> None:
        if self._failure is None and not self._is_closing:
            return
        if self._failure is not None and not self._was_raised:
            self._was_raised = True
            raise self._failure
        why = "has been closed" if self._failure is None else f"stopped earlier ({reason_of(self._failure)})"
        raise ConfigError(f"writer: it {why}; nothing more is stored by it. Make another one (client.writer)")

    # The sending thread.

    def _run(self) -> None:
        try:
            while self._work():
                pass
            self._push.finish()
            self._push.note()
        except BaseException as error:  # not handled here: raised in the caller's thread
            self._push.wind_up(error)
            self._fail(error)
        finally:
            self._push.close()

    def _work(self) -> bool:
        """Does what is to be done next; whether there may be more."""
        with self._changed:
            if not self._changed.wait_for(self._has_work, self._seconds_to_wait()):
                judged, asked, is_idle = None, 0, False
            else:
                judged = self._waiting.popleft() if self._waiting else None
                asked = 0 if judged else self._asked
                is_idle = not self._waiting
            is_over = self._is_closing and is_idle and judged is None
        if judged is not None:
            self._send(judged)
        elif asked > self._drained:
            self._push.drain()
            self._is_kept = False
            self._drain_done(asked)
        elif not is_over:
            self._push.check()
            self._flush()
        self._push.record()
        return not is_over

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._asked > self._drained or self._is_closing

    def _seconds_to_wait(self) -> float | None:
        """How long to wait for work; None for ever."""
        if self._is_kept:
            return _KEPT_SECONDS
        return None if self._push.awaits_nothing else _LOOK_SECONDS

    def _send(self, judged: Outgoing) -> None:
        self._push.send(judged)
        self._is_kept = True
        if self._push.awaits_nothing:
            self._flush()
        with self._changed:
            self._bytes -= judged.episode.nbytes
            self._changed.notify_all()

    def _flush(self) -> None:
        self._push.flush()
        self._is_kept = False

    def _drain_done(self, asked: int) -> None:
        self._push.note()
        with self._changed:
            self._drained = asked
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        keep_report(error, replace(self._push.report(), stopped=reason_of(error)))
        with self._changed:
            self._failure = error
            self._waiting.clear()
            self._changed.notify_all()


EXIT_SECONDS = 5.0
"""How long the end of the interpreter waits for what is on its way."""


def end_unclosed(sending: SendingThread, title: str, process: int, unfinished: Callable[[], str]) -> None:
    """Ends the sending of a writer that is dropped, or that the interpreter's end finds open.

    The garbage collector may run anywhere, with any lock held: so a thread does it. At its end, the interpreter starts none.

    Args:
      sending: of the writer.
      title: what messages call it.
      process: that of its threads; in others this does nothing.
      unfinished: the episodes that have not ended, as a sentence; "" when there are none, or when the writer is gone.
    """
    if os.getpid() != process:
        return
    if threading.main_thread().is_alive():
        threading.Thread(target=_end_dropped, args=(sending, title), name="rlds2reverb-close", daemon=True).start()
        return
    _end_at_exit(sending, title)
    if words := unfinished():
        LOG.warning("%s", words)


def _end_dropped(sending: SendingThread, title: str) -> None:
    at_exit = partial(_end_at_exit, sending, title)
    atexit.register(at_exit)  # this thread may not live to see it through
    _end(sending, title, None, "nobody holds it any more")
    atexit.unregister(at_exit)


def _end_at_exit(sending: SendingThread, title: str) -> None:
    _end(sending, title, EXIT_SECONDS, "the interpreter ends")


def _end(sending: SendingThread, title: str, seconds: float | None, why: str) -> None:
    """Tells that it was not closed, where that matters, and what is not stored for it."""
    if seconds is None or not sending.is_idle:
        LOG.warning(
            "%s: not closed, and %s: episodes that have ended are still sent, steps of others are not stored. close() it, or use it "
            "as a context manager",
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
