"""Pushes to several servers in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlds2reverb import PushPlan, PushReport
from rlds2reverb.episode import Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.push.plan import Tuning, plan_push
from rlds2reverb.push.run import Push
from rlds2reverb.testing import MemoryTransport
from tests.support.push.in_memory import TUNING, Server, options_of

Servers = Mapping[str, Server]


def servers(count: int) -> dict[str, Server]:
    """Address -> a server with one table."""
    return {f"{chr(97 + number)}:8000": Server(state_id=100 + number) for number in range(count)}


def planned(
    group: Servers,
    source: Sequence[Episode],
    away: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    **options: Any,
) -> PushPlan:
    tuning = Tuning(**{name: options.pop(name) for name in TUNING & options.keys()})
    infos = {address: server.server_info() for address, server in group.items() if address not in away}
    return plan_push(
        EpisodeList(list(source), "test"),
        options_of(**options),
        lambda: infos,
        names or {address: address for address in group},
        tuning=tuning,
    )


def pusher(group: Servers, plan: PushPlan, allow_missing: bool = False) -> Push:
    transports = {address: MemoryTransport(server, address) for address, server in group.items()}
    return Push(transports, replace(plan, allow_missing=allow_missing))


def push(group: Servers, source: Sequence[Episode], away: Sequence[str] = (), **options: Any) -> PushReport:
    return pusher(group, planned(group, source, away, **options), bool(away)).run()


def keys_of(server: Server) -> set[int]:
    return set(server.items.get("replay", ()))
