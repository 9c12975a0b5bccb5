"""Column specs -> the JSON of Gymnasium's spaces.

| column | space |
| --- | --- |
| numbers | Box of its dtype and shape; the bounds of the spec, or all that the dtype has |
| int64 without a shape, with bounds | Discrete |
| text | Text, of the lengths and characters that were written |
| columns below `_index_0`, `_index_1`, ... | Tuple |
| columns below other keys | Dict |

Source: minari/serialization.py of Minari 0.5.4.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.specs import ArraySpec

KINDS = "biuf"
"""Of the numbers that spaces hold."""
_SIZES = {"f": (2, 4, 8), "b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8)}
_INDEX = re.compile(r"_index_(\d{1,6})", re.ASCII)


@dataclass
class Texts:
    """What the texts of a column are like.

    Attributes:
      shortest, longest: in characters.
      characters: all of them.
    """

    shortest: int = 1 << 30
    longest: int = 1
    characters: set[str] = field(default_factory=set)

    def take(self, texts: list[str]) -> None:
        """Takes in some more."""
        lengths = list(map(len, texts))
        self.shortest = min(self.shortest, *lengths)
        self.longest = max(self.longest, *lengths)
        self.characters.update(*texts)

    def as_state(self) -> list[Any]:
        """For JSON."""
        return [self.shortest, self.longest, "".join(sorted(self.characters))]

    @staticmethod
    def of_state(state: list[Any]) -> Texts:
        """The way back from `as_state`."""
        return Texts(state[0], state[1], set(state[2]))

    def space(self) -> dict[str, Any]:
        """The space that has them all."""
        charset = "".join(sorted(self.characters)) or string.ascii_letters
        return {
            "type": "Text",
            "max_length": self.longest,
            "min_length": min(self.shortest, self.longest),
            "charset": charset,
        }


def is_held(spec: ArraySpec) -> bool:
    """Whether a space has such values: numbers of one shape, or one text."""
    if spec.dtype.kind == "O":
        return spec.shape == () and spec.image is None
    return spec.dtype.kind in KINDS and spec.dtype.itemsize in _SIZES[spec.dtype.kind] and None not in spec.shape


def space_of(specs: Mapping[str, ArraySpec], texts: Mapping[str, Texts], above: str) -> dict[str, Any]:
    """The space of a column, or of those below a name.

    Args:
      specs: path below `above` -> spec; "" for a plain column.
      texts: full path -> what was written of a text column.
      above: "observation" or "action".
    """
    if "" in specs:
        spec = specs[""]
        return texts[above].space() if spec.dtype.kind == "O" and spec.image is None else _of_numbers(spec)
    parts: dict[str, dict[str, ArraySpec]] = {}
    for path, spec in specs.items():
        key, _, below = path.partition("/")
        parts.setdefault(key, {})[below] = spec
    made = {key: space_of(below, texts, f"{above}/{key}") for key, below in parts.items()}
    places = [_INDEX.fullmatch(key) for key in made]
    if all(places) and sorted(int(one[1]) for one in places if one) == list(range(len(made))):
        return {"type": "Tuple", "subspaces": [made[f"_index_{place}"] for place in range(len(made))]}
    return {"type": "Dict", "subspaces": made}


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
    """[*shape] the bounds of the spec, or of the dtype where the spec has none that are of such values."""
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
    """[*shape] a bound, which may be one value or a flat list of all, as TensorFlow's protos have it; None where it is neither."""
    values = np.asarray(bound)
    if values.size == 1:
        values = np.broadcast_to(values.reshape(()), shape)
    if values.size != math.prod(shape) or values.dtype.kind not in KINDS:
        return None
    with np.errstate(all="ignore"):
        made = values.astype(dtype)
    is_same = dtype.kind == "f" or bool((made == values).all())
    return made.reshape(shape) if is_same else None
