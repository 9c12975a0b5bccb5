"""Datasets of il-representations as a source: `ilr:PATH[?OPTIONS]`, or its dict of arrays in memory.

| option | values | meaning |
| --- | --- | --- |
| `done_means` | `terminal` (default), `truncation` | what a step that is done leads to |
| `gaps` | `keep` (default), `split`, `refuse` | what becomes of a trajectory whose observations do not follow one another |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb.readers.ilr.locate import shards
from rlds2reverb.readers.ilr.options import DONE_MEANS, GAPS, Options
from rlds2reverb.readers.ilr.shards import ShardRecordings
from rlds2reverb.source_options import Parse, one_of, parted, read_options
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.choice import CHOICES, Choice
from rlds2reverb.sources.recorded import RecordedSource

_OPTIONS: dict[str, Parse] = {
    **CHOICES,
    "done_means": one_of(**{one: one for one in DONE_MEANS}),
    "gaps": one_of(**{one: one for one in GAPS}),
}


def open_ilr(what: Any) -> Source:
    """Opens what stands behind "ilr:".

    Raises:
      SourceError: no such file, it is damaged or none of il-representations', or an option makes no sense.
    """
    people = f"ilr:{what}"
    path, options = parted(what)
    wanted = read_options(people, options, _OPTIONS)
    choice = Choice.taken_from(wanted)
    recordings = ShardRecordings(shards(Path(path).expanduser()), people, Options(**wanted))
    if choice.needs_count:
        recordings = recordings.counted()
    return RecordedSource(recordings, choice.numbers(recordings))
