"""One episode of a source, by its number or by its name; no more is read than it takes to find it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.identity import Occurrences, copy_name, is_content
from rlds2reverb.sources.base import Source, episodes_of
from rlds2reverb.wording import counted, shortened, visible

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MOST_NAMES = 20_000
"""Names that are compared with one that was not found; looking for alike ones takes time."""
_CLOSE = 3


@dataclass(frozen=True)
class Found:
    """An episode, and where it stands.

    Attributes:
      episode: as the source gives it; one that was found by name is called what a push calls it, a copy with its number.
      number: from 0, in the source's order.
      count: how many there are; None where the source does not know.
    """

    episode: Episode
    number: int
    count: int | None


def find(source: Source, wanted: str) -> Found:
    """The episode that is asked for.

    Args:
      source: where to look.
      wanted: a number from 0 on, or from the end (-1 is the last); else the episode's id as `inspect` and `validate` print it, with the
        "#2" of a copy, or the dataset's own name of it (its metadata `episode_id`). Where these names are numbers, one that is no place is looked for among them.

    Raises:
      SourceError: there is none such: says how many there are, and which names are close; or the source cannot be read.
    """
    if _NUMBER.fullmatch(wanted):
        return _numbered(source, int(wanted))
    return _named(source, wanted)


def _numbered(source: Source, wanted: int) -> Found:
    count = source.episode_count
    if wanted < 0 and count is None:
        count = _counted(source)
    number = wanted if wanted >= 0 or count is None else count + wanted
    if number >= 0 and (count is None or number < count):
        for episode in episodes_of(source, number, number + 1):
            return Found(episode, number, count)
    if _has_numbers_for_names(source):
        return _named(source, str(wanted))
    there = _counted(source) if count is None else count
    raise SourceError(f"{source.name}: episode {wanted}: {_numbers(there)}")


def _has_numbers_for_names(source: Source) -> bool:
    first = next(iter(source), None)
    return first is not None and _NUMBER.fullmatch(first.recorded_id or "") is not None


def _counted(source: Source) -> int:
    return sum(1 for _ in source)


def _numbers(count: int) -> str:
    if not count:
        return "there is no episode"
    return f"expected 0 to {count - 1:,}, or -{count:,} to -1 from the end; there are {counted(count, 'episode')}"


def _named(source: Source, wanted: str) -> Found:
    names: list[str] = []
    occurrences = Occurrences()
    number = -1
    for number, given in enumerate(source):
        episode = _numbered_copy(given, occurrences.count(given.id))
        own = list(_names(episode))
        if wanted in own:
            return Found(episode, number, source.episode_count)
        if len(names) < _MOST_NAMES:
            names += own[:2]
    raise SourceError(
        f'{source.name}: episode "{shortened(visible(wanted))}": no episode has this id or episode_id; '
        f"{counted(number + 1, 'episode')} looked at{_close(wanted, names)}; a number from 0 does as well"
    )


def _numbered_copy(episode: Episode, occurrence: int) -> Episode:
    """The episode under the name that a push gives it, the second and later ones of a content with their number."""
    name = copy_name(episode.id, occurrence) if is_content(episode.id) else episode.id
    return episode if name == episode.id else replace(episode, id=name)


def _names(episode: Episode) -> Iterator[str]:
    """Its id, the dataset's own name, and both as messages have them."""
    yield episode.id
    if episode.recorded_id is not None:
        yield episode.recorded_id
    yield episode.title


def _close(wanted: str, names: list[str]) -> str:
    found = difflib.get_close_matches(wanted, names, _CLOSE) or names[:1]
    kind = "close to it" if difflib.get_close_matches(wanted, names, 1) else "the first is called"
    return f", {kind}: {', '.join(shortened(visible(name)) for name in found)}" if found else ""
