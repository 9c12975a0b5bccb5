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
from rlds2reverb.source_options import Parse, one_of, unescaped, words
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.opening import asked

_open_tables = Lazily("rlds2reverb.readers.rllib.tables:open_tables")

OPTIONS: dict[str, Parse] = {
    "columns": Names.parsed,
    "last_step": words(*LAST_STEPS),
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
    wanted = asked("rllib", text, OPTIONS)
    options = wanted.options
    settings = Settings(
        options.get("columns", Names()),
        options.get("float", np.dtype(np.float64)),
        options.get("done_means", TERMINATED),
    )
    store = _store(wanted.place, settings)
    return wanted.source_of(
        RllibRecordings(store, wanted.name, options.get("last_step", REPEAT), options.get("others", True))
    )


def _store(path: str, settings: Settings) -> Store:
    files = find([unescaped(one.strip()) for one in path.split(";")])
    if files[0].kind != PARQUET:
        return JsonLines(files, settings)
    with needing("reading RLlib's Parquet files", "parquet", SourceError):
        return cast("Store", _open_tables(files, settings))
