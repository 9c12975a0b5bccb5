"""Options behind a source's name: `minari:door/human-v2?episodes=0:100,seed=3`, `key=value` separated by commas.

A path may hold any character: options begin at the last "?" that no separator follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from rlds2reverb.errors import Rlds2ReverbError, SourceError

Parse = Callable[[str], Any]
"""Makes a value of an option's text; raises `ValueError` with what was expected."""

_OPTIONS = re.compile(r"(?P<rest>.*)\?(?P<options>[^/\\]*)", re.DOTALL)


def parted(text: str) -> tuple[str, str]:
    """What stands before the options, and the options' text; "" where there are none."""
    found = _OPTIONS.fullmatch(text)
    return (found["rest"], found["options"]) if found else (text, "")


def read_options(
    people: str, options: str, known: Mapping[str, Parse], error: type[Rlds2ReverbError] = SourceError
) -> dict[str, Any]:
    """The options that are given, by name.

    Args:
      people: what messages call the source or the destination.
      options: "key=value,...".
      known: what there is, and how its value is read.
      error: what is raised; `ConfigError` for a destination.

    Raises:
      error: an option is unknown, given twice, or its value makes no sense.
    """
    wanted: dict[str, Any] = {}
    for option in options.split(",") if options else ():
        key, _, value = option.partition("=")
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f'; did you mean "{near[0]}={value}"?' if near else ""
            raise error(f'"{people}": unknown option "{option}"; there are: {", ".join(known)}{hint}')
        if key in wanted:
            raise error(f'"{people}": option "{key}" is given twice')
        try:
            wanted[key] = known[key](value)
        except ValueError as wrong:
            raise error(f'"{people}": option "{option}": {wrong}') from wrong
    return wanted


def one_of(**known: Any) -> Parse:
    """Reads one of a few words, each of which stands for a value."""

    def parse(text: str) -> Any:
        if text not in known:
            raise ValueError(f"expected {' or '.join(known)}")
        return known[text]

    return parse


def words(*known: str) -> Parse:
    """Reads one of a few words, each of which stands for itself."""
    return one_of(**{word: word for word in known})


def whole_number(text: str) -> int:
    """Reads a number of at least 0."""
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ValueError("expected a whole number of at least 0, of 18 digits at most")
    return int(text)


def at_least_one(text: str) -> int:
    """Reads a number of at least 1."""
    number = whole_number(text)
    if not number:
        raise ValueError("expected a number of at least 1")
    return number


def some_text(text: str) -> str:
    """Reads a text that is not empty."""
    if not text:
        raise ValueError("expected a text")
    return text
