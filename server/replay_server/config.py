"""The server's configuration: a YAML file, overridden by the environment and by flags, decoded strictly.

Unknown keys are refused, and every error ends in its path, such as `$.tables[1].max_size`. An override names a path with
dots (`http.port=9000`, `tables.0.max_size=500`), in the environment with double underscores (`REPLAY__HTTP__PORT=9000`).
Precedence: flags, then environment, then file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta, Struct

from replay_server.limiters import MOST, MinSize, Queue, RateLimiter, Stack
from replay_server.signatures import from_plain
from replay_server.tables import Selector, TableConfig
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.specs import Nest, flatten

ENVIRONMENT_PREFIX = "REPLAY__"

Port = Annotated[int, Meta(ge=1, le=65535)]
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
"""Threads and calls cannot wait for longer than some 9e9 s."""


class _Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: immutable, no unknown keys."""


class Prioritized(_Section, frozen=True, tag="prioritized", tag_field="kind"):
    """A selector by priority ** exponent."""

    exponent: Annotated[float, Meta(ge=0, le=1000)] = 0.8


class FromDataset(_Section, frozen=True):
    """A signature derived from a dataset: what `view` makes of its steps. Read when the server starts.

    A view is text as for --view, or a mapping as in a file for --view-config.
    """

    from_dataset: str
    view: str | dict[str, Any] = "two_step"


class TableSection(_Section, frozen=True):
    """One entry of `tables`. See `TableConfig` for the meaning; `signature` is inline, from a dataset, or absent."""

    name: Annotated[str, Meta(min_length=1)]
    sampler: Selector | Prioritized = "uniform"
    remover: Selector | Prioritized = "fifo"
    max_size: Positive = 1_000_000
    max_times_sampled: Annotated[int, Meta(ge=0, le=MOST)] = 0
    rate_limiter: RateLimiter = MinSize()
    signature: Any = None


class GrpcSection(_Section, frozen=True):
    """Reverb itself. It listens on every interface; what may reach the port is up to the network around it."""

    port: Port = 8000


class HttpSection(_Section, frozen=True):
    """Health, metrics and the status page. There is no authentication: loopback unless a network around it protects it."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080


class CheckpointSection(_Section, frozen=True):
    """Where and how often the tables are saved.

    Attributes:
      folder: of this server alone; made when missing.
      every_seconds: between checkpoints; None for none on a schedule.
      keep: generations kept.
      on_shutdown: whether SIGTERM and SIGINT write one.
      start_from: a checkpoint of another experiment (its folder, a generation, or one of Reverb's own), taken when
        this folder has no generation yet.
      unfit_tables: what becomes of a checkpoint's table whose signature is not the config's: "set_aside" starts it
        empty and keeps the generation for good, "refuse" does not start.
      deadline_seconds: longest time that Reverb may take to write one.
    """

    folder: Annotated[str, Meta(min_length=1)] = "checkpoints"
    every_seconds: Seconds | None = 600.0
    keep: Positive = 3
    on_shutdown: bool = True
    start_from: str | None = None
    unfit_tables: Literal["set_aside", "refuse"] = "set_aside"
    deadline_seconds: Seconds = 3600.0


class LogSection(_Section, frozen=True):
    """One line for every event that matters, to standard error."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ServerConfig(_Section, frozen=True):
    """The whole file."""

    tables: Annotated[tuple[TableSection, ...], Meta(min_length=1)]
    grpc: GrpcSection = GrpcSection()
    http: HttpSection = HttpSection()
    checkpoints: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()


def load(path: Path, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> ServerConfig:
    """Reads a config file.

    Args:
      path: of the YAML file.
      overrides: "path.to.key=VALUE" each, the value in YAML.
      environment: os.environ by default.

    Raises:
      ConfigError: unreadable, not YAML, or not a config; says the path, what was expected and what came.
    """
    plain = _read_yaml(path)
    for name, value in sorted((os.environ if environment is None else environment).items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            keys = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
            _override(plain, keys, value, f"environment variable {name}")
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f'override "{text}": expected PATH=VALUE, such as http.port=9000')
        _override(plain, key.split("."), value, f'override "{text}"')
    return decode(plain, str(path))


def decode(plain: Any, where: str) -> ServerConfig:
    """A config from plain mappings.

    Raises:
      ConfigError: see `load`.
    """
    try:
        config = msgspec.convert(plain, ServerConfig, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    names = [table.name for table in config.tables]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f'{where}: a table named "{name}" stands there already - at `$.tables[{index}].name`')
    return config


def table_configs(config: ServerConfig) -> list[TableConfig]:
    """The tables, with signatures derived where the config says from which dataset.

    Raises:
      ConfigError: a signature that makes no sense; says its path.
      SourceError: the dataset cannot be opened.
      ViewError: the view cannot cut its steps.
    """
    return [_table(section, f"$.tables[{index}]") for index, section in enumerate(config.tables)]


def _table(section: TableSection, path: str) -> TableConfig:
    limiter, signature = section.rate_limiter, _signature(section.signature, f"{path}.signature")
    if isinstance(limiter, (Queue, Stack)):
        _refuse_own_choice(section, path)
        make = TableConfig.queue if isinstance(limiter, Queue) else TableConfig.stack
        return make(section.name, limiter.size, signature)
    exponents = [one.exponent for one in (section.sampler, section.remover) if isinstance(one, Prioritized)]
    if len(set(exponents)) > 1:
        raise ConfigError(f"{path}.remover.exponent: sampler and remover share one exponent, got {exponents}")
    return TableConfig(
        section.name,
        signature,
        section.max_size,
        _selector_name(section.sampler),
        _selector_name(section.remover),
        exponents[0] if exponents else Prioritized().exponent,
        section.max_times_sampled,
        limiter,
    )


def _selector_name(selector: str | Prioritized) -> str:
    return "prioritized" if isinstance(selector, Prioritized) else selector


def _refuse_own_choice(section: TableSection, path: str) -> None:
    """A queue or stack has its own selectors and sizes; a config that says others expects something else."""
    plain = TableSection(name=section.name)
    for key in ("sampler", "remover", "max_size", "max_times_sampled"):
        if getattr(section, key) != getattr(plain, key):
            kind = type(section.rate_limiter).__name__.lower()
            raise ConfigError(f"{path}.{key}: a {kind} has its own; leave it out (its size is rate_limiter.size)")


def _signature(value: Any, path: str) -> Nest | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and "from_dataset" in value:
        try:
            wanted = msgspec.convert(value, FromDataset, strict=True)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}: {error}") from error
        return _signature_of_dataset(wanted)
    try:
        signature = from_plain(value, path)
        flatten(signature)
    except SourceError as error:
        raise ConfigError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply, or within itself") from error
    return signature


def _signature_of_dataset(wanted: FromDataset) -> Nest:
    from rlds2reverb.conventions import filled_spec
    from rlds2reverb.sources import open_source
    from rlds2reverb.views.registry import view_from

    view = view_from(wanted.view)
    return view.signature(filled_spec(open_source(wanted.from_dataset).spec()))


_MERGE = "tag:yaml.org,2002:merge"  # "<<", which may stand twice


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, f"expected a mapping, got {node.id}", node.start_mark)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != _MERGE]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(None, None, f'key "{key}" stands twice', node.start_mark)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); name a config with --config") from error
    return _parse_yaml(text, f"{path}: ") or {}


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - a safe loader
    except RecursionError as error:
        raise ConfigError(f"{where}not YAML: nested too deeply") from error
    except (yaml.YAMLError, ValueError, KeyError, AttributeError) as error:  # such as of the value 2026-99-99
        raise ConfigError(f"{where}not YAML: {' '.join(str(error).split())}") from error


def _override(plain: Any, keys: list[str], value: str, where: str) -> None:
    """Sets one value in place; mappings on the way are made, list entries must exist."""
    parsed = _parse_yaml(value, f"{where}: the value is ")
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
