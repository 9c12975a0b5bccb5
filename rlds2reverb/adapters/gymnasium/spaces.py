"""Gymnasium's spaces as specs of columns, and values of spaces as nests of columns.

| space | column |
| --- | --- |
| Box | its dtype and shape; its bounds, where one is finite |
| Discrete, MultiDiscrete, MultiBinary | their dtype and shape; bounds |
| Text | text |
| Dict, Tuple | columns below `key`, below `_index_0`, `_index_1`, ..., as Minari names them |

Graph, Sequence and OneOf have values of no fixed shape: they are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.formats.minari.spaces import bounded_spec
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.text import shortened

with needing("collecting from environments", "gymnasium", ModuleNotFoundError):
    from gymnasium import spaces


def spec_of_space(space: spaces.Space[Any], where: str) -> Nest:
    """The nest of specs of a space's values.

    Args:
      space: of Gymnasium.
      where: for messages, "observation" say.

    Raises:
      ConfigError: a space whose values have no fixed shape.
    """
    if isinstance(space, spaces.Dict):
        return {key: spec_of_space(below, f"{where}/{key}") for key, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {
            f"_index_{place}": spec_of_space(below, f"{where}/_index_{place}")
            for place, below in enumerate(space.spaces)
        }
    if isinstance(space, spaces.Text):
        return ArraySpec((), np.dtype(object))
    if isinstance(space, spaces.Box):
        return bounded_spec(space.shape, np.dtype(space.dtype), space.low, space.high)
    if isinstance(space, spaces.Discrete):
        dtype = np.dtype(space.dtype)
        first, last = int(space.start), int(space.start) + int(space.n) - 1
        return ArraySpec((), dtype, minimum=dtype.type(first), maximum=dtype.type(last))
    if isinstance(space, spaces.MultiDiscrete):
        return bounded_spec(space.shape, np.dtype(space.dtype), space.start, space.start + space.nvec - 1)
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, np.dtype(space.dtype), minimum=np.int8(0), maximum=np.int8(1))
    raise ConfigError(
        f"{where}: the space {type(space).__name__} has values of no fixed shape; expected Box, Discrete, MultiDiscrete, MultiBinary, Text, and "
        "Dict and Tuple of these. Pad the values by a wrapper of the environment, or give another space and a step callback that makes its values"
    )


def columns_of_space(space: spaces.Space[Any]) -> Callable[[Any], Nest] | None:
    """A function from a value of a space to its nest of columns; None where the value is that nest already, as everywhere without a Tuple."""
    if isinstance(space, spaces.Tuple):
        parts = [(f"_index_{place}", columns_of_space(below)) for place, below in enumerate(space.spaces)]

        def columns_of(value: Any) -> Nest:
            if not isinstance(value, (tuple, list)) or len(value) != len(parts):
                raise ConfigError(
                    f"a value of a Tuple space: expected {len(parts)} parts, got {shortened(repr(value))}"
                )
            return {name: _apply(of, part) for (name, of), part in zip(parts, value)}

        return columns_of
    if isinstance(space, spaces.Dict):
        below = {key: columns_of_space(part) for key, part in space.spaces.items()}
        if any(below.values()):
            return lambda value: {key: _apply(below.get(key), part) for key, part in value.items()}
    return None


def _apply(function: Callable[[Any], Nest] | None, value: Any) -> Nest:
    return value if function is None else function(value)
