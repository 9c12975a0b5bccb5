"""The way in for Python: `connect` to one Reverb server or many, then `push`, `sample`, or `writer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from rlds2reverb.errors import ConfigError, Rlds2ReverbError, ServerUnreachable
from rlds2reverb.fleet.push import distribute_push
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch, only_sample
from rlds2reverb.learner.options import GIVE_UP_SECONDS, SampleKeywords, SampleOptions
from rlds2reverb.learner.recording import WriteKeywords, WriteOptions
from rlds2reverb.learner.sampler import Sampler
from rlds2reverb.learner.writer import EpisodeWriter
from rlds2reverb.prepare.preparation import Output, outputs_of, view_for
from rlds2reverb.push.deleting import DeleteReport, EpisodeChoice, delete_episodes, names_of, words_of
from rlds2reverb.push.journal import note_reset
from rlds2reverb.push.known import other_names
from rlds2reverb.push.options import PushKeywords, PushOptions
from rlds2reverb.push.plan import PushPlan, plan_push
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push, RunnablePush
from rlds2reverb.servers import items
from rlds2reverb.servers.group import ASK_SECONDS, Servers
from rlds2reverb.servers.journal import JournalEntry, read_journal
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import Nest
from rlds2reverb.transport.base import Transport, named_address
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.transport.retry import Deadlines, retry_until
from rlds2reverb.views import ViewLike
from rlds2reverb.wire.messages import ServerInfo, TableInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack


def connect(
    address: str | list[str] | tuple[str, ...],
    credentials: Any = None,
    metadata: Sequence[tuple[str, str]] = (),
    timeout_seconds: float = Deadlines.call,
    wait_seconds: float = 0.0,
    allow_missing: bool = False,
) -> Client:
    """Connects to a Reverb server, or to many, and asks for the tables, so that a wrong address fails here.

    gRPC does not survive a fork: in a process forked from one that has connected, this call and every call of a client made
    before the fork raise an error. Start workers with `multiprocessing.get_context("spawn")`, or fork before the first
    connection and connect in each child.

    Args:
      address: "host:port"; or a list of them, for one client that fills and samples the tables of all servers together. In a list,
        "name=host:port" gives a server a name; a push decides by names which server gets an episode. By default a server's
        name is its address.
      credentials: `Certificates`, or `grpc.ssl_channel_credentials(...)`, for TLS (client certificates included); None for plain text.
      metadata: (name, value) pairs sent with every call.
      timeout_seconds: deadline of this and every other short call.
      wait_seconds: how long to wait for a server that is starting: refused connections and unknown names are retried.
      allow_missing: continue without servers of the list that cannot be reached, while at least one can.

    Raises:
      ConfigError: an address is not "host:port", a list names a server twice, or `allow_missing` with one address.
      ServerUnreachable: nothing listens there, the name is not found, what listens is no Reverb server, or no answer comes within
        the deadline. The message says which.
      TransportError: the server refuses to answer, or this process was forked from one that had connected.
      WireError: an answer that is not Reverb's.
    """
    if isinstance(address, str):
        if allow_missing:
            raise ConfigError("connect: allow_missing is for several servers; give their addresses as a list")
        named = [(address, address)]
    elif isinstance(address, list | tuple) and all(isinstance(text, str) for text in address):
        named = [named_address(text, "connect:") for text in address]
    else:
        raise ConfigError(f'connect: expected an address such as "localhost:8000", or a list of them, got {address!r}')
    addresses = [server_address for _, server_address in named]
    deadlines = Deadlines(backoff_most=1.0)  # no long pause once a server has started

    def open_transport(server_address: str) -> GrpcTransport:
        return GrpcTransport(server_address, credentials, metadata, timeout_seconds)

    def reach(server_address: str) -> GrpcTransport | Rlds2ReverbError:
        def attempt() -> GrpcTransport:
            # Each attempt has a channel of its own: gRPC makes a channel that failed wait before it connects again.
            transport = open_transport(server_address)
            try:
                transport.server_info(at_once=True)
            except BaseException:
                transport.close()
                raise
            return transport

        try:
            return retry_until(wait_seconds, deadlines, attempt)
        except Rlds2ReverbError as error:
            return _add_advice(error, wait_seconds)

    if len(addresses) > 1:
        with ThreadPoolExecutor(len(addresses), "rlds2reverb-connect") as threads:
            answers = list(threads.map(reach, addresses))
    else:
        answers = list(map(reach, addresses))  # in this thread, where Ctrl-C ends the wait
    transports: list[GrpcTransport] = []
    missing: dict[int, ServerUnreachable] = {}
    with ExitStack() as stack:
        # All are to be closed before the first error is raised, so the answers are gone through twice.
        for answer in answers:
            if isinstance(answer, GrpcTransport):
                stack.callback(answer.close)
        for number, answer in enumerate(answers):
            if isinstance(answer, GrpcTransport):
                transports.append(answer)
            elif isinstance(answer, ServerUnreachable) and allow_missing:
                transports.append(open_transport(addresses[number]))
                missing[number] = answer
            else:
                raise answer
        client = Client(transports, allow_missing, missing=missing, names=[name for name, _ in named])
        stack.pop_all()  # the client closes them
    return client


def _add_advice(error: Rlds2ReverbError, wait_seconds: float) -> Rlds2ReverbError:
    """Says of a server that may only be starting how long was waited, or how to wait."""
    if not isinstance(error, ServerUnreachable) or not error.retryable:
        return error
    advice = "One that is just starting is waited for with --wait SECONDS (wait_seconds=)"
    if wait_seconds:
        advice = f"Waited {wait_seconds:g} s for it (--wait, wait_seconds=)"
    advised = ServerUnreachable(f"{error}{'' if str(error).endswith('?') else '.'} {advice}")
    advised.__cause__ = error.__cause__
    return advised


@dataclass(frozen=True)
class Target:
    """Tables of one server and the view that fills them; `push_rlds_to_reverb` takes it in place of an observer.

    Attributes:
      client: an open client of one server.
      output: tables of its server, and a view that cuts trajectory rows (`two_step`, `sequence`, `episode` or `across_episodes`).
      allow_other_views: as for `Client.push`.
    """

    client: Client
    output: Output
    allow_other_views: bool = False

    def get_table_signature(self) -> Nest | None:
        """The signature of the first table; None without one. A method of TF-Agents' observers.

        Raises:
          ConfigError: the server has no such table.
        """
        return table_of(self.client.server_info(), self.output.tables[0]).signature


class Client:
    """Open connections to a Reverb server, or to many. Made by `connect`. Close it, or use it as a context manager.

    Args:
      transports: one, or one for each server; their order gives the servers their numbers in `info.source`.
      allow_missing: continue without servers that cannot be reached, while at least one can; the log `rlds2reverb.learner` names them.
      ask_seconds: how often the sizes of tables are asked for while they are sampled from more than one server.
      missing: number -> error, of servers that could not be reached just now.
      names: names of the servers for `push`, in their order; their addresses by default.

    Raises:
      ConfigError: no server, or two with one name.
      ServerUnreachable: a server is missing without `allow_missing`, or all are.
    """

    def __init__(
        self,
        transports: Transport | Sequence[Transport],
        allow_missing: bool = False,
        ask_seconds: float = ASK_SECONDS,
        missing: Mapping[int, ServerUnreachable] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        transports = transports if isinstance(transports, Sequence) else [transports]
        self._servers = Servers.of_client(transports, names, allow_missing, ask_seconds, missing)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._servers.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers, in the order of their numbers."""
        return self._servers.addresses

    @property
    def group(self) -> Servers:
        """The servers, for what asks each of them."""
        return self._servers

    @property
    def missing(self) -> tuple[str, ...]:
        """Addresses of servers that did not answer when they were last asked."""
        return tuple(self._servers.missing)

    @property
    def transport(self) -> Transport:
        """The transport to the only server.

        Raises:
          ConfigError: the client has more than one server.
        """
        return self._only("transport", "ask it")

    def servers(self) -> dict[str, ServerInfo]:
        """Address -> tables of the server, for every server that can be reached.

        Raises:
          ServerUnreachable: a server does not answer within the deadline; with `allow_missing`, no server does.
        """
        return {server.address: info for server, info in self._servers.infos().items()}

    def server_info(self) -> ServerInfo:
        """All tables with sizes, signatures and rate limiters; sizes and counts of a table add up over the servers.

        Raises:
          ServerUnreachable: as for `servers`.
          SpecMismatch, ConfigError: a table's signature or sampler differs between servers.
        """
        return self._servers.server_info()

    def tables(self) -> dict[str, TableInfo]:
        """The tables by name: sizes, signatures, samplers, rate limiters; raises as `server_info`."""
        return self.server_info().tables

    def journal(self) -> list[JournalEntry]:
        """Who has done what to the tables: an entry for each push, writer session, delete and reset, in the order of their beginnings.

        The entries of all servers; none of a server that keeps no journal, as only `rlds2reverb serve` does.

        Raises:
          ServerUnreachable: as for `servers`.
          WireError: a journal cannot be read, or was written by a newer version.
        """
        journals = self._servers.each(lambda server: read_journal(server.transport))
        return sorted((entry for entries in journals.values() for entry in entries), key=lambda entry: entry.began)

    def target(
        self, table: str | Sequence[str], view: ViewLike = "two_step", allow_other_views: bool = False
    ) -> Target:
        """A target for `push_rlds_to_reverb`; arguments as for `push`.

        Raises:
          ConfigError: the client has more than one server.
        """
        self._only("target", "push a shard of the source to each (`source.shard(i, n)`)")
        (output,) = outputs_of((table,) if isinstance(table, str) else tuple(table), view)
        return Target(self, output, allow_other_views)

    @takes_options(SampleOptions)
    def sample(
        self, table: str, batch_size: int = SampleOptions.batch_size, **options: Unpack[SampleKeywords]
    ) -> Sampler:
        """Samples a table: `for data, info in client.sample("replay", 256)`. With many servers, items are as likely as if one table held them all.

        Args:
          table: its name; a server without the table gives nothing.
          batch_size: samples per batch.
          options: the other fields of `SampleOptions`, by name; with more than one server, neither epochs nor weights="table_min".

        Returns:
          An iterator of `Batch`; close it, or use it as a context manager.

        Raises:
          ConfigError: no server has such a table, or an option makes no sense.
          SpecMismatch: the table's signature differs between servers.
          ServerUnreachable: as for `servers`.
        """
        return Sampler(self._servers, table, make_options(SampleOptions, "Client.sample", batch_size, **options))

    def sample_one(self, table: str, timeout_seconds: float | None = GIVE_UP_SECONDS) -> Batch:
        """One sample of a table, without the axis of a batch.

        Raises:
          Stalled: no sample came within `timeout_seconds`.
          Rlds2ReverbError: as `sample` does.
        """
        sampler = self.sample(table, 1, samples=1, prefetch=1, timeout_seconds=timeout_seconds)
        return only_sample(sampler, sampler.structure)

    @takes_options(WriteOptions)
    def writer(
        self,
        table: str | Sequence[str] | Mapping[str, ViewLike],
        view: ViewLike | None = None,
        **options: Unpack[WriteKeywords],
    ) -> EpisodeWriter:
        """Writes the episodes of an environment loop: `with client.writer("replay") as w: w.append(...); w.end_episode(...)`.

        Args:
          table, view: as for `push`.
          options: the other fields of `WriteOptions`, by name.

        Returns:
          A writer for one thread; close it, or use it as a context manager.

        Raises:
          ConfigError: the client has more than one server, the server has no such table, or an option makes no sense.
          ViewError: a view makes no sense.
          SpecMismatch, ServerUnreachable: as `sample` does.
        """
        transport = self._only("writer", "give every actor one of them")
        chosen = make_options(WriteOptions, "Client.writer", table, view, **options)
        return EpisodeWriter(transport, self.server_info(), chosen)

    def update_priorities(self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Sets priorities of items; keys that the table does not have (any more) are skipped.

        With many servers, an item is changed on the server that it was last sampled from; unknown keys are sent to all servers.

        Args:
          table: its name.
          keys: [n] uint64, as `info.key` has them.
          priorities: [n], finite; at least 0 where the table samples or removes by them (`prioritized`). Or one for all.

        Raises:
          ConfigError: wrong shapes or values, or no server has such a table; nothing was changed.
          ServerUnreachable: no answer within the deadline; some priorities may be changed.
          TransportError: a server refuses a priority, such as a negative one for a table that samples by priority.
        """
        items.update_priorities(self._servers, table, keys, priorities)

    def delete(self, table: str, keys: npt.ArrayLike) -> None:
        """Deletes items of a table; keys that it does not have are skipped. Raises as `update_priorities` does."""
        items.delete(self._servers, table, keys)

    @takes_options(
        PushOptions, without=("ledger", "resume", "again", "move", "allow_eviction", "workers", "ray", "on_progress")
    )
    def delete_episodes(
        self,
        source: Any = None,
        table: str | Sequence[str] | Mapping[str, ViewLike] = (),
        view: ViewLike | None = None,
        *,
        episodes: str | Sequence[str] | None = None,
        pushes: str | Sequence[str] = (),
        dataset: str | None = None,
        dry_run: bool = False,
        restore: bool = False,
        checkpoint: bool = True,
        **options: Unpack[PushKeywords],
    ) -> DeleteReport:
        """Deletes episodes from the tables of all servers, for good: no push that gives them the same names brings them back.

        That holds with or without a ledger, and after a restart or crash as well, once the servers have written a checkpoint. Another `identity`
        or `transform` gives other names. Needs servers that list the episodes of pushes, as `rlds2reverb serve` does. Of what is given, all
        must hold.

        Args:
          source: a dataset as for `push`, a choice of its episodes or a filter included: its episodes, which are read for their names.
          table: those to delete from; by default all. With a source as for `push`.
          view: with a source, as for `push`.
          episodes: one or more names of episodes ("content:...", or an id of their own); a content for all of its copies.
          pushes: one or more ids of pushes, as `journal` has them, or of deletes, from whose tables their episodes go (again).
          dataset: the source of pushes, as `journal` has it, or the dataset that it is a part of.
          dry_run: change nothing, and say what would go.
          restore: let them in again: the same push stores them anew.
          checkpoint: have all servers write one at the end; inserts, samples and updates wait meanwhile.
          options: `note`, for the journal; with a source, those of the push that change what episodes are called (`identity`, `transform`,
            ...), and filters.

        Returns:
          The account of it.

        Raises:
          ConfigError: nothing was chosen, a name is "", a table or push is not there, or a server keeps no list.
          ServerUnreachable: as for `servers`. Nothing was done if a server was missing at the beginning; later, it is done on the others.
          Rlds2ReverbError: with a source, as `plan` does.
        """
        note = options.pop("note", "")
        names = None if episodes is None else (episodes,) if isinstance(episodes, str) else tuple(episodes)
        push_ids = (pushes,) if isinstance(pushes, str) else tuple(pushes)
        names_in_source: set[str] | None = None
        about = dataset
        tables = (table,) if isinstance(table, str) else tuple(table)
        if source is not None:
            chosen = self._options_of(
                "Client.delete_episodes", source, table, view, {**options, "allow_eviction": True}
            )
            plan = self.planned(source, chosen)
            names_in_source = names_of(plan)
            about = dataset or plan.source.name
        elif options or view is not None:
            raise ConfigError(
                f"delete_episodes: {', '.join(options) or 'view'}: says how a source is read; give the source, too"
            )
        words = words_of(
            dataset=about,
            pushes=push_ids,
            episodes=names or (),
            **{name: str(value) for name, value in options.items()},
        )
        choice = EpisodeChoice(names, push_ids, dataset, tables, words, names_in_source)
        return delete_episodes(self._servers, choice, dry_run, restore, note, checkpoint)

    def reset(self, table: str) -> None:
        """Empties a table on all servers; its rate limiters start from zero.

        Raises:
          ConfigError: no server has such a table.
          ServerUnreachable: a server does not answer within the deadline; the table may be empty on the other servers.
        """
        items.reset(self._servers, table)
        note_reset(self._servers, table)

    def checkpoint(self, seconds: float = 600.0) -> dict[str, str]:
        """Has all servers write a checkpoint at the same time; inserts, samples and updates wait meanwhile.

        Args:
          seconds: deadline for each server.

        Returns:
          Address -> folder of the checkpoint on the server's machine.

        Raises:
          ServerUnreachable: no answer within the deadline; the other servers have written theirs.
          TransportError: a server has no checkpointer, or cannot write.
        """
        paths = self._servers.each(lambda server: server.transport.checkpoint(seconds))
        return {server.address: path for server, path in paths.items()}

    @takes_options(PushOptions)
    def plan(
        self,
        source: Any,
        table: str | Sequence[str] | Mapping[str, ViewLike],
        view: ViewLike | None = None,
        **options: Unpack[PushKeywords],
    ) -> PushPlan:
        """Makes all checks that `push` makes before the first episode, and sends nothing.

        Args:
          source: as for `push`; no episode of it is read.
          table, view, options: as for `push`.

        Returns:
          What `push` with the same arguments would do: each table's signature and free places, the step fields that are filled in, the
          columns that no item holds.

        Raises:
          Rlds2ReverbError: as `push` does before it reads the first episode.
        """
        return self.planned(source, self._options_of("Client.plan", source, table, view, options))

    @takes_options(PushOptions)
    def push(
        self,
        source: Any,
        table: str | Sequence[str] | Mapping[str, ViewLike],
        view: ViewLike | None = None,
        **options: Unpack[PushKeywords],
    ) -> PushReport:
        """Stores a dataset's items in one or more tables, each item exactly once.

        The same push run again adds nothing: an item's key is a function of the data, and Reverb overwrites the item of that
        key. Items stored before an error stay, and the error's `report` counts them.

        With many servers, each episode goes to one of them, by rendezvous hashing of its name and the servers' names (`connect`): when
        one is added as the n-th, it gets about 1/n of the episodes. A server that has an episode by the ledger keeps it. With
        `allow_missing`, episodes of a missing server are left out and counted; the same push, run again when the server is back, stores
        them. Without it the push stops, and the report says what is stored where.

        Args:
          source: a name ("tfds:NAME", "bundled:cartpole"), an RLDS `tf.data.Dataset`, a list of `Episode`, or a source.
          table: a table, a list of tables, or table -> view to fill each table by a view of its own.
          view: how episodes become items; by default that of a mixture file, else "two_step"; see `PushOptions`.
          options: the other fields of `PushOptions`, by name.

        Returns:
          The report of the push; with many servers, its `servers` has the report of each.

        Raises:
          SourceError, ViewError, ConfigError: the source, a view or an option cannot be used; nothing is stored.
          SpecMismatch: a table's signature differs from that of the items, or names another view; nothing is stored.
          CapacityError: the items may evict others, or another client's items evict some meanwhile; never with `allow_eviction`.
          InvalidEpisode: a bad episode and on_invalid="raise"; nothing of it is stored.
          LedgerError: the ledger cannot be used.
          WriteError: the quarantine file cannot be written, as on a full disk.
          WireError: a column's dtype cannot be stored, or the server does not speak Reverb's protocol.
          TransportError: a server cannot be reached, was restarted, or confirms nothing.
          WorkersLost: the workers of one task were killed or lost again and again.
        """
        chosen = self._options_of("Client.push", source, table, view, options)
        return self.pusher(self.planned(source, chosen)).run()

    @staticmethod
    def _options_of(method: str, source: Any, table: Any, view: Any, options: Any) -> PushOptions:
        """A table without a view of its own gets that of a mixture file."""
        view = view if isinstance(table, Mapping) else view_for(source, view)
        return make_options(PushOptions, method, table, view, **options)

    def planned(self, source: Any, options: PushOptions, asked_for: Any = None) -> PushPlan:
        """`plan` with the options as one object; workers open `asked_for`, by default the source."""
        allow_missing = self._servers.allow_missing
        plan = plan_push(source, options, self.servers, self._servers.names, allow_missing, asked_for=asked_for)
        return replace(plan, found_before=other_names(plan))

    def pusher(self, plan: PushPlan) -> RunnablePush:
        """The push of a plan made just before: `run` it; its `report` may be called meanwhile.

        Raises:
          ConfigError: the plan is for other servers, workers have no address of a server, or the library Ray is missing.
        """
        if plan.names != self._servers.names:
            raise ConfigError("pusher: expected what `plan` of these servers gave")
        transports = {server.address: server.transport for server in self._servers}
        if plan.options.is_distributed:
            return distribute_push(transports, plan)
        return Push(transports, plan)

    def _only(self, method: str, way_out: str) -> Transport:
        if len(self._servers) > 1:
            raise ConfigError(
                f"{method}: expected a client of one server, this one has {len(self.addresses)}; connect to one of "
                f"{', '.join(self.addresses)}, and {way_out}"
            )
        return self._servers[0].transport
