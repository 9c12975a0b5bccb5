"""The embedded server: starts on a port, says why it does not, lives as long as its block and its parent, no longer."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import reverb
from replay_server import EmbeddedServer, TableConfig
from replay_server.library import sample_item

import rlds2reverb
from rlds2reverb.errors import ServerUnreachable
from rlds2reverb.extras import how_to_install
from tests.support.processes import answers, free_port, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

TABLES = [TableConfig("one", sampler="fifo", max_times_sampled=1)]

PARENT = """
import sys
from replay_server import EmbeddedServer, TableConfig
server = EmbeddedServer([TableConfig("one")]).start()
print(server.port, server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(TABLES) as server:
        yield server


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def size(server: EmbeddedServer) -> int:
    with rlds2reverb.connect(server.address) as client:
        return client.server_info().tables["one"].current_size


def test_a_server_takes_a_free_port_and_answers_there(running: EmbeddedServer) -> None:
    assert running.address == f"localhost:{running.port}"
    with rlds2reverb.connect(running.address) as client:
        assert list(client.server_info().tables) == ["one"]


def test_an_item_is_read_by_the_client_in_reverbs_library() -> None:
    """As by `reverb.Client`, which needs all of TensorFlow beside it."""
    with EmbeddedServer([TableConfig("one")]) as server:
        with rlds2reverb.connect(server.address) as client:
            client.push("bundled:cartpole", "one")
        columns = sample_item(server.address, "one")
        (item,) = reverb.Client(server.address).sample("one", emit_timesteps=False)
    assert [(column.shape, column.dtype) for column in columns] == [(data.shape, data.dtype) for data in item.data]


def test_a_server_is_a_process_of_its_own(running: EmbeddedServer) -> None:
    assert running.pid != os.getpid()
    assert is_alive(running.pid)


def test_a_port_that_another_server_has_is_refused(running: EmbeddedServer) -> None:
    """Reverb alone would share it, and clients would meet either."""
    server = EmbeddedServer(TABLES, port=running.port)
    with pytest.raises(ServerUnreachable, match=rf"ConfigError: port {running.port}: taken.*choose another"):
        server.start()
    with pytest.raises(ServerUnreachable, match="not running"):
        _ = server.pid


def test_a_port_that_something_else_has_is_refused() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerUnreachable, match=rf"ConfigError: port {port}: taken"):
            EmbeddedServer(TABLES, port=port).start()


def test_a_table_that_cannot_be_made_is_named() -> None:
    server = EmbeddedServer([TableConfig("odd", sampler=cast(Any, "newest"))])
    with pytest.raises(ServerUnreachable) as caught:
        server.start()
    assert str(caught.value).startswith("the embedded server did not start: ")
    assert 'ConfigError: table "odd": selector "newest", expected one of uniform, fifo' in str(caught.value)
    server.stop()


def test_a_server_that_was_not_started_has_no_process() -> None:
    server = EmbeddedServer(TABLES)
    with pytest.raises(ServerUnreachable, match="use it inside its with block"):
        _ = server.pid
    server.stop()
    server.stop()


def test_several_servers_live_side_by_side_and_end_with_their_blocks(running: EmbeddedServer) -> None:
    reverb.Client(running.address).insert([1.0], {"one": 1.0})
    with EmbeddedServer(TABLES) as other:
        port, pid = other.port, other.pid
        assert port != running.port
        assert (size(other), size(running)) == (0, 1)
    assert not is_alive(pid)
    assert not answers(port)
    other.stop()  # once more does nothing
    assert is_alive(running.pid)


def test_a_server_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        port, pid = map(int, parent.stdout.readline().split())
        assert answers(port)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not is_alive(pid) and not answers(port))


def test_a_killed_server_comes_back_on_its_port_with_its_checkpoint_and_leaves_no_other_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, scratch = tmp_path / "checkpoints", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    port = free_port()
    with EmbeddedServer(TABLES, port=port, checkpoint_dir=checkpoints) as server:
        assert server.port == port
        client = reverb.Client(server.address)
        client.insert([1.0], {"one": 1.0})
        assert Path(client.checkpoint()).parent == checkpoints
        client.insert([2.0], {"one": 1.0})
        first_pid = server.pid
        server.stop()
        assert not is_alive(first_pid)
        assert not answers(port)
        server.start()
        assert (server.port, size(server)) == (port, 1)
    assert list(scratch.iterdir()) == []


def test_without_reverb_it_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reverb", None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"the replay server needs reverb; {re.escape(how_to_install('server'))}"
    ):
        EmbeddedServer(TABLES).start()
