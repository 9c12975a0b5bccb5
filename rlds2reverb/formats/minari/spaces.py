"""The JSON of Gymnasium's spaces, read and written: its leaves are the columns that are stored.

| space | column that is read |
| --- | --- |
| Box | its dtype and shape; finite bounds |
| Discrete | an int64 with bounds |
| MultiDiscrete | its dtype, the shape of `nvec`; bounds |
| MultiBinary | int8 of the shape `n` |
| Text | text |
| Dict, Tuple | columns below `key`, below `_index_0`, `_index_1`, ... |

| column | space that is written |
| --- | --- |
| numbers | Box of its dtype and shape; the bounds of the spec, or those of the dtype |
| int64 without a shape, with bounds | Discrete |
| text | Text, of the lengths and characters that were written |
| columns below `_index_0`, `_index_1`, ... | Tuple |
| columns below other keys | Dict |

Source: minari/serialization.py of Minari 0.5.4; `is_image_space` of minari/dataset/minari_storage.py.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import REAL_NUMBERS, ArraySpec
from rlds2reverb.text import shortened

TEXT = np.dtype(object)

_MOST_DEEP = 32
_MOST_LEAVES = 10_000
_MOST_VALUES = 1 << 28
_MOST_BOUNDS = 1024
"""Most values of a Box whose bounds are kept if they differ from one another; they become part of every signature."""
_LEAST_SIDE = 32


@dataclass(frozen=True)
class Leaf:
    """A column of observations or actions, below the keys of Dicts and Tuples, outermost first; a place in a Tuple is `_index_i`.

    Attributes:
      spec: of a row, according to the space.
      is_image: whether Minari stores such a Box as JPEG.
      named: for each key, whether it is of a Dict; else it is a place in a Tuple.
      space: the JSON of its space; {} where none is declared.
    """

    keys: tuple[str, ...]
    spec: ArraySpec
    is_image: bool = False
    named: tuple[bool, ...] = ()
    space: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def path(self) -> str:
        return "/".join(self.keys)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of Arrow's fields around it: those of a Tuple are bare numbers."""
        return tuple(key if named else key.removeprefix("_index_") for key, named in zip(self.keys, self.named))


@dataclass(frozen=True, eq=False)
class Members:
    """What lies in a space, by the rules of Gymnasium's `contains`.

    Attributes:
      kind: one of `_KINDS`.
      shape, dtype: of the numbers.
      low, high: [*shape] or [], the least and the greatest numbers; None without bounds.
      shortest, longest: of a text, in characters.
      characters: those that a text may have; None for all.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Array | None = None
    high: Array | None = None
    shortest: int = 0
    longest: int = 1 << 30
    characters: frozenset[str] | None = None

    def __str__(self) -> str:
        if self.kind == "Text":
            return f"Text of {self.shortest} to {self.longest} characters"
        return f"{self.kind} {self.dtype}{list(self.shape)}"

    @property
    def is_image(self) -> bool:
        """Whether Minari stores such a Box as JPEG."""
        is_large = len(self.shape) in (2, 3) and min(self.shape[:2]) >= _LEAST_SIDE
        is_full = bool(np.all(self.low == 0)) and bool(np.all(self.high == 255))
        return self.kind == "Box" and self.dtype == np.uint8 and is_large and is_full

    def may_hold(self, spec: ArraySpec) -> bool:
        """Whether values of a spec can lie in it at all: their shape, and a dtype that is cast safely."""
        if spec.image is not None:
            return self.is_image and self.shape == spec.image.shape
        if spec.shape != self.shape or (spec.dtype.kind == "O") != (self.kind == "Text"):
            return False
        if self.kind == "Discrete":
            return spec.dtype.kind in "iu" and np.can_cast(spec.dtype, self.dtype)
        return self.kind in ("Text", "MultiBinary") or np.can_cast(spec.dtype, self.dtype)

    def first_outside(self, column: Array) -> tuple[int, str, str] | None:
        """The first row of a column [T, ...] that does not lie in it: its number, what was expected, what came; None without any."""
        if self.kind == "Text":
            return next(
                ((row, *why) for row, text in enumerate(column.tolist()) if (why := self._why_not(text)) is not None),
                None,
            )
        if self.low is None or self.high is None:
            return None
        is_inside = (column >= self.low) & (column <= self.high)
        if self.kind == "MultiBinary":
            is_inside = (column == 0) | (column == 1)
        if is_inside.all():
            return None
        row, *place = (int(index) for index in np.argwhere(~is_inside)[0])
        low, high = (np.broadcast_to(bound, self.shape)[tuple(place)] for bound in (self.low, self.high))
        expected = "0 or 1" if self.kind == "MultiBinary" else f"{low} to {high}"
        return row, expected, f"{column[(row, *place)]}" + (f" at {place}" if place else "")

    def _why_not(self, text: str) -> tuple[str, str] | None:
        if not self.shortest <= len(text) <= self.longest:
            return f"{self.shortest} to {self.longest} characters", f"{len(text)} of them"
        if self.characters is None or self.characters.issuperset(text):
            return None
        odd = next(character for character in text if character not in self.characters)
        return "the characters of its Text", f"{odd!r}"


def parse_space(text: Any, where: str) -> tuple[Leaf, ...]:
    """The leaves of a space, given as JSON or decoded JSON; raises `SourceError` if it is not a known space, or has no leaf."""
    return tuple(leaf for leaf, _ in parse_members(text, where))


def parse_members(text: Any, where: str) -> tuple[tuple[Leaf, Members], ...]:
    """As `parse_space`, each leaf with what lies in its space."""
    space = text
    if isinstance(text, (str, bytes)):
        try:
            space = json.loads(text)  # Python's JSON takes Infinity, which Minari writes for bounds that are none
        except (ValueError, RecursionError) as error:
            start = shortened(str(text))
            raise SourceError(f"{where}: expected the JSON of a space: {error}; found {start}") from error
    leaves = tuple(_leaves(space, where))
    if not leaves:
        raise SourceError(f"{where}: the space has no column: its Dicts and Tuples are empty")
    for path, count in Counter(leaf.path for leaf, _ in leaves).items():
        if count > 1:
            raise SourceError(f'{where}: two columns are both named "{path}": a key holds a "/"')
    return leaves


def _leaves(
    space: Any, where: str, keys: tuple[str, ...] = (), named: tuple[bool, ...] = ()
) -> Iterator[tuple[Leaf, Members]]:
    here = "/".join((where, *keys))
    if not isinstance(space, Mapping):
        raise SourceError(f"{here}: expected a space, found {shortened(repr(space))}")
    if len(keys) > _MOST_DEEP:
        raise SourceError(f"{where}: the space is nested more than {_MOST_DEEP} deep")
    kind = space.get("type")
    if kind in ("Dict", "Tuple"):
        parts: Any = space.get("subspaces")
        if not isinstance(parts, Mapping if kind == "Dict" else list) or len(parts) > _MOST_LEAVES:
            raise SourceError(f"{here}: the space {kind} has no proper subspaces; found {shortened(repr(parts))}")
        if isinstance(parts, list):
            parts = {f"_index_{number}": below for number, below in enumerate(parts)}
        for key in parts:
            if not key.isprintable() or not all(key.split("/")):
                raise SourceError(f"{here}: the key {key!r} makes no name of a column")
        for key, below in parts.items():
            yield from _leaves(below, where, (*keys, key), (*named, kind == "Dict"))
        return
    if not isinstance(kind, str) or kind not in _KINDS:
        raise SourceError(
            f"{here}: the space {shortened(repr(kind))} is not known; there are: {', '.join(sorted((*_KINDS, 'Dict', 'Tuple')))}"
        )
    try:
        members = _members_of(kind, space)
        spec = bounded_spec(members.shape, members.dtype, members.low, members.high)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SourceError(f"{here}: the space {kind} makes no sense: {shortened(str(error))}") from error
    yield Leaf(keys, spec, members.is_image, named, space), members


_MOST_SHOWN = 16


def describe_space(text: Any) -> str:
    """A space in words, as Gymnasium prints it, given as JSON or decoded JSON; of bounds that differ only how many they are."""
    space = json.loads(text) if isinstance(text, (str, bytes)) else text
    kind, parts = space["type"], space.get("subspaces")
    if isinstance(parts, Mapping):
        return f"{kind}({', '.join(f'{key!r}: {describe_space(below)}' for key, below in parts.items())})"
    if isinstance(parts, list):
        return f"{kind}({', '.join(map(describe_space, parts))})"
    members = _members_of(kind, space)
    if kind == "Text":
        characters = "" if members.characters is None else f", charset={''.join(sorted(members.characters))}"
        return f"Text({members.shortest}, {members.longest}{characters})"
    low, high, dtype = members.low, members.high, members.dtype
    if kind == "MultiBinary":
        return f"MultiBinary({members.shape[0] if isinstance(space['n'], int) else members.shape})"
    if low is None or high is None or kind == "Box":
        return f"Box({_bounds_text(low)}, {_bounds_text(high)}, {members.shape}, {dtype})"
    start = f", start={_bounds_text(low, is_whole=True)}" if np.any(low) else ""
    kind_of_numbers = f", dtype={dtype}" if kind == "Discrete" and dtype != np.int64 else ""
    return f"{kind}({_bounds_text(high - low + 1, is_whole=True)}{start}{kind_of_numbers})"


def _bounds_text(values: Array | None, is_whole: bool = False) -> str:
    """The value that all are, else the values, or how many there are of more than 16."""
    if values is None:
        return "None"
    if not is_whole and values.size and bool(np.all(values == values.flat[0])):
        return str(values.flat[0])
    return str(values) if values.size <= _MOST_SHOWN else f"{values.size:,} bounds"


_LENGTHS = {"min_length": 0, "max_length": 1 << 30}
_KINDS = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Text")


def _members_of(kind: str, space: Mapping[str, Any]) -> Members:
    """What lies in a space, one of `_KINDS`."""
    if kind == "Text":
        shortest, longest = (
            default if space.get(key) is None else _whole(space[key]) for key, default in _LENGTHS.items()
        )
        characters = None if space.get("charset") is None else frozenset(space["charset"])
        return Members(kind, (), TEXT, shortest=shortest, longest=longest, characters=characters)
    if kind == "MultiBinary":
        sizes = space["n"]
        shape = _shape(sizes if isinstance(sizes, list) else [sizes])
        return Members(kind, shape, np.dtype(np.int8), np.array(0, np.int8), np.array(1, np.int8))
    if kind == "Box":
        dtype, shape = _dtype(space["dtype"]), _shape(space["shape"])
        low, high = (_bound(space.get(end), dtype, shape) for end in ("low", "high"))
        return Members(kind, shape, dtype, low, high)
    dtype = _dtype(space.get("dtype", "int64"))
    if kind == "MultiDiscrete":
        counts = np.array(space["nvec"], dtype)
        start = np.broadcast_to(np.array(space.get("start", 0), dtype), counts.shape)
        return Members(kind, counts.shape, dtype, start, start + counts - 1)
    first, count = _whole(space.get("start", 0)), _whole(space["n"])
    return Members(kind, (), dtype, np.array(first, dtype), np.array(first + count - 1, dtype))


def _dtype(name: Any) -> np.dtype[Any]:
    if name not in REAL_NUMBERS:
        raise ValueError(f"dtype {name!r}; expected one of {', '.join(REAL_NUMBERS)}")
    return REAL_NUMBERS[name]


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _shape(sizes: Any) -> tuple[int, ...]:
    shape = tuple(_whole(size) for size in sizes)
    if len(shape) > _MOST_DEEP or min(shape, default=0) < 0 or math.prod(shape) > _MOST_VALUES:
        raise ValueError(f"shape {shape}")
    return shape


def _bound(values: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """[*shape] or [], or None without bounds."""
    if values is None:
        return None
    bound = np.array(values, dtype)
    if bound.shape not in (shape, ()):
        raise ValueError(f"bounds of shape {bound.shape}; expected {shape}")
    return bound


def bounded_spec(shape: tuple[int, ...], dtype: np.dtype[Any], low: Any, high: Any) -> ArraySpec:
    """The spec of values of a space, with bounds if one is finite and there are not too many.

    Args:
      low, high: arrays of the shape; None without bounds.
    """
    if low is None or high is None or not low.size:
        return ArraySpec(shape, dtype)
    if dtype.kind == "f" and not (np.isfinite(low).any() or np.isfinite(high).any()):
        return ArraySpec(shape, dtype)
    if bool(np.all(low == low.flat[0])) and bool(np.all(high == high.flat[0])):
        return ArraySpec(shape, dtype, minimum=low.flat[0], maximum=high.flat[0])
    if low.size > _MOST_BOUNDS:
        return ArraySpec(shape, dtype)
    return ArraySpec(shape, dtype, minimum=low, maximum=high)


KINDS = "biuf"  # of the numbers in spaces
_INDEX = re.compile(r"_index_(\d{1,6})", re.ASCII)


@dataclass
class Texts:
    """Lengths, in characters, and all characters, sorted, of the texts of a column."""

    shortest: int = 1 << 30
    longest: int = 1
    characters: str = ""

    def take(self, texts: list[str]) -> None:
        lengths = list(map(len, texts))
        self.shortest = min(self.shortest, *lengths)
        self.longest = max(self.longest, *lengths)
        self.characters = "".join(sorted({*self.characters}.union(*texts)))

    def space(self) -> dict[str, Any]:
        return {
            "type": "Text",
            "max_length": self.longest,
            "min_length": min(self.shortest, self.longest),
            "charset": self.characters or string.ascii_letters,
        }


def is_held(spec: ArraySpec) -> bool:
    """Whether a space can have such values: numbers of one shape, or one text."""
    if spec.dtype.kind == "O":
        return spec.shape == () and spec.image is None
    if spec.dtype.newbyteorder("=").name not in REAL_NUMBERS or None in spec.shape:
        return False
    return 0 not in spec.shape[:-1]  # the lists of bounds in the JSON show no axis behind one without a size


def still_holds(space: Mapping[str, Any], spec: ArraySpec, texts: Texts) -> bool:
    """Whether a column that nothing has changed may keep the space that its dataset declares: what is stored fits it, as are the texts written."""
    try:
        members = _members_of(str(space["type"]), space)
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
    if not members.may_hold(spec):
        return False
    if members.kind != "Text" or texts == Texts():
        return True
    has_lengths = members.shortest <= texts.shortest and texts.longest <= max(members.longest, 1)
    return has_lengths and (members.characters is None or members.characters.issuperset(texts.characters))


def space_of(
    specs: Mapping[str, ArraySpec],
    texts: Mapping[str, Texts],
    above: str,
    declared: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The space of a column, or of those below a name ("observation" or "action").

    Args:
      specs: path below the name, "" for the column itself -> spec.
      texts: the written ones, by full path.
      above: the name.
      declared: the spaces of single columns that are kept as they are, by full path.
    """
    if "" in specs:
        if declared and above in declared:
            return dict(declared[above])
        spec = specs[""]
        return texts[above].space() if spec.dtype.kind == "O" and spec.image is None else _of_numbers(spec)
    parts: dict[str, dict[str, ArraySpec]] = {}
    for path, spec in specs.items():
        key, _, below = path.partition("/")
        parts.setdefault(key, {})[below] = spec
    spaces = {key: space_of(below, texts, f"{above}/{key}", declared) for key, below in parts.items()}
    places = [_INDEX.fullmatch(key) for key in spaces]
    if all(places) and sorted(int(match[1]) for match in places if match) == list(range(len(spaces))):
        return {"type": "Tuple", "subspaces": [spaces[f"_index_{place}"] for place in range(len(spaces))]}
    return {"type": "Dict", "subspaces": spaces}


def _of_numbers(spec: ArraySpec) -> dict[str, Any]:
    shape, dtype = tuple(size or 0 for size in spec.shape), spec.dtype
    if spec.image is not None:
        shape, dtype = tuple(size or 0 for size in spec.image.shape), spec.image.dtype
    low, high = _bounds(spec, dtype, shape)
    if not shape and dtype == np.int64 and spec.minimum is not None and spec.maximum is not None:
        count = int(high) - int(low) + 1
        if 0 < count < 1 << 62:
            return {"type": "Discrete", "dtype": "int64", "start": int(low), "n": count}
    return {"type": "Box", "dtype": dtype.name, "shape": list(shape), "low": low.tolist(), "high": high.tolist()}


def _bounds(spec: ArraySpec, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """[*shape] the bounds of the spec, or of the dtype if the spec has none that fit."""
    if spec.minimum is not None and spec.maximum is not None and spec.dtype.kind != "O":
        low, high = (_fitted(bound, dtype, shape) for bound in (spec.minimum, spec.maximum))
        if low is not None and high is not None:
            return low, high
    if dtype.kind == "f":
        return np.full(shape, -np.inf, dtype), np.full(shape, np.inf, dtype)
    if dtype.kind == "b":
        return np.full(shape, False), np.full(shape, True)
    return np.full(shape, np.iinfo(dtype).min, dtype), np.full(shape, np.iinfo(dtype).max, dtype)


def _fitted(bound: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array | None:
    """[*shape] a bound, given as one value or as a flat list, as in TensorFlow's protos; None if it is neither."""
    values = np.asarray(bound)
    if values.size == 1:
        values = np.broadcast_to(values.reshape(()), shape)
    if values.size != math.prod(shape) or values.dtype.kind not in KINDS:
        return None
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
    is_same = dtype.kind == "f" or bool((cast == values).all())
    return cast.reshape(shape) if is_same else None
