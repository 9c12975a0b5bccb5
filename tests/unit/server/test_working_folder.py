"""Reverb's folder on made-up files: what was finished is taken out whole, what is being written is left alone."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server import clients, restore
from replay_server.config import CheckpointSection
from replay_server.errors import CannotKeepError, CheckpointError, CheckpointUnreadable, FolderLost
from replay_server.files import DONE, MANIFEST, RECORD_FILES, as_of, writing_times
from replay_server.fitting import Fit
from replay_server.logs import logger
from replay_server.restore import outlook
from replay_server.store import CheckpointStore, read_checkpoint
from replay_server.tables import TableConfig
from replay_server.working_folder import QUIET_SECONDS, WorkingFolder

from tests.unit.server.test_choosing import io_error
from tests.unit.server.test_store import (
    KILLS,
    add,
    contents,
    killed_at,
    opened,
    record_file,
    refuse,
    which,
    write_checkpoint,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

TABLES = [TableConfig("one")]
"""What the config has; the checkpoints here hold as many items as their number, in that table."""


def entry(number: int) -> str:
    """A name as Reverb gives it; greater with the number."""
    return f"2026-01-02T03:{number // 60:02d}:{number % 60:02d}.25+00:00"


def finish(store: CheckpointStore, number: int, ago: float = 0.0) -> str:
    """An entry as Reverb leaves it; `ago` seconds old."""
    folder = write_checkpoint(store.reverb / entry(number), number)
    age(folder, ago)
    return folder.name


def begin(store: CheckpointStore, number: int, files: int = 1, ago: float = 0.0) -> Path:
    """An entry of which so many files are written."""
    folder = store.reverb / entry(number)
    folder.mkdir()
    for name in RECORD_FILES[:files]:
        (folder / name).write_bytes(record_file(contents(number)[name]))
    age(folder, ago)
    return folder


def age(folder: Path, seconds: float) -> None:
    when = time.time() - seconds
    for path in (*folder.iterdir(), folder):
        os.utime(path, (when, when))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return opened(tmp_path / "checkpoints")


@pytest.fixture
def working(store: CheckpointStore) -> WorkingFolder:
    return WorkingFolder(store.reverb, store.taken)


@pytest.fixture(autouse=True)
def made_up_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are random bytes; the made-up checkpoint's number is all that they tell."""

    def items_by_table(folder: Path) -> dict[str, int]:
        number = next(n for n in range(200) if record_file(contents(n)["tables.tfrecord"]) == read_tables(folder))
        return {"one": number}

    monkeypatch.setattr(clients, "items_by_table", items_by_table)


def read_tables(folder: Path) -> bytes:
    return (folder / "tables.tfrecord").read_bytes()


@pytest.mark.parametrize("can_link", [True, False])
def test_what_is_taken_outlives_its_entry(
    store: CheckpointStore, working: WorkingFolder, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    if not can_link:
        monkeypatch.setattr(os, "link", refuse)
    name = finish(store, 7)
    staged = working.take(name)
    assert staged is not None
    shutil.rmtree(store.reverb / name, ignore_errors=True)
    assert working.list_finished() == [name]
    assert working.take(name) == staged
    checkpoint = store.adopt(staged, {"one": 7}, 0.0)
    working.note_adopted(name, checkpoint.number)
    assert which(checkpoint) == 7
    assert (working.list_finished(), names(store.taken)) == ([], [])


def test_what_is_not_finished_or_gone_is_not_taken(store: CheckpointStore, working: WorkingFolder) -> None:
    half = begin(store, 1, files=3)
    assert working.take(half.name) is None
    assert working.take(entry(2)) is None
    assert working.take(entry(2), confirmed=True) is None
    assert working.list_finished() == []
    working.tidy()
    assert (names(store.reverb), names(store.taken)) == ([half.name], [])


def test_files_are_held_while_they_are_written_and_deleted_right_after(
    store: CheckpointStore, working: WorkingFolder
) -> None:
    """As Reverb does when a newer entry is there: it returns the path of what it has just deleted."""
    old = begin(store, 1)
    with working.holding() as before:
        folder = store.reverb / entry(5)
        folder.mkdir()
        for file in RECORD_FILES:
            with (folder / file).open("wb") as stream:
                end = time.monotonic() + 60
                while not (store.taken / folder.name / file).exists():
                    assert time.monotonic() < end
                stream.write(record_file(contents(5)[file]))
        shutil.rmtree(folder)
    assert before == {old.name}
    assert not (store.taken / old.name).exists()
    staged = working.take(folder.name, confirmed=True)
    assert staged is not None
    assert which(store.adopt(staged, {"one": 5}, 0.0)) == 5


def test_what_is_held_of_others_is_let_go(store: CheckpointStore, working: WorkingFolder) -> None:
    with working.holding():
        other = begin(store, 5)
        end = time.monotonic() + 60
        while not (store.taken / other.name / RECORD_FILES[0]).exists():
            assert time.monotonic() < end
    working.tidy()
    assert (names(store.reverb), names(store.taken)) == ([other.name], [])


def test_only_what_nobody_writes_is_removed(store: CheckpointStore, working: WorkingFolder) -> None:
    long_ago = 100 * QUIET_SECONDS
    left = begin(store, 1, files=2, ago=long_ago)
    empty = begin(store, 2, files=0, ago=long_ago)
    between_two_files = begin(store, 3, files=1)
    written = begin(store, 4, files=1, ago=long_ago)
    (store.reverb / "0-restored").mkdir()
    with (written / RECORD_FILES[0]).open("ab"):
        assert working.tidy() == [left.name, empty.name]
        assert names(store.reverb) == ["0-restored", between_two_files.name, written.name]
    assert working.tidy() == [written.name]
    assert working.tidy(wait=True) == [between_two_files.name]
    assert names(store.reverb) == ["0-restored"]
    assert names(store.taken) == []


def test_an_entry_from_the_future_is_removed_when_nothing_happens_in_it(
    store: CheckpointStore, working: WorkingFolder
) -> None:
    """The clock was set back."""
    left = begin(store, 1, ago=-3600)
    assert working.tidy() == []
    assert working.tidy(wait=True) == [left.name]


def test_nothing_is_removed_under_a_call_that_may_be_deleting_it(
    store: CheckpointStore, working: WorkingFolder
) -> None:
    """It has just finished: its DONE is there, and it deletes the others."""
    left = begin(store, 1, ago=100 * QUIET_SECONDS)
    adopted = finish(store, 2, ago=100 * QUIET_SECONDS)
    working.note_adopted(adopted, 1)
    just = finish(store, 3)
    assert working.tidy() == []
    assert names(store.reverb) == [left.name, adopted, just]
    working.note_adopted(just, 2)
    age(store.reverb / just, 2 * QUIET_SECONDS)
    assert working.tidy() == [left.name]
    assert names(store.reverb) == []


def test_an_adopted_entry_is_not_found_again_even_when_its_checkpoint_was_put_away(
    store: CheckpointStore, working: WorkingFolder, tmp_path: Path
) -> None:
    name = finish(store, 1)
    begin(store, 2)  # so that the first one stays
    staged = working.take(name)
    assert staged is not None
    checkpoint = store.adopt(staged, {"one": 1}, 0.0)
    working.note_adopted(name, checkpoint.number)
    working.tidy()
    assert (store.reverb / name / DONE).read_text() == "000001\n"
    assert read_checkpoint(checkpoint.folder) == checkpoint  # its own DONE is as it was
    checkpoint.folder.rename(tmp_path / "put away")
    moved = tmp_path / "moved"
    shutil.copytree(store.folder, moved)
    for folder in (store.folder, moved):
        assert clients.keep_left(CheckpointStore(folder, 3), logger("test")) is None


def test_a_start_keeps_the_newest_that_was_finished(store: CheckpointStore) -> None:
    for number in (1, 2):
        finish(store, number, ago=100 - number)
    begin(store, 3, files=3)
    found = clients.keep_left(store, logger("test"))
    assert found is not None
    assert (which(found), found.number) == (2, 1)
    assert clients.keep_left(store, logger("test")) is None
    removed = sorted({path.name for path in store.clean()})
    assert removed == [entry(2)]


def test_a_start_keeps_nothing_older_than_the_newest_checkpoint(store: CheckpointStore) -> None:
    old = finish(store, 2, ago=100)
    write_checkpoint(store.taken / "newer", 1)
    store.adopt(store.taken / "newer", {"one": 1}, 0.0)
    assert clients.keep_left(store, logger("test")) is None
    assert names(store.reverb) == [old]
    age(store.reverb / old, -100)
    found = clients.keep_left(store, logger("test"))
    assert found is not None
    assert (which(found), found.number) == (2, 2)


def test_a_start_sets_a_broken_one_aside_and_takes_the_one_before(store: CheckpointStore) -> None:
    finish(store, 1)
    broken = finish(store, 2)
    os.truncate(store.reverb / broken / "chunks.tfrecord", 20)
    found = clients.keep_left(store, logger("test"))
    assert found is not None
    assert (which(found), found.number) == (1, 1)
    [aside] = (store.folder / "set_aside").iterdir()
    assert aside.name == f"of-reverb-{broken}-broken"
    assert (aside / "tables.tfrecord").read_bytes() == record_file(contents(2)["tables.tfrecord"])
    write_checkpoint(store.reverb / "x", 4)
    assert store.adopt(store.reverb / "x", {}, 0.0).number == 2


def test_a_start_that_cannot_keep_it_leaves_it_there(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    name = finish(store, 1)
    with monkeypatch.context() as patched:
        patched.setattr("replay_server.store.write_synced", refuse)
        with pytest.raises(CannotKeepError, match="cannot be kept"):
            clients.keep_left(store, logger("test"))
    assert WorkingFolder(store.reverb, store.taken).list_finished() == [name]
    found = clients.keep_left(store, logger("test"))
    assert found is not None
    assert which(found) == 1


def prepare(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, start_empty: bool = False) -> int | None:
    """What a start loads, as `which`; None for nothing. The made-up tables fit."""
    monkeypatch.setattr(restore, "fit_checkpoint", lambda *_: Fit((), ()))
    section = CheckpointSection(folder=str(store.folder), start_empty=start_empty)
    found = restore.prepare(CheckpointStore(store.folder, 3), section, ()).checkpoint
    return None if found is None else which(found)


def aside(store: CheckpointStore) -> list[str]:
    return names(store.folder / "set_aside")


def test_a_start_keeps_what_is_finished_in_a_folder_that_lacks_the_others(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(store, 1)
    store.taken.rmdir()
    assert prepare(store, monkeypatch) == 1
    assert (names(store.reverb), names(store.taken), aside(store)) == ([], [], [])


def test_a_start_deletes_nothing_finished_though_it_looks_old(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was set back."""
    add(store, 1)
    old = finish(store, 2, ago=3600)
    lacks_one = finish(store, 3)
    (store.reverb / lacks_one / "chunks.tfrecord").unlink()
    assert prepare(store, monkeypatch) == 1
    assert aside(store) == [f"of-reverb-{old}-older", f"of-reverb-{lacks_one}-older"]
    assert prepare(store, monkeypatch) == 1
    assert len(aside(store)) == 2


def test_a_start_takes_no_broken_checkpoint_for_newer(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(store, 1, ago=3600)
    os.truncate(add(store, 2).folder / "items.tfrecord", 3)
    assert prepare(store, monkeypatch) == 1


def test_a_refused_start_leaves_what_reverb_had_finished_for_the_next(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = finish(store, 1, ago=3600)
    newest = add(store, 2).folder
    io_error(newest / "items.tfrecord")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="--start-empty"):
            prepare(store, monkeypatch)
        assert (names(store.reverb), aside(store)) == ([name], [])
    assert prepare(store, monkeypatch, start_empty=True) is None
    assert aside(store) == [f"of-reverb-{name}-older"]


def test_what_reverb_left_and_cannot_be_read_stops_a_start_until_it_is_told_to_go_on(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1)
    io_error(store.reverb / finish(store, 2) / "chunks.tfrecord")
    for _ in range(2):
        with pytest.raises(CheckpointUnreadable, match=r"chunks\.tfrecord: cannot be read .*--start-empty"):
            prepare(store, monkeypatch)
        assert aside(store) == []
    assert prepare(store, monkeypatch, start_empty=True) == 1
    assert aside(store) == ["reverb-unreadable", "taken-unreadable"]
    assert prepare(store, monkeypatch) == 1


def test_an_outlook_says_of_what_reverb_left_what_the_start_does(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = CheckpointSection(folder=str(store.folder))
    whole, broken = finish(store, 1), finish(store, 2)
    os.truncate(store.reverb / broken / "items.tfrecord", 3)
    found = outlook(section, TABLES)
    assert (whole in found.starts_from, f"{broken}/items.tfrecord" in found.notes[0]) == (True, True)
    io_error(store.reverb / broken / "items.tfrecord")
    assert "items.tfrecord: cannot be read" in outlook(section, TABLES).refusal
    found = outlook(CheckpointSection(folder=str(store.folder), start_empty=True), TABLES)
    assert (found.refusal, found.starts_from) == ("", "nothing: empty tables")
    monkeypatch.setattr(WorkingFolder, "list_finished", refuse)
    assert "not here" in outlook(section, TABLES).refusal


def test_a_start_makes_room_before_it_keeps_anything(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(store, 1)
    half = begin(store, 2, files=2)
    monkeypatch.setattr("replay_server.store.write_synced", refuse)
    with pytest.raises(CannotKeepError):
        clients.keep_left(store, logger("test"))
    assert not half.exists()


def test_of_what_waits_to_be_kept_only_the_newest_takes_room(store: CheckpointStore, working: WorkingFolder) -> None:
    for number in (1, 2, 3):
        assert working.take(finish(store, number)) is not None
        shutil.rmtree(store.reverb / entry(number))
        working.tidy()
        assert names(store.taken) == [entry(number)]


def test_what_waits_is_not_dropped_because_its_name_is_older(store: CheckpointStore, working: WorkingFolder) -> None:
    """The clock was set back."""
    working.note_adopted(finish(store, 9), 1)
    assert working.take(finish(store, 1)) is not None
    working.tidy()
    assert names(store.taken) == [entry(1)]


def test_nothing_is_held_in_a_folder_that_is_lost(store: CheckpointStore, working: WorkingFolder) -> None:
    looked = threading.Event()

    def guard() -> None:
        looked.set()
        raise FolderLost("another server has it")

    with working.holding(guard):
        begin(store, 1)
        assert looked.wait(60)
    assert names(store.taken) == []


def test_what_reverb_finishes_while_adopted_ones_are_removed_stays(
    store: CheckpointStore, working: WorkingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    working.note_adopted(finish(store, 1, ago=100), 1)
    look, looks = working.entries, iter(range(9))

    def looked() -> dict[str, bool]:
        found = look()
        if next(looks) == 2:  # the last time
            finish(store, 2)
        return found

    monkeypatch.setattr(working, "entries", looked)
    working.tidy()
    assert names(store.reverb) == [entry(2)]


@pytest.mark.parametrize("can_link", [True, False])
@KILLS
def test_a_kill_at_any_step_neither_loses_nor_doubles_what_reverb_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, can_link: bool
) -> None:
    if not can_link:
        monkeypatch.setattr(os, "link", refuse)
    at, killed = 0, True
    while killed:
        at += 1
        store = opened(tmp_path / f"{at}")
        write_checkpoint(store.reverb / "first", 1)
        age(store.reverb / "first", 1000)
        store.adopt(store.reverb / "first", {"one": 1}, 0.0)
        name = finish(store, 2)

        def keep(store: CheckpointStore = store, name: str = name) -> None:
            working = WorkingFolder(store.reverb, store.taken)
            staged = working.take(name)
            assert staged is not None
            working.note_adopted(name, store.adopt(staged, {"one": 2}, 0.0).number)
            working.tidy()

        killed = killed_at(monkeypatch, at, after, keep)
        again = CheckpointStore(store.folder, 3)
        clients.keep_left(again, logger("test"))
        again.clean()
        assert [which(read_checkpoint(path)) for path in again.paths()] == [2, 1]
        shutil.rmtree(store.folder)
    assert at > 20


@given(
    st.integers(0, 10**9), st.sampled_from(["", ".5", ".123456789"]), st.sampled_from(["+00:00", "-08:00", "+05:30"])
)
def test_a_name_tells_when_the_entry_was_begun(
    tmp_path_factory: pytest.TempPathFactory, second: int, fraction: str, zone: str
) -> None:
    folder = (
        tmp_path_factory.mktemp("named") / f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}{fraction}{zone}"
    )
    write_checkpoint(folder, 1)
    hours, minutes = int(zone[:3]), int(zone[0] + zone[4:])
    began, ended = writing_times(folder)
    assert began == second - 3600 * hours - 60 * minutes
    assert ended == (folder / "chunks.tfrecord").stat().st_mtime
    assert as_of(folder) == (folder / "tables.tfrecord").stat().st_mtime_ns
    assert (as_of(folder / "nothing"), MANIFEST in names(folder)) == (0, False)
