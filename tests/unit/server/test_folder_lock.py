"""One server per folder: on one machine by the kernel, across machines by records that are seen to change."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_server import folder_lock
from replay_server.errors import CheckpointError
from replay_server.folder_lock import LOCK, OWNER, SILENT_BEATS, FolderLock, Holder, decode_owner, holder, read_record
from replay_server.store import CheckpointStore, LeftOut

from tests.unit.server.test_store import add, opened, write_checkpoint

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

NEVER = 1e6
"""Seconds between the beats of the thread: here the tests beat."""


def never_stop(_: float) -> bool:
    return False


def waiting_is_wrong(_: float) -> bool:
    pytest.fail("there is nothing to wait for")


@pytest.fixture
def made() -> Iterator[list[FolderLock]]:
    """Locks that are given up at the end."""
    locks: list[FolderLock] = []
    yield locks
    for lock in locks:
        lock.release()


@pytest.fixture
def claim(made: list[FolderLock]) -> Callable[..., FolderLock]:
    """Takes a folder as a server does."""

    def claimed(folder: Path, wait: Callable[[float], bool] = waiting_is_wrong) -> FolderLock:
        made.append(FolderLock(folder, 0.0, NEVER))
        made[-1].take()
        assert made[-1].settle(wait)
        return made[-1]

    return claimed


def crash(lock: FolderLock) -> None:
    """What the kernel does at the end of a process: the record stays."""
    lock._ended.set()
    assert lock._thread is not None
    lock._thread.join()
    lock._close()
    lock._owner = None


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start is on another machine, and the file system carries no locks between them."""
    boots = itertools.count()
    monkeypatch.setattr(folder_lock, "boot_id", lambda: f"boot {next(boots)}")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)


def no_locks(*_: Any) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_second_server_is_refused_and_told_who_has_the_folder(tmp_path: Path, claim: Any) -> None:
    first = claim(tmp_path / "c")
    with pytest.raises(
        CheckpointError,
        match=rf"another server uses it: process {os.getpid()} on host \S+, started 1970-01-01 00:00:00Z.*folder of this",
    ):
        claim(tmp_path / "c")
    first.check()
    found = holder(tmp_path / "c")
    assert found.words.startswith(f"process {os.getpid()} on host")
    assert "another server uses it: process" in found.refusal
    first.release()
    assert (holder(tmp_path / "c"), [path.name for path in (tmp_path / "c").iterdir()]) == (Holder(), [LOCK])
    claim(tmp_path / "c").check()


def test_of_many_at_once_one_gets_it(tmp_path: Path, made: list[FolderLock]) -> None:
    made.extend(FolderLock(tmp_path, 0.0, NEVER) for _ in range(8))
    barrier, owners = threading.Barrier(8), []

    def start(lock: FolderLock) -> None:
        barrier.wait()
        try:
            lock.take()
            assert lock.settle(waiting_is_wrong)
        except CheckpointError:
            return
        owners.append(lock)

    threads = [threading.Thread(target=start, args=(lock,)) for lock in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [one] = owners
    one.check()


def test_what_crashed_on_this_machine_is_followed_at_once(tmp_path: Path, claim: Any) -> None:
    first = claim(tmp_path)
    crash(first)
    assert read_record(tmp_path) is not None
    assert holder(tmp_path) == Holder()
    claim(tmp_path).check()


def test_what_crashed_between_writing_its_record_and_putting_it_into_place_leaves_nothing(
    tmp_path: Path, claim: Any
) -> None:
    (tmp_path / f"{OWNER}.abc.partial").write_text("half")
    claim(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, OWNER]


def test_a_silent_owner_on_another_machine_is_waited_for_and_followed(
    tmp_path: Path, claim: Any, elsewhere: None
) -> None:
    first = claim(tmp_path)
    waits: list[float] = []
    found = holder(tmp_path)
    assert ("a sign of life" in found.words, found.refusal) == (True, "")
    second = claim(tmp_path, lambda seconds: bool(waits.append(seconds)))
    assert len(waits) == SILENT_BEATS + 1  # and one more, for a newcomer that waited beside this one
    with pytest.raises(CheckpointError, match="another server has taken it, process"):
        first.check()
    assert "another server has taken it" in first.problem
    second.check()
    assert second.problem == ""


@pytest.mark.parametrize("beat", [0, 5, SILENT_BEATS - 1])
def test_a_living_owner_on_another_machine_keeps_it(
    tmp_path: Path, claim: Any, elsewhere: None, monkeypatch: pytest.MonkeyPatch, beat: int
) -> None:
    """Whatever its clock says."""
    times = itertools.count(10**9, -86400)
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    first = claim(tmp_path)
    waits = itertools.count()

    def wait(_: float) -> bool:
        if next(waits) == beat:
            first.beat()
        return False

    with pytest.raises(CheckpointError, match="another server uses it"):
        claim(tmp_path, wait)
    first.check()


def test_an_owner_that_ends_while_a_newcomer_waits_is_followed(tmp_path: Path, claim: Any, elsewhere: None) -> None:
    first = claim(tmp_path)
    waits = itertools.count(1)
    claim(tmp_path, lambda _: bool(first.release() if next(waits) == 3 else None)).check()
    assert next(waits) == 5


def test_a_newcomer_that_is_told_to_end_leaves_the_folder_as_it_was(
    tmp_path: Path, claim: Any, elsewhere: None
) -> None:
    first = claim(tmp_path)
    before = read_record(tmp_path)
    second = FolderLock(tmp_path, 0.0, NEVER)
    second.take()
    assert not second.settle(lambda _: True)
    assert read_record(tmp_path) == before
    first.check()


def test_one_that_lost_it_overwrites_and_removes_nothing(tmp_path: Path, claim: Any, elsewhere: None) -> None:
    first = claim(tmp_path)
    second = claim(tmp_path, never_stop)
    record = read_record(tmp_path)
    first.beat()
    first.release()
    assert read_record(tmp_path) == record
    second.check()


@given(
    schedule=st.lists(st.tuples(st.integers(0, 2), st.integers(1, SILENT_BEATS + 3)), max_size=20),
    crashes=st.sets(st.integers(0, 19), max_size=4),
)
@settings(max_examples=60)
def test_without_locks_a_folder_has_one_owner_and_a_living_one_keeps_it(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[tuple[int, int]], crashes: set[int]
) -> None:
    """Machines in any order, each suspended for as long as the order says; some end without a word."""
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        boots = itertools.count()
        patch.setattr(folder_lock, "boot_id", lambda: f"boot {next(boots)}")
        patch.setattr(fcntl, "flock", no_locks)
        machines = [Machine(folder) for _ in range(3)]
        for place, (index, steps) in enumerate(schedule):
            if place in crashes:
                machines[index].end()
                machines[index] = Machine(folder)
            for _ in range(steps):
                step_one(machines, machines[index])
        for machine in machines:
            machine.end()
        last = Machine(folder)
        for _ in range(SILENT_BEATS + 3):
            last.step()
        assert last.owns()  # whatever was before, a server alone gets it
        last.end()
    shutil.rmtree(folder)


def step_one(machines: list[Machine], machine: Machine) -> None:
    """One goes on; `others` counts the steps of each since another's last one."""
    before = next((machine for machine in machines if machine.owns()), None)
    machine.step()
    machine.others.clear()
    for machine_there in machines:
        if machine_there is not machine:
            machine_there.others[machine] = machine_there.others.get(machine, 0) + 1
    owners = [machine for machine in machines if machine.owns()]
    assert len(owners) <= 1
    if before is not None and before not in owners:
        assert max(before.others.values()) >= SILENT_BEATS


class Machine:
    """A server that goes on for one wait at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ended = folder, False
        self.others: dict[Machine, int] = {}
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._lock, self._is_ready = FolderLock(folder, 0.0, NEVER), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._waits.acquire()

    def step(self) -> None:
        self._go.release()
        self._waits.acquire()

    def owns(self) -> bool:
        try:
            self._lock.check()
        except CheckpointError:
            return False
        return self._is_ready

    def end(self) -> None:
        """As a crash."""
        self._ended = True
        self.step()
        self._thread.join()
        self._lock._ended.set()
        self._lock._close()
        self._lock._owner, self._is_ready = None, False

    def _wait(self, _: float = 0.0) -> bool:
        self._waits.release()
        self._go.acquire()
        if self._ended:
            raise EndError
        return False

    def _run(self) -> None:
        try:
            self._wait()
            while True:
                try:
                    self._serve()
                except CheckpointError:
                    self._is_ready = False
                    self._lock.release()
                    self._lock = FolderLock(self._folder, 0.0, NEVER)
                    self._wait()  # started again
        except EndError:
            self._waits.release()

    def _serve(self) -> None:
        self._lock.take()
        self._lock.settle(self._wait)
        self._is_ready = True
        while True:
            self._wait()
            self._lock.beat()
            self._lock.check()


class EndError(Exception):
    """The machine is switched off."""


def test_a_file_system_without_locks_is_said_and_its_newcomers_wait_for_each_other(
    tmp_path: Path, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    waits: list[float] = []
    first = claim(tmp_path, lambda seconds: bool(waits.append(seconds)))
    assert len(waits) == 1
    crash(first)
    claim(tmp_path, lambda seconds: bool(waits.append(seconds)))
    assert len(waits) == 1 + SILENT_BEATS + 1  # the kernel cannot tell that it crashed


def test_a_removed_lock_file_lets_nobody_in_beside_a_living_owner(tmp_path: Path, claim: Any) -> None:
    first = claim(tmp_path)
    (tmp_path / LOCK).unlink()
    with pytest.raises(CheckpointError, match=f"{LOCK} is gone"):
        first.check()
    waits: list[float] = []
    claim(tmp_path, lambda seconds: bool(waits.append(seconds))).check()
    assert len(waits) == SILENT_BEATS + 1  # its lock was free, and said nothing of the owner that had another


def test_a_folder_that_is_moved_away_is_lost_until_it_is_back(tmp_path: Path, claim: Any) -> None:
    folder = tmp_path / "c"
    lock = claim(folder)
    folder.rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"the record in OWNER\.json is gone; was the folder moved"):
        lock.check()
    lock.beat()
    assert not folder.exists()
    folder.mkdir()  # what an unmounted volume leaves
    with pytest.raises(CheckpointError, match="is gone"):
        lock.check()
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    lock.check()
    assert lock.problem == ""


def test_the_record_is_refreshed_in_place_and_read_whole(tmp_path: Path, made: list[FolderLock]) -> None:
    made.append(FolderLock(tmp_path, 0.0, 0.001))
    made[0].take()
    made[0].settle(waiting_is_wrong)
    first = decode_owner(read_record(tmp_path))
    assert first is not None
    end = time.monotonic() + 60
    while (found := decode_owner(read_record(tmp_path))) is not None and found.seen == first.seen:
        assert time.monotonic() < end
    assert found is not None
    assert (found.token, found.lock) == (first.token, (tmp_path / LOCK).stat().st_ino)


def test_a_record_that_cannot_be_refreshed_is_a_problem_in_time(
    tmp_path: Path, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = claim(tmp_path)
    now = time.monotonic()
    monkeypatch.setattr("replay_server.folder_lock.time.monotonic", lambda: now + SILENT_BEATS * NEVER * 2)
    assert lock.problem == ""  # the kernel's lock says enough
    lock._is_locked = False
    assert "could not be refreshed" in lock.problem


def test_on_a_full_disk_the_record_of_a_crashed_owner_is_overwritten(
    tmp_path: Path, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claim(tmp_path)
    first._close()  # as a crash does
    write, began = os.pwrite, read_record(tmp_path)

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if os.fstat(descriptor).st_size == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    second = claim(tmp_path)
    second.check()
    assert read_record(tmp_path) != began
    assert not list(tmp_path.glob("*.partial"))


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "error": lambda path: path.symlink_to("/proc/self/mem"),  # regular, and reading its first byte is an I/O error
}


@pytest.mark.parametrize("name", [LOCK, OWNER])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_by_name_and_nobody_hangs(tmp_path: Path, claim: Any, name: str, kind: str) -> None:
    KINDS[kind](tmp_path / name)
    with pytest.raises(CheckpointError, match=name):
        claim(tmp_path)
    if name == OWNER:
        with pytest.raises(CheckpointError, match=name):
            holder(tmp_path)


@given(data=st.binary(max_size=200))
def test_a_damaged_record_is_nobody_that_is_known_and_is_waited_for(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / OWNER).write_bytes(data)
    lock, waits = FolderLock(folder, 0.0, NEVER), []
    lock.take()
    assert lock.settle(lambda seconds: bool(waits.append(seconds)))
    assert len(waits) == SILENT_BEATS + 1
    lock.check()
    lock.release()


def tree(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_ino for path in folder.rglob("*")}


@pytest.mark.parametrize("change", ["adopt", "prune", "set_aside", "note_left_out", "clean", "pin"])
def test_a_writer_that_lost_the_folder_changes_nothing(
    tmp_path: Path, claim: Any, elsewhere: None, change: str
) -> None:
    lock = claim(tmp_path)
    plain = opened(tmp_path, keep=9)
    checkpoint, _ = [add(plain, number) for number in (1, 2)]
    path = write_checkpoint(plain.reverb / "2026", 3)
    store = CheckpointStore(tmp_path, 1, lock.check)
    claim(tmp_path, never_stop)
    before = tree(tmp_path)
    calls: dict[str, Callable[[], object]] = {
        "adopt": lambda: store.adopt(path, {}, 0.0),
        "prune": store.prune,
        "set_aside": lambda: store.set_aside(checkpoint.folder, "broken"),
        "note_left_out": lambda: store.note_left_out(checkpoint, [LeftOut("one", 1, "why")]),
        "clean": store.clean,
        "pin": lambda: store.pin(checkpoint.folder),
    }
    with pytest.raises(CheckpointError, match="another server has taken it"):
        calls[change]()
    assert tree(tmp_path) == before


def test_a_folder_lost_while_a_checkpoint_is_verified_gets_no_checkpoint(
    tmp_path: Path, claim: Any, elsewhere: None
) -> None:
    lock = claim(tmp_path)
    plain = opened(tmp_path)
    path = write_checkpoint(plain.reverb / "2026", 1)
    looks = itertools.count()

    def guard() -> None:
        if next(looks) == 1:
            claim(tmp_path, never_stop)
        lock.check()

    with pytest.raises(CheckpointError, match="another server has taken it"):
        CheckpointStore(tmp_path, 1, guard).adopt(path, {}, 0.0)
    assert plain.paths() == []
