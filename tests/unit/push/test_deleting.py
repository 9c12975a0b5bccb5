"""Episodes deleted from servers in memory: they go, and stay out, whatever is pushed; until they are let in again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Client
from rlds2reverb.errors import ConfigError, TransportError, WireError
from rlds2reverb.push import pages
from rlds2reverb.servers.episodes import DELETED, EPISODES, Deletion, read_pages, write_deletion
from rlds2reverb.testing import MemoryServer, MemoryTransport
from tests.support.push.in_memory import Server, episodes
from tests.support.servers.own import entries_of, server_with_own_tables

NAMED = [replace(episode, id=f"e{number}") for number, episode in enumerate(episodes(8))]
ALL = {episode.id for episode in NAMED}


def client_of(*servers: MemoryServer) -> Client:
    return Client([MemoryTransport(server, f"s{number}:1") for number, server in enumerate(servers)])


def items_of_episodes(view: Any = "two_step", table: str = "replay") -> dict[str, set[int]]:
    """Episode -> keys of its items, each pushed alone."""
    keys = {}
    for episode in NAMED:
        server = Server({table: server_with_own_tables(table).tables[table].info})
        client_of(server).push([episode], table, view)
        keys[episode.id] = set(server.items[table])
    return keys


ITEMS = items_of_episodes()


def names_in(server: Server, table: str = "replay", items: dict[str, set[int]] = ITEMS) -> set[str]:
    """The episodes that a table has; all items of each, and of no other."""
    held = set(server.items.get(table, ()))
    names = {name for name, keys in items.items() if keys & held}
    assert held == {key for name in names for key in items[name]}
    return names


def test_an_episode_that_was_deleted_does_not_come_back() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    client.push(NAMED, "replay")
    expected = client.delete_episodes(episodes=["e2", "e5"], dry_run=True)
    assert (expected.episodes, expected.items, names_in(server)) == (2, {"replay": 6}, ALL)
    report = client.delete_episodes(episodes=["e2", "e5", "e9"], note="why")
    assert (report.episodes, report.items, report.unknown, report.names) == (2, {"replay": 6}, ("e9",), ("e2", "e5"))
    assert names_in(server) == ALL - {"e2", "e5"}
    choices: list[dict[str, Any]] = [{}, {"view": "two_step"}, {"on_invalid": "skip"}]
    for options in choices:
        account = client.push(NAMED, "replay", **options)
        assert (account.episodes_deleted, account.episodes_pushed, account.episodes_read) == (2, 6, 6)
        assert account.episodes_unread == 0
        assert names_in(server) == ALL - {"e2", "e5"}
    assert client.delete_episodes(episodes=["e2"]).items == {"replay": 0}  # again does no harm
    client.delete_episodes(episodes=["e2", "e5"], restore=True)
    assert names_in(server) == ALL - {"e2", "e5"}
    client.push(NAMED, "replay")
    assert names_in(server) == ALL
    kinds = [(entry.kind, entry.find_state(), entry.episodes, entry.items) for entry in entries_of(server)]
    assert kinds[1] == ("delete", "done", 2, 6)
    assert [kind for kind, *_ in kinds] == ["push", "delete", *["push"] * 3, "delete", "restore", "push"]
    assert entries_of(server)[1].note == "why"
    assert entries_of(server)[1].options == {"episodes": "e2, e5, e9"}


operations = st.lists(
    st.tuples(
        st.sampled_from(["push", "delete", "restore"]),
        st.sets(st.integers(0, 7), min_size=1),
        st.sampled_from([("a",), ("b",), ("a", "b")]),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(operations, st.integers(1, 3))
def test_tables_hold_what_was_pushed_and_not_deleted(
    work: list[tuple[str, set[int], tuple[str, ...]]], page: int
) -> None:
    server = server_with_own_tables("a", "b")
    client, items = client_of(server), {table: items_of_episodes(table=table) for table in ("a", "b")}
    held: dict[str, set[str]] = {"a": set(), "b": set()}
    out: dict[str, set[str]] = {"a": set(), "b": set()}
    pushed: dict[str, set[str]] = {"a": set(), "b": set()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_EPISODES", page)
        for kind, numbers, tables in work:
            names = {f"e{number}" for number in numbers}
            if kind == "push":
                client.push([episode for episode in NAMED if episode.id in names], list(tables))
                for table in tables:
                    pushed[table] |= names - out[table]
                    held[table] |= names - out[table]
                continue
            is_restore = kind == "restore"
            known = (
                set().union(*((out[table] if is_restore else pushed[table] | out[table]) for table in tables)) & names
            )
            if not known:
                with pytest.raises(ConfigError, match="no episode was chosen"):
                    client.delete_episodes(table=tables, episodes=sorted(names), restore=is_restore)
                continue
            assert client.delete_episodes(table=tables, episodes=sorted(names), restore=is_restore).episodes == len(
                known
            )
            for table in tables:
                if is_restore:
                    out[table] -= known
                else:
                    out[table] |= known
                    held[table] -= known
    for table in ("a", "b"):
        assert names_in(server, table, items[table]) == held[table]


def test_a_ledger_does_not_bring_it_back_and_does_not_keep_it_out(tmp_path: Path) -> None:
    server = server_with_own_tables()
    client = client_of(server)
    ledger: dict[str, Any] = {"ledger": tmp_path / "push.db"}
    client.push(NAMED, "replay", **ledger)
    client.delete_episodes(episodes=["e1"])
    account = client.push(NAMED, "replay", **ledger)
    assert (account.episodes_resumed, names_in(server)) == (8, ALL - {"e1"})
    server.state_id += 1  # the ledger proves nothing any more
    account = client.push(NAMED, "replay", **ledger)
    assert (account.episodes_resumed, account.episodes_deleted, names_in(server)) == (0, 1, ALL - {"e1"})
    client.delete_episodes(episodes=["e1"], restore=True)
    for _ in range(2):
        assert client.push(NAMED, "replay", **ledger).episodes_unread == 0
        assert names_in(server) == ALL


def test_by_push_by_dataset_and_by_source() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    client.push(NAMED[:3], "replay")
    client.push(NAMED[2:6], "replay")
    client.push(NAMED[2:6], "replay")  # adds nothing, and is listed all the same
    first, _, third = (entry.id for entry in entries_of(server))
    names = lambda **how: client.delete_episodes(dry_run=True, **how).names  # noqa: E731
    assert names(pushes=[first]) == ("e0", "e1", "e2")
    assert names(pushes=[third]) == ("e2", "e3", "e4", "e5")
    assert names(pushes=[third], episodes=["e3", "e0"]) == ("e3",)
    assert names(dataset=entries_of(server)[0].source) == ("e0", "e1", "e2", "e3", "e4", "e5")
    assert names(source=NAMED[1:2], table="replay") == ("e1",)
    assert names(source=NAMED, table="replay", pushes=[first]) == ("e0", "e1", "e2")
    client.delete_episodes(pushes=[first])
    delete = entries_of(server)[-1].id
    assert names_in(server) == {"e3", "e4", "e5"}
    assert client.delete_episodes(pushes=[delete], restore=True).names == ("e0", "e1", "e2")
    client.push(NAMED[:3], "replay")
    assert names_in(server) == {f"e{number}" for number in range(6)}


def test_of_several_views_and_tables_only_the_named_one() -> None:
    server = server_with_own_tables("a", "b", "c")
    client = client_of(server)
    views = {"a": "two_step", "b": "two_step", "c": "n_step:n=2"}
    client.push(NAMED, views)
    before = {table: len(server.items[table]) for table in views}
    assert client.delete_episodes(episodes=["e0"], table="a").items == {"a": 3}
    assert {table: len(server.items[table]) for table in views} == {**before, "a": before["a"] - 3}
    held = {table: set(server.items[table]) for table in views}
    account = client.push(NAMED, views)
    assert (account.episodes_deleted, account.episodes_pushed) == (0, 8)
    assert {table: set(server.items[table]) for table in views} == held
    client.delete_episodes(episodes=["e0"])
    assert client.push(NAMED, views).episodes_deleted == 1


def test_an_episode_is_out_of_all_servers_wherever_it_would_go() -> None:
    group = [server_with_own_tables(state_id=number) for number in range(3)]
    client = client_of(*group[:2])
    client.push(NAMED, "replay")
    held = [names_in(server) for server in group[:2]]
    assert set().union(*held) == ALL
    gone = {min(names) for names in held if names}
    assert client.delete_episodes(episodes=sorted(gone)).items == {"replay": 3 * len(gone)}
    assert set().union(*(names_in(server) for server in group[:2])) == ALL - gone
    other = client_of(*reversed(group[:2]))  # other names: episodes go elsewhere
    other.push(NAMED, "replay")
    assert set().union(*(names_in(server) for server in group[:2])) == ALL - gone
    assert [entry.kind for entry in entries_of(group[0])] == ["push", "delete", "push"]


def test_items_that_hold_several_episodes_are_refused() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    client.push(NAMED, "replay", "across_episodes:length=4")
    with pytest.raises(ConfigError, match="its items hold several episodes"):
        client.delete_episodes(episodes=["e0"])
    assert [entry.kind for entry in entries_of(server)] == ["push"]


def test_what_a_transform_and_identity_name_is_found_by_the_same_options() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    anonymous = [replace(episode, id="") for episode in episodes(4)]
    options: dict[str, Any] = {"identity": "columns=action"}
    client.push(anonymous, "replay", **options)
    with pytest.raises(ConfigError, match="no episode was chosen"):
        client.delete_episodes(anonymous[:1], "replay")
    assert client.delete_episodes(anonymous[:1], "replay", **options).items == {"replay": 3}
    assert client.push(anonymous, "replay", **options).episodes_deleted == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "which episodes"),
        ({"episodes": ["e0"], "table": "other"}, 'no table "other"'),
        ({"pushes": ["x"]}, "no episode was chosen"),
        ({"episodes": ["e0"], "restore": True}, "none of these was deleted"),
        ({"episodes": ["e0"], "identity": "columns=action"}, "give the source"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict[str, Any], message: str) -> None:
    server = server_with_own_tables()
    client = client_of(server)
    client.push(NAMED, "replay")
    with pytest.raises(ConfigError, match=message):
        client.delete_episodes(**how)
    assert names_in(server) == ALL


def test_a_server_without_a_list_says_so() -> None:
    server = Server()
    with pytest.raises(ConfigError, match="keeps no list of episodes"):
        client_of(server).delete_episodes(episodes=["e0"])


@pytest.mark.parametrize("calls", range(12))
def test_a_delete_that_stops_anywhere_is_finished_by_running_it_again(calls: int) -> None:
    """Each call of the transport in turn fails; a push in between brings nothing back that is named as deleted."""
    server = server_with_own_tables()
    client = client_of(server)
    client.push(NAMED, "replay")
    transport = MemoryTransport(server, "s0:1")
    stopping = Client(_FailingTransport(transport, calls))
    with suppress(TransportError):
        stopping.delete_episodes(episodes=["e3"])
    states = [entry.find_state() for entry in entries_of(server) if entry.kind == "delete"]
    assert states in ([], ["running"], ["stopped"], ["done"])
    is_named = bool(server.tables[DELETED].items)
    client.push(NAMED, "replay")
    assert client.delete_episodes(episodes=["e3"]).episodes == 1
    client.push(NAMED, "replay")
    assert names_in(server) == ALL - {"e3"}
    assert is_named or calls < 10


class _FailingTransport:
    """Fails for good after so many calls and streams."""

    def __init__(self, transport: MemoryTransport, calls: int) -> None:
        self._transport, self._left, self.address = transport, calls, transport.address

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if self._left <= 0:
            raise TransportError("server s0:1: cut, as planned")
        self._left -= 1
        method: Callable[..., Any] = getattr(self._transport, name)
        return method


def test_a_list_of_a_newer_version_stops_pushes_and_deletes_with_a_sentence() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    client.push(NAMED, "replay")
    newer = Deletion(entry="x", kind="delete", at=1.0, tables=("replay",), names=("e0",), format=2)
    write_deletion(MemoryTransport(server), newer, 10.0)
    for call in (lambda: client.push(NAMED, "replay"), lambda: client.delete_episodes(episodes=["e0"])):
        with pytest.raises(WireError, match="records of format 2, of a newer rlds2reverb"):
            call()


def test_a_list_that_cannot_be_written_stops_no_push(caplog: pytest.LogCaptureFixture) -> None:
    server = server_with_own_tables()
    del server.tables[EPISODES]
    infos = server_with_own_tables().server_info().own_tables

    class Lying(MemoryTransport):
        def server_info(self, at_once: bool = False) -> Any:
            info = super().server_info()
            return replace(info, own_tables={**infos, **info.own_tables})

    assert Client(Lying(server)).push(NAMED, "replay").episodes_pushed == 8
    assert "list of episodes could not be written" in caplog.text


def test_pages_hold_every_episode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_EPISODES", 3)
    server = server_with_own_tables()
    for _ in range(3):
        client_of(server).push(NAMED, "replay")
    listed, of_push = read_pages(MemoryTransport(server), 10.0)
    assert sorted(name for page in listed for name in page.names) == sorted(ALL)
    assert sorted(map(len, of_push.values())) == [3, 3, 3]


def test_episodes_of_an_actor_are_not_listed() -> None:
    server = server_with_own_tables()
    with client_of(server).writer("replay") as to:
        for number in range(3):
            to.append(observation=number, action=0, reward=0.0)
        to.end_episode(terminal=True)
    assert not server.tables[EPISODES].items
