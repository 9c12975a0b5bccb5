"""Records in tables that the server keeps for itself: what is written is read, whatever else happens meanwhile."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import TransportError
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
