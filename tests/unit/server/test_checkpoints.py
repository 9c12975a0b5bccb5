"""Which checkpoints are kept of those that the service writes and those that clients ask for; Reverb is made up."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replay_server import checkpoints, working_folder
from replay_server.checkpoints import CheckpointWriter
from replay_server.clients import BUSY_SHARE, CLIENT_SECONDS, ClientCheckpoints
from replay_server.errors import CannotKeepError, CheckpointError, FolderLost
from replay_server.files import DONE
from replay_server.store import Checkpoint, CheckpointStore, read_checkpoint

from rlds2reverb.errors import ServerUnreachable, TransportError
from tests.unit.server.test_store import opened, refuse, write_checkpoint

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

KEEP, SPACING_SECONDS = 3, 20.0


def entry(number: int) -> str:
    return f"2026-01-02T03:{number // 60:02d}:{number % 60:02d}+00:00"


class Reverb:
    """Writes made-up checkpoints, one per second of its own clock."""

    def __init__(self, store: CheckpointStore) -> None:
        self.folder, self.seconds, self.asked = store.reverb, 0, 0

    def finish(self, keep: bool = True) -> str:
        """The next entry, when all older ones are deleted; its path."""
        self.seconds += 1
        path = write_checkpoint(self.folder / entry(self.seconds), self.seconds)
        for file in path.iterdir():
            os.utime(file, (self.seconds, self.seconds))
        for other in self.folder.iterdir():
            if other != path or not keep:
                shutil.rmtree(other)
        return str(path)

    def request(self) -> str:
        self.asked += 1
        return self.finish()


def remove_all(folder: Path) -> None:
    """Removes a folder that another thread still links files into."""
    while folder.exists():
        with suppress(OSError):
            shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def made_up_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "items_by_table", lambda _: {"t": 1})


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return opened(tmp_path / "checkpoints", KEEP)


@pytest.fixture
def server(store: CheckpointStore) -> Reverb:
    return Reverb(store)


@pytest.fixture
def writer(store: CheckpointStore, server: Reverb) -> CheckpointWriter:
    return CheckpointWriter(store, server.request, SPACING_SECONDS)


def numbers(store: CheckpointStore) -> list[int]:
    return [int(path.name) for path in store.paths()]


def test_of_a_clients_checkpoints_those_are_kept_that_are_far_enough_apart(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter
) -> None:
    """One per second: every twentieth lasts, and the newest is always there."""
    lasting = [1, 21, 41, 61]
    for number in range(1, 65):
        server.finish()
        kept = writer.keep_clients()
        assert kept is not None
        assert kept.number == number
        expected = [n for n in (*lasting, number) if n <= number]
        assert numbers(store) == sorted({*expected}, reverse=True)[:KEEP]
    assert writer.keep_clients() is None
    assert (writer.state.reason, writer.state.from_clients, server.asked) == ("client", 64, 0)


def test_memory_is_given_back_after_every_checkpoint_and_after_a_failure(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[None] = []
    monkeypatch.setattr(checkpoints, "give_back", lambda: given.append(None))
    writer.write("request")
    server.finish()
    assert writer.keep_clients() is not None
    monkeypatch.setattr(store, "adopt", refuse)
    with pytest.raises(CheckpointError):
        writer.write("request")
    assert len(given) == 3


def test_a_looping_client_leaves_the_services_own_checkpoints(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: float(server.seconds))
    own = [writer.write("schedule").number for _ in range(2)]
    for _ in range(12):
        server.finish()
        writer.keep_clients()
    assert numbers(store) == [14, *reversed(own)]
    newest = writer.write("schedule").number
    assert numbers(store) == [newest, *reversed(own)]
    assert [writer.write("schedule").number for _ in range(2)] == [16, 17]
    assert numbers(store) == [17, 16, 15]


def test_what_reverb_deletes_at_once_is_asked_for_again(
    server: Reverb, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse)  # else one may have been held
    answers = itertools.chain([False, False], itertools.repeat(True))
    writer._request = lambda: server.finish(keep=next(answers))
    assert writer.write("request").number == 1
    assert server.seconds == 3
    writer._request = lambda: server.finish(keep=False)
    with pytest.raises(
        CheckpointError, match=r"asked for 10 checkpoints, and none was found .*let them ask less often"
    ):
        writer.write("request")
    assert writer.state.failures == 1


def test_a_newer_one_of_a_client_will_do(store: CheckpointStore, server: Reverb, writer: CheckpointWriter) -> None:
    def another_finishes_first() -> str:
        path = server.finish(keep=False)
        server.finish()
        return path

    def another_deletes_ours() -> str:
        server.finish()
        raise TransportError("server localhost:1, writing a checkpoint: NOT_FOUND: gone")

    for number, request in enumerate((another_finishes_first, another_deletes_ours), 1):
        writer._request = request
        assert writer.write("request").number == number
    assert writer.state.reason == "request"
    assert writer.keep_clients() is None


@pytest.mark.parametrize(("number", "asks"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_room_is_asked_for_where_there_is_none(
    server: Reverb, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch, number: int, asks: bool
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    server.finish()
    monkeypatch.setattr("replay_server.store.write_synced", fail)
    with pytest.raises(CannotKeepError) as error:
        writer.keep_clients()
    assert (os.strerror(number) in str(error.value), "make room" in str(error.value)) == (True, asks)


@pytest.mark.parametrize("was_taken", [False, True])
@pytest.mark.parametrize("error", [TransportError("No space left on device"), ServerUnreachable("no answer")])
def test_one_that_was_finished_before_the_request_will_not_do(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter, error: TransportError, was_taken: bool
) -> None:
    """Nor one that waits to become a checkpoint, and of which Reverb has deleted the first name."""
    asked = []

    def fails() -> str:
        asked.append(1)
        raise error

    writer._request = fails
    path = Path(server.finish())
    if was_taken:
        assert writer.working.take(path.name) is not None
        remove_all(path)
    with pytest.raises(CheckpointError, match=str(error)):
        writer.write("request")
    assert len(asked) == 1
    assert numbers(store) == []
    assert writer.keep_clients() is not None


def test_what_is_not_valid_is_removed_and_said(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter
) -> None:
    path = Path(server.finish())
    (path / "chunks.tfrecord").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"chunks\.tfrecord: empty"):
        writer.keep_clients()
    assert not path.exists()
    assert (list(store.taken.iterdir()), writer.state.failures) == ([], 1)
    assert "chunks.tfrecord" in writer.state.last_error


def test_what_cannot_be_kept_now_is_kept_later(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.finish()
    with monkeypatch.context() as patched:
        patched.setattr("replay_server.store.write_synced", refuse)
        with pytest.raises(CannotKeepError):
            writer.keep_clients()
    assert writer.keep_clients() is not None
    assert numbers(store) == [1]
    assert list(store.taken.iterdir()) == []


def cannot(path: Path) -> Callable[..., Any]:
    """Fails where a path is asked for, as the system does when it has no file handle left."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    return fail


def test_nothing_is_taken_from_a_folder_that_was_lost_meanwhile(store: CheckpointStore, server: Reverb) -> None:
    def guard() -> None:
        if server.asked:
            raise FolderLost("another server has it")

    store.guard = guard
    with pytest.raises(FolderLost):
        CheckpointWriter(store, server.request).write("request")
    assert [path.name for path in server.folder.iterdir()] == [entry(1)]
    assert not any((path / DONE).exists() for path in store.taken.iterdir())


@pytest.mark.parametrize("name", ["generations", "set_aside", "taken", "reverb"])
@pytest.mark.parametrize("of_client", [True, False], ids=["client", "own"])
def test_a_folder_that_someone_removes_is_made_again(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter, name: str, of_client: bool
) -> None:
    for _ in range(2):
        writer.write("schedule")
    shutil.rmtree(store.folder / name)
    assert (writer.newest() is None) == (name == "generations")
    store.reverb.mkdir(exist_ok=True)  # Reverb itself makes its own
    if of_client:
        server.finish()
        kept = writer.keep_clients()
    else:
        kept = writer.write("schedule")
    assert kept is not None
    assert (kept.number, kept, writer.state.failures) == (3, writer.newest(), 0)
    assert read_checkpoint(kept.folder) == kept
    assert (store.folder / name).is_dir()


def test_the_folder_of_checkpoints_may_go_while_reverb_writes(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter
) -> None:
    writer.restored(replace(writer.write("schedule"), number=7))

    def request() -> str:
        path = server.request()
        if server.asked == 2:
            remove_all(store.taken)
            remove_all(Path(path))  # and what Reverb wrote
        return path

    writer._request = request
    assert writer.write("schedule").number == 8
    assert server.asked == 3


def test_what_is_no_folder_is_said_and_the_whole_folder_is_never_made_again(
    store: CheckpointStore, writer: CheckpointWriter
) -> None:
    shutil.rmtree(store.kept)
    store.kept.write_text("in the way")
    with pytest.raises(CannotKeepError, match=r"generations: no folder, and none can be made .*clear the way"):
        writer.write("schedule")
    shutil.rmtree(store.folder)
    with pytest.raises(CheckpointError):
        writer.write("schedule")
    assert not store.folder.exists()


def test_a_failure_to_tidy_up_hides_no_other(
    store: CheckpointStore, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> str:
        monkeypatch.setattr(writer.working, "tidy", cannot(store.reverb))
        raise TransportError("No space left on device")

    writer._request = fails
    with pytest.raises(CheckpointError, match="No space left on device"):
        writer.write("schedule")


def test_a_checkpoint_that_cannot_be_removed_costs_no_checkpoint_and_goes_the_next_time(
    store: CheckpointStore, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(KEEP):
        writer.write("schedule")
    with monkeypatch.context() as patched:
        patched.setattr("replay_server.store.shutil.rmtree", cannot(store.kept))
        newest = writer.write("request")
    assert (writer.state.last, writer.state.reason, writer.state.failures) == (newest, "request", 1)
    assert "Too many open files" in writer.state.last_error
    writer.write("schedule")
    assert sorted(path.name for path in store.kept.iterdir()) == ["000003", "000004", "000005"]
    assert (writer.state.failures, writer.state.last_error) == (1, "")


def test_after_the_stop_began_only_the_last_one_is_written(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with writer.turn:
            waiting = pool.submit(writer.write, "request")
            writer.stop()
        with pytest.raises(CheckpointError, match="the server is stopping"):
            waiting.result()
    assert writer.write("shutdown").number == 1
    for reason in ("schedule", "shutdown"):
        with pytest.raises(CheckpointError, match="the server is stopping"):
            writer.write(reason)
    assert (numbers(store), server.asked, writer.state.failures) == ([1], 1, 0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def look_each_second(clients: ClientCheckpoints, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clients.look()
        clock.now += 1


class TestClientCheckpoints:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def clients(self, writer: CheckpointWriter, clock: Clock) -> ClientCheckpoints:
        return ClientCheckpoints(writer, clock)

    def test_the_first_is_kept_at_once_and_then_the_newest_now_and_then(
        self, store: CheckpointStore, server: Reverb, clients: ClientCheckpoints, clock: Clock
    ) -> None:
        clients.look()
        assert numbers(store) == []
        for _ in range(30):
            server.finish()
            clients.look()
            clock.now += CLIENT_SECONDS / 10
        assert max(numbers(store)) == 3
        clock.now += CLIENT_SECONDS
        clients.look()
        clients.look()
        assert max(numbers(store)) == 4
        assert server.asked == 0

    def test_most_of_the_time_nothing_is_kept(
        self,
        store: CheckpointStore,
        server: Reverb,
        writer: CheckpointWriter,
        clients: ClientCheckpoints,
        clock: Clock,
    ) -> None:
        """Each takes 5 seconds."""
        keep = writer.keep_clients

        def slowly() -> Checkpoint | None:
            clock.now += 5
            return keep()

        writer.keep_clients = slowly  # type: ignore[method-assign]
        while clock.now < 1200:
            server.finish()
            clients.look()
            clock.now += 1
        assert max(numbers(store)) == 200 * BUSY_SHARE // 5

    def test_one_that_was_deleted_unseen_is_made_good_by_one_of_our_own(
        self, store: CheckpointStore, server: Reverb, clients: ClientCheckpoints, clock: Clock
    ) -> None:
        """Two clients whose checkpoints overlap all the time: there is always one that is being written."""
        asked = []
        for _ in range(35):
            self.overlapping(server)
            clients.look()
            asked.append(server.asked)
            clock.now += CLIENT_SECONDS / 10
        assert asked[:10] == [0] * 10
        assert asked[-1] == max(numbers(store)) in (2, 3)

    def overlapping(self, server: Reverb) -> None:
        """The one being written is deleted, another has begun."""
        server.finish(keep=False)
        server.seconds += 1
        (server.folder / entry(server.seconds)).mkdir()

    def test_one_of_our_own_makes_it_good_as_well(
        self, writer: CheckpointWriter, server: Reverb, clients: ClientCheckpoints, clock: Clock
    ) -> None:
        self.overlapping(server)
        clients.look()
        shutil.rmtree(server.folder / entry(server.seconds))
        clients.look()
        writer.write("schedule")
        clock.now += 5 * CLIENT_SECONDS
        clients.look()
        assert server.asked == 1

    def test_a_broken_one_is_made_good(
        self, store: CheckpointStore, server: Reverb, clients: ClientCheckpoints, clock: Clock
    ) -> None:
        (Path(server.finish()) / "items.tfrecord").write_bytes(b"")
        clients.look()
        assert numbers(store) == []
        clock.now += 100 * CLIENT_SECONDS
        clients.look()
        assert (numbers(store), server.asked) == ([1], 1)

    def test_what_a_call_left_half_done_is_owed_to_nobody(
        self, server: Reverb, clients: ClientCheckpoints, clock: Clock
    ) -> None:
        half = server.folder / entry(1)
        half.mkdir()
        clients.look()
        assert half.exists()
        os.utime(half, (1, 1))
        clients.look()
        assert not half.exists()
        clock.now += 5 * CLIENT_SECONDS
        clients.look()
        assert server.asked == 0

    def test_failures_are_left_to_the_writer(
        self,
        server: Reverb,
        writer: CheckpointWriter,
        clients: ClientCheckpoints,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        server.finish()
        monkeypatch.setattr("replay_server.store.write_synced", refuse)
        look_each_second(clients, clock, 20)
        assert writer.state.failures == 1  # and not one every half second
        assert not any((path / DONE).stat().st_size for path in server.folder.iterdir())

    def test_an_error_of_the_file_system_is_counted_and_the_looking_goes_on_later(
        self,
        store: CheckpointStore,
        server: Reverb,
        writer: CheckpointWriter,
        clients: ClientCheckpoints,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        server.finish()
        with monkeypatch.context() as patched:
            patched.setattr(writer.working, "entries", cannot(server.folder))
            look_each_second(clients, clock, 20)
        assert writer.state.failures == 1
        clock.now += 100
        clients.look()
        assert numbers(store) == [1]

    def test_the_thread_outlives_an_error_that_nobody_thought_of(
        self, store: CheckpointStore, server: Reverb, clients: ClientCheckpoints, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look, looked = clients.look, threading.Event()

        def fails_once() -> None:
            if not looked.is_set():
                looked.set()
                raise ZeroDivisionError
            look()

        monkeypatch.setattr(clients, "look", fails_once)
        server.finish()
        clients.start()
        end = time.monotonic() + 60
        while not numbers(store):
            assert time.monotonic() < end
            time.sleep(0.01)
        clients.stop()
        clients._thread.join(60)

    def test_after_the_stop_nothing_is_kept(
        self, store: CheckpointStore, server: Reverb, clients: ClientCheckpoints
    ) -> None:
        server.finish()
        clients.stop()
        clients.look()
        assert numbers(store) == []

    def test_the_thread_ends(self, clients: ClientCheckpoints) -> None:
        clients.start()
        clients.stop()
        clients._thread.join(60)
        assert not clients._thread.is_alive()


def test_what_clients_calls_have_left_is_kept_or_removed_before_a_checkpoint_is_refused(
    store: CheckpointStore, server: Reverb, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits to become a checkpoint, and one half done, stand where the next one needs room."""
    monkeypatch.setattr(working_folder, "QUIET_SECONDS", 0.02)
    kept = [writer.write("request") for _ in range(KEEP)]
    one = kept[-1].bytes
    server.finish()
    left = server.folder / entry(server.seconds + 1)
    write_checkpoint(left, 1)
    (left / DONE).unlink()
    size = bytes_on_disk(store.folder) + one // 2
    monkeypatch.setattr(
        "replay_server.checkpoints.shutil.disk_usage",
        lambda folder: SimpleNamespace(free=size - bytes_on_disk(store.folder)),
    )
    assert writer.write("request").number == KEEP + 2
    assert numbers(store) == [KEEP + 2, KEEP, KEEP - 1]  # the client's gave way
    assert not left.exists()
    size -= 2 * one
    asked = server.asked
    with pytest.raises(CheckpointError, match="nothing was written"):
        writer.write("request")
    assert server.asked == asked


def bytes_on_disk(folder: Path) -> int:
    """Of all files below it, second names counted once."""
    sizes = {(state := path.stat()).st_ino: state.st_size for path in folder.rglob("*") if path.is_file()}
    return sum(sizes.values())
