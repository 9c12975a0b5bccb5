"""A push to several servers in memory: every item on one of them, exactly once, whatever is missing, lost, or run again."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Client, Progress, PushReport
from rlds2reverb.episode import Episode
from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    InvalidEpisode,
    ServerRestarted,
    ServerUnreachable,
    SourceError,
)
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.push.keys import Placement
from rlds2reverb.testing import MemoryTransport
from rlds2reverb.testing.streams import StreamPlan
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.wire.insert import RequestLimits
from tests.support.push import in_memory
from tests.support.push.in_memory import Server, episodes, table_info
from tests.support.push.many_servers import keys_of, planned, push, pusher, servers

SHORT = Deadlines(call=0.5, reconnect=0.2, stall=5.0, backoff_first=0.01, backoff_most=0.02)


def spoiled(episode: Episode) -> Episode:
    return episode.with_columns(reward=np.full(len(episode), np.nan, np.float32))


def alone(source: list[Episode]) -> Server:
    """One server with all of it."""
    server = Server()
    in_memory.push(server, source)
    return server


def check_sums(report: PushReport) -> None:
    """The invariant of the whole and of each part, and that the whole is the sum."""
    for part in (report, *report.servers.values()):
        assert part.episodes_unconfirmed >= 0
    for name in ("episodes_read", "episodes_pushed", "items_confirmed", "episodes_left_out", "bytes"):
        assert getattr(report, name) == sum(getattr(server, name) for server in report.servers.values())


@settings(max_examples=20)
@given(st.integers(2, 4), st.integers(0, 12), st.sampled_from(["two_step", "episode", "n_step:n=2"]))
def test_all_servers_together_hold_what_one_would(count: int, episode_count: int, view: str) -> None:
    source, group = episodes(max(1, episode_count)), servers(count)
    one = Server()
    expected = in_memory.push(one, source, view=view)
    report = push(group, source, view=view)
    held = [keys_of(server) for server in group.values()]
    assert set().union(*held) == keys_of(one)
    assert sum(map(len, held)) == len(keys_of(one))
    assert (report.items_confirmed, report.items_new) == (expected.items_confirmed, expected.items_confirmed)
    assert report.items_made == expected.items_made
    check_sums(report)
    again = push(group, source, view=view)
    assert (again.items_confirmed, again.items_new) == (expected.items_confirmed, 0)
    assert [keys_of(server) for server in group.values()] == held


def test_every_episode_is_where_its_name_says() -> None:
    source, group = episodes(12), servers(3)
    placing = Placement(tuple(group))
    report = push(group, source)
    for address, server in group.items():
        mine = [episode for episode in EpisodeList(source, "test") if placing.of(episode.id) == address]
        assert report.servers[address].episodes_pushed == len(mine)
        assert len(keys_of(server)) == 3 * len(mine)


def test_the_account_is_json() -> None:
    report = push(servers(2), episodes(3))
    told = json.loads(json.dumps(report.as_dict()))
    assert list(told["servers"]) == ["a:8000", "b:8000"]
    assert told["servers"]["a:8000"]["servers"] == {}
    assert (told["episodes_unread"], told["episodes_unconfirmed"]) == (0, 0)


# Bad episodes, full tables, interruptions.


def test_a_bad_episode_ends_the_push_and_the_others_are_confirmed() -> None:
    source = [*episodes(6), spoiled(episodes(7)[6]), *episodes(9)[7:]]
    with pytest.raises(InvalidEpisode) as caught:
        push(group := servers(3), source)
    report = caught.value.report
    assert report is not None
    assert (report.episodes_read, report.episodes_pushed, report.episodes_rejected) == (7, 6, 1)
    assert set().union(*map(keys_of, group.values())) == keys_of(alone(source[:6]))
    check_sums(report)


def test_skipped_and_quarantined_episodes_are_counted_together(tmp_path: Path) -> None:
    source = [spoiled(episode) if number % 2 else episode for number, episode in enumerate(episodes(8))]
    report = push(servers(3), source, on_invalid="quarantine", quarantine=tmp_path / "bad.jsonl")
    assert (report.episodes_pushed, dict(report.rejected)) == (4, {"nan": 4})
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 4
    check_sums(report)


def test_a_full_table_is_named_with_its_server() -> None:
    group = servers(2)
    group["b:8000"] = Server({"replay": table_info(max_size=4)})
    with pytest.raises(CapacityError, match=r"^b:8000: table"):
        push(group, episodes(12))
    assert not group["b:8000"].evicted


def test_two_episodes_of_one_name_are_refused() -> None:
    source = EpisodeList([replace(episode, id="one") for episode in episodes(1)], "test")

    class Twice(EpisodeList):
        def __iter__(self) -> Iterator[Episode]:
            yield from [*source, *source]

    group = servers(3)
    plan = in_memory.with_source(planned(group, episodes(1)), Twice(episodes(1), "test"))
    with pytest.raises(SourceError, match="two episodes have the id"):
        pusher(group, plan).run()


@pytest.mark.parametrize(("together", "taken"), [(0, 5), (1024, 0)])
def test_an_interruption_says_what_is_stored_where(monkeypatch: pytest.MonkeyPatch, together: int, taken: int) -> None:
    """Short episodes that waited for the next ones are among those that were not read."""
    monkeypatch.setattr("rlds2reverb.push.run.TOGETHER_ROWS", together)
    monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", 3600.0)

    class Interrupted(EpisodeList):
        def __iter__(self) -> Iterator[Episode]:
            yield from super().__iter__()
            raise KeyboardInterrupt

    group = servers(2)
    plan = in_memory.with_source(planned(group, episodes(5)), Interrupted(episodes(5), "test"))
    with pytest.raises(KeyboardInterrupt) as caught:
        pusher(group, plan).run()
    report = vars(caught.value)["report"]
    assert report.stopped == "interrupted"
    assert report.episodes_read == report.episodes_pushed + report.episodes_unconfirmed == taken
    check_sums(report)


# Servers that are missing, or lost.


def test_episodes_of_a_missing_server_are_left_out_and_a_later_push_stores_them() -> None:
    source, group = episodes(12), servers(3)
    report = push(group, source, away=["b:8000"])
    left_out = report.servers["b:8000"].episodes_left_out
    assert left_out == report.episodes_left_out > 0
    assert report.episodes_pushed == 12 - left_out
    assert "missing" in report.servers["b:8000"].stopped
    assert not keys_of(group["b:8000"])
    check_sums(report)
    later = push(group, source)
    assert later.items_new == len(keys_of(group["b:8000"]))
    assert set().union(*map(keys_of, group.values())) == keys_of(alone(source))


def lost_in_the_middle(
    group: dict[str, Server], source: list[Episode], allow_missing: bool, **options: Any
) -> PushReport:
    """A push during which b goes away after its first item."""
    server = group["b:8000"]
    server.hold(1)

    def go_away(progress: Progress) -> None:
        if progress.items_confirmed:
            with server.changed:
                server.is_away = True
                server.plans.extend(StreamPlan(items=0, status="UNAVAILABLE") for _ in range(1000))
            server.break_streams()

    limits = RequestLimits(items=1, bytes=1000)
    plan = planned(group, source, deadlines=SHORT, limits=limits, on_progress=go_away, **options)
    return pusher(group, plan, allow_missing).run()


@pytest.fixture
def noted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", -1.0)


@pytest.mark.usefixtures("noted_each_time")
def test_a_server_that_is_lost_ends_the_push_which_says_what_is_stored_where(tmp_path: Path) -> None:
    source, group = episodes(12), servers(3)
    with pytest.raises(ServerUnreachable, match="b:8000") as caught:
        lost_in_the_middle(group, source, allow_missing=False, ledger=tmp_path / "l.db")
    report = caught.value.report
    assert report is not None
    check_sums(report)
    stored = {address: server_report.episodes_pushed for address, server_report in report.servers.items()}
    assert stored["a:8000"] == report.servers["a:8000"].episodes_read  # what the others got is confirmed
    assert stored["c:8000"] == report.servers["c:8000"].episodes_read


@pytest.mark.usefixtures("noted_each_time")
def test_the_rest_goes_on_where_that_is_allowed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, group = episodes(12), servers(3)
    with caplog.at_level(logging.WARNING, "rlds2reverb.push"):
        report = lost_in_the_middle(group, source, allow_missing=True, ledger=tmp_path / "l.db")
    assert "server b:8000 is missing; the push continues without it" in caplog.text
    lost = report.servers["b:8000"]
    assert lost.stopped.startswith("ServerUnreachable")
    assert lost.episodes_pushed + lost.episodes_unconfirmed + lost.episodes_left_out == lost.episodes_read
    assert report.episodes_read == 12
    check_sums(report)
    others = report.episodes_read - lost.episodes_read
    assert report.episodes_pushed == others + lost.episodes_pushed
    server = group["b:8000"]
    server.is_away = False
    server.plans.clear()
    server.release()
    later = push(group, source, ledger=tmp_path / "l.db")
    assert later.episodes_resumed == report.episodes_pushed
    assert set().union(*map(keys_of, group.values())) == keys_of(alone(source))


@pytest.mark.usefixtures("noted_each_time")
def test_the_last_server_may_not_be_lost() -> None:
    only = {"b:8000": servers(2)["b:8000"]}
    with pytest.raises(ServerUnreachable, match="b:8000"):
        lost_in_the_middle(only, episodes(12), allow_missing=True)


def test_a_server_that_is_restarted_is_lost_for_this_push() -> None:
    group = servers(2)
    server = group["a:8000"]
    server.hold(1)

    def restart(progress: Progress) -> None:
        if progress.waiting and server.state_id == 100:
            server.restart()
            server.release()

    plan = planned(group, episodes(10), deadlines=Deadlines(notice=0.05, stall=5.0), on_progress=restart)
    with pytest.raises(ServerRestarted, match="a:8000"):
        pusher(group, plan).run()


# The ledger.


def test_one_ledger_holds_the_accounts_of_all(tmp_path: Path) -> None:
    source, group = episodes(9), servers(3)
    push(group, source, ledger=tmp_path / "l.db")
    again = push(group, source, ledger=tmp_path / "l.db")
    assert (again.episodes_resumed, again.items_confirmed) == (9, 0)
    with group["b:8000"].changed:
        group["b:8000"].restart()  # nothing is stored there any more
    third = push(group, source, ledger=tmp_path / "l.db")
    assert third.episodes_pushed == third.servers["b:8000"].episodes_pushed == again.servers["b:8000"].episodes_resumed
    assert set().union(*map(keys_of, group.values())) == keys_of(alone(source))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_server_that_is_added_gets_nothing_of_what_others_have_by_the_ledger(tmp_path: Path, restarted: bool) -> None:
    source, group = episodes(20), servers(4)
    two = {address: group[address] for address in ("a:8000", "b:8000")}
    push(two, source[:10], ledger=tmp_path / "l.db")
    if restarted:  # from a checkpoint: another process, with the same items
        for server in two.values():
            server.state_id += 50
    held = [keys_of(server) for server in two.values()]
    report = push(group, source, ledger=tmp_path / "l.db")
    assert (report.episodes_resumed, report.episodes_pushed) == ((0, 20) if restarted else (10, 10))
    assert [keys & keys_of(server) for keys, server in zip(held, two.values())] == held
    everything = [keys_of(server) for server in group.values()]
    assert sum(map(len, everything)) == len(set().union(*everything)) == len(keys_of(alone(source)))


def test_a_missing_server_keeps_what_the_ledger_says_it_has(tmp_path: Path) -> None:
    source, group = episodes(10), servers(4)
    two = {address: group[address] for address in ("a:8000", "b:8000")}
    first = push(two, source, ledger=tmp_path / "l.db")
    report = push(group, source, away=["b:8000"], ledger=tmp_path / "l.db")
    assert report.episodes_left_out == first.servers["b:8000"].episodes_pushed
    assert not keys_of(group["c:8000"]) | keys_of(group["d:8000"])


def test_names_place_the_episodes_whatever_the_addresses(tmp_path: Path) -> None:
    source, group = episodes(12), servers(3)
    push(group, source, names={address: address[0] for address in group})
    held = [keys_of(server) for server in group.values()]
    elsewhere = {f"gateway:{9000 + number}": server for number, server in enumerate(group.values())}
    again = push(elsewhere, source, names=dict(zip(elsewhere, "abc")), ledger=tmp_path / "l.db")
    assert again.items_new == 0
    assert [keys_of(server) for server in group.values()] == held


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(2, 3), st.integers(1, 12))
def test_items_move_to_where_they_belong_when_servers_come_or_go(before: int, after: int, count: int) -> None:
    source, group = episodes(count), servers(3)
    first = {address: group[address] for address in [*group][:before]}
    then = {address: group[address] for address in [*group][3 - after :]}
    push(first, source)
    there = sum(len(keys_of(server)) for server in then.values())
    report = push(then, source, move=True)
    held = [keys_of(server) for server in then.values()]
    assert set().union(*held) == keys_of(alone(source))
    assert sum(map(len, held)) == len(keys_of(alone(source)))  # nothing twice
    assert report.items_moved == there + (report.items_new or 0) - len(keys_of(alone(source)))
    assert push(then, source, move=True).items_moved == 0


def test_nothing_moves_from_a_server_to_one_that_is_missing() -> None:
    source, group = episodes(12), servers(3)
    push({"a:8000": group["a:8000"]}, source)
    report = push(group, source, away=["b:8000"], move=True)
    assert report.episodes_left_out
    assert set().union(*map(keys_of, group.values())) == keys_of(alone(source))
    push(group, source, move=True)
    assert sum(len(keys_of(server)) for server in group.values()) == len(keys_of(alone(source)))


@pytest.mark.parametrize("others", [{"again": True}, {"ledger": "l.db"}])
def test_what_does_not_go_with_moving_is_refused(others: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--move"):
        planned(servers(2), episodes(1), move=True, **others)
    with pytest.raises(ConfigError, match="is for several servers"):
        in_memory.push(Server(), episodes(1), move=True)


# In Python.


def test_a_client_of_several_servers_pushes() -> None:
    group = servers(2)
    transports = [MemoryTransport(server, address) for address, server in group.items()]
    told: list[Progress] = []
    with Client(transports) as client:
        plan = client.plan(episodes(4), "replay")
        report = client.push(episodes(4), "replay", on_progress=told.append)
        assert (plan.episodes, report.episodes_pushed) == (4, 4)
        assert (told[-1].episodes, told[-1].episode_count, told[-1].items_confirmed) == (4, 4, report.items_confirmed)
        with pytest.raises(ConfigError, match="expected what `plan` of these servers gave"):
            client.pusher(in_memory.planned(group["a:8000"], episodes(4)))
    assert Client.push.__doc__ is not None
    assert "allow_eviction: " in Client.push.__doc__
