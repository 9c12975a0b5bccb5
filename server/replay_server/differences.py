"""What a config says otherwise than a running server, for `--check`: Reverb changes nothing of a table while it runs, so all of it needs a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from replay_server.config import HttpSection
from replay_server.tables import TableConfig
from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.specs import differences
from rlds2reverb.text import counted, duration
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.transport.http import ServerHttp, Status
from rlds2reverb.wire.messages import ServerInfo, TableInfo

_SECONDS = 2.0

_ANY = ("", "0.0.0.0", "::")  # noqa: S104  # hosts of a server that listens everywhere: it is asked on this machine


@dataclass(frozen=True)
class RunningServer:
    """The server that runs on the ports of a config.

    Attributes:
      address: of its gRPC.
      tables: table -> what the config says otherwise, in words.
      restart: about how long a restart takes, and by what that is known; "" where it is not.
    """

    address: str
    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    restart: str = ""

    @property
    def sentence(self) -> str:
        """That a restart is needed, and how long it takes; "" when nothing is different."""
        if not self.tables:
            return ""
        seconds = f", which takes {self.restart}" if self.restart else ""
        return f"the server that runs on {self.address} differs from the config in {', '.join(self.tables)}: that changes with a restart{seconds}"


def running_server(grpc_port: int, http: HttpSection, configs: Sequence[TableConfig]) -> RunningServer | None:
    """The server of a config's ports; None where no Reverb server answers there."""
    if not grpc_port:
        return None
    address = f"localhost:{grpc_port}"
    with suppress(Rlds2ReverbError), closing(GrpcTransport(address, call_seconds=_SECONDS)) as transport:
        info = transport.server_info(at_once=True)
        status = _status(http)
        return RunningServer(address, compare(configs, info), "" if status is None else restart_words(status))
    return None


def compare(configs: Sequence[TableConfig], info: ServerInfo) -> dict[str, list[str]]:
    """Table -> what the config says otherwise; without tables that are as the config has them."""
    by_name = {config.name: config for config in configs}
    lines = {
        name: [*_table_differences(config, info.tables[name])]
        if name in info.tables
        else ["new: it is there after a restart, and begins empty"]
        for name, config in by_name.items()
    }
    lines |= {
        name: [
            f"not in the config: a restart leaves {counted(table.current_size, 'item')} out, and keeps the checkpoint that has them"
        ]
        for name, table in info.tables.items()
        if name not in by_name
    }
    return {name: own for name, own in lines.items() if own}


def _table_differences(config: TableConfig, table: TableInfo) -> Iterator[str]:
    if config.max_size != table.max_size:
        lost = max(0, table.current_size - config.max_size)
        what = f": a restart removes {counted(lost, 'item')}, as the remover chooses" if lost else ""
        yield f"max_size {table.max_size:,}, in the config {config.max_size:,}{what}"
    for key, selector, running in (
        ("sampler", config.sampler, table.sampler),
        ("remover", config.remover, table.remover),
    ):
        text = f"prioritized({config.priority_exponent:g})" if selector == "prioritized" else selector
        if text != running:
            yield f"{key} {running}, in the config {text}"
    most = max(0, table.max_times_sampled)
    if config.max_times_sampled != most:
        yield f"max_times_sampled {most or 'no limit'}, in the config {config.max_times_sampled or 'no limit'}"
    limiter = table.rate_limiter
    running_bounds = (limiter.samples_per_insert, limiter.min_size_to_sample, limiter.min_diff, limiter.max_diff)
    allowed = [bounds_of(config)] + ([bounds_of(config.filled())] if config.rate_limiter.is_prefill else [])
    if running_bounds not in allowed:
        yield f"rate_limiter: {_words(running_bounds)}; in the config {_words(allowed[0])}"
    if config.signature is not None and table.signature is None:
        yield "signature: none, in the config there is one; a start refuses items that were stored without"
    elif config.signature is not None and (lines := differences(table.signature, config.signature)):
        yield f"signature: {'; '.join(lines)}. A start refuses the items: give the table a new name in the config, and move them there (rlds2reverb migrate)"


def bounds_of(config: TableConfig) -> tuple[float, int, float, float]:
    bounds = config.rate_limiter.bounds()
    return bounds.samples_per_insert, bounds.min_size_to_sample, bounds.min_diff, bounds.max_diff


def _words(bounds: tuple[float, int, float, float]) -> str:
    ratio, least, low, high = bounds
    words = f"samples wait for {counted(least, 'item')}"
    if high < _UNBOUNDED or low > -_UNBOUNDED:
        words += f", {ratio:g} samples per insert, difference from {_bound(low)} to {_bound(high)}"
    return words


_UNBOUNDED = 1e300


def _bound(value: float) -> str:
    return "any" if abs(value) >= _UNBOUNDED else f"{value:g}"


def _status(http: HttpSection) -> Status | None:
    host = "127.0.0.1" if http.host in _ANY else http.host
    with suppress(Rlds2ReverbError):
        return (
            ServerHttp(f"http://{f'[{host}]' if ':' in host else host}:{http.port}").status(_SECONDS)
            if http.port
            else None
        )
    return None


def restart_words(status: Status) -> str:
    """About how long a restart takes: the last checkpoint, and the last start with as many items as there are now."""
    start = status.server.ready_seconds
    if start is None:
        return ""
    restored, now = status.server.restored_items, sum(table.size for table in status.tables)
    # What a start takes without items is not known by itself, so a start with few of them says little of one with many.
    grown = now / restored if 0 < restored < now else 1.0
    last = status.checkpoints.last
    writing = 0.0 if last is None else last.seconds
    known_by = f"the last start took {_seconds(start)} with {counted(restored, 'item')}"
    known_by += f", the last checkpoint {_seconds(writing)}" if writing else ""
    return f"about {_seconds(start * grown + writing)} ({known_by})"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else duration(value)
