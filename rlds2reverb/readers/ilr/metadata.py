"""What the first member of a shard says: spaces, configuration, colour space. As texts: features of every episode.

The classes that it names (Gym's spaces, the colour space) are not loaded. Source of the layout: `get_meta_dict` in
il_representations/data/write_dataset.py and `serialize_gym_space` in envs/utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.pickles import Inert, safe_loads

_SPACES = {"box": "Box", "discrete": "Discrete", "multi_discrete": "MultiDiscrete", "multi_binary": "MultiBinary"}
_INFLATE = "il_representations.envs.utils._inflate_object"
CLASSES = frozenset(
    {
        _INFLATE,
        "imitation.augment.color.ColorSpace",
        "il_representations.algos.augmenters.ColorSpace",
        *(f"{gym}.spaces.{module}.{name}" for gym in ("gym", "gymnasium") for module, name in _SPACES.items()),
        *(f"{gym}.spaces.{name}" for gym in ("gym", "gymnasium") for name in _SPACES.values()),
    }
)

FEATURES = ("benchmark_name", "task_name", "color_space", "action_space", "observation_space", "env_cfg")
"""The features of an episode; JSON from `action_space` on."""


def features(data: bytes, where: str) -> dict[str, bytes]:
    """Feature -> its text, of those that the metadata tells; see `FEATURES`.

    Raises:
      SourceError: it cannot be read, or is no dictionary.
    """
    found = safe_loads(data, where, CLASSES)
    if not isinstance(found, Mapping):
        raise SourceError(f"{where}: expected a dictionary with env_cfg and spaces, found a {type(found).__name__}")
    config = found.get("env_cfg")
    config = config if isinstance(config, Mapping) else {}
    told = {
        "benchmark_name": config.get("benchmark_name"),
        "task_name": config.get("task_name"),
        "color_space": _color(found.get("color_space")),
    }
    made = {key: str(value).encode("utf-8", "replace") for key, value in told.items() if value is not None}
    for key in ("action_space", "observation_space"):
        if (space := _space(found.get(key), where, key)) is not None:
            made[key] = _json(space)
    return {**made, "env_cfg": _json({key: value for key, value in config.items() if key != "__doc__"})}


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, default=_plain, skipkeys=True, sort_keys=True).encode()
    except (TypeError, ValueError):  # keys of several types
        return json.dumps(repr(value)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def _color(found: Any) -> Any:
    """An enumeration's value: RGB or GRAY."""
    return found.arguments[0] if isinstance(found, Inert) and found.arguments else found


def _space(found: Any, where: str, key: str) -> dict[str, Any] | None:
    """A space as JSON of Minari's form; bounds that are the same everywhere as one number."""
    if found is None:
        return None
    told = found.arguments if isinstance(found, Inert) else ()
    if (
        not isinstance(found, Inert)
        or found.class_name != _INFLATE
        or len(told) != 2
        or not isinstance(told[1], Mapping)
    ):
        raise SourceError(f"{where}: {key}: expected a space as il-representations writes it")
    name = getattr(told[0], "class_name", "").rpartition(".")[2]
    return {"type": name, **{option: _option(option, value) for option, value in told[1].items()}}


def _option(name: str, value: Any) -> Any:
    if isinstance(value, np.dtype):
        return value.name
    if name not in ("low", "high"):
        return value
    bound = np.asarray(value)
    return bound.flat[0].item() if bound.size and bool((bound == bound.flat[0]).all()) else bound.tolist()
