"""What the status shows of a journal, and how often it looks."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_server import journal
from replay_server.journal import JournalWatch
from replay_server.monitor import Monitor

from rlds2reverb.servers import own_tables
from rlds2reverb.servers.journal import JournalEntry, read_journal, write_entry
from rlds2reverb.servers.own_tables import SIGNATURE
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.wire.messages import JOURNAL


def watched() -> tuple[MemoryTransport, Monitor]:
    transport = MemoryTransport(MemoryServer("replay", table_info(JOURNAL, SIGNATURE, 1 << 20)))
    return transport, Monitor(transport.server_info)


@given(st.lists(st.sampled_from(["begin", "end", "look", "tidy"]), max_size=60))
@settings(max_examples=30)
def test_it_shows_what_reading_all_of_it_would(steps: list[str]) -> None:
    transport, monitor = watched()
    watch, running, numbers = JournalWatch(monitor, transport, lambda: 0.0), list[JournalEntry](), count()
    for step in [*steps, "look"]:
        if step == "begin":
            number = next(numbers)
            running.append(JournalEntry(id=f"{number:x}", kind="push", began=float(number)))
            write_entry(transport, running[-1])
        elif step == "end" and running:
            write_entry(transport, JournalEntry(id=running[0].id, kind="push", began=running.pop(0).began, ended=1e3))
        elif step == "tidy":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(own_tables, "MOST_ITEMS", 4)
                own_tables.tidy(transport, JOURNAL)
        elif step == "look":
            monitor.repeat()
            watch.repeat()
    entries, document = read_journal(transport), watch.document()
    assert (document["count"], document["problem"]) == (len(entries), "")
    newest = [(entry.id, entry.ended) for entry in entries[:-21:-1]]
    assert [(entry["id"], entry["ended"]) for entry in document["newest"]] == newest


def test_after_a_long_look_it_waits_longer() -> None:
    transport, monitor = watched()
    now, looks = 0.0, list[float]()

    def clock() -> float:
        nonlocal now
        now += 1.0  # a look takes a second, by this clock
        return now

    watch = JournalWatch(monitor, transport, clock)
    for number in range(200):
        write_entry(transport, JournalEntry(id=f"{number}", kind="push", began=float(number), ended=1.0))
        monitor.repeat()
        before = watch.document()["count"]
        watch.repeat()
        if watch.document()["count"] > before:
            looks.append(now)
    assert len(looks) >= 3
    assert all(later - earlier >= journal._PAUSE for earlier, later in pairwise(looks))
