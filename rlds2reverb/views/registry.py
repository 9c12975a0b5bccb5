"""Views by name, as the command line and configs write them: `sequence:length=8,stride=4`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlds2reverb.errors import ViewError
from rlds2reverb.views.base import View
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.sequence import Sequence, two_step

VIEWS: dict[str, Callable[..., View]] = {"two_step": two_step, "sequence": Sequence, "episode": WholeEpisode}
"""Name -> constructor."""


def view_of(text: str) -> View:
    """A view from "NAME" or "NAME:option=value,option=value".

    >>> view_of("sequence:length=8,stride=4")
    Sequence(length=8, stride=4, pad_end=False, tile_end=False, priority=1.0)

    Raises:
      ViewError: an unknown name or option, or a value that makes no sense.
    """
    name, _, options = text.partition(":")
    if name not in VIEWS:
        raise ViewError(f'view "{name}": expected one of {", ".join(VIEWS)}')
    arguments = dict(_option(text, part) for part in options.split(",") if part)
    try:
        return VIEWS[name](**arguments)
    except TypeError as error:
        raise ViewError(f'view "{text}": {error}') from error


def _option(text: str, part: str) -> tuple[str, Any]:
    key, separator, value = part.partition("=")
    if not separator:
        raise ViewError(f'view "{text}": expected option=value, got "{part}"')
    return key, _value(text, value)


def _value(text: str, value: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise ViewError(f'view "{text}": value "{value}" is no number, true, false or none')
