"""What options may be: counts, words."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.errors import ConfigError


def check_count(name: str, count: object) -> None:
    """Refuses what is no whole number of at least 1.

    Raises:
      ConfigError: says which option.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"sample: {name} {count!r}: expected a whole number of at least 1")


def check_word(name: str, word: object, known: Sequence[str]) -> None:
    """Refuses what is none of the known words.

    Raises:
      ConfigError: says which there are.
    """
    if word not in known:
        raise ConfigError(f"sample: {name} {word!r}: expected one of {', '.join(known)}")
