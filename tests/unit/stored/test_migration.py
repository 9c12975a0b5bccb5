"""Tables migrated between servers in memory: the new table is the one that a push of the dataset itself makes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Client, PushReport, migrate
from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    SourceError,
    SpecMismatch,
    TransportError,
    WireError,
    report_of,
)
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.options import PushOptions
from rlds2reverb.servers.journal import JournalEntry, new_entry, process_text, write_entry
from rlds2reverb.stored import migration
from rlds2reverb.stored.migration import Migration, TableMissing
from rlds2reverb.testing import MemoryTransport, table_info
from rlds2reverb.views.trajectory import name_of, table_signature
from rlds2reverb.wire.messages import EPISODES as EPISODES_LIST
from tests.support.push.in_memory import Server, episodes
from tests.support.servers.own import OWN_TABLES, entries_of
from tests.support.stored.keeping import Keeping

EPISODES = episodes(6, rows=5)


def table_for(view: Any, name: str, like: Any = EPISODES, size: int = 1 << 20, **options: Any) -> Any:
    chosen = PushOptions(name, view, **options)
    ready = Preparation.open(like, chosen, chosen.outputs)
    signature = table_signature(ready.signatures[0], name_of(chosen.outputs[0].view))
    return table_info(name, signature, size)


def server_with(*tables: Any, own: bool = True, state_id: int = 7) -> Server:
    every = [*tables, *(OWN_TABLES if own else ())]
    return Server({table.name: table for table in every}, state_id)


def client_of(server: Server, folder: Path) -> Client:
    return Client([Keeping(server, folder)])


def values_in(server: Server, table: str) -> dict[int, list[Any]]:
    return {
        key: [np.asarray(value).tolist() for value in values] for key, values in server.items.get(table, {}).items()
    }


@settings(max_examples=40, deadline=None)
@given(
    old_view=st.sampled_from(["two_step", "sequence:length=2", "sequence:length=4", "episode"]),
    new_view=st.sampled_from(
        ["two_step", "sequence:length=3", "n_step:n=2", "transition", "episode", "frame_stack:frames=2"]
    ),
    rows=st.lists(st.integers(4, 9), min_size=1, max_size=5),
    options=st.sampled_from(
        [
            {},
            {"transform": {"make": {"action": "cast(action, dtype=float16)"}}},
            {"transform": {"drop": ["observation/b"]}},
        ]
    ),
    copies=st.booleans(),
    names=st.booleans(),
)
def test_the_new_table_is_that_of_a_push_of_the_dataset(
    old_view: str, new_view: str, rows: list[int], options: dict[str, Any], copies: bool, names: bool
) -> None:
    specs = {
        "observation/a": (np.dtype(np.float32), (2,)),
        "observation/b": (np.dtype(np.uint8), (3,)),
        "action": (np.dtype(np.float32), (1,)),
    }
    data = [
        replace(made, id=f"e{number}" if names else "")
        for number, count in enumerate(rows)
        for made in episodes(number + 1, count, columns=specs, terminal=number % 2 == 0)[-1:]
    ]
    data += [data[0]] if copies and not names else []
    server, direct = (
        server_with(table_for(old_view, "old", data), table_for(new_view, "new", data, **options)) for _ in range(2)
    )
    with TemporaryDirectory() as folder:
        client = client_of(server, Path(folder))
        client.push(data, "old", old_view)
        report = migrate("old", client, "new", new_view, **options)
        before = Counter(server.inserts)
        made = values_in(server, "new")
        assert "keys_differ" not in {notice.code for notice in report.notices}
        migrate("old", client, "new", new_view, **options)
        assert values_in(server, "new") == made
        assert server.inserts["new"] == before["new"]
    Client([MemoryTransport(direct)]).push(data, "new", new_view, **options)
    drops = "drop" in options.get("transform", {}) and not names
    expected = values_in(direct, "new")
    if drops:  # what is left out is no part of the name that a push gives
        assert sorted(map(repr, made.values())) == sorted(map(repr, expected.values()))
    else:
        assert made == expected
    assert report.push is not None
    assert (report.listed, report.incomplete, report.items) == (len(data), 0, {"new": len(expected)})
    assert report.items_compared == len(expected)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


NAMED = [replace(episode, id=f"e{number}") for number, episode in enumerate(EPISODES)]


def filled(folder: Path, size: int = 1 << 20, data: Any = NAMED) -> tuple[Server, Client]:
    """A server whose table "old" holds pairs of steps; "new" is for sequences, "twin" for pairs."""
    tables = [table_for("two_step", "old", data, size), table_for("sequence:length=3", "new", data)]
    server = server_with(*tables, table_for("two_step", "twin", data))
    client = client_of(server, folder)
    client.push(data, "old", allow_eviction=True)
    return server, client


def pushed(data: Any, table: str, view: str) -> dict[int, list[Any]]:
    server = server_with(table_for(view, table, EPISODES))
    Client([MemoryTransport(server)]).push(data, table, view)
    return values_in(server, table)


def test_what_was_deleted_from_the_old_table_stays_out_of_the_new_one(folder: Path) -> None:
    server, client = filled(folder)
    client.delete_episodes(episodes=["e1", "e4"], table="old", checkpoint=False)
    client.delete_episodes(episodes=["e2"], table="twin", checkpoint=False)
    expected = pushed([episode for episode in NAMED if episode.id not in ("e1", "e4")], "new", "sequence:length=3")
    for _ in range(2):
        report = migrate("old", client, "new", "sequence:length=3")
        assert (report.deleted, report.episodes, values_in(server, "new")) == (2, 4, expected)
        assert client.push(NAMED, "new", "sequence:length=3").episodes_deleted == 2
    assert [entry.kind for entry in entries_of(server)].count("delete") == 3
    # Let in again in the new table: a further migration does not take it out.
    client.delete_episodes(episodes=["e1"], table="new", restore=True, checkpoint=False)
    client.push(NAMED, "new", "sequence:length=3")
    migrate("old", client, "new", "sequence:length=3")
    whole = pushed([episode for episode in NAMED if episode.id != "e4"], "new", "sequence:length=3")
    assert values_in(server, "new") == whole


def test_items_of_the_same_view_keep_their_priorities(folder: Path) -> None:
    server, client = filled(folder)
    keys = sorted(server.items["old"])[:3]
    client.update_priorities("old", np.array(keys, np.uint64), [2.0, 3.0, 4.0])
    assert migrate("old", client, "twin").priorities == 3
    priorities = {
        name: sorted(item.priority for item in server.table(name).items.values()) for name in ("old", "twin", "new")
    }
    assert priorities["twin"] == priorities["old"]
    first = server.items["old"][keys[0]]
    (twin,) = (item for item in server.table("twin").items.values() if item.priority == 2.0)
    assert all(np.array_equal(left, right) for left, right in zip(first, twin.values, strict=True))
    report = migrate("old", client, "new", "sequence:length=3")
    assert report.priorities == 0
    assert "priorities_new" in {notice.code for notice in report.notices}


def test_episodes_that_lost_rows_are_refused_or_left_out(folder: Path) -> None:
    server, client = filled(folder, size=10)  # of 24 items: e4 and e5, and the last 2 of e3
    with pytest.raises(SourceError, match=r"1 of 3 episodes lack items or rows.*\(e3\).*--incomplete skip"):
        migrate("old", client, "new", "sequence:length=3")
    assert not values_in(server, "new")
    report = migrate("old", client, "new", "sequence:length=3", incomplete="skip")
    assert (report.episodes, report.incomplete) == (2, 1)
    assert values_in(server, "new") == pushed(NAMED[4:], "new", "sequence:length=3")


@settings(max_examples=25, deadline=None)
@given(
    view=st.sampled_from(["two_step", "transition", "frame_stack:frames=2", "sequence:length=2", "episode"]),
    is_listed=st.booleans(),
    lost=st.sets(st.integers(0, 23), min_size=1, max_size=3),
)
def test_an_episode_that_lost_an_item_is_never_stored(view: str, is_listed: bool, lost: set[int]) -> None:
    data = NAMED
    server = server_with(table_for(view, "old", data), table_for("two_step", "new", data), own=is_listed)
    with TemporaryDirectory() as place:
        client = client_of(server, Path(place))
        client.push(data, "old", view)
        keys = list(server.items["old"])
        client.delete("old", np.array([keys[number] for number in lost if number < len(keys)], np.uint64))
        per_episode = len(keys) // len(data)
        whole = {number // per_episode for number in lost if number < len(keys)} ^ {*range(len(data))}
        with suppress(SourceError):  # of all episodes
            migrate("old", client, "new", incomplete="skip")
    made = [*map(repr, values_in(server, "new").values())]
    if not is_listed:  # rows of which an item is lost may be in others; whatever is stored is whole
        assert len(made) % 4 == 0
    elif view in ("transition", "frame_stack:frames=2"):  # whose last action is made up
        assert len(made) == 4 * len(whole)
    else:
        expected = pushed([data[number] for number in whole], "new", "two_step") if whole else {}
        assert sorted(made) == sorted(map(repr, expected.values()))


def test_a_table_that_is_being_filled_doubles_nothing(folder: Path) -> None:
    """The pages of a push are written at its end: what it has stored until then is of no known name."""
    for view in ("two_step", "frame_stack:frames=2"):
        server = server_with(table_for(view, "old", NAMED), table_for("two_step", "new", NAMED))
        client = client_of(server, folder / view.partition(":")[0])
        client.push(NAMED[:2], "old", view)
        own = [(name, {**server.tables[name].items}) for name in (EPISODES_LIST,)]
        client.push(NAMED, "old", view)
        for name, items in own:  # as before the end of the second push
            server.tables[name].items.clear()
            server.tables[name].items.update(items)
        with pytest.raises(
            SourceError, match=r"4 episodes listed by no push .*a push that was killed.*--unlisted skip"
        ):
            migrate("old", client, "new")
        write_entry(client.transport, running_push(server))
        with pytest.raises(SourceError, match=r"the table is being filled \(push \w+ of robots\)"):
            migrate("old", client, "new", dry_run=True)
        assert not values_in(server, "new")
        report = migrate("old", client, "new", unlisted="skip")
        assert (report.episodes, report.unlisted, len(values_in(server, "new"))) == (2, 4, 8)
        client.push(NAMED, "old", view)
        migrate("old", client, "new")
        assert len(values_in(server, "new")) == 24
        assert server.inserts["new"] == 24


def running_push(server: Server) -> JournalEntry:
    return new_entry("push", source="robots", tables=("old",), server_process=process_text(server.state_id))


def test_rows_in_no_window_make_an_episode_incomplete(folder: Path) -> None:
    view = "sequence:length=4,stride=2"  # of 5 rows the last one is in no window
    server = server_with(table_for(view, "old", NAMED), table_for("two_step", "new", NAMED))
    client = client_of(server, folder)
    client.push([*NAMED[:3], *(replace(made, id=f"f{n}") for n, made in enumerate(episodes(2, rows=6)))], "old", view)
    with pytest.raises(SourceError, match=r"3 of 5 episodes lack items or rows.*in no window \(e0, e1, e2\)"):
        migrate("old", client, "new", dry_run=True)
    assert migrate("old", client, "new", incomplete="skip").episodes == 2
    assert len(values_in(server, "new")) == 10


def test_items_that_tell_no_end_need_a_list_or_the_users_word(folder: Path) -> None:
    data = [replace(made, id=f"e{n}") for n, made in enumerate(episodes(3, terminal=False))]
    view = "frame_stack:frames=2"
    server = server_with(table_for(view, "old", data), table_for("two_step", "new", data), own=False)
    client = client_of(server, folder)
    client.push(data, "old", view)
    with pytest.raises(SourceError, match="no_end=truncated behind its name"):
        migrate("old", client, "new")
    report = migrate("localhost:1/old?no_end=truncated", client, "new")
    assert (report.episodes, len(values_in(server, "new"))) == (3, 9)
    assert "last_row_made_up" in {notice.code for notice in report.notices}


@pytest.mark.parametrize("data", [EPISODES, NAMED])
def test_a_table_that_holds_episodes_twice_is_refused_before_anything_is_sent(folder: Path, data: Any) -> None:
    view = "sequence:length=3"
    server = server_with(table_for(view, "old", data), table_for("two_step", "new", data))
    client = client_of(server, folder)
    client.push(data, "old", view)
    client.push(data, "old", view, again=True)
    with pytest.raises(SourceError, match=r"6 episodes stored there more than once.*delete --push"):
        migrate("old", client, "new", dry_run=True)


def test_what_makes_no_items_is_refused(folder: Path) -> None:
    _, client = filled(folder)
    with pytest.raises(SourceError, match=r"no items of 6 episodes.*nothing is stored"):
        migrate("old", client, "new", "sequence:length=3", keep_ranges={f"e{n}": [[0, 2]] for n in range(6)})


def test_a_table_that_is_too_small_is_refused_with_the_ways_of_a_migration(folder: Path) -> None:
    server = server_with(table_for("two_step", "old", NAMED), table_for("two_step", "new", NAMED, 10))
    client = client_of(server, folder)
    client.push(NAMED, "old")
    with pytest.raises(
        CapacityError, match=r"max_size 10 is smaller.*evicted; make the table larger, or migrate fewer"
    ):
        migrate("old", client, "new")
    with pytest.raises(ConfigError, match="allow_eviction"):
        migrate("old", client, "new", allow_eviction=True)


def test_each_new_table_decides_by_itself_what_was_deleted(folder: Path) -> None:
    tables = [table_for("two_step", name, NAMED) for name in ("old", "a", "b", "c")]
    server = server_with(*tables)
    client = client_of(server, folder)
    client.push(NAMED, ["old", "c"])
    client.delete_episodes(episodes=["e1"], table="old", checkpoint=False)
    migrate("old", client, "a")
    client.delete_episodes(episodes=["e1"], table="a", restore=True, checkpoint=False)
    client.push(NAMED, "a")
    report = migrate("old", client, ["a", "b", "c"])
    # Let in again in a; c has it by a push of its own.
    assert [len(values_in(server, name)) for name in "abc"] == [24, 20, 24]
    (stays,) = (notice for notice in report.notices if notice.code == "deleted_stays")
    assert "rlds2reverb delete --episode e1 --table c" in stays.text
    client.push(NAMED, ["a", "b", "c"])
    assert [len(values_in(server, name)) for name in "abc"] == [24, 20, 24]


def test_a_delete_from_the_old_table_meanwhile_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = filled(folder)
    set_priorities = Migration._set_priorities

    def deleting(self: Migration) -> int:
        client.delete_episodes(episodes=["e2"], table="old", checkpoint=False)
        return set_priorities(self)

    monkeypatch.setattr(Migration, "_set_priorities", deleting)
    with pytest.raises(SourceError, match=r"1 episode deleted from it.*rlds2reverb delete --episode e2 --table twin"):
        migrate("old", client, "twin")
    client.delete_episodes(episodes=["e2"], table="twin", checkpoint=False)
    assert migrate("old", client, "twin").items == {"twin": 20}


@pytest.mark.parametrize(
    "options",
    [{"transform": {"make": {"action": "cast(action, dtype=float16)"}}}, {"last_step": "repeat"}, {"again": True}],
)
def test_a_table_that_was_filled_with_options_says_that_keys_differ(folder: Path, options: dict[str, Any]) -> None:
    server = server_with(
        table_for("two_step", "old", NAMED, **{**options, "again": False}),
        table_for("two_step", "new", NAMED, **{**options, "again": False}),
    )
    client = client_of(server, folder)
    client.push(NAMED, "old", **options)
    assert "keys_differ" in {notice.code for notice in migrate("old", client, "new").notices}


def without_two_rows(episode: Any) -> Any:
    columns = {path: column[2:] for path, column in episode.columns.items()}
    return replace(episode, columns={**columns, "is_first": np.arange(len(columns["is_first"])) == 0})


def test_priorities_go_with_their_rows_or_are_new(folder: Path) -> None:
    server, client = filled(folder)
    keys = np.array(list(server.items["old"]), np.uint64)
    client.update_priorities("old", keys, np.arange(2.0, 2.0 + len(keys)))

    changing_rows: tuple[dict[str, Any], ...] = ({"map": without_two_rows}, {"transform": {"drop_first_rows": 1}})
    for options in changing_rows:
        report = migrate("old", client, "twin", **options)
        assert report.priorities == 0
        assert "priorities_new" in {notice.code for notice in report.notices}
        client.reset("twin")
    # Of two new tables the one with the old view keeps them, of the episodes that filters leave.
    report = migrate("old", client, {"twin": "two_step", "new": "sequence:length=3"}, exclude=["e1"])
    assert report.priorities == 20
    priorities = {repr(item.values): item.priority for item in server.table("old").items.values()}
    twins = server.table("twin").items.values()
    assert len(twins) == 20
    assert all(item.priority == priorities[repr(item.values)] for item in twins)


def test_a_folder_with_the_tables_name_is_not_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = filled(folder)
    (folder / "old").mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert migrate("old", client, "twin", dry_run=True).old_items == 24


def test_one_checkpoint_reads_all_new_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = filled(folder)
    written = list[str]()
    write = Keeping.checkpoint
    monkeypatch.setattr(Keeping, "checkpoint", lambda self, seconds: written.append("") or write(self, seconds))
    assert migrate("old", client, {"twin": "two_step", "new": "sequence:length=3"}).items == {"twin": 24, "new": 18}
    assert len(written) == 2  # for the old table and for the new ones
    monkeypatch.setattr(Keeping, "checkpoint", lambda self, seconds: written.append("") or "/nowhere/checkpoint")
    with pytest.raises(SourceError, match="cannot be read from here"):
        migrate("old", client, "twin")
    assert len(written) == 3


def test_one_that_was_stopped_adds_the_rest_when_it_runs_again(folder: Path, tmp_path: Path) -> None:
    server, client = filled(folder)
    for requests in (0, 1):
        server.fail_after(requests, "PERMISSION_DENIED")
        with pytest.raises(TransportError):
            migrate("old", client, "new", "sequence:length=3", ledger=tmp_path / "ledger.db")
    server.fail_after(None)
    migrate("old", client, "new", "sequence:length=3", ledger=tmp_path / "ledger.db")
    assert values_in(server, "new") == pushed(NAMED, "new", "sequence:length=3")
    assert server.inserts["new"] == len(values_in(server, "new"))


def test_a_checkpoint_has_the_names_and_what_was_deleted(folder: Path) -> None:
    server, client = filled(folder)
    client.delete_episodes(episodes=["e1"], table="old", checkpoint=False)
    place = Keeping.checkpoint(client.transport, 1.0)  # type: ignore[arg-type]
    other = server_with(table_for("sequence:length=3", "new"), state_id=8)
    transport = Keeping(other, folder / "other", "localhost:2")
    report = migrate(f"{place}?table=old", Client([transport]), "new", "sequence:length=3")
    assert (report.listed, report.deleted) == (5, 1)
    assert values_in(other, "new") == pushed([*NAMED[:1], *NAMED[2:]], "new", "sequence:length=3")
    assert Client([transport]).push(NAMED, "new", "sequence:length=3").episodes_deleted == 1
    assert len(server.items["old"]) == 20


def test_a_table_of_a_server_without_lists_is_named_by_its_content(folder: Path) -> None:
    server = server_with(table_for("two_step", "old"), table_for("sequence:length=3", "new"), own=False)
    client = client_of(server, folder)
    client.push(NAMED, "old")
    report = migrate("old", client, "new", "sequence:length=3")
    assert (report.listed, report.episodes, report.items_compared) == (0, 6, 18)
    assert "names_unknown" in {notice.code for notice in report.notices}
    assert sorted(map(repr, values_in(server, "new").values())) == sorted(
        map(repr, pushed(NAMED, "new", "sequence:length=3").values())
    )


def test_what_the_config_lacks_is_said_whole(folder: Path) -> None:
    _, client = filled(folder)
    with pytest.raises(TableMissing, match='no table "next" on the server, there are: new, old, twin') as caught:
        migrate("old", client, "next", "n_step:n=2", dry_run=True)
    table = caught.value.tables["next"]
    assert (table.view[:10], table.items >= 24, table.old_size) == ("n_step:n=2", True, 1 << 20)


@pytest.mark.parametrize(
    ("source", "table", "options", "error", "message"),
    [
        ("old", "old", {}, ConfigError, "is the old table and the new one"),
        ("none", "new", {}, SourceError, 'no table "none"'),
        ("old", "new", {}, SpecMismatch, "new"),
        ("old", "twin", {"unlisted": "maybe"}, ConfigError, "expected one of refuse, skip, content"),
        ("old", "twin", {"incomplete": "split"}, ConfigError, "expected one of refuse, skip"),
        ("localhost:1?table=old,gaps=split", "twin", {}, SourceError, "unknown option"),
    ],
)
def test_what_makes_no_sense_is_refused(
    folder: Path, source: str, table: str, options: Any, error: type[Exception], message: str
) -> None:
    server, client = filled(folder)
    with pytest.raises(error, match=message):
        migrate(source, client, table, **options)
    assert not values_in(server, "new")
    assert not values_in(server, "twin")


def test_a_table_without_rewards_fills_none_that_needs_them(folder: Path) -> None:
    server = server_with(table_for("chunk:horizon=2", "old"), table_for("two_step", "new"))
    client = client_of(server, folder)
    client.push(NAMED, "old", "chunk:horizon=2")
    with pytest.raises(SourceError, match="hold no rewards, and view two_step needs them"):
        migrate("old", client, "new")
    assert not values_in(server, "new")


def test_items_that_are_gone_or_changed_at_the_end_are_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = filled(folder)
    read_back = Migration._read_back

    def losing(self: Migration) -> Any:
        client.delete("twin", np.array([next(iter(server.items["twin"]))], np.uint64))
        return read_back(self)

    monkeypatch.setattr(Migration, "_read_back", losing)
    with pytest.raises(CapacityError, match="1 of 24 items are not there at the end") as caught:
        migrate("old", client, "twin")
    assert report_of(caught.value, PushReport) is not None
    monkeypatch.setattr(Migration, "_read_back", read_back)
    monkeypatch.setattr(migration, "_are_equal", lambda sent, stored: False)
    with pytest.raises(WireError, match="has other values than were sent"):
        migrate("old", client, "twin")
    assert migrate("old", client, "twin", check_items=0).items_compared == 0
