"""How a column is made of others, as text: `concat(action/world_vector, gripper_absolute(action/gripper[0]))`.

| an expression | a row of it |
| --- | --- |
| `PATH` | the recorded column |
| `EXPRESSION[2]`, `EXPRESSION[:6]`, `EXPRESSION[-2:]` | one of the numbers along the last axis, or some of them, as Python has it |
| `NAME(EXPRESSION, ..., VALUE, ...)` | what an operation makes of it (`operations`) |

An expression is checked against the specs of the recorded columns, and then makes whole columns [T, ...] by numpy. It sees one episode, and nothing beside it:
so it makes the same of an episode wherever that is read. Of rows that filters left it makes what they are in the whole episode; only `delta` has no
next row at a gap.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.operations import KEYWORD, OPERATIONS, BadInput, EpisodeRows, Inputs, Operation, Unfit
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import did_you_mean

Specs = Mapping[str, ArraySpec]


class Unusable(SourceError):
    """A recorded column of an episode that nothing can be made of.

    Attributes:
      path: the column's.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path


class Expression(ABC):
    """What makes a column. Two are equal when they are written alike."""

    @property
    @abstractmethod
    def text(self) -> str:
        """In one way of writing; equal texts make equal columns."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """Paths of the recorded columns, in their order, each once."""

    @property
    def picks(self) -> tuple[str, ...]:
        """Paths of the recorded columns that rows are taken from as they are; () where they are changed."""
        return ()

    @property
    def lookahead(self) -> int:
        """How many rows behind its own a row is made of; the last rows of an episode, which lack them, hold zeros."""
        return 0

    @abstractmethod
    def spec(self, recorded: Specs, where: str) -> ArraySpec:
        """The spec of a row.

        Raises:
          ConfigError: a column that is not there, or is none that the operation takes; begins with `where`.
        """

    @abstractmethod
    def make(self, rows: EpisodeRows) -> Array:
        """[T, ...], of columns that are as their specs say. Raises `Unusable`."""


@dataclass(frozen=True)
class Column(Expression):
    """A recorded column."""

    path: str

    @property
    def text(self) -> str:
        return self.path

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def picks(self) -> tuple[str, ...]:
        return (self.path,)

    def spec(self, recorded: Specs, where: str) -> ArraySpec:
        if self.path not in recorded:
            below = [path for path in recorded if path.startswith(f"{self.path}/")]
            raise no_column(where, self.path, below or list(recorded), "a nest" if below else "no column")
        return recorded[self.path]

    def make(self, rows: EpisodeRows) -> Array:
        return rows.columns[self.path]


@dataclass(frozen=True)
class Part(Expression):
    """Some of the numbers along the last axis: one, or those from `start` to `stop`; see Python's slices."""

    inner: Expression
    index: int | slice

    @property
    def text(self) -> str:
        if isinstance(self.index, int):
            return f"{self.inner.text}[{self.index}]"
        start, stop = ("" if end is None else end for end in (self.index.start, self.index.stop))
        return f"{self.inner.text}[{start}:{stop}]"

    @property
    def reads(self) -> tuple[str, ...]:
        return self.inner.reads

    @property
    def lookahead(self) -> int:
        return self.inner.lookahead

    def spec(self, recorded: Specs, where: str) -> ArraySpec:
        inner = self.inner.spec(recorded, where)
        size = inner.shape[-1] if inner.shape else None
        ends = [self.index] if isinstance(self.index, int) else [self.index.start, self.index.stop]
        least = max(
            (-end if end < 0 else end + isinstance(self.index, int) for end in ends if end is not None), default=0
        )
        if size is None or size < least:
            raise ConfigError(
                f"{where}: {self.text}: expected at least {least} along the last axis of fixed size, got {inner}"
            )
        if isinstance(self.index, int):
            return ArraySpec(inner.shape[:-1], inner.dtype)
        left = len(range(size)[self.index])
        if not left:
            raise ConfigError(f"{where}: {self.text}: nothing is left of {inner}")
        return ArraySpec((*inner.shape[:-1], left), inner.dtype)

    def make(self, rows: EpisodeRows) -> Array:
        part: Array = self.inner.make(rows)[..., self.index]
        return part


@dataclass(frozen=True)
class Call(Expression):
    """What an operation makes of further expressions and values.

    Attributes:
      name: one of `OPERATIONS`.
      inputs: the expressions.
      values: name of a parameter of the operation -> its value.
    """

    name: str
    inputs: tuple[Expression, ...]
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.name]

    @property
    def text(self) -> str:
        return (
            f"{self.name}({', '.join([*(inner.text for inner in self.inputs), *self.operation.words_of(self.values)])})"
        )

    @cached_property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for inner in self.inputs for path in inner.reads))

    @property
    def picks(self) -> tuple[str, ...]:
        if self.name != "choose" or not all(inner.picks for inner in self.inputs):
            return ()
        return self.reads

    @property
    def lookahead(self) -> int:
        return max((inner.lookahead for inner in self.inputs), default=0) + self.operation.lookahead

    def spec(self, recorded: Specs, where: str) -> ArraySpec:
        specs = [inner.spec(recorded, where) for inner in self.inputs]
        try:
            return self.operation.spec(specs, **self.values)
        except Unfit as unfit:
            listed = ", ".join(f"{inner.text} {spec}" for inner, spec in zip(self.inputs, specs))
            raise ConfigError(f"{where}: {self.name}: expected {unfit}{listed and f', got {listed}'}") from None

    def make(self, rows: EpisodeRows) -> Array:
        if not (rows.is_run and self.operation.needs_whole_episode):
            return self._make(rows)
        if rows.cut is None or (whole := rows.whole(self.reads)) is None:
            raise Unusable(
                self.reads[0] if self.reads else "",
                f"{self.name} goes by all rows of an episode, and filters took some out: expected its columns as the filters saw them, and not as "
                "a function (--map) or another transform changed them; make it there, or leave the filters of rows out",
            )
        run: Array = self._make(whole)[rows.cut.start : rows.cut.stop]
        return run

    def _make(self, rows: EpisodeRows) -> Array:
        columns = [inner.make(rows) for inner in self.inputs]
        try:
            return self.operation.make(Inputs(columns, rows), **self.values)
        except BadInput as bad:
            reads = self.inputs[bad.number].reads
            raise Unusable(reads[0] if reads else "", str(bad)) from None


def no_column(where: str, path: str, there: Sequence[str], what: str = "no column") -> ConfigError:
    listed = ", ".join(there)
    return ConfigError(f'{where}: "{path}" is {what} of the steps; there are {listed}{did_you_mean(path, there)}')


# From text: a path, brackets, and commas. A name with one of the signs ( ) [ ] , cannot be written; a transform can rename it first.

_DEEPEST = 64
"""Calls and parts inside each other; each is a level of recursion."""

_TOKEN = re.compile(r"\s*([()\[\],]|[^()\[\],]+)")
_INDEX = re.compile(r"\s*(-?\d{1,6})\s*|\s*(-?\d{1,6})?\s*:\s*(-?\d{1,6})?\s*", re.ASCII)


def expression_of(text: str, where: str) -> Expression:
    """Parses an expression; raises ConfigError, which begins with `where`.

    >>> expression_of("concat( a/b[:6] ,clip(c, 0,1.0))", "here").text
    'concat(a/b[:6], clip(c, 0, 1))'
    """
    if not isinstance(text, str):
        raise ConfigError(f"{where}: {text!r}: expected an expression such as concat(PATH, PATH[:3])")
    return _Reader(text, where).read()


class _Reader:
    """Reads one expression from its beginning to its end."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where, self._depth = text, where, 0
        self._tokens = [match[1].strip() for match in _TOKEN.finditer(text)]
        self._at = 0

    def read(self) -> Expression:
        expression = self._expression()
        if self._at < len(self._tokens):
            raise self._error(f'expected its end before "{self._tokens[self._at]}"')
        return expression

    def _expression(self) -> Expression:
        before = self._depth
        self._deepen()
        word = self._word("a path or an operation")
        expression = self._call(word) if self._next("(") else self._column(word)
        while self._next("["):
            self._deepen()
            match = _INDEX.fullmatch(self._word("a number or FROM:TO between [ and ]"))
            if match is None or not self._next("]"):
                raise self._error("expected a number or FROM:TO between [ and ]")
            start, stop = (None if end is None else int(end) for end in match.groups()[1:])
            expression = Part(expression, slice(start, stop) if match[1] is None else int(match[1]))
        self._depth = before
        return expression

    def _deepen(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"expected at most {_DEEPEST} operations and brackets inside each other", self._text[:60])

    def _column(self, path: str) -> Column:
        if not path.isprintable() or not all(part.strip() for part in path.split("/")):
            raise self._error(f'"{path}" is no path of a column')
        return Column(path)

    def _call(self, name: str) -> Call:
        operation = OPERATIONS.get(name)
        if operation is None:
            raise self._error(
                f'no operation "{name}"; there are {", ".join(OPERATIONS)}{did_you_mean(name, OPERATIONS)}'
            )
        inputs: list[Expression] = []
        words: list[str] = []
        if not self._next(")"):
            while True:
                keyword = KEYWORD.fullmatch(self._tokens[self._at]) if self._at < len(self._tokens) else None
                is_column = operation.most_inputs is None or len(inputs) < operation.most_inputs
                if is_column and keyword is None:
                    inputs.append(self._expression())
                else:
                    words.append(self._word("a value"))
                if self._next(")"):
                    break
                if not self._next(","):
                    raise self._error("expected brackets in pairs, and commas between what stands in them")
        if len(inputs) < operation.least_inputs:
            raise self._error(f"expected {operation.form}")
        try:
            values = operation.values_of(words)
        except ValueError as error:
            raise self._error(f"{name}: {error}; expected {operation.form}") from None
        return Call(name, tuple(inputs), values)

    def _next(self, sign: str) -> bool:
        is_next = self._at < len(self._tokens) and self._tokens[self._at] == sign
        self._at += is_next
        return is_next

    def _word(self, expected: str) -> str:
        word = self._tokens[self._at] if self._at < len(self._tokens) else ""
        if not word or word in "()[],":
            raise self._error(f"expected {expected}" + (f' before "{word}"' if word else " at its end"))
        self._at += 1
        return word

    def _error(self, problem: str, text: str = "") -> ConfigError:
        return ConfigError(f'{self._where}: "{(text and f"{text}...") or self._text}": {problem}')
