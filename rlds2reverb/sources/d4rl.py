"""D4RL files as a source: `d4rl:FILE[?OPTIONS]`."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.readers.d4rl import D4rlRecordings
from rlds2reverb.source_options import parted, read_options
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.choice import CHOICES, Choice
from rlds2reverb.sources.recorded import RecordedSource


def open_d4rl(text: str) -> Source:
    """Opens what stands behind "d4rl:".

    Raises:
      SourceError: no such file, it is damaged or none of D4RL's, or an option makes no sense.
    """
    people = f"d4rl:{text}"
    path, options = parted(text)
    wanted = read_options(people, options, CHOICES)
    choice = Choice.taken_from(wanted)
    recordings = D4rlRecordings(Path(path).expanduser(), people)
    return RecordedSource(recordings, choice.numbers(recordings))
