"""`reverb:HOST:PORT/TABLE[?OPTIONS]` and `reverb:FOLDER[?OPTIONS]`: what a replay server holds, or held, as a source.

| option | values | meaning |
| --- | --- | --- |
| `table` | a name | of a folder's tables; needed where there are several |
| `as` | `episodes`, `items` | what becomes an episode: the rows of an episode's items together, or each item |
| `gaps` | `refuse`, `split` | an episode of which some rows are in no item: a bad episode, or an episode for each run of rows |
| `streams` | `refuse`, `split` | a writer's sequence that holds several episodes: a bad episode, or cut before each first step |
| `no_end` | `truncated`, `open` | of an episode whose end is not recorded: its last row there is the last step, or is not marked |
| `columns` | `A+B+...` | names of the items' columns, in their order: for tables without a signature |
| `through` | `checkpoint`, `sampling` | how a running server is read, see `running` |
| `disturb` | `yes`, `no` | whether sampling may take items out, and use up what a rate limiter allows |

Every reading gives the table as it was when the source was opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.options import Parse, is_url, one_of, words
from rlds2reverb.formats.recordings import parse_source_name
from rlds2reverb.formats.source import Source
from rlds2reverb.stored.checkpoint import Checkpoint, find_newest
from rlds2reverb.stored.episodes import GAPS, KINDS, NO_ENDS, REFUSE, TRUNCATED, Missing, recordings_of
from rlds2reverb.stored.rows import Snapshot
from rlds2reverb.stored.running import WAYS, Place, place_of, read_from

OPTIONS: dict[str, Parse] = {
    "table": str,
    "as": words(*KINDS),
    "gaps": words(*GAPS),
    "streams": words(*GAPS),
    "no_end": words(*NO_ENDS),
    "columns": lambda text: tuple(text.split("+")),
    "through": words(*WAYS),
    "disturb": one_of(yes=True, no=False),
}


def open_reverb(text: str) -> Source:
    """Opens the dataset named after "reverb:".

    Raises:
      SourceError: nothing can be read there, there is no such table, its items make no episodes, or an option makes no sense.
      TransportError: the server cannot be reached, or went away meanwhile.
    """
    request = parse_source_name("reverb", text, OPTIONS)
    options = request.options
    recordings = recordings_of(
        _snapshot(request.name, request.text, options),
        options.get("as", KINDS[0]),
        Missing(options.get("gaps", REFUSE), options.get("no_end", TRUNCATED)),
        options.get("streams", REFUSE),
        options.get("columns"),
    )
    return request.make_source(recordings)


def _snapshot(people: str, where: str, options: dict[str, Any]) -> Snapshot:
    if is_url(where):
        raise SourceError(f'"{people}": checkpoints are read from this machine only; copy the folder here')
    if (place := place_of(where)) is not None and not Path(where).is_dir():
        table, option = place.table, options.get("table")
        if table is None:
            table = option
        elif option not in (None, table):
            raise SourceError(f'"{people}": two tables, "{table}" and "{option}"; name one')
        return read_from(people, Place(place.address, table), options.get("through"), options.get("disturb", False))
    if not where:
        raise SourceError(f'"{people}": expected HOST:PORT/TABLE, or the folder of a checkpoint')
    for option in ("through", "disturb"):
        if option in options:
            raise SourceError(f'"{people}": option "{option}" is for running servers, and this is a folder')
    with Checkpoint(find_newest(Path(where).expanduser())) as checkpoint:
        return checkpoint.snapshot(people, options.get("table"))
