"""The way in for Python: `connect`, then `push`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds2reverb.conventions import AS_RECORDED, Conventions
from rlds2reverb.errors import ConfigError
from rlds2reverb.outputs import TableViews, outputs_of
from rlds2reverb.pipeline import Pusher, PushOptions
from rlds2reverb.report import Progress, PushReport
from rlds2reverb.sources import open_source
from rlds2reverb.specs import Nest
from rlds2reverb.views.base import View
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.wire.transport import Deadlines, ReverbChannel


@dataclass(frozen=True)
class Target:
    """Tables of a server and how to cut episodes for them; `push_rlds_to_reverb` takes it in place of an observer.

    Attributes:
      client: an open client.
      tables: table names.
      view: cuts trajectory rows (`two_step`, `sequence`, `episode` or `across_episodes`).
    """

    client: Client
    tables: tuple[str, ...]
    view: View

    def get_table_signature(self) -> Nest | None:
        """The signature of the first table, as TF-Agents' observers tell it; None without one.

        Raises:
          ConfigError: the server has no such table.
        """
        tables = self.client.server_info().tables
        if self.tables[0] not in tables:
            raise ConfigError(f'the server has no table "{self.tables[0]}"; it has {", ".join(sorted(tables))}')
        return tables[self.tables[0]].signature


class Client:
    """An open connection to a Reverb server. Close it, or use it as a context manager."""

    def __init__(self, channel: ReverbChannel) -> None:
        self.channel = channel

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self.channel.close()

    def server_info(self) -> ServerInfo:
        """All tables with sizes, signatures and rate limiters.

        Raises:
          ServerUnreachable: no answer within the deadline.
        """
        return self.channel.server_info()

    def target(self, table: str | Sequence[str], view: str | View = "two_step") -> Target:
        """A target for `push_rlds_to_reverb`."""
        (output,) = outputs_of((table,) if isinstance(table, str) else tuple(table), view)
        return Target(self, output.tables, output.view)

    def push(
        self,
        source: Any,
        table: str | Sequence[str] | TableViews,
        view: str | View | None = None,
        on_invalid: str = "raise",
        quarantine: str | Path | None = None,
        allow: Sequence[str] = (),
        strict: bool = False,
        terminal_discount: str = AS_RECORDED,
        last_reward: str = AS_RECORDED,
        ledger: str | Path | None = None,
        resume: bool = True,
        again: bool = False,
        allow_eviction: bool = False,
        chunk_length: int | None = None,
        stall_seconds: float = Deadlines.stall,
        dry_run: bool = False,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> PushReport:
        """Stores a dataset's items in one or more tables, each item exactly once.

        The same push run again adds nothing: item keys are a function of the data, and Reverb assigns when a
        key exists. What is stored before an error stays stored.

        Args:
          source: a name ("tfds:NAME", "bundled:cartpole"), an RLDS `tf.data.Dataset`, a list of `Episode`, or a source.
          table: one table or several; or table -> view, to fill every table by a view of its own. Rows are stored once.
          view: how episodes become items: "two_step" (the default), "sequence:length=8,stride=4", "episode", or a view.
          on_invalid: "raise", "skip", "quarantine" or "repair"; see `validation.Policy`.
          quarantine: the report file of on_invalid="quarantine".
          allow: problem codes to tolerate.
          strict: reject advice (`terminal_discount`, `last_reward`) as well.
          terminal_discount: "as_recorded" or "transition"; see `conventions`.
          last_reward: "as_recorded" or "shift"; see `conventions`.
          ledger: SQLite file that records confirmed episodes.
          resume: skip episodes that the ledger has as confirmed by this server process.
          again: new item keys: everything is stored once more.
          allow_eviction: allow a push larger than a table's max_size.
          chunk_length: rows a chunk; None chooses it from the bytes of a row.
          stall_seconds: give up when nothing was confirmed for so long; if the server does not answer at all, two short calls later.
          dry_run: check what can be checked before anything is sent, and send nothing.
          on_progress: called a few times a second.

        Returns:
          The account of the push; `episodes_read` is pushed + rejected. Of a dry run, one of nothing.

        Raises:
          SourceError, ViewError, ConfigError: what was asked for makes no sense; nothing is stored.
          SpecMismatch: a table's signature is not that of the items, leaf by leaf; nothing is stored.
          CapacityError: a table is smaller than the push and `allow_eviction` is off.
          InvalidEpisode: a bad episode and on_invalid="raise"; nothing of it is stored.
          LedgerError: the ledger cannot be used.
          WireError: a column's dtype cannot be stored, or the server does not speak Reverb's protocol.
          TransportError: the server cannot be reached, was restarted, or confirms nothing.
        """
        options = PushOptions(
            outputs_of(table, view),
            on_invalid=on_invalid,
            quarantine=quarantine,
            allow=allow,
            strict=strict,
            conventions=Conventions(terminal_discount, last_reward),
            ledger=ledger,
            resume=resume,
            again=again,
            allow_eviction=allow_eviction,
            rows_per_chunk=chunk_length,
            deadlines=replace(Deadlines(), stall=stall_seconds),
        )
        pusher = Pusher(self.channel, open_source(source), options, on_progress)
        return pusher.report() if dry_run else pusher.run()


def connect(
    address: str,
    credentials: Any = None,
    metadata: Sequence[tuple[str, str]] = (),
    timeout_seconds: float = Deadlines.call,
) -> Client:
    """Connects to a Reverb server and asks it for its tables, so that a wrong address fails here.

    Args:
      address: "host:port".
      credentials: `grpc.ssl_channel_credentials(...)` for TLS (client certificates included); None for plain text.
      metadata: (name, value) pairs sent with every call.
      timeout_seconds: deadline of this and every other short call.

    Raises:
      ConfigError: the address is not "host:port".
      ServerUnreachable: no Reverb server answers within the deadline.
    """
    channel = ReverbChannel(address, credentials, metadata, timeout_seconds)
    try:
        channel.server_info()
    except BaseException:
        channel.close()
        raise
    return Client(channel)
