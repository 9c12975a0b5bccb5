"""Positions of sampling as plain values for JSON, checked when they are restored.

A state is a dict: "format" and "version" identify its kind, "program" who wrote it, "of" the data, and the rest is the position. Numbers come from files, so each
is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlds2reverb.errors import ConfigError
from rlds2reverb.text import shortened
from rlds2reverb.versions import FormatVersion, program_version
from rlds2reverb.wire.insert import seed

State = dict[str, Any]
"""Plain values, for JSON."""

FORMAT, VERSION, PROGRAM, OF = "format", "version", "program", "of"


def state_of(kind: str, of: Mapping[str, Any], version: int, **position: Any) -> State:
    """A state of the kind "local", say.

    `of` is what two runs must share for the position to mean the same, `version` that of `position`.
    """
    return {
        FORMAT: f"rlds2reverb.{kind}",
        VERSION: version,
        PROGRAM: program_version(),
        OF: dict(of),
        **position,
    }


def check_state(state: object, kind: str, of: Mapping[str, Any], version: int) -> Mapping[str, Any]:
    """Returns the state if it is of this kind, a version that is read, and of the same data.

    Raises ConfigError with the differences otherwise.
    """
    if not isinstance(state, Mapping) or FORMAT not in state:
        raise ConfigError(f"restore: {_short(state)}: expected what state() of a {kind} gave")
    if state[FORMAT] != f"rlds2reverb.{kind}":
        raise ConfigError(f'restore: a state of "{state[FORMAT]}", expected one of "rlds2reverb.{kind}"')
    format_version = FormatVersion(f"a state of a {kind}", version, version, "begin without it, from the first batch")
    if refusal := format_version.refusal("restore", state.get(VERSION), state.get(PROGRAM)):
        raise ConfigError(refusal)
    stored = state.get(OF)
    if not isinstance(stored, Mapping):
        raise ConfigError(f'restore: "{OF}" is {_short(stored)}; expected what state() gave')
    lines = [
        f"{name} was {_short(stored.get(name))}, is {_short(of.get(name))}"
        for name in dict.fromkeys((*of, *stored))
        if stored.get(name) != of.get(name)
    ]
    if lines:
        raise ConfigError(f"restore: a state of another {kind}: {'; '.join(lines)}")
    return state


def count_in(state: Mapping[str, Any], name: str) -> int:
    count = state.get(name)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ConfigError(f"restore: {name} is {_short(count)}; expected a whole number of at least 0")
    return count


def counts_in(state: Mapping[str, Any], name: str) -> list[int]:
    counts = state.get(name)
    if not isinstance(counts, (list, tuple)):
        raise ConfigError(f"restore: {name} is {_short(counts)}; expected whole numbers")
    return [count_in({name: count}, name) for count in counts]


def pairs_in(state: Mapping[str, Any], name: str) -> list[tuple[int, int]]:
    pairs = state.get(name)
    if not isinstance(pairs, (list, tuple)):
        raise ConfigError(f"restore: {name} is {_short(pairs)}; expected pairs of whole numbers")
    out = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ConfigError(f"restore: {name} has {_short(pair)}; expected pairs of whole numbers")
        out.append((count_in({name: pair[0]}, name), count_in({name: pair[1]}, name)))
    return out


def digest(*parts: str) -> str:
    return f"{seed(*parts):016x}"


def _short(value: object) -> str:
    return shortened(repr(value), 80)
