"""Tables migrated between servers in memory: the new table is the one that a push of the dataset itself makes."""

from __future__ import annotations

from collections import Counter
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
from rlds2reverb.stored import migration
from rlds2reverb.stored.migration import Migration, TableMissing
from rlds2reverb.testing import MemoryTransport, table_info
from rlds2reverb.views.trajectory import name_of, table_signature
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


def test_episodes_that_lost_rows_are_refused_left_out_or_split(folder: Path) -> None:
    server, client = filled(folder, size=10)  # of 24 items: e4 and e5, and the last 2 of e3
    with pytest.raises(SourceError, match=r"1 of 3 episodes lack items or rows.*\(e3\).*--incomplete skip"):
        migrate("old", client, "new", "sequence:length=3")
    assert not values_in(server, "new")
    report = migrate("old", client, "new", "sequence:length=3", incomplete="skip")
    assert (report.episodes, report.incomplete, report.left_out) == (2, 1, 1)
    assert values_in(server, "new") == pushed(NAMED[4:], "new", "sequence:length=3")
    report = migrate("old", client, "new", "sequence:length=3", incomplete="split")
    assert (report.episodes, report.incomplete, report.left_out) == (3, 1, 0)
    expected = pushed(NAMED[4:], "new", "sequence:length=3")
    assert len(values_in(server, "new")) == len(expected) + 1  # rows 2 to 4 of e3
    # The old table loses more of it: what the new one has, it has in a longer run.
    oldest = next(iter(server.items["old"]))
    client.delete("old", np.array([oldest], np.uint64))
    before = values_in(server, "new")
    migrate("old", client, "new", "sequence:length=3", incomplete="split")
    assert values_in(server, "new") == before


def test_a_part_of_an_episode_that_the_new_table_has_whole_is_not_stored_beside_it(folder: Path) -> None:
    server, client = filled(folder, size=10)
    client.push(NAMED, "new", "sequence:length=3")
    before = values_in(server, "new")
    report = migrate("old", client, "new", "sequence:length=3", incomplete="split")
    assert (report.left_out, values_in(server, "new")) == (1, before)


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
        ("old", "twin", {"incomplete": "maybe"}, ConfigError, "expected one of refuse, skip, split"),
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

    def losing(self: Migration, table: str) -> Any:
        client.delete(table, np.array([next(iter(server.items[table]))], np.uint64))
        return read_back(self, table)

    monkeypatch.setattr(Migration, "_read_back", losing)
    with pytest.raises(CapacityError, match="1 of 24 items are not there at the end") as caught:
        migrate("old", client, "twin")
    assert report_of(caught.value, PushReport) is not None
    monkeypatch.setattr(Migration, "_read_back", read_back)
    monkeypatch.setattr(migration, "_are_equal", lambda sent, stored: False)
    with pytest.raises(WireError, match="has other values than were sent"):
        migrate("old", client, "twin")
    assert migrate("old", client, "twin", check_items=0).items_compared == 0
