"""RLlib's EnvRunners write what they sample into a table, while an algorithm trains on it as always: the new stack's callbacks.

    config.callbacks(table_callbacks("localhost:8000", "replay", view="transition"))

An EnvRunner hands over chunks of episodes (`on_sample_end`); `EpisodeAssembler` joins them by their id, and a whole episode goes to an
`EpisodeSender`, whose thread connects, writes and reconnects, so that sampling does not wait for the network. Each episode is stored exactly once:
it is named by RLlib's id, so that sending it again after a broken connection adds nothing.

| an episode | is stored |
| --- | --- |
| that ended (terminated or truncated) | as it is |
| whose chunks lack some steps in between | as two, the first of them truncated; counted as `cut` |
| that its EnvRunner dropped, as by a reset | truncated where it was dropped; counted as `cut` |
| that was unfinished when its EnvRunner ended | not |
| of an evaluation | not, unless `evaluation=True` |

Source: SingleAgentEnvRunner.sample, SingleAgentEpisode.cut and MultiAgentEpisode of Ray 2.60.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds2reverb.adapters.common import Server, check_pickles, open_client
from rlds2reverb.client import Client
from rlds2reverb.episode import ACTION, OBSERVATION, Array, Episode, columns_below
from rlds2reverb.errors import (
    ConfigError,
    InvalidEpisode,
    Rlds2ReverbError,
    ServerUnreachable,
    Stalled,
    TransportError,
    reason_of,
)
from rlds2reverb.extras import needing
from rlds2reverb.formats.rows import steps, zero_row
from rlds2reverb.keywords import make_options
from rlds2reverb.learner.recording import WriteKeywords, WriteOptions
from rlds2reverb.learner.writer import EpisodeWriter
from rlds2reverb.specs import flatten
from rlds2reverb.views import ViewLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for RLlib", "rllib", ModuleNotFoundError):
    from ray.rllib.callbacks.callbacks import RLlibCallback

LOG = logging.getLogger("rlds2reverb.adapters.rllib")

BLOCK, DROP = "block", "drop"
AGENT_INDEX, TIME = "agent_index", "t"
_REMEMBERED = 10_000  # ids of ended episodes, to know one that is handed over again
_IDS_OF_A_WRITER = 10_000  # it keeps the names that it was given; a new one begins without
_GATHERING = (
    0.5  # seconds: an episode of 20 steps costs 1.2 ms of processor time when it is sent alone, 0.3 ms among many
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds between attempts to reach a server


@dataclass(frozen=True)
class Account:
    """What became of the episodes that EnvRunners of this process have handed over.

    Attributes:
      stored: episodes that the server has confirmed.
      steps: their steps.
      waiting: episodes that are still on their way.
      dropped: left out because too many bytes were waiting (`when_full="drop"`).
      bad: refused by the checks that every writer makes; the log says why.
      repeated: handed over again, and left out.
      cut: parts of episodes that end where steps are missing, or where the EnvRunner dropped them.
    """

    stored: int = 0
    steps: int = 0
    waiting: int = 0
    dropped: int = 0
    bad: int = 0
    repeated: int = 0
    cut: int = 0

    def __add__(self, other: Account) -> Account:
        return Account(*(getattr(self, name) + getattr(other, name) for name in _COUNTS))


_COUNTS = tuple(count.name for count in fields(Account))


class WholeEpisode(NamedTuple):
    """An episode for `EpisodeWriter.write_episode`: its columns, its name, and what is known of it as a whole.

    Attributes:
      others: agent -> episode, of the other agents in the same episode of the environment; None where nobody asks for them.
    """

    columns: Mapping[str, Array]
    id: str
    metadata: Mapping[str, Any]
    others: Mapping[str, Episode] | None = None

    @property
    def episode(self) -> Episode:
        """As a function of the user's gets it."""
        return Episode(self.columns, self.metadata, self.id)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())


@dataclass
class _Unfinished:
    """An episode whose end has not come.

    Attributes:
      parts: path -> [T, ...], of each chunk; observations without the last one.
      last: path -> [1, ...], the last observation.
      dtypes: path -> dtype that the space of a column has.
      stop: the number of steps up to here, counted from the episode's own beginning.
      seen: the number of the call that brought the last chunk, or the last one of the agent's MultiAgentEpisode.
      group: the id of that; "" for an episode of its own.
    """

    parts: list[dict[str, Array]]
    last: dict[str, Array]
    dtypes: Mapping[str, np.dtype[Any]]
    stop: int
    seen: int
    metadata: Mapping[str, Any]
    group: str
    pieces: int = 0


@dataclass
class _Group:
    """A MultiAgentEpisode that has not ended.

    Attributes:
      seen: the number of the call that brought its last chunk.
      agents: id -> number, in the order of their first observations, as RLlib's `agent_index`.
    """

    seen: int
    agents: dict[str, int] = field(default_factory=dict)


@dataclass
class EpisodeAssembler:
    """Joins the chunks that one EnvRunner hands over.

    Attributes:
      extra_columns: names among RLlib's extra_model_outputs that become columns of the steps, such as action_logp.
      modules: only episodes of these RLModules; None for all.
      with_others: whether each episode comes with those of the other agents, when the episode of the environment has ended. Each has a column `t`
        then: the number of the environment's step of each row.
      calls_to_drop: of `take`, so many without a chunk of an episode, after which its EnvRunner has dropped it; None where that says nothing.
      repeated, cut: see `Account`.
    """

    extra_columns: Sequence[str] = ()
    modules: Collection[str] | None = None
    with_others: bool = False
    calls_to_drop: int | None = 2
    repeated: int = 0
    cut: int = 0
    _open: dict[str, _Unfinished] = field(default_factory=dict)
    _groups: dict[str, _Group] = field(default_factory=dict)
    _gathered: dict[str, list[WholeEpisode]] = field(
        default_factory=dict
    )  # ended, of an episode of the environment that has not
    _ended: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _calls: int = 0

    def take(self, samples: Sequence[Any]) -> Iterator[WholeEpisode]:
        """Takes what an EnvRunner returns from `sample`, and gives the episodes that have ended.

        Args:
          samples: SingleAgentEpisodes, of which a chunk continues another one of its id; or MultiAgentEpisodes, whose agents have an episode each.

        Raises:
          ConfigError: a chunk lacks one of `extra_columns`.
        """
        if not self.with_others:
            yield from self._take(samples)
            return
        for episode in self._take(samples):
            self._gathered.setdefault(episode.metadata["episode_id"], []).append(episode)
        ongoing = self._groups.keys() | {unfinished.metadata["episode_id"] for unfinished in self._open.values()}
        for name in [name for name in self._gathered if name not in ongoing]:
            yield from self._with_others(name, self._gathered.pop(name))

    def _with_others(self, name: str, episodes: Sequence[WholeEpisode]) -> Iterator[WholeEpisode]:
        """The episodes of the agents in one episode of the environment, each with the other ones."""
        by_agent = {episode.id.removeprefix(f"rllib/{name}/"): episode.episode for episode in episodes}
        for agent, episode in zip(by_agent, episodes):
            if self.modules is None or episode.metadata.get("module_id", "") in self.modules:
                others = {other: theirs for other, theirs in by_agent.items() if other != agent}
                yield episode._replace(others=others)

    def _take(self, samples: Sequence[Any]) -> Iterator[WholeEpisode]:
        self._calls += 1
        for sample in samples:
            if (agents := getattr(sample, "agent_episodes", None)) is None:
                yield from self._take_chunk(sample, sample.is_done, sample.is_terminated)
                continue
            group = self._groups.setdefault(sample.id_, _Group(self._calls))
            group.seen = self._calls
            for agent in sample.env_t_to_agent_t:
                group.agents.setdefault(str(agent), len(group.agents))
            for chunk in agents.values():
                # An agent that was truncated before all others terminated stays truncated.
                is_terminal = chunk.is_terminated or (sample.is_terminated and not chunk.is_done)
                yield from self._take_chunk(chunk, chunk.is_done or sample.is_done, is_terminal, sample)
            yield from self._pass_over_waiting(sample)
            if sample.is_done:
                del self._groups[sample.id_]
        # An ongoing episode is in every sample; after a reset it never comes again.
        dropped_before = -1 if self.calls_to_drop is None else self._calls - self.calls_to_drop
        for key in [key for key, unfinished in self._open.items() if unfinished.seen < dropped_before]:
            self.cut += 1
            yield self._end(key, False)
        for name in [name for name, group in self._groups.items() if group.seen < dropped_before]:
            del self._groups[name]

    def _pass_over_waiting(self, sample: Any) -> Iterator[WholeEpisode]:
        """Agents that wait for their turn are not in a chunk of their MultiAgentEpisode. When that ends they have no further step."""
        for key in [key for key, unfinished in self._open.items() if unfinished.group == sample.id_]:
            if sample.is_done:
                yield self._end(key, False)
            else:
                self._open[key].seen = self._calls

    def _take_chunk(self, chunk: Any, is_done: bool, is_terminal: bool, of: Any = None) -> Iterator[WholeEpisode]:
        """Takes a chunk of one agent, `of` a MultiAgentEpisode or of an episode of its own."""
        module = str(chunk.module_id or "")
        if self.modules is not None and module not in self.modules and not self.with_others:
            return
        group = "" if of is None else str(of.id_)
        key = f"{group}/{chunk.agent_id}" if group else str(chunk.id_)
        start, count = int(chunk.t_started), len(chunk)
        if key in self._ended:
            self.repeated += 1
            return
        unfinished = self._open.get(key)
        if unfinished is not None and start < unfinished.stop:
            self.repeated += 1
            return
        is_gap = unfinished is not None and start > unfinished.stop
        if unfinished is not None and is_gap and count:
            self.cut += 1
            pieces = unfinished.pieces + 1
            yield self._end(key, False, is_over=False)
            unfinished = None
        else:
            pieces = 0
        if count:
            columns, last = _columns_of(chunk, self.extra_columns)
            if unfinished is None or self.with_others:
                times = _times_of(chunk, of)
            if self.with_others:
                columns[TIME], last[TIME] = times[:-1], times[-1:]
            if unfinished is None:
                names = {
                    "episode_id": group or chunk.multi_agent_episode_id or key,
                    "agent_id": "" if chunk.agent_id is None else str(chunk.agent_id),
                    "module_id": module,
                }
                metadata: dict[str, Any] = {name: text for name, text in names.items() if text}
                index = self._groups[group].agents[str(chunk.agent_id)] if group else getattr(chunk, AGENT_INDEX, None)
                if index is not None:
                    metadata[AGENT_INDEX] = np.int64(index)
                metadata[TIME] = np.int64(times[0])
                unfinished = _Unfinished([], last, _dtypes_of(chunk), start, self._calls, metadata, group, pieces)
                self._open[key] = unfinished
            unfinished.parts.append(columns)
            unfinished.last, unfinished.stop = last, start + count
        if unfinished is not None:
            unfinished.seen = self._calls
            if is_done:
                is_short = is_gap and not count  # steps before the end are missing
                self.cut += is_short
                yield self._end(key, is_terminal and not is_short)

    def _end(self, key: str, is_terminal: bool, is_over: bool = True) -> WholeEpisode:
        unfinished = self._open.pop(key)
        if is_over:
            self._ended[key] = None
            if len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        parts, dtypes = unfinished.parts, unfinished.dtypes
        joined = {path: np.concatenate([part[path] for part in parts]) for path in parts[0]}
        for path, last in unfinished.last.items():
            joined[path] = np.concatenate([joined[path], last])
        for path, dtype in dtypes.items():
            if path in joined and np.can_cast(joined[path].dtype, dtype):
                joined[path] = joined[path].astype(dtype, copy=False)
        observation = {path: joined.pop(path) for path in unfinished.last if path != TIME}
        reward = joined.pop("reward")
        action = columns_below({path: joined[path] for path in list(joined) if path.split("/")[0] == ACTION}, ACTION)
        others = {
            path: column if path == TIME else np.concatenate([column, zero_row(column)])
            for path, column in joined.items()
            if path.split("/")[0] != ACTION
        }
        columns = steps(columns_below(observation, OBSERVATION), action, reward, is_terminal, others)
        name = f"rllib/{key}" + (f"+{unfinished.pieces}" if unfinished.pieces else "")
        return WholeEpisode(columns, name, unfinished.metadata)


def _columns_of(chunk: Any, extra_columns: Sequence[str]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The steps of a chunk: path -> [T, ...], and its last observation: path -> [1, ...]. Copies: RLlib goes on with the same memory.

    An EnvRunner waits for it in each of its calls, so whatever can be done once for the whole episode is done at its end.
    """
    observations = _stacked(OBSERVATION, chunk.get_observations())
    columns = {path: column[:-1] for path, column in observations.items()}
    columns |= _stacked(ACTION, chunk.get_actions())
    columns["reward"] = np.array(chunk.get_rewards(), np.float32)
    for name in extra_columns:
        if name not in chunk.extra_model_outputs:
            raise ConfigError(
                f'RLlib: episodes have no "{name}" among their extra_model_outputs; there are {", ".join(sorted(chunk.extra_model_outputs)) or "none"}'
            )
        columns |= _stacked(name, chunk.get_extra_model_outputs(name))
    return columns, {path: column[-1:] for path, column in observations.items()}


def _times_of(chunk: Any, of: Any) -> Array:
    """[T + 1] the environment's step of each row of a chunk, `of` a MultiAgentEpisode, whose agents may act in turn, or of an episode of its own.

    Source: MultiAgentEpisode.env_t_to_agent_t of Ray 2.60. Its last entry is that of `env_t`; the number of entries before the chunk, its
    `lookback`, is 0 for an agent that enters after the first chunk, whatever it has.

    Raises:
      ConfigError: the MultiAgentEpisode does not tell.
    """
    rows = len(chunk) + 1
    if of is None:
        times: Array | None = getattr(chunk, "times", None)
        return np.arange(chunk.t_started, chunk.t_started + rows, dtype=np.int64) if times is None else times
    steps = of.env_t_to_agent_t[chunk.agent_id]
    acts = [(at, time) for at, time in enumerate(steps.data) if time != of.SKIP_ENV_TS_TAG]
    first = chunk.t_started - acts[0][1] if acts else -1  # the lookback may hold earlier steps
    if not 0 <= first <= len(acts) - rows:
        raise ConfigError(
            f"RLlib: episode {of.id_}: its env_t_to_agent_t lacks steps of agent {chunk.agent_id}; the steps that it was sampled in are unknown"
        )
    times = np.array([at for at, _ in acts[first : first + rows]], np.int64)
    return times + int(of.env_t) + 1 - len(steps.data)


def _stacked(name: str, values: Any) -> dict[str, Array]:
    """Values of a buffer of RLlib's, an array or a nest of arrays [T, ...], or a list of T values or nests -> path -> [T, ...], copied."""
    if isinstance(values, np.ndarray):
        return {name: values.copy()}
    if isinstance(values, list):
        nests = [flatten(value, name) for value in values]
        return {path: np.stack([np.asarray(nest[path]) for nest in nests]) for path in nests[0]} if nests else {}
    return {path: np.array(column) for path, column in flatten(values, name).items()}


def _dtypes_of(chunk: Any) -> dict[str, np.dtype[Any]]:
    """Path -> dtype, of the spaces of a chunk: RLModules give actions of a Discrete space as int32, and its own sample int64."""
    spaces = {OBSERVATION: chunk.observation_space, ACTION: chunk.action_space}
    dtypes = {name: flatten(_space_dtypes(space), name) for name, space in spaces.items() if space is not None}
    return {path: dtype for nest in dtypes.values() for path, dtype in nest.items()}


def _space_dtypes(space: Any) -> Any:
    """The dtypes of a Gymnasium space, nested as its values are."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping):
        return {name: _space_dtypes(child) for name, child in inner.items()}
    if isinstance(inner, (list, tuple)):
        return tuple(_space_dtypes(child) for child in inner)
    return np.dtype(object if space.dtype is None else space.dtype)


class EpisodeSender:
    """Writes episodes to a table, from a thread of its own.

    It connects with the first episode, and sends what half a second has gathered: each sending takes time from the EnvRunner. While the
    server cannot be reached it tries again and again; what waits meanwhile is bounded.

    Args:
      server: see `adapters.common.Server`.
      table, view, options: as of `Client.writer`.
      most_bytes: of the episodes that wait; beyond them `put` blocks, or leaves an episode out.
      when_full: "block" or "drop".
      postprocess: see `table_callbacks`.

    Raises:
      ConfigError: an option makes no sense.
    """

    def __init__(
        self,
        server: Server,
        table: Any,
        view: ViewLike | None,
        options: WriteKeywords,
        most_bytes: int = 256 << 20,
        when_full: str = BLOCK,
        postprocess: Callable[..., Episode] | None = None,
    ) -> None:
        self._server, self._table, self._view, self._options = server, table, view, options
        self._most_bytes, self._when_full, self._postprocess = most_bytes, when_full, postprocess
        self._changed = threading.Condition()
        self._waiting: deque[WholeEpisode] = deque()
        self._bytes = self._sending = 0
        self._hurries = 0  # calls that wait for the sending
        self._account = Account()
        self._is_closing = False
        self.failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, episode: WholeEpisode) -> None:
        """Adds an episode.

        Raises:
          Rlds2ReverbError: writing has failed for a reason that trying again does not mend, such as another signature.
        """
        with self._changed:
            self.check()
            if self._is_closing:
                raise ConfigError("EpisodeSender: it has been closed; make another one")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlds2reverb-rllib", daemon=True)
                self._thread.start()
            is_full = bool(self._waiting) and self._bytes + episode.nbytes > self._most_bytes
            if is_full and self._when_full == DROP:
                self._count(dropped=1)
                return
            if is_full:
                with self._hurry():
                    while self._waiting and self._bytes + episode.nbytes > self._most_bytes and self.failure is None:
                        self._changed.wait()
                self.check()
            self._waiting.append(episode)
            self._bytes += episode.nbytes
            if len(self._waiting) == 1 or self._is_urgent():
                self._changed.notify_all()

    def check(self) -> None:
        """Raises the error that ended the writing."""
        if self.failure is not None:
            raise self.failure

    def flush(self, seconds: float | None = None) -> bool:
        """Waits until everything is stored; False if that takes longer. Raises as `put`."""
        with self._changed, self._hurry():
            is_done = self._changed.wait_for(self._is_idle, seconds)
            self.check()
            return is_done

    @contextmanager
    def _hurry(self) -> Iterator[None]:
        """Has what waits sent at once, while its block waits for that."""
        self._hurries += 1
        self._changed.notify_all()
        try:
            yield
        finally:
            self._hurries -= 1

    def _is_urgent(self) -> bool:
        return bool(self._hurries) or self._is_closing or 2 * self._bytes > self._most_bytes

    def _is_idle(self) -> bool:
        return self.failure is not None or not (self._waiting or self._sending)

    def account(self) -> Account:
        """The account so far."""
        with self._changed:
            return replace(self._account, waiting=len(self._waiting) + self._sending)

    def close(self, seconds: float | None = None) -> None:
        """Sends what waits, for at most so long, and ends the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
        if left := self.account().waiting:
            LOG.warning("%d episodes were not sent: %s", left, self.failure or "there was no more time")

    def _count(self, **counts: int) -> None:
        self._account += Account(**counts)

    def _run(self) -> None:
        opened = ExitStack()
        client: Client | None = None
        writer: EpisodeWriter | None = None
        pause, names = _FIRST_PAUSE, set[str]()
        while batch := self._take():
            try:
                while True:
                    try:
                        if client is None:
                            client = opened.enter_context(open_client(self._server))
                        if writer is None or len(names) > _IDS_OF_A_WRITER:
                            writer, names = self._new_writer(client, writer), set()
                        self._write(writer, names, batch)
                        pause = _FIRST_PAUSE
                        break
                    except (ServerUnreachable, TransportError, Stalled) as error:
                        LOG.warning("episodes wait, and are sent again in %.1f s: %s", pause, reason_of(error))
                        _close(writer, opened)
                        client = writer = None
                        if not self._sleep(pause):
                            return
                        pause = min(2 * pause, _LONGEST_PAUSE)
            except BaseException as error:  # not handled here: raised in the EnvRunner's next call
                LOG.error("writing has ended: %s", reason_of(error))  # noqa: TRY400  the traceback comes with the error itself
                with self._changed:
                    self.failure = error
                    self._changed.notify_all()
                break
            with self._changed:
                self._sending = 0
                self._changed.notify_all()
        _close(writer, opened)

    def _take(self) -> list[WholeEpisode]:
        """What waits; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            self._changed.wait_for(self._is_urgent, _GATHERING)
            batch = list(self._waiting)
            self._waiting.clear()
            self._sending = len(batch)
            return batch

    def _new_writer(self, client: Client, former: EpisodeWriter | None) -> EpisodeWriter:
        if former is not None:
            former.close()
        return client.writer(self._table, self._view, **self._options)

    def _write(self, writer: EpisodeWriter, names: set[str], batch: list[WholeEpisode]) -> None:
        """Writes episodes, and waits until they are stored. It is called again with all of them after a broken connection.

        Args:
          names: of the episodes that this writer was given; it refuses one that comes again.
        """
        written, bad, repeated = [], 0, 0
        for episode in batch:
            if episode.id in names:
                repeated += 1
                continue
            names.add(episode.id)
            try:
                changed = self._postprocessed(episode)
                writer.write_episode(changed.columns, id=episode.id, metadata=changed.metadata)
                written.append(episode)
            except InvalidEpisode as error:
                bad += 1
                LOG.warning("an episode is left out: %s", error)
        writer.flush()
        with self._changed:
            self._bytes -= sum(episode.nbytes for episode in batch)
            steps_written = sum(len(next(iter(episode.columns.values()))) - 1 for episode in written)
            self._count(stored=len(written), steps=steps_written, bad=bad, repeated=repeated)

    def _postprocessed(self, episode: WholeEpisode) -> WholeEpisode:
        """The episode as the user's function returns it; an error of the function ends the writing."""
        if self._postprocess is None:
            return episode
        others = () if episode.others is None else (episode.others,)
        changed = self._postprocess(episode.episode, *others)
        if not isinstance(changed, Episode):
            raise ConfigError(
                f"postprocess: {self._postprocess}: returned a {type(changed).__name__}; expected an Episode"
            )
        columns = dict(changed.columns)
        if episode.others is not None:
            columns.pop(TIME, None)
        return WholeEpisode(columns, episode.id, changed.metadata)

    def _sleep(self, seconds: float) -> bool:
        """Waits before another attempt; False when it is closing, and there is no time for one."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._is_closing, seconds)


def _close(writer: EpisodeWriter | None, opened: ExitStack) -> None:
    try:
        with opened:
            if writer is not None:
                writer.close()
    except Rlds2ReverbError as error:
        LOG.debug("closing: %s", error)


class EpisodeRecorder:
    """Puts what an EnvRunner hands over, once it is an episode, into a table. It connects with the first one.

    Args:
      assembler: joins the chunks.
      sender: writes the episodes.
    """

    def __init__(self, assembler: EpisodeAssembler, sender: EpisodeSender) -> None:
        self.assembler, self._sender = assembler, sender

    def take(self, samples: Sequence[Any]) -> None:
        """Takes what an EnvRunner returns from `sample`. Raises as `EpisodeAssembler.take` and `EpisodeSender.put`."""
        _RECORDERS.add(self)
        self._sender.check()
        for episode in self.assembler.take(samples):
            self._sender.put(episode)

    def flush(self, seconds: float) -> bool:
        """Waits until everything is stored; False if that takes longer. Raises as `EpisodeSender.flush`."""
        return self._sender.flush(seconds)

    def account(self) -> Account:
        """The account so far."""
        return self._sender.account() + Account(repeated=self.assembler.repeated, cut=self.assembler.cut)

    def close(self, seconds: float) -> None:
        """Sends what waits, for at most so long; what was not sent is logged. Unfinished episodes are not stored."""
        self._sender.close(seconds)


_RECORDERS: weakref.WeakSet[EpisodeRecorder] = weakref.WeakSet()
_EXIT_SECONDS = 5.0


@atexit.register
def _close_all() -> None:
    """An EnvRunner has no callback for its end: what waits is sent when its process ends, for a moment."""
    until = time.monotonic() + _EXIT_SECONDS
    for recorder in list(_RECORDERS):
        recorder.close(max(0.0, until - time.monotonic()))


def flush_episodes(env_runner: Any = None, seconds: float = 60.0) -> Account:
    """Waits until all that the EnvRunners of this process have handed over is stored; returns the account.

        algorithm.env_runner_group.foreach_env_runner(flush_episodes)

    Args:
      env_runner: not used; RLlib gives it.
      seconds: to wait at most; `Account.waiting` says what is left.

    Raises:
      Rlds2ReverbError: writing has failed.
    """
    until = time.monotonic() + seconds
    total = Account()
    for recorder in list(_RECORDERS):
        recorder.flush(max(0.0, until - time.monotonic()))
        total += recorder.account()
    return total


class RecordKeywords(WriteKeywords, total=False):
    """The keyword arguments of `table_callbacks`, which documents them."""

    extra_columns: Sequence[str]
    modules: Collection[str] | None
    evaluation: bool
    postprocess: Callable[..., Episode] | None
    with_other_agents: bool
    when_full: str
    most_queued_bytes: int


def table_callbacks(
    server: Server,
    table: Any,
    view: ViewLike | None = None,
    *,
    extra_columns: Sequence[str] = (),
    modules: Collection[str] | None = None,
    evaluation: bool = False,
    postprocess: Callable[..., Episode] | None = None,
    with_other_agents: bool = False,
    when_full: str = BLOCK,
    most_queued_bytes: int = 256 << 20,
    **options: Unpack[WriteKeywords],
) -> type[RLlibCallback]:
    """A class for `config.callbacks(...)` by which EnvRunners write their episodes into a table.

    Args:
      server: "host:port", or a function without arguments that connects; see `adapters.common.Server`.
      table, view: as of `Client.writer`.
      extra_columns: names among the module's outputs that become columns of the steps, such as "action_logp".
      modules: only episodes of these RLModules; None for all.
      evaluation: whether EnvRunners of the evaluation write, too.
      postprocess: makes of each whole episode the one that is written, as RLlib's `postprocess_trajectory`; it runs in the sending thread. An
        error of it ends the writing, and is raised in the EnvRunner's next call.
      with_other_agents: whether `postprocess` gets a second argument: agent -> episode, as recorded, of the other agents in the same episode of the
        environment. All of them have a column `t` then, the environment's step of each row, which is not written. An agent's episode waits
        until the environment's has ended.
      when_full: what happens while so many bytes wait that no more may: "block" makes the EnvRunner wait, "drop" leaves the episode out and counts it.
      most_queued_bytes: of episodes that wait for the server.
      options: the further ones of `Client.writer`, by name.

    Raises:
      ConfigError: an option makes no sense.
    """
    if when_full not in (BLOCK, DROP):
        raise ConfigError(f"table_callbacks: when_full {when_full!r}: expected {BLOCK} or {DROP}")
    if with_other_agents and postprocess is None:
        raise ConfigError("table_callbacks: with_other_agents is about postprocess, and there is none")
    make_options(WriteOptions, "table_callbacks", table, view, **options)  # wrong ones fail here, not in a worker
    check_pickles(server)
    chosen: WriteKeywords = options

    class TableCallbacks(_TableCallbacks):
        def __init__(self) -> None:
            sender = EpisodeSender(server, table, view, chosen, most_queued_bytes, when_full, postprocess)
            assembler = EpisodeAssembler(tuple(extra_columns), modules, with_other_agents)
            super().__init__(EpisodeRecorder(assembler, sender), evaluation)

    return TableCallbacks


class _TableCallbacks(RLlibCallback):  # type: ignore[misc]  # RLlib is Any where it is not installed
    def __init__(self, recorder: EpisodeRecorder, evaluation: bool) -> None:
        super().__init__()
        self.recorder, self._evaluation = recorder, evaluation

    def on_sample_end(self, *, env_runner: Any = None, samples: Any = (), **_: Any) -> None:
        """Takes what the EnvRunner has sampled."""
        if self._evaluation or not getattr(getattr(env_runner, "config", None), "in_evaluation", False):
            self.recorder.take(samples)


__all__ = ["Account", "RecordKeywords", "flush_episodes", "table_callbacks"]
