"""Steps of an environment loop, recorded in columns: the layout and specs are those of the first step and the tables.

What one value of a step may be:

| value | column |
| --- | --- |
| a numpy array or scalar, or what turns into one (`__array__`: tensors on the CPU) | its dtype and shape, which stay the same |
| a Python `bool` | bool |
| a Python `int` | the dtype of the column, integer or float; int64 where nothing else is known |
| a Python `float` | the float dtype of the column, rounded to it; float32 where nothing else is known |
| `numpy.float64`, which is a Python `float` | the same; float64 where nothing else is known |
| `str`, `bytes`, arrays of them | text |

"Known" is what the tables' signatures or the option `spec` say, or the first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from difflib import get_close_matches
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episode import (
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    STEP_FIELDS,
    Array,
    Episode,
    is_under,
    metadata_specs,
)
from rlds2reverb.errors import ConfigError, SourceError, WireError
from rlds2reverb.formats.source import Source, checked_spec
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.learner.options import check_count
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.push.options import KEEP, PushKeywords, PushOptions
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.specs import (
    ArraySpec,
    Nest,
    column_spec,
    differences,
    flatten,
    is_float,
    map_leaves,
    map_with_path,
    same_dtype,
)
from rlds2reverb.views.base import signature_of, wants_metadata
from rlds2reverb.wire.codec import wire_number
from rlds2reverb.wire.messages import ServerInfo

_NOT_OF_WRITERS = {
    "ledger": "name the episodes instead: the same names again store nothing twice",
    "again": "item keys are new anyway, unless the writer or the episode is given a name",
    "move": "an episode is written once, to one server",
    "encoded": "steps hold what the loop gives; images that are files already are text",
    **dict.fromkeys(
        ("split", "where", "exclude", "filter", "keep_ranges", "where_step", "idle"),
        "an actor decides itself what it writes",
    ),
    "map": "call it for the steps, before they are written",
    "identity": "its episodes are named by `name` and their number",
    "duplicates": "a writer stores every episode that it is given, each under a name of its own",
}


@dataclass(frozen=True)
class WriteOptions(PushOptions):
    """Options of a writer: those of a push, and a few more. Each field is a keyword of `Client.writer`.

    Attributes:
      allow_eviction: by default items may evict others, unlike in a push: a replay table is full most of the time. With False the
        writer stops with a CapacityError before it evicts one.
      name: prefix of the episodes' names, "NAME/0", "NAME/1", ...; the same steps under the same names add nothing. None for a
        random name.
      max_steps: most transitions of an episode. A longer one is cut there as truncated and continues as another episode, which
        begins with the observation that ended the one before; no transition is lost. None for no limit.
      most_episode_bytes: most bytes of an unfinished episode; a step beyond them is refused. A value of text counts 8.
      most_waiting_bytes: most bytes of finished episodes that wait to be sent; beyond them the loop waits. A single episode may
        be larger.
      spec: nest of `ArraySpec`, one per value of a step; None to learn it from the first step.

    The options `ledger`, `again`, `move`, `encoded` and `identity` of a push are refused, and `duplicates` unless it is "keep". `on_progress` is
    called from the writer's own thread.

    Raises:
      ConfigError: as `PushOptions`; a number out of its range; a name that is empty or no text.
    """

    _: KW_ONLY
    allow_eviction: bool = True
    name: str | None = None
    max_steps: int | None = None
    most_episode_bytes: int = 1 << 30
    most_waiting_bytes: int = 64 << 20
    spec: Nest | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, instead in _NOT_OF_WRITERS.items():
            value = getattr(self, name)
            if value and (name, value) != ("duplicates", KEEP):  # a writer keeps duplicates anyway
                raise ConfigError(f"writer: {name} is an option of a push; {instead}")
        check_name("name", self.name)
        for name in ("max_steps", "most_episode_bytes", "most_waiting_bytes"):
            if name != "max_steps" or self.max_steps is not None:
                check_count(f"writer: {name}", getattr(self, name))


class WriteKeywords(PushKeywords, total=False):
    """`WriteOptions` as keywords, without `table` and `view`."""

    name: str | None
    max_steps: int | None
    most_episode_bytes: int
    most_waiting_bytes: int
    spec: Nest | None


def check_name(option: str, name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f"writer: {option} {name!r}: expected a text that is not empty, or None")


@dataclass(frozen=True)
class Steps:
    """The layout of steps, the spec of each column by path, and a nest of their structure, with any leaves."""

    layout: StepLayout
    specs: Mapping[str, ArraySpec]
    nest: Nest

    @property
    def spec(self) -> Nest:
        """The specs, nested as a step."""
        return map_with_path(lambda path, _: self.specs[path], self.nest)


def steps_of(step: Nest, options: WriteOptions, info: ServerInfo) -> Steps:
    """Steps of which this is the first. A plain number takes the dtype that makes items fit the tables, where one does.

    Raises:
      ConfigError: no dict, or a value that no column holds.
      SpecError: two columns of one path.
    """
    layout = StepLayout(step)
    kinds = {path: spec_of_value(path, value) for path, value in zip(layout.paths, layout.values(step))}
    steps = Steps(layout, {path: spec for path, (spec, _) in kinds.items()}, map_leaves(lambda _: None, step))
    choices = {path: dtypes for path, (_, dtypes) in kinds.items() if dtypes}
    if not choices or wants_metadata([output.view for output in options.outputs]):
        return steps
    least = _differences(steps, options, info)
    for path, dtypes in choices.items():
        for dtype in dtypes if least else ():
            tried = replace(steps, specs={**steps.specs, path: replace(steps.specs[path], dtype=dtype)})
            if (fewer := _differences(tried, options, info)) < least:
                steps, least = tried, fewer
                break
    return steps


def steps_of_spec(spec: Nest) -> Steps:
    """Steps of this spec.

    Raises:
      ConfigError: no dict, a leaf that is no `ArraySpec`, or one of a shape that is not fixed.
      SpecError: two columns of one path.
    """
    layout, specs = StepLayout(spec), flatten(spec)
    for path, leaf in specs.items():
        if not isinstance(leaf, ArraySpec) or not isinstance(leaf.dtype, np.dtype) or None in leaf.shape:
            raise ConfigError(
                f'writer: spec: column "{path}": expected an ArraySpec of a numpy dtype and a fixed shape, got {leaf}'
            )
    return Steps(layout, specs, spec)


def _differences(steps: Steps, options: WriteOptions, info: ServerInfo) -> int:
    """Number of differences between the items and the tables' signatures."""
    source = transformed(LiveSource("steps", steps.spec), options.chosen_transform)
    step_spec = filled_spec(checked_spec(source))
    signatures = [(output, signature_of(output.view, step_spec, ())) for output in options.outputs]
    known: dict[str, Any] = {name: table.signature for name, table in info.tables.items()}
    return sum(
        len(differences(signature, known[table]))
        for output, signature in signatures
        for table in output.tables
        if known.get(table) is not None
    )


class LiveSource(Source):
    """Episodes as they are handed in.

    `step_spec` is that of recorded steps, without absent flags; `example` has the metadata of all.
    """

    def __init__(self, name: str, step_spec: Nest, example: Episode | None = None) -> None:
        self.name, self._example = name, example
        flags = {flag: ArraySpec((), np.dtype(bool)) for flag in FLAGS if flag not in step_spec}
        self._spec = {**step_spec, **flags}
        self._next: list[Episode] = []

    def spec(self) -> Nest:
        return self._spec

    def metadata_spec(self) -> Nest:
        return {} if self._example is None else metadata_specs(self._example)

    def hand_in(self, episode: Episode) -> None:
        """Sets the episode that an iterator yields next."""
        self._next.append(episode)

    def __iter__(self) -> Iterator[Episode]:
        while self._next:
            yield self._next.pop()

    def shard(self, index: int, count: int) -> Source:
        raise SourceError(f"{self.name}: an environment loop has no shards; got {index} of {count}")


def check_held(plan: PushPlan) -> None:
    """Raises ConfigError for a field that no item holds, except those of RLDS (`STEP_FIELDS`): it is misspelt, or written for nothing."""
    lost = set.intersection(*(set(table.not_in_items) for table in plan.tables))
    held = {path.partition("/")[0] for path in flatten(plan.step_spec) if path not in lost}
    unheld = sorted({path.partition("/")[0] for path in lost} - held - {*STEP_FIELDS})
    if not unheld:
        return
    near = get_close_matches(unheld[0], STEP_FIELDS, 1)
    tables = ", ".join(f'"{table.name}"' for table in plan.tables)
    raise ConfigError(
        f'append: field "{unheld[0]}" is in no item of {tables}, and would be lost; {f"did you mean {near[0]}? If not, " if near else ""}'
        "leave it out, or choose a view that takes it"
    )


def end_values(specs: Mapping[str, ArraySpec], is_terminal: bool) -> dict[str, Any]:
    """The values of an episode's last row by path that are not 0, as far as the columns have them: flags, and discounts of 1 where it goes on."""
    ends = {IS_LAST: True, IS_TERMINAL: is_terminal}
    values: dict[str, Any] = {flag: ends[flag] for flag in ends if flag in specs}
    for path, spec in specs.items():
        if not is_terminal and is_under(path, DISCOUNT) and spec.shape == () and spec.dtype.kind == "f":
            values[path] = spec.dtype.type(1)
    return values


def cut_columns(columns: Mapping[str, Array], max_steps: int | None) -> list[dict[str, Array]]:
    """Cuts a whole episode, path -> [T + 1, ...], into parts of at most `max_steps` transitions, as a writer cuts one that is appended."""
    rows = len(next(iter(columns.values())))
    is_uneven = any(len(column) != rows for column in columns.values())  # refused whole where episodes are judged
    if max_steps is None or rows - 1 <= max_steps or is_uneven:
        return [dict(columns)]
    last_values = end_values({path: column_spec(column) for path, column in columns.items()}, False)
    parts = []
    for start in range(0, rows - 1, max_steps):
        # Copies, for the row at a cut is the last of one part and the first of the next.
        part = {path: column[start : start + max_steps + 1].copy() for path, column in columns.items()}
        if start and IS_FIRST in part:
            part[IS_FIRST][0] = True
        if start + max_steps < rows - 1:
            for path, column in part.items():
                if not is_under(path, OBSERVATION):
                    column[-1] = last_values.get(path, b"" if column.dtype.kind == "O" else 0)
        parts.append(part)
    return parts


_FIRST_ROOM = 128
_PLAIN: Mapping[str, type] = {"f": float, "b": bool}
"""Kind of a dtype -> the Python type whose values every column of it takes as they are; a whole number is checked against the bounds."""


class _ColumnRows:
    """The rows of one column.

    Attributes:
      array: [room, ...].
      sizes: the shape of a row.
    """

    __slots__ = ("array", "path", "sizes", "spec")

    def __init__(self, path: str, spec: ArraySpec, room: int) -> None:
        self.path, self.spec = path, spec
        self.sizes = _sizes(spec)
        self.array: Array = np.empty((room, *self.sizes), spec.dtype.type)


class RecordedColumns:
    """The rows of one episode. Values are copied in.

    Args:
      layout: how steps are nested.
      specs: path -> spec of every column of the layout, of fixed shapes.
      most_bytes: of all arrays.
      room: rows to begin with; 0 for a few.

    Attributes:
      rows: so far.
      room: rows for which there is memory.
    """

    def __init__(self, layout: StepLayout, specs: Mapping[str, ArraySpec], most_bytes: int, room: int = 0) -> None:
        self.rows = 0
        self.layout, self.specs = layout, specs
        row_bytes = sum(spec.dtype.itemsize * int(np.prod(_sizes(spec))) for spec in specs.values())
        self._most_bytes, self._most_rows = most_bytes, max(2, most_bytes // max(1, row_bytes))
        self.room = min(room or _FIRST_ROOM, self._most_rows)
        self._columns = [_ColumnRows(path, specs[path], self.room) for path in layout.paths]
        self._is_given_away = False
        self._set_fast()

    def append(self, step: Any) -> None:
        """Appends a step.

        Raises ConfigError, and changes nothing, if its structure, a dtype or a shape differs, or it is one too many.
        """
        self.append_row(self.layout.values(step))

    def append_row(self, values: Sequence[Any]) -> None:
        """Appends the values of a step, in the order of the layout's paths. Raises as `append` does."""
        row = self.rows
        if row == self.room:
            self._grow()
        for value, (array, scalar, number, dtype, sizes, column) in zip(values, self._fast):
            # `is`: numpy's own dtypes are single objects, and a comparison would cost more; whatever else is equal takes the slow way.
            kind = type(value)
            if (
                kind is scalar
                or kind is number
                or (kind is np.ndarray and value.dtype is dtype and value.shape == sizes)
            ):
                array[row] = value
            else:
                array[row] = value_for(column.path, value, column.spec)
        self.rows = row + 1

    def append_values(self, values: Mapping[str, Any]) -> None:
        """Appends values by path; columns without one get 0, False or empty text. Raises as `append` does."""
        if self.rows == self.room:
            self._grow()
        for column in self._columns:
            nothing = b"" if column.spec.dtype.kind == "O" else 0
            is_given = column.path in values
            column.array[self.rows] = value_for(column.path, values[column.path], column.spec) if is_given else nothing
        self.rows += 1

    def last(self, path: str) -> Any:
        """The last row of a column."""
        return next(column.array[self.rows - 1] for column in self._columns if column.path == path)

    def finished(self) -> dict[str, Array]:
        """Path -> [rows, ...]. The arrays may be given away: append nothing before `begin`."""
        rows = self.rows
        self._is_given_away = rows * 2 >= self.room
        if self._is_given_away:
            return {column.path: column.array[:rows] for column in self._columns}
        return {column.path: column.array[:rows].copy() for column in self._columns}

    def begin(self) -> None:
        """Begins another episode with as much room; what was not finished is forgotten."""
        self.rows = 0
        if self._is_given_away:
            self._is_given_away = False
            for column in self._columns:
                column.array = np.empty((self.room, *column.sizes), column.spec.dtype.type)
            self._set_fast()

    def _grow(self) -> None:
        if self.rows >= self._most_rows:
            raise ConfigError(
                f"episode: {self.rows:,} steps fill the {self._most_bytes:,} bytes that an unfinished episode may take; end it "
                "(end_episode), let long ones be cut (max_steps=...), or allow more (most_episode_bytes=...). Nothing of this step was taken"
            )
        self.room = min(2 * self.room, self._most_rows)
        for column in self._columns:
            grown = np.empty((self.room, *column.sizes), column.spec.dtype.type)
            grown[: len(column.array)] = column.array
            column.array = grown
        self._set_fast()

    def _set_fast(self) -> None:
        """Prepares what `append` compares with: a numpy scalar or array of the column's kind, a Python float where the column has floats, and a bool where
        it has these, are stored as they are; each text is checked.
        """
        self._fast: list[tuple[Array, type | None, type | None, DType | None, tuple[int, ...], _ColumnRows]] = []
        for column in self._columns:
            dtype = None if column.spec.dtype.kind == "O" else np.dtype(column.spec.dtype.type)
            scalar = None if dtype is None or column.sizes else dtype.type
            number = None if scalar is None else _PLAIN.get(column.spec.dtype.kind)
            self._fast.append((column.array, scalar, number, dtype, column.sizes, column))


def _sizes(spec: ArraySpec) -> tuple[int, ...]:
    """The shape, without None for the type checker: every size of a step's value is fixed."""
    return tuple(size for size in spec.shape if size is not None)


class _Branch(NamedTuple):
    """A container of a step, a mapping or a sequence; `children` are (key or index, branch or None) in the order of `specs.flatten`."""

    is_mapping: bool
    children: tuple[tuple[Any, Any], ...]


class StepLayout:
    """How steps are nested, learnt from one step or its spec, so that later ones are taken apart without `flatten`.

    Attributes:
      paths: of the columns, in the order of `specs.flatten`.

    Raises:
      ConfigError: not a dict, or nothing in it.
      SpecError: two columns of one path.
    """

    def __init__(self, step: Nest) -> None:
        if not isinstance(step, Mapping):
            raise ConfigError(f"step: expected a dict of the step's fields, got {type(step).__name__}")
        self.paths = tuple(flatten(step))
        if not self.paths:
            raise ConfigError("step: expected the step's fields, got none")
        self._root = _branch(step)
        keys = [key for key, inner in self._root.children if inner is None]
        is_flat = len(keys) == len(self._root.children)
        self._of_keys = itemgetter(*keys) if is_flat and len(keys) > 1 else None

    def values(self, step: Nest) -> Sequence[Any]:
        """The values of a step, in the order of `paths`; raises ConfigError with the differences if it is nested in another way."""
        if self._of_keys is not None and type(step) is dict and len(step) == len(self.paths):
            try:
                values_of_keys: tuple[Any, ...] = self._of_keys(step)
            except KeyError:
                raise self._difference(step) from None
            return values_of_keys
        values: list[Any] = []
        if not _collect(self._root, step, values):
            raise self._difference(step)
        return values

    def _difference(self, step: Nest) -> ConfigError:
        if not isinstance(step, Mapping):
            return ConfigError(f"step: expected a dict of the step's fields, got {type(step).__name__}")
        columns = flatten(step)
        lines = [f'column "{path}" is not there' for path in self.paths if path not in columns]
        lines += [f'column "{path}" was not there' for path in columns if path not in self.paths]
        listed = "; ".join(lines) or "lists, tuples and dicts are nested in another way"
        return ConfigError(
            f"step: differs from the first one: {listed}. Expected {', '.join(self.paths)}. Nothing of this step was taken"
        )


def _branch(nest: Nest) -> Any:
    if isinstance(nest, Mapping):
        return _Branch(True, tuple((key, _branch(nest[key])) for key in sorted(nest)))
    if isinstance(nest, (list, tuple)):
        return _Branch(False, tuple((place, _branch(child)) for place, child in enumerate(nest)))
    return None


def _collect(branch: _Branch, nest: Nest, values: list[Any]) -> bool:
    """Appends the values of a container; False if it is nested in another way."""
    kinds = (Mapping,) if branch.is_mapping else (list, tuple)
    if not isinstance(nest, kinds) or len(nest) != len(branch.children):
        return False
    for key, inner in branch.children:
        if branch.is_mapping and key not in nest:
            return False
        child = nest[key]
        if inner is None:
            if isinstance(child, (Mapping, list, tuple)):
                return False
            values.append(child)
        elif not _collect(inner, child, values):
            return False
    return True


DType = np.dtype[Any]

_TEXT = np.dtype(object)
_FLOATS = tuple(np.dtype(kind) for kind in ("f4", "f8", "f2"))
_INTEGERS = tuple(np.dtype(kind) for kind in ("i8", "i4", "u1", "i2", "i1", "u2", "u4", "u8"))


def spec_of_value(path: str, value: Any) -> tuple[ArraySpec, Sequence[DType]]:
    """The spec of a column that begins with this value, and other possible dtypes.

    Raises ConfigError if no column can hold the value.
    """
    if isinstance(value, (str, bytes)):
        return ArraySpec((), _TEXT), ()
    if isinstance(value, bool):
        return ArraySpec((), np.dtype(bool)), ()
    if isinstance(value, int):
        return ArraySpec((), _INTEGERS[0]), (*_INTEGERS, *_FLOATS)
    if isinstance(value, float):
        return ArraySpec((), _FLOATS[0] if type(value) is float else np.dtype(np.float64)), _FLOATS
    spec = column_spec(_as_array(path, value)[None])
    try:
        wire_number(spec.dtype)
    except WireError as error:
        raise ConfigError(f'step: column "{path}": {error}') from None
    return ArraySpec(spec.shape, np.dtype(spec.dtype.type)), ()  # in the byte order of the machine


def value_for(path: str, value: Any, spec: ArraySpec) -> Any:
    """The value as it is put into a column of this spec.

    Raises ConfigError if its dtype or shape differs, or the number does not fit.
    """
    if spec.shape == () and isinstance(value, (float, int)) and not isinstance(value, bool):
        if is_float(spec.dtype):
            try:
                return value if isinstance(value, float) else float(value)
            except OverflowError:
                raise ConfigError(
                    f'step: column "{path}": the number is larger than any float. Nothing of this step was taken'
                ) from None
        if isinstance(value, int) and spec.dtype.kind in "iu":
            bounds = np.iinfo(spec.dtype)
            if not bounds.min <= value <= bounds.max:
                raise ConfigError(
                    f'step: column "{path}" is {spec}, which holds {bounds.min} to {bounds.max}; got {value}. Nothing of this step was taken'
                )
            return int(value)
    is_text = spec.dtype.kind == "O"
    if is_text and spec.shape == () and isinstance(value, (str, bytes)):
        return value.encode() if isinstance(value, str) else bytes(value)
    own, _ = spec_of_value(path, value)
    if own.shape != spec.shape or not same_dtype(own.dtype, spec.dtype):
        raise ConfigError(f'step: column "{path}": expected {spec}, got {own}. Nothing of this step was taken')
    if isinstance(value, bool):
        return value
    return _texts(path, _as_array(path, value)) if is_text else _as_array(path, value)


def _texts(path: str, array: Array) -> Any:
    """Encodes an array of str or bytes as bytes; gives one value for an array without axes."""
    texts = array.ravel().tolist()
    for text in texts:
        if not isinstance(text, (str, bytes)):
            raise ConfigError(f'step: column "{path}": expected text (bytes or str), got {type(text).__name__}')
    texts = [text.encode() if isinstance(text, str) else text for text in texts]
    return np.array(texts, object).reshape(array.shape) if array.shape else texts[0]


def _as_array(path: str, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise ConfigError(f'step: column "{path}": a masked array; fill it, or record the mask in a column of its own')
    if isinstance(value, (np.ndarray, np.generic, complex)) or hasattr(value, "__array__"):
        return np.asarray(value)
    raise ConfigError(
        f'step: column "{path}": expected a number, text or a numpy array, got {type(value).__name__}. Nothing of this step was taken'
    )
