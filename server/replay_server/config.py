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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Meta, Struct

from replay_server import admission
from replay_server.retention import Keep
from replay_server.tables import MOST, RateLimiter, Selector, Shape, TableConfig
from rlds2reverb import strict_yaml
from rlds2reverb.errors import ConfigError, SourceError, SpecError, ViewError
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.options import is_url
from rlds2reverb.specs import ArraySpec, Nest, dtype_name, flatten, named_tuple_type
from rlds2reverb.text import did_you_mean
from rlds2reverb.views import view_of
from rlds2reverb.views.trajectory import name_of
from rlds2reverb.wire.codec import NUMPY_DTYPES
from rlds2reverb.wire.messages import is_own

ENVIRONMENT_PREFIX = "REPLAY__"
_PATHS = (("checkpoints", "folder"), ("checkpoints", "start_from"), ("http", "token_file"))  # section, key
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`(?: - at `\$(?P<path>[^`]*)`)?$")

Port = Annotated[int, Meta(ge=0, le=65535)]  # 0 for a free one
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]  # threads and calls cannot wait for longer than some 9e9 s


_NUMBER_OR_RULES = re.compile(r"`int \| object( \| null)?`")  # of `keep` in errors, the only union of the two


class _Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: immutable, no unknown keys."""


class Prioritized(_Section, frozen=True, tag="prioritized", tag_field="kind"):
    """A sampler or remover by priority to the power of an exponent.

    Attributes:
      exponent: 0 for as likely as any other; a table's sampler and remover share one.
    """

    exponent: Annotated[float, Meta(ge=0, le=1000)] = TableConfig.priority_exponent


_KINDS = {struct.__struct_config__.tag: struct for struct in (Prioritized, *get_args(RateLimiter))}
"""By the value of `kind`."""


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
    """Reverb itself, on every interface.

    Attributes:
      port: of gRPC; 0 for a free one, which the log and the status page name.
    """

    port: Port = 8000


class HttpSection(_Section, frozen=True):
    """Health, metrics and the status page, which anybody may read who reaches them: loopback unless a network protects it.

    Attributes:
      host: to listen on.
      port: to listen on; 0 for a free one, which the log names.
      allowed_hosts: names, besides localhost and `host`, by which the server may be asked; see `replay_server.admission`.
      token: wanted of requests that change something, as "Authorization: Bearer TOKEN"; none by default.
      token_file: a file that holds it, in place of `token`.
      peers: "HOST:PORT" of the HTTP of other replay servers, which the status page shows and sums up beside this one.
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
      folder: of this server alone; made when missing.
      every_seconds: between checkpoints; null for none on a schedule.
      keep: checkpoints kept: so many newest ones, or rules such as `{last: 3, hourly: 24, daily: 7, weekly: 4}`.
      skip_unchanged: whether none is written when nothing has changed since the newest one.
      on_shutdown: whether SIGTERM and SIGINT write one.
      start_from: a checkpoint of another experiment (its folder, one that is kept there, or one of Reverb's own), here or in a
        bucket (`gs://`, `s3://`), taken when this folder has no checkpoint yet.
      start_empty: whether a start continues when checkpoints exist that it cannot load: with the newest one that loads,
        else as with a new folder. Otherwise it is refused.
      unfit_tables: what becomes of a checkpoint's table whose signature is not the config's: "set_aside" starts it
        empty and keeps the checkpoint for good, "refuse" does not start.
      deadline_seconds: longest time that Reverb may take to write one.
      upload: a place in a bucket, `gs://BUCKET/FOLDER` or `s3://BUCKET/FOLDER`, of this server alone, to which the newest
        checkpoint is sent whenever it is not there yet; looked at after each checkpoint and hourly; null for none.
      upload_keep: checkpoints kept there, as for `keep`; null for the same as `keep`.
      upload_on_shutdown_seconds: longest time that a stop waits for the last checkpoint to be sent; 0 for not at all.
    """

    folder: Annotated[str, Meta(min_length=1)] = "checkpoints"
    every_seconds: Seconds | None = 600.0
    keep: Positive | Keep = 3
    skip_unchanged: bool = True
    on_shutdown: bool = True
    start_from: str | None = None
    start_empty: bool = False
    unfit_tables: Literal["set_aside", "refuse"] = "set_aside"
    deadline_seconds: Seconds = 3600.0
    upload: str | None = None
    upload_keep: Positive | Keep | None = None
    upload_on_shutdown_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 60.0


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
      log: which events are logged, and how.
    """

    tables: Annotated[tuple[TableSection, ...], Meta(min_length=1)]
    grpc: GrpcSection = GrpcSection()
    http: HttpSection = HttpSection()
    checkpoints: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()


def load(path: Path, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> ServerConfig:
    """Reads a config file.

    Args:
      path: of the YAML file. Relative paths in it are made absolute.
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
    """Makes relative paths absolute from a folder, in place; values that are no paths are refused later."""
    for name, key in _PATHS:
        section = plain.get(name) if isinstance(plain, dict) else None
        if isinstance(section, dict) and isinstance(value := section.get(key), str) and value and not is_url(value):
            section[key] = str(place / value)


def decode(plain: Any, where: str) -> ServerConfig:
    """A config from plain mappings; `where` begins its errors."""
    try:
        config = msgspec.convert(plain, ServerConfig, strict=True)
    except msgspec.ValidationError as error:
        words = _NUMBER_OR_RULES.sub("a number, or rules such as `{last: 3, daily: 7}`", str(error))
        raise ConfigError(f"{where}: {words}{_known_fields(str(error), plain)}") from error
    names = [table.name for table in config.tables]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f'{where}: a table named "{name}" stands there already - at `$.tables[{index}].name`')
    for key in ("start_from", "upload"):
        if reason := _no_place(getattr(config.checkpoints, key), key):
            raise ConfigError(f"{where}: {reason} - at `$.checkpoints.{key}`")
    if is_url(config.checkpoints.folder):
        raise ConfigError(
            f"{where}: {config.checkpoints.folder}: Reverb writes to a folder of this machine only; checkpoints are sent to a bucket "
            "with checkpoints.upload - at `$.checkpoints.folder`"
        )
    return config


def _no_place(value: str | None, key: str) -> str:
    """Why a value names no place that `key` may have; "" where it does."""
    if value is None or (key == "start_from" and not is_url(value)):
        return ""
    try:
        place = str(path_of(value))
    except SourceError as error:
        return str(error)
    # A web server lists no checkpoints.
    schemes = ("gs://", "s3://", "hf://") if key == "start_from" else ("gs://", "s3://")
    return "" if place.startswith(schemes) else f"{value}: expected gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"


def _known_fields(refusal: str, plain: Any) -> str:
    """The known fields, where an error names an unknown field of a plain config, a section of it, or a kind in a table; else ""."""
    unknown = _UNKNOWN_FIELD.search(refusal)
    if unknown is None:
        return ""
    keys = re.findall(r"\w+", unknown["path"] or "")
    struct: Any = ServerConfig
    for key in keys:
        plain = plain[int(key)] if isinstance(plain, list) else plain[key]
        if key == "tables":
            struct = TableSection
        elif isinstance(plain, dict) and "kind" in plain:
            struct = _KINDS[plain["kind"]]
        elif key in ("keep", "upload_keep"):
            struct = Keep
        elif struct is ServerConfig:
            struct = type(next(field.default for field in msgspec.structs.fields(struct) if field.name == key))
    return _fields_of(struct, unknown[1])


def _fields_of(struct: Any, unknown: str) -> str:
    """The fields that there are, and the one that an unknown one was meant to be."""
    names = [field.name for field in msgspec.structs.fields(struct)]
    return f"; there are {', '.join(names)}{did_you_mean(unknown, names)}"


def table_configs(config: ServerConfig) -> list[TableConfig]:
    """The tables, with signatures derived where the config says from which dataset.

    Raises:
      ConfigError: a signature that makes no sense; says its path.
      SourceError, SpecError, ViewError: the dataset cannot be opened or stored, or the view cannot cut it; says the path.
    """
    return [_table(section, f"$.tables[{index}]") for index, section in enumerate(config.tables)]


def _table(section: TableSection, path: str) -> TableConfig:
    limiter = section.rate_limiter
    plain = TableConfig(section.name, _signature(section.signature, f"{path}.signature"))
    if limiter.shape is not None:  # a queue or stack, which fixes these options
        default = TableSection(name=section.name)
        for key in fields(Shape):
            if getattr(section, key.name) != getattr(default, key.name):
                kind = type(limiter).__name__.lower()
                raise ConfigError(
                    f"{path}.{key.name}: a {kind} has its own; leave it out (its size is rate_limiter.size)"
                )
        return plain.with_limiter(limiter)
    exponents = [
        selector.exponent for selector in (section.sampler, section.remover) if isinstance(selector, Prioritized)
    ]
    if len(set(exponents)) > 1:
        raise ConfigError(f"{path}.remover.exponent: sampler and remover share one exponent, got {exponents}")
    return replace(
        plain,
        max_size=section.max_size,
        sampler=_selector_name(section.sampler),
        remover=_selector_name(section.remover),
        priority_exponent=exponents[0] if exponents else TableConfig.priority_exponent,
        max_times_sampled=section.max_times_sampled,
        rate_limiter=limiter,
    )


def _selector_name(selector: Selector | Prioritized) -> Selector:
    return "prioritized" if isinstance(selector, Prioritized) else selector


def _signature(value: Any, path: str) -> Nest | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and "from_dataset" in value:
        return _signature_of_dataset(value, path)
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


# The format of table signatures in YAML, for `from_plain` and `to_plain`.
#
# A leaf is text, `float32[2, 17]` (`?` for a free size, `string` for text), or a mapping with `dtype`, `shape` and, for
# bounded specs, `minimum` and `maximum`. One leaf may have the `view` that the table is for. Mappings and lists are
# nests; a tuple is `{"!tuple": [...]}`, a namedtuple `{"!namedtuple": NAME, "fields": [...]}` with one mapping per
# field, in the order of the table's columns.

_LEAF = re.compile(r"(?P<dtype>[a-z0-9]+)\[(?P<shape>[0-9?, ]*)\]")
_NAMED_TUPLE = "!namedtuple"
_TUPLE = "!tuple"
_LEAF_KEYS = {"dtype", "shape", "name", "minimum", "maximum", "view"}


def from_plain(value: Any, path: str = "$") -> Nest:
    """A signature from what YAML gives; `path` begins its errors."""
    if isinstance(value, str):
        return _leaf_from_text(value, path)
    if isinstance(value, Mapping):
        if _NAMED_TUPLE in value:
            return _named_tuple(value, path)
        if _TUPLE in value:
            children = value[_TUPLE]
            if len(value) > 1 or not isinstance(children, list):
                raise ConfigError(f'{path}: a tuple is {{"{_TUPLE}": [...]}} and nothing else, got {value!r}')
            return tuple(from_plain(child, f"{path}.{_TUPLE}[{index}]") for index, child in enumerate(children))
        if "dtype" in value and not isinstance(value["dtype"], Mapping) and set(value) <= _LEAF_KEYS:
            return _leaf_from_mapping(value, path)
        if len(set(map(str, value))) < len(value):
            raise ConfigError(f"{path}: two names are the same, got {list(value)!r}")
        return {str(key): from_plain(child, f"{path}.{key}") for key, child in value.items()}
    if isinstance(value, list):
        return [from_plain(child, f"{path}[{index}]") for index, child in enumerate(value)]
    raise ConfigError(f'{path}: expected a leaf such as "float32[2, 17]", a mapping or a list, got {value!r}')


def to_plain(nest: Nest) -> Any:
    """A signature as plain mappings, lists and text: the inverse of `from_plain`."""
    if isinstance(nest, ArraySpec):
        return str(nest) if nest.minimum is None and not nest.name and not nest.view else _leaf_mapping(nest)
    if hasattr(nest, "_fields"):
        fields = [{name: to_plain(getattr(nest, name))} for name in nest._fields]
        return {_NAMED_TUPLE: type(nest).__name__, "fields": fields}
    if isinstance(nest, Mapping):
        # As text, a column named "dtype" would turn the mapping around it into a leaf.
        return {
            key: _leaf_mapping(child) if key == "dtype" and isinstance(child, ArraySpec) else to_plain(child)
            for key, child in nest.items()
        }
    children = [to_plain(child) for child in nest]
    return {_TUPLE: children} if isinstance(nest, tuple) else children


def _leaf_mapping(spec: ArraySpec) -> dict[str, Any]:
    leaf: dict[str, Any] = {"dtype": dtype_name(spec.dtype), "shape": ["?" if n is None else n for n in spec.shape]}
    if spec.name:
        leaf["name"] = spec.name
    if spec.minimum is not None:
        leaf |= {"minimum": np.asarray(spec.minimum).tolist(), "maximum": np.asarray(spec.maximum).tolist()}
    if spec.view:
        leaf["view"] = spec.view
    return leaf


def _leaf_from_text(text: str, path: str) -> ArraySpec:
    match = _LEAF.fullmatch(text)
    if match is None:
        raise ConfigError(f'{path}: expected DTYPE[SIZES] such as "float32[2, 17]" or "string[]", got "{text}"')
    sizes = [part.strip() for part in match["shape"].split(",") if part.strip()]
    return ArraySpec(_shape(sizes, path), _dtype(match["dtype"], path))


def _leaf_from_mapping(leaf: Mapping[str, Any], path: str) -> ArraySpec:
    dtype = _dtype(str(leaf["dtype"]), f"{path}.dtype")
    sizes = leaf.get("shape", [])
    if not isinstance(sizes, list):
        raise ConfigError(f"{path}.shape: expected a list of sizes, got {sizes!r}")
    if ("minimum" in leaf) != ("maximum" in leaf):
        raise ConfigError(f"{path}: minimum and maximum go together")
    bounds = [_bound(leaf[key], dtype, f"{path}.{key}") if key in leaf else None for key in ("minimum", "maximum")]
    shape, name, view = _shape(sizes, f"{path}.shape"), str(leaf.get("name", "")), ""
    if "view" in leaf:
        view = leaf["view"]
        if not isinstance(view, str) or not view:
            raise ConfigError(
                f'{path}.view: expected a view\'s name such as "two_step" or "sequence:length=8", got {view!r}'
            )
        with suppress(ViewError):  # an unknown text is a user's own label
            view = name_of(view_of(view))  # as pushes write it: without default options
    if view and name and not shape:
        raise ConfigError(f"{path}: a leaf without axes has a name or a view, not both; write the view at another leaf")
    return ArraySpec(shape, dtype, name, *bounds, view=view)


def _bound(value: Any, dtype: np.dtype[Any], path: str) -> Any:
    try:
        array, bound = np.asarray(value), np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: expected {dtype_name(dtype)} values, got {value!r} ({error})") from error
    is_exact = dtype.kind not in "biu" or np.array_equal(array, bound)
    if dtype.kind == "O" or array.dtype.kind not in "biufc" or not is_exact:
        raise ConfigError(f"{path}: expected {dtype_name(dtype)} values, got {value!r}")
    return bound


def _shape(sizes: list[Any], path: str) -> tuple[int | None, ...]:
    if not all(size in ("?", None) or re.fullmatch("[0-9]{1,18}", str(size)) for size in sizes):
        raise ConfigError(f'{path}: expected sizes or "?", got {sizes!r}')
    return tuple(None if size in ("?", None) else int(size) for size in sizes)


def _dtype(name: str, path: str) -> np.dtype[Any]:
    dtypes = {dtype_name(dtype): dtype for dtype in NUMPY_DTYPES.values()}
    if name not in dtypes:
        raise ConfigError(f'{path}: dtype "{name}", expected one of {", ".join(dtypes)}')
    return dtypes[name]


def _named_tuple(value: Mapping[str, Any], path: str) -> Nest:
    fields = value.get("fields")
    if set(value) != {_NAMED_TUPLE, "fields"} or not isinstance(fields, list) or not fields:
        raise ConfigError(
            f'{path}: a namedtuple has "{_NAMED_TUPLE}" and a list of "fields", got {sorted(map(str, value))}'
        )
    names, children = [], []
    for index, field in enumerate(fields):
        if not isinstance(field, Mapping) or len(field) != 1:
            raise ConfigError(f"{path}.fields[{index}]: expected NAME: LEAF, got {field!r}")
        ((name, child),) = field.items()
        names.append(str(name))
        children.append(from_plain(child, f"{path}.fields[{index}].{name}"))
    try:
        return named_tuple_type(str(value[_NAMED_TUPLE]), tuple(names))(*children)
    except ValueError as error:
        raise ConfigError(f"{path}: no namedtuple: {error}") from error


class FromDataset(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A signature derived from a dataset: of what `view` makes of its steps. Read when the server starts.

    Attributes:
      from_dataset: as for `push`; a relative path is taken from where the server is started.
      view: text as for --view, or a mapping as in a file for --view-config; by default that of a mixture file, else two_step.
      transform: text or a file as for --transform, or a mapping as in such a file.
      map: names a function as --map does; the server must be able to import it.
      encoded: names images as --encoded does.
      encode: what files frames become, as --encode says it, or path -> files.
    """

    from_dataset: str
    view: str | dict[str, Any] | None = None
    transform: str | dict[str, Any] = ""
    map: str = ""
    encoded: str | tuple[str, ...] = ()
    encode: str | tuple[str, ...] | dict[str, str] = ()


def _signature_of_dataset(value: Mapping[str, Any], path: str) -> Nest:
    from rlds2reverb.formats import open_source
    from rlds2reverb.formats.mapped import MapFunction, mapped
    from rlds2reverb.formats.source import metadata_spec_of
    from rlds2reverb.formats.transform import transform_of, with_encode
    from rlds2reverb.formats.transformed import transformed
    from rlds2reverb.prepare.conventions import filled_spec
    from rlds2reverb.prepare.preparation import view_at_rate, view_for
    from rlds2reverb.views import view_from
    from rlds2reverb.views.base import signature_of, wants_metadata
    from rlds2reverb.views.trajectory import table_signature

    try:
        section = msgspec.convert(value, FromDataset, strict=True)
        transform = with_encode(transform_of(section.transform or ()), section.encode)
        like = view_for(section.from_dataset, section.view)
        written_view = view_from(like) if isinstance(like, (str, Mapping)) else like
        encoded = (section.encoded,) if isinstance(section.encoded, str) else section.encoded
        function = MapFunction.of(section.map) if section.map else None
        recorded = open_source(section.from_dataset).with_encoded(encoded)
        source = transformed(mapped(recorded, function), transform)
        view = view_at_rate(written_view, source)
        metadata_spec = metadata_spec_of(source) if wants_metadata([view]) else ()
        return table_signature(signature_of(view, filled_spec(source.spec()), metadata_spec), name_of(view))
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        raise ConfigError(f"{path}: {error}{_fields_of(FromDataset, unknown[1]) if unknown else ''}") from error
    except (ConfigError, SourceError, SpecError, ViewError) as error:
        raise type(error)(f"{path}: {error}") from error


def check(tables: Sequence[TableConfig]) -> None:
    """Refuses tables that can never be filled or sampled, or have a name of the server's own, with a line per table and reason."""
    lines = [
        f'table "{table.name}": this name is of a table that the server keeps for itself, choose another - at `$.tables[{index}].name`'
        for index, table in enumerate(tables)
        if is_own(table.name)
    ]
    lines += [
        f'table "{table.name}": {reason} - at `$.tables[{index}].rate_limiter.{key}`'
        for index, table in enumerate(tables)
        for key, reason in table.rate_limiter.dead_ends(table.max_size, table.max_times_sampled)
    ]
    if lines:
        raise ConfigError("\n".join(lines))
