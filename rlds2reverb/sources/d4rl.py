"""D4RL files as a source: `d4rl:FILE[?OPTIONS]`."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.readers.alignment import MARK, NEXT, REPEAT
from rlds2reverb.readers.d4rl.options import D4rlOptions
from rlds2reverb.readers.d4rl.recordings import d4rl_recordings
from rlds2reverb.readers.flat.cutting import ENDS
from rlds2reverb.source_options import at_least_one, one_of, parted, read_options, whole_number
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.choice import CHOICES, Choice
from rlds2reverb.sources.recorded import RecordedSource

_OPTIONS = {
    "ends": one_of(**{word: word for word in ENDS}),
    "max_episode_steps": at_least_one,
    "last_step": one_of(**{word: word for word in (REPEAT, MARK, NEXT)}),
    "tail": one_of(keep=True, drop=False),
    "infos": one_of(yes=True, no=False),
    "chunk": whole_number,
}
_FIELDS = {"tail": "keeps_tail", "infos": "has_others"}


def open_d4rl(text: str) -> Source:
    """Opens what stands behind "d4rl:".

    Raises:
      SourceError: no such file, it is damaged or none of D4RL's, or an option makes no sense.
    """
    people = f"d4rl:{text}"
    path, options = parted(text)
    wanted = read_options(people, options, {**_OPTIONS, **CHOICES})
    choice = Choice.taken_from(wanted)
    how = D4rlOptions(**{_FIELDS.get(key, key): value for key, value in wanted.items()})
    recordings = d4rl_recordings(Path(path).expanduser(), people, how)
    return RecordedSource(recordings, choice.numbers(recordings))
