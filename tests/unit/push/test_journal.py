"""What pushes write into the journals of servers in memory."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rlds2reverb import Client
from rlds2reverb.errors import InvalidEpisode, WireError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.push.journal import PushJournal
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import push_servers, report_of_nothing
from rlds2reverb.servers.journal import VERSION, JournalEntry, process_text, read_journal
from rlds2reverb.servers.own_tables import MOST_ITEMS, SIGNATURE, encode_record, write_records
from rlds2reverb.testing import MemoryTransport
from rlds2reverb.wire.messages import JOURNAL
from tests.support.learner.loops import step, writer
from tests.support.push import many_servers
from tests.support.push.in_memory import Server, episodes, planned, push, run, table_info

OWN = table_info(JOURNAL, SIGNATURE, 1 << 20)


def server_with_journal(state_id: int = 7) -> Server:
    return Server({"replay": table_info(), JOURNAL: OWN}, state_id)


def entries(server: Server) -> list[JournalEntry]:
    return read_journal(MemoryTransport(server))


def test_a_push_leaves_an_entry_with_the_numbers_of_its_report() -> None:
    server = server_with_journal()
    reports = [push(server, episodes(5), note="why", on_invalid="skip") for _ in range(2)]
    assert len(server.tables[JOURNAL].items) == 2  # an end takes the place of its begin
    for entry, report, new in zip(entries(server), reports, (15, 0), strict=True):
        assert (entry.episodes, entry.steps, entry.items) == (5, 20, report.items_confirmed)
        assert (entry.items_new, entry.bytes, entry.source) == (new, report.bytes, "test")
        assert (entry.tables, entry.view, entry.note) == (("replay",), "two_step", "why")
        assert entry.options == {"on_invalid": "skip"}
        assert (entry.find_state(process_text(7)), entry.find_state(process_text(8))) == ("done", "done")


def test_a_push_that_stops_says_why() -> None:
    server = server_with_journal()
    *good, last = episodes(3)
    bad = replace(last, columns={**last.columns, "reward": np.full(len(last), np.nan, np.float32)})
    with pytest.raises(InvalidEpisode):
        push(server, [*good, bad])
    (entry,) = entries(server)
    assert (entry.episodes, entry.find_state()) == (2, "stopped")
    assert entry.stopped.startswith("InvalidEpisode")
    assert entry.refused


def test_a_push_that_never_ends_is_running_or_cut_off() -> None:
    server = server_with_journal()
    plan = planned(server, episodes(1))
    servers = push_servers(plan, {"memory": MemoryTransport(server)})
    journal = PushJournal("push", plan, servers, lambda: report_of_nothing(plan))
    journal.begin()
    journal.wait_begun()
    (entry,) = entries(server)
    assert entry.find_state(process_text(7)) == "running"
    assert entry.find_state(process_text(8)) == "cut off"  # the server was started again
    assert msgspec.structs.replace(entry, process=2**22 + 1).find_state(process_text(7)) == "cut off"
    for member in ("host", "process_space"):  # its number is of another machine or container
        elsewhere = msgspec.structs.replace(entry, process=2**22 + 1, **{member: "elsewhere"})
        assert elsewhere.find_state(process_text(7)) == "running"


def test_a_server_without_a_journal_gets_nothing() -> None:
    server = Server()
    push(server, episodes(2))
    assert (entries(server), server.requests) == ([], 1)


def test_a_journal_that_cannot_be_written_is_said_and_stops_nothing() -> None:
    server = server_with_journal()
    plan = planned(server, episodes(2))
    del server.tables[JOURNAL]
    report = run(server, plan)
    assert report.episodes_pushed == 2
    assert [notice.code for notice in report.notices] == ["journal_not_written"]
    assert "Priority table rlds2reverb.journal was not found" in report.notices[0].text


def test_text_that_utf_8_cannot_hold_is_written_with_escapes() -> None:
    server = server_with_journal()
    name, other_bytes = os.fsdecode(b"caf\xe9.npz"), os.fsdecode(b"\xff")
    options = {"note": other_bytes, "step_interval": 2, "on_invalid": "skip", "allow": (other_bytes,)}
    report = run(server, planned(server, EpisodeList(episodes(2), name), note=other_bytes))
    (entry,) = entries(server)
    assert (report.notices, entry.source, entry.note) == ((), "caf\\udce9.npz", "\\udcff")
    assert json.loads(encode_record({other_bytes: [options, Path("x")]}))["\\udcff"][0]["allow"] == ["\\udcff"]


def test_an_entry_that_cannot_be_made_is_said_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OverflowError("as planned")

    monkeypatch.setattr("rlds2reverb.push.journal.new_entry", fail)
    report = push(server_with_journal(), episodes(2))
    assert (report.episodes_pushed, [notice.code for notice in report.notices]) == (2, ["journal_not_written"])


def test_each_server_has_the_entry_of_its_part() -> None:
    group = {address: server_with_journal(number) for number, address in enumerate(("a:1", "b:1"), 1)}
    group["c:1"] = Server(state_id=3)
    report = many_servers.push(group, episodes(30))
    assert len({entry.id for server in group.values() for entry in entries(server)}) == 1
    for address, server in group.items():
        parts = [(entry.episodes, entry.items) for entry in entries(server)]
        own = report.servers[address]
        assert parts == ([] if address == "c:1" else [(own.episodes_pushed, own.items_confirmed)])


def test_two_pushes_at_once_have_an_entry_each() -> None:
    server = server_with_journal()
    threads = [threading.Thread(target=push, args=(server, episodes(4))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(entry.find_state(), entry.items) for entry in entries(server)] == [("done", 12)] * 4


def test_many_entries_are_joined_by_a_push() -> None:
    server = server_with_journal()
    push(server, episodes(1))
    (entry,) = entries(server)
    records = {
        f"{number}": [msgspec.json.encode(msgspec.structs.replace(entry, id=f"{number}"))]
        for number in range(MOST_ITEMS)
    }
    write_records(MemoryTransport(server), JOURNAL, records)
    push(server, episodes(1))
    assert len(server.tables[JOURNAL].items) == 1
    assert len(entries(server)) == MOST_ITEMS + 2


def test_a_writer_leaves_an_entry() -> None:
    server = server_with_journal()
    with writer(server, note="actor 3") as to:
        for number in range(3):
            to.append(step(number))
        assert [entry.find_state() for entry in entries(server)] == ["running"]
        to.end_episode(terminal=True)
    (entry,) = entries(server)
    assert (entry.kind, entry.note, entry.episodes, entry.items, entry.find_state()) == (
        "write",
        "actor 3",
        1,
        2,
        "done",
    )


def test_an_emptied_table_leaves_an_entry() -> None:
    server = server_with_journal()
    push(server, episodes(1))
    Client(MemoryTransport(server)).reset("replay")
    assert [(entry.kind, entry.find_state(), entry.tables) for entry in entries(server)][1:] == [
        ("reset", "done", ("replay",))
    ]


def test_a_newer_format_is_refused_with_a_sentence() -> None:
    server = server_with_journal()
    push(server, episodes(1))
    (entry,) = entries(server)
    newer = msgspec.structs.replace(entry, id="x", format=VERSION.version + 1, program="9.0")
    write_records(MemoryTransport(server), JOURNAL, {"x": [msgspec.json.encode(newer)]})
    with pytest.raises(
        WireError, match=r"of version 2, written by rlds2reverb 9.0; .* reads version 1: use 9.0 or a newer one"
    ):
        entries(server)
    push(server, episodes(2))  # writes all the same


def test_members_of_a_later_version_of_this_format_are_passed_over() -> None:
    server = server_with_journal()
    record = {**msgspec.to_builtins(JournalEntry(id="1", kind="push", began=1.0)), "later": 1}
    write_records(MemoryTransport(server), JOURNAL, {"1": [msgspec.json.encode(record)]})
    assert [entry.id for entry in entries(server)] == ["1"]


def test_options_are_written_as_text() -> None:
    server = server_with_journal()
    options: dict[str, Any] = {"on_invalid": "skip", "chunk_length": 4, "resume": False, "last_observation": "drop"}
    push(server, episodes(1), **options)
    (entry,) = entries(server)
    assert entry.options.keys() <= options.keys()
    assert (entry.options["chunk_length"], entry.options["resume"]) == ("4", "false")
    assert replace(PushOptions("t"), note="x").note == "x"


def test_it_waits_so_long_for_all_servers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class HangingThread:
        def join(self, seconds: float) -> None:
            clock[0] += seconds

    server = server_with_journal()
    plan = planned(server, episodes(1))
    journal = PushJournal("push", plan, push_servers(plan, {"memory": MemoryTransport(server)}), lambda: None)  # type: ignore[arg-type, return-value]
    journal._beginning = [HangingThread() for _ in range(3)]  # type: ignore[misc]
    monkeypatch.setattr("rlds2reverb.push.journal.time", SimpleNamespace(monotonic=lambda: clock[0]))
    journal.wait_begun(2.0)
    assert clock == [2.0]


def test_notices_may_be_read_while_a_thread_adds_one() -> None:
    class Kind:
        def __format__(self, _: str) -> str:
            journal._unwritten[f"s{len(journal._unwritten)}:1"] = "as planned"
            return "push"

    server = server_with_journal()
    plan = planned(server, episodes(1))
    journal = PushJournal(Kind(), plan, push_servers(plan, {"memory": MemoryTransport(server)}), lambda: None)  # type: ignore[arg-type, return-value]
    journal._unwritten["s0:1"] = "as planned"
    assert (len(journal.notices), len(journal._unwritten)) == (1, 2)
