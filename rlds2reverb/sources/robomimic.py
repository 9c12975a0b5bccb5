"""robomimic's files as a source: `robomimic:FILE[?OPTIONS]`."""

from __future__ import annotations

from rlds2reverb.readers.alignment import MARK, NEXT, REPEAT
from rlds2reverb.readers.robomimic.options import ALIGNMENTS, DONE_MEANINGS, RobomimicOptions
from rlds2reverb.readers.robomimic.recordings import RobomimicRecordings
from rlds2reverb.source_options import Parse, one_of, words
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.opening import asked

_OPTIONS: dict[str, Parse] = {
    "filter": str,
    "align": words(*ALIGNMENTS),
    "last_step": words(REPEAT, MARK, NEXT),
    "done_means": words(*DONE_MEANINGS),
    "flip": one_of(yes=True, no=False),
    "others": one_of(yes=True, no=False),
}
_FIELDS = {"flip": "flips", "others": "has_others"}


def open_robomimic(text: str) -> Source:
    """Opens what stands behind "robomimic:".

    Raises:
      SourceError: no such file, it is damaged or none of robomimic's, or an option makes no sense.
    """
    wanted = asked("robomimic", text, _OPTIONS)
    return wanted.source_of(RobomimicRecordings(wanted.path, wanted.name, RobomimicOptions(**wanted.renamed(_FIELDS))))
