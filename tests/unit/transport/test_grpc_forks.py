"""gRPC and forks, in processes of their own: a sentence in place of a hang, and clients where gRPC allows them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from rlds2reverb.errors import TransportError
from rlds2reverb.transport import grpc
from tests.support.fake_reverb import FakeReverb

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:This process"),
]

PRELUDE = """
import multiprocessing, os, sys, warnings
import rlds2reverb
warnings.simplefilter("ignore", DeprecationWarning)  # of threads and forks: what this is about
address = sys.argv[1]

def told(act):
    try:
        act()
    except Exception as error:
        print(type(error).__name__, getattr(error, "retryable", ""), error, flush=True)
    else:
        print("well", flush=True)

def in_child(*acts):
    process = os.fork()
    if not process:
        for act in acts:
            told(act)
        os._exit(0)
    print("child", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)

def use():
    with rlds2reverb.connect(address) as client:
        client.server_info()
"""

REFUSED = "TransportError False this process was forked from one that had already connected to a server"


def run(script: str, address: str) -> list[str]:
    """What a script says, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, address],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with FakeReverb() as fake:
        yield fake.address


def test_children_of_a_process_that_never_connected_connect(address: str) -> None:
    assert run("for _ in range(3): in_child(use)\ntold(use)", address) == ["well", "child 0"] * 3 + ["well"]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_a_child_of_a_process_that_connected_is_refused_at_once(address: str, closed: bool) -> None:
    script = f"""
client = rlds2reverb.connect(address)
if {closed}: client.close()
in_child(use, client.server_info, lambda: client.push([], table="replay"), client.close)
told(use)
"""
    *refused, closing, child, parent = run(script, address)
    assert len(refused) >= 2
    assert all(line.startswith(REFUSED) for line in refused[:2])
    assert '(multiprocessing.get_context("spawn") or "forkserver")' in refused[0]
    assert (closing, child, parent) == ("well", "child 0", "well")


def test_the_parent_goes_on_after_its_children_were_refused(address: str) -> None:
    script = """
client = rlds2reverb.connect(address)
for _ in range(5): in_child(client.server_info, client.close)
told(client.server_info)
client.close()
"""
    lines = run(script, address)
    assert [line.startswith(REFUSED) for line in lines] == [True, False, False] * 5 + [False]
    assert lines[1:3] == ["well", "child 0"]
    assert lines[-1] == "well"


@pytest.mark.parametrize(("method", "expected"), [("fork", REFUSED), ("spawn", "well")])
def test_multiprocessing_forks_are_refused_and_spawned_processes_connect(
    address: str, tmp_path: Path, method: str, expected: str
) -> None:
    """A worker that gets an error ends with it, as every other does."""
    script = tmp_path / "workers.py"
    text = f"""
if __name__ == "__main__":
    use()
    worker = multiprocessing.get_context("{method}").Process(target=told, args=(use,))
    worker.start()
    worker.join()
    print("worker", worker.exitcode, flush=True)
"""
    script.write_text(PRELUDE + text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    done = subprocess.run(
        [sys.executable, str(script), address], capture_output=True, text=True, timeout=50, env=environment
    )
    first, worker = done.stdout.splitlines()
    assert first.startswith(expected), done.stderr
    assert worker == "worker 0"


def test_a_grandchild_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fork: a child of gRPC's that forks again may hang in gRPC's own handlers."""
    users: set[int] = set()
    monkeypatch.setattr(grpc, "_users", users)
    for process in (1, 1, 2, 3):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        refused: AbstractContextManager[object] = pytest.raises(TransportError, match="was forked")
        expected = refused if process > 1 else nullcontext()
        with expected:
            grpc.check_not_forked()
    assert users == {1}
