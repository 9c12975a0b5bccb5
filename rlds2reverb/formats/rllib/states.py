"""Whole episodes of RLlib's new stack: the state of a `SingleAgentEpisode`, as msgpack with the arrays of msgpack-numpy.

A state has a buffer for each column, in which `lookback` rows of an earlier part of the episode may come first.
Sources: rllib/env/single_agent_episode.py (`get_state`), rllib/env/utils/infinite_lookback_buffer.py, msgpack_numpy.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rllib import keys
from rlds2reverb.formats.rllib.index import PolicyRows
from rlds2reverb.formats.rllib.records import Columns, ReadSettings
from rlds2reverb.formats.rllib.values import Converter, Leaves, encode_texts

_FIELDS = {keys.OBS: "observations", keys.ACTIONS: "actions", keys.REWARDS: "rewards"}
_ERRORS = (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError, SourceError)
_State = Mapping[str, Any]
_LATEST = 1 << 53


def read_state(data: bytes) -> _State:
    with needing("reading RLlib's episodes", "msgpack", SourceError):
        from msgpack import unpackb
    try:
        state = unpackb(data, object_hook=_decode_array, strict_map_key=False)  # keys of infos may be numbers
    except _ERRORS as error:
        raise BrokenEpisode("", f"an episode that cannot be unpacked: {error}") from error
    if not isinstance(state, dict) or not {"id_", "observations", "actions", "t_started"} <= state.keys():
        raise BrokenEpisode("", "expected the state of a SingleAgentEpisode")
    return state


def _decode_array(value: dict[Any, Any]) -> Any:
    """Decodes arrays and numbers in msgpack-numpy's form."""
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


def state_rows(state: _State) -> PolicyRows:
    try:
        rows, t, ending = _count_rows(state), int(state["t_started"]), keys.UNFINISHED
        if not 0 <= t < _LATEST:
            raise ValueError(f"t_started is {t:,}")
        if state.get("is_terminated"):
            ending = keys.TERMINATED
        elif state.get("is_truncated"):
            ending = keys.TRUNCATED
        outputs = [str(name) for name in state.get("extra_model_outputs") or {}]
        rewards = None
        if rows:
            converter = Converter("", np.dtype(np.float64))
            rewards = converter.leaves(keys.REWARDS, _after_lookback(state["rewards"]), rows).get("")
    except (*_ERRORS, AttributeError) as error:
        raise BrokenEpisode("", f"not an episode: {type(error).__name__}: {error}") from error
    ended = np.full(rows, keys.UNFINISHED, np.uint8)
    ended[-1:] = ending
    agent = state.get("agent_id")
    columns = frozenset({keys.OBS, keys.NEXT_OBS, keys.ACTIONS, keys.REWARDS, keys.INFOS, *outputs})
    return PolicyRows(
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


def state_columns(state: _State, settings: ReadSettings, where: str, wanted: frozenset[str]) -> Columns:
    """(0, name) -> the column [T, ...], or the reason why it cannot be read."""
    columns: Columns = {}
    converter, rows = Converter(where, settings.floats), _count_rows(state)
    outputs = state.get("extra_model_outputs") or {}
    for name in wanted - {keys.OBS, keys.NEXT_OBS, keys.INFOS}:
        values = state.get(_FIELDS[name]) if name in _FIELDS else outputs.get(name)
        if values is not None:
            columns[0, name] = _column(converter, name, values, rows)
    buffer = state.get("infos")
    recorded = list(buffer["data"][_lookback(buffer) :]) if isinstance(buffer, dict) else []
    infos = encode_texts(recorded if len(recorded) == rows + 1 else [None] * (rows + 1))  # "" if they are not recorded
    columns[0, keys.INFOS], columns[0, keys.NEXT_INFOS] = {"": infos[:-1]}, {"": infos[1:]}
    observations = _column(converter, keys.OBS, state["observations"], rows + 1)
    columns[0, keys.OBS] = columns[0, keys.NEXT_OBS] = observations
    if not isinstance(observations, BrokenEpisode):
        columns[0, keys.OBS] = {path: column[:-1] for path, column in observations.items()}
        columns[0, keys.NEXT_OBS] = {path: column[1:] for path, column in observations.items()}
    return columns


def _column(converter: Converter, name: str, buffer: Any, rows: int) -> Leaves | BrokenEpisode:
    try:
        return converter.leaves(name, _after_lookback(buffer), rows, keeps_dtype=True)
    except BrokenEpisode as broken:
        return broken
    except _ERRORS as error:
        return BrokenEpisode(name, f'column "{name}": {type(error).__name__}: {error}')


def _after_lookback(buffer: Any) -> Any:
    """The part of a buffer that belongs to the episode, without the steps before it: rows, or a nest of columns if it is finalized.

    msgpack writes tuples as lists. Here they are tuples again: the values of Tuple spaces, and the nests of their columns.
    """
    lookback, data = _lookback(buffer), buffer["data"]

    def cut(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: cut(inner) for key, inner in part.items()}
        return tuple(map(cut, part)) if isinstance(part, (list, tuple)) else part[lookback:]

    if buffer.get("finalized") and not isinstance(data, np.ndarray):
        return cut(data)
    if isinstance(data, dict):  # of columns; older versions of RLlib do not say `finalized`
        return {key: _after_lookback({**buffer, "data": part}) for key, part in data.items()}
    return (
        [_restore_tuples(row, buffer.get("space")) for row in data[lookback:]]
        if isinstance(data, list)
        else data[lookback:]
    )


def _lookback(buffer: Any) -> int:
    """The number of rows before the episode's own."""
    lookback = buffer["lookback"]
    if not isinstance(lookback, int) or lookback < 0:
        raise ValueError(f"a lookback of {lookback!r}")
    return lookback


def _restore_tuples(value: Any, space: Any) -> Any:
    """A row with the values of Tuple spaces as tuples. Without a space, a list of anything but plain numbers of one type is one."""
    about = space if isinstance(space, dict) else {}
    kind, inner = about.get("space"), about.get("spaces")
    if isinstance(value, dict):
        spaces = inner if kind == "dict" and isinstance(inner, dict) else {}
        return {key: _restore_tuples(part, spaces.get(key)) for key, part in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and (kind == "tuple" or (not kind and _mixes(value)))):
        parts = (
            inner if kind == "tuple" and isinstance(inner, list) and len(inner) == len(value) else [None] * len(value)
        )
        return tuple(map(_restore_tuples, value, parts))
    return value


def _mixes(value: list[Any]) -> bool:
    """Whether a list holds anything but plain numbers of one type, or lists of these."""
    kinds: set[type] = set()
    waiting = list(value)
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        else:
            kinds.add(type(part))
    return bool(kinds - {int, float, bool}) or len(kinds) > 1


def _count_rows(state: _State) -> int:
    buffer = state["actions"]
    data = buffer["data"]
    while isinstance(data, dict) or (buffer.get("finalized") and isinstance(data, (list, tuple))):
        components = list(data.values()) if isinstance(data, dict) else data
        if not components:
            raise ValueError("actions without a component")
        data = components[0]
    return max(0, len(data) - _lookback(buffer))
