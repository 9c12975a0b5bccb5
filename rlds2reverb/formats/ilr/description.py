"""The first member of a shard, `_metadata.meta.pickle`: spaces, configuration, colour space. Read as texts, and written.

The classes that it names (Gym's spaces, the colour space) are not loaded. Source of the layout: `get_meta_dict` in
il_representations/data/write_dataset.py and `serialize_gym_space` in envs/utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.ilr.pickles import Named, pickle_value
from rlds2reverb.formats.pickles import Inert, safe_loads
from rlds2reverb.specs import ArraySpec

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


def features_of(data: bytes, where: str) -> dict[str, bytes]:
    """Feature -> its text, for those of `FEATURES` that the description has; raises `SourceError` if it is damaged."""
    content = safe_loads(data, where, CLASSES)
    if not isinstance(content, Mapping):
        raise SourceError(f"{where}: expected a dictionary with env_cfg and spaces, found a {type(content).__name__}")
    config = content.get("env_cfg")
    config = config if isinstance(config, Mapping) else {}
    color = content.get("color_space")
    texts = {
        "benchmark_name": config.get("benchmark_name"),
        "task_name": config.get("task_name"),
        "color_space": color.arguments[0] if isinstance(color, Inert) and color.arguments else color,
    }
    features = {key: str(value).encode("utf-8", "replace") for key, value in texts.items() if value is not None}
    for key in ("action_space", "observation_space"):
        if (space := _read_space(content.get(key), where, key)) is not None:
            features[key] = _json(space)
    return {**features, "env_cfg": _json({key: value for key, value in config.items() if key != "__doc__"})}


def _json(value: Any) -> bytes:
    def plain(part: Any) -> Any:
        return part.tolist() if isinstance(part, (np.ndarray, np.generic)) else str(part)

    try:
        return json.dumps(value, default=plain, skipkeys=True, sort_keys=True).encode()
    except (TypeError, ValueError):  # keys of several types
        return json.dumps(repr(value)).encode()


def _read_space(recorded: Any, where: str, key: str) -> dict[str, Any] | None:
    """A space as JSON of Minari's form; bounds that are the same everywhere as one number."""
    if recorded is None:
        return None
    arguments = recorded.arguments if isinstance(recorded, Inert) else ()
    if (
        not isinstance(recorded, Inert)
        or recorded.class_name != _INFLATE
        or len(arguments) != 2
        or not isinstance(arguments[1], Mapping)
    ):
        raise SourceError(f"{where}: {key}: expected a space as il-representations writes it")
    name = getattr(arguments[0], "class_name", "").rpartition(".")[2]
    space: dict[str, Any] = {"type": name}
    for option, value in arguments[1].items():
        if isinstance(value, np.dtype):
            space[option] = value.name
        elif option in ("low", "high"):
            bound = np.asarray(value)
            is_constant = bound.size and bool((bound == bound.flat[0]).all())
            space[option] = bound.flat[0].item() if is_constant else bound.tolist()
        else:
            space[option] = value
    return space


_COLORS = ("RGB", "GRAY")
_MODULES = {"Box": "gym.spaces.box", "Discrete": "gym.spaces.discrete"}


@dataclass(frozen=True)
class Description:
    """A description that is written, of texts by `FEATURES`, and the specs of observation and action (None for nests)."""

    texts: Mapping[str, str]
    observation: ArraySpec | None
    action: ArraySpec | None

    @property
    def needs_actions(self) -> bool:
        """Whether the number of discrete actions has to be counted."""
        space = self._space("action_space", self.action)
        return space is not None and space.get("n", 0) is None

    def data(self, actions: int) -> bytes:
        """The member's contents, with this number of discrete actions if they have to be counted."""
        action = {"n": actions, "type": "Discrete"} if self.needs_actions else self._space("action_space", self.action)
        spaces = {"action_space": action, "observation_space": self._space("observation_space", self.observation)}
        texts = _parse_json(self.texts.get("env_cfg", ""))
        config = dict(texts) if isinstance(texts, Mapping) else {}
        for key in ("benchmark_name", "task_name"):
            config[key] = self.texts.get(key, str(config.get(key, "rlds2reverb")))
        color = self.texts.get("color_space", "")
        named = Named("imitation.augment.color", "ColorSpace", (color if color in _COLORS else _COLORS[0],))
        inflated = {key: None if space is None else _pickled_space(space) for key, space in spaces.items()}
        return pickle_value({"env_cfg": config, **inflated, "color_space": named})

    def _space(self, key: str, spec: ArraySpec | None) -> dict[str, Any] | None:
        """The recorded space if it fits the spec; else one made from the spec."""
        if spec is None:
            return None
        space = _parse_json(self.texts.get(key, ""))
        if isinstance(space, Mapping) and _is_space(space, spec):
            return dict(space)
        return _space_of(spec, key == "action_space")


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_space(space: Mapping[str, Any], spec: ArraySpec) -> bool:
    """Whether a recorded space is complete and fits the spec."""
    if space.get("type") == "Discrete":
        return (
            set(space) == {"type", "n"} and isinstance(space["n"], int) and spec.dtype.kind in "iu" and not spec.shape
        )
    if spec.dtype.kind == "O" or space.get("type") != "Box" or set(space) != {"type", "low", "high", "shape", "dtype"}:
        return False
    try:
        for bound in (space["low"], space["high"]):
            np.broadcast_to(np.asarray(bound, spec.dtype), tuple(spec.shape))  # type: ignore[arg-type] # no size is free
    except (ValueError, TypeError, OverflowError):
        return False
    return bool(space["dtype"] == spec.dtype.name and space["shape"] == list(spec.shape))


def _space_of(spec: ArraySpec, is_action: bool) -> dict[str, Any] | None:
    """The widest space for the spec; None for texts, for which il-representations has no space."""
    kind = spec.dtype.kind
    if kind == "O":
        return None
    if is_action and kind in "iu" and not spec.shape:
        return {"n": None, "type": "Discrete"}
    low: Any = -np.inf
    high: Any = np.inf
    if kind in "iu":
        low, high = int(np.iinfo(spec.dtype).min), int(np.iinfo(spec.dtype).max)
    elif kind == "b":
        low, high = False, True
    return {"dtype": spec.dtype.name, "high": high, "low": low, "shape": list(spec.shape), "type": "Box"}


def _pickled_space(space: Mapping[str, Any]) -> Named:
    options: dict[str, Any] = {key: value for key, value in space.items() if key != "type"}
    if space["type"] == "Box":
        dtype, shape = np.dtype(space["dtype"]), tuple(space["shape"])
        bounds = {
            key: np.ascontiguousarray(np.broadcast_to(np.asarray(space[key], dtype), shape)) for key in ("low", "high")
        }
        options = {**bounds, "shape": shape, "dtype": dtype}
    kind = Named(_MODULES[space["type"]], space["type"])
    return Named("il_representations.envs.utils", "_inflate_object", (kind, options))
