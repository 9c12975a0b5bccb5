"""RLlib's offline data as a source: `rllib:PATH[?OPTIONS]`."""

from __future__ import annotations

from typing import cast

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats import Lazily
from rlds2reverb.readers.alignment import LAST_STEPS, REPEAT
from rlds2reverb.readers.rllib.batches import TERMINATED, TRUNCATED
from rlds2reverb.readers.rllib.files import PARQUET, find
from rlds2reverb.readers.rllib.lines import JsonLines
from rlds2reverb.readers.rllib.names import Names
from rlds2reverb.readers.rllib.recordings import RllibRecordings
from rlds2reverb.readers.rllib.store import Settings, Store
from rlds2reverb.source_options import Parse, one_of, parted, read_options
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.choice import CHOICES, Choice
from rlds2reverb.sources.recorded import RecordedSource

_open_tables = Lazily("rlds2reverb.readers.rllib.tables:open_tables")

OPTIONS: dict[str, Parse] = {
    "columns": Names.parsed,
    "last_step": one_of(**{one: one for one in LAST_STEPS}),
    "float": one_of(**{"32": np.dtype(np.float32), "64": np.dtype(np.float64)}),
    "done_means": one_of(terminal=TERMINATED, truncation=TRUNCATED),
    "others": one_of(keep=True, drop=False),
}
"""Options beside those of every format, and how each is read."""


def open_rllib(text: str) -> Source:
    """Opens what stands behind "rllib:".

    Raises:
      SourceError: no such files, they are damaged or none of RLlib's, or an option makes no sense.
    """
    people = f"rllib:{text}"
    path, options = parted(text)
    wanted = read_options(people, options, {**OPTIONS, **CHOICES})
    choice = Choice.taken_from(wanted)
    settings = Settings(
        wanted.get("columns", Names()), wanted.get("float", np.dtype(np.float64)), wanted.get("done_means", TERMINATED)
    )
    store = _store(path, settings)
    recordings = RllibRecordings(store, people, wanted.get("last_step", REPEAT), wanted.get("others", True))
    return RecordedSource(recordings, choice.numbers(recordings))


def _store(path: str, settings: Settings) -> Store:
    files = find(path)
    if files[0].kind != PARQUET:
        return JsonLines(files, settings)
    with needing("reading RLlib's Parquet files", "parquet", SourceError):
        return cast("Store", _open_tables(files, settings))
