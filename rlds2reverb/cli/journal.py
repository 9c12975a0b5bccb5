"""`rlds2reverb journal`: who has done what to the tables of a running server."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from rlds2reverb.cli import documents, output
from rlds2reverb.cli.connecting import open_client, server_options
from rlds2reverb.cli.options import json_option
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.files import check_can_be_replaced, whole_or_none, writing
from rlds2reverb.look.accounts import journal_cells
from rlds2reverb.servers.journal import JournalEntry, State, process_text
from rlds2reverb.text import counted
from rlds2reverb.wire.messages import JOURNAL


class Entry(JournalEntry, frozen=True, kw_only=True):
    """An entry of a journal.

    Attributes:
      state: how it ended; "cut off" of what was killed, "running" of what has no end and may still run.
    """

    state: State


class Journal(Struct):
    """The journals of all servers.

    Attributes:
      entries: oldest first.
    """

    entries: list[Entry]


@click.command(
    "journal",
    cls=Command,
    examples={
        "The newest entries": "rlds2reverb journal --server localhost:8000 --last 20",
        "Those of one table, with all that is known of them": "rlds2reverb journal --server localhost:8000 --table replay --json",
        "For SQL": "rlds2reverb journal --server localhost:8000 --parquet journal.parquet",
    },
)
@server_options
@click.option("--table", help="Only entries that name this table.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest entries.")
@click.option(
    "--parquet",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the entries into this file, a row each, in place of printing them.",
)
@json_option
def command(table: str | None, last: int | None, parquet: Path | None, as_json: bool, **connection: Any) -> None:
    """Show an entry for every push, writer session, delete and reset of a server's tables, oldest first.

    `rlds2reverb serve` keeps the journal in its checkpoints, so it comes back with the data that it describes. Other Reverb servers have none.
    """
    if parquet is not None:
        _check_parquet(parquet)
    with open_client(**connection) as client:
        entries = client.journal()
        infos = client.servers()
    processes = {address: process_text(info.state_id) for address, info in infos.items()}
    lines = [
        documents.document_of(Entry, entry, state=entry.find_state(processes.get(entry.server, "")))
        for entry in entries
        if table is None or table in entry.tables
    ][-(last or 0) :]
    for address, info in infos.items():
        if JOURNAL not in info.own_tables:
            output.talk(f"server {address} keeps no journal: that is done by `rlds2reverb serve` of this version")
    if parquet is not None:
        _write_parquet(parquet, lines)
        output.talk(f"{counted(len(lines), 'entry')} in {parquet}")
    if as_json:
        output.print_json(Journal(lines))
    elif parquet is None:
        _print_lines(lines, has_servers=len(infos) > 1)


_HEAD = ("ID", "WHEN", "WHAT", "STATE", "TABLES", "EPISODES", "ITEMS", "NEW", "WHO", "FROM")


def _print_lines(entries: Sequence[Entry], has_servers: bool) -> None:
    if not entries:
        output.talk("no entries")
        return
    rows: list[list[output.Part]] = [[(name, "aside") for name in (*_HEAD, *(("SERVER",) if has_servers else ()))]]
    for entry in entries:
        cells = journal_cells(entry, entry.state, time.time())
        kind = {"stopped": "problem", "cut off": "problem", "running": "advice"}.get(entry.state, "")
        row: list[output.Part] = [
            (text, kind) if name == "STATE" and kind else text for name, text in zip(_HEAD, cells)
        ]
        rows.append([*row, entry.server] if has_servers else row)
    output.print_columns(rows, has_heads=True)


def _check_parquet(path: Path) -> None:
    """Raises ConfigError without the library, and WriteError where no file can be put: before a server is asked."""
    with needing("a file for SQL", "parquet", ConfigError):
        import pyarrow.parquet  # noqa: F401
    check_can_be_replaced(path, f"--parquet {path}")


def _write_parquet(path: Path, entries: Sequence[Entry]) -> None:
    """A row an entry; times as timestamps, options and refusals as JSON."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    moment = pa.timestamp("us", "UTC")
    kinds = {"began": moment, "ended": moment, "tables": pa.list_(pa.string())}
    kinds |= dict.fromkeys(
        ("process", "episodes", "steps", "episodes_known", "items", "items_new", "bytes", "format"), pa.int64()
    )

    def value(entry: Entry, name: str) -> Any:
        held = getattr(entry, name)
        if name in ("options", "refused"):
            return json.dumps(held, ensure_ascii=False)
        if kinds.get(name) is moment:
            return None if held is None else round(held * 1e6)
        return list(held) if isinstance(held, tuple) else held

    names = Entry.__struct_fields__
    columns = {
        name: pa.array([value(entry, name) for entry in entries], kinds.get(name, pa.string())) for name in names
    }
    way_out = "a file from before stays. Make room or name another file, and run the same again"
    with writing(f"--parquet {path}", way_out), whole_or_none(path) as unfinished:
        pq.write_table(pa.table(columns), str(unfinished))
