"""Filters as data: which episodes and which of their rows are read. Each class is a rule of `filtered`, made of what people write.

| rule | takes out |
| --- | --- |
| `Exclude` | episodes by their names, or by the dataset's own names of them |
| `Where` | episodes of which a condition does not hold |
| `Function` | what a function of the user's takes out: episodes, or rows |
| `KeepRanges` | rows outside of the ranges of a file |
| `WhereStep` | rows of which a condition does not hold |
| `Idle` | rows in which nothing moves, where there are many in a row |

A condition is `PATH`, `!PATH`, or `TERM SIGN VALUE` without spaces or with them:

| part | is |
| --- | --- |
| PATH | metadata of the episode, a column, or all columns of numbers below it; `metadata/PATH` for the former only; `length` for the number of rows |
| TERM | PATH, `|PATH|`, `any(PATH)`, `min(PATH)`, `max(PATH)`, `mean(PATH)`, `sum(PATH)`, `first(PATH)`, `last(PATH)` |
| SIGN | `=`, `!=`, `<`, `<=`, `>`, `>=` |
| VALUE | a number, `true`, `false`, or a text, in which `*` stands for any signs |

It holds if it holds of every number of every row (of `any(PATH)`: of some). Of a row, `sum` and its like are over the numbers of the row. PATH alone
holds where there is a text that is not empty or a number that is not 0, in some row; `!PATH` where that is not so. NaN fulfils no comparison.

The last row of an episode has no action, reward and discount of its own. So where a rule of rows looks at these, the last row stays or goes with the
row before it. Where it has (`last_step="repeat"`), a condition asks it as any other.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import ACTION, DISCOUNT, METADATA, REWARD, Array, Episode, columns_under, is_content, is_under
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.filtered import Rule
from rlds2reverb.formats.functions import code_digest, import_function, name_of_function
from rlds2reverb.formats.identity import text_of
from rlds2reverb.formats.source import Source, columns_of, metadata_spec_of
from rlds2reverb.specs import flatten
from rlds2reverb.text import did_you_mean, shortened

LENGTH = "length"

_FILTER = "filter (--filter)"

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_ABSOLUTE, _ANY = "abs", "any"
_OVER: dict[str, Callable[..., Any]] = {"min": np.min, "max": np.max, "mean": np.mean, "sum": np.sum}
_ENDS = {"first": 0, "last": -1}
_FUNCTIONS = (_ANY, *_OVER, *_ENDS)
_CONDITION = re.compile(
    r"\s*(?P<term>\|[^|]+\||\w+\([^()]+\)|[^<>=!|()]+?)\s*(?P<sign><=|>=|!=|==?|<|>)\s*(?P<value>.*?)\s*"
)
_BARE = re.compile(r"\s*(?P<not>!?)\s*(?P<path>[^<>=!|()]+?)\s*")
_CALL = re.compile(r"(?P<function>\w+)\(\s*(?P<path>[^()]+?)\s*\)")
_OF_A_STEP = (ACTION, REWARD, DISCOUNT)


@dataclass(frozen=True)
class Condition:
    """A condition of an episode, or of its rows.

    Attributes:
      written: as people wrote it.
      path: of metadata, a column or a nest of columns, or `LENGTH`.
      function: "abs", one of `_FUNCTIONS`, or "".
      sign: one of `_SIGNS`; "" for a path alone, "!" for its opposite.
      value: what it is compared with.
    """

    written: str
    path: str
    function: str = ""
    sign: str = ""
    value: bool | float | str = ""

    @staticmethod
    def of(written: object, option: str) -> Condition:
        """Parses a condition; raises ConfigError if it is none."""
        where = f"{option} {shortened(repr(written))}"
        if not isinstance(written, str):
            raise ConfigError(f'{where}: expected a condition such as "success" or "|action|<=1"')
        if (bare := _BARE.fullmatch(written)) is not None:
            return Condition(written.strip(), bare["path"], sign=bare["not"])
        match = _CONDITION.fullmatch(written)
        if match is None or not match["value"]:
            raise ConfigError(
                f"{where}: expected PATH, !PATH, or TERM SIGN VALUE such as |action|<=1, where SIGN is one of {', '.join(_SIGNS)}"
            )
        path, function = match["term"], ""
        if path.startswith("|"):
            path, function = path.strip("|").strip(), _ABSOLUTE
        elif (call := _CALL.fullmatch(path)) is not None:
            path, function = call["path"], call["function"]
            if function not in _FUNCTIONS:
                raise ConfigError(
                    f"{where}: no function {function}; there are {', '.join(_FUNCTIONS)}{did_you_mean(function, _FUNCTIONS)}"
                )
        sign, value = match["sign"].replace("==", "="), _value_of(match["value"])
        if isinstance(value, str) and sign not in ("=", "!="):
            raise ConfigError(f'{where}: expected a number behind {sign}, got "{value}"')
        return Condition(written.strip(), path, function, sign, value)

    @property
    def is_of_a_step(self) -> bool:
        """Whether the last row of an episode has no value of its own."""
        return any(is_under(self.path, name) for name in _OF_A_STEP)

    def columns(self, source: Source, option: str, is_of_rows: bool = False) -> Collection[str]:
        """The columns that it looks at; () for metadata. Raises `SourceError` if the source has neither."""
        specs = columns_of(source.spec(), source.name)
        metadata = {} if is_of_rows else flatten(metadata_spec_of(source))
        if (self.path == LENGTH and not is_of_rows) or self.path.removeprefix(f"{METADATA}/") in metadata:
            return ()
        columns = [
            path for path, spec in specs.items() if is_under(path, self.path) and self._compares(path, spec.dtype)
        ]
        if not columns:
            there = [*metadata, *specs]
            expected = "a column" if is_of_rows else "metadata of the episodes, a column, or length"
            raise SourceError(
                f'{source.name}: {option} "{self.written}": no "{self.path}", expected {expected}{did_you_mean(self.path, there)}; '
                f"there are: {', '.join(there)}"
            )
        return columns

    def select_columns(self, episode: Episode) -> Mapping[str, Array]:
        """Those that it looks at."""
        columns = columns_under(episode.columns, self.path)
        return {path: rows for path, rows in columns.items() if self._compares(path, rows.dtype)}

    def _compares(self, path: str, dtype: np.dtype[Any]) -> bool:
        """Whether a column counts: a number is compared with the numbers of a nest, and with any column that is named itself."""
        has_number = self.sign not in ("", "!") and not isinstance(self.value, str)
        return not has_number or path == self.path or dtype.kind == "b" or _is_number(dtype)

    def holds(self, episode: Episode) -> bool:
        """Whether it holds of an episode; not if this has nothing of the kind."""
        name = self.path.removeprefix(f"{METADATA}/")
        if self.path == LENGTH:
            values = [np.array([len(episode)])]
        elif name in episode.metadata:
            values = [_rows_of_metadata(episode.metadata[name])]
        else:
            values = [*self.select_columns(episode).values()]
        if self.sign in ("", "!"):
            return any(bool(np.any(_truth(rows))) for rows in values) == (self.sign == "")
        if self.function in _ENDS:
            values = [rows[_ENDS[self.function]][None] for rows in values if len(rows)]
        if not values:
            return False
        if self.function in _OVER:
            numbers = [rows.reshape(-1) for rows in map(_numbers, values) if rows is not None and rows.size]
            return bool(numbers) and bool(self._compare(_OVER[self.function](np.concatenate(numbers))))
        held = [self._compare_values(rows).reshape(-1) for rows in values]
        return bool(np.any(np.concatenate(held)) if self.function == _ANY else np.all(np.concatenate(held)))

    def holds_of_rows(self, episode: Episode) -> Array:
        """[rows] bool."""
        columns = self.select_columns(episode)
        if self.sign in ("", "!"):
            truths = [_flat(_truth(rows)).any(axis=1) for rows in columns.values()]
            is_there: Array = np.logical_or.reduce(truths)
            return is_there if self.sign == "" else ~is_there
        if self.function in _OVER:
            flat = [_flat(rows) for rows in map(_numbers, columns.values()) if rows is not None]
            if not flat or not sum(rows.shape[1] for rows in flat):
                return np.zeros(len(episode), bool)
            joined = np.concatenate(flat, axis=1)
            totals: Array = np.asarray(self._compare(_OVER[self.function](joined, axis=1)))
            return totals
        each = [_flat(self._compare_values(rows)) for rows in columns.values()]
        over_values = np.any if self.function == _ANY else np.all
        held: Array = over_values(np.concatenate(each, axis=1), axis=1)
        return held

    def _compare_values(self, rows: Array) -> Array:
        """Of each value, bool of the rows' shape."""
        if isinstance(self.value, str) or rows.dtype.kind in "OSU":
            flat = [self._compare_text(text_of(value)) for value in rows.reshape(-1).tolist()]
            return np.array(flat, bool).reshape(rows.shape)
        numbers = _numbers(rows)
        if numbers is None:
            return np.zeros(rows.shape, bool)
        values: Array = np.asarray(self._compare(np.abs(numbers) if self.function == _ABSOLUTE else numbers))
        return values

    def _compare_text(self, text: str | None) -> bool:
        if text is None:
            return False
        if isinstance(self.value, str):
            pattern = ".*".join(map(re.escape, self.value.split("*")))
            return (re.fullmatch(pattern, text, re.DOTALL) is not None) == (self.sign == "=")
        number = _value_of(text)  # a whole number stays exact
        if isinstance(number, str):
            return self.sign == "!="
        return bool(self._compare(abs(number) if self.function == _ABSOLUTE else number))

    def _compare(self, number: Any) -> Any:
        return _SIGNS[self.sign](number, self.value) & (number == number)  # NaN fulfils none, "!=" included


def _value_of(text: str) -> bool | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _rows_of_metadata(value: Any) -> Array:
    """Makes one row, [1, ...], of a value."""
    return np.asarray(value, object if isinstance(value, (bytes, str)) else None)[None]


def _numbers(rows: Array) -> Array | None:
    """Absolute values and sums of integers stay exact, and -1 of uint8 is not 255; None for what is no number."""
    if rows.dtype.kind in "bui":
        return rows.astype(np.int64) if rows.dtype != np.uint64 else rows
    return rows if rows.dtype.kind == "f" else rows.astype(np.float32) if rows.dtype.name == "bfloat16" else None


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" or dtype.name == "bfloat16"


def _flat(rows: Array) -> Array:
    """[rows, ...] -> [rows, numbers], also without rows."""
    return rows.reshape(len(rows), int(np.prod(rows.shape[1:])))


def _truth(rows: Array) -> Array:
    if rows.dtype.kind in "OSU":
        return np.array([bool(value) for value in rows.reshape(-1).tolist()], bool).reshape(rows.shape)
    truth: Array = rows != 0
    return truth


def _with_last(kept: Array) -> Array:
    """The last row stays or goes with the row before it."""
    if len(kept) > 1:
        kept[-1] = kept[-2]
    return kept


@dataclass(frozen=True)
class Where(Rule):
    """Keeps episodes of which a condition holds."""

    condition: Condition

    @property
    def text(self) -> str:
        return f"where {self.condition.written}"

    def columns(self, source: Source) -> Collection[str]:
        return self.condition.columns(source, "where (--where)")

    def judge(self, episode: Episode) -> bool:
        return self.condition.holds(episode)


@dataclass(frozen=True)
class WhereStep(Rule):
    """Keeps rows of which a condition holds.

    Attributes:
      condition: of a row.
      is_last_real: whether the last row of an episode has an action of its own.

    Raises:
      ConfigError: the condition is of the first or the last row.
    """

    condition: Condition
    is_last_real: bool = False

    def __post_init__(self) -> None:
        if (function := self.condition.function) in _ENDS:
            raise ConfigError(
                f'where_step (--where-step) "{self.condition.written}": {function} is of an episode, expected a condition of a row; '
                "where (--where) takes it"
            )

    @property
    def text(self) -> str:
        return f"where_step {self.condition.written}"

    def columns(self, source: Source) -> Collection[str]:
        return self.condition.columns(source, "where_step (--where-step)", is_of_rows=True)

    def judge(self, episode: Episode) -> Array:
        if not self.condition.select_columns(episode):
            return np.zeros(len(episode), bool)
        kept = self.condition.holds_of_rows(episode)
        return _with_last(kept) if self.condition.is_of_a_step and not self.is_last_real else kept


@dataclass(frozen=True)
class Exclude(Rule):
    """Takes out episodes by name: the name here, or the dataset's own (`Episode.recorded_id`)."""

    names: frozenset[str]

    @staticmethod
    def of(entries: str | Sequence[str]) -> Exclude:
        """Names, or "@FILE" for the names in a file: a line each, or a list in JSON.

        Raises:
          ConfigError: a file that cannot be read, or holds something else.
        """
        names: set[str] = set()
        for entry in (entries,) if isinstance(entries, str) else entries:
            if not isinstance(entry, str) or not entry:
                raise ConfigError(f"exclude (--exclude) {entry!r}: expected the name of an episode, or @FILE")
            names.update(_names_in(Path(entry[1:])) if entry.startswith("@") else [entry])
        return Exclude(frozenset(names))

    @property
    def text(self) -> str:
        return "exclude"

    @property
    def label(self) -> str:
        return f"exclude={_digest(sorted(self.names))}"

    @property
    def needs_names(self) -> bool:
        return any(map(is_content, self.names))

    def columns(self, source: Source) -> Collection[str]:
        return ()

    @property
    def mentions(self) -> Collection[str]:
        return self.names

    def names_of(self, episode: Episode) -> Collection[str]:
        return [name for name in (episode.id, episode.recorded_id) if name is not None]

    def judge(self, episode: Episode) -> bool:
        return self.names.isdisjoint(self.names_of(episode))


def _names_in(path: Path) -> list[str]:
    try:
        text = path.expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"exclude (--exclude) {path}: cannot be read: {error}") from error
    if not text.lstrip().startswith("["):
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        names = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"exclude (--exclude) {path}: expected a list of names in JSON: {error}") from error
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"exclude (--exclude) {path}: expected a list of texts, the names of episodes")
    return list(names)


@dataclass(frozen=True, eq=False)
class KeepRanges(Rule):
    """Keeps the rows in the ranges of a file, `{key: [[start, stop), ...]}`; an episode that the file does not name goes as a whole.

    The form is openpi's, whose list for DROID has keys of two metadata with "--" between them (`recording_folderpath--file_path`) and also drops episodes without a key.
    Source: openpi 15a9616, training/droid_rlds_dataset.py.

    Attributes:
      ranges: key -> [n, 2] int64.
      by: paths of metadata, with "--" between them, that make a key; "" for the name of the episode, or the dataset's own.
    """

    ranges: Mapping[str, Array]
    by: str = ""

    @staticmethod
    def of(ranges: str | Path | Mapping[str, Any], by: str = "") -> KeepRanges:
        """Ranges, or the JSON file that has them.

        Raises:
          ConfigError: it cannot be read, or holds something else.
        """
        where = "keep_ranges (--keep-ranges)"
        values: Any = ranges
        if isinstance(ranges, (str, Path)):
            where = f"{where} {ranges}"
            try:
                values = json.loads(Path(ranges).expanduser().read_text("utf-8"), object_pairs_hook=_without_doubles)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{where}: cannot be read: {error}") from error
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: expected {{key: [[start, stop], ...]}}, got {shortened(repr(values))}")
        if not isinstance(by, str):
            raise ConfigError(f"keep_by (--keep-by) {by!r}: expected paths of metadata, with -- between them")
        return KeepRanges({str(key): _ranges_of(pairs, f'{where}: "{key}"') for key, pairs in values.items()}, by)

    @property
    def text(self) -> str:
        return "keep_ranges"

    @property
    def label(self) -> str:
        return f"keep_ranges={_digest({key: pairs.tolist() for key, pairs in self.ranges.items()})},{self.by}"

    @property
    def _paths(self) -> list[str]:
        return [path.removeprefix(f"{METADATA}/") for path in self.by.split("--")] if self.by else []

    @property
    def needs_names(self) -> bool:
        return not self.by and any(map(is_content, self.ranges))

    def columns(self, source: Source) -> Collection[str]:
        metadata = flatten(metadata_spec_of(source)) if self.by else {}
        for path in self._paths:
            if path not in metadata:
                raise SourceError(
                    f'{source.name}: keep_by (--keep-by) "{self.by}": no metadata "{path}"{did_you_mean(path, metadata)}; there are: {", ".join(metadata)}'
                )
        return ()

    @property
    def mentions(self) -> Collection[str]:
        return self.ranges

    def names_of(self, episode: Episode) -> Collection[str]:
        if not self.by:
            return [name for name in (episode.id, episode.recorded_id) if name is not None]
        texts = [text_of(episode.metadata.get(path)) for path in self._paths]
        return [] if None in texts else ["--".join(text or "" for text in texts)]

    def judge(self, episode: Episode) -> bool | Array:
        pairs = next((self.ranges[name] for name in self.names_of(episode) if name in self.ranges), None)
        if pairs is None:
            return False
        kept = np.zeros(len(episode), bool)
        for start, stop in pairs.tolist():
            kept[start:stop] = True
        return kept


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of which Python's reader would keep the last of two equal keys; raises ValueError."""
    values = dict(pairs)
    if len(values) < len(pairs):
        key = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"the key {shortened(repr(key))} stands twice")
    return values


def _ranges_of(pairs: Any, where: str) -> Array:
    ranges = np.array(pairs if isinstance(pairs, list) else None, object)
    is_whole = ranges.size == 0 or (
        ranges.ndim == 2
        and ranges.shape[1] == 2
        and all(isinstance(row, int) and not isinstance(row, bool) for row in ranges.reshape(-1))
    )
    if not is_whole or any(not 0 <= start <= stop for start, stop in ranges.reshape(-1, 2)):
        raise ConfigError(
            f"{where}: expected [[start, stop], ...] of rows, with 0 <= start <= stop, got {shortened(repr(pairs))}"
        )
    return ranges.reshape(-1, 2).astype(np.int64)


@dataclass(frozen=True)
class Idle(Rule):
    """Takes out rows in which nothing moves, where at least `steps` of them stand side by side.

    Attributes:
      column: a column of numbers, or all below it.
      steps: the shortest stretch that goes.
      eps: what counts as no motion.
      by: "change": the numbers of the next row differ by at most eps, for positions, as openpi's list for DROID was made; "value": they are at
        most eps themselves, for velocities and deltas, as OpenVLA's no-op filter for LIBERO has it.
      dims: the dimensions that count, such as the arm without its gripper; None for all.
    """

    column: str = ACTION
    steps: int = 7
    eps: float = 1e-3
    by: str = "change"
    dims: tuple[int, int] | None = None

    @staticmethod
    def of(written: object) -> Idle:
        """Parses "column=PATH,steps=N,eps=X,by=change|value,dims=A:B", every part of which may be left out; raises ConfigError."""
        where = f"idle (--idle) {shortened(repr(written))}"
        expected = f"{where}: expected column=PATH,steps=N,eps=X,by=change|value,dims=A:B"
        if not isinstance(written, str):
            raise ConfigError(expected)
        values: dict[str, Any] = {}
        for part in filter(None, map(str.strip, written.split(","))):
            name, sign, value = part.partition("=")
            if not sign or name not in _IDLE or name in values:
                raise ConfigError(f'{expected}; got "{part}"{did_you_mean(name, _IDLE)}')
            try:
                values[name] = _IDLE[name](value)
            except ValueError as error:
                raise ConfigError(f'{expected}; got "{part}"') from error
        return Idle(**values)

    @property
    def text(self) -> str:
        dims = "" if self.dims is None else f",dims={self.dims[0]}:{self.dims[1]}"
        return f"idle column={self.column},steps={self.steps},eps={self.eps!r},by={self.by}{dims}"

    def columns(self, source: Source) -> Collection[str]:
        specs = columns_of(source.spec(), source.name)
        columns = [path for path, spec in specs.items() if is_under(path, self.column) and _is_number(spec.dtype)]
        if not columns:
            raise SourceError(
                f'{source.name}: idle (--idle): no numbers in "{self.column}"{did_you_mean(self.column, specs)}; there are: {", ".join(specs)}'
            )
        if self.dims is not None and self.dims[1] > sum(int(np.prod(specs[path].shape or (1,))) for path in columns):
            raise SourceError(
                f'{source.name}: idle (--idle): dims={self.dims[0]}:{self.dims[1]} of "{self.column}", which has fewer'
            )
        return columns

    def judge(self, episode: Episode) -> Array:
        if not len(episode):
            return np.ones(0, bool)
        columns = [rows for rows in columns_under(episode.columns, self.column).values() if _is_number(rows.dtype)]
        flat = [_flat(rows).astype(np.float64) for rows in columns]
        numbers = np.concatenate(flat, axis=1) if flat else np.ones((len(episode), 1))
        if self.dims is not None:
            numbers = numbers[:, slice(*self.dims)]
        motion = np.abs(np.diff(numbers, axis=0)) if self.by == "change" else np.abs(numbers[:-1])
        moves: Array = (~(motion <= self.eps)).any(axis=1)  # NaN moves
        moves = np.append(moves, moves[-1:] if len(moves) else [True])  # the last row goes with the row before it
        edges = np.flatnonzero(np.diff(moves, prepend=True, append=True))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist()):
            if stop - start < self.steps:
                moves[start:stop] = True
        return moves


def _dims_of(text: str) -> tuple[int, int]:
    start, sign, stop = text.partition(":")
    if not sign or not 0 <= int(start) < int(stop):
        raise ValueError
    return int(start), int(stop)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _bound(text: str) -> float:
    if not 0 <= float(text) < float("inf"):
        raise ValueError
    return float(text)


def _word(text: str) -> str:
    if text not in ("change", "value"):
        raise ValueError
    return text


def _path(text: str) -> str:
    if not text:
        raise ValueError
    return text


_IDLE: dict[str, Callable[[str], Any]] = {
    "column": _path,
    "steps": _positive,
    "eps": _bound,
    "by": _word,
    "dims": _dims_of,
}


@dataclass(frozen=True)
class Function(Rule):
    """A function of the user's: episode -> whether to keep it, or [rows] bool, which rows. Workers import it by its name.

    Attributes:
      name: "module:function".
      code: digest of its source text, by which a reading knows whether it continues with the same one.
    """

    name: str
    code: str = field(default="", repr=False)

    @staticmethod
    def of(function: object) -> Function:
        """A function, or its name.

        Raises:
          ConfigError: it cannot be imported by a name.
        """
        name = function if isinstance(function, str) else name_of_function(function, _FILTER)
        return Function(name, code_digest(import_function(name, _FILTER)))

    @property
    def text(self) -> str:
        return f"filter {self.name}"

    @property
    def label(self) -> str:
        return f"filter={self.name}@{self.code}"

    def columns(self, source: Source) -> Collection[str] | None:
        """Those in the function's attribute `columns`, paths of columns or nests; all without it."""
        function = import_function(self.name, _FILTER)
        if (code := code_digest(function)) != self.code:
            raise ConfigError(
                f"filter (--filter) {self.name}: is another function here than where the work was started: its code has the digest {code}, "
                f"expected {self.code}; every machine needs the same module"
            )
        paths = getattr(function, "columns", None)
        if paths is None:
            return None
        specs = columns_of(source.spec(), source.name)
        return [path for path in specs if any(is_under(path, name) for name in paths)]

    def judge(self, episode: Episode) -> bool | Array:
        try:
            verdict = import_function(self.name, _FILTER)(episode)
        except Exception as error:
            raise ConfigError(
                f"filter (--filter) {self.name}: {type(error).__name__} in episode {episode.title}: {error}"
            ) from error
        if isinstance(verdict, (bool, np.bool_)):
            return bool(verdict)
        if isinstance(verdict, np.ndarray) and verdict.dtype == bool and verdict.shape == (len(episode),):
            return verdict
        got = f"{verdict.dtype}{list(verdict.shape)}" if isinstance(verdict, np.ndarray) else repr(verdict)
        raise ConfigError(
            f"filter (--filter) {self.name}: episode {episode.title}: expected True or False, or bool[{len(episode)}], got {shortened(got)}"
        )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
