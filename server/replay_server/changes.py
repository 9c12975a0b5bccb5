"""Whether the tables have changed since a checkpoint, by numbers that Reverb tells without looking at an item.

A checkpoint's description of a table has the number of its inserts, deletes and samples, and `ServerInfo` the same ones, which a
restored table continues (observed in dm-reverb 0.14). So the two are compared, also after a restart: nothing is remembered.

| what happens | seen by |
| --- | --- |
| a table of the config is new, gone, or set otherwise | its description |
| inserts, evictions, deletes | inserts, and items held |
| samples | their number, where it matters: an item goes after so many, a limiter counts them, or a selector looks at priorities |
| a table is emptied, and filled with as many items | fewer samples than before; other episodes; the time that its thread spent on \
inserts; a look in between |
| items sent again, which sets their priorities | that time |
| updates of priorities | nothing: Reverb counts none. Who updates them samples the table, mostly before, see below |

So a table that samples or evicts by priority counts as changed when it was sampled, once more after that, for updates that came last,
and whenever somebody asks for a checkpoint, or the server stops. Where no selector looks at priorities, an update of them is part of
the next checkpoint that is written, and causes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_server.config import to_plain
from replay_server.errors import CheckpointError
from replay_server.fitting import table_records
from rlds2reverb.errors import WireError
from rlds2reverb.text import counted
from rlds2reverb.wire.codec import decode_signature, distribution_text
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo

_BY_PRIORITY = ("prioritized", "max_heap", "min_heap")


@dataclass(frozen=True)
class TableMark:
    """A table at the moment of a checkpoint; `by_priority` as of `has_priorities`, `description` has the settings of its config."""

    inserts: int
    samples: int
    items: int
    by_priority: bool = False
    description: str = ""


Marks = Mapping[str, TableMark]
"""By the table's name; the tables that the server keeps for itself are among them."""


def marks_of(checkpoint: Path) -> Marks:
    """The tables as a checkpoint's folder describes them.

    Raises:
      CheckpointError: it cannot be read.
    """
    return {record.table_name: _mark_of(record) for record in table_records(checkpoint)}


def _mark_of(record: Any) -> TableMark:
    counts, selectors = record.rate_limiter, [distribution_text(proto) for proto in (record.sampler, record.remover)]
    limits = (counts.samples_per_insert, counts.min_diff, counts.max_diff, counts.min_size_to_sample)
    try:
        signature = decode_signature(record.signature) if record.HasField("signature") else None
    except WireError as error:
        raise CheckpointError(f'table "{record.table_name}": its signature cannot be read ({error})') from error
    return TableMark(
        counts.insert_count,
        counts.sample_count,
        counts.insert_count - counts.delete_count,
        any(selector.startswith(_BY_PRIORITY) for selector in selectors),
        _describe(record.max_size, record.max_times_sampled, *selectors, *limits, signature),
    )


def _describe(*parts: Any) -> str:
    """All of a table's settings as text, its signature last."""
    *settings, signature = parts
    return repr((settings, None if signature is None else to_plain(signature)))


def _description_of(table: TableInfo) -> str:
    limiter = table.rate_limiter
    limits = (limiter.samples_per_insert, limiter.min_diff, limiter.max_diff, limiter.min_size_to_sample)
    return _describe(table.max_size, table.max_times_sampled, table.sampler, table.remover, *limits, table.signature)


def all_tables(info: ServerInfo) -> dict[str, TableInfo]:
    """The tables by name, with those that the server keeps for itself."""
    return {**info.tables, **info.own_tables}


@dataclass(frozen=True)
class TableTrace:
    """What Reverb counts of a table since the server's start, and no checkpoint has; `episodes` held and deleted, None where not known.

    The seconds spent on inserts are whole milliseconds, which some hundred small items take.
    """

    inserting: float = 0.0
    episodes: tuple[int, int] | None = None


Traces = Mapping[str, TableTrace]
"""By the table's name."""


def traces_of(info: ServerInfo) -> dict[str, TableTrace]:
    """What Reverb tells now of its tables."""
    return {
        name: TableTrace(table.worker.inserting, (table.episodes, table.deleted_episodes))
        for name, table in all_tables(info).items()
    }


def find_change(marks: Marks, info: ServerInfo, traces: Traces) -> str:
    """The first thing that has changed since a checkpoint, in words; "" when nothing has.

    Args:
      traces: `traces_of` just before the checkpoint; a table that they lack has changed unless it is empty.
    """
    tables = all_tables(info)
    if differing := sorted(marks.keys() ^ tables.keys()):
        return f'table "{differing[0]}" is in only one of checkpoint and server'
    for name, table in sorted(tables.items()):
        if change := _change_of(marks[name], table):
            return f'table "{name}": {change}'
        trace, now = traces.get(name), (table.episodes, table.deleted_episodes)
        if trace is None:
            if table.current_size:
                return f'table "{name}": Reverb did not tell just before the checkpoint what it has inserted'
        elif table.worker.inserting > trace.inserting:
            return f'table "{name}": items were sent again'
        elif trace.episodes not in (None, now):
            return f'table "{name}": it has other episodes'
    return ""


def has_priorities(table: TableInfo) -> bool:
    """Whether a table's sampler or remover looks at priorities, of which Reverb tells no update."""
    return table.sampler.startswith(_BY_PRIORITY) or table.remover.startswith(_BY_PRIORITY)


def was_sampled_by_priority(before: Marks, marks: Marks) -> bool:
    """Whether a table by priority was sampled between two checkpoints: then updates may still come after the later one."""
    return any(
        mark.by_priority and mark.samples != (before[name].samples if name in before else 0)
        for name, mark in marks.items()
    )


def _change_of(mark: TableMark, table: TableInfo) -> str:
    limiter = table.rate_limiter
    if mark.description != _description_of(table):
        return "its config is another one"
    if limiter.inserts != mark.inserts:
        return f"{counted(abs(limiter.inserts - mark.inserts), 'insert')} since"
    if table.current_size != mark.items:
        return f"{counted(abs(table.current_size - mark.items), 'item')} {'fewer' if table.current_size < mark.items else 'more'}"
    if limiter.samples < mark.samples:
        return "it was emptied"
    if limiter.samples > mark.samples and (reason := _why_samples_matter(table, limiter)):
        return f"{counted(limiter.samples - mark.samples, 'sample')} since, and {reason}"
    return ""


def _why_samples_matter(table: TableInfo, limiter: RateLimiter) -> str:
    if table.max_times_sampled > 0:
        return "items go after so many"
    if limiter.wanted_ratio is not None:
        return "its limiter counts them"
    return "who samples by priority may update priorities" if has_priorities(table) else ""
