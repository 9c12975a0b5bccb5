"""The parts of a mix: what each has given, where it is read, and what a mix is refused for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.sources.base import Source

EQUAL, COMMON = "equal", "common"
COLUMNS = (EQUAL, COMMON)


class Cursor:
    """Where a part is read; begins again at its end, if it may."""

    def __init__(self, part: Source, given: int, begins_again: bool) -> None:
        self._part, self._begins_again, self._passes = part, begins_again, 1
        if begins_again and given and part.episode_count:
            self._passes += given // part.episode_count
            given %= part.episode_count
        self._episodes = part.episodes(given)

    def next(self) -> Episode | None:
        """The next episode; None at the end.

        Raises:
          SourceError: it has none at all, and should begin again.
        """
        episode = next(self._episodes, None)
        if episode is None and self._begins_again:
            self._passes += 1
            self._episodes = iter(self._part)
            episode = next(self._episodes, None)
            if episode is None:
                raise SourceError(
                    f"{self._part.name}: has no episode, so a mix of a nominal length cannot go on with it"
                )
        return episode if episode is None or self._passes == 1 else replace(episode, id=f"{episode.id}|{self._passes}")


def check_names(names: Sequence[str]) -> None:
    """Refuses a source that is named twice.

    Raises:
      SourceError: says which.
    """
    for name in names:
        if names.count(name) > 1:
            raise SourceError(f"mix: {name} is there twice; give it a greater weight")


def check(parts: Sequence[Source], weights: Sequence[float], seed: int, length: int | None, columns: str) -> None:
    """Refuses a mix without sense.

    Raises:
      ConfigError: no parts, or an option out of its range.
      SourceError: two parts are one and the same source.
    """
    if not parts:
        raise ConfigError("mix: no parts")
    if len(weights) != len(parts) or not all(weight > 0 and math.isfinite(weight) for weight in weights):
        raise ConfigError(
            f"mix: weights {', '.join(map(str, weights))}: expected {len(parts)} positive numbers, one for each part"
        )
    if not 0 <= seed < 1 << 32:
        raise ConfigError(f"mix: seed {seed}: expected 0 to {(1 << 32) - 1:,}")
    if length is not None and length < 1:
        raise ConfigError(f"mix: length {length}: expected at least 1")
    if columns not in COLUMNS:
        raise ConfigError(f'mix: columns "{columns}": expected one of {", ".join(COLUMNS)}')
    check_names(
        [part.name for at, part in enumerate(parts) if any(part is one for one in (*parts[:at], *parts[at + 1 :]))]
    )
