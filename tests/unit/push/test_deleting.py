"""Episodes deleted from servers in memory: they go, and stay out, whatever is pushed; until they are let in again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Client
from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError, WireError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.push import deleting, pages
from rlds2reverb.push.keys import Placement
from rlds2reverb.push.run import Push
from rlds2reverb.push.server_push import ServerPush
from rlds2reverb.servers import journal, own_tables
from rlds2reverb.servers.episodes import Deletion, EpisodePage, read_pages, write_deletions, write_pages
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.wire.messages import DELETED, EPISODES, JOURNAL
from tests.support.push.in_memory import Server, episodes, options_of
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
    assert (report.items, report.unknown, report.names) == ({"replay": 6}, ("e9",), ("e2", "e5", "e9"))
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
        st.sampled_from(["push", "ledgered push", "delete", "restore"]),
        st.sets(st.integers(0, 7), min_size=1),
        st.sampled_from([("a",), ("b",), ("a", "b")]),
        st.booleans(),
    ),
    max_size=10,
)


@settings(max_examples=40, deadline=None)
@given(operations, st.integers(1, 3))
def test_tables_hold_what_was_pushed_and_not_deleted(
    work: list[tuple[str, set[int], tuple[str, ...], bool]], page: int
) -> None:
    """Pushes, deletes and restores, by a client of one server or of two, with a ledger or without, against sets of names."""
    servers = [server_with_own_tables("a", "b", state_id=number) for number in range(2)]
    clients = {1: client_of(servers[0]), 2: client_of(*servers)}
    placement = Placement(["s0:1", "s1:1"])
    items = {table: items_of_episodes(table=table) for table in ("a", "b")}
    held: list[dict[str, set[str]]] = [{"a": set(), "b": set()} for _ in servers]
    out: dict[str, set[str]] = {"a": set(), "b": set()}
    rows: dict[tuple[str, ...], dict[str, int]] = {}  # of the ledger: tables -> episode -> number of its server
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(pages, "PAGE_EPISODES", page)
        for kind, numbers, tables, is_group in work:
            names, client = {f"e{number}" for number in numbers}, clients[1 + is_group]
            if kind.endswith("push"):
                options: dict[str, Any] = {"ledger": Path(folder) / "l.db"} if kind == "ledgered push" else {}
                own_rows = rows.setdefault(tables, {}) if options else {}
                report = client.push([episode for episode in NAMED if episode.id in names], list(tables), **options)
                remaining = {name for name in names if any(name not in out[table] for table in tables)}
                assert report.episodes_deleted == len(names - remaining)
                resumed = {name for name in remaining if name in own_rows and (is_group or own_rows[name] == 0)}
                assert report.episodes_resumed == len(resumed)
                for name in remaining - resumed:
                    number = int(placement.of(name)[1]) if is_group else 0
                    own_rows[name] = number
                    for table in tables:
                        held[number][table] |= {name} - out[table]
                continue
            is_restore = kind == "restore"
            if is_restore and not names & (out[tables[0]] | out[tables[-1]]):
                with pytest.raises(ConfigError, match="no episode was chosen"):
                    client.delete_episodes(table=tables, episodes=sorted(names), restore=True)
                continue
            client.delete_episodes(table=tables, episodes=sorted(names), restore=is_restore)
            for table in tables:
                if is_restore:
                    out[table] -= names
                else:
                    out[table] |= names
                    for own in held[: 1 + is_group]:
                        own[table] -= names
            if is_group:  # what the second server has missed goes with it
                for table in out:
                    held[1][table] -= out[table]
            if is_restore:
                for own_rows in rows.values():  # each push forgets what was let in again
                    for name in names:
                        own_rows.pop(name, None)
    for server, own in zip(servers, held):
        assert {table: names_in(server, table, items[table]) for table in own} == own


def test_a_ledger_does_not_bring_it_back_and_does_not_keep_it_out(tmp_path: Path) -> None:
    server = server_with_own_tables()
    client = client_of(server)
    ledger: dict[str, Any] = {"ledger": tmp_path / "push.db"}
    client.push(NAMED, "replay", **ledger)
    client.delete_episodes(episodes=["e1"])
    account = client.push(NAMED, "replay", **ledger)
    assert (account.episodes_resumed, account.episodes_deleted, account.items_made) == (7, 1, {"replay": 21})
    server.state_id += 1  # the ledger proves nothing any more
    account = client.push(NAMED, "replay", **ledger)
    assert (account.episodes_resumed, account.episodes_deleted, names_in(server)) == (0, 1, ALL - {"e1"})
    client.delete_episodes(episodes=["e1"], restore=True)
    for resumed in (7, 8):
        account = client.push(NAMED, "replay", **ledger)
        assert (account.episodes_unread, account.episodes_resumed, names_in(server)) == (0, resumed, ALL)


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
    without = client.delete_episodes(anonymous[:1], "replay")
    assert (without.unknown, without.items) == (without.names, {"replay": 0})
    assert client.delete_episodes(anonymous[:1], "replay", **options).items == {"replay": 3}
    assert client.push(anonymous, "replay", **options).episodes_deleted == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "which episodes"),
        ({"episodes": ["e0"], "table": "other"}, 'no table "other"'),
        ({"pushes": ["x"]}, "no episode was chosen"),
        ({"dataset": "other"}, "no episode was chosen.* pushes of .* are listed"),
        ({"episodes": ["e0"], "restore": True}, "none of these was deleted"),
        ({"episodes": ["e0"], "identity": "columns=action"}, "give the source"),
        ({"pushes": "nope"}, "no push, delete or writer has the ID nope; rlds2reverb journal shows the pushes$"),
        ({"dataset": "other"}, "--dry-run what would go$"),
        ({"episodes": ["e0", ""]}, '--episode "": expected a name'),
        ({"episodes": ""}, '--episode ""'),
        ({"pushes": [""], "episodes": ["e0"]}, '--push ""'),
        ({"pushes": ["x"], "dataset": ""}, '--dataset ""'),
        ({"source": NAMED[:2], "table": "replay", "episodes": ["e5"]}, "the source has none of these names"),
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


@pytest.mark.parametrize("calls", range(14))
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
    assert is_named or calls < 12


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
    write_deletions(MemoryTransport(server), [newer], 10.0)
    for call in (lambda: client.push(NAMED, "replay"), lambda: client.delete_episodes(episodes=["e0"])):
        with pytest.raises(WireError, match=r"a list of episodes of version 2; .* use a newer one"):
            call()


def test_a_list_that_cannot_be_written_stops_no_push(caplog: pytest.LogCaptureFixture) -> None:
    server = server_with_own_tables()
    del server.tables[EPISODES]
    infos = server_with_own_tables().server_info().own_tables

    class Lying(MemoryTransport):
        def server_info(self, at_once: bool = False) -> Any:
            info = super().server_info()
            return replace(info, own_tables={**infos, **info.own_tables})

    report = Client(Lying(server)).push(NAMED, "replay")
    assert (report.episodes_pushed, [notice.code for notice in report.notices]) == (8, ["episodes_not_listed"])
    assert "list of episodes could not be written" in caplog.text


def test_pages_hold_every_episode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_EPISODES", 3)
    server = server_with_own_tables()
    for _ in range(3):
        client_of(server).push(NAMED, "replay")
    listed, pushes = read_pages(MemoryTransport(server), 10.0)
    assert sorted(name for page in listed for name in page.names) == sorted(ALL)
    assert [len(push.pages) for push in pushes] == [3, 3, 3]


def test_episodes_of_an_actor_are_not_listed() -> None:
    server = server_with_own_tables()
    with client_of(server).writer("replay") as to:
        for number in range(3):
            to.append(observation=number, action=0, reward=0.0)
        to.end_episode(terminal=True)
    assert not server.tables[EPISODES].items


def test_a_server_that_is_added_learns_what_stays_out() -> None:
    first, second = (server_with_own_tables(state_id=number) for number in range(2))
    client_of(first).push(NAMED, "replay")
    client_of(first).delete_episodes(episodes=sorted(ALL - {"e7"}))
    report = client_of(first, second).push(NAMED, "replay")
    assert (report.episodes_deleted, names_in(first) | names_in(second)) == (7, {"e7"})
    client_of(second).push(NAMED, "replay")  # alone, it knows by itself now
    assert names_in(second) <= {"e7"}
    client_of(second).delete_episodes(episodes=["e1"], restore=True)  # the other one learns of that, too
    client_of(first, second).push(NAMED, "replay")
    client_of(first).push(NAMED, "replay")
    assert names_in(first) == {"e1", "e7"}


def test_a_delete_by_push_takes_what_other_pushes_and_servers_have_of_its_episodes() -> None:
    first, second = (server_with_own_tables(state_id=number) for number in range(2))
    client_of(first).push(NAMED[:4], "replay")
    both = client_of(first, second)
    both.push(NAMED, "replay", again=True)
    (early,) = (entry.id for entry in entries_of(first)[:1])
    expected = both.delete_episodes(pushes=[early], dry_run=True)
    report = both.delete_episodes(pushes=[early])
    assert (report.names, report.items) == (tuple(f"e{number}" for number in range(4)), {"replay": 4 * 3 * 2})
    assert (expected.names, expected.items) == (report.names, report.items)
    late = entries_of(second)[0].id
    assert both.delete_episodes(pushes=[late]).items == {"replay": 4 * 3}  # one id on both servers
    assert [len(server.items.get("replay", ())) for server in (first, second)] == [0, 0]


def test_a_missing_server_is_named_and_what_it_holds_is_left() -> None:
    first, second = (server_with_own_tables(state_id=number) for number in range(2))

    class Away(MemoryTransport):
        is_away = False

        def server_info(self, at_once: bool = False) -> Any:
            if self.is_away:
                raise ServerUnreachable("away, as planned")
            return super().server_info(at_once)

    away = Away(second, "s1:1")
    client = Client([MemoryTransport(first, "s0:1"), away], allow_missing=True)
    client.push(NAMED, "replay")
    away.is_away = True
    with pytest.raises(ServerUnreachable):  # nothing is done
        Client([MemoryTransport(first, "s0:1"), away]).delete_episodes(episodes=sorted(ALL))
    assert len(entries_of(first)) == 1
    report = client.delete_episodes(episodes=sorted(ALL))
    assert (report.unknown, list(report.missing)) == ((), ["s1:1"])
    assert not names_in(first)
    away.is_away = False
    assert client_of(first, second).push(NAMED, "replay").episodes_deleted == 8
    report = client_of(first, second).delete_episodes(episodes=sorted(ALL))
    assert (report.missing, names_in(second)) == ({}, set())


def test_copies_of_a_content_go_and_stay_out_together() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    first, second = episodes(2)
    client.push([first, second, first], "replay")
    names = client.delete_episodes([first, second], "replay", dry_run=True).names
    (chosen,) = client.delete_episodes([first], "replay", dry_run=True).names
    assert len(names) == 2
    for spelled in (f"{chosen}#2", chosen.removeprefix("content:")):
        assert client.delete_episodes(episodes=[spelled]).names == (chosen,)
        report = client.push([first, second, first, first], "replay")
        assert (report.episodes_deleted, report.episodes_pushed, len(server.items["replay"])) == (3, 1, 3)


def test_names_are_spelled_alike_with_a_source_and_without() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    first, second = episodes(2)
    client.push(EpisodeList([first, second, first], "A"), "replay")
    (name,) = client.delete_episodes([first], "replay", dry_run=True).names
    for spelled in (name, f"{name}#2", name.removeprefix("content:")):
        assert client.delete_episodes([first, second], "replay", episodes=spelled, dry_run=True).names == (name,)
    push = entries_of(server)[0].id
    assert client.delete_episodes(pushes=push, dry_run=True).episodes == 2
    client.delete_episodes(EpisodeList([first], "A@train[:1]"), "replay")
    assert entries_of(server)[-1].source == "A@train[:1]"
    client.delete_episodes([second], "replay")
    assert "array" not in entries_of(server)[-1].source  # not the episodes themselves


def test_episodes_of_writers_are_said_to_be_not_listed() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    with client.writer("replay") as to:
        for number in range(3):
            to.append(observation=number, action=0, reward=0.0)
        to.end_episode(terminal=True)
    with pytest.raises(ConfigError, match="episodes of writers are not listed"):
        client.delete_episodes(pushes=entries_of(server)[0].id)


def test_names_that_are_not_listed_stay_out_as_well() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    client.push(NAMED[:2], "replay")
    report = client.delete_episodes(NAMED[:5], "replay")
    assert (report.episodes, report.unknown, report.items) == (5, ("e2", "e3", "e4"), {"replay": 6})
    client.push(NAMED, "replay")
    assert names_in(server) == {"e5", "e6", "e7"}


def test_a_dataset_is_what_any_of_its_pushes_has_brought() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    client.push(EpisodeList(NAMED, "A").first(3), "replay")
    client.push(EpisodeList(NAMED[:4], "B"), "replay")
    names = lambda dataset: client.delete_episodes(dataset=dataset, dry_run=True).names  # noqa: E731
    assert entries_of(server)[0].source == "A, first 3"
    client.push(EpisodeList(NAMED[5:], "A@train[5:]"), "replay")
    assert names("A, first 3") == ("e0", "e1", "e2")
    assert names("A") == ("e0", "e1", "e2", "e5", "e6", "e7")
    assert names("B") == ("e0", "e1", "e2", "e3")


@pytest.mark.parametrize("failures", [1, 3, 8, 100])
def test_a_ledger_has_only_what_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    server, calls, write = server_with_own_tables(), count(), write_pages

    def write_later(*given: Any) -> list[str]:
        if next(calls) < failures:
            raise TransportError("as planned")
        return write(*given)

    def note_each(push: Push, together: Any) -> None:
        for episode in together:
            take(push, [episode])
            push._on_each(ServerPush.drain)
            push._note()

    take = Push._take
    monkeypatch.setattr(Push, "_take", note_each)
    monkeypatch.setattr(pages, "LEDGER_SECONDS", -1.0)
    monkeypatch.setattr(pages, "write_pages", write_later)
    monkeypatch.setattr(pages, "MOST_UNWRITTEN", 5)
    client, ledger = client_of(server), {"ledger": tmp_path / "l.db"}
    report = client.push(NAMED, "replay", **ledger)  # type: ignore[arg-type]
    listed = {name for page in read_pages(MemoryTransport(server), 10.0)[0] for name in page.names}
    assert report.episodes_pushed == 8
    assert [notice.code for notice in report.notices] == ([] if listed == ALL else ["episodes_not_listed"])
    assert (failures > 3) == (listed != ALL)
    failures = 0
    report = client.push(NAMED, "replay", **ledger)  # type: ignore[arg-type]
    assert (report.episodes_resumed, report.items_new) == (len(listed), 0)
    assert client.delete_episodes(episodes=sorted(ALL)).items == {"replay": 24}


def test_what_was_deleted_takes_no_room(tmp_path: Path) -> None:
    tables = {**server_with_own_tables().tables, "replay": Server({"replay": table_info(max_size=24)}).tables["replay"]}
    server = Server({name: table.info for name, table in tables.items()})
    client, ledger = client_of(server), {"ledger": tmp_path / "l.db"}
    client.push(NAMED, "replay", **ledger)  # type: ignore[arg-type]
    client.delete_episodes(episodes=["e0", "e1"])
    more = [*NAMED, replace(episodes(9)[8], id="e8")]
    for options in (ledger, {}):
        assert client.push(more, "replay", **options).items_made == {"replay": 21}  # type: ignore[arg-type]
    assert len(server.items["replay"]) == 21


def test_items_are_counted_for_the_tables_that_got_them() -> None:
    server = server_with_own_tables("a", "b")
    client = client_of(server)
    client.delete_episodes(table="a", episodes=["e0"])
    assert client.push(NAMED, ["a", "b"]).items_made == {"a": 21, "b": 24}


def test_a_stream_is_pushed_without_what_stays_out() -> None:
    one, two = (server_with_own_tables("replay") for _ in range(2))
    client_of(one).delete_episodes(episodes=["e0", "e4"])
    report = client_of(one).push(NAMED, "replay", "fragments:length=3")
    client_of(two).push(
        [episode for episode in NAMED if episode.id not in ("e0", "e4")], "replay", "fragments:length=3"
    )
    assert report.episodes_deleted == 2
    assert one.items["replay"].keys() == two.items["replay"].keys()


@pytest.mark.parametrize("view", ["fragments:length=3", "across_episodes:length=3"])
def test_a_stream_of_several_tables_lacks_an_episode_that_was_deleted_from_one(view: str) -> None:
    one, two, three = (server_with_own_tables("a", "b") for _ in range(3))
    without = [episode for episode in NAMED if episode.id != "e1"]
    for server in (one, three):
        client_of(server).delete_episodes(episodes=["e1"], table="a")
    report = client_of(one).push(NAMED, ["a", "b"], view)
    client_of(two).push(without, ["a", "b"], view)
    assert [one.items[table].keys() for table in "ab"] == [two.items[table].keys() for table in "ab"]
    assert [(notice.code, notice.count) for notice in report.notices] == [("left_out_of_stream", 1)]
    assert (report.notices[0].text.startswith('table "b": 1 episode left out'), report.episodes_deleted) == (True, 1)
    assert report.items_made == {table: len(one.items[table]) for table in "ab"}
    report = client_of(three).push(NAMED, {"a": view, "b": view})  # each with a stream of its own
    assert (three.items["a"].keys(), report.notices) == (one.items["a"].keys(), ())
    client_of(two).reset("b")
    client_of(two).push(NAMED, "b", view)
    assert three.items["b"].keys() == two.items["b"].keys()


def test_pages_are_joined_as_a_push_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_EPISODES", 1)
    monkeypatch.setattr(pages, "MOST_ITEMS", 3)
    monkeypatch.setattr(own_tables, "MOST_ITEMS", 3)
    server = server_with_own_tables()
    client_of(server).push(NAMED, "replay")
    assert len(server.tables[EPISODES].items) <= 4
    assert client_of(server).delete_episodes(pushes=[entries_of(server)[0].id], dry_run=True).episodes == 8


def test_an_interruption_while_pages_are_finished_leaves_them_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class WritingThread:
        joins = 0

        def __init__(self, **_: object) -> None: ...
        def start(self) -> None: ...
        def is_alive(self) -> bool:
            return True

        def join(self, seconds: float | None = None) -> None:
            self.joins += 1
            if self.joins == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", WritingThread)
    writer = pages.PageWriter(MemoryTransport(server_with_own_tables()), "p", "s", 1.0)
    with pytest.raises(KeyboardInterrupt), writer.finished_beside():
        pass
    assert (writer.failure, writer._has_given_up) == ("the push was stopped", True)


def test_names_may_be_any_text(tmp_path: Path) -> None:
    """Those of bytes that are no UTF-8 as well, and text that looks like their escapes."""
    server = server_with_own_tables()
    client, ledger = client_of(server), {"ledger": tmp_path / "l.db"}
    texts = ["caf\udce9", "caf\\udce9", "\ud83d\ude00", "é"]
    named = [replace(episode, id=text) for episode, text in zip(NAMED, texts)]
    push = lambda **options: client.push(EpisodeList(named, "d\udcff"), "replay", **options)  # noqa: E731
    assert push(**ledger).episodes_pushed == 4
    assert (push(**ledger).episodes_resumed, push().items_new) == (4, 0)
    for dataset in ("d\udcff", "d\\udcff"):
        assert client.delete_episodes(dataset=dataset, dry_run=True).names == tuple(sorted(texts))
    for number, asked_for in enumerate(["caf\udce9", "\\ud83d\\ude00"]):
        report = client.delete_episodes(episodes=[asked_for])
        assert (report.names, report.items) == ((texts[2 * number],), {"replay": 3})
    for options in (ledger, {}):
        assert push(**options).episodes_deleted == 2
    assert client.delete_episodes(episodes=texts, restore=True).names == ("caf\udce9", "\ud83d\ude00")
    assert (push(**ledger).episodes_resumed, len(server.items["replay"])) == (2, 12)


def test_a_push_that_was_planned_before_the_first_delete_leaves_it_out() -> None:
    server = server_with_own_tables()
    client = client_of(server)
    client.push(NAMED, "replay")
    plan = client.planned(NAMED, options_of())
    client.delete_episodes(episodes=["e1"])
    assert client.pusher(plan).run().episodes_deleted == 1
    assert names_in(server) == ALL - {"e1"}


def test_a_server_that_missed_a_delete_is_named_and_the_delete_runs_again_by_its_id() -> None:
    first, second = (server_with_own_tables("a", "b", state_id=number) for number in range(2))
    both = client_of(first, second)
    both.push(NAMED, ["a", "b"])
    held = sorted(names_in(second, "a", items_of_episodes(table="a")))
    client_of(first).delete_episodes(table="a", episodes=held)
    report = both.push(NAMED, ["a", "b"])
    entry = entries_of(first)[1].id
    (text,) = (notice.text for notice in report.notices if notice.code == "deletes_missed")
    assert (text.startswith("server s1:1 lacked"), text.endswith(f"delete --push {entry}")) == (True, True)
    assert both.push(NAMED, ["a", "b"]).notices == report.notices  # until a delete has run
    again = both.delete_episodes(pushes=[entry])
    assert (list(again.names), again.items) == (held, {"a": 3 * len(held)})
    assert both.delete_episodes(pushes=[entry], restore=True).items == {"a": 0}
    report = both.push(NAMED, ["a", "b"])
    assert (report.items_new, report.notices) == (3 * len(held), ())


@pytest.mark.parametrize("pushes_between", [0, 2])
@pytest.mark.parametrize("how", [{"episodes": ["e9"]}, {"episodes": ["e0"], "restore": True}])
def test_any_later_delete_takes_out_what_a_server_has_missed(how: dict[str, Any], pushes_between: int) -> None:
    first, second = (server_with_own_tables(state_id=number) for number in range(2))
    both = client_of(first, second)
    client_of(second).push(NAMED, "replay")  # on the one that misses it
    client_of(first).delete_episodes(episodes=["e0", "e1", "e2"])
    for _ in range(pushes_between):
        codes = [[notice.code for notice in client.push(NAMED[3:], "replay").notices] for client in (both, both)]
        assert codes == [["deletes_missed"]] * 2
    assert names_in(second) == ALL
    kept = {"e0"} if "restore" in how else set()
    count = 6 if kept else 9
    assert both.delete_episodes(**how, dry_run=True).items == {"replay": count}
    assert both.delete_episodes(**how).items == {"replay": count}
    assert names_in(second) == ALL - {"e0", "e1", "e2"} | kept
    assert not both.push(NAMED[3:], "replay").notices


@pytest.mark.parametrize(
    ("restored", "command"),
    [(["e0", "e1"], ""), (["e0"], "--episode e1 --table replay"), ([], "--push {entry}")],
)
def test_the_command_for_missed_deletes_deletes_nothing_else(restored: list[str], command: str) -> None:
    first, second = (server_with_own_tables(state_id=number) for number in range(2))
    both, alone = client_of(first, second), client_of(first)
    client_of(second).push(NAMED, "replay")
    entry = alone.delete_episodes(episodes=["e0", "e1"]).entry
    if restored:
        alone.delete_episodes(episodes=restored, restore=True)
    texts = [notice.text for notice in both.push(NAMED, "replay").notices]
    assert [text.partition("rlds2reverb delete ")[2] for text in texts] == [command.format(entry=entry)] * bool(command)
    assert [f"deletes of {2 - len(restored)} episode" in text for text in texts] == [True] * bool(command)


def test_pushes_that_may_not_delete_add_their_entries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (own_tables, journal, pages):
        monkeypatch.setattr(module, "MOST_ITEMS", 8)
    server = server_with_own_tables()

    class Pusher(MemoryTransport):
        def delete_items(self, table: str, item_keys: Any) -> None:
            raise TransportError("PERMISSION_DENIED, as planned")

    for _ in range(30):
        Client(Pusher(server)).push(NAMED[:1], "replay")
    assert len(server.tables[JOURNAL].items) == 2 * 30
    client_of(server).delete_episodes(episodes=["e0"])
    assert (len(server.tables[JOURNAL].items), len(entries_of(server))) == (1, 31)


def test_a_delete_that_cannot_tidy_is_done(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise TransportError("cut, as planned")

    monkeypatch.setattr(deleting, "tidy_deletions", fail)
    server = server_with_own_tables()
    client_of(server).push(NAMED, "replay")
    assert client_of(server).delete_episodes(episodes=["e0"]).items == {"replay": 3}
    assert "could not be tidied" in caplog.text


def test_a_delete_whose_entry_cannot_be_ended_says_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(transport: Any, entry: Any, seconds: float) -> None:
        if entry.ended is not None:
            raise TransportError("cut, as planned")

    monkeypatch.setattr(deleting, "write_entry", write)
    server = server_with_own_tables()
    client_of(server).push(NAMED, "replay")
    with pytest.raises(TransportError, match=r"as planned; the delete is done .*\(3 items deleted\).* run it again"):
        client_of(server).delete_episodes(episodes=["e0"])
    assert names_in(server) == ALL - {"e0"}


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(1, 50))
def test_keys_are_made_for_a_call_at_a_time(steps: list[list[int]], most: int) -> None:
    own = [
        EpisodePage(
            push="p",
            source="s",
            tables=("replay",),
            push_seed=number,
            is_of_stream=False,
            names=tuple(f"e{place}" for place in range(len(counts))),
            key_names=(),
            starts=(2,) * len(counts),
            stops=tuple(2 + count for count in counts),
            items=tuple(counts),
        )
        for number, counts in enumerate(steps)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deleting, "MOST_KEYS", most)
        batches = [batch.tolist() for batch in deleting._batch_keys(own, "replay")]
    expected = sorted(key for page in own for key in page.keys_in("replay").tolist())
    assert sorted(key for batch in batches for key in batch) == expected
    assert all(len(batch) < 2 * most + 30 for batch in batches)
