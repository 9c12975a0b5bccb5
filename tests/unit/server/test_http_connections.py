"""HTTP under floods: whoever asks whether the server lives gets an answer, whatever others do."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from replay_server import TableConfig
from replay_server.config import HttpSection, decode, table_configs
from replay_server.http import MOST_WAITING, ConnectionLimits, HttpServer, make_app
from replay_server.service import ReplayService

from tests.support.forks import Embedded, Forks
from tests.support.processes import free_port, wait_until
from tests.support.server_running import ready

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

PATIENCE = 30
FLOOD = MOST_WAITING + 8
PARTIAL = b"GET /status.json HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("floods") / "checkpoints"


@pytest.fixture(scope="module")
def reverb(forks: Forks, folder: Path) -> Iterator[Embedded]:
    with forks.embedded([TableConfig("t")], checkpoint_dir=folder / "reverb") as server:
        yield server


@pytest.fixture
def service(folder: Path, reverb: Embedded) -> Iterator[ReplayService]:
    """All of a service but its own Reverb, in place of which it has a real one beside it."""
    plain = {"tables": [{"name": "t"}], "grpc": {"port": reverb.port}, "checkpoints": {"folder": str(folder)}}
    config = decode(plain, "config")
    made = ReplayService(config, table_configs(config))
    made.lock.take()
    assert made.lock.settle(lambda _: False)
    made._store.clean()  # as a start does
    made.state.phase = "ready"
    yield made
    made.lock.release()


@contextmanager
def serving(service: ReplayService, limits: ConnectionLimits | None = None, **section: Any) -> Iterator[str]:
    """Its HTTP, at the URL."""
    app = make_app(service.state, service.requested_checkpoint)
    server = HttpServer(app, HttpSection(**{"port": 0, **section}), limits or ConnectionLimits())
    server.start()
    yield server.url
    server.stop()


def status_of_answer(connection: socket.socket) -> int:
    """Reads one answer to its end."""
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def ask(url: str, method: str = "GET") -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, document, and headers; no answer in time is an error."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=PATIENCE) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), dict(error.headers)


def assert_alive_and_ready(url: str) -> None:
    for _ in range(5):
        assert ask(f"{url}/healthz")[0] == 200
        ready(url)


def connect(url: str, data: bytes = PARTIAL) -> socket.socket:
    """A connection that has said so much."""
    address = urlsplit(url)
    made = socket.create_connection((str(address.hostname), address.port or 0), timeout=PATIENCE)
    made.sendall(data)
    return made


def is_cut(connection: socket.socket) -> bool:
    """Whether the other side has closed it."""
    connection.setblocking(False)
    try:
        return connection.recv(4096) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


class Trickle:
    """Connections whose requests come a byte at a time, and never to an end."""

    def __init__(self, url: str, count: int) -> None:
        self.open = [connect(url) for _ in range(count)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Trickle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        for connection in self.open:
            connection.close()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for connection in self.open:
                try:
                    connection.send(b"x")
                except OSError:
                    continue  # cut


def held(service: ReplayService) -> tuple[threading.Semaphore, threading.Semaphore]:
    """Has the service's checkpoints announce that they begin, and wait for leave."""
    began, leave, request = threading.Semaphore(0), threading.Semaphore(0), service.checkpoints._request

    def waiting() -> str:
        began.release()
        assert leave.acquire(timeout=PATIENCE)
        return request()

    service.checkpoints._request = waiting
    return began, leave


def test_a_flood_of_checkpoints_leaves_liveness_alone_and_writes_one(service: ReplayService) -> None:
    """Those that come while it is written share the next, which nothing needs: no item has come."""
    began, leave = held(service)
    with serving(service) as url, ThreadPoolExecutor(FLOOD) as pool:
        first = pool.submit(ask, f"{url}/checkpoint", "POST")
        assert began.acquire(timeout=PATIENCE)
        others = [pool.submit(ask, f"{url}/checkpoint", "POST") for _ in range(FLOOD - 1)]
        wait_until(lambda: sum(other.done() for other in others) >= FLOOD - MOST_WAITING)
        assert_alive_and_ready(url)
        assert ask(f"{url}/status.json")[1]["checkpoints"]["writing_since"] is not None
        leave.release(2)
        number = first.result()[1]["generation"]
        answers = [other.result() for other in others]
        refused = [headers["Retry-After"] for status, _, headers in answers if status == 503]
        shared = {document["generation"] for status, document, _ in answers if status == 200}
        assert (len(refused), shared) == (FLOOD - MOST_WAITING, {number})


def test_a_checkpoint_asked_for_with_more_slashes_takes_no_thread_of_others(service: ReplayService) -> None:
    began, leave = held(service)
    with serving(service) as url, ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(ask, f"{url}//checkpoint", "POST") for _ in range(8)]
        assert began.acquire(timeout=PATIENCE)
        assert ask(f"{url}/status.json")[0] == 200
        leave.release(2)
        assert {wait.result()[0] for wait in waits} == {200}


@pytest.mark.parametrize(
    ("count", "limits"), [(100, ConnectionLimits()), (100, ConnectionLimits(connections=40))], ids=["within", "above"]
)
def test_connections_that_trickle_keep_nobody_out(service: ReplayService, count: int, limits: ConnectionLimits) -> None:
    with serving(service, limits) as url, Trickle(url, count) as trickle:
        assert_alive_and_ready(url)
        wait_until(lambda: sum(map(is_cut, trickle.open)) >= count - limits.connections)


def test_a_request_that_does_not_come_to_its_end_is_cut(service: ReplayService) -> None:
    limits = ConnectionLimits(request_seconds=0.1, look_seconds=0)
    body = b"POST /checkpoint HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx"
    again = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(service, limits) as url, Trickle(url, 3) as trickle, ExitStack() as stack:
        slow = [*trickle.open, *(stack.enter_context(connect(url, data)) for data in (b"", body))]
        second = stack.enter_context(connect(url, again))
        assert second.recv(4096).startswith(b"HTTP/1.1 200")
        second.send(PARTIAL)
        wait_until(lambda: all(map(is_cut, [*slow, second])))
        assert_alive_and_ready(url)


def test_a_connection_between_two_requests_is_kept(service: ReplayService) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    limits = ConnectionLimits(request_seconds=0.1, look_seconds=0)
    with serving(service, limits) as url, connect(url, request) as kept, connect(url) as slow:
        assert status_of_answer(kept) == 200
        wait_until(lambda: is_cut(slow))
        kept.setblocking(True)
        kept.sendall(request)
        assert status_of_answer(kept) == 200


def test_who_waits_for_a_checkpoint_is_not_cut_for_others(service: ReplayService) -> None:
    began, leave = held(service)
    limits = ConnectionLimits(connections=20, request_seconds=0.1, look_seconds=0)
    with serving(service, limits) as url, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ask, f"{url}/checkpoint", "POST")
        assert began.acquire(timeout=PATIENCE)
        with Trickle(url, 60) as trickle:
            wait_until(lambda: all(map(is_cut, trickle.open)))
            assert_alive_and_ready(url)
        leave.release()
        assert waits.result()[0] == 200


def test_a_reverb_that_does_not_answer_keeps_nobody_from_the_rest(service: ReplayService) -> None:
    leave = threading.Event()
    service.monitor._ask = lambda: leave.wait(PATIENCE)  # type: ignore[assignment, return-value]
    with serving(service) as url, ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connect(url, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        assert ask(f"{url}/healthz")[0] == 200
        assert ask(f"{url}/status.json")[0] == 200
        leave.set()


def test_urgent_data_ends_a_connection(service: ReplayService) -> None:
    with serving(service) as url, connect(url) as urgent:
        urgent.send(b"!", socket.MSG_OOB)
        wait_until(lambda: is_cut(urgent))
        assert_alive_and_ready(url)


def test_a_request_that_is_too_large_is_refused(service: ReplayService) -> None:
    with serving(service) as url:
        with connect(url, PARTIAL + 20_000 * b"x" + b"\r\n\r\n") as header:
            assert header.recv(4096).startswith(b"HTTP/1.0 431")
        body = b"POST /checkpoint HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        with connect(url, body) as announced:
            assert announced.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_name_with_several_addresses_is_listened_on(service: ReplayService) -> None:
    port = free_port()
    with serving(service, host="localhost", port=port) as url:
        assert url == f"http://localhost:{port}"
        assert_alive_and_ready(f"http://127.0.0.1:{port}")
