"""Operations that make a column of others: of grippers, rotations, vectors, images and text (`OPERATIONS`). `expressions` puts them together.

Where an episode holds what an operation is not defined for (NaN in a gripper, a damaged zlib string), nothing is mended: it is a `BadInput`.
"""

from __future__ import annotations

import math
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash

from rlds2reverb.episode import Array, EpisodeCut, name_of_whole
from rlds2reverb.formats.rotations import ROW_SHAPES, NoRotation, convert_rotations
from rlds2reverb.specs import REAL_NUMBERS, ArraySpec, is_number, is_plain_number, same_dtype
from rlds2reverb.text import did_you_mean

KEYWORD = re.compile(r"\s*(\w+)\s*=(.*)", re.DOTALL)


@dataclass(slots=True)  # not frozen: made for each short episode
class EpisodeRows:
    """The episode that columns are made for.

    Attributes:
      columns: path -> column, as recorded.
      count: number of rows.
      name: `Episode.id`.
      is_run: whether filters took rows of the episode out (`episode.is_run`).
      cut: `Episode.cut`.
    """

    columns: Mapping[str, Array]
    count: int
    name: str
    is_run: bool = False
    cut: EpisodeCut | None = None

    def whole(self, paths: Sequence[str]) -> EpisodeRows | None:
        """The whole episode, for these columns; None unless each of them still is the part of it that filters left."""
        if self.cut is None:
            return None
        columns, start, stop = self.cut
        for path in paths:
            if path not in columns or not _is_same_memory(columns[path][start:stop], self.columns[path]):
                return None
        return EpisodeRows(columns, max(map(len, columns.values()), default=0), self.name)


def _is_same_memory(column: Array, other: Array) -> bool:
    # Values are not compared: a changed column may equal the recorded one in the rows that are left, and differ in those that went.
    return (
        column.shape == other.shape
        and column.dtype == other.dtype
        and column.strides == other.strides
        and column.ctypes.data == other.ctypes.data
    )


class Unfit(Exception):
    """The inputs' specs are not what an operation expects; the message says what that is."""


class BadInput(Exception):
    """An episode holds rows that an operation cannot use, in the input of this number; the message says why."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


@dataclass(slots=True)  # not frozen: made for each short episode
class Inputs:
    """The columns [T, ...] of an operation's inputs, of equal length."""

    columns: Sequence[Array]
    rows: EpisodeRows

    def floats(self, number: int = 0) -> Array:
        """The input of this number as floats; see `_float_dtype`. Raises `BadInput` for integers that these do not hold exactly."""
        column = self.columns[number]
        dtype = _float_dtype(ArraySpec((), column.dtype))
        if (reason := too_large(column, dtype)) is not None:
            raise BadInput(number, reason)
        return column.astype(dtype, copy=False)

    def decided(self) -> Array:
        """The first input as floats. Raises `BadInput` also for NaN, which is neither open nor closed."""
        values = self.floats()
        if (is_nan := np.isnan(values)).any():
            row = int(np.argmax(is_nan.reshape(len(values), -1).any(axis=1)))
            raise BadInput(0, f"step {row} is nan: expected numbers that say what a gripper does")
        return values


@dataclass(frozen=True)
class _Parameter:
    """A value of an operation, such as a bound.

    Attributes:
      name: as in NAME=VALUE, and in the operation's form.
      read: text -> value; raises ValueError, which says what was expected.
      default: None where it must be given.
      is_many: whether it takes all values that are left; its value is a tuple.
      is_named: whether it is only given as NAME=VALUE.
    """

    name: str
    read: Callable[[str], Any]
    default: Any = None
    is_many: bool = False
    is_named: bool = False


def _parse_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.inf
    if not np.isfinite(value):
        raise ValueError(f'"{text}": expected a number')
    return value


def _parse_whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError(f'"{text}": expected a whole number')
    return int(text)


def _parse_size(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or not int(text):
        raise ValueError(f'"{text}": expected a size, from 1')
    return int(text)


def _parse_one_of(words: Collection[str]) -> Callable[[str], str]:
    """A parser that takes these words as they are."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f'"{text}": expected one of {", ".join(words)}{did_you_mean(text, words)}')
        return text

    return parse


_parse_rotation, _parse_dtype = _parse_one_of(ROW_SHAPES), _parse_one_of(REAL_NUMBERS)


def _written(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class Operation(ABC):
    """A function of columns. The first line of a class's docstring says to people what it does (`effect`); `x` is the first column there.

    Attributes:
      inputs: names of the columns, for `form`.
      parameters: its further values, in their order.
      is_variadic: whether it takes any number of columns, one or more.
      lookahead: see `Expression`.
      needs_whole_episode: whether a row depends on rows far from it, so that what filters take out must be seen, too.
    """

    inputs: tuple[str, ...] = ("x",)
    parameters: tuple[_Parameter, ...] = ()
    is_variadic = False
    lookahead = 0
    needs_whole_episode = False

    @abstractmethod
    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        """The spec of a row; raises `Unfit`."""

    @abstractmethod
    def make(self, inputs: Inputs, **values: Any) -> Array:
        """[T, ...]; raises `BadInput`."""

    @property
    def name(self) -> str:
        return next(name for name, operation in OPERATIONS.items() if operation is self)

    @property
    def effect(self) -> str:
        """What it does, for people."""
        return self.__doc__ or ""

    @property
    def form(self) -> str:
        """How it is written."""
        words = [*self.inputs, *(["..."] if self.is_variadic else [])]
        for parameter in self.parameters:
            value = parameter.name.upper()
            shown = (
                f"{parameter.name}={value}" if parameter.is_named else f"{value}, ..." if parameter.is_many else value
            )
            words.append(shown if parameter.default is None else f"[{shown}]")
        return f"{self.name}({', '.join(words)})"

    @property
    def least_inputs(self) -> int:
        return len(self.inputs)

    @property
    def most_inputs(self) -> int | None:
        return None if self.is_variadic else len(self.inputs)

    def values_of(self, words: Sequence[str]) -> dict[str, Any]:
        """Raises ValueError for a value that makes no sense, that is missing, or that stands twice."""
        own = {parameter.name: parameter for parameter in self.parameters}
        values: dict[str, Any] = {}
        plain: list[str] = []
        for word in words:
            keyword = KEYWORD.fullmatch(word)
            if keyword is None:
                plain.append(word)
                continue
            name, text = keyword[1], keyword[2].strip()
            if name not in own or name in values:
                raise ValueError(f'"{word}" stands twice' if name in own else f'there is no "{name}"')
            values[name] = (own[name].read(text),) if own[name].is_many else own[name].read(text)
        for parameter in self.parameters:
            if parameter.name in values or parameter.is_named:
                continue
            if parameter.is_many:
                values[parameter.name], plain = tuple(map(parameter.read, plain)), []
            elif plain:
                values[parameter.name] = parameter.read(plain.pop(0))
        if plain:
            raise ValueError(f'"{plain[0]}" is one value too many')
        for parameter in self.parameters:
            if parameter.name not in values and parameter.default is None:
                raise ValueError(f"{parameter.name.upper()} is missing")
        return {parameter.name: values.get(parameter.name, parameter.default) for parameter in self.parameters}

    def words_of(self, values: Mapping[str, Any]) -> list[str]:
        """The inverse of `values_of`, without values at the end that are their defaults."""
        words: list[str] = []
        for parameter in reversed(self.parameters):
            value = values[parameter.name]
            if parameter.is_many:
                words = [*map(_written, value), *words]
            elif words or value != parameter.default:
                words.insert(0, f"{parameter.name}={_written(value)}" if parameter.is_named else _written(value))
        return words


# What operations have in common.


def _float_dtype(spec: ArraySpec) -> np.dtype[Any]:
    """Floats stay what they are; bfloat16, integers and truth values become float32."""
    return (
        spec.dtype.newbyteorder("=") if spec.dtype.kind == "f" and is_plain_number(spec.dtype) else np.dtype(np.float32)
    )


def _check_numbers(spec: ArraySpec) -> None:
    if not is_number(spec.dtype):
        raise Unfit("numbers")


def _check_held(values: Sequence[float], dtype: np.dtype[Any]) -> None:
    """Raises `Unfit` for a number that would be infinite in floats of this dtype."""
    most = float(np.finfo(dtype).max)
    if large := [value for value in values if abs(value) > most]:
        raise Unfit(f"numbers that {dtype.name} holds, up to {most:.4g}, and not {large[0]:g}")


_MOST_BYTES = 1 << 30
"""Of a row that is made by its sizes; a row of Reverb's is smaller in any case."""


def _check_pixels(spec: ArraySpec, channels: int | None = None) -> None:
    sizes_fit = len(spec.shape) == 3 and channels in (None, spec.shape[2])
    if spec.image is not None:
        raise Unfit("pixels [height, width, channels], and not image files that are kept as they are (encoded)")
    if not is_number(spec.dtype) or not sizes_fit:
        raise Unfit(f"images [height, width, {channels or 'channels'}]")


def _vector_size(spec: ArraySpec, expected: str = "numbers, or vectors of them, of fixed size") -> int:
    """The size of a vector; a scalar is a vector of one."""
    if not is_number(spec.dtype) or len(spec.shape) > 1 or None in spec.shape:
        raise Unfit(expected)
    return (spec.shape or (1,))[0] or 0


class _OnNumbers(Operation):
    """Works on each number by itself, along the rows or not; the shape stays.

    Attributes:
      bounds: names of the parameters of which the first is not above the second; () for none.
    """

    bounds: tuple[str, ...] = ()

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        _check_numbers(specs[0])
        ends = [values[name] for name in self.bounds]
        if ends != sorted(ends):
            raise Unfit(" not above ".join(name.upper() for name in self.bounds))
        dtype = _float_dtype(specs[0])
        _check_held(list(values.values()), dtype)
        return ArraySpec(specs[0].shape, dtype)


# Grippers: 1 is open and 0 is closed in the actions of Open X-Embodiment that OpenVLA and Octo train on.


class GripperInvert(_OnNumbers):
    """1 - x: a gripper where 1 is closed becomes one where 1 is open."""

    def make(self, inputs: Inputs, **values: Any) -> Array:
        floats = inputs.floats()
        return (1 - floats).astype(floats.dtype, copy=False)


class GripperBinarize(_OnNumbers):
    """1 above OPEN (0.95), 0 below CLOSED (0.05); what lies between takes the next value that is either; without a next one, the last row's own value."""

    needs_whole_episode = True
    parameters = (_Parameter("closed", _parse_number, 0.05), _Parameter("open", _parse_number, 0.95))
    bounds = ("closed", "open")

    def make(self, inputs: Inputs, **values: Any) -> Array:
        actions = inputs.decided()
        is_open = actions > values["open"]
        is_decided = is_open | (actions < values["closed"])
        if not len(actions):
            return actions
        # The row of the next decision, looked for from the end.
        places = np.where(is_decided, np.arange(len(actions)).reshape(-1, *[1] * (actions.ndim - 1)), len(actions))
        places = np.minimum.accumulate(places[::-1], axis=0)[::-1]
        behind = np.concatenate([is_open.astype(actions.dtype), actions[-1:]])
        binary: Array = np.take_along_axis(behind, places, axis=0)
        return binary


class GripperAbsolute(_OnNumbers):
    """1 (open) after x below -THRESHOLD (0.1), 0 (closed) after x above it. Between, the state stays. It starts as the opposite of the first change, or open without any."""

    needs_whole_episode = True
    parameters = (_Parameter("threshold", _parse_number, 0.1),)

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        if values["threshold"] < 0:
            raise Unfit("a threshold of 0 or more")
        return super().spec(specs, **values)

    def make(self, inputs: Inputs, **values: Any) -> Array:
        actions = inputs.decided()
        opens, closes = actions < -values["threshold"], actions > values["threshold"]
        changes = opens | closes
        # The row of the last change, one too many, so that 0 is the start.
        places = np.where(changes, np.arange(1, len(actions) + 1).reshape(-1, *[1] * (actions.ndim - 1)), 0)
        places = np.maximum.accumulate(places, axis=0)
        first = np.take_along_axis(opens, np.argmax(changes, axis=0)[None], axis=0) if len(actions) else opens
        states = np.concatenate([~first, opens]) if len(actions) else opens
        return np.take_along_axis(states, places, axis=0).astype(actions.dtype, copy=False)


class Clip(_OnNumbers):
    """x between LOW and HIGH; what lies outside becomes the nearer of them."""

    parameters = (_Parameter("low", _parse_number), _Parameter("high", _parse_number))
    bounds = ("low", "high")

    def make(self, inputs: Inputs, **values: Any) -> Array:
        floats = inputs.floats()
        return np.clip(floats, floats.dtype.type(values["low"]), floats.dtype.type(values["high"]))


class Scale(_OnNumbers):
    """FACTOR * x + OFFSET (0), in the dtype of x."""

    parameters = (_Parameter("factor", _parse_number), _Parameter("offset", _parse_number, 0.0))

    def make(self, inputs: Inputs, **values: Any) -> Array:
        floats = inputs.floats()
        number = floats.dtype.type
        scaled: Array = floats * number(values["factor"]) + number(values["offset"])
        return scaled


class Delta(_OnNumbers):
    """The next row's x minus this row's: of a state, the motion that was reached. An episode loses its last row, which has no next one."""

    lookahead = 1

    def make(self, inputs: Inputs, **values: Any) -> Array:
        floats = inputs.floats()
        deltas = np.zeros_like(floats)
        deltas[:-1] = floats[1:] - floats[:-1]
        return deltas


# Vectors.


class Concat(Operation):
    """One vector of the numbers of all, in this order; a scalar is a vector of one. It has the widest float among them, at least float32."""

    is_variadic = True

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        joined = joined_spec(specs)
        if joined is None:
            raise Unfit("numbers, all of one rank (a scalar is a vector of one)")
        return joined

    def make(self, inputs: Inputs, **values: Any) -> Array:
        dtype = _joined_dtype(tuple(column.dtype for column in inputs.columns))
        for number, column in enumerate(inputs.columns):
            if (reason := too_large(column, dtype)) is not None:
                raise BadInput(number, reason)
        return concat_columns(inputs.columns, dtype)


class _Filled(Operation):
    """The same numbers in every row, of float32."""

    inputs = ()

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        return ArraySpec((len(self._values(**values)),), np.dtype(np.float32))

    def make(self, inputs: Inputs, **values: Any) -> Array:
        row = np.array(self._values(**values), np.float32)
        return np.broadcast_to(row, (inputs.rows.count, len(row))).copy()

    @abstractmethod
    def _values(self, **values: Any) -> Sequence[float]:
        """The numbers of a row."""


class Zeros(_Filled):
    """A vector of N zeros."""

    parameters = (_Parameter("n", _parse_size),)

    def _values(self, **values: Any) -> Sequence[float]:
        return [0.0] * values["n"]


class Constant(_Filled):
    """A vector of these numbers, the same in every row."""

    parameters = (_Parameter("value", _parse_number, is_many=True),)

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        if not values["value"]:
            raise Unfit("at least one number")
        _check_held(values["value"], np.dtype(np.float32))
        return super().spec(specs, **values)

    def _values(self, **values: Any) -> Sequence[float]:
        numbers: Sequence[float] = values["value"]
        return numbers


class Pad(Operation):
    """The vector x with zeros behind it, N numbers in all."""

    parameters = (_Parameter("n", _parse_size),)

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        if _vector_size(specs[0]) > values["n"]:
            raise Unfit(f"at most {values['n']} numbers")
        return ArraySpec((values["n"],), specs[0].dtype)

    def make(self, inputs: Inputs, **values: Any) -> Array:
        vectors = _vectors(inputs.columns[0])
        padded = np.zeros((len(vectors), values["n"]), vectors.dtype)
        padded[:, : vectors.shape[1]] = vectors
        return padded


class PadMask(Operation):
    """Which of the N numbers of pad(x, N) are numbers of x: True, and False for its padding (Octo's pad_mask, GR00T's action_mask)."""

    parameters = (_Parameter("n", _parse_size),)

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        Pad().spec(specs, **values)
        return ArraySpec((values["n"],), np.dtype(bool))

    def make(self, inputs: Inputs, **values: Any) -> Array:
        vectors = _vectors(inputs.columns[0])
        return np.broadcast_to(np.arange(values["n"]) < vectors.shape[1], (len(vectors), values["n"])).copy()


class Rotation(Operation):
    """Rotations, written in another way: xyzw, wxyz, euler, matrix, 6d_rows, 6d_columns or axis_angle."""

    parameters = (_Parameter("from", _parse_rotation), _Parameter("to", _parse_rotation))

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        shape = ROW_SHAPES[values["from"]]
        if specs[0].shape != shape or not is_number(specs[0].dtype):
            raise Unfit(f"rotations as {values['from']}, numbers[{', '.join(map(str, shape))}]")
        return ArraySpec(ROW_SHAPES[values["to"]], _float_dtype(specs[0]))

    def make(self, inputs: Inputs, **values: Any) -> Array:
        floats = inputs.floats()
        try:
            return convert_rotations(floats, values["from"], values["to"]).astype(floats.dtype)
        except NoRotation as error:
            raise BadInput(0, str(error)) from None


class Cast(Operation):
    """The same numbers in another dtype. An episode with numbers that it does not hold is a bad one."""

    parameters = (_Parameter("dtype", _parse_dtype),)

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        _check_numbers(specs[0])
        return ArraySpec(specs[0].shape, np.dtype(values["dtype"]))

    def make(self, inputs: Inputs, **values: Any) -> Array:
        column, dtype = inputs.columns[0], np.dtype(values["dtype"])
        with np.errstate(over="ignore", invalid="ignore"):
            cast = column.astype(dtype)
        if dtype.kind == "f":
            reason = too_large(column, dtype)
            is_lost = np.isinf(cast) & ~np.isinf(column.astype(np.float64))
        else:
            reason = None
            is_lost = cast.astype(column.dtype) != column
            if column.dtype.kind in "iu" and dtype.kind in "iu":  # the way there and back hides a change of sign
                is_lost |= (cast < 0) != (column < 0)
        if reason is None and is_lost.any():
            step, *place = np.argwhere(is_lost)[0]
            reason = f"step {step} has {column[(step, *place)]}: expected numbers that {dtype} holds"
        if reason is not None:
            raise BadInput(0, reason)
        return cast


class Reshape(Operation):
    """Each row with other sizes, such as a matrix for its nine numbers."""

    parameters = (_Parameter("size", _parse_size, is_many=True),)

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        sizes = [size for size in specs[0].shape if size is not None]
        numbers = math.prod(sizes) if len(sizes) == len(specs[0].shape) else None
        if numbers != math.prod(values["size"]):
            raise Unfit(f"as many values as [{', '.join(map(str, values['size']))}] holds")
        return ArraySpec(values["size"], specs[0].dtype)

    def make(self, inputs: Inputs, **values: Any) -> Array:
        return inputs.columns[0].reshape(-1, *values["size"])


# Images, and text.


class BgrToRgb(Operation):
    """Images with their three channels in the opposite order, as OpenCV has them."""

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        _check_pixels(specs[0], channels=3)
        return specs[0]

    def make(self, inputs: Inputs, **values: Any) -> Array:
        return np.ascontiguousarray(inputs.columns[0][..., ::-1])


class Rotate180(Operation):
    """Images turned by 180 degrees, such as those of LIBERO's simulator."""

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        _check_pixels(specs[0])
        return specs[0]

    def make(self, inputs: Inputs, **values: Any) -> Array:
        return np.ascontiguousarray(inputs.columns[0][:, ::-1, ::-1])


class Zlib(Operation):
    """Numbers of DTYPE (float32) and these sizes, of a string that zlib compressed; numbers of this kind stay as they are (TFDS' own zlib is decoded by the reader)."""

    parameters = (
        _Parameter("size", _parse_size, is_many=True),
        _Parameter("dtype", _parse_dtype, "float32", is_named=True),
    )

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        decoded = ArraySpec(values["size"], np.dtype(values["dtype"]))
        if math.prod(values["size"]) * decoded.dtype.itemsize > _MOST_BYTES:
            raise Unfit(f"at most {_MOST_BYTES:,} bytes in a row, and not {decoded}")
        is_text = specs[0].dtype.kind == "O" and specs[0].image is None and not specs[0].shape
        if not is_text and not (specs[0].shape == decoded.shape and same_dtype(specs[0].dtype, decoded.dtype)):
            raise Unfit(f"strings, or {decoded}")
        return decoded

    def make(self, inputs: Inputs, **values: Any) -> Array:
        column, dtype = inputs.columns[0], np.dtype(values["dtype"]).newbyteorder("<")
        if column.dtype.kind not in "OS":
            return column
        size = math.prod(values["size"]) * dtype.itemsize
        rows = [_decompress(row, text, size) for row, text in enumerate(column)]
        if dtype.kind == "b":
            _check_truth_values(rows)
        return np.frombuffer(b"".join(rows), dtype).reshape(len(column), *values["size"]).astype(values["dtype"])


def _decompress(row: int, text: Any, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(text, size + 1)  # no more than that, whatever the string says
    except (zlib.error, TypeError) as error:
        raise BadInput(0, f"step {row} is no string that zlib compressed: {error}") from None
    if len(plain) != size or not stream.eof:
        more = "more than " if len(plain) > size else ""
        raise BadInput(
            0, f"step {row} holds {more}{min(len(plain), size):,} bytes: expected {size:,} compressed by zlib"
        )
    if stream.unused_data:
        raise BadInput(
            0, f"step {row} has {len(stream.unused_data):,} bytes behind what zlib compressed: expected its end there"
        )
    return plain


def _check_truth_values(rows: Sequence[bytes]) -> None:
    for row, plain in enumerate(rows):
        if other := plain.strip(b"\0\1"):
            raise BadInput(0, f"step {row} holds a byte of {other[0]}: expected truth values, 0 or 1")


class CodesToText(Operation):
    """Text of code points (Unicode), which end at the first 0: UTF-8."""

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        if specs[0].dtype.kind not in "iu" or len(specs[0].shape) != 1:
            raise Unfit("code points, integers[n]")
        return ArraySpec((), np.dtype(object))

    def make(self, inputs: Inputs, **values: Any) -> Array:
        codes = inputs.columns[0]
        is_new = np.ones(len(codes), bool)  # most rows repeat the one before
        is_new[1:] = (codes[1:] != codes[:-1]).any(axis=1)
        texts = np.empty(len(codes), object)
        for row in range(len(codes)):
            texts[row] = _text_of(row, codes[row]) if is_new[row] else texts[row - 1]
        return texts


def _text_of(row: int, codes: Array) -> bytes:
    ends = np.flatnonzero(codes == 0)
    points = codes[: ends[0]].tolist() if len(ends) else codes.tolist()
    try:
        return "".join(map(chr, points)).encode()
    except (ValueError, OverflowError):  # UnicodeEncodeError, for surrogates, is a ValueError
        raise BadInput(0, f"step {row} has a number that is no code point of Unicode") from None


class Choose(Operation):
    """One of these columns, drawn for each episode by SEED (0) and the episode's name; of texts, one that is not empty if there is any."""

    is_variadic = True
    parameters = (_Parameter("seed", _parse_whole, 0, is_named=True),)

    def spec(self, specs: Sequence[ArraySpec], **values: Any) -> ArraySpec:
        first = specs[0]
        if any(str(spec) != str(first) or not same_dtype(spec.dtype, first.dtype) for spec in specs):
            raise Unfit("columns of one shape and dtype")
        return first

    def make(self, inputs: Inputs, **values: Any) -> Array:
        columns = inputs.columns
        if columns[0].dtype.kind in "OSU":  # an instruction is the same in all rows, so the first one decides
            columns = [column for column in columns if len(column) and len(column[0])] or columns
        # By the whole episode's name, so that its runs, its copies and later passes over it have the same camera.
        key = f"{values['seed']}|{name_of_whole(inputs.rows.name)}"
        return columns[xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) % len(columns)]


OPERATIONS: Mapping[str, Operation] = {
    "concat": Concat(),
    "zeros": Zeros(),
    "constant": Constant(),
    "pad": Pad(),
    "pad_mask": PadMask(),
    "cast": Cast(),
    "reshape": Reshape(),
    "clip": Clip(),
    "scale": Scale(),
    "gripper_invert": GripperInvert(),
    "gripper_binarize": GripperBinarize(),
    "gripper_absolute": GripperAbsolute(),
    "rotation": Rotation(),
    "delta": Delta(),
    "bgr_to_rgb": BgrToRgb(),
    "rotate_180": Rotate180(),
    "zlib": Zlib(),
    "codes_to_text": CodesToText(),
    "choose": Choose(),
}


def joined_spec(parts: Sequence[ArraySpec]) -> ArraySpec | None:
    """The spec of columns joined along the last axis, or None when they cannot be: no numbers, or shapes that do not go together.

    A scalar counts as a vector of one number. Truth values and integers become the floats of the rest; floats become the widest
    among them, at least float32. So nothing is rounded, unless integers are `too_large`.
    """
    dtypes = [part.dtype for part in parts]
    if not all(map(is_number, dtypes)):
        return None
    shapes = [part.shape or (1,) for part in parts]
    if len({shape[:-1] for shape in shapes}) > 1:
        return None
    last = [shape[-1] for shape in shapes]
    total = None if None in last else sum(size or 0 for size in last)
    return ArraySpec((*shapes[0][:-1], total), _joined_dtype(tuple(dtypes)))


@lru_cache(maxsize=256)  # asked for every episode, and short ones are many
def _joined_dtype(dtypes: tuple[np.dtype[Any], ...]) -> np.dtype[Any]:
    return np.result_type(np.float32, *(dtype for dtype in dtypes if dtype.kind == "f"))


def concat_columns(columns: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """[T] and [T, ..., n] columns -> [T, ..., sum of n], in their order."""
    return np.concatenate([_vectors(column).astype(dtype, copy=False) for column in columns], axis=-1)


def _vectors(column: Array) -> Array:
    return column[:, None] if column.ndim == 1 else column


def too_large(column: Array, dtype: np.dtype[Any]) -> str | None:
    """Why a column of integers is not exact in floats of this dtype, with the first such step; None when it is exact."""
    if column.dtype.kind not in "iu" or not column.size:
        return None
    most = 2 ** (np.finfo(dtype).nmant + 1)
    if int(column.max()) <= most and int(column.min()) >= -most:
        return None
    rows = column.reshape(len(column), -1)
    step = next(number for number, row in enumerate(rows) if int(row.max()) > most or int(row.min()) < -most)
    worst = max(map(int, rows[step]), key=abs)
    return f"step {step} has {worst}: expected integers of at most {most:,}, which {dtype.name} holds exactly"
