"""Pushes to servers in memory: the real sender, and no sockets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from rlds2reverb import Episode, PushPlan, PushReport
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.prepare.preparation import Output
from rlds2reverb.prepare.progress import ignored
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import Tuning, plan_push
from rlds2reverb.push.run import Push
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import two_step
from rlds2reverb.wire.messages import ServerInfo, TableInfo
from tests.support import strategies

FLOAT = ArraySpec((), np.dtype(np.float32))


class Server(MemoryServer):
    """A server in memory with its counts by table, those that are not zero."""

    def __init__(self, tables: Mapping[str, TableInfo] | None = None, state_id: int = 7) -> None:
        super().__init__(*({"replay": table_info()} if tables is None else tables).values(), state_id=state_id)

    @property
    def items(self) -> dict[str, dict[int, tuple]]:
        """Table -> key -> values, in the order of insertion; of tables that hold any."""
        with self.changed:
            held = {
                name: {key: item.values for key, item in table.items.items()} for name, table in self.tables.items()
            }
        return {name: items for name, items in held.items() if items}

    @property
    def inserts(self) -> Counter:
        return self._counts("inserts")

    @property
    def evicted(self) -> Counter:
        return self._counts("evicted")

    @property
    def deleted(self) -> Counter:
        return self._counts("deleted")

    def _counts(self, name: str) -> Counter:
        return +Counter({table.info.name: getattr(table, name) for table in self.tables.values()})


def episodes(count: int, rows: int = 4, **options: Any) -> list[Episode]:
    return [strategies.episode(np.random.default_rng(number), rows, **options) for number in range(count)]


class Unmeasured(EpisodeList):
    """Episodes of which only reading tells how long they are."""

    def episode_lengths(self) -> None:
        return None


TUNING = {field.name for field in fields(Tuning)}


def options_of(tables: Any = ("replay",), view: View | None = two_step(), **options: Any) -> PushOptions:
    return PushOptions(tables, view, **options)


def with_source(plan: PushPlan, source: Any) -> PushPlan:
    """The plan of a push of another source with the same steps."""
    return replace(plan, ready=replace(plan.ready, source=source), asked_for=source)


def planned(server: Server, source: Any, *tables_and_view: Any, **options: Any) -> PushPlan:
    """What a push would do; limits, window and deadlines among the options are how it sends."""
    source = EpisodeList(source, "test") if isinstance(source, list) else source
    tuning = Tuning(**{name: options.pop(name) for name in TUNING & options.keys()})
    return plan_push(source, options_of(*tables_and_view, **options), asking(server), tuning=tuning)


def asking(server: MemoryServer) -> Callable[[], Mapping[str, ServerInfo]]:
    """What a plan asks for: the tables of one server."""
    transport = MemoryTransport(server)
    return lambda: {transport.address: transport.server_info()}


def run(server: MemoryServer, plan: PushPlan) -> PushReport:
    transport = MemoryTransport(server)
    return Push({transport.address: transport}, plan).run()


def push_to(server: Server, source: list[Episode], outputs: tuple[Output, ...], **options: Any) -> PushReport:
    views = {table: output.view for output in outputs for table in output.tables}
    return run(server, planned(server, source, views, None, **options))


def push(server: Server, source: Any, on_progress: Callable[..., Any] = ignored, **options: Any) -> PushReport:
    return run(server, planned(server, source, on_progress=on_progress, **options))
