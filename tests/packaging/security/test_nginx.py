"""nginx in front of a real Reverb server: nobody gets in without a client certificate of the right authority.

nginx answers those itself, in TLS, with the reason; the tests look at that answer, at nginx's log (which names the
server behind it, if it was asked at all), and at the table.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.support.processes import Process, answers, free_port, wait_until

pytest.importorskip("reverb", reason="needs a real Reverb server")

from replay_server import TableConfig

import rlds2reverb
from rlds2reverb.errors import ServerUnreachable, TransportError
from rlds2reverb.formats import open_source
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.views import view_of
from tests.support.forks import Embedded, Forks

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

CHECKOUT = Path(rlds2reverb.__file__).parents[1]
NGINX_FOLDER = CHECKOUT / "server" / "nginx"
DATASET, TABLE = "bundled:cartpole", "replay"


@dataclass(frozen=True)
class Identity:
    """Files of one client; without a certificate and key, an anonymous one."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    @staticmethod
    def of(folder: Path, name: str = "client", ca: Path | None = None) -> Identity:
        return Identity(ca or folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")

    def credentials(self) -> grpc.ChannelCredentials:
        read = [None if file is None else file.read_bytes() for file in (self.ca, self.key, self.certificate)]
        return grpc.ssl_channel_credentials(*read)

    def options(self) -> list[str]:
        """For the command line."""
        pairs = {"--tls-ca": self.ca, "--tls-cert": self.certificate, "--tls-key": self.key}
        return [word for option, file in pairs.items() if file is not None for word in (option, str(file))]

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True)
class Gateway:
    """A running nginx."""

    port: int
    log_file: Path

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def log_since(self, start: int, word: str) -> list[str]:
        """The log's lines from a place on, once one has the word; nginx writes it when a connection ends."""
        end = time.monotonic() + 10
        while True:
            lines = self.log_file.read_text()[start:].splitlines()
            if any(word in line for line in lines):
                return lines
            assert time.monotonic() < end, f"no line with {word!r} in {lines}"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def nginx() -> str:
    """Path of nginx, installed if this may be done."""
    found = subprocess.run([CHECKOUT / "scripts" / "install-nginx"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode and os.getuid():
        pytest.skip("no nginx here, and only root can install it: scripts/install-nginx")
    assert found.returncode == 0
    return found.stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys and certificates live here, and nowhere else."""
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def certificates(folder: Path) -> Path:
    made = folder / "certificates"
    make_certificates(made)
    make_expired(made)
    return made


@pytest.fixture(scope="module")
def foreign(folder: Path) -> Path:
    """Of another authority that has the same name."""
    made = folder / "foreign"
    make_certificates(made)
    return made


def make_certificates(target: Path) -> None:
    subprocess.run([NGINX_FOLDER / "make-test-certificates", target], check=True, capture_output=True, timeout=60)


def make_expired(folder: Path) -> None:
    """A client certificate of the right authority whose time is over."""
    commands = (
        "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout expired.key -out expired.csr "
        "-subj /CN=yesterday",
        "openssl x509 -req -in expired.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 0 -out expired.crt",
    )
    for command in commands:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, timeout=60)
    time.sleep(1.5)  # valid for a second


@pytest.fixture(scope="module")
def reverb_server(forks: Forks) -> Iterator[Embedded]:
    signature = view_of("two_step").signature(filled_spec(open_source(DATASET).spec()))
    with forks.embedded([TableConfig(TABLE, signature)]) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(nginx: str, folder: Path, certificates: Path, reverb_server: Embedded) -> Iterator[Gateway]:
    """The shipped configuration, with a port and a server of this test."""
    with run_gateway(nginx, folder, reverb_server.port) as running:
        yield running


@pytest.fixture(scope="module")
def gateway_with_roles(
    nginx: str, certificates: Path, reverb_server: Embedded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """The same with the shipped roles."""
    folder = tmp_path_factory.mktemp("roles")
    (folder / "certificates").symlink_to(certificates)
    with run_gateway(nginx, folder, reverb_server.port, access="roles.conf") as running:
        yield running


@contextmanager
def run_gateway(nginx: str, folder: Path, upstream: int, access: str = "access.conf") -> Iterator[Gateway]:
    shutil.copy(NGINX_FOLDER / "nginx.conf", folder)
    shutil.copy(NGINX_FOLDER / access, folder / "access.conf")
    port = free_port()
    (folder / "listen.conf").write_text(f"listen 127.0.0.1:{port} ssl http2;\n")
    (folder / "upstream.conf").write_text(f"server 127.0.0.1:{upstream};\n")
    user = "user root; " if os.getuid() == 0 else ""  # pytest's folders are closed to others
    paths = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "/dev/stderr"]
    log_file = folder / "log"
    with log_file.open("w") as log:
        command = [nginx, *paths, "-g", f"{user}daemon off;"]
        handle = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    with Process(handle, log_file, log_file) as process:
        wait_until(lambda: process.poll() is not None or answers(port), reason=lambda: process.errors)
        assert process.poll() is None, process.errors
        yield Gateway(port, log_file)
        assert process.end() == 0


def items_behind(server: Embedded) -> int:
    """In the table, asked for directly."""
    with rlds2reverb.connect(server.address) as client:
        return client.server_info().tables[TABLE].current_size


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rlds2reverb.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(params=["nobody", "foreign", "expired"])
def refused(request: pytest.FixtureRequest, certificates: Path, foreign: Path) -> tuple[Identity, str]:
    """A client that must not get in, and what TLS has against its certificate."""
    ca = certificates / "ca.crt"
    return {
        "nobody": (Identity(ca), "NONE"),
        "foreign": (Identity.of(foreign, ca=ca), "FAILED:unable to verify the first certificate"),
        "expired": (Identity.of(certificates, "expired"), "FAILED:certificate has expired"),
    }[request.param]


def test_who_has_no_good_certificate_is_refused_for_it(
    gateway: Gateway, reverb_server: Embedded, refused: tuple[Identity, str]
) -> None:
    identity, reason = refused
    before = len(gateway.log_file.read_text())
    with pytest.raises(TransportError, match="UNAUTHENTICATED") as caught:
        rlds2reverb.connect(gateway.address, identity.credentials())
    assert not caught.value.retryable
    assert f"client certificate: {reason}" in str(caught.value)
    (answer,) = [line for line in gateway.log_since(before, " verified=") if " verified=" in line]
    assert f"verified={reason} " in answer
    assert "ServerInfo" in answer
    assert "upstream=- " in answer  # Reverb was not asked
    assert items_behind(reverb_server) == 0


def test_the_command_says_why_it_was_refused(
    gateway: Gateway, reverb_server: Embedded, refused: tuple[Identity, str]
) -> None:
    identity, reason = refused
    done = run_cli("push", DATASET, "--server", gateway.address, "--table", TABLE, *identity.options())
    assert done.returncode not in (0, 2)
    assert "UNAUTHENTICATED" in done.stderr
    assert reason in " ".join(done.stderr.split())
    assert items_behind(reverb_server) == 0


def test_any_other_path_is_refused_as_well(gateway: Gateway, refused: tuple[Identity, str]) -> None:
    identity, reason = refused
    before = len(gateway.log_file.read_text())
    answer = get(gateway.port, identity.context())
    assert "grpc-status: 16" in answer
    assert f"grpc-message: client certificate: {reason}" in answer
    assert all("upstream=- " in line for line in gateway.log_since(before, " verified=") if " verified=" in line)


def get(port: int, context: ssl.SSLContext) -> str:
    """Status line and headers of GET / over HTTP/1.1."""
    with socket.create_connection(("localhost", port), 10) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            secured.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            with secured.makefile("r", encoding="latin-1", newline="") as answer:
                return answer.read().replace("\r\n", "\n").partition("\n\n")[0]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_resumed(gateway: Gateway, certificates: Path, version: ssl.TLSVersion) -> None:
    """It would not be verified again: its certificate may have been taken back."""
    context = Identity.of(certificates).context()
    context.minimum_version = context.maximum_version = version
    session: ssl.SSLSession | None = None
    for _ in range(2):
        with socket.create_connection(("localhost", gateway.port), 10) as plain:
            with context.wrap_socket(plain, server_hostname="localhost", session=session) as secured:
                secured.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                while secured.recv(1 << 16):
                    pass
                assert not secured.session_reused
                session = secured.session


def test_plain_text_gets_no_further_than_nginx(gateway: Gateway, reverb_server: Embedded) -> None:
    before = len(gateway.log_file.read_text())
    with pytest.raises(ServerUnreachable, match="it speaks TLS, and this client plain text"):
        rlds2reverb.connect(gateway.address, timeout_seconds=2)
    lines = gateway.log_since(before, "PRI * HTTP/2.0")
    answers = [line for line in lines if " verified=" in line]
    assert answers
    assert all(' 400 verified=- subject="-" request="PRI * HTTP/2.0" ' in line for line in answers)
    assert all("upstream=- " in line for line in answers)
    with socket.create_connection(("localhost", gateway.port), 10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with plain.makefile("r", encoding="latin-1", newline="") as answer:
            text = answer.read()
    assert text.startswith("HTTP/1.1 400 ")
    assert "plain HTTP request was sent to HTTPS port" in text
    assert items_behind(reverb_server) == 0


def test_old_tls_is_refused(gateway: Gateway, certificates: Path) -> None:
    context = Identity.of(certificates).context()
    context.set_ciphers("ALL:@SECLEVEL=0")  # this side would do it
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
        get(gateway.port, context)


def test_a_client_notices_a_server_of_another_authority(gateway: Gateway, certificates: Path, foreign: Path) -> None:
    identity = Identity(foreign / "ca.crt", certificates / "client.crt", certificates / "client.key")
    with pytest.raises(ssl.SSLCertVerificationError):
        get(gateway.port, identity.context())
    with pytest.raises(ServerUnreachable):
        rlds2reverb.connect(gateway.address, identity.credentials(), timeout_seconds=2)


def test_with_the_right_certificate_only_reverb_is_there(gateway: Gateway, certificates: Path) -> None:
    assert get(gateway.port, Identity.of(certificates).context()).startswith("HTTP/1.1 404 ")


def test_with_the_right_certificate_a_push_is_complete(
    gateway: Gateway, reverb_server: Embedded, certificates: Path
) -> None:
    identity = Identity.of(certificates)
    before = len(gateway.log_file.read_text())
    with rlds2reverb.connect(gateway.address, identity.credentials()) as client:
        report = client.push(DATASET, TABLE)
        held = client.server_info().tables[TABLE].current_size
    assert report.episodes_pushed == report.episodes_read > 0
    assert report.reconnects == 0
    assert held == items_behind(reverb_server) == report.items_confirmed > 0
    lines = [line for line in gateway.log_since(before, "InsertStream") if " verified=" in line]
    assert all('verified=SUCCESS subject="CN=rlds2reverb-test-client"' in line for line in lines)
    assert all(f"upstream=127.0.0.1:{reverb_server.port} " in line for line in lines)


def test_with_the_right_certificate_the_command_pushes_the_same_items(
    gateway: Gateway, reverb_server: Embedded, certificates: Path
) -> None:
    options = Identity.of(certificates).options()
    done = run_cli("push", DATASET, "--server", gateway.address, "--table", TABLE, "--json", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["items_confirmed"] == items_behind(reverb_server) > 0
    done = run_cli("status", "--server", gateway.address, "--json", *options)
    assert done.returncode == 0, done.stderr
    assert TABLE in done.stdout


CALLS = {
    "ServerInfo",
    "InitializeConnection",
    "SampleStream",
    "InsertStream",
    "MutatePriorities",
    "Reset",
    "Checkpoint",
}
"""Of Reverb's service. Source: reverb_service.proto."""

SAMPLES = {"ServerInfo", "InitializeConnection", "SampleStream"}
MAY_CALL = {
    "/OU=reader/CN=ada": SAMPLES,
    "/OU=learner/CN=ada": SAMPLES | {"MutatePriorities"},
    "/O=lab/OU=pusher": SAMPLES | {"InsertStream"},
    "/CN=ada/OU=operator": CALLS,
    "/CN=ada": set[str](),
    "/OU=operators": set[str](),
    "/CN=x,OU=operator": set[str](),  # a name that reads like a role
    "/OU=reader/OU=operator": set[str](),
    "/OU=robots/O=lab/OU=reader": set[str](),
    "/OU=operator+OU=reader": set[str](),
    "/OU=reader/CN=x,OU=operator": SAMPLES,
}


def make_certificate(folder: Path, name: str, subject: str) -> Identity:
    """Of the authority, for a client."""
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -CA ca.crt -CAkey ca.key "
        f"-addext basicConstraints=critical,CA:FALSE -keyout {name}.key -out {name}.crt -subj"
    )
    subprocess.run([*command.split(), subject], cwd=folder, check=True, capture_output=True, timeout=60)
    return Identity.of(folder, name)


@pytest.mark.parametrize("subject", MAY_CALL)
def test_a_role_may_make_its_calls_and_no_others(gateway_with_roles: Gateway, certificates: Path, subject: str) -> None:
    identity = make_certificate(certificates, f"role-{list(MAY_CALL).index(subject)}", subject)
    with grpc.secure_channel(gateway_with_roles.address, identity.credentials()) as channel:
        refused = {call for call in CALLS if is_denied(channel, f"/deepmind.reverb.ReverbService/{call}")}
        assert refused == CALLS - MAY_CALL[subject]
        # Whatever else nginx could take for an allowed call is passed on as it is, or refused.
        for path in ("x/../ServerInfo", "ServerInfo?x", "serverinfo", "ServerInfo/Reset"):
            assert is_denied(channel, f"/deepmind.reverb.ReverbService/{path}") == (MAY_CALL[subject] != CALLS)


def is_denied(channel: grpc.Channel, path: str) -> bool:
    """Whether the call, of one empty message, ends with PERMISSION_DENIED, and not in any other way."""
    try:
        channel.unary_unary(path)(b"", timeout=20)
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.PERMISSION_DENIED
    return False


def test_a_push_that_a_role_may_not_make_says_so_and_stores_nothing(
    gateway_with_roles: Gateway, reverb_server: Embedded, certificates: Path
) -> None:
    before = items_behind(reverb_server)
    identity = make_certificate(certificates, "reader", "/OU=reader")
    with rlds2reverb.connect(gateway_with_roles.address, identity.credentials()) as client:
        with pytest.raises(TransportError, match='the role "reader" may not call InsertStream') as caught:
            client.push(DATASET, TABLE, again=True)
    assert not caught.value.retryable
    assert "give the certificate of a role that may (--tls-cert and --tls-key, credentials=)" in str(caught.value)
    assert items_behind(reverb_server) == before


def test_a_server_that_is_gone_is_said_in_words(gateway: Gateway, reverb_server: Embedded, certificates: Path) -> None:
    """The last test: it stops the server."""
    reverb_server.stop()
    with pytest.raises(ServerUnreachable, match="UNAVAILABLE: the replay server behind this gateway does not answer"):
        rlds2reverb.connect(gateway.address, Identity.of(certificates).credentials(), timeout_seconds=2)


def test_no_key_is_in_the_checkout() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout
    names = [name for name in listed.splitlines() if name.endswith((".key", ".pem", ".p12", ".crt"))]
    assert names == []
