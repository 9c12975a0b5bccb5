"""A push by several workers to several servers stores and reports what one pusher does, whatever is missing, lost or restarted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode, PushPlan, PushReport
from rlds2reverb.episode import KnownEpisode
from rlds2reverb.errors import CapacityError, InvalidEpisode, ServerRestarted, ServerUnreachable, report_of
from rlds2reverb.fleet.push import DistributedPush
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import IsKnown, Source, check_shard, unless_known
from rlds2reverb.specs import Nest
from rlds2reverb.testing import MemoryTransport
from rlds2reverb.transport.retry import Deadlines
from tests.support import strategies
from tests.support.profiles import examples
from tests.support.push import in_memory
from tests.support.push import many_servers as several
from tests.support.push.in_memory import Server, table_info
from tests.support.push.many_servers import Servers, keys_of, servers
from tests.support.workers_in_threads import InThreads, Memory, distributed

SHORT = Deadlines(call=0.5, reconnect=0.2, stall=5.0, backoff_first=0.01, backoff_most=0.02)


def made(count: int, bad: frozenset[int] = frozenset()) -> list[Episode]:
    """Episodes of three items; those of the numbers `bad` hold a NaN."""
    found = []
    for number in range(count):
        one = strategies.episode(np.random.default_rng(number), 4, episode_id=f"e{number}")
        found.append(one.with_columns(reward=np.full(4, np.nan, np.float32)) if number in bad else one)
    return found


class Eventful(Source):
    """Episodes, before some of which something happens, once."""

    name = "test"

    def __init__(self, episodes: Sequence[Episode], events: Mapping[int, Callable[[], object]]) -> None:
        self.list, self.events = EpisodeList(list(episodes), "test"), dict(events)

    @property
    def episode_count(self) -> int | None:
        return self.list.episode_count

    def spec(self) -> Nest:
        return self.list.spec()

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        return unless_known(self._episodes(start, stop), is_known)

    def _episodes(self, start: int, stop: int | None) -> Iterator[Episode]:
        for number, episode in islice(enumerate(self.list), start, stop):
            self.events.pop(number, lambda: None)()
            yield episode

    def shard(self, index: int, count: int) -> Eventful:
        check_shard(index, count)
        assert count == 1
        return self


def run(
    group: Servers, plan: PushPlan, workers: int = 2, most: int = 4, lost: Sequence[int] = (), allow: bool = False
) -> PushReport:
    """What was planned, by workers that are threads."""
    transports = {address: MemoryTransport(server, address) for address, server in group.items()}
    endpoints = {address: Memory(group[address], address) for address in plan.infos}
    plan = replace(plan, allow_missing=allow)
    return DistributedPush(transports, plan, endpoints, lambda job: InThreads(job, workers, lost), most).run()


def push(group: Servers, source: Sequence[Episode] | Eventful, away: Sequence[str] = (), **options: Any) -> PushReport:
    """A push as `several.push`, by workers; `workers`, `most`, `lost` and `allow` among the options are as for `run`."""
    how = {name: options.pop(name) for name in ("workers", "most", "lost") if name in options}
    allow = options.pop("allow_missing", bool(away))
    plan = several.planned(group, list(source.list) if isinstance(source, Eventful) else source, away, **options)
    if isinstance(source, Eventful):
        plan = in_memory.with_source(plan, source)
    return run(group, plan, **how, allow=allow)


def essence(report: PushReport) -> PushReport:
    """The report without what is another with every run."""
    plain = replace(report, seconds=0.0, bytes=0, workers=0, parts_again=0)
    return replace(
        plain, servers={address: essence(server_report) for address, server_report in report.servers.items()}
    )


def stored(group: Servers) -> dict[str, dict[int, tuple[bytes, ...]]]:
    """Address -> key -> the bytes of an item's values."""
    return {
        address: {
            key: tuple(np.asarray(value).tobytes() for value in values)
            for key, values in server.items.get("replay", {}).items()
        }
        for address, server in group.items()
    }


def rows(path: Path) -> set[Any]:
    with closing(sqlite3.connect(path)) as database:
        return set(database.execute("SELECT * FROM confirmed"))


def lines(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@examples(10)
@given(
    count=st.integers(1, 24),
    bad=st.frozensets(st.integers(0, 23)),
    workers=st.integers(1, 3),
    most=st.integers(1, 6),
    lost=st.frozensets(st.integers(0, 5)),
    is_away=st.booleans(),
    by_ledger=st.booleans(),
)
def test_items_report_ledger_and_quarantine_are_those_of_one_pusher(
    tmp_path_factory: Any,
    count: int,
    bad: frozenset[int],
    workers: int,
    most: int,
    lost: frozenset[int],
    is_away: bool,
    by_ledger: bool,
) -> None:
    folder, episodes, away = tmp_path_factory.mktemp("push"), made(count, bad), ["b:8000"] if is_away else []
    alone, divided = servers(3), servers(3)
    how: list[dict[str, Any]] = [
        {"on_invalid": "quarantine", "quarantine": folder / f"{name}.jsonl", "ledger": folder / f"{name}.db"}
        for name in ("alone", "divided")
    ]
    if by_ledger:  # most of what it names is on other servers than names say
        for group, options in zip((alone, divided), how):
            several.push({"c:8000": group["c:8000"]}, episodes[: count // 2 + 1], **options)
            group["c:8000"].state_id += count % 2
    expected = several.push(alone, episodes, away, **how[0])
    report = push(divided, episodes, away, workers=workers, most=most, lost=sorted(lost), **how[1])
    assert essence(report) == essence(expected)
    assert stored(divided) == stored(alone)
    assert lines(folder / "divided.jsonl") == lines(folder / "alone.jsonl")
    assert rows(folder / "divided.db") == rows(folder / "alone.db")


@examples(6)
@given(before=st.integers(1, 3), after=st.integers(2, 3), count=st.integers(1, 12), most=st.integers(1, 5))
def test_items_move_as_by_one_pusher(before: int, after: int, count: int, most: int) -> None:
    episodes, groups = made(count), (servers(3), servers(3))
    for group in groups:
        several.push({address: group[address] for address in [*group][:before]}, episodes)
    alone, divided = ({address: group[address] for address in [*group][3 - after :]} for group in groups)
    expected = several.push(alone, episodes, move=True)
    report = push(divided, episodes, move=True, most=most)
    assert essence(report) == essence(expected)
    assert stored(groups[1]) == stored(groups[0])


@examples(6)
@given(workers=st.integers(1, 3), most=st.integers(1, 6), spare=st.integers(0, 4), before=st.integers(0, 20))
def test_tables_with_just_enough_places_take_a_push_and_the_same_push_again(
    workers: int, most: int, spare: int, before: int
) -> None:
    episodes, room = made(20), servers(3)
    spare = spare or min(before, 1)  # a table that is full already takes nothing, known or not
    several.push(room, episodes)
    needs = {address: len(keys_of(server)) for address, server in room.items()}
    group = {
        address: Server({"replay": table_info(max_size=max(1, need + spare))}, state_id=100 + need)
        for address, need in needs.items()
    }
    if before:
        several.push(group, episodes[:before])
    for new in (60 - 3 * before, 0) if spare else (60,):
        report = push(group, episodes, workers=workers, most=most)
        assert (report.items_confirmed, report.episodes_pushed) == (60, 20)
        assert report.items_new in (new, None)
    assert stored(group) == stored(room)
    assert not any(server.evicted for server in group.values())


def test_a_table_that_is_too_small_is_named_with_its_server_and_evicts_nothing() -> None:
    group = servers(2)
    group["b:8000"] = Server({"replay": table_info(max_size=4)})
    with pytest.raises(CapacityError, match="b:8000: ") as caught:
        push(group, made(12))
    assert not group["b:8000"].evicted
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.servers["b:8000"].items_confirmed <= 4


@examples(6)
@given(bad=st.frozensets(st.integers(0, 19), min_size=1), workers=st.integers(1, 3), most=st.integers(1, 6))
def test_the_first_bad_episode_ends_the_push_and_all_before_it_are_stored(
    bad: frozenset[int], workers: int, most: int
) -> None:
    group, expected, episodes = servers(3), servers(3), made(20, bad)
    with pytest.raises(InvalidEpisode) as caught:
        push(group, episodes, workers=workers, most=most)
    assert caught.value.episode_id == f"e{min(bad)}"
    if min(bad):
        several.push(expected, episodes[: min(bad)])
    for address, items in stored(expected).items():
        assert items.items() <= stored(group)[address].items()
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.episodes_pushed == sum(server.episodes_pushed for server in report.servers.values()) >= min(bad)


# Servers that go away.


def lost_in_the_middle(group: Servers, episodes: Sequence[Episode], allow: bool, **options: Any) -> PushReport:
    """A push in whose second part b goes away."""

    def go_away() -> None:
        group["b:8000"].is_away = True
        group["b:8000"].fail_after(0, "UNAVAILABLE")
        group["b:8000"].break_streams()

    source = Eventful(episodes, {6: go_away})
    return push(group, source, allow_missing=allow, deadlines=SHORT, **options)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_server_that_is_lost_ends_the_push_which_says_what_is_stored_where(workers: int) -> None:
    group = servers(3)
    with pytest.raises(ServerUnreachable, match="b:8000") as caught:
        lost_in_the_middle(group, made(40), allow=False, workers=workers)
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.stopped.startswith("ServerUnreachable")
    for address, server_report in report.servers.items():
        assert server_report.items_confirmed <= len(keys_of(group[address]))
    assert report.episodes_read < 40


@pytest.mark.parametrize("workers", [1, 3])
def test_the_rest_goes_on_where_that_is_allowed_and_the_same_push_fills_in(workers: int, tmp_path: Path) -> None:
    group, episodes, ledger = servers(3), made(40), tmp_path / "l.db"
    report = lost_in_the_middle(group, episodes, allow=True, workers=workers, ledger=ledger)
    lost = report.servers["b:8000"]
    assert lost.stopped.startswith("ServerUnreachable")
    assert (report.episodes_read, lost.items_new) == (40, None)
    assert lost.episodes_left_out
    assert lost.episodes_pushed + lost.episodes_unconfirmed + lost.episodes_left_out == lost.episodes_read
    others = [server_report for address, server_report in report.servers.items() if address != "b:8000"]
    assert all(other.episodes_pushed == other.episodes_read for other in others)
    group["b:8000"].is_away = False
    group["b:8000"].fail_after(None)
    later = push(group, episodes, ledger=ledger, workers=workers)
    assert later.episodes_resumed == report.episodes_pushed
    whole = servers(3)
    several.push(whole, episodes)
    assert stored(group) == stored(whole)


def test_the_last_server_may_not_be_lost() -> None:
    only = {"b:8000": servers(2)["b:8000"]}
    with pytest.raises(ServerUnreachable, match="b:8000"):
        lost_in_the_middle(only, made(20), allow=True)


@pytest.mark.parametrize("allow", [False, True])
def test_a_server_that_was_restarted_between_two_parts_is_noticed(allow: bool) -> None:
    group, episodes = servers(2), made(24)
    source = Eventful(episodes, {8: group["a:8000"].restart})
    if allow:
        report = push(group, source, allow_missing=True, workers=1, deadlines=SHORT)
        assert report.servers["a:8000"].stopped.startswith("ServerRestarted")
        assert report.episodes_read == 24
    else:
        with pytest.raises(ServerRestarted, match="a:8000"):
            push(group, source, workers=1, deadlines=SHORT)
    push(group, episodes)
    whole = servers(2)
    several.push(whole, episodes)
    assert stored(group) == stored(whole)


@pytest.mark.parametrize("number", [4, 8, 11])
def test_one_server_that_was_restarted_between_two_parts_is_noticed(number: int) -> None:
    server = Server()
    source = Eventful(made(12), {number: server.restart})
    plan = in_memory.planned(server, source, workers=1, deadlines=SHORT)
    with pytest.raises(ServerRestarted):
        distributed(server, plan, lambda job: InThreads(job, 1), 4).run()
