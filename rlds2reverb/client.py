"""A client of one server: what it is asked for, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.batch_iterator import only_sample
from rlds2reverb.learner.checks import options_of
from rlds2reverb.learner.options import GIVE_UP_SECONDS, SampleOptions
from rlds2reverb.learner.sampler import Sampler
from rlds2reverb.learner.servers import ServerPool
from rlds2reverb.learner.writing.options import WriteOptions
from rlds2reverb.learner.writing.writer import EpisodeWriter
from rlds2reverb.push.calling import takes
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.outputs import Output, outputs_of
from rlds2reverb.push.pipeline import Pusher
from rlds2reverb.push.plan import PushPlan, plan_push
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.tables import table_of
from rlds2reverb.scale.pushing import DividedPush, pusher_of
from rlds2reverb.scale.sources import Named
from rlds2reverb.specs import Nest
from rlds2reverb.transport.base import Transport
from rlds2reverb.views.registry import ViewLike
from rlds2reverb.wire.messages import ServerInfo, TableInfo


@dataclass(frozen=True)
class Target:
    """Tables of a server and how to cut episodes for them; `push_rlds_to_reverb` takes it in place of an observer.

    Attributes:
      client: an open client.
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
    """An open connection to a Reverb server. Close it, or use it as a context manager."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._servers = ServerPool([transport])

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self.transport.close()

    def server_info(self) -> ServerInfo:
        """All tables with sizes, signatures and rate limiters.

        Raises:
          ServerUnreachable: no answer within the deadline.
        """
        return self.transport.server_info()

    def target(
        self, table: str | Sequence[str], view: ViewLike = "two_step", allow_other_views: bool = False
    ) -> Target:
        """A target for `push_rlds_to_reverb`; arguments as for `push`."""
        (output,) = outputs_of((table,) if isinstance(table, str) else tuple(table), view)
        return Target(self, output, allow_other_views)

    def tables(self) -> dict[str, TableInfo]:
        """The server's tables by name: sizes, signatures, samplers, rate limiters.

        Raises:
          ServerUnreachable: no answer within the deadline.
        """
        return self.server_info().tables

    def sample(self, table: str, batch_size: int = SampleOptions.batch_size, **options: Any) -> Sampler:
        """Samples a table: `for data, info in client.sample("replay", 256)`.

        Args:
          table: its name.
          batch_size: samples per batch.
          options: the other fields of `SampleOptions`, by name.

        Returns:
          An iterator of `Batch`; close it, or use it as a context manager.

        Raises:
          ConfigError: the server has no such table, or an option makes no sense.
          ServerUnreachable: no answer within the deadline.
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
          ConfigError, ViewError: the server has no such table, or what is asked for makes no sense; others as `sample` does.
        """
        return EpisodeWriter(
            self.transport, self.server_info(), options_of(WriteOptions, "Client.writer", table, view, **options)
        )

    def update_priorities(self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Gives items other priorities; keys that the table does not have (any more) are passed over.

        Args:
          table: its name.
          keys: [n] uint64, as `info.key` has them.
          priorities: [n], finite; at least 0 where the table samples or removes by them (`prioritized`). Or one for all.

        Raises:
          ConfigError: shapes or values that make no sense, or the server has no such table; nothing was changed.
          ServerUnreachable: no answer within the deadline; some may be changed.
          TransportError: the server refuses a priority, as tables that sample by them do with negative ones.
        """
        self._servers.update_priorities(table, keys, priorities)

    def delete(self, table: str, keys: npt.ArrayLike) -> None:
        """Takes items out of a table; keys that it does not have are passed over. Raises as `update_priorities` does."""
        self._servers.delete(table, keys)

    def reset(self, table: str) -> None:
        """Empties a table; its rate limiter counts anew.

        Raises:
          ConfigError: the server has no such table.
          ServerUnreachable: no answer within the deadline.
        """
        self._servers.reset(table)

    def checkpoint(self, seconds: float = 600.0) -> str:
        """Makes the server write a checkpoint; inserts, samples and updates wait meanwhile.

        Args:
          seconds: how long it may take.

        Returns:
          The folder on the server's machine.

        Raises:
          ServerUnreachable: no answer within the deadline.
          TransportError: the server has no checkpointer, or could not write.
        """
        return self.transport.checkpoint(seconds)

    @takes(PushOptions)
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

    @takes(PushOptions)
    def push(self, source: Any, options: PushOptions) -> PushReport:
        """Stores a dataset's items in one or more tables, each item exactly once.

        The same push run again adds nothing: item keys are a function of the data, and Reverb assigns when a
        key exists. What is stored before an error stays stored, and the error's `report` says what that is.

        Args:
          source: a name ("tfds:NAME", "bundled:cartpole"), an RLDS `tf.data.Dataset`, a list of `Episode`, or a source.
          options: each field of `PushOptions` as an argument of its own: table, view, and the others by name.

        Returns:
          The account of the push; `episodes_read` is pushed + rejected.

        Raises:
          SourceError, ViewError, ConfigError: what was asked for makes no sense; nothing is stored.
          SpecMismatch: a table's signature is not that of the items, leaf by leaf, or says that the table is for another view; nothing
            is stored.
          CapacityError: the items would evict others, or somebody else's items evict some meanwhile; never with `allow_eviction`.
          InvalidEpisode: a bad episode and on_invalid="raise"; nothing of it is stored.
          LedgerError: the ledger cannot be used.
          WriteError: the quarantine file cannot be written: the disk is full, say.
          WireError: a column's dtype cannot be stored, or the server does not speak Reverb's protocol.
          TransportError: the server cannot be reached, was restarted, or confirms nothing.
          WorkersLost: with workers, those of one part were killed or lost again and again.
        """
        return self.pusher(self.planned(source, options), Named(source)).run()

    def planned(self, source: Any, options: PushOptions) -> PushPlan:
        """`plan` of options in one piece."""
        return plan_push(source, options, self.transport.server_info)

    def pusher(self, plan: PushPlan, source: Named) -> Pusher | DividedPush:
        """A push that was planned just before, to be run; tells its account meanwhile. `source` is what workers open."""
        return pusher_of(self.transport, plan, source)
