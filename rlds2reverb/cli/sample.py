"""`rlds2reverb sample`: a few samples of a table, in brief."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from msgspec import UNSET

from rlds2reverb.cli import documents, output, progress
from rlds2reverb.cli.connecting import open_client, server_options
from rlds2reverb.cli.options import SECONDS, json_option, quiet_option, suggest
from rlds2reverb.cli.sections import Command
from rlds2reverb.client import Client
from rlds2reverb.errors import SpecError
from rlds2reverb.learner.batch import Batch, unbatch
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.server_queue import WaitLog
from rlds2reverb.look.brief import Brief, brief
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import flatten
from rlds2reverb.text import counted
from rlds2reverb.wire.messages import NEVER, TableInfo, clause, sample_wait, samples_allowed


@click.command(
    "sample",
    cls=Command,
    examples={
        "One sample": "rlds2reverb sample --server localhost:8000 --table replay",
        "Three, with more values of each column": "rlds2reverb sample --server localhost:8000 --table replay -n 3 --values 12",
        "100 as lines of JSON": "rlds2reverb sample --server localhost:8000 --table replay -n 100 --json > samples.jsonl",
    },
)
@server_options
@click.option("--table", required=True, metavar="TABLE", shell_complete=suggest("tables"), help="The table.")
@click.option(
    "-n",
    "--samples",
    type=click.IntRange(min=1, max=1_000_000),
    default=1,
    show_default=True,
    help="How many. The server takes so many and not one more; one at a time.",
)
@click.option(
    "--values", type=click.IntRange(min=0), default=6, show_default=True, help="How many values of each column to show."
)
@click.option(
    "--timeout-seconds",
    type=SECONDS,
    default=SampleOptions.timeout_seconds,
    show_default=True,
    help="Seconds to wait for a sample, saying what is waited for; then it exits with 5.",
)
@quiet_option
@json_option
def command(
    table: str, samples: int, values: int, timeout_seconds: float, quiet: bool, as_json: bool, **connection: Any
) -> None:
    """Take samples of a table, and show each: key, priority, probability, times sampled, and every column in brief.

    Samples are real ones: they count for the table's rate limiter, and where max_times_sampled is set, items leave. What
    that means for this table is said on stderr, before and after.

    With --json each sample is one line, an object. Keys are text there: they have 64 bits, which not every reader of JSON
    keeps. Values that are not finite are null.
    """
    with open_client(**connection) as client:
        before = table_of(client.server_info(), table)
        try:
            flatten(before.signature)
        except SpecError as error:  # two columns of one name
            raise SpecError(f'table "{table}": its signature: {error}; create it with other names') from error
        output.talk(_before(before, samples))
        with _make_counter(quiet, samples) as count:
            for item in _draw_samples(client, before, samples, timeout_seconds):
                number = count()
                columns = {path: brief(value, values) for path, value in flatten(item.data).items()}
                if as_json:
                    output.print_json_line(_document(item, columns))
                else:
                    _print(item, f"{number} of {samples}", before.max_times_sampled)
                    rows = [((name, "name"), column.kind, column.text()) for name, column in columns.items()]
                    output.print_columns(rows, "    ")
        output.talk(_after(table_of(client.server_info(), table), before, samples))


@contextmanager
def _make_counter(quiet: bool, samples: int) -> Iterator[Callable[[], int]]:
    """A function that counts one more sample, and returns its number.

    How many have come is shown, unless the samples are seen on a terminal; and printed when an error or Ctrl-C ends the command early.
    """
    came, began = 0, time.monotonic()
    is_seen = sys.stdout is not None and sys.stdout.isatty()

    def count() -> int:
        nonlocal came
        came += 1
        tell(progress.describe_count(came, samples, "sample", time.monotonic() - began))
        return came

    try:
        with progress.reporting(quiet or is_seen, "waiting for the first sample") as tell:
            yield count
    except BaseException:
        output.talk(f"{came:,} of {counted(samples, 'sample')} came; the server may have taken one more")
        raise


def _draw_samples(client: Client, table: TableInfo, samples: int, seconds: float) -> Iterator[Batch]:
    """One sample after the other, without prefetching. Encoded images stay encoded."""
    waits = WaitLog(table.name, output.talk)
    with client.sample(
        table.name, 1, prefetch=1, samples=samples, timeout_seconds=seconds, decode=False, on_wait=waits
    ) as sampler:
        for batch in sampler:
            yield unbatch(batch, sampler.structure)


def _before(table: TableInfo, samples: int) -> str:
    allowed = samples_allowed(table)
    if not allowed:
        limit = clause(sample_wait(table))
    elif allowed == NEVER:
        limit = "its rate limiter lets any number of samples be taken"
    else:
        limit = f"{counted(allowed, 'more sample')} may be taken before the next insert"
        if allowed < samples:
            limit = f"{limit}, {samples:,} are wanted"
    most = table.max_times_sampled
    leaving = (
        "an item leaves with its first sample" if most == 1 else f"an item leaves when it is sampled {most:,} times"
    )
    if most <= 0:
        leaving = "items stay however often they are sampled"
    return f'table "{table.name}": {counted(table.current_size, "item")}; {leaving}; {limit}'


def _after(table: TableInfo, before: TableInfo, samples: int) -> str:
    """The table after the samples, and after what other clients did meanwhile."""
    limiter = table.rate_limiter
    allowed = samples_allowed(table)
    more = "any number" if allowed == NEVER else f"{allowed:,} more"
    return (
        f'table "{table.name}": {counted(samples, "sample")} taken; it had {before.current_size:,} and has '
        f"{counted(table.current_size, 'item')}; its rate limiter has counted {counted(limiter.inserts, 'insert')} and "
        f"{counted(limiter.samples, 'sample')}, and lets {more} be taken"
    )


def _document(item: Batch, columns: Mapping[str, Brief]) -> documents.Sample:
    info = item.info
    return documents.Sample(
        key=str(int(info.key)),
        priority=float(info.priority),
        probability=float(info.probability),
        table_size=int(info.table_size),
        times_sampled=int(info.times_sampled),
        source=UNSET if info.source is None else int(info.source),
        columns={path: documents.Column(**column.as_dict()) for path, column in columns.items()},
    )


def _print(item: Batch, which: str, most_times: int) -> None:
    info = item.info
    times = counted(int(info.times_sampled), "time")
    leaves = ", and has left the table" if 0 < most_times <= int(info.times_sampled) else ""
    output.print_line((f"sample {which}", "name"), f": key {int(info.key)}")
    output.print_line(
        f"  priority {float(info.priority):g}, probability {float(info.probability):.4g}, sampled {times}{leaves}"
    )
