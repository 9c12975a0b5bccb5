"""What options may be: counts, words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import ParamSpec, TypeVar

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
