"""robomimic's files as a source: `robomimic:FILE[?OPTIONS]`."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.readers.alignment import MARK, NEXT, REPEAT
from rlds2reverb.readers.robomimic.options import ALIGNMENTS, DONE_MEANINGS, RobomimicOptions
from rlds2reverb.readers.robomimic.recordings import RobomimicRecordings
from rlds2reverb.source_options import Parse, one_of, parted, read_options
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.choice import CHOICES, Choice
from rlds2reverb.sources.recorded import RecordedSource

_OPTIONS: dict[str, Parse] = {
    "filter": str,
    "align": one_of(**{word: word for word in ALIGNMENTS}),
    "last_step": one_of(**{word: word for word in (REPEAT, MARK, NEXT)}),
    "done_means": one_of(**{word: word for word in DONE_MEANINGS}),
    "flip": one_of(yes=True, no=False),
    "others": one_of(yes=True, no=False),
}
_FIELDS = {"flip": "flips", "others": "has_others"}


def open_robomimic(text: str) -> Source:
    """Opens what stands behind "robomimic:".

    Raises:
      SourceError: no such file, it is damaged or none of robomimic's, or an option makes no sense.
    """
    people = f"robomimic:{text}"
    path, options = parted(text)
    wanted = read_options(people, options, {**_OPTIONS, **CHOICES})
    choice = Choice.taken_from(wanted)
    how = RobomimicOptions(**{_FIELDS.get(key, key): value for key, value in wanted.items()})
    recordings = RobomimicRecordings(Path(path).expanduser(), people, how)
    return RecordedSource(recordings, choice.numbers(recordings))
