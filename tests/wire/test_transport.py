"""The transport against an in-process server: addresses, deadlines, status codes, metadata, TLS."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError, WireError
from rlds2reverb.wire import transport
from rlds2reverb.wire.transport import RETRYABLE, Deadlines, ReverbChannel, retry_until
from tests.wire.fake_reverb import FakeReverb, Plan

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError:
    x509 = None

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
def channel(fake: FakeReverb) -> Iterator[ReverbChannel]:
    opened = ReverbChannel(fake.address)
    yield opened
    opened.close()


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that is taken and refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


# Addresses.


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", "localhost:", ":8000", "localhost:http", "localhost:-1", "localhost:8000 ", "localhost:²"),
        *("localhost:0", "localhost:65536", "localhost:" + "9" * 5000, "unix:/tmp/socket", "http://localhost:8000"),
    ],
)
def test_an_address_that_is_not_host_and_port_is_a_config_error(address):
    with pytest.raises(ConfigError, match="expected HOST:PORT, such as localhost:8000"):
        ReverbChannel(address)


@pytest.mark.parametrize("address", ["localhost:1", "[::1]:8000", "replay.example:65535"])
def test_an_address_of_host_and_port_opens_no_connection_yet(address):
    channel = ReverbChannel(address)
    assert channel.address == address
    channel.close()


# ServerInfo.


def test_server_info_tells_the_tables(fake, channel):
    fake.limiters["other"] = {"max_diff": 5.0}
    info = channel.server_info()
    assert info.state_id == fake.state_id
    assert list(info.tables) == ["replay", "other"]
    assert info.tables["other"].rate_limiter.max_diff == 5.0


def test_an_answer_that_is_not_reverbs_is_a_wire_error(fake, channel):
    fake.info_bytes = b"\xff\xff"
    with pytest.raises(WireError, match="ServerInfoResponse"):
        channel.server_info()


def test_a_dead_port_is_unreachable_within_the_deadline(dead_port):
    channel = ReverbChannel(f"127.0.0.1:{dead_port}", call_seconds=0.2)
    with pytest.raises(ServerUnreachable, match=rf"server 127.0.0.1:{dead_port}: no answer within 0.2 s") as error:
        channel.server_info()
    assert error.value.retryable
    assert isinstance(error.value.__cause__, grpc.RpcError)
    channel.close()


def test_a_server_that_takes_the_call_and_says_nothing_is_unreachable():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        channel = ReverbChannel(f"127.0.0.1:{mute.getsockname()[1]}", call_seconds=0.2)
        with pytest.raises(ServerUnreachable, match="is it a Reverb server"):
            channel.server_info()
        channel.close()


def test_a_server_that_comes_up_within_the_deadline_is_reached(fake, channel):
    fake.info_codes.append(grpc.StatusCode.UNAVAILABLE)
    assert channel.server_info().state_id == fake.state_id
    assert fake.info_calls == 2


def test_a_call_without_an_answer_gets_another_one_behind_it(fake, channel, monkeypatch):
    monkeypatch.setattr(transport, "_NUDGE_SECONDS", 0.01)
    fake.info_after = 2
    assert channel.server_info().state_id == fake.state_id
    assert fake.info_calls == 2


def test_a_closed_channel_makes_no_call(fake):
    channel = ReverbChannel(fake.address)
    channel.server_info()
    channel.close()
    with pytest.raises(TransportError, match="no call can be made") as error:
        channel.server_info()
    assert not error.value.retryable
    with pytest.raises(TransportError, match="no call can be made"):
        channel.insert_stream(iter(()))


# Status codes.


def test_every_status_code_is_mapped():
    assert set(AGAIN_HELPS) == set(grpc.StatusCode)
    assert {code for code, again in AGAIN_HELPS.items() if again} == RETRYABLE


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
def test_a_call_that_ends_with_a_status_is_translated(fake, code):
    channel = ReverbChannel(fake.address, call_seconds=0.3)
    fake.info_codes.extend([code] * 100)
    with pytest.raises(TransportError) as error:
        channel.server_info()
    assert error.value.retryable == AGAIN_HELPS[code]
    assert fake.address in str(error.value)
    unreachable = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert isinstance(error.value, ServerUnreachable) == unreachable
    if not unreachable:
        assert f"asking for its tables: {code.name}: as planned" in str(error.value)
    channel.close()


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
def test_a_stream_that_ends_with_a_status_is_translated(fake, channel, code):
    fake.plans.append(Plan(0, code))
    with pytest.raises(grpc.RpcError) as broken:
        list(channel.insert_stream(iter(())))
    error = channel.broken_stream(broken.value)
    assert type(error) is TransportError
    assert error.retryable == AGAIN_HELPS[code]
    assert str(error) == f"server {fake.address}, inserting: {code.name}: as planned"


def test_a_server_without_the_method_says_so(fake, monkeypatch):
    monkeypatch.setattr(transport, "_SERVICE", "/another.Service/")
    channel = ReverbChannel(fake.address)
    with pytest.raises(TransportError, match="UNIMPLEMENTED") as error:
        channel.server_info()
    assert not error.value.retryable
    channel.close()


# Metadata and TLS.


def test_metadata_goes_with_every_call(fake):
    channel = ReverbChannel(fake.address, metadata=[("authorization", "Bearer abc"), ("x-bin", b"\x00\x01")])
    channel.server_info()
    assert list(channel.insert_stream(iter(()))) == []
    assert len(fake.metadata) == 2
    for metadata in fake.metadata:
        assert metadata["authorization"] == "Bearer abc"
        assert metadata["x-bin"] == b"\x00\x01"
    channel.close()


def test_metadata_that_are_no_headers_are_refused(fake):
    channel = ReverbChannel(fake.address, metadata=[("Not A Header", "x")])
    with pytest.raises(TransportError, match=r"[Mm]etadata"):
        channel.server_info()
    channel.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[bytes, bytes]:
    """A private key and a self-signed certificate for 127.0.0.1, both PEM."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strange_certificate(tmp_path_factory) -> tuple[bytes, bytes]:
    """Another one, of the same name."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def self_signed(folder: Path) -> tuple[bytes, bytes]:
    if x509 is not None:
        return by_cryptography()
    if shutil.which("openssl") is not None:
        return by_openssl(folder)
    return pytest.skip("neither the cryptography package nor openssl to make a certificate")


def by_cryptography() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "replay")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), certificate.public_bytes(pem)


def by_openssl(folder: Path) -> tuple[bytes, bytes]:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=replay"
    command += " -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key.read_bytes(), certificate.read_bytes()


def test_tls_reaches_a_server_whose_certificate_is_trusted(certificate):
    key, chain = certificate
    with FakeReverb(credentials=grpc.ssl_server_credentials([(key, chain)])) as fake:
        channel = ReverbChannel(fake.address, grpc.ssl_channel_credentials(chain), [("authorization", "x")])
        assert channel.server_info().state_id == fake.state_id
        assert fake.metadata[0]["authorization"] == "x"
        channel.close()


def test_tls_refuses_a_server_whose_certificate_is_not_trusted(certificate, strange_certificate):
    with FakeReverb(credentials=grpc.ssl_server_credentials([strange_certificate])) as fake:
        channel = ReverbChannel(fake.address, grpc.ssl_channel_credentials(certificate[1]), call_seconds=0.3)
        with pytest.raises(ServerUnreachable, match=r"TLS or plain as this client expects"):
            channel.server_info()
        channel.close()


def test_a_client_certificate_is_shown_when_it_is_asked_for(certificate):
    key, chain = certificate
    asking = grpc.ssl_server_credentials([(key, chain)], root_certificates=chain, require_client_auth=True)
    with FakeReverb(credentials=asking) as fake:
        known = ReverbChannel(fake.address, grpc.ssl_channel_credentials(chain, key, chain))
        assert known.server_info().state_id == fake.state_id
        known.close()
        unknown = ReverbChannel(fake.address, grpc.ssl_channel_credentials(chain), call_seconds=0.3)
        with pytest.raises(ServerUnreachable):
            unknown.server_info()
        unknown.close()


def test_a_plain_client_does_not_reach_a_server_with_tls(certificate):
    with FakeReverb(credentials=grpc.ssl_server_credentials([certificate])) as fake:
        channel = ReverbChannel(fake.address, call_seconds=0.3)
        with pytest.raises(ServerUnreachable, match="TLS or plain"):
            channel.server_info()
        channel.close()


# Trying again.


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now, self.pauses = 100.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=made.monotonic, sleep=made.sleep))
    return made


DEADLINES = Deadlines(backoff_first=0.1, backoff_most=0.5)


def failing(times: int, *, retryable: bool = True):
    """An attempt that fails so many times; then it gives the number of attempts."""
    attempts = []

    def attempt():
        attempts.append(1)
        if len(attempts) <= times:
            raise TransportError(f"attempt {len(attempts)}", retryable=retryable)
        return len(attempts)

    return attempt


def test_a_success_at_once_takes_no_pause(clock):
    assert retry_until(10, DEADLINES, failing(0)) == 1
    assert clock.pauses == []


def test_pauses_double_up_to_the_longest(clock):
    assert retry_until(10, DEADLINES, failing(6)) == 7
    assert clock.pauses == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5, 0.5])


def test_the_last_error_is_raised_when_the_deadline_would_pass(clock):
    with pytest.raises(TransportError, match="attempt 5"):
        retry_until(1.4, DEADLINES, failing(100))
    assert clock.now <= 101.4
    assert clock.pauses == pytest.approx([0.1, 0.2, 0.4, 0.5])


def test_an_error_that_trying_again_does_not_help_is_raised_at_once(clock):
    with pytest.raises(TransportError, match="attempt 1"):
        retry_until(10, DEADLINES, failing(3, retryable=False))
    assert clock.pauses == []


def test_an_error_of_another_kind_is_not_caught(clock):
    def broken():
        raise WireError("no such message")

    with pytest.raises(WireError):
        retry_until(10, DEADLINES, broken)
