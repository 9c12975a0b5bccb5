"""What stands behind a format's name, `PATH[?OPTIONS]`, taken apart; the same for all formats with numbered episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import Recordings
from rlds2reverb.source_options import Parse, parted, read_options, unescaped
from rlds2reverb.sources.choice import CHOICES, Choice
from rlds2reverb.sources.recorded import RecordedSource


@dataclass(frozen=True)
class Asked:
    """A source's name, read.

    Attributes:
      name: all of it, for messages.
      place: what stands before the options, as it is written.
      options: the format's own options that are given, by name.
      choice: which episodes.
    """

    name: str
    place: str
    options: dict[str, Any]
    choice: Choice

    @property
    def path(self) -> Path:
        """The place as a path; "~" is the home folder."""
        return Path(self.text).expanduser()

    @property
    def text(self) -> str:
        """The place as it is meant."""
        return unescaped(self.place)

    def renamed(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The options, some by other names: option -> name."""
        return {names.get(option, option): value for option, value in self.options.items()}

    def source_of(self, recordings: Recordings) -> RecordedSource:
        """The chosen episodes of recordings.

        Raises:
          SourceError: they have no such episodes.
        """
        return RecordedSource(recordings, self.choice.numbers(recordings))


def asked(scheme: str, text: str, known: Mapping[str, Parse]) -> Asked:
    """Takes a name apart.

    Args:
      scheme: the format's name.
      text: what stands behind its ":".
      known: the format's own options, and how each is read; `CHOICES` are added.

    Raises:
      SourceError: nothing is named, an option is unknown, given twice, or its value makes no sense.
    """
    name = f"{scheme}:{text}"
    place, written = parted(text)
    if not place:
        raise SourceError(f'"{name}": names nothing; expected a path or a name behind "{scheme}:"')
    options = read_options(name, written, {**known, **CHOICES})
    choice = Choice.taken_from(options)
    return Asked(name, place, options, choice)
