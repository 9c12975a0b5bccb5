"""What learners give, checked before anything is done with it: options, keys, priorities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError

_Given = ParamSpec("_Given")
_Options = TypeVar("_Options")


def options_of(kind: Callable[_Given, _Options], where: str, *given: _Given.args, **named: _Given.kwargs) -> _Options:
    """The options of a function that takes their fields as arguments of its own.

    Args:
      kind: the class of the options.
      where: the function, as its caller wrote it.
      given, named: the fields.

    Raises:
      TypeError: an argument that there is not, or one that is missing; names the function.
      ConfigError: as the options do.
    """
    try:
        inspect.signature(kind).bind(*given, **named)
    except TypeError as error:  # without this it would name a class that the caller has not called
        raise TypeError(f"{where}: {error}") from None
    return kind(*given, **named)


def check_count(name: str, count: object) -> None:
    """Refuses what is no whole number of at least 1.

    Raises:
      ConfigError: says which option.
    """
    if isinstance(count, bool) or not isinstance(count, Integral) or int(count) < 1:
        raise ConfigError(f"{name} {count!r}: expected a whole number of at least 1")


def check_word(name: str, word: object, known: Sequence[str]) -> None:
    """Refuses what is none of the known words.

    Raises:
      ConfigError: says which there are.
    """
    if word not in known:
        raise ConfigError(f"{name} {word!r}: expected one of {', '.join(known)}")


def checked_keys(keys: npt.ArrayLike) -> Array:
    """[n] uint64 keys of items; int64 of the same bits, as PyTorch has them, will do.

    Raises:
      ConfigError: other numbers than whole ones.
    """
    item_keys = np.atleast_1d(np.asarray(keys))
    if item_keys.dtype == np.int64:
        item_keys = item_keys.view(np.uint64)
    if item_keys.dtype.kind != "u" and item_keys.size:
        raise ConfigError(f"keys: expected uint64, as info.key has them, got {item_keys.dtype}{list(item_keys.shape)}")
    flat: Array = item_keys.astype(np.uint64).ravel()
    return flat


def checked_priorities(keys: npt.ArrayLike, priorities: npt.ArrayLike) -> tuple[Array, Array]:
    """[n] uint64 keys and [n] float64 priorities; one priority does for all keys.

    Raises:
      ConfigError: numbers of them that differ, or a priority that is not finite. Negative ones are for the server to judge: heaps order by
      them, prioritized samplers and removers refuse them.
    """
    item_keys = checked_keys(keys)
    values = np.asarray(priorities, np.float64)
    values = np.full(len(item_keys), values) if values.ndim == 0 else values.ravel()
    if len(values) != len(item_keys):
        raise ConfigError(f"priorities: {len(values)} for {len(item_keys)} keys; expected one each")
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ConfigError(
            f"priorities: {values[wrong[0]]} at index {wrong[0]} ({len(wrong)} such): expected finite numbers"
        )
    return item_keys, values
