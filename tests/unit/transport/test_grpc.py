"""The transport against an in-process server: addresses, deadlines, status codes, metadata, TLS."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode, _channel
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError, WireError
from rlds2reverb.transport import grpc as grpc_transport
from rlds2reverb.transport import grpc as question
from rlds2reverb.transport.base import RETRYABLE
from rlds2reverb.transport.grpc import Connections, GrpcStream, GrpcTransport, begin
from tests.support.fake_reverb import FakeReverb, plan
from tests.support.processes import dead_port, started
from tests.support.wire.certificates import self_signed

# What each status means for the same call, tried again.
AGAIN_HELPS = {
    grpc.StatusCode.OK: False,
    grpc.StatusCode.CANCELLED: True,
    grpc.StatusCode.UNKNOWN: True,
    grpc.StatusCode.INVALID_ARGUMENT: False,
    grpc.StatusCode.DEADLINE_EXCEEDED: True,
    grpc.StatusCode.NOT_FOUND: False,
    grpc.StatusCode.ALREADY_EXISTS: False,
    grpc.StatusCode.PERMISSION_DENIED: False,
    grpc.StatusCode.UNAUTHENTICATED: False,
    grpc.StatusCode.RESOURCE_EXHAUSTED: False,
    grpc.StatusCode.FAILED_PRECONDITION: False,
    grpc.StatusCode.ABORTED: True,
    grpc.StatusCode.UNIMPLEMENTED: False,
    grpc.StatusCode.INTERNAL: True,
    grpc.StatusCode.UNAVAILABLE: True,
    grpc.StatusCode.DATA_LOSS: False,
    grpc.StatusCode.OUT_OF_RANGE: False,
}
ERRORS = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@pytest.fixture
def fake() -> Iterator[FakeReverb]:
    with FakeReverb("replay", "other") as running:
        yield running


@pytest.fixture
def transport(fake: FakeReverb) -> Iterator[GrpcTransport]:
    opened = GrpcTransport(fake.address)
    yield opened
    opened.close()


# Checkpoints.


def test_a_checkpoint_that_another_one_has_deleted_is_asked_for_again(
    fake: FakeReverb, transport: GrpcTransport
) -> None:
    fake.checkpoint_codes += [grpc.StatusCode.NOT_FOUND] * 3
    assert transport.checkpoint(60.0) == "/a/checkpoint"
    fake.checkpoint_codes += [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT]
    with pytest.raises(TransportError, match="as planned"):
        transport.checkpoint(60.0)
    assert not fake.checkpoint_codes
    fake.checkpoint_codes += [grpc.StatusCode.NOT_FOUND] * 100
    with pytest.raises(TransportError, match="NOT_FOUND"):
        transport.checkpoint(60.0)
    assert len(fake.checkpoint_codes) == 90
    with pytest.raises(TransportError, match="NOT_FOUND"):
        transport.checkpoint(60.0, attempts=1)
    assert len(fake.checkpoint_codes) == 89


# Addresses.


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", "localhost:", ":8000", "localhost:http", "localhost:-1", "localhost:8000 ", "localhost:²"),
        *("localhost:0", "localhost:65536", "localhost:" + "9" * 5000, "unix:/tmp/socket", "http://localhost:8000"),
    ],
)
def test_an_address_that_is_not_host_and_port_is_a_config_error(address: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT, such as localhost:8000"):
        GrpcTransport(address)


@pytest.mark.parametrize("address", ["localhost:1", "[::1]:8000", "replay.example:65535"])
def test_an_address_of_host_and_port_opens_no_connection_yet(address: str) -> None:
    transport = GrpcTransport(address)
    assert transport.address == address
    transport.close()


# ServerInfo.


def test_server_info_tells_the_tables(fake: FakeReverb, transport: GrpcTransport) -> None:
    fake.limiters["other"] = {"max_diff": 5.0}
    info = transport.server_info()
    assert info.state_id == fake.state_id
    assert list(info.tables) == ["replay", "other"]
    assert info.tables["other"].rate_limiter.max_diff == 5.0


def test_an_answer_that_is_not_reverbs_is_a_wire_error(fake: FakeReverb, transport: GrpcTransport) -> None:
    fake.info_bytes = b"\xff\xff"
    with pytest.raises(WireError, match="ServerInfoResponse"):
        transport.server_info()


def test_a_dead_port_is_unreachable_within_the_deadline() -> None:
    with dead_port() as port:
        transport = GrpcTransport(f"127.0.0.1:{port}", call_seconds=0.2)
        with pytest.raises(ServerUnreachable, match=rf"server 127.0.0.1:{port}: no answer within 0.2 s") as error:
            transport.server_info()
    assert error.value.retryable
    assert isinstance(error.value.__cause__, grpc.RpcError)
    transport.close()


def test_a_server_that_takes_the_call_and_says_nothing_is_unreachable() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        transport = GrpcTransport(f"127.0.0.1:{mute.getsockname()[1]}", call_seconds=0.2)
        with pytest.raises(ServerUnreachable, match="is it a Reverb server"):
            transport.server_info()
        transport.close()


def test_a_server_that_comes_up_within_the_deadline_is_reached(fake: FakeReverb, transport: GrpcTransport) -> None:
    fake.info_codes.append(grpc.StatusCode.UNAVAILABLE)
    assert transport.server_info().state_id == fake.state_id
    assert fake.info_calls == 2


@pytest.mark.parametrize("after", [2, 3, 6])
def test_a_call_without_an_answer_gets_others_behind_it(
    fake: FakeReverb, transport: GrpcTransport, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(question, "_DOUBT_SECONDS", 0.01)
    fake.info_after = after
    assert transport.server_info().state_id == fake.state_id
    assert fake.info_calls >= after


def test_a_call_that_nothing_answers_ends_within_the_deadline(
    fake: FakeReverb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question, "_DOUBT_SECONDS", 0.01)
    monkeypatch.setattr(question, "_GRACE_SECONDS", 60.0)  # gRPC itself says it, however busy the machine is
    transport = GrpcTransport(fake.address, call_seconds=0.3)
    fake.info_after = 1000
    with pytest.raises(ServerUnreachable, match=r"no answer within 0.3 s \(DEADLINE_EXCEEDED"):
        transport.server_info()
    transport.close()
    fake.answer_all()


def test_a_call_that_grpc_itself_does_not_end_ends(fake: FakeReverb, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that gRPC has lost its threads in."""
    monkeypatch.setattr(question, "_DOUBT_SECONDS", 0.01)
    monkeypatch.setattr(question, "_GRACE_SECONDS", 0.01)
    transport = GrpcTransport(fake.address, call_seconds=0.1)
    monkeypatch.setattr(transport, "_start_server_info", lambda *_: Never())
    with pytest.raises(ServerUnreachable, match=r"no answer within 0.1 s: gRPC itself says nothing"):
        transport.server_info()
    transport.close()


class Never:
    """A call that does not end."""

    def add_done_callback(self, _: object) -> None:
        pass

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("calls", [GrpcTransport.server_info, lambda transport: transport.sample_stream(iter([b""]))])
def test_a_call_that_is_interrupted_while_it_begins_does_not_hold_what_closes(
    fake: FakeReverb, calls: Callable[[GrpcTransport], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, spin = threading.Event(), _channel._run_channel_spin_thread

    def interrupted(state: Any) -> None:
        signal.raise_signal(signal.SIGINT)  # the main thread's, whichever thread this is
        begins.set()
        spin(state)

    monkeypatch.setattr(_channel, "_run_channel_spin_thread", interrupted)
    transport = GrpcTransport(fake.address)
    with pytest.raises(KeyboardInterrupt):
        calls(transport)
    assert begins.wait(60)
    closing = threading.Thread(target=transport.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


class Begun:
    """A call that keeps whether it was cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = threading.Event()

    def cancel(self) -> None:
        self.is_cancelled.set()


def test_wherever_an_interrupt_comes_it_is_one_and_the_call_that_begins_is_cancelled() -> None:
    """The standard library's threads and futures raised "release unlocked lock" once in a thousand times instead."""
    for _ in range(1000):
        call = Begun()

        def start(call: Begun = call) -> Any:
            signal.raise_signal(signal.SIGINT)
            return call

        with pytest.raises(KeyboardInterrupt):
            begin(start)
        assert call.is_cancelled.wait(60)


def test_a_closed_channel_makes_no_call(fake: FakeReverb) -> None:
    transport = GrpcTransport(fake.address)
    transport.server_info()
    transport.close()
    with pytest.raises(TransportError, match="no call can be made") as error:
        transport.server_info()
    assert not error.value.retryable
    with pytest.raises(TransportError, match="no call can be made"):
        transport.insert_stream(iter(()))


# Status codes.


def test_every_status_code_is_mapped() -> None:
    assert set(AGAIN_HELPS) == set(grpc.StatusCode)
    assert {code.name for code, again in AGAIN_HELPS.items() if again} == RETRYABLE


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
def test_a_call_that_ends_with_a_status_is_translated(fake: FakeReverb, code: StatusCode) -> None:
    transport = GrpcTransport(fake.address, call_seconds=0.3)
    fake.info_codes.extend([code] * 100)
    with pytest.raises(TransportError) as error:
        transport.server_info()
    assert error.value.retryable == AGAIN_HELPS[code]
    assert fake.address in str(error.value)
    unreachable = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert isinstance(error.value, ServerUnreachable) == unreachable
    if not unreachable:
        assert f"asking for its tables: {code.name}: as planned" in str(error.value)
    transport.close()


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
def test_a_stream_that_ends_with_a_status_is_translated(
    fake: FakeReverb, transport: GrpcTransport, code: StatusCode
) -> None:
    fake.plans.append(plan(0, code))
    with pytest.raises(TransportError) as broken:
        list(transport.insert_stream(iter(())))
    error = broken.value
    assert type(error) is TransportError
    assert isinstance(error.__cause__, grpc.RpcError)
    assert error.retryable == AGAIN_HELPS[code]
    words, _, hint = str(error).partition("; ")
    assert words == f"server {fake.address}, inserting: {code.name}: as planned"
    assert ("--tls-cert" in hint) == (code in (StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED))
    assert bool(hint) == ("--tls-cert" in hint)


def test_a_server_without_the_method_says_so(fake: FakeReverb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_transport, "_SERVICE", "/another.Service/")
    transport = GrpcTransport(fake.address)
    with pytest.raises(TransportError, match="UNIMPLEMENTED") as error:
        transport.server_info()
    assert not error.value.retryable
    transport.close()


# Metadata and TLS.


def test_metadata_goes_with_every_call(fake: FakeReverb) -> None:
    sent: list[Any] = [("authorization", "Bearer abc"), ("x-bin", b"\x00\x01")]
    transport = GrpcTransport(fake.address, metadata=sent)
    transport.server_info()
    assert list(transport.insert_stream(iter(()))) == []
    assert len(fake.metadata) == 2
    for metadata in fake.metadata:
        assert metadata["authorization"] == "Bearer abc"
        assert metadata["x-bin"] == b"\x00\x01"
    transport.close()


def test_metadata_that_are_no_headers_are_refused(fake: FakeReverb) -> None:
    transport = GrpcTransport(fake.address, metadata=[("Not A Header", "x")])
    with pytest.raises(TransportError, match=r"[Mm]etadata"):
        transport.server_info()
    transport.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A private key and a self-signed certificate for 127.0.0.1, both PEM."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strange_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Another one, of the same name."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def test_tls_reaches_a_server_whose_certificate_is_trusted(certificate: tuple[bytes, bytes]) -> None:
    key, chain = certificate
    with FakeReverb(credentials=grpc.ssl_server_credentials([(key, chain)])) as fake:
        transport = GrpcTransport(fake.address, grpc.ssl_channel_credentials(chain), [("authorization", "x")])
        assert transport.server_info().state_id == fake.state_id
        assert fake.metadata[0]["authorization"] == "x"
        transport.close()


def test_tls_refuses_a_server_whose_certificate_is_not_trusted(
    certificate: tuple[bytes, bytes], strange_certificate: tuple[bytes, bytes]
) -> None:
    with FakeReverb(credentials=grpc.ssl_server_credentials([strange_certificate])) as fake:
        transport = GrpcTransport(fake.address, grpc.ssl_channel_credentials(certificate[1]), call_seconds=0.3)
        with pytest.raises(ServerUnreachable, match=r"its certificate is not accepted"):
            transport.server_info()
        transport.close()


def test_a_client_certificate_is_shown_when_it_is_asked_for(certificate: tuple[bytes, bytes]) -> None:
    key, chain = certificate
    asking = grpc.ssl_server_credentials([(key, chain)], root_certificates=chain, require_client_auth=True)
    with FakeReverb(credentials=asking) as fake:
        known = GrpcTransport(fake.address, grpc.ssl_channel_credentials(chain, key, chain))
        assert known.server_info().state_id == fake.state_id
        known.close()
        unknown = GrpcTransport(fake.address, grpc.ssl_channel_credentials(chain), call_seconds=0.3)
        with pytest.raises(ServerUnreachable):
            unknown.server_info()
        unknown.close()


def test_a_plain_client_does_not_reach_a_server_with_tls(certificate: tuple[bytes, bytes]) -> None:
    with FakeReverb(credentials=grpc.ssl_server_credentials([certificate])) as fake:
        transport = GrpcTransport(fake.address, call_seconds=0.3)
        with pytest.raises(ServerUnreachable, match="it speaks TLS, and this client plain text"):
            transport.server_info()
        transport.close()


# A gRPC stream: what is read of it, its errors as ours, and where its connection goes.


class Channel:
    """A connection that only knows whether it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Broken(grpc.RpcError):
    pass


class Call:
    """A call with these messages, and an error behind them."""

    def __init__(self, messages: list[bytes], error: Exception | None = None) -> None:
        self.messages, self.error = messages, error
        self.cancelled = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.messages
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.cancelled = True


def stream_of(call: Call) -> tuple[GrpcStream, Connections, Any]:
    connections = Connections(Channel)
    connection = connections.take()
    return (
        GrpcStream(call, connection, connections, lambda error: TransportError(f"ours: {error}")),
        connections,
        connection,
    )


def test_a_stream_gives_the_servers_messages() -> None:
    call = Call([b"a", b"b"])
    stream, _, _ = stream_of(call)
    assert list(stream) == [b"a", b"b"]
    assert not call.cancelled


def test_an_error_of_grpc_comes_as_ours_after_the_messages_before_it() -> None:
    stream, _, _ = stream_of(Call([b"a"], Broken("gone")))
    messages = iter(stream)
    assert next(messages) == b"a"
    with pytest.raises(TransportError, match="ours: gone") as error:
        next(messages)
    assert isinstance(error.value.__cause__, grpc.RpcError)


def test_an_error_that_is_not_grpcs_is_not_hidden() -> None:
    stream, _, _ = stream_of(Call([], ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        list(stream)


def test_ending_it_puts_its_connection_back_and_keeps_it() -> None:
    call = Call([])
    stream, connections, connection = stream_of(call)
    stream.end()
    assert call.cancelled
    assert not connections._holders
    assert connections.take() is connection


def test_leaving_it_has_what_is_new_go_over_another_connection_and_closes_its_own_at_its_end() -> None:
    call = Call([])
    stream, connections, connection = stream_of(call)
    stream.abandon()
    assert call.cancelled
    assert connections.take() is not connection
    assert not connection.is_closed
    stream.end()
    assert connection.is_closed


# Which connection is in use, and that each is closed once nothing goes over it: a model, and any order of events.


@pytest.fixture
def connections() -> Connections:
    return Connections(Channel)


def test_a_connection_is_closed_when_it_was_replaced_and_nothing_goes_over_it_any_more(
    connections: Connections,
) -> None:
    first, other = connections.take(), connections.take()
    assert first is other
    fresh = connections.fresh()
    connections.adopt(fresh, instead_of=first)
    connections.put_back(first)
    assert not first.is_closed
    connections.put_back(other)
    assert first.is_closed
    with connections.taken() as current:
        assert current is fresh
    assert not fresh.is_closed


def test_a_connection_that_somebody_else_has_replaced_is_not_replaced_again(connections: Connections) -> None:
    first = connections.take()
    connections.put_back(first)
    better, late = connections.fresh(), connections.fresh()
    connections.adopt(better, instead_of=first)
    connections.adopt(late, instead_of=first)
    assert (first.is_closed, better.is_closed, late.is_closed) == (True, False, True)
    connections.abandon(first)
    assert connections.take() is better


def test_leaving_the_connection_in_use_opens_another_one(connections: Connections) -> None:
    first = connections.take()
    connections.abandon(first)
    assert connections.take() is not first
    assert not first.is_closed


def test_closing_closes_what_streams_are_on_as_well(connections: Connections) -> None:
    first = connections.take()
    connections.abandon(first)
    second = connections.take()
    connections.close()
    assert first.is_closed
    assert second.is_closed
    late = connections.fresh()
    connections.adopt(late, instead_of=second)
    assert late.is_closed


def test_what_is_taken_is_put_back_after_an_error(connections: Connections) -> None:
    with pytest.raises(KeyError), connections.taken() as first:
        raise KeyError
    connections.abandon(first)
    assert first.is_closed


@given(st.lists(st.tuples(st.sampled_from(["take", "put back", "abandon", "adopt"]), st.integers(0, 10))))
def test_open_are_the_one_in_use_and_those_that_are_held(events: list[tuple[str, int]]) -> None:
    made: list[Channel] = []

    def connect() -> Channel:
        made.append(Channel())
        return made[-1]

    connections, held = Connections(connect), []
    for event, number in events:
        if event == "take":
            held.append(connections.take())
        elif event == "put back" and held:
            connections.put_back(held.pop(number % len(held)))
        elif event == "abandon":
            connections.abandon(made[number % len(made)])
        elif event == "adopt":
            connections.adopt(connections.fresh(), made[number % len(made)])
        with connections.taken() as current:
            assert {channel for channel in made if not channel.is_closed} == {current, *held}


_LEAVING = """
import threading
from rlds2reverb.transport.grpc import Connections

class Channel:
    def close(self):
        print("closed" if reader.is_alive() else "too late", flush=True)

left = threading.Event()
reader = threading.Thread(target=left.wait, daemon=True)
reader.start()
kept, dropped = Connections(Channel), Connections(Channel)
{}
"""


@pytest.mark.parametrize(
    ("then", "told"), [("", ["closed"] * 2), ("del dropped", ["closed"]), ("kept.close()", ["closed"] * 2)]
)
def test_what_is_open_at_the_end_of_the_interpreter_is_closed_while_threads_run(
    tmp_path: Path, then: str, told: list[str]
) -> None:
    with started(tmp_path, "-c", _LEAVING.format(then)) as process:
        assert process.wait() == 0
    assert (process.output.split("\n")[:-1], process.errors) == (told, "")
