"""What is at an address where no Reverb server answers: each in a sentence of its own, without waiting for a deadline."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2reverb
from rlds2reverb.errors import ServerUnreachable, TransportError
from rlds2reverb.transport import probe
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.transport.probe import why_unavailable
from tests.support.fake_reverb import FakeReverb
from tests.support.faults.proxy import Proxy
from tests.support.processes import dead_port
from tests.support.wire.certificates import self_signed

pytestmark = pytest.mark.timeout(30)

LONG = 120.0
"""A deadline that no test outlasts: what it says at once, it says before."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def time_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LOOK_SECONDS", 10.0)  # however busy the machine is


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strange_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@contextmanager
def listener(serve: Callable[[socket.socket], object], host: str = "127.0.0.1") -> Iterator[str]:
    """Hands every connection to `serve`, and closes it then."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taking:

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = taking.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(5)
                        serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        port = taking.getsockname()[1]
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        taking.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def saying(banner: bytes) -> Callable[[socket.socket], object]:
    """Says something to whoever has said something."""

    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(banner)

    return serve


@contextmanager
def web_server() -> Iterator[str]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(20)


def refusal(address: str, credentials: grpc.ChannelCredentials | None = None) -> ServerUnreachable:
    """The error of connecting, which comes long before the deadline."""
    with pytest.raises(ServerUnreachable) as caught:
        rlds2reverb.connect(address, credentials, timeout_seconds=LONG)
    assert str(caught.value).startswith(f"server {address}: ")
    return caught.value


# Connecting, at once.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_where_nothing_listens(host: str) -> None:
    with dead_port() as port:
        address = f"{host}:{port}"
        error = refusal(address)
    assert "nothing listens there (connection refused); is it running, and is this its port?" in str(error)
    assert "--wait SECONDS (wait_seconds=)" in str(error)
    assert error.retryable


def test_a_name_that_does_not_exist() -> None:
    error = refusal("no-such-host.invalid:8000")
    assert 'the name "no-such-host.invalid" is not found (' in str(error)
    assert "check its spelling" in str(error)
    assert error.retryable


@pytest.mark.parametrize(
    "banner",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTTP/1.0 505 HTTP Version Not Supported\r\n\r\n", b"<!DOCTYPE HTML>\n"],
)
def test_a_web_server(banner: bytes) -> None:
    with listener(saying(banner)) as address:
        error = refusal(address)
    assert "not a Reverb server: a web server answers there (HTTP/1). Give the port of gRPC" in str(error)
    assert not error.retryable


def test_pythons_own_web_server() -> None:
    with web_server() as address:
        assert "a web server answers there" in str(refusal(address))


@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x00" * 100, b"220 mail ESMTP\r\n", b"-ERR\r\n"])
def test_another_protocol(banner: bytes) -> None:
    with listener(saying(banner)) as address:
        error = refusal(address)
    assert "not a Reverb server: what answers there does not speak HTTP/2; check the port" in str(error)
    assert not error.retryable


def test_another_grpc_server() -> None:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with pytest.raises(TransportError, match=r"UNIMPLEMENTED.*what answers there is not a Reverb server") as caught:
            rlds2reverb.connect(f"127.0.0.1:{port}", timeout_seconds=LONG)
        server.stop(None).wait(20)
    assert not caught.value.retryable


def test_tls_where_the_client_is_plain(certificate: tuple[bytes, bytes]) -> None:
    with FakeReverb(credentials=grpc.ssl_server_credentials([certificate])) as fake:
        error = refusal(fake.address)
    assert "it speaks TLS, and this client plain text: name the certificate authority (--tls-ca" in str(error)
    assert not error.retryable


def test_tls_behind_a_server_that_answers_plain_text_as_nginx_does(
    certificate: tuple[bytes, bytes], tmp_path: Path
) -> None:
    for name, data in zip(("key.pem", "chain.pem"), certificate):
        (tmp_path / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")

    def serve(connection: socket.socket) -> None:
        if connection.recv(1, socket.MSG_PEEK) == b"P":
            saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")(connection)
        else:
            context.wrap_socket(connection, server_side=True).close()

    with listener(serve) as address:
        assert "it speaks TLS, and this client plain text" in str(refusal(address))


def test_tls_that_asks_for_a_certificate_where_the_client_is_plain(certificate: tuple[bytes, bytes]) -> None:
    asking = grpc.ssl_server_credentials([certificate], root_certificates=certificate[1], require_client_auth=True)
    with FakeReverb(credentials=asking) as fake:
        assert "it speaks TLS, and this client plain text" in str(refusal(fake.address))


def test_plain_text_where_the_client_speaks_tls(certificate: tuple[bytes, bytes]) -> None:
    with FakeReverb() as fake:
        error = refusal(fake.address, grpc.ssl_channel_credentials(certificate[1]))
    assert "it speaks plain text, and this client TLS: leave out --tls-ca (credentials=)" in str(error)
    assert not error.retryable


def test_a_web_server_where_the_client_speaks_tls(certificate: tuple[bytes, bytes]) -> None:
    with web_server() as address:
        assert "a web server answers there" in str(refusal(address, grpc.ssl_channel_credentials(certificate[1])))


def test_a_certificate_that_is_not_accepted(
    certificate: tuple[bytes, bytes], strange_certificate: tuple[bytes, bytes]
) -> None:
    with FakeReverb(credentials=grpc.ssl_server_credentials([strange_certificate])) as fake:
        error = refusal(fake.address, grpc.ssl_channel_credentials(certificate[1]))
    assert "its certificate is not accepted: it must be signed by the authority" in str(error)
    assert not error.retryable


def test_an_ipv6_address() -> None:
    try:
        with listener(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "::1") as address:
            assert "a web server answers there" in str(refusal(address))
    except OSError:
        pytest.skip("no IPv6 here")


# Waiting, where it may help.


def test_a_server_that_is_starting_is_waited_for() -> None:
    with FakeReverb() as fake, Proxy(fake.port) as proxy:
        proxy.refuse()
        assert "nothing listens there" in str(refusal(proxy.address))
        timer = threading.Timer(0.3, proxy.accept)
        timer.start()
        with rlds2reverb.connect(proxy.address, wait_seconds=LONG) as client:
            assert client.server_info().state_id == fake.state_id
        timer.join()


def test_the_wait_ends_with_the_reason() -> None:
    with dead_port() as port, pytest.raises(ServerUnreachable, match="nothing listens there") as caught:
        address = f"127.0.0.1:{port}"
        rlds2reverb.connect(address, timeout_seconds=LONG, wait_seconds=0.5)
    assert str(caught.value).endswith(" its port? Waited 0.5 s for it (--wait, wait_seconds=)")


def test_what_cannot_change_is_not_waited_for() -> None:
    with web_server() as address, pytest.raises(ServerUnreachable, match="a web server answers there"):
        rlds2reverb.connect(address, wait_seconds=LONG)


def test_a_stand_in_of_a_server_that_was_there_may_go_again() -> None:
    with web_server() as address, contextlib.closing(GrpcTransport(address, call_seconds=0.2)) as transport:
        with pytest.raises(ServerUnreachable, match=r"no answer within 0\.2 s: .*a web server answers there") as caught:
            transport.server_info()
    assert caught.value.retryable


def test_all_addresses_of_a_name_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LOOK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, web_server() as address:
        waiting = [socket.socket() for _ in range(3)]
        for connection in waiting:  # as many as the backlog takes
            connection.setblocking(False)
            connection.connect_ex(full.getsockname())
        host, port = address.split(":")
        places = [full.getsockname(), (host, int(port))]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert why_unavailable("some.name:8000", False, "") is None
        for connection in waiting:
            connection.close()


def test_what_is_cut_off_is_tried_until_the_deadline() -> None:
    with listener(lambda connection: None) as address:
        with pytest.raises(ServerUnreachable, match=r"no answer within 0\.7 s \(UNAVAILABLE: "):
            rlds2reverb.connect(address, timeout_seconds=0.7)


# The proxies of the environment, through which gRPC goes and a socket does not.


def test_behind_a_proxy_only_grpcs_words_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy.invalid:3128")
    with web_server() as address:
        finding = why_unavailable(address, False, "Socket closed")
        assert "the proxy that the environment variable http_proxy names (Socket closed)" in finding.sentence
        assert "list 127.0.0.1 in no_proxy" in finding.sentence
        assert "secret" not in finding.sentence
        monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
        assert "a web server" in why_unavailable(address, False, "Socket closed").sentence


def test_a_server_that_is_well_is_no_reason(certificate: tuple[bytes, bytes]) -> None:
    with FakeReverb() as fake:
        assert why_unavailable(fake.address, False, "Socket closed") is None
    with FakeReverb(credentials=grpc.ssl_server_credentials([certificate])) as fake:
        assert why_unavailable(fake.address, True, "Socket closed") is None


def test_a_listener_that_says_nothing_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LOOK_SECONDS", 0.2)
    with listener(lambda connection: connection.recv(1)) as address:
        assert why_unavailable(address, False, "") is None
        assert why_unavailable(address, True, "") is None


@pytest.mark.parametrize("name", ["a" * 300, "a..b", "ä" * 80])
def test_a_name_that_is_none_is_no_crash(name: str) -> None:
    why_unavailable(f"{name}:8000", False, "")


@given(st.binary(max_size=80))
def test_any_bytes_are_some_kind_of_answer_and_few_say_nothing(data: bytes) -> None:
    assert (probe._kind(data) is probe._Answer.NOTHING) == (len(data) < 4)


@pytest.mark.parametrize("count", range(10))
def test_no_beginning_of_an_answer_of_http2_is_taken_for_something_else(count: int) -> None:
    """As of a server whose connection is cut while it answers."""
    settings = bytes([0, 0, 18, 4, 0, 0, 0, 0, 0])
    assert probe._kind(settings[:count]) in (probe._Answer.NOTHING, probe._Answer.HTTP2)
