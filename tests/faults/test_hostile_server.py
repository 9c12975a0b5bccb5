"""Servers that answer garbage, nothing, or half: errors of ours only, and always an end."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import grpc
import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.errors import Rlds2ReverbError, ServerRestarted, ServerUnreachable, Stalled, TransportError, WireError
from rlds2reverb.transport.grpc import GrpcTransport
from tests.support.faults import hostile, tools
from tests.support.faults.hostile import HostileServer, Requests, confirmation, item_keys

pytestmark = [pytest.mark.faults, pytest.mark.timeout(60)]

EPISODES = tools.make_episodes(count=5, steps=31, seed=13)
ITEMS = 150
IMPATIENT = replace(tools.QUICK, call=0.5, reconnect=0.5, notice=0.1, stall=0.6)
UNKNOWN_KEY = (1 << 63) + 5


def good_info(_: int = 0) -> bytes:
    return hostile.server_info()


def push(server: HostileServer) -> Any:
    return tools.push(server.address, EPISODES, "one", deadlines=IMPATIENT)


def test_the_hostile_server_can_be_honest() -> None:
    """Without this the other tests could fail for reasons of their own."""
    with HostileServer(good_info) as server:
        assert push(server).items_confirmed == ITEMS


# ServerInfo


@pytest.mark.parametrize("seed", range(10))
def test_any_bytes_for_server_info_are_a_value_or_a_wire_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    answers = [rng.bytes(int(rng.integers(1, 200))) for _ in range(20)]
    answers += [damaged(good_info(), rng) for _ in range(20)]
    with HostileServer(lambda number: answers[number - 1]) as server:
        transport = GrpcTransport(server.address)
        outcomes: list[object] = []
        for _ in answers:
            try:
                outcomes.append(transport.server_info())
            except WireError as error:
                outcomes.append(str(error))
        transport.close()
    assert len(outcomes) == len(answers)
    assert any(isinstance(outcome, str) for outcome in outcomes)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """One byte changed, or the end cut off."""
    at = int(rng.integers(0, len(data)))
    return data[:at] if rng.integers(2) else data[:at] + rng.bytes(1) + data[at + 1 :]


def test_a_server_that_answers_no_question_is_unreachable() -> None:
    with HostileServer(lambda _: server.wait_for_ever() or b"") as server:
        with pytest.raises(ServerUnreachable, match=rf"server {server.address}: no answer within 0\.5 s"):
            rlds2reverb.connect(server.address, timeout_seconds=0.5)


def test_a_grpc_server_that_is_no_reverb_server_is_named() -> None:
    with ordinary_server() as port, pytest.raises(TransportError, match="UNIMPLEMENTED") as caught:
        rlds2reverb.connect(f"127.0.0.1:{port}", timeout_seconds=5)
    assert not caught.value.retryable


@contextmanager
def ordinary_server() -> Iterator[int]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield port
        server.stop(None).wait(30)


@pytest.mark.parametrize("banner", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 100, b"SSH-2.0-x\r\n"])
def test_a_server_of_another_protocol_is_unreachable(banner: bytes) -> None:
    with plain_server(banner) as port, pytest.raises(ServerUnreachable, match=r"(is it|not) a Reverb server"):
        rlds2reverb.connect(f"127.0.0.1:{port}", timeout_seconds=0.7)


@contextmanager
def plain_server(banner: bytes) -> Iterator[int]:
    """Takes connections, sends a banner and closes; with an empty banner it says nothing and holds on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if banner:
                    connection.sendall(banner)
                    connection.close()
                else:
                    held.append(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        for connection in held:
            connection.close()


# InsertStream


def nothing(requests: Requests, _: Any) -> Iterator[bytes]:
    """Reads all, confirms nothing."""
    for _ in requests:
        yield from ()


def close_at_once(_: Requests, __: Any) -> Iterator[bytes]:
    yield from ()


def confirm_nothing_and_close(requests: Requests, _: Any) -> Iterator[bytes]:
    """An answer is no progress when it has no key."""
    next(requests)
    yield b""


def close_after_one_request(requests: Requests, _: Any) -> Iterator[bytes]:
    next(requests)
    yield from ()


def unknown_keys(requests: Requests, _: Any) -> Iterator[bytes]:
    for request in requests:
        yield confirmation(*item_keys(request), UNKNOWN_KEY)


def duplicates(requests: Requests, _: Any) -> Iterator[bytes]:
    for request in requests:
        yield confirmation(*item_keys(request))
        yield confirmation(*item_keys(request))


def unasked(_: Requests, __: Any) -> Iterator[bytes]:
    yield confirmation(UNKNOWN_KEY)
    yield from nothing(_, __)


def garbage(requests: Requests, _: Any) -> Iterator[bytes]:
    next(requests)
    yield b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    yield from nothing(requests, _)


def half_a_confirmation(requests: Requests, _: Any) -> Iterator[bytes]:
    """Says how many bytes of keys come, and brings fewer."""
    for request in requests:
        yield confirmation(*item_keys(request))[:-10]


def empty_confirmations(requests: Requests, _: Any) -> Iterator[bytes]:
    for _ in requests:
        yield b""


@pytest.mark.parametrize("insert", [unknown_keys, duplicates, unasked, garbage, half_a_confirmation])
def test_confirmations_that_cannot_be_are_wire_errors(insert: hostile.InsertStream) -> None:
    with HostileServer(good_info, insert) as server, pytest.raises(WireError):
        push(server)
    assert server.streams == 1


@pytest.mark.parametrize("insert", [nothing, empty_confirmations])
def test_a_server_that_confirms_nothing_stalls_the_push(insert: hostile.InsertStream) -> None:
    with HostileServer(good_info, insert) as server:
        with pytest.raises(
            Stalled, match=r"the server answers and no rate limiter blocks; .*confirmed nothing on its stream"
        ):
            push(server)
    assert 1 < server.streams < 10  # it is given other ones, each for twice as long


@pytest.mark.parametrize("insert", [close_at_once, close_after_one_request, confirm_nothing_and_close])
def test_streams_that_always_end_early_end_the_push(insert: hostile.InsertStream) -> None:
    with HostileServer(good_info, insert) as server:
        with pytest.raises(Stalled, match=r"streams that ended without a confirmation: \d+.*it ended the stream"):
            push(server)
    assert 1 < server.streams < 60  # the pauses grow: no storm of attempts


def test_a_stream_that_ends_after_every_confirmation_is_slow_but_no_fault() -> None:
    def confirm_once(requests: Requests, _: Any) -> Iterator[bytes]:
        yield confirmation(*next(keys for keys in map(item_keys, requests) if keys))

    with HostileServer(good_info, confirm_once) as server:
        report = push(server)
    assert report.items_confirmed == ITEMS
    assert report.reconnects >= 5


def test_confirmations_in_any_order_and_size_are_taken() -> None:
    def backwards(requests: Requests, _: Any) -> Iterator[bytes]:
        for request in requests:
            for key in reversed(item_keys(request)):
                yield confirmation(key)

    with HostileServer(good_info, backwards) as server:
        assert push(server).items_confirmed == ITEMS


def test_another_server_behind_the_address_ends_the_push() -> None:
    answers = iter([hostile.server_info(state_id=1)])
    with HostileServer(lambda _: next(answers, hostile.server_info(state_id=2)), close_after_one_request) as server:
        with pytest.raises(ServerRestarted):
            push(server)


@pytest.mark.parametrize("answer", [b"\xff" * 9, hostile.server_info(name="another")])
def test_nonsense_about_the_tables_in_mid_push_is_an_error_of_ours(answer: bytes) -> None:
    answers = iter([good_info()])
    with HostileServer(lambda _: next(answers, answer), nothing) as server, pytest.raises(Rlds2ReverbError):
        push(server)


@pytest.mark.parametrize("field", ["samples_per_insert", "max_diff", "min_diff"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_limiter_of_impossible_numbers_can_be_explained(field: str, value: float) -> None:
    info = hostile.server_info(**cast("dict[str, Any]", {field: value}))
    with HostileServer(lambda _: info, nothing) as server, pytest.raises(Stalled):
        push(server)
