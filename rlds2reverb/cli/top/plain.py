"""The view without a terminal: a block of lines for each moment, or JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rlds2reverb.cli import documents
from rlds2reverb.cli.top.rows import (
    TableRow,
    answering,
    checkpoint_problem,
    last_work,
    one_line,
    ratio,
    resources,
    rows,
    troubles,
    uploads,
    visible,
)
from rlds2reverb.cli.top.watching import WatchedServer
from rlds2reverb.text import rate
from rlds2reverb.transport.http import Status
from rlds2reverb.wire.messages import clause, insert_wait, sample_wait


def block(servers: Sequence[WatchedServer], sort: str, is_reverse: bool, now: float) -> Iterator[str]:
    """Lines about every server and every table; `now` is Unix time."""
    yield time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now))
    for server in servers:
        yield f"server {visible(server.name)}: {answering(server, now)}; {resources(server, now)}"
        yield from (f"  {text}" for text in (last_work(server), uploads(server), *troubles(server)) if text)
        for row in rows(server.tables, server.rates(), sort, is_reverse):
            table = row.table
            kept_ratio = "any" if row.wanted_ratio is None else ratio(row.wanted_ratio)
            inserts, samples = rate(row.per_second("inserts")), rate(row.per_second("samples"))
            stale = "" if server.answers else " (when it last answered)"
            yield (
                f'  table "{visible(table.name)}": {table.current_size:,} of {table.max_size:,} items{stale}, '
                f"{inserts} inserts/s, {samples} samples/s, "
                f"{ratio(row.samples_per_insert)} samples per insert (rate limiter: {kept_ratio})"
            )
            if server.answers:
                yield from (f"    {clause(wait)}" for wait in (insert_wait(table), sample_wait(table)))


def document(servers: Sequence[WatchedServer], now: float) -> documents.Moment:
    """The document of --json, servers in the order of the command line; `now` is Unix time."""
    return documents.Moment(now, [_server(server) for server in servers])


def _server(server: WatchedServer) -> documents.Server:
    return documents.document_of(
        documents.Server,
        server,
        http=server.url or None,
        http_problem=server.status_problem,
        service=None if server.status is None else _service(server.status),
        tables=[_row(row) for row in rows(server.tables, server.rates(), "name", is_reverse=False)],
    )


def _service(status: Status) -> documents.Service:
    server, checkpoints = status.server, status.checkpoints
    return documents.document_of(
        documents.Service,
        server,
        state=one_line(server.state),
        problem=one_line(server.problem),
        checkpoint=checkpoints.last,
        writing_since=checkpoints.writing_since,
        checkpoint_failures=checkpoints.failures,
        checkpoint_problem=checkpoint_problem(status),
        upload=checkpoints.upload,
        newest_entry=next(iter(status.journal.newest), None) if status.journal is not None else None,
    )


def _row(row: TableRow) -> documents.LiveTable:
    table, limiter = row.table, row.table.rate_limiter
    inserts, samples = insert_wait(table), sample_wait(table)
    return documents.document_of(
        documents.LiveTable,
        table,
        size=table.current_size,
        inserts=limiter.inserts,
        samples=limiter.samples,
        inserts_per_second=row.rate.inserts if row.rate else None,
        samples_per_second=row.rate.samples if row.rate else None,
        rate_seconds=row.rate.seconds if row.rate else None,
        samples_per_insert=row.samples_per_insert,
        samples_per_insert_wanted=row.wanted_ratio,
        insert_state=clause(inserts),
        sample_state=clause(samples),
        inserts_blocked=inserts.blocks,
        samples_blocked=samples.blocks,
    )
