"""What a server's own tables cost: the journal and the list of episodes a push, and a delete of many items."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from replay_server.template import TableDraft, config_text

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, figure, timed
from benchmarks.replay_process import ReplayProcess
from rlds2reverb import Client, connect
from rlds2reverb.push import run as push_run
from rlds2reverb.push.journal import PushJournal
from rlds2reverb.push.pages import PageWriter
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.wire.messages import ServerInfo

FULL = Size(items=400_000, reference_items=400_000, repeats=9)
SHORT = Size(items=200_000, reference_items=200_000, repeats=3)

PUSH_GOAL = Goal(0.99)
SHARE_GOAL = Goal(1.0, at_most=True)
DELETE_GOAL = Goal(10.0, at_most=True)

_DELETED = 100_000
_SMALL_PUSHES = 9
_EMPTYING_SECONDS = 300.0


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah 2-step items, pushed to one server that is seen with its own tables and without them."""
    columns = data.half_cheetah()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.yaml"
        draft = TableDraft("two_step", 2 * max(size.items, _DELETED), data.signature(columns))
        path.write_text(config_text("half-cheetah", [], {writers.TABLE: draft}))
        with ReplayProcess(path) as service, connect(service.address) as client:
            plain = Client([_WithoutOwnTables(GrpcTransport(service.address, call_seconds=_EMPTYING_SECONDS))])
            yield from _pushes(client, plain, columns, size)
            yield _delete(client, columns)


def _pushes(client: Client, plain: Client, columns: Any, size: Size) -> Iterator[Result]:
    shares, fixed = list[float](), list[float]()

    def push(count: int) -> Run:
        with _own_seconds() as own:
            done = _push(client, plain, columns, count)
        shares.append(100 * sum(own) / done.seconds)
        return done

    sides = [
        Side("with journal", push, data.episodes_for(size.items, data.STEPS)),
        Side(
            "without",
            lambda count: _push(plain, plain, columns, count),
            data.episodes_for(size.reference_items, data.STEPS),
        ),
    ]
    runs = alternate(sides, size.repeats)
    yield comparison("journal/push", runs, "with journal", "without", "items/s", PUSH_GOAL)
    share = statistics.median(shares[1:])  # the first run warms up
    yield figure(
        "journal/share_of_push", share, "%", SHARE_GOAL, items=size.items, shares=[round(one, 3) for one in shares[1:]]
    )
    for _ in range(_SMALL_PUSHES):
        with _own_seconds() as own:
            _push(client, plain, columns, 1)
        fixed.append(1000 * sum(own))
    yield figure("journal/fixed", statistics.median(fixed), "ms", what="the same of a push of one episode")


def _push(client: Client, plain: Client, columns: Any, count: int) -> Run:
    plain.reset(writers.TABLE)
    source = data.episodes(columns, count)
    with timed() as watch:
        report = client.push(source, writers.TABLE, "two_step", again=True)
    return watch.run(report.items_confirmed)


def _delete(client: Client, columns: Any) -> Result:
    """Seconds of `delete_episodes`, its checkpoint included."""
    client.reset(writers.TABLE)
    report = client.push(data.episodes(columns, data.episodes_for(_DELETED, data.STEPS)), writers.TABLE, "two_step")
    last = max(client.journal(), key=lambda entry: entry.began)
    with timed() as watch:
        deleted = client.delete_episodes(pushes=[last.id])
    if deleted.items != {writers.TABLE: report.items_confirmed} or deleted.unsaved:
        raise RuntimeError(f"{report.items_confirmed} items were stored, {deleted.items} deleted; {deleted.unsaved}")
    return figure(
        "journal/delete", watch.seconds, "s", DELETE_GOAL, items=report.items_confirmed, episodes=deleted.episodes
    )


@contextmanager
def _own_seconds() -> Iterator[list[float]]:
    """Seconds that the thread of a push spends with own tables inside the block, one number for each call; a full page counts twice."""
    seconds = list[float]()

    def timing(method: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*given, **named)
            finally:
                seconds.append(time.perf_counter() - began)

        return call

    places = [
        (PushJournal, "begin"),
        (PushJournal, "wait_begun"),
        (PushJournal, "end"),
        (PageWriter, "add"),
        (PageWriter, "flush"),
        (push_run, "gather_deletions"),
    ]
    methods = [getattr(place, name) for place, name in places]
    try:
        for (place, name), method in zip(places, methods):
            setattr(place, name, timing(method))
        yield seconds
    finally:
        for (place, name), method in zip(places, methods):
            setattr(place, name, method)


class _WithoutOwnTables:
    """A transport whose server seems to keep no tables of its own."""

    def __init__(self, transport: GrpcTransport) -> None:
        self._transport, self.address = transport, transport.address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def server_info(self, at_once: bool = False) -> ServerInfo:
        return replace(self._transport.server_info(at_once), own_tables={})
