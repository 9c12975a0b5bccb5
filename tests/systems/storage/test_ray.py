"""Pushes by a Ray cluster: several nodes on this machine, one of which is removed in the middle, and workers that are killed.

.venv-learners/bin/python -m pytest tests/systems/storage/test_ray.py
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from rlds2reverb import Client, PushReport, connect, convert
from rlds2reverb.errors import ConfigError, InvalidEpisode, report_of
from rlds2reverb.workers.processes import choose_executor
from tests.support.conversion.digests import digest_files
from tests.support.fake_reverb import FakeReverb
from tests.support.gated import ROWS, Gated
from tests.support.processes import REPOSITORY, free_port, started, wait_until

COUNT, ITEMS = 60, ROWS - 1

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without processors, which the tests connect to; each adds the nodes that do the work."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "RAY_AUTH_MODE")}
    os.environ.update(PYTHONPATH=str(REPOSITORY), RAY_AUTH_MODE="disabled")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    ray.init(made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Any]:
    """A node with two processors; the last test removes it."""
    added = cluster.add_node(num_cpus=2)
    wait_until(lambda: ray.cluster_resources().get("CPU", 0) >= 2)
    yield added
    if added in cluster.list_all_nodes():
        cluster.remove_node(added)


@pytest.fixture
def server() -> Iterator[FakeReverb]:
    with FakeReverb("replay") as running:
        yield running


@pytest.fixture
def client(server: FakeReverb) -> Iterator[Client]:
    with connect(server.address) as connected:
        yield connected


class InBackground:
    """A push in a thread; `report` waits for it, and raises what it raises."""

    def __init__(self, push: Callable[[], PushReport]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._pushed = self._pool.submit(push)

    def report(self, seconds: float = 180) -> PushReport:
        return self._pushed.result(seconds)


@pytest.mark.usefixtures("node")
def test_it_stores_what_one_pusher_does_under_the_same_keys(server: FakeReverb, client: Client, tmp_path: Path) -> None:
    told: list[Any] = []
    ledger = tmp_path / "ledger.db"
    report = client.push(Gated(tmp_path, COUNT), "replay", ray="auto", ledger=ledger, on_progress=told.append)
    keys = set(server.stored["replay"])
    assert (report.items_confirmed, report.workers, report.parts_again) == (COUNT * ITEMS, 2, 0)
    assert told[-1].episodes == COUNT
    client.push(Gated(tmp_path, COUNT), "replay")
    assert set(server.stored["replay"]) == keys
    resumed = client.push(Gated(tmp_path, COUNT), "replay", ray="auto", ledger=ledger)
    assert (resumed.episodes_resumed, resumed.episodes_read) == (COUNT, 0)


@pytest.mark.usefixtures("node")
def test_several_servers_get_what_one_pusher_gives_them(tmp_path: Path) -> None:
    with FakeReverb("replay") as one, FakeReverb("replay") as other:
        other.state_id = 8
        with connect([f"a={one.address}", f"b={other.address}"]) as group:
            report = group.push(Gated(tmp_path, COUNT), "replay", ray="auto")
            keys = [set(server.stored["replay"]) for server in (one, other)]
            assert (report.items_confirmed, report.episodes_pushed) == (COUNT * ITEMS, COUNT)
            assert [part.items_confirmed for part in report.servers.values()] == [len(held) for held in keys]
            group.push(Gated(tmp_path, COUNT), "replay")
            assert [set(server.stored["replay"]) for server in (one, other)] == keys


@pytest.mark.usefixtures("node")
def test_the_first_bad_episode_is_the_error(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidEpisode, match="episode e17: nan") as caught:
        client.push(Gated(tmp_path, COUNT, bad=(17, 34, 50)), "replay", ray="auto")
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.episodes_pushed >= 17


@pytest.mark.usefixtures("node")
def test_a_worker_that_is_killed_has_its_part_pushed_again(server: FakeReverb, client: Client, tmp_path: Path) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    pushed = InBackground(lambda: client.push(source, "replay", ray="auto"))
    os.kill(source.wait_for_worker(), signal.SIGKILL)
    source.open()
    report = pushed.report()
    assert (report.parts_again, report.episodes_pushed) == (1, COUNT)
    assert len(server.stored["replay"]) == COUNT * ITEMS


@pytest.mark.usefixtures("node")
def test_a_conversion_writes_what_one_process_does_though_a_worker_is_killed(tmp_path: Path) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    with ThreadPoolExecutor(1) as background:
        name = f"tfds:{tmp_path / 'divided' / 'own'}"
        converted = background.submit(lambda: convert(source, name, ray="auto", verify=True))
        os.kill(source.wait_for_worker(), signal.SIGKILL)
        source.open()
        report = converted.result(180)
    assert (report.workers, report.parts_again, report.verified) == (2, 1, COUNT)
    convert(Gated(tmp_path, COUNT), f"tfds:{tmp_path / 'alone' / 'own'}")
    assert digest_files(tmp_path / "divided") == digest_files(tmp_path / "alone")


@pytest.mark.usefixtures("node")
def test_the_loss_of_the_driver_s_actor_costs_the_parts_that_run(
    server: FakeReverb, client: Client, tmp_path: Path
) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    pushed = InBackground(lambda: client.push(source, "replay", ray="auto"))
    source.wait_for_worker()
    os.kill(actor(), signal.SIGKILL)
    source.open()
    report = pushed.report()
    assert report.parts_again >= 1
    assert (report.episodes_pushed, report.items_confirmed) == (COUNT, COUNT * ITEMS)
    assert len(server.stored["replay"]) == COUNT * ITEMS


def actor() -> int:
    """The process of the driver's actor. Ray writes the class into the title of its process."""
    commands = {path: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    return next(int(path.parent.name) for path, command in commands.items() if command.startswith(b"ray::Line"))


PUSH = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from rlds2reverb import connect
from rlds2reverb.errors import WorkersLost
from rlds2reverb.workers import ray as on_ray
from tests.support.gated import Gated

on_ray._RECONNECT_SECONDS = float(sys.argv[4])
with connect(sys.argv[1]) as client:
    try:
        print(json.dumps(asdict(client.push(Gated(Path(sys.argv[2]), 60, gate=20), "replay", ray=sys.argv[3], workers=2))))
    except WorkersLost as error:
        print(json.dumps({"lost": str(error), "pushed": error.report.episodes_pushed}))
"""


@contextmanager
def head(folder: Path, port: int) -> Iterator[None]:
    """A cluster of this machine alone; the end of the block kills its processes."""
    command = ("-m", "ray.scripts.scripts", "start", "--head", "--block", "--include-dashboard=false", "--num-cpus=2")
    with started(folder, *command, f"--port={port}", PYTHONPATH=str(REPOSITORY), RAY_AUTH_MODE="disabled") as process:
        try:
            wait_until(lambda: "Ray runtime started" in process.output, 120, lambda: process.errors)
            yield
        finally:
            for pid in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    listed = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [found for process in listed for found in (*descendants(process), process)]


@pytest.mark.parametrize("is_replaced", [True, False])
def test_the_loss_of_the_cluster_is_told_or_made_good_by_a_new_one(
    server: FakeReverb, tmp_path: Path, is_replaced: bool
) -> None:
    source, port = Gated(tmp_path, COUNT, gate=20), free_port()
    arguments = (server.address, str(tmp_path), f"127.0.0.1:{port}", "60" if is_replaced else "1")
    with ExitStack() as stack:
        with head(tmp_path, port):
            pusher = stack.enter_context(started(tmp_path, "-c", PUSH, *arguments, RAY_AUTH_MODE="disabled"))
            wait_until(lambda: bool(source.reached()) or pusher.poll() is not None, 120)
            assert pusher.poll() is None, pusher.errors
        if is_replaced:
            stack.enter_context(head(tmp_path, port))
        source.open()
        code, output, errors = pusher.result(200)
    assert code == 0, errors
    told = json.loads(output)
    if is_replaced:
        assert (told["episodes_pushed"], told["items_confirmed"]) == (COUNT, COUNT * ITEMS)
        assert told["parts_again"] >= 1
        assert len(server.stored["replay"]) == COUNT * ITEMS
    else:
        assert told["lost"].startswith(f'ray (--ray) "127.0.0.1:{port}": the cluster was lost: ')
        assert "\n" not in told["lost"]


def test_a_node_that_is_removed_has_its_parts_pushed_by_another(
    cluster: Cluster, node: Any, server: FakeReverb, client: Client, tmp_path: Path
) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    pushed = InBackground(lambda: client.push(source, "replay", ray="auto", workers=2))
    source.wait_for_worker()
    other = cluster.add_node(num_cpus=2)
    cluster.remove_node(node)
    source.open()
    report = pushed.report()
    cluster.remove_node(other)
    assert report.parts_again >= 1
    assert (report.episodes_pushed, report.items_confirmed) == (COUNT, COUNT * ITEMS)
    assert len(server.stored["replay"]) == COUNT * ITEMS


def test_an_address_without_a_cluster_is_refused(client: Client, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", _refuse)
    with pytest.raises(ConfigError, match=r'ray \(--ray\) "nowhere:1": no cluster can be joined there: nobody'):
        choose_executor(None, "nowhere:1")(Gated(tmp_path, 1))  # type: ignore[arg-type]


def _refuse(*_: Any, **__: Any) -> None:
    raise ConnectionError("nobody")
