"""A client of a Reverb server, or of several together: what it is asked for, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from rlds2reverb.errors import ConfigError, ServerUnreachable
from rlds2reverb.fleet.push import distributed
from rlds2reverb.learner.batch import Batch, only_sample
from rlds2reverb.learner.options import GIVE_UP_SECONDS, SampleOptions, options_of
from rlds2reverb.learner.recording import WriteOptions
from rlds2reverb.learner.sampler import Sampler
from rlds2reverb.learner.servers import ASK_SECONDS, ServerPool
from rlds2reverb.learner.writer import EpisodeWriter
from rlds2reverb.prepare.cutting import Output, outputs_of
from rlds2reverb.push.options import PushOptions, with_options
from rlds2reverb.push.plan import PushPlan, plan_push
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push, RunnablePush
from rlds2reverb.push.tables import table_of
from rlds2reverb.specs import Nest
from rlds2reverb.transport.base import Transport
from rlds2reverb.views.registry import ViewLike
from rlds2reverb.wire.messages import ServerInfo, TableInfo


@dataclass(frozen=True)
class Target:
    """Tables of a server and how to cut episodes for them; `push_rlds_to_reverb` takes it in place of an observer.

    Attributes:
      client: an open client of one server.
      output: tables of its server, and a view that cuts trajectory rows (`two_step`, `sequence`, `episode` or `across_episodes`).
      allow_other_views: as for `Client.push`.
    """

    client: Client
    output: Output
    allow_other_views: bool = False

    def get_table_signature(self) -> Nest | None:
        """The signature of the first table, as TF-Agents' observers tell it; None without one.

        Raises:
          ConfigError: the server has no such table.
        """
        return table_of(self.client.server_info(), self.output.tables[0]).signature


class Client:
    """Open connections to a Reverb server, or to several. Made by `connect`. Close it, or use it as a context manager.

    Args:
      transports: the way to the server; or the ways to several, whose order gives them their numbers in `info.source`.
      allow_missing: continue without servers that cannot be reached, as long as one can; the log `rlds2reverb.learner` is told.
      ask_seconds: how often the sizes of tables are asked for while they are sampled from several servers.
      missing: number -> why, of servers that were found missing just now.
      names: what a push calls the servers, in their order; their addresses by default. See `push`.

    Raises:
      ConfigError: no server, or one that is named twice.
      ServerUnreachable: one is missing that may not be, or all are.
    """

    def __init__(
        self,
        transports: Transport | Sequence[Transport],
        allow_missing: bool = False,
        ask_seconds: float = ASK_SECONDS,
        missing: Mapping[int, ServerUnreachable] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        ways = transports if isinstance(transports, Sequence) else [transports]
        self._servers = ServerPool(ways, allow_missing, ask_seconds, missing)
        self._names = dict(zip(self.addresses, self.addresses if names is None else names, strict=True))
        if len(set(self._names.values())) < len(self._names):
            raise ConfigError(f"connect: two servers have one name in {', '.join(self._names.values())}")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._servers.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the servers, in the order of their numbers."""
        return self._servers.addresses

    @property
    def missing(self) -> tuple[str, ...]:
        """Addresses of servers that could not be reached when they were last asked."""
        return self._servers.missing

    @property
    def transport(self) -> Transport:
        """The way to the server.

        Raises:
          ConfigError: there are several.
        """
        return self._only("transport", "ask it")

    def servers(self) -> dict[str, ServerInfo]:
        """Address -> what the server tells, of those that can be reached.

        Raises:
          ServerUnreachable: no answer within the deadline; with `allow_missing`, of none.
        """
        return {self.addresses[number]: info for number, info in self._servers.infos().items()}

    def server_info(self) -> ServerInfo:
        """All tables with sizes, signatures and rate limiters; of several servers, sizes and counts add up.

        Raises:
          ServerUnreachable: as for `servers`.
          SpecMismatch, ConfigError: a table has not the same signature and sampler on all servers that have it.
        """
        return self._servers.server_info()

    def tables(self) -> dict[str, TableInfo]:
        """The tables by name: sizes, signatures, samplers, rate limiters; raises as `server_info`."""
        return self.server_info().tables

    def target(
        self, table: str | Sequence[str], view: ViewLike = "two_step", allow_other_views: bool = False
    ) -> Target:
        """A target for `push_rlds_to_reverb`; arguments as for `push`.

        Raises:
          ConfigError: there are several servers; says how to go on.
        """
        self._only("target", "push a shard of the source to each (`source.shard(i, n)`)")
        (output,) = outputs_of((table,) if isinstance(table, str) else tuple(table), view)
        return Target(self, output, allow_other_views)

    def sample(self, table: str, batch_size: int = SampleOptions.batch_size, **options: Any) -> Sampler:
        """Samples a table: `for data, info in client.sample("replay", 256)`; of several servers, every item of all is as likely as in one table.

        Args:
          table: its name; of several servers, those that have none of it give nothing.
          batch_size: samples per batch.
          options: the other fields of `SampleOptions`, by name; for several servers without epochs and weights="table_min".

        Returns:
          An iterator of `Batch`; close it, or use it as a context manager.

        Raises:
          ConfigError: no server has such a table, or an option makes no sense.
          SpecMismatch: the table has not the same signature on all servers that have it.
          ServerUnreachable: as for `servers`.
        """
        return Sampler(self._servers, table, options_of(SampleOptions, "Client.sample", batch_size, **options))

    def sample_one(self, table: str, timeout_seconds: float | None = GIVE_UP_SECONDS) -> Batch:
        """One sample of a table, without the axis of a batch.

        Raises:
          Stalled: none came within `timeout_seconds`; the others as `sample` does.
        """
        sampler = self.sample(table, 1, samples=1, prefetch=1, timeout_seconds=timeout_seconds)
        return only_sample(sampler, sampler.structure)

    def writer(
        self, table: str | Sequence[str] | Mapping[str, ViewLike], view: ViewLike | None = None, **options: Any
    ) -> EpisodeWriter:
        """Writes the episodes of an environment loop: `with client.writer("replay") as w: w.append(...); w.end_episode(...)`.

        Args:
          table, view: as for `push`.
          options: the other fields of `WriteOptions`, by name.

        Returns:
          A writer for one thread; close it, or use it as a context manager.

        Raises:
          ConfigError, ViewError: there are several servers, the server has no such table, or what is asked for makes no sense; others as `sample` does.
        """
        transport = self._only("writer", "give every actor one of them")
        chosen = options_of(WriteOptions, "Client.writer", table, view, **options)
        return EpisodeWriter(transport, self.server_info(), chosen)

    def update_priorities(self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Gives items other priorities; keys that the table does not have (any more) are passed over.

        Of several servers, each item is changed on the one that it was sampled from last; keys that nobody remembers go to all.

        Args:
          table: its name.
          keys: [n] uint64, as `info.key` has them.
          priorities: [n], finite; at least 0 where the table samples or removes by them (`prioritized`). Or one for all.

        Raises:
          ConfigError: shapes or values that make no sense, or no server has such a table; nothing was changed.
          ServerUnreachable: no answer within the deadline; some may be changed.
          TransportError: a server refuses a priority, as tables that sample by them do with negative ones.
        """
        self._servers.update_priorities(table, keys, priorities)

    def delete(self, table: str, keys: npt.ArrayLike) -> None:
        """Takes items out of a table; keys that it does not have are passed over. Raises as `update_priorities` does."""
        self._servers.delete(table, keys)

    def reset(self, table: str) -> None:
        """Empties a table on all servers; rate limiters count anew.

        Raises:
          ConfigError: no server has such a table.
          ServerUnreachable: no answer within the deadline; of several servers, some may be empty.
        """
        self._servers.reset(table)

    def checkpoint(self, seconds: float = 600.0) -> dict[str, str]:
        """Makes all servers write a checkpoint at the same time; inserts, samples and updates wait meanwhile.

        Args:
          seconds: how long each may take.

        Returns:
          Address -> the folder on the server's machine.

        Raises:
          ServerUnreachable: no answer within the deadline; the other servers have written theirs.
          TransportError: a server has no checkpointer, or could not write.
        """
        paths = self._servers.each(lambda one: one.checkpoint(seconds))
        return {self.addresses[number]: path for number, path in paths.items()}

    @with_options(PushOptions)
    def plan(self, source: Any, options: PushOptions) -> PushPlan:
        """Tells what `push` with the same arguments would do. Makes all its checks before the first byte, and sends nothing.

        Args:
          source: as for `push`; no episode of it is read.
          options: as for `push`.

        Returns:
          What goes where: each table's signature and room, the fields that are filled in, the columns that no item holds.

        Raises:
          Rlds2ReverbError: as `push` does before it reads the first episode.
        """
        return self.planned(source, options)

    @with_options(PushOptions)
    def push(self, source: Any, options: PushOptions) -> PushReport:
        """Stores a dataset's items in one or more tables, each item exactly once.

        The same push run again adds nothing: item keys are a function of the data, and Reverb assigns when a
        key exists. What is stored before an error stays stored, and the error's `report` says what that is.

        Of several servers, every episode goes to one, by rendezvous hashing of its name and the servers' names: with another server, about
        1/n of the episodes belong elsewhere. A server's name is its address as `connect` was told it, or NAME of NAME=HOST:PORT. Where a
        ledger says which server has an episode, that one keeps it. With `allow_missing`, episodes of a server that is missing are left out,
        and counted; the same push, run again when it is back, stores them. Without it the push stops, and says what is stored where.

        Args:
          source: a name ("tfds:NAME", "bundled:cartpole"), an RLDS `tf.data.Dataset`, a list of `Episode`, or a source.
          options: each field of `PushOptions` as an argument of its own: table, view, and the others by name.

        Returns:
          The account of the push; `episodes_read` is pushed + rejected. Of several servers, `servers` has that of each.

        Raises:
          SourceError, ViewError, ConfigError: what was asked for makes no sense; nothing is stored.
          SpecMismatch: a table's signature is not that of the items, leaf by leaf, or says that the table is for another view; nothing
            is stored.
          CapacityError: the items may evict others, or somebody else's items evict some meanwhile; never with `allow_eviction`.
          InvalidEpisode: a bad episode and on_invalid="raise"; nothing of it is stored.
          LedgerError: the ledger cannot be used.
          WriteError: the quarantine file cannot be written: the disk is full, say.
          WireError: a column's dtype cannot be stored, or the server does not speak Reverb's protocol.
          TransportError: a server cannot be reached, was restarted, or confirms nothing.
          WorkersLost: with workers, those of one task were killed or lost again and again.
        """
        return self.pusher(self.planned(source, options)).run()

    def planned(self, source: Any, options: PushOptions, asked_for: Any = None) -> PushPlan:
        """`plan` of options in one piece; `asked_for` is what workers open, the source by default."""
        allow_missing = self._servers.allow_missing
        return plan_push(source, options, self.servers, self._names, allow_missing, asked_for=asked_for)

    def pusher(self, plan: PushPlan) -> RunnablePush:
        """A push that was planned just before, to be run; tells its account meanwhile.

        Raises:
          ConfigError: a plan for others than these servers; or workers cannot be told how to reach a server, or the library Ray is missing.
        """
        if plan.names != self._names:
            raise ConfigError("pusher: expected what `plan` of these servers gave")
        transports = dict(zip(self.addresses, self._servers.transports))
        if plan.options.is_distributed:
            return distributed(transports, plan)
        return Push(transports, plan)

    def _only(self, method: str, way_out: str) -> Transport:
        """The way to the only server.

        Raises:
          ConfigError: there are several.
        """
        first, *others = self._servers.transports
        if others:
            raise ConfigError(
                f"{method}: a client of several servers does not say which of them gets an episode; connect to one of "
                f"{', '.join(self.addresses)}, and {way_out}"
            )
        return first
