"""Episodes of RLlib's new stack, from the msgpack that its runners write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.readers.pickles import safe_loads
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib import names as n
from rlds2reverb.readers.rllib.batches import GOES_ON, TERMINATED, TRUNCATED, Part
from rlds2reverb.readers.rllib.store import Settings
from rlds2reverb.readers.rllib.values import Converter, Leaves, texts

_FIELDS = {n.OBS: "observations", n.ACTIONS: "actions", n.REWARDS: "rewards"}
_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    RecursionError,
    MemoryError,
    SourceError,
)
State = Mapping[str, Any]
_LATEST = 1 << 53


def state_of(data: bytes) -> State:
    """The state of an episode.

    Raises:
      BrokenEpisode: it is no msgpack, or none of an episode.
    """
    with needing("reading RLlib's episodes", "msgpack", SourceError):
        from msgpack import unpackb
    try:
        state = unpackb(data, object_hook=_decoded, strict_map_key=False)
    except _ERRORS as error:
        raise BrokenEpisode("", f"an episode that cannot be unpacked: {error}") from error
    if not isinstance(state, dict) or not {"id_", "observations", "actions", "t_started"} <= state.keys():
        raise BrokenEpisode("", "expected the state of a SingleAgentEpisode")
    return state


def _decoded(value: dict[Any, Any]) -> Any:
    """What msgpack-numpy wrote of an array or a number."""
    if b"complex" in value and b"data" in value:
        return complex(value[b"data"])
    if b"nd" not in value:
        return value
    if value.get(b"kind") == b"O":
        return safe_loads(value[b"data"], "an array of objects in an episode")
    dtype = np.dtype(value[b"type"]) if isinstance(value[b"type"], str) else None
    if dtype is None or dtype.hasobject:
        raise ValueError("an array of structures")
    array = np.frombuffer(value[b"data"], dtype)
    return array.reshape(value[b"shape"]) if value[b"nd"] else array[0]


def episode_part(state: State) -> Part:
    """What the index needs of an episode.

    Raises:
      BrokenEpisode: a field of it is not what it should be.
    """
    try:
        rows, t, ending = _length(state), int(state["t_started"]), GOES_ON
        if not 0 <= t < _LATEST:
            raise ValueError(f"t_started is {t:,}")
        if state.get("is_terminated"):
            ending = TERMINATED
        elif state.get("is_truncated"):
            ending = TRUNCATED
        outputs = [str(name) for name in state.get("extra_model_outputs") or {}]
        rewards = _rewards(state, rows)
    except (*_ERRORS, AttributeError) as error:
        raise BrokenEpisode("", f"an episode that is none: {type(error).__name__}: {error}") from error
    ended = np.full(rows, GOES_ON, np.uint8)
    ended[-1:] = ending
    agent = state.get("agent_id")
    columns = frozenset({n.OBS, n.NEXT_OBS, n.ACTIONS, n.REWARDS, n.INFOS, *outputs})
    return Part(
        rows,
        str(state.get("module_id") or ""),
        False,
        np.full(rows, str(state["id_"])),
        None if agent is None else np.full(rows, str(agent)),
        t + np.arange(rows, dtype=np.int64),
        ended,
        columns,
        rewards,
        (f"{t} of {state['id_']}", ""),
    )


def episode_columns(
    state: State, settings: Settings, where: str, wanted: frozenset[str]
) -> dict[Any, Leaves | BrokenEpisode]:
    """(0, name) -> the column [T, ...] of that name, or why it is none."""
    made: dict[Any, Leaves | BrokenEpisode] = {}
    converter, rows = _converter(settings, where), _length(state)
    outputs = state.get("extra_model_outputs") or {}
    for name in wanted - {n.OBS, n.NEXT_OBS, n.INFOS}:
        buffer = state.get(_FIELDS[name]) if name in _FIELDS else outputs.get(name)
        if buffer is not None:
            made[0, name] = _column(converter, name, buffer, rows)
    infos = _infos(state, rows)
    made[0, n.INFOS], made[0, n.NEXT_INFOS] = {"": infos[:-1]}, {"": infos[1:]}
    observations = _column(converter, n.OBS, state["observations"], rows + 1)
    made[0, n.OBS] = made[0, n.NEXT_OBS] = observations
    if not isinstance(observations, BrokenEpisode):
        made[0, n.OBS] = {path: column[:-1] for path, column in observations.items()}
        made[0, n.NEXT_OBS] = {path: column[1:] for path, column in observations.items()}
    return made


def _rewards(state: State, rows: int) -> Array | None:
    return (
        _converter(Settings(), "").leaves(n.REWARDS, _after_lookback(state["rewards"]), rows).get("") if rows else None
    )


def _column(converter: Converter, name: str, buffer: Any, rows: int) -> Leaves | BrokenEpisode:
    try:
        data = _after_lookback(buffer)
        return converter.leaves(name, data, rows, keeps_dtype=True)
    except BrokenEpisode as broken:
        return broken
    except _ERRORS as error:
        return BrokenEpisode(name, f'column "{name}": {type(error).__name__}: {error}')


def _infos(state: State, rows: int) -> Array:
    """The infos of all observations, as text; empty ones where they are not recorded."""
    buffer = state.get("infos")
    found = list(_after_lookback(buffer)) if isinstance(buffer, dict) else []
    return texts(found if len(found) == rows + 1 else [None] * (rows + 1))


def _after_lookback(buffer: Any) -> Any:
    """What a buffer holds of the episode itself, not of the steps before."""
    lookback, data = buffer["lookback"], buffer["data"]
    if not isinstance(lookback, int) or lookback < 0:
        raise ValueError(f"a lookback of {lookback!r}")
    return _cut(data, lookback)


def _cut(data: Any, start: int) -> Any:
    """Columns without their first rows."""
    if isinstance(data, dict):
        return {key: _cut(part, start) for key, part in data.items()}
    return data[start:]


def _length(state: State) -> int:
    actions = _after_lookback(state["actions"])
    while isinstance(actions, dict):
        actions = next(iter(actions.values()))
    return len(actions)


def _converter(settings: Settings, where: str) -> Converter:
    return Converter(where, settings.floats)
