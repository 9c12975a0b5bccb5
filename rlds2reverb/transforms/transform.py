"""The declaration: which columns stay, what they are called, how large images are, what the action is made of.

The operations go in one fixed order, however they are written: action, select, drop, resize, rename, reward_last. All names but the new ones
of `rename` are those of the dataset; `columns` has what each operation does and refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from rlds2reverb.errors import ConfigError
from rlds2reverb.transforms.concat import parts_of, written
from rlds2reverb.transforms.resize import Size

AS_RECORDED, SHIFT = LAST_REWARDS = ("as_recorded", "shift")
"""What becomes of rewards: they stay, or each moves one step back."""

OfRewards = TypeVar("OfRewards")
"""A dataclass with `last_reward`: the conventions of episodes."""


@dataclass(frozen=True)
class Transform:
    """What is done to the columns of every step before anything else looks at them. Without arguments: nothing.

    Attributes:
      select: columns to keep, and no other: paths of columns or of nests, "*" for any name between two slashes. Reward, discount and
        flags stay in any case.
      drop: columns to leave out, written in the same way.
      action: "concat(PATH, PATH, ...)": the numbers of these columns, in this order, become one vector, the column `action`, in place of all
        that was below it. Paths are below `action`; one that begins with "/" is any path of the step. "" for none.
      resize: path of an image column -> "HEIGHTxWIDTH", or "HEIGHTxWIDTH:METHOD" (area, the default, or lanczos3).
      rename: old path of a column or nest -> new path.
      reward_last: "shift" for data that records a reward with the observation that it led to. The same as the option last_reward of a push:
        either asks for it, and it is done once.

    Raises:
      ConfigError: a value of another type, a path that is none, one that stands twice, a size or method that makes no sense.
    """

    select: Sequence[str] = ()
    drop: Sequence[str] = ()
    action: str = ""
    resize: Mapping[str, str] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    reward_last: str = AS_RECORDED

    def __post_init__(self) -> None:
        for name in ("select", "drop"):
            object.__setattr__(self, name, _paths(name, getattr(self, name)))
        for name in ("resize", "rename"):
            object.__setattr__(self, name, _pairs(name, getattr(self, name)))
        for path in self.rename.values():
            _check_path("rename", path)
        if self.reward_last not in LAST_REWARDS:
            raise _error("reward_last", f"{self.reward_last!r}: expected one of {', '.join(LAST_REWARDS)}")
        object.__setattr__(self, "action", written(self.parts) if self.parts else "")
        object.__setattr__(self, "resize", {path: str(size) for path, size in self.sizes.items()})

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Paths of the columns that the action is made of, in their order; () when it stays as it is."""
        if self.action == "":
            return ()
        parts = parts_of(self.action) if isinstance(self.action, str) else None
        if parts is None:
            raise _error("action", f"{self.action!r}: expected concat(PATH, PATH, ...)")
        for part in parts:
            _check_path("action", part.removeprefix("/"))
        paths = tuple(part[1:] if part.startswith("/") else f"action/{part}" for part in parts)
        _check_distinct("action", paths)
        return tuple(parts)

    @cached_property
    def sizes(self) -> Mapping[str, Size]:
        """Path of an image column -> what it becomes."""
        return {path: _parsed_size(path, text) for path, text in self.resize.items()}

    @property
    def changes_columns(self) -> bool:
        """Whether it does more than to ask for a convention."""
        return replace(self, reward_last=AS_RECORDED) != Transform()

    @property
    def label(self) -> str:
        """What is done to columns, in one way of writing; part of the item keys, so equal labels must mean equal items. "" for nothing.

        `reward_last` is no part of it: it is one of the push's conventions, which have a label of their own.
        """
        if not self.changes_columns:
            return ""
        plain = {**self.as_dict(), "select": sorted(self.select), "drop": sorted(self.drop), "reward_last": None}
        return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    def with_conventions(self, conventions: OfRewards) -> OfRewards:
        """The conventions of a push, with the shift of rewards where this asks for it."""
        return (
            cast("OfRewards", replace(cast(Any, conventions), last_reward=SHIFT))
            if self.reward_last == SHIFT
            else conventions
        )

    def as_dict(self) -> dict[str, Any]:
        """Every operation that does something, as plain values, for JSON."""
        values = {
            "action": self.action,
            "select": list(self.select),
            "drop": list(self.drop),
            "resize": dict(self.resize),
            "rename": dict(self.rename),
            "reward_last": "" if self.reward_last == AS_RECORDED else self.reward_last,
        }
        return {name: value for name, value in values.items() if value}

    def lines(self) -> dict[str, str]:
        """Every operation that does something, in its order, as people read it."""
        return {name: _in_words(value) for name, value in self.as_dict().items()}


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{one} -> {other}" for one, other in value.items())
    return value if isinstance(value, str) else ", ".join(value)


def _error(operation: str, problem: str) -> ConfigError:
    return ConfigError(f"transform: {operation}: {problem}")


def _paths(operation: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise _error(operation, f"{value!r}: expected a list of paths")
    for path in value:
        _check_path(operation, path)
    _check_distinct(operation, value)
    return tuple(value)


def _pairs(operation: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _error(operation, f"{value!r}: expected a mapping that begins with paths of columns")
    for path in value:
        _check_path(operation, path)
    return dict(value)


def _parsed_size(path: str, text: object) -> Size:
    try:
        return Size.parse(text)
    except ConfigError as error:
        raise _error("resize", f'"{path}": {error}') from error


def _check_path(operation: str, path: object) -> None:
    if not isinstance(path, str) or not path.isprintable() or not all(part.strip() for part in path.split("/")):
        raise _error(operation, f"{path!r}: expected a path of a column, such as observation/image")


def _check_distinct(operation: str, paths: Sequence[str]) -> None:
    if twice := [path for number, path in enumerate(paths) if path in paths[:number]]:
        raise _error(operation, f'"{twice[0]}" stands twice')
