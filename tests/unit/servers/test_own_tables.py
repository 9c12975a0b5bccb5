"""Records in tables that the server keeps for itself: what is written is read, whatever else happens meanwhile."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import TransportError
from rlds2reverb.servers import own_tables
from rlds2reverb.servers.own_tables import MOST_ITEMS, SIGNATURE, delete_records, read_records, tidy, write_records
from rlds2reverb.testing import MemoryServer, MemoryTransport
from rlds2reverb.testing.streams import StreamPlan
from rlds2reverb.wire.messages import table_info

TABLE = "rlds2reverb.journal"


def server_with_table() -> MemoryServer:
    return MemoryServer("replay", table_info(TABLE, SIGNATURE, 1 << 20))


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5), st.lists(st.binary(max_size=40), min_size=1, max_size=3), max_size=30
    )
)
@settings(max_examples=30)
def test_what_is_written_is_read(items: dict[str, list[bytes]]) -> None:
    server = server_with_table()
    transport = MemoryTransport(server)
    for _ in range(2):  # a name that is there adds nothing
        write_records(transport, TABLE, items)
    read = read_records(transport, TABLE)
    assert sorted(read.values()) == sorted(map(tuple, items.values()))
    assert server.tables["replay"].inserts == 0
    delete_records(transport, TABLE, items)
    assert read_records(transport, TABLE) == {}


def test_items_that_were_read_before_come_without_records() -> None:
    transport = MemoryTransport(server_with_table())
    write_records(transport, TABLE, {"a": [b"1"]})
    read = read_records(transport, TABLE)
    write_records(transport, TABLE, {"b": [b"2"]})
    assert sorted(read_records(transport, TABLE, read_before=read.keys()).values()) == [(), (b"2",)]


def test_a_server_without_the_table_has_no_records() -> None:
    assert read_records(MemoryTransport(MemoryServer("replay")), TABLE) == {}


def test_the_table_is_in_no_list_and_a_name_that_begins_alike_is() -> None:
    server = MemoryServer("replay", "rlds2reverb.demo", table_info(TABLE, SIGNATURE, 1 << 20))
    info = MemoryTransport(server).server_info()
    assert list(info.tables) == ["replay", "rlds2reverb.demo"]
    assert list(info.own_tables) == [TABLE]


def test_many_items_are_joined_and_keep_their_records() -> None:
    server = server_with_table()
    transport = MemoryTransport(server)
    names = {f"{number}": [b"%d" % number] for number in range(MOST_ITEMS + 10)}
    write_records(transport, TABLE, names)
    for _ in range(2):
        tidy(transport, TABLE)
        records = [record for item in read_records(transport, TABLE).values() for record in item]
        assert sorted(records) == sorted(record for item in names.values() for record in item)
    assert len(server.tables[TABLE].items) == 1


class RefusingTransport(MemoryTransport):
    """Of a client that may not delete."""

    def delete_items(self, table: str, item_keys: np.ndarray) -> None:
        raise TransportError("PERMISSION_DENIED, as planned")


def test_who_may_not_delete_adds_nothing_when_tidying() -> None:
    server = server_with_table()
    write_records(MemoryTransport(server), TABLE, {f"{number}": [b"%d" % number] for number in range(MOST_ITEMS)})
    for _ in range(2):
        with pytest.raises(TransportError, match="as planned"):
            tidy(RefusingTransport(server), TABLE)
        assert len(server.tables[TABLE].items) == MOST_ITEMS


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=12), st.data())
@settings(max_examples=40, deadline=None)
def test_deletions_that_fail_when_tidying_leave_records_that_are_dropped_later(
    items: list[list[int]], data: st.DataObject
) -> None:
    server = server_with_table()
    transport = MemoryTransport(server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_tables, "MOST_ITEMS", 1)
        patch.setattr(own_tables, "_JOINED_RECORDS", 3)
        write_records(transport, TABLE, {f"{n}": [b"%d" % record for record in own] for n, own in enumerate(items)})
        for calls in data.draw(st.lists(st.sampled_from([1, 9]), max_size=4)):
            failing = FailingDeletes(server, calls)
            with suppress(TransportError):
                tidy(failing, TABLE)
            records = [record for own in read_records(transport, TABLE).values() for record in own]
            assert {int(record) for record in records} == {record for own in items for record in own}
        for _ in range(2):
            tidy(transport, TABLE)
        small = [own for own in read_records(transport, TABLE).values() if len(own) < 3]
        assert len(small) <= 1


class FailingDeletes(MemoryTransport):
    """Deletes so often, and fails then."""

    def __init__(self, server: MemoryServer, calls: int) -> None:
        super().__init__(server)
        self._left = calls

    def delete_items(self, table: str, item_keys: np.ndarray) -> None:
        self._left -= 1
        if self._left < 0:
            raise TransportError("cut, as planned")
        super().delete_items(table, item_keys)


def test_a_broken_stream_is_opened_again() -> None:
    server = server_with_table()
    server.plans.append(StreamPlan(0, "UNAVAILABLE"))
    write_records(MemoryTransport(server), TABLE, {"a": [b"1"]})
    assert [*read_records(MemoryTransport(server), TABLE).values()] == [(b"1",)]


def test_a_server_that_confirms_nothing_is_an_error_in_time() -> None:
    server = server_with_table()
    server.hold()
    with pytest.raises(TransportError):
        write_records(MemoryTransport(server), TABLE, {"a": [b"1"]}, seconds=0.2)


def test_records_that_come_meanwhile_take_no_earlier_one_away() -> None:
    server = server_with_table()
    transport = MemoryTransport(server)
    write_records(transport, TABLE, {f"{number}": [b"%d" % number] for number in range(50)})
    is_over = threading.Event()

    def write() -> None:
        for number in range(50, 80):
            if not is_over.is_set():
                write_records(MemoryTransport(server), TABLE, {f"{number}": [b"%d" % number]})

    writer = threading.Thread(target=write)
    writer.start()
    records = {record for item in read_records(transport, TABLE).values() for record in item}
    is_over.set()
    writer.join()
    assert records >= {b"%d" % number for number in range(50)}
