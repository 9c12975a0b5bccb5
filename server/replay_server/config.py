"""The server's configuration: a YAML file, overridden by the environment and by flags, decoded strictly.

Unknown keys are refused, and every error has its path, such as `$.tables[1].max_size`. An override names a path with
dots (`http.port=9000`, `tables.0.max_size=500`), in the environment with double underscores (`REPLAY__HTTP__PORT=9000`).
Precedence: flags, then environment, then file.

Relative paths in the file are taken from its own folder, so that it means the same wherever the server is started; those of
flags and of the environment from where it is started, as in any command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from replay_server import admission
from replay_server.dataset_signatures import signature_of_dataset
from replay_server.limiters import MOST, RateLimiter, Shape
from replay_server.selectors import Selector
from replay_server.signatures import from_plain
from replay_server.tables import TableConfig
from rlds2reverb import strict_yaml
from rlds2reverb.errors import ConfigError, SpecError
from rlds2reverb.specs import Nest, flatten

ENVIRONMENT_PREFIX = "REPLAY__"
_PATHS = (("checkpoints", "folder"), ("checkpoints", "start_from"), ("http", "token_file"))
"""Section and key of the values that are paths."""

_UNKNOWN_FIELD = re.compile(r"unknown field `[^`]*`(?: - at `\$\.(\w+)(?:\[\d+\])?`)?$")


Port = Annotated[int, Meta(ge=0, le=65535)]
"""0 for a free one."""
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
"""Threads and calls cannot wait for longer than some 9e9 s."""


class _Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: immutable, no unknown keys."""


class Prioritized(_Section, frozen=True, tag="prioritized", tag_field="kind"):
    """A sampler or remover by priority to the power of an exponent.

    Attributes:
      exponent: 0 for as likely as any other; a table's sampler and remover share one.
    """

    exponent: Annotated[float, Meta(ge=0, le=1000)] = TableConfig.priority_exponent


class TableSection(_Section, frozen=True):
    """One entry of `tables`; `replay_server.TableConfig` is the same in Python.

    Attributes:
      name: of this table alone.
      sampler: chooses what is sampled; a queue or stack has its own.
      remover: chooses what goes when the table is full; a queue or stack has its own.
      max_size: items.
      max_times_sampled: samples of one item before it is removed; 0 for no limit, 1 in a queue or stack.
      rate_limiter: what inserts and samples wait for.
      signature: dtypes and shapes of an item's columns, nested, or `{from_dataset: SOURCE, view: VIEW}`, which is read at every
        start; None for a table that takes anything.
    """

    name: Annotated[str, Meta(min_length=1)]
    sampler: Selector | Prioritized = TableConfig.sampler
    remover: Selector | Prioritized = TableConfig.remover
    max_size: Positive = TableConfig.max_size
    max_times_sampled: Annotated[int, Meta(ge=0, le=MOST)] = TableConfig.max_times_sampled
    rate_limiter: RateLimiter = TableConfig.rate_limiter
    signature: Any = None


class GrpcSection(_Section, frozen=True):
    """Reverb itself. It listens on every interface; what may reach the port is up to the network around it.

    Attributes:
      port: of gRPC; 0 for a free one, which the log and the status page tell.
    """

    port: Port = 8000


class HttpSection(_Section, frozen=True):
    """Health, metrics and the status page, which anybody may read who reaches them: loopback unless a network protects it.

    Attributes:
      host: to listen on.
      port: to listen on; 0 for a free one, which the log tells.
      allowed_hosts: names, besides localhost and `host`, by which the server may be asked; see `replay_server.admission`.
      token: wanted of requests that change something, as "Authorization: Bearer TOKEN"; none by default.
      token_file: a file that holds it, in place of `token`. A relative one is taken from the config's own folder.
      peers: "HOST:PORT" of the HTTP of other replay servers, which the status page shows and sums up beside this one. This one,
        by a name in `allowed_hosts`, may be among them.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    allowed_hosts: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+$")], ...] = ()
    token: Annotated[str, Meta(pattern=f"^{admission.TOKEN}$")] | None = None
    token_file: Annotated[str, Meta(min_length=1)] | None = None
    peers: tuple[Annotated[str, Meta(pattern=r"^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$")], ...] = ()

    def __repr__(self) -> str:
        """Without the token, which must not get into a log."""
        return f"HttpSection(host={self.host!r}, port={self.port})"


class CheckpointSection(_Section, frozen=True):
    """Where and how often the tables are saved.

    Attributes:
      folder: of this server alone; made when missing. A relative one is taken from the config's own folder.
      every_seconds: between checkpoints; null for none on a schedule.
      keep: checkpoints kept. One that a client asked Reverb for gives way to the next if it came sooner than
        `every_seconds` (10 minutes without) after the one before.
      on_shutdown: whether SIGTERM and SIGINT write one.
      start_from: a checkpoint of another experiment (its folder, one that is kept there, or one of Reverb's own), taken when
        this folder has no checkpoint yet. A relative one is taken from the config's own folder.
      start_empty: whether a start goes on when checkpoints exist that it cannot load: with the newest one that loads,
        else as with a new folder. Otherwise it is refused.
      unfit_tables: what becomes of a checkpoint's table whose signature is not the config's: "set_aside" starts it
        empty and keeps the checkpoint for good, "refuse" does not start.
      deadline_seconds: longest time that Reverb may take to write one.
    """

    folder: Annotated[str, Meta(min_length=1)] = "checkpoints"
    every_seconds: Seconds | None = 600.0
    keep: Positive = 3
    on_shutdown: bool = True
    start_from: str | None = None
    start_empty: bool = False
    unfit_tables: Literal["set_aside", "refuse"] = "set_aside"
    deadline_seconds: Seconds = 3600.0


class LogSection(_Section, frozen=True):
    """One line for every event that matters, to standard error.

    Attributes:
      format: text for people, or one JSON object per line.
      level: of the least important events that are written.
    """

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ServerConfig(_Section, frozen=True):
    """The whole file.

    Attributes:
      tables: at least one.
      grpc: where Reverb listens.
      http: where health, metrics and the status page are.
      checkpoints: where and how often the tables are saved.
      log: what is written of events.
    """

    tables: Annotated[tuple[TableSection, ...], Meta(min_length=1)]
    grpc: GrpcSection = GrpcSection()
    http: HttpSection = HttpSection()
    checkpoints: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()


def load(path: Path, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> ServerConfig:
    """Reads a config file.

    Args:
      path: of the YAML file. Relative paths in it are made absolute: they are taken from its folder.
      overrides: "path.to.key=VALUE" each, the value in YAML.
      environment: os.environ by default.

    Raises:
      ConfigError: unreadable, not YAML, or not a config; says the path, what was expected and what came.
    """
    plain = strict_yaml.read(path, "; name a config with --config") or {}
    place, sources = path.absolute().parent, [str(path)]
    _anchor(plain, place)
    for name, value in sorted((os.environ if environment is None else environment).items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            keys = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
            _override(plain, keys, value, f"{path}: environment variable {name}")
            sources.append(f"environment variable {name}")
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f'{path}: --set "{text}": expected PATH=VALUE, such as http.port=9000')
        shown = f"{key}=..." if key == "http.token" else text
        _override(plain, key.split("."), value, f'{path}: --set "{shown}"')
        sources.append(f'--set "{shown}"')
    if isinstance(plain, dict) and isinstance(section := plain.setdefault("checkpoints", {}), dict):
        section.setdefault("folder", str(place / CheckpointSection().folder))
    return decode(plain, " with ".join(filter(None, (sources[0], ", ".join(sources[1:])))))


def _anchor(plain: Any, place: Path) -> None:
    """Takes relative paths from a folder, in place; what is no path is refused later."""
    for name, key in _PATHS:
        section = plain.get(name) if isinstance(plain, dict) else None
        if isinstance(section, dict) and isinstance(value := section.get(key), str) and value:
            section[key] = str(place / value)


def decode(plain: Any, where: str) -> ServerConfig:
    """A config from plain mappings.

    Raises:
      ConfigError: see `load`.
    """
    try:
        config = msgspec.convert(plain, ServerConfig, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}{_known_fields(str(error))}") from error
    names = [table.name for table in config.tables]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f'{where}: a table named "{name}" stands there already - at `$.tables[{index}].name`')
    return config


def _known_fields(refusal: str) -> str:
    """What there is where a refusal names an unknown field of the config, of a table or of a section; else ""."""
    found = _UNKNOWN_FIELD.search(refusal)
    if found is None:
        return ""
    sections: dict[str | None, Any] = {
        field.name: type(field.default) for field in msgspec.structs.fields(ServerConfig) if not field.required
    }
    known = {**sections, "tables": TableSection, None: ServerConfig}[found[1]]
    return f"; there are {', '.join(field.name for field in msgspec.structs.fields(known))}"


def table_configs(config: ServerConfig) -> list[TableConfig]:
    """The tables, with signatures derived where the config says from which dataset.

    Raises:
      ConfigError: a signature that makes no sense; says its path.
      SourceError, SpecError: the dataset cannot be opened, or stored; says the path.
      ViewError: the view cannot cut its steps; says the path.
    """
    return [_table(section, f"$.tables[{index}]") for index, section in enumerate(config.tables)]


def _table(section: TableSection, path: str) -> TableConfig:
    plain = TableConfig(section.name, _signature(section.signature, f"{path}.signature"))
    if section.rate_limiter.shape is not None:
        _refuse_own_choice(section, path)
        return plain.with_limiter(section.rate_limiter)
    return replace(
        plain,
        max_size=section.max_size,
        sampler=_selector_name(section.sampler),
        remover=_selector_name(section.remover),
        priority_exponent=_exponent(section, path),
        max_times_sampled=section.max_times_sampled,
        rate_limiter=section.rate_limiter,
    )


def _selector_name(selector: Selector | Prioritized) -> Selector:
    return "prioritized" if isinstance(selector, Prioritized) else selector


def _exponent(section: TableSection, path: str) -> float:
    """The one exponent of a table: of its sampler, its remover, or both."""
    exponents = [one.exponent for one in (section.sampler, section.remover) if isinstance(one, Prioritized)]
    if len(set(exponents)) > 1:
        raise ConfigError(f"{path}.remover.exponent: sampler and remover share one exponent, got {exponents}")
    return exponents[0] if exponents else TableConfig.priority_exponent


def _refuse_own_choice(section: TableSection, path: str) -> None:
    """Refuses a queue or stack whose config chooses what these have of their own: it expects something else."""
    plain = TableSection(name=section.name)
    for key in fields(Shape):
        if getattr(section, key.name) != getattr(plain, key.name):
            kind = type(section.rate_limiter).__name__.lower()
            raise ConfigError(f"{path}.{key.name}: a {kind} has its own; leave it out (its size is rate_limiter.size)")


def _signature(value: Any, path: str) -> Nest | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and "from_dataset" in value:
        return signature_of_dataset(value, path)
    try:
        signature = from_plain(value, path)
        flatten(signature)
    except SpecError as error:
        raise ConfigError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply, or within itself") from error
    return signature


def _override(plain: Any, keys: list[str], value: str, where: str) -> None:
    """Sets one value in place; mappings on the way are made, list entries must exist."""
    parsed = strict_yaml.parse(value, f"{where}: the value is ")
    holder = plain
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(holder, list):
            if not key.isdecimal() or int(key) >= len(holder):
                raise ConfigError(f'{where}: "{key}": expected a number below {len(holder)}')
            index: Any = int(key)
        elif isinstance(holder, dict):
            index = key
            if not last:
                holder.setdefault(key, {})
        else:
            raise ConfigError(f'{where}: "{".".join(keys[:depth])}" is a value, it has no "{key}"')
        if last:
            holder[index] = parsed
        else:
            holder = holder[index]
