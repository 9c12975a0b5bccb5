"""Workers that are processes: they push what one pusher does, die and are replaced, and end with whoever started them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Client, PushReport, connect
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError, WorkersLost, report_of
from rlds2reverb.fleet import push as fleet
from rlds2reverb.workers import driver, frames, processes
from rlds2reverb.workers.driver import (
    TRIES,
    Done,
    Event,
    Lost,
    Outcome,
    Progressed,
    Retried,
    SendProgress,
    Task,
    WorkerError,
)
from rlds2reverb.workers.processes import Processes
from tests.support.fake_reverb import FakeReverb
from tests.support.gated import ROWS, Gated, is_running
from tests.support.processes import PATIENCE_SECONDS, started, wait_until
from tests.support.push import in_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

COUNT = 60
ITEMS = ROWS - 1


@pytest.fixture
def server() -> Iterator[FakeReverb]:
    with FakeReverb("replay") as running:
        yield running


@pytest.fixture
def client(server: FakeReverb) -> Iterator[Client]:
    with connect(server.address) as connected:
        yield connected


def values(server: FakeReverb) -> dict[int, Any]:
    return {key: [np.asarray(leaf).tobytes() for leaf in item] for key, item in server.stored["replay"].items()}


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def in_background(push: Any) -> tuple[threading.Thread, list[PushReport]]:
    reports: list[PushReport] = []
    thread = threading.Thread(target=lambda: reports.append(push()), daemon=True)
    thread.start()
    return thread, reports


def test_they_store_what_one_pusher_does_under_the_same_keys(
    server: FakeReverb, client: Client, tmp_path: Path
) -> None:
    told: list[Any] = []
    report = client.push(Gated(tmp_path, COUNT), "replay", workers=2, on_progress=told.append)
    stored = values(server)
    assert (report.items_confirmed, report.episodes_pushed, report.workers) == (COUNT * ITEMS, COUNT, 2)
    assert len(stored) == COUNT * ITEMS
    assert told[-1].episodes == told[-1].episode_count == COUNT
    again = client.push(Gated(tmp_path, COUNT), "replay")
    assert again.items_confirmed == COUNT * ITEMS
    assert values(server) == stored


def test_several_servers_get_what_one_pusher_gives_them(server: FakeReverb, tmp_path: Path) -> None:
    with FakeReverb("replay") as other:
        other.state_id = server.state_id + 1
        with connect([f"a={server.address}", f"b={other.address}"]) as group:
            report = group.push(Gated(tmp_path, COUNT), "replay", workers=2)
            held = [values(held_by) for held_by in (server, other)]
            assert (report.items_confirmed, report.workers) == (COUNT * ITEMS, 2)
            assert [part.items_confirmed for part in report.servers.values()] == [len(stored) for stored in held]
            again = group.push(Gated(tmp_path, COUNT), "replay")
            assert again.items_confirmed == COUNT * ITEMS
            assert [values(held_by) for held_by in (server, other)] == held


def test_a_worker_that_is_killed_is_replaced_and_its_part_pushed_again(
    server: FakeReverb, client: Client, tmp_path: Path
) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    thread, reports = in_background(lambda: client.push(source, "replay", workers=2, ledger=tmp_path / "ledger.db"))
    os.kill(source.wait_for_worker(), signal.SIGKILL)
    source.open()
    thread.join(60)
    (report,) = reports
    assert (report.parts_again, report.episodes_pushed, report.items_confirmed) == (1, COUNT, COUNT * ITEMS)
    assert len(values(server)) == COUNT * ITEMS
    resumed = client.push(source, "replay", workers=2, ledger=tmp_path / "ledger.db")
    assert (resumed.episodes_resumed, resumed.episodes_read) == (COUNT, 0)


def test_a_part_that_kills_its_workers_ends_the_push_after_some_tries(
    server: FakeReverb, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(WorkersLost, match=r"at episodes 16 to 31, killed by SIGKILL; it was begun 3 times") as caught:
        client.push(Gated(tmp_path, COUNT, gate=20, dies=True), "replay", workers=1)
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert (report.parts_again, report.episodes_pushed) == (2, 16)
    assert report.stopped.startswith("WorkersLost: process ")


def test_the_first_bad_episode_is_the_error(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidEpisode, match="episode e17: nan") as caught:
        client.push(Gated(tmp_path, COUNT, bad=(17, 34, 50)), "replay", workers=2)
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.episodes_pushed >= 17


def test_an_interruption_ends_all_workers_and_says_what_is_stored(server: FakeReverb, tmp_path: Path) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    with started(
        tmp_path, "-m", "tests.support.fleet.interrupted", server.address, str(tmp_path), str(COUNT), "20"
    ) as pusher:
        worker = source.wait_for_worker()
        wait_until(lambda: len(values(server)) >= 16 * ITEMS)
        children = [int(word) for word in Path(f"/proc/{pusher.pid}/task/{pusher.pid}/children").read_text().split()]
        assert worker in children
        pusher.send(signal.SIGINT)
        source.open()
        code, output, errors = pusher.result()
    assert (code, errors) == (0, "")
    report = json.loads(output)
    assert report["stopped"] == "interrupted"
    assert report["items_confirmed"] == len(values(server))
    assert report["episodes_pushed"] * ITEMS == len(values(server))
    assert not any(map(is_running, children))


@pytest.mark.parametrize("is_worker_stopped", [False, True])
def test_workers_end_with_the_process_that_started_them(
    server: FakeReverb, tmp_path: Path, is_worker_stopped: bool
) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    with started(
        tmp_path, "-m", "tests.support.fleet.interrupted", server.address, str(tmp_path), str(COUNT), "20"
    ) as pusher:
        worker = source.wait_for_worker()
        if is_worker_stopped:
            os.kill(worker, signal.SIGSTOP)
            wait_until(lambda: is_stopped(worker))
        pusher.kill()
    try:
        wait_until(lambda: not is_running(worker))
    finally:
        if is_running(worker):
            os.kill(worker, signal.SIGKILL)
    assert "Traceback" not in pusher.errors  # which the worker has, too


def exit_with_success(_: Path) -> None:
    sys.exit(0)


def test_an_exit_in_the_source_is_an_error_of_the_push(client: Client, tmp_path: Path) -> None:
    source = Gated(tmp_path, COUNT, 20, at_gate=exit_with_success)
    with pytest.raises(
        SourceError, match=r"called sys\.exit\(0\) in a worker; it must raise an error instead"
    ) as caught:
        client.push(source, "replay", workers=2)
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.episodes_pushed >= 16


def test_workers_end_though_a_fork_of_that_process_holds_their_connections(server: FakeReverb, tmp_path: Path) -> None:
    source, mark = Gated(tmp_path, COUNT, gate=20), tmp_path / "fork"
    arguments = (server.address, str(tmp_path), str(COUNT), "20", "forks")
    with started(tmp_path, "-m", "tests.support.fleet.interrupted", *arguments) as pusher:
        worker = source.wait_for_worker()
        wait_until(lambda: mark.exists() and bool(mark.read_text()))
        pusher.kill()
    try:
        wait_until(lambda: not is_running(worker))
    finally:
        os.kill(int(mark.read_text()), signal.SIGKILL)


def print_something(_: Path) -> None:
    print("printed by the source", flush=True)
    os.write(1, b"written by a library\n")


def test_what_is_printed_in_a_worker_goes_to_the_errors(
    server: FakeReverb,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sitecustomize.py").write_text('print("printed before the worker starts")')
    monkeypatch.syspath_prepend(tmp_path)
    report = client.push(Gated(tmp_path, COUNT, 20, at_gate=print_something), "replay", workers=2)
    assert (report.items_confirmed, report.parts_again) == (COUNT * ITEMS, 0)
    printed = capfd.readouterr()
    assert printed.out == ""
    for line in ("printed before the worker starts", "printed by the source", "written by a library"):
        assert line in printed.err


class OnlyThere(ValueError):
    """Can be made again in the process that raised it only."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_in, (os.getpid(),)


def _made_in(pid: int) -> OnlyThere:
    if pid != os.getpid():
        raise RuntimeError("not here")
    return OnlyThere()


def raise_what_only_the_worker_can_make(_: Path) -> None:
    raise OnlyThere("no such value")


def raise_what_only_the_worker_can_import(folder: Path) -> None:
    (folder / "only_there.py").write_text("class Oops(Exception): pass")
    sys.path.append(str(folder))
    import only_there  # type: ignore[import-not-found]

    raise only_there.Oops("no such thing")


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (
            raise_what_only_the_worker_can_make,
            ValueError,
            r"tests.unit.workers.test_processes.OnlyThere: no such value",
        ),
        (raise_what_only_the_worker_can_import, WorkerError, r"only_there.Oops: no such thing"),
    ],
)
def test_an_error_arrives_that_the_driver_cannot_make(
    client: Client, tmp_path: Path, act: Callable[[Path], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"^{text}$") as caught:
        client.push(Gated(tmp_path, COUNT, 20, at_gate=act), "replay", workers=1)
    assert isinstance(caught.value.__cause__, WorkerError)
    assert act.__name__ in str(caught.value.__cause__)
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.episodes_pushed >= 16


def _first(folder: Path) -> bool:
    """Whether nobody was here before."""
    try:
        (folder / "first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def pause(folder: Path) -> None:
    """Writes down that this process is there, and waits to be killed."""
    (folder / f"fork-{os.getpid()}").touch()
    signal.pause()


def forks_in(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob("fork-*")]


def fork_and_die(folder: Path) -> None:
    if not _first(folder):
        return
    if not os.fork():
        pause(folder)
    _die_with_forks(folder, 1)


def fork_a_pool_and_die(folder: Path) -> None:
    if not _first(folder):
        return
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
    pool.submit(pause, folder)
    pool.submit(pause, folder)
    _die_with_forks(folder, 2)


def _die_with_forks(folder: Path, count: int) -> None:
    wait_until(lambda: len(forks_in(folder)) == count)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("act", [fork_and_die, fork_a_pool_and_die])
def test_a_worker_that_is_killed_is_replaced_though_its_forks_hold_its_connection(
    server: FakeReverb, client: Client, tmp_path: Path, act: Callable[[Path], object]
) -> None:
    report = client.push(Gated(tmp_path, COUNT, 20, at_gate=act), "replay", workers=2)
    assert (report.parts_again, report.episodes_pushed, report.items_confirmed) == (1, COUNT, COUNT * ITEMS)
    assert len(values(server)) == COUNT * ITEMS
    wait_until(lambda: not any(map(is_running, forks_in(tmp_path))))


def fork_a_task(folder: Path) -> None:
    """The fork goes on with the task as its parent does."""
    if _first(folder) and not os.fork():
        (folder / f"fork-{os.getpid()}").touch()
        raise SystemExit


def test_what_becomes_of_a_task_in_a_fork_is_not_told(server: FakeReverb, client: Client, tmp_path: Path) -> None:
    report = client.push(Gated(tmp_path, COUNT, 20, at_gate=fork_a_task), "replay", workers=2)
    assert (report.episodes_pushed, report.items_confirmed) == (COUNT, COUNT * ITEMS)
    assert len(values(server)) == COUNT * ITEMS


@dataclass(frozen=True)
class Acting:
    """A job whose work is a function of the folder and the task's number."""

    folder: Path
    act: Callable[[Path, int], Any]

    @contextmanager
    def open(self) -> Iterator[Acting]:
        yield self

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
        on_progress("begun")
        return Outcome(self.act(self.folder, task.number))


def what_comes(workers: Processes) -> list[Event]:
    """Until its only task is done or lost; not how far it is."""
    found: list[Event] = []
    while not any(isinstance(event, Done | Lost) for event in found):
        event = workers.event(PATIENCE_SECONDS)
        assert event is not None, "nothing is heard of the task any more"
        found.append(event)
    return [event for event in found if isinstance(event, Done | Retried | Lost)]


def events(job: Acting) -> list[Event]:
    """What comes of one task, but for how far it is."""
    with Processes(job, 1) as workers:
        workers.submit(Task(7, 0, 1))
        return what_comes(workers)


def _descriptor() -> int:
    """Of the connection with the driver."""
    return int(sys.argv[1])


def write_garbage(folder: Path, number: int) -> int:
    if _first(folder):
        os.write(_descriptor(), b"Using device 0\n")
        signal.pause()
    return number


def announce_too_much(folder: Path, number: int) -> int:
    if _first(folder):
        head = b"r2rwork1" + (1 << 62).to_bytes(8, "little")
        os.write(_descriptor(), len(head).to_bytes(4, "big") + head)
        signal.pause()
    return number


def die_within_a_frame(folder: Path, number: int) -> int:
    if _first(folder):
        if not os.fork():
            pause(folder)
        os.write(_descriptor(), (16).to_bytes(4, "big") + b"r2rwork1" + (1000).to_bytes(8, "little"))
        os.write(_descriptor(), (1000).to_bytes(4, "big") + b"not all of it")
        _die_with_forks(folder, 1)
    return number


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("act", "why"),
    [
        (write_garbage, "was ended, for its answer cannot be read here: OSError: bad message length"),
        (announce_too_much, "was ended, for its answer cannot be read here: WireError: expected the mark"),
        (die_within_a_frame, "killed by SIGKILL"),
    ],
)
def test_a_worker_whose_answers_are_garbage_is_replaced(
    tmp_path: Path, act: Callable[[Path, int], Any], why: str
) -> None:
    again, done = events(Acting(tmp_path, act))
    assert isinstance(again, Retried)
    assert f"at episodes 0 to 0, {why}" in again.why
    assert done == Done(7, Outcome(7))


def answer_what_only_the_worker_knows(folder: Path, _: int) -> Any:
    (folder / "only_there.py").write_text("class Thing: pass")
    sys.path.append(str(folder))
    import only_there

    return only_there.Thing()


def test_an_answer_that_the_driver_cannot_make_is_told_after_some_tries(tmp_path: Path) -> None:
    *again, lost = events(Acting(tmp_path, answer_what_only_the_worker_knows))
    assert [type(event) for event in again] == [Retried] * (TRIES - 1)
    assert isinstance(lost, Lost)
    assert "cannot be read here: ModuleNotFoundError: No module named 'only_there'" in lost.why


def answer_what_cannot_be_sent(_: Path, number: int) -> Any:
    return lambda: number


def test_an_answer_that_cannot_be_sent_is_the_error(tmp_path: Path) -> None:
    (done,) = events(Acting(tmp_path, answer_what_cannot_be_sent))
    assert isinstance(done, Done)
    assert "answer_what_cannot_be_sent.<locals>.<lambda>" in str(done.outcome.error)


def wait_with_a_fork(folder: Path, _: int) -> None:
    if not os.fork():
        pause(folder)
    signal.pause()


@pytest.mark.filterwarnings("ignore")
def test_the_end_of_the_executor_ends_workers_that_do_not_listen_and_their_forks(tmp_path: Path) -> None:
    with Processes(Acting(tmp_path, wait_with_a_fork), 1) as workers:
        workers.submit(Task(0, 0, 1))
        wait_until(lambda: bool(forks_in(tmp_path)))
    wait_until(lambda: not any(map(is_running, forks_in(tmp_path))))


def stop_once(folder: Path) -> None:
    if _first(folder):
        os.kill(os.getpid(), signal.SIGSTOP)


def hang_once(folder: Path) -> None:
    if _first(folder):
        signal.pause()


@pytest.mark.parametrize(
    ("act", "where"), [(stop_once, r"process \d+ \(stopped by a signal\)"), (hang_once, r"process \d+")]
)
def test_a_silent_worker_is_told_and_then_replaced(
    server: FakeReverb,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    act: Callable[[Path], object],
    where: str,
) -> None:
    monkeypatch.setattr(driver, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(driver, "_OPEN_SECONDS", 60.0)
    monkeypatch.setattr(fleet, "_GRACE_SECONDS", -59.0)  # `reconnect` is 60 seconds
    waits: list[str] = []
    source = Gated(tmp_path, COUNT, 20, at_gate=act)
    report = client.push(
        source, "replay", workers=2, stall_seconds=1.0, on_progress=lambda progress: waits.append(progress.waiting)
    )
    assert (report.parts_again, report.episodes_pushed, report.items_confirmed) == (1, COUNT, COUNT * ITEMS)
    assert len(values(server)) == COUNT * ITEMS
    silent = rf"{where}, at episodes 16 to 31, has told nothing for \d+ s"
    assert any(waits)  # on a slow machine of another worker, which begins slowly
    assert any(re.fullmatch(silent, record.getMessage()) for record in caplog.records)
    assert any(
        re.fullmatch(rf"{silent}, and was ended; another worker repeats the task", record.getMessage())
        for record in caplog.records
    )


def hang(_: Path, __: int) -> None:
    signal.pause()


def test_a_task_that_hangs_every_time_is_told_as_that(tmp_path: Path) -> None:
    with Processes(Acting(tmp_path, hang), 1) as workers:
        workers.submit(Task(7, 0, 1))
        for _ in range(TRIES):
            while workers.event(PATIENCE_SECONDS) != Progressed(7, "begun"):
                pass
            workers.replace(7, "process 1, at episodes 0 to 0, has told nothing for 9 s")
        *_, lost = what_comes(workers)
    assert isinstance(lost, Lost)
    assert lost.why.startswith(
        "process 1, at episodes 0 to 0, has told nothing for 9 s, and was ended; it was begun 3 times. "
    )
    assert "The source hangs there, perhaps" in lost.why


SCRIPT = """
import sys
from pathlib import Path
from rlds2reverb import connect
from tests.support.gated import Gated

class Mine(Gated):
    pass

if __name__ == "__main__":
    with connect(sys.argv[1]) as client:
        client.push({source}, "replay", workers=2)
"""


@pytest.mark.parametrize("source", ["Mine(Path(sys.argv[2]), 60)", "Gated(Path(sys.argv[2]), 60, 20, at_gate=Mine)"])
def test_what_the_script_itself_defines_is_refused_before_a_worker_starts(
    server: FakeReverb, tmp_path: Path, source: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(source=source))
    with started(tmp_path, str(script), server.address, str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path)) as process:
        code, _, errors = process.result()
    assert code == 1
    assert "ConfigError" in errors
    assert "Mine is defined in the script, or the notebook, that was started, which workers do not run" in errors


def test_a_class_that_a_worker_cannot_import_is_told(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("from tests.support.gated import Gated\nclass Here(Gated): pass")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    source = only_here.Here(tmp_path, COUNT)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"cannot be made in a worker on .*: ModuleNotFoundError: .*'only_here'"):
        client.push(source, "replay", workers=1)


def test_a_list_of_episodes_goes_to_the_workers_as_it_is(server: FakeReverb, client: Client) -> None:
    report = client.push(in_memory.episodes(20), "replay", workers=1)
    assert (report.episodes_pushed, len(values(server))) == (20, 60)


def test_what_cannot_be_sent_to_a_worker_is_refused_before_one_starts(client: Client) -> None:
    episodes = in_memory.EpisodeList(in_memory.episodes(3))
    vars(episodes)["lock"] = threading.Lock()
    with pytest.raises(ConfigError, match=r"by name, or as objects that can be pickled: .*lock"):
        client.push(episodes, "replay", workers=2)


def test_a_source_whose_length_only_reading_tells_is_refused(client: Client, tmp_path: Path) -> None:
    class Open(Gated):
        episode_count = None  # type: ignore[assignment]

    with pytest.raises(SourceError, match="the number of its episodes is unknown without reading them"):
        client.push(Open(tmp_path, 3), "replay", workers=2)


def test_a_server_in_the_memory_of_this_process_is_refused(tmp_path: Path) -> None:
    client = Client(in_memory.MemoryTransport(in_memory.Server()))
    with pytest.raises(ConfigError, match="need a server that other processes can reach"):
        client.push(Gated(tmp_path, 3), "replay", workers=2)


@dataclass(frozen=True)
class Large(Acting):
    """More of a job than a connection takes while nobody reads."""

    data: bytes = bytes(1 << 20)


def number_of_task(_: Path, number: int) -> int:
    return number


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The first worker that is started, which is stopped before it reads anything."""
    start, found = processes._start_process, list[int]()

    def stop_the_first(connection: Any) -> Any:
        process = start(connection)
        if not found:
            found.append(process.pid)
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(process.pid))
        return process

    monkeypatch.setattr(processes, "_start_process", stop_the_first)
    yield found
    for pid in found:
        with suppress(ProcessLookupError):  # it has ended, as it should
            os.kill(pid, signal.SIGKILL)


def submitted_to_the_stopped(workers: Processes, stopped: list[int]) -> None:
    """Submits a task; fails when that waits for the worker, which stays stopped."""
    thread = threading.Thread(target=workers.submit, args=(Task(7, 0, 1),), daemon=True)
    thread.start()
    try:
        wait_until(lambda: bool(stopped) and not thread.is_alive(), reason=lambda: "the driver waits for the worker")
    except TimeoutError:
        os.kill(stopped[0], signal.SIGKILL)
        raise
    assert is_stopped(stopped[0])
    workers.stop([])
    assert workers.event(0) is None


def test_a_worker_that_does_not_read_holds_up_nobody_and_gets_everything_later(
    tmp_path: Path, stopped: list[int]
) -> None:
    with Processes(Large(tmp_path, number_of_task), 1) as workers:
        submitted_to_the_stopped(workers, stopped)
        os.kill(stopped[0], signal.SIGCONT)
        assert what_comes(workers) == [Done(7, Outcome(7))]


def test_a_worker_that_is_killed_before_it_was_told_all_is_lost_like_any(tmp_path: Path, stopped: list[int]) -> None:
    with Processes(Large(tmp_path, number_of_task), 1) as workers:
        submitted_to_the_stopped(workers, stopped)
        os.kill(stopped[0], signal.SIGKILL)
        again, done = what_comes(workers)
    assert isinstance(again, Retried)
    assert again.why == f"process {stopped[0]}, at episodes 0 to 0, killed by SIGKILL"
    assert done == Done(7, Outcome(7))


def test_a_worker_that_does_not_read_ends_with_the_others(tmp_path: Path, stopped: list[int]) -> None:
    with Processes(Large(tmp_path, number_of_task), 1) as workers:
        submitted_to_the_stopped(workers, stopped)
    assert not is_running(stopped[0])
    wait_until(lambda: not any(thread.name == "rlds2reverb-worker-tell" for thread in threading.enumerate()))


def test_what_goes_wrong_when_a_worker_is_told_is_the_loss_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, failed = frames.Frames.send, list[int]()

    def fail_once(of: Any, data: bytes) -> None:
        if not failed:
            failed.append(1)
            raise MemoryError("no room")
        send(of, data)

    monkeypatch.setattr(frames.Frames, "send", fail_once)
    again, done = events(Acting(tmp_path, number_of_task))
    assert isinstance(again, Retried)
    assert again.why.endswith("was ended, for nothing can be sent to it: MemoryError: no room")
    assert done == Done(7, Outcome(7))
