"""`client.push` against the server's own limit: the same requests, encoded before the clock starts.

Both send through the same `Sender`, so what is left of the difference is reading, checking, cutting and encoding.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from replay_server import TableConfig

from benchmarks import data, datasets, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from benchmarks.servers import BenchServer
from rlds2reverb import Episode
from rlds2reverb.episode import Array, Occurrences, copy_name
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import spec_of
from rlds2reverb.push.sender import Sender, Writer
from rlds2reverb.specs import Nest, flatten
from rlds2reverb.views.trajectory import two_step
from rlds2reverb.wire.insert import Part, Request

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
        yield _naming("1,000 rows", server, columns, size)
        yield _naming(
            "50 rows", server, _cut(columns, 50), replace(size, items=size.items // 5, reference_items=size.items // 5)
        )
        yield _short(50, server, columns, size, Goal(0.5))
        yield _short(200, server, columns, size, Goal(0.8))


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


def _naming(name: str, server: BenchServer, columns: list[dict[str, Array]], size: Size) -> Result:
    """Episodes that are named by their content while they are pushed, and the same ones with ids of their own."""
    rows = len(columns[0]["reward"])
    sides = [
        Side(side, lambda n, ids=ids: writers.push(server, _Read(columns, n, ids)), data.episodes_for(items, rows))  # type: ignore[misc]
        for side, ids, items in (("by content", False, size.items), ("ids given", True, size.reference_items))
    ]
    runs = alternate(sides, size.repeats)
    return comparison(f"push_limit/naming, {name}", runs, "by content", "ids given", "items/s", Goal(0.95))


def _cut(columns: list[dict[str, Array]], rows: int) -> list[dict[str, Array]]:
    """The same episodes, ended after so many rows."""
    is_last = np.arange(rows) == rows - 1
    return [{path: column[:rows] for path, column in episode.items()} | {"is_last": is_last} for episode in columns]


def _short(rows: int, server: BenchServer, columns: list[dict[str, Array]], size: Size, goal: Goal) -> Result:
    """Short episodes and long ones with about as many items."""
    sides = [
        Side(
            f"{length:,} rows",
            partial(_push_list, server, _cut(columns, length)),
            data.episodes_for(size.items, length),
        )
        for length in (rows, data.STEPS)
    ]
    runs = alternate(sides, size.repeats)
    return comparison(f"push_limit/{rows} rows", runs, f"{rows} rows", f"{data.STEPS:,} rows", "items/s", goal)


def _push_list(server: BenchServer, columns: list[dict[str, Array]], episodes: int) -> Run:
    return writers.push(server, data.episodes(columns, episodes))


class _Read:
    """A source that makes its episodes while it is read."""

    name = "made"

    def __init__(self, columns: list[dict[str, Array]], count: int, has_ids: bool) -> None:
        self._columns, self.episode_count, self._has_ids = columns, count, has_ids

    def spec(self) -> Nest:
        return spec_of(Episode(self._columns[0]))

    def __iter__(self) -> Iterator[Episode]:
        for number in range(self.episode_count):
            columns = self._columns[number % len(self._columns)]
            yield Episode(columns, id=f"episode {number}" if self._has_ids else "")


def _encode(source: Any) -> list[Request]:
    view = two_step()
    opened = open_source(source)
    order = list(flatten(view.signature(opened.spec())))
    push_seed, kept = secrets.randbits(64), _Kept()
    names = Occurrences()
    with Writer(kept) as writer:
        for episode in opened:
            name = copy_name(episode.id, names.count(episode.id))
            part = Part((writers.TABLE,), push_seed, name, view.cut(episode).in_order(order))
            writer.write(name, [part])
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
