"""D4RL files as a source: `d4rl:FILE[?OPTIONS]`."""

from __future__ import annotations

from rlds2reverb.readers.alignment import MARK, NEXT, REPEAT
from rlds2reverb.readers.d4rl.options import D4rlOptions
from rlds2reverb.readers.d4rl.recordings import d4rl_recordings
from rlds2reverb.readers.flat.cutting import ENDS
from rlds2reverb.source_options import at_least_one, one_of, whole_number, words
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.opening import asked

_OPTIONS = {
    "ends": words(*ENDS),
    "max_episode_steps": at_least_one,
    "last_step": words(REPEAT, MARK, NEXT),
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
    wanted = asked("d4rl", text, _OPTIONS)
    return wanted.source_of(d4rl_recordings(wanted.path, wanted.name, D4rlOptions(**wanted.renamed(_FIELDS))))
