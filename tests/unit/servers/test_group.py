"""Who is there: servers are lost and found back, and an error of one of several names it."""

from __future__ import annotations

import pytest

from rlds2reverb.errors import CapacityError, Rlds2ReverbError, ServerRestarted, ServerUnreachable, TransportError
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.transport.retry import Deadlines


def group_of(count: int, **options: object) -> tuple[list[MemoryServer], Servers]:
    servers = [MemoryServer(table_info("replay"), state_id=100 + number) for number in range(count)]
    transports = [MemoryTransport(server, f"{chr(97 + number)}:1") for number, server in enumerate(servers)]
    return servers, Servers.of_client(transports, **options)  # type: ignore[arg-type]


def test_an_error_of_the_only_server_is_as_it_gives_it() -> None:
    _, group = group_of(1)
    with pytest.raises(CapacityError, match=r"^full$"), group.about(group[0]):
        raise CapacityError("full")


@pytest.mark.parametrize("text", ["gone", "b:1: gone"])
def test_an_error_of_one_of_several_names_it_once(text: str) -> None:
    _, group = group_of(2)
    with pytest.raises(TransportError, match=r"^b:1: gone$") as caught, group.about(group[1]):
        raise TransportError(text, retryable=True)
    assert caught.value.retryable
    assert group.last_failed is group[1]


@pytest.mark.parametrize("error", [ServerUnreachable("gone"), ServerRestarted("another process")])
def test_a_push_continues_without_lost_servers_while_one_is_there(error: TransportError) -> None:
    lost: list[tuple[Server, Rlds2ReverbError]] = []
    servers = [Server(number, f"{number}:1") for number in range(3)]
    group = Servers(servers, allow_missing=True, on_lost=lambda server, error: lost.append((server, error)))
    for server in servers[:2]:
        with group.about(server):
            raise error
    assert [server for server, _ in lost] == servers[:2]
    assert [*group.missing] == ["0:1", "1:1"]
    with pytest.raises(type(error)), group.about(servers[2]):
        raise error
    assert group.there == [servers[2]]


def test_servers_that_another_process_lost_are_told_once_and_the_last_is_an_error() -> None:
    _, group = group_of(2, allow_missing=True)
    assert group.add_lost({"a:1": "gone"}) == [group[0]]
    assert group.add_lost({"a:1": "gone again"}) == []
    assert group.missing == {"a:1": "gone"}
    with pytest.raises(ServerUnreachable, match="no server is left of a:1, b:1; b:1: gone too"):
        group.add_lost({"a:1": "gone", "b:1": "gone too"})


def test_an_answer_asked_for_before_a_server_was_lost_does_not_bring_it_back() -> None:
    servers, group = group_of(2, allow_missing=True, ask_seconds=1e-9)
    group.infos()
    group._ask([group[1]])
    servers[1].is_away = True
    group.lose(group[1], ServerUnreachable("gone"))
    group.refresh()
    assert group[1].size_of("replay") == 0
    assert [*group.missing] == ["b:1"]
    servers[1].is_away = False
    group.refresh()
    assert not group.missing
    group.close()


def test_another_process_at_an_address_is_noticed() -> None:
    servers, group = group_of(1)
    (server,) = group
    server.info = servers[0].server_info()
    assert server.info.state_id == 100
    server.check_process(Deadlines(reconnect=0.0))
    servers[0].state_id = 7
    with pytest.raises(ServerRestarted, match="a:1: another server process answers"):
        server.check_process(Deadlines(reconnect=0.0))
