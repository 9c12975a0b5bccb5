"""A server and a sender that live in memory: what a push does, without sockets and threads."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from rlds2reverb import pipeline
from rlds2reverb.errors import TransportError
from rlds2reverb.outputs import Output
from rlds2reverb.pipeline import Pusher, PushOptions
from rlds2reverb.sources.base import EpisodeList
from rlds2reverb.specs import ArraySpec
from rlds2reverb.views.sequence import two_step
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo
from tests import strategies
from tests.wire.replay import InsertStream

FLOAT = ArraySpec((), np.dtype(np.float32))


def table(name="replay", signature=None, max_size=1000):
    limiter = RateLimiter(1.0, -1e9, 1e9, 1, 0, 0)
    return TableInfo(name, "uniform", "fifo", max_size, 0, 0, limiter, signature, 0, 0, 0)


@dataclass
class Server:
    """What a channel leads to: tables by name, and the items in them by key, in the order of insertion.

    Attributes:
      fails_after: requests that it takes before the stream breaks for good.
    """

    tables: dict[str, TableInfo] = field(default_factory=lambda: {"replay": table()})
    state_id: int = 7
    fails_after: int | None = None
    requests: int = 0
    items: dict[str, dict[int, list]] = field(default_factory=dict)

    def server_info(self):
        return ServerInfo(self.state_id, self.tables)

    def insert(self, stream, request):
        if self.requests == self.fails_after:
            raise TransportError("the stream broke")
        self.requests += 1
        stored = stream.feed_all(request.messages)
        assert [item.key for item, _ in stored] == request.item_keys.tolist()
        for item, values in stored:
            self.items.setdefault(item.table, {})[item.key] = list(values)

    def contents(self, name="replay"):
        return list(self.items.get(name, {}).values())


class Sender:
    """The sender's interface; confirms what the server took at the next look at it."""

    def __init__(self, channel, tables, info, window, deadlines, on_wait):
        assert info == channel.server_info()
        self._server, self._stream, self._on_wait = channel, InsertStream(), on_wait
        self._finished = []
        self.stored_items = self.sent_bytes = self.reconnects = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def send(self, request):
        self._on_wait("waiting for the test")
        self._server.insert(self._stream, request)
        self.stored_items += len(request.item_keys)
        self.sent_bytes += request.nbytes
        self._finished += request.finishes

    def drain(self):
        pass

    def take_finished(self):
        finished, self._finished = self._finished, []
        return finished


@pytest.fixture(autouse=True)
def in_memory(monkeypatch):
    """For modules that import it: every push goes to servers in memory."""
    monkeypatch.setattr(pipeline, "Sender", Sender)


def episodes(count, rows=4, **options):
    return [strategies.episode(np.random.default_rng(number), rows, **options) for number in range(count)]


def options_of(tables=("replay",), view=two_step(), **options):
    return PushOptions((Output(tables, view),), **options)


def push_to(server, source, outputs, on_progress=lambda _: None, **options):
    source = EpisodeList(source, "test") if isinstance(source, list) else source
    return Pusher(server, source, PushOptions(outputs, **options), on_progress).run()


def push(server, source, on_progress=lambda _: None, **options):
    source = EpisodeList(source, "test") if isinstance(source, list) else source
    return Pusher(server, source, options_of(**options), on_progress).run()
