"""Episodes of an environment loop, recorded step by step.

    OpenEpisode       one episode while it is recorded
      Steps           what steps are, found out from the first of them and from the tables
      StepLayout      where the values of a step stand, so that later steps are taken apart without looking around
      Columns         one growing array per column
    LiveSource        the episodes that have ended, as the source of a push

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

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

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
from rlds2reverb.formats.transform import transformed
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.push.options import KEEP, PushOptions
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.specs import ArraySpec, Nest, column_spec, differences, flatten, map_leaves, map_with_path, same_dtype
from rlds2reverb.views.extras import signature_of, wants_metadata
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.wire.tensors import wire_number

_NOT_OF_WRITERS = {
    "ledger": "name the episodes instead: the same names again store nothing twice",
    "again": "item keys are new anyway, unless the writer or the episode is given a name",
    "move": "an episode is written once, to one server",
    "encoded": "steps hold what the loop gives; images that are files already are text",
    "duplicates": "a writer stores every episode that it is given, each under a name of its own",
}

_AS_WRITERS_DO = {"duplicates": KEEP}
"""What is said of these is what a writer does anyway, and not refused."""


@dataclass(frozen=True)
class WriteOptions(PushOptions):
    """Everything about a writer but the server: the options of a push, and a few more. Each field is a keyword of `Client.writer`.

    Attributes:
      allow_eviction: other than in a push, items may evict others: a replay table is full most of the time. With False the writer
        stops with a CapacityError before it would evict one.
      name: names the writer's episodes, "NAME/0", "NAME/1", ...; the same steps under the same names add nothing. None for a
        name that no other writer has.
      max_steps: most transitions of an episode. A longer one is cut there, as one that was truncated, and continues as another
        episode, which begins with the observation that ended the one before; no transition is lost. None for no such cut.
      most_episode_bytes: most bytes that one unfinished episode may take; a step beyond it is refused. A value of text counts 8.
      most_waiting_bytes: most bytes of finished episodes that wait to be sent; more lets the loop wait. A single episode may be larger.
      spec: nest of `ArraySpec` of what a step holds; None to learn it from the first step.

    The options `ledger`, `again`, `move` and `encoded` of a push are refused, and `duplicates` but for "keep". `on_progress` is called
    from the writer's own thread.

    Raises:
      ConfigError: as `PushOptions`; a number out of its range, a name that is empty or no text.
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
            if getattr(self, name) and getattr(self, name) != _AS_WRITERS_DO.get(name):
                raise ConfigError(f"writer: {name} is an option of a push; {instead}")
        check_name("name", self.name)
        for name in ("max_steps", "most_episode_bytes", "most_waiting_bytes"):
            count = getattr(self, name)
            if name == "max_steps" and count is None:
                continue
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"writer: {name} {count!r}: expected a whole number of at least 1")


def check_name(option: str, name: object) -> None:
    """Refuses what names nothing.

    Raises:
      ConfigError: an empty text, or no text.
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f"writer: {option} {name!r}: expected a text that is not empty, or None")


class TakesEpisodes(Protocol):
    """What an open episode asks of its writer."""

    def steps_like(self, step: Any) -> Steps:
        """What steps are, of which this may be the first.

        Raises:
          Rlds2ReverbError: such steps do not go into the tables, or the writer has stopped.
        """

    def check(self) -> None:
        """Raises what has ended the sending."""

    def take(self, episode: Episode) -> None:
        """Takes a whole episode; raises as `EpisodeWriter.end_episode` does."""

    def check_new(self, episode_id: str) -> None:
        """Refuses the id of an episode that was there before.

        Raises:
          ConfigError: it was.
        """


class OpenEpisode:
    """An episode that steps are appended to, and after it the next one. Made by `EpisodeWriter.episode`.

    Row t holds the observation o_t, the action a_t taken at it, and what that action earned. The last row holds the final observation; its
    action and reward mean nothing.

    An episode belongs to the thread that appends its first step.

    Args:
      writer: takes the episodes.
      name: of the episodes; they are "NAME/0", "NAME/1", ...
      most_bytes, max_steps: see `WriteOptions`.
    """

    def __init__(self, writer: TakesEpisodes, name: str, most_bytes: int, max_steps: int | None) -> None:
        self._writer, self._name = writer, name
        self._most_bytes, self._max_steps = most_bytes, max_steps
        self._columns: Columns | None = None
        self._steps_spec: Steps | None = None
        self._thread = 0
        self._number = self._pieces = self._room = 0

    def __len__(self) -> int:
        """Steps of the unfinished episode, or of the unfinished part of one that is cut by max_steps."""
        return 0 if self._columns is None else self._columns.rows

    @property
    def id(self) -> str:
        """What the unfinished episode is called unless it is given a name."""
        name = f"{self._name}/{self._number}"
        return f"{name}+{self._pieces}" if self._pieces else name

    def append(self, step: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Appends a step. Its values are copied.

        Args:
          step: the fields of an RLDS step, nested or not: observation, action, reward, discount, flags and any others. The fields that
            follow from the rest may be left out: is_first, is_last, is_terminal, discount.
          fields: the same, by name.

        Raises:
          ConfigError: the step's structure, a dtype or a shape is not that of the first step, which names the column; the episode is
            too long, or another thread's. The episode is as before.
          SpecMismatch, ViewError, SourceError: such steps do not fit the tables; raised by the first one.
          InvalidEpisode: the part that max_steps cut off is bad; the step is taken, as the first of the next part.
          Rlds2ReverbError: sending has failed meanwhile; raised once.
        """
        if step is None:
            step = fields
        elif fields:
            step = {**step, **fields}
        columns = self._columns
        if columns is None:
            columns = self._begin(step)
        elif self._thread != threading.get_ident():
            self._refuse_thread()
        self._writer.check()
        if columns.rows == self._max_steps:
            self._cut(columns, step)
        else:
            columns.append(step)
            self._columns = columns

    def end_episode(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *,
        terminal: bool | None = None,
        id: str | None = None,  # noqa: A002  as `Episode.id`
        metadata: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Ends the episode, and hands it over to be sent.

        Args:
          step: the last row, of which only the observation has a meaning; what is left out of the others becomes 0, False, or empty
            text. Without any field the step appended last is the last row.
          terminal: whether the last state is a terminal one; False for an episode that was cut off (truncated). To be left out when the
            steps hold is_terminal.
          id: names the episode; the same steps under the same name add nothing.
          metadata: what is said of the whole episode, by path; for views that put it into items.
          fields: the last row's fields by name.

        Raises:
          ConfigError: no step, an unclear end, a name that was there before, a step that differs; the episode is as before.
          InvalidEpisode, ViewError: it is bad, or the view cannot cut it; the next one may begin, nothing of this one is stored.
          Rlds2ReverbError: sending has failed meanwhile; raised once.
        """
        self._writer.check()
        columns = self._open_columns()
        last = fields if step is None else {**step, **fields}
        if last:
            self._check_last(last)
        is_terminal = self._checked_terminal(columns, terminal, last)
        episode_id = self._checked_id(id)
        if last:
            self._append_last(columns, last, is_terminal)
        episode = Episode(self._finished(columns, is_terminal), metadata or {}, episode_id)
        self._forget(columns)
        self._number, self._pieces = self._number + 1, 0
        self._writer.take(episode)

    def discard_episode(self) -> int:
        """Drops the unfinished episode; returns how many steps it had. Parts that `max_steps` cut off are stored."""
        steps = len(self)
        if self._columns is not None:
            self._forget(self._columns)
            self._number, self._pieces = self._number + 1, 0
        return steps

    def _begin(self, step: Any) -> Columns:
        steps = self._steps_spec = self._writer.steps_like(step)
        self._thread = threading.get_ident()
        return Columns(steps.layout, steps.specs, self._most_bytes, self._room)

    def _forget(self, columns: Columns) -> None:
        self._room, self._columns = columns.room, None

    def _open_columns(self) -> Columns:
        if self._columns is None:
            raise ConfigError("end_episode: there is no step; append the first one before")
        if self._thread != threading.get_ident():
            self._refuse_thread()
        return self._columns

    def _refuse_thread(self) -> None:
        raise ConfigError(
            f"episode {self.id}: another thread began it, and a writer is not for several at once. Give each thread a writer of its own, or an "
            "episode of its own: writer.episode(key)"
        )

    def _cut(self, columns: Columns, step: Any) -> None:
        """Ends the episode with this step's observation, as truncated; the next part begins with this step."""
        steps = self._known_steps
        following = Columns(steps.layout, steps.specs, self._most_bytes, columns.room)
        following.append(step)  # refuses what is wrong with it
        values = zip(steps.layout.paths, steps.layout.values(step))
        self._append_last(columns, {path: value for path, value in values if is_under(path, OBSERVATION)}, False)
        episode = Episode(self._finished(columns, False), {}, self.id)
        self._pieces += 1
        self._columns = following
        self._writer.take(episode)

    @property
    def _known_steps(self) -> Steps:
        assert self._steps_spec is not None  # known since the first step
        return self._steps_spec

    def _check_last(self, last: Mapping[str, Any]) -> None:
        """Refuses a last row without an observation, or with columns that the steps do not have."""
        paths, given = self._known_steps.layout.paths, flatten(last)
        absent = [path for path in paths if is_under(path, OBSERVATION) and path not in given]
        further = [path for path in given if path not in paths]
        if absent or further:
            said = [f'column "{path}" is not there' for path in absent]
            said += [f'column "{path}" was not there before' for path in further]
            raise ConfigError(f"end_episode: {'; '.join(said)}. The episode is as before")

    def _checked_terminal(self, columns: Columns, terminal: Any, last: Mapping[str, Any]) -> bool:
        """Whether the last state is a terminal one: as the caller says, or the last row, or both alike."""
        if terminal is not None and not isinstance(terminal, (bool, np.bool_)):
            raise ConfigError(f"end_episode: terminal {terminal!r}: expected True or False")
        if IS_TERMINAL in (last or self._known_steps.specs):
            recorded = bool(np.all(last[IS_TERMINAL] if last else columns.last(IS_TERMINAL)))
            if terminal is not None and terminal != recorded:
                raise ConfigError(
                    f"end_episode: terminal={terminal}, and the last step has is_terminal {recorded}. The episode is as before"
                )
            return recorded
        if terminal is None:
            raise ConfigError(
                "end_episode: say terminal=True when the last state is a terminal one (`terminated`), terminal=False when the episode was cut "
                "off (`truncated`). The episode is as before"
            )
        return bool(terminal)

    def _checked_id(self, given: str | None) -> str:
        check_name("id", given)
        if given is None:
            return self.id
        if self._pieces:
            raise ConfigError(
                f'end_episode: id "{given}" comes too late: parts of this episode, cut by max_steps, went as {self._name}/{self._number}; name '
                "the writer instead (client.writer(..., name=...)). The episode is as before"
            )
        self._writer.check_new(given)
        return given

    def _append_last(self, columns: Columns, last: Mapping[str, Any], is_terminal: bool) -> None:
        """Appends the last row; what it does not tell becomes 0, but for the discount of an end that is not terminal, and flags."""
        specs = self._known_steps.specs
        flags = {flag: said for flag, said in ((IS_LAST, True), (IS_TERMINAL, is_terminal)) if flag in specs}
        columns.append_values({**({} if is_terminal else _discounts_of_1(specs)), **flags, **flatten(last)})

    def _finished(self, columns: Columns, is_terminal: bool) -> dict[str, Array]:
        """The episode's columns, with the flags that the steps do not hold."""
        rows = columns.rows
        made = columns.finished()
        if self._pieces and IS_FIRST in made:
            made[IS_FIRST][0] = True
        at = np.arange(rows)
        flags = {IS_FIRST: at == 0, IS_LAST: at == rows - 1, IS_TERMINAL: (at == rows - 1) & is_terminal}
        return {**made, **{flag: flags[flag] for flag in FLAGS if flag not in made}}


def _discounts_of_1(specs: Mapping[str, ArraySpec]) -> dict[str, Any]:
    return {
        path: spec.dtype.type(1)
        for path, spec in specs.items()
        if is_under(path, DISCOUNT) and spec.shape == () and spec.dtype.kind == "f"
    }


@dataclass(frozen=True)
class Steps:
    """What steps are.

    Attributes:
      layout: how they are nested.
      specs: path -> spec of a column.
      nest: one of them, whatever its leaves are.
    """

    layout: StepLayout
    specs: Mapping[str, ArraySpec]
    nest: Nest

    @property
    def spec(self) -> Nest:
        """The nest of specs."""
        return self.layout.nest(self.specs, self.nest)

    def source(self, name: str, example: Episode | None = None) -> LiveSource:
        """Such steps as a source; `example` is an episode with metadata."""
        return LiveSource(name, self.spec, example)


def steps_of(step: Nest, options: WriteOptions, info: ServerInfo) -> Steps:
    """What steps are of which this is the first. A plain number takes the dtype that makes items fit the tables, where one does.

    Raises:
      ConfigError: no dict, or a value that no column holds.
      SpecError: two columns of one path.
    """
    layout = StepLayout(step)
    found = {path: spec_of_value(path, value) for path, value in zip(layout.paths, layout.values(step))}
    nest = map_leaves(lambda _: None, step)
    specs = {path: spec for path, (spec, _) in found.items()}
    choices = {path: dtypes for path, (_, dtypes) in found.items() if dtypes}
    if choices and not wants_metadata([output.view for output in options.outputs]):
        specs = _settled(specs, choices, lambda tried: _unlike(Steps(layout, tried, nest), options, info))
    return Steps(layout, specs, nest)


def steps_of_spec(spec: Nest) -> Steps:
    """What steps of this spec are.

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


def _settled(
    specs: dict[str, ArraySpec],
    choices: Mapping[str, Sequence[DType]],
    unlike: Callable[[Mapping[str, ArraySpec]], int],
) -> dict[str, ArraySpec]:
    """The specs with those dtypes that leave the fewest differences from the tables, column by column; as they are when in doubt."""
    least = unlike(specs)
    for path, dtypes in choices.items():
        for dtype in dtypes if least else ():
            tried = {**specs, path: replace(specs[path], dtype=dtype)}
            if (found := unlike(tried)) < least:
                specs, least = tried, found
                break
    return specs


def _unlike(steps: Steps, options: WriteOptions, info: ServerInfo) -> int:
    """Differences between the items and the tables' signatures."""
    source = transformed(steps.source("steps"), options.chosen_transform)
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
    """Episodes as they are handed in; see `Source`.

    Args:
      name: what messages call it.
      step_spec: of the steps as recorded; absent flags are added.
      example: an episode with the metadata that all have; None for none.
    """

    def __init__(self, name: str, step_spec: Nest, example: Episode | None = None) -> None:
        self.name, self._example = name, example
        flags = {flag: ArraySpec((), np.dtype(bool)) for flag in FLAGS if flag not in step_spec}
        self._spec = {**step_spec, **flags}
        self._next: list[Episode] = []

    def spec(self) -> Nest:
        """The steps' spec, with all flags."""
        return self._spec

    def metadata_spec(self) -> Nest:
        """That of the example."""
        return {} if self._example is None else metadata_specs(self._example)

    def hand_in(self, episode: Episode) -> None:
        """The episode that an iterator gives next."""
        self._next.append(episode)

    def __iter__(self) -> Iterator[Episode]:
        while self._next:
            yield self._next.pop()

    def shard(self, index: int, count: int) -> Source:
        """Refuses.

        Raises:
          SourceError: always.
        """
        raise SourceError(f"{self.name}: an environment loop has no shards; got {index} of {count}")


def check_held(plan: PushPlan) -> None:
    """Refuses steps with a field of a name of its own that no item holds: it is misspelt, or written for nothing.

    Fields that every step may have (`STEP_FIELDS`) are passed over where the views take none of them.

    Raises:
      ConfigError: there is one.
    """
    lost = set.intersection(*(set(table.not_in_items) for table in plan.tables))
    held = {_field(path) for path in flatten(plan.step_spec) if path not in lost}
    unheld = sorted({_field(path) for path in lost} - held - {*STEP_FIELDS})
    if not unheld:
        return
    near = get_close_matches(unheld[0], STEP_FIELDS, 1)
    tables = ", ".join(f'"{table.name}"' for table in plan.tables)
    raise ConfigError(
        f'append: field "{unheld[0]}" is in no item of {tables}, and would be lost; {f"did you mean {near[0]}? If not, " if near else ""}'
        "leave it out, or choose a view that takes it"
    )


def _field(path: str) -> str:
    return path.partition("/")[0]


_FIRST_ROOM = 128


class _Column:
    """The rows of one column.

    Attributes:
      path, spec: of the column.
      array: [room, ...].
      plain_dtype: that of values which are taken as they are; None for text.
      scalar: the type of such values that are numpy scalars; None where there are none.
    """

    __slots__ = ("array", "path", "plain_dtype", "scalar", "spec")

    def __init__(self, path: str, spec: ArraySpec, room: int) -> None:
        self.path, self.spec = path, spec
        self.plain_dtype = None if spec.dtype.kind == "O" else np.dtype(spec.dtype.type)
        self.scalar = None if self.plain_dtype is None or spec.shape else self.plain_dtype.type
        self.array: Array = np.empty((room, *_sizes(spec)), spec.dtype.type)

    def take(self, value: Any) -> Any:
        """The value as it is put into `array`; raises as `value_for` does."""
        if self.scalar is not None and type(value) is self.scalar:
            return value
        return value_for(self.path, value, self.spec)

    def grow(self, room: int) -> None:
        grown = np.empty((room, *_sizes(self.spec)), self.spec.dtype.type)
        grown[: len(self.array)] = self.array
        self.array = grown


class Columns:
    """The rows of one episode. Values are copied in.

    Args:
      layout: how steps are nested.
      specs: path -> spec of every column of the layout, of fixed shapes.
      most_bytes: most bytes of all arrays.
      room: rows to begin with; 0 for a few.

    Attributes:
      rows: so far.
    """

    def __init__(self, layout: StepLayout, specs: Mapping[str, ArraySpec], most_bytes: int, room: int = 0) -> None:
        self.rows = 0
        self._layout, self._specs = layout, specs
        row_bytes = sum(spec.dtype.itemsize * int(np.prod(_sizes(spec))) for spec in specs.values())
        self._most_bytes, self._most_rows = most_bytes, max(2, most_bytes // max(1, row_bytes))
        self._room = min(room or _FIRST_ROOM, self._most_rows)
        self._columns = [_Column(path, specs[path], self._room) for path in layout.paths]
        self._set_fast()

    @property
    def room(self) -> int:
        """Rows for which there is memory."""
        return self._room

    def append(self, step: Any) -> None:
        """Takes a step.

        Raises:
          ConfigError: it is not as the others are, or the episode is too long; the columns are as before.
        """
        row = self.rows
        if row == self._room:
            self._grow()
        values = self._layout.values(step)
        for value, (array, dtype, shape, column) in zip(values, self._fast):
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
                array[row] = value
            else:
                array[row] = column.take(value)
        self.rows = row + 1

    def append_values(self, values: Mapping[str, Any]) -> None:
        """Takes values by path; the columns without one get 0, False or empty text. Raises as `append` does."""
        if self.rows == self._room:
            self._grow()
        for column in self._columns:
            given = column.path in values
            column.array[self.rows] = column.take(values[column.path]) if given else _nothing(column.spec)
        self.rows += 1

    def last(self, path: str) -> Any:
        """The last row of a column."""
        return next(column.array[self.rows - 1] for column in self._columns if column.path == path)

    def finished(self) -> dict[str, Array]:
        """Path -> [rows, ...]. The arrays are given away: no other step may come."""
        is_wasteful = self.rows * 2 < self._room
        return {
            column.path: column.array[: self.rows].copy() if is_wasteful else column.array[: self.rows]
            for column in self._columns
        }

    def _grow(self) -> None:
        if self.rows >= self._most_rows:
            raise ConfigError(
                f"episode: {self.rows:,} steps fill the {self._most_bytes:,} bytes that an unfinished episode may take; end it "
                "(end_episode), let long ones be cut (max_steps=...), or allow more (most_episode_bytes=...). Nothing of this step was taken"
            )
        self._room = min(2 * self._room, self._most_rows)
        for column in self._columns:
            column.grow(self._room)
        self._set_fast()

    def _set_fast(self) -> None:
        """What `append` looks at: text has no dtype that a value could have, so that each is taken by itself."""
        self._fast: list[tuple[Array, DType | None, tuple[int, ...], _Column]] = [
            (one.array, one.plain_dtype, _sizes(one.spec), one) for one in self._columns
        ]


def _sizes(spec: ArraySpec) -> tuple[int, ...]:
    """The shape; every size of a step's value is fixed."""
    return tuple(size for size in spec.shape if size is not None)


def _nothing(spec: ArraySpec) -> Any:
    return b"" if spec.dtype.kind == "O" else 0


class _Branch(NamedTuple):
    """A container of a step.

    Attributes:
      is_mapping: or a list or tuple.
      children: (key or place, its branch or None for a value), in the order of `specs.flatten`.
    """

    is_mapping: bool
    children: tuple[tuple[Any, Any], ...]


class StepLayout:
    """How steps are nested.

    Args:
      step: one of them, or its spec.

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
        self._flat = tuple(self._root.children) if all(inner is None for _, inner in self._root.children) else ()
        self._keys = tuple(key for key, _ in self._flat)

    def values(self, step: Nest) -> list[Any]:
        """The values of a step, in the order of `paths`.

        Raises:
          ConfigError: it is nested in another way; names a column.
        """
        if self._keys and type(step) is dict and len(step) == len(self._keys):
            try:
                return [step[key] for key in self._keys]
            except KeyError:
                raise self._difference(step) from None
        values: list[Any] = []
        if not _collect(self._root, step, values):
            raise self._difference(step)
        return values

    def nest(self, values: Mapping[str, Any], step: Nest) -> Nest:
        """A nest as a step of this layout is, with values by path."""
        return map_with_path(lambda path, _: values[path], step)

    def _difference(self, step: Nest) -> ConfigError:
        if not isinstance(step, Mapping):
            return ConfigError(f"step: expected a dict of the step's fields, got {type(step).__name__}")
        found = flatten(step)
        absent = [path for path in self.paths if path not in found]
        further = [path for path in found if path not in self.paths]
        said = [f'column "{path}" is not there' for path in absent]
        said += [f'column "{path}" was not there' for path in further]
        listed = "; ".join(said) or "lists, tuples and dicts are nested in another way"
        return ConfigError(
            f"step: differs from the first one: {listed}. Expected {', '.join(self.paths)}. Nothing of this step was taken"
        )


def _branch(nest: Nest) -> Any:
    """The branch of a container; None for a value."""
    if isinstance(nest, Mapping):
        return _Branch(True, tuple((key, _branch(nest[key])) for key in sorted(nest)))
    if isinstance(nest, (list, tuple)):
        return _Branch(False, tuple((place, _branch(child)) for place, child in enumerate(nest)))
    return None


def _collect(branch: _Branch, nest: Nest, values: list[Any]) -> bool:
    """Appends the values of a container; whether it is nested so."""
    wanted = (Mapping,) if branch.is_mapping else (list, tuple)
    if not isinstance(nest, wanted) or len(nest) != len(branch.children):
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
    """The spec of a column that begins with this value, and the dtypes that it might have as well.

    Raises:
      ConfigError: the value is nothing that a column holds.
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

    Raises:
      ConfigError: its dtype or shape is another one, or the number does not fit; says which column.
    """
    if spec.shape == () and isinstance(value, (float, int)) and not isinstance(value, bool):
        if spec.dtype.kind == "f" or spec.dtype.name == "bfloat16":
            return value if isinstance(value, float) else _as_float(path, value)
        if isinstance(value, int) and spec.dtype.kind in "iu":
            return _checked_integer(path, int(value), spec)
    if spec.dtype.kind == "O":
        return _text(path, value, spec)
    found = spec_of_value(path, value)[0]
    if found.shape != spec.shape or not same_dtype(found.dtype, spec.dtype):
        raise _differs(path, found, spec)
    return value if isinstance(value, bool) else _as_array(path, value)


def _as_float(path: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(
            f'step: column "{path}": the number is larger than any float. Nothing of this step was taken'
        ) from None


def _checked_integer(path: str, value: int, spec: ArraySpec) -> int:
    bounds = np.iinfo(spec.dtype)
    if not bounds.min <= value <= bounds.max:
        raise ConfigError(
            f'step: column "{path}" is {spec}, which holds {bounds.min} to {bounds.max}; got {value}. Nothing of this step was taken'
        )
    return value


def _text(path: str, value: Any, spec: ArraySpec) -> Any:
    if spec.shape == () and isinstance(value, (str, bytes)):
        return value.encode() if isinstance(value, str) else bytes(value)
    found = spec_of_value(path, value)[0]
    if found.shape != spec.shape or found.dtype != spec.dtype:
        raise _differs(path, found, spec)
    array = _as_array(path, value)
    texts = np.empty(array.size, object)
    for number, text in enumerate(array.ravel().tolist()):
        if not isinstance(text, (str, bytes)):
            raise ConfigError(f'step: column "{path}": expected text (bytes or str), got {type(text).__name__}')
        texts[number] = text.encode() if isinstance(text, str) else text
    return texts.reshape(array.shape) if spec.shape else texts[0]


def _as_array(path: str, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise ConfigError(f'step: column "{path}": a masked array; fill it, or record the mask in a column of its own')
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        return np.asarray(value)
    if isinstance(value, complex):
        return np.asarray(value)
    raise ConfigError(
        f'step: column "{path}": expected a number, text or a numpy array, got {type(value).__name__}. Nothing of this step was taken'
    )


def _differs(path: str, found: ArraySpec, wanted: ArraySpec) -> ConfigError:
    return ConfigError(f'step: column "{path}": expected {wanted}, got {found}. Nothing of this step was taken')
