"""A client of several servers: what `Client` does for a learner, over all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy.typing as npt

from rlds2reverb.errors import ConfigError, ServerUnreachable
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.batch_iterator import only_sample
from rlds2reverb.learner.checks import options_of
from rlds2reverb.learner.options import GIVE_UP_SECONDS, SampleOptions
from rlds2reverb.learner.sampler import Sampler
from rlds2reverb.learner.servers import ASK_SECONDS, ServerPool
from rlds2reverb.push.calling import takes
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.several.plan import SeveralPlan, plan_several
from rlds2reverb.push.several.pusher import SeveralPusher
from rlds2reverb.scale.pushing import DividedPush, divided_pusher
from rlds2reverb.scale.sources import Named
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.messages import ServerInfo, TableInfo


class ClientGroup:
    """Open connections to several Reverb servers. Made by `connect([...])`. Close it, or use it as a context manager.

    Args:
      transports: the ways to the servers; their order gives them their numbers in `info.source`.
      allow_missing: go on without servers that cannot be reached, as long as one can; the log `rlds2reverb.learner` is told.
      ask_seconds: how often the sizes of tables are asked for while they are sampled.
      missing: number -> why, of servers that were found missing just now.
      names: what a push calls the servers, in their order; their addresses by default. See `push`.

    Raises:
      ConfigError: no server, or one that is named twice.
      ServerUnreachable: one is missing that may not be, or all are.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        allow_missing: bool = False,
        ask_seconds: float = ASK_SECONDS,
        missing: Mapping[int, ServerUnreachable] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._servers = ServerPool(transports, allow_missing, ask_seconds, missing)
        self._names = dict(zip(self.addresses, self.addresses if names is None else names, strict=True))
        if len(set(self._names.values())) < len(self._names):
            raise ConfigError(f"connect: two servers have one name in {', '.join(self._names.values())}")

    def __enter__(self) -> ClientGroup:
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

    def servers(self) -> dict[str, ServerInfo]:
        """Address -> what the server tells, of those that can be reached.

        Raises:
          ServerUnreachable: one cannot be reached; with `allow_missing`, none can.
        """
        return {self.addresses[number]: info for number, info in self._servers.infos().items()}

    def server_info(self) -> ServerInfo:
        """All tables of all servers; sizes and counts add up.

        Raises:
          ServerUnreachable: as for `servers`.
          SpecMismatch, ConfigError: a table has not the same signature and sampler on all servers that have it.
        """
        return self._servers.server_info()

    def tables(self) -> dict[str, TableInfo]:
        """The tables by name, those of one name as one; raises as `server_info`."""
        return self.server_info().tables

    def sample(self, table: str, batch_size: int = SampleOptions.batch_size, **options: Any) -> Sampler:
        """Samples a table of all servers: `for data, info in group.sample("replay", 256)`; every item of all is as likely as in one table.

        Args:
          table: its name; servers that have none of it give nothing.
          batch_size: samples per batch.
          options: the other fields of `SampleOptions`, by name, but epochs and weights="table_min".

        Raises:
          ConfigError: no server has such a table, or an option makes no sense.
          SpecMismatch: the table has not the same signature on all that have it.
          ServerUnreachable: as for `servers`.
        """
        return Sampler(self._servers, table, options_of(SampleOptions, "ClientGroup.sample", batch_size, **options))

    def sample_one(self, table: str, timeout_seconds: float | None = GIVE_UP_SECONDS) -> Batch:
        """One sample of a table, without the axis of a batch.

        Raises:
          Stalled: none came within `timeout_seconds`; the others as `sample` does.
        """
        sampler = self.sample(table, 1, samples=1, prefetch=1, timeout_seconds=timeout_seconds)
        return only_sample(sampler, sampler.structure)

    def update_priorities(self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Gives items other priorities, each on the server that it was sampled from last; keys that nobody remembers go to all.

        Args:
          table: its name.
          keys: [n] uint64, as `info.key` has them.
          priorities: [n], finite and at least 0; or one for all.

        Raises:
          ConfigError: shapes or values that make no sense, or no server has such a table; nothing was sent.
          ServerUnreachable: a server cannot be reached, and may not be missing; some may be changed.
        """
        self._servers.update_priorities(table, keys, priorities)

    def delete(self, table: str, keys: npt.ArrayLike) -> None:
        """Takes items out of a table, each on the server that it was sampled from last; keys that nobody remembers go to all.

        Keys that a server does not have are passed over. Raises as `update_priorities` does.
        """
        self._servers.delete(table, keys)

    def reset(self, table: str) -> None:
        """Empties a table on all servers; rate limiters count anew.

        Raises:
          ConfigError: no server has such a table.
          ServerUnreachable: one cannot be reached, and may not be missing; some may be empty.
        """
        self._servers.reset(table)

    def checkpoint(self, seconds: float = 600.0) -> dict[str, str]:
        """Makes all servers write a checkpoint at the same time.

        Args:
          seconds: how long each may take.

        Returns:
          Address -> the folder on the server's machine.

        Raises:
          ServerUnreachable: one cannot be reached, and may not be missing; the others have written theirs.
          TransportError: a server has no checkpointer, or could not write.
        """
        paths = self._servers.each(lambda one: one.checkpoint(seconds))
        return {self.addresses[number]: path for number, path in paths.items()}

    @takes(PushOptions)
    def plan(self, source: Any, options: PushOptions) -> SeveralPlan:
        """Tells what `push` with the same arguments would do. Makes all its checks before the first byte, and sends nothing.

        Args:
          source, options: as for `push`; no episode is read.

        Raises:
          Rlds2ReverbError: as `push` does before it reads the first episode.
        """
        return self.planned(source, options)

    @takes(PushOptions)
    def push(self, source: Any, options: PushOptions) -> PushReport:
        """Stores a dataset's items, every episode on one server, each item exactly once. The tables of all are checked first.

        Rendezvous hashing of an episode's name and the servers' names says which server it is: the same push run again finds its
        items, and with another server about 1/n of the episodes belong elsewhere. A server's name is its address as `connect` was told
        it, or NAME of NAME=HOST:PORT. Where a ledger says which server has an episode, that one keeps it.

        With `allow_missing`, episodes of a server that is missing are left out, and counted; the same push, run again when it is
        back, stores them. Without it the push stops, and says what is stored where.

        Args:
          source: as for `Client.push`.
          options: each field of `PushOptions` as an argument of its own: table, view, and the others by name.

        Returns:
          The account of the push; `servers` has that of every server.

        Raises:
          ConfigError: a view of streams, whose items depend on other episodes; others as `Client.push`.
          Rlds2ReverbError: as `Client.push`; an error of one server names it, and its `report` says what each has stored.
        """
        return self.pusher(self.planned(source, options), Named(source)).run()

    def planned(self, source: Any, options: PushOptions) -> SeveralPlan:
        """`plan` of options in one piece."""
        return plan_several(source, options, self._names, self.servers())

    def pusher(self, plan: PushPlan, source: Named) -> SeveralPusher | DividedPush:
        """A push that was planned just before, to be run; tells its account meanwhile. `source` is what workers open.

        Raises:
          ConfigError: a plan for others than these servers; or workers cannot be told how to reach a server.
        """
        if not isinstance(plan, SeveralPlan) or plan.names != self._names:
            raise ConfigError("pusher: expected what `plan` of these servers gave")
        transports = dict(zip(self.addresses, self._servers.transports))
        if plan.options.is_divided:
            there = {address: transports[address] for address in plan.parts}
            return divided_pusher(there, plan, source, self._servers.allow_missing)
        return SeveralPusher(transports, plan, self._servers.allow_missing)

    def target(self, *_: Any, **__: Any) -> NoReturn:
        """Is for one server.

        Raises:
          ConfigError: always; says how to go on.
        """
        self._refuse("target", "push a shard of the source to each (`source.shard(i, n)`)")

    def writer(self, *_: Any, **__: Any) -> NoReturn:
        """Is for one server; raises as `target`."""
        self._refuse("writer", "give every actor one of them")

    def _refuse(self, method: str, way_out: str) -> NoReturn:
        raise ConfigError(
            f"{method}: a client of several servers does not say which of them gets an episode; connect to one of "
            f"{', '.join(self.addresses)}, and {way_out}"
        )
