"""`client.push` against the server's own limit: the same requests, encoded before the clock starts.

Both send through the same `Sender`, so what is left of the difference is reading, checking, cutting and encoding.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

from replay_server import TableConfig

from benchmarks import data, datasets, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from benchmarks.servers import BenchServer
from rlds2reverb.push.sender import Sender
from rlds2reverb.push.writer import Writer
from rlds2reverb.sources import open_source
from rlds2reverb.specs import flatten
from rlds2reverb.views.sequence import two_step
from rlds2reverb.wire.insert.encoder import Part
from rlds2reverb.wire.insert.requests import Request

FULL = Size(items=200_000, reference_items=200_000, repeats=5)
SHORT = Size(items=160_000, reference_items=160_000, repeats=3)

GOAL = Goal(0.85)

Opener = Callable[[int], Any]
"""Number of episodes -> source."""


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah 2-step items, from a list of episodes and from TFDS files; rates in items per second."""
    columns = data.half_cheetah()
    with BenchServer([TableConfig(writers.TABLE, data.signature(columns))]) as server:
        yield _case("list", server, lambda n: data.episodes(columns, n), size)
        dataset = datasets.long_episodes(size.items + data.STEPS)
        yield _case("tfds", server, lambda n: f"tfds:{dataset}@train[:{n}]", size)


def _case(name: str, server: BenchServer, opener: Opener, size: Size) -> Result:
    sides = [
        Side("rlds2reverb", lambda n: writers.push(server, opener(n)), data.episodes_for(size.items, data.STEPS)),
        Side(
            "server limit",
            lambda n: _send_encoded(server, _encode(opener(n))),
            data.episodes_for(size.reference_items, data.STEPS),
        ),
    ]
    runs = alternate(sides, size.repeats)
    return comparison(f"push_limit/{name}", runs, "rlds2reverb", "server limit", "items/s", GOAL)


def _encode(source: Any) -> list[Request]:
    view = two_step()
    opened = open_source(source)
    order = list(flatten(view.signature(opened.spec())))
    push_seed, kept = secrets.randbits(64), _Kept()
    with Writer(kept) as writer:
        for episode in opened:
            part = Part((writers.TABLE,), push_seed, episode.id, view.cut(episode).in_order(order))
            writer.write(episode.id, [part])
    return kept.requests


class _Kept:
    """Keeps the requests of a writer, to be sent later."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def send(self, request: Request) -> None:
        """Takes a request."""
        self.requests.append(request)

    def drain(self) -> None:
        """Has nothing to wait for."""


def _send_encoded(server: BenchServer, requests: list[Request]) -> Run:
    server.empty(writers.TABLE)
    with timed() as watch, Sender(server.client.transport, (writers.TABLE,), server.client.server_info()) as sender:
        for request in requests:
            sender.send(request)
        sender.drain()
    items = sum(len(request.item_keys) for request in requests)
    server.expect(writers.TABLE, items)
    return watch.run(items)
