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
from replay_server.fitting import Fit
from replay_server.generation import read_generation
from replay_server.generations import Generations
from replay_server.logs import logger
from replay_server.outlook import outlook
from replay_server.record_files import DONE, MANIFEST, RECORD_FILES, as_of, written_at
from replay_server.tables import TableConfig
from replay_server.working_folder import QUIET_SECONDS, WorkingFolder

from tests.server.test_choosing import io_error
from tests.server.test_generations import add, contents, killed_at, opened, record_file, refuse, which, write_checkpoint

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

TABLES = [TableConfig("one")]
"""What the config has; the checkpoints here hold as many items as their number, in that table."""


def entry(number: int) -> str:
    """A name as Reverb gives it; greater with the number."""
    return f"2026-01-02T03:{number // 60:02d}:{number % 60:02d}.25+00:00"


def finish(generations: Generations, number: int, ago: float = 0.0) -> str:
    """An entry as Reverb leaves it; `ago` seconds old."""
    folder = write_checkpoint(generations.reverb / entry(number), number)
    age(folder, ago)
    return folder.name


def begin(generations: Generations, number: int, files: int = 1, ago: float = 0.0) -> Path:
    """An entry of which so many files are written."""
    folder = generations.reverb / entry(number)
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
def generations(tmp_path: Path) -> Generations:
    return opened(tmp_path / "checkpoints")


@pytest.fixture
def working(generations: Generations) -> WorkingFolder:
    return WorkingFolder(generations.reverb, generations.taken)


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
    generations: Generations, working: WorkingFolder, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    if not can_link:
        monkeypatch.setattr(os, "link", refuse)
    name = finish(generations, 7)
    staged = working.take(name)
    assert staged is not None
    shutil.rmtree(generations.reverb / name, ignore_errors=True)
    assert working.finished() == [name]
    assert working.take(name) == staged
    generation = generations.adopt(staged, {"one": 7}, 0.0)
    working.adopted(name, generation.number)
    assert which(generation) == 7
    assert (working.finished(), names(generations.taken)) == ([], [])


def test_what_is_not_finished_or_gone_is_not_taken(generations: Generations, working: WorkingFolder) -> None:
    half = begin(generations, 1, files=3)
    assert working.take(half.name) is None
    assert working.take(entry(2)) is None
    assert working.take(entry(2), confirmed=True) is None
    assert working.finished() == []
    working.tidy()
    assert (names(generations.reverb), names(generations.taken)) == ([half.name], [])


def test_files_are_held_while_they_are_written_and_deleted_right_after(
    generations: Generations, working: WorkingFolder
) -> None:
    """As Reverb does when a newer entry is there: it returns the path of what it has just deleted."""
    old = begin(generations, 1)
    with working.holding() as before:
        folder = generations.reverb / entry(5)
        folder.mkdir()
        for file in RECORD_FILES:
            with (folder / file).open("wb") as stream:
                end = time.monotonic() + 60
                while not (generations.taken / folder.name / file).exists():
                    assert time.monotonic() < end
                stream.write(record_file(contents(5)[file]))
        shutil.rmtree(folder)
    assert before == {old.name}
    assert not (generations.taken / old.name).exists()
    staged = working.take(folder.name, confirmed=True)
    assert staged is not None
    assert which(generations.adopt(staged, {"one": 5}, 0.0)) == 5


def test_what_is_held_of_others_is_let_go(generations: Generations, working: WorkingFolder) -> None:
    with working.holding():
        other = begin(generations, 5)
        end = time.monotonic() + 60
        while not (generations.taken / other.name / RECORD_FILES[0]).exists():
            assert time.monotonic() < end
    working.tidy()
    assert (names(generations.reverb), names(generations.taken)) == ([other.name], [])


def test_only_what_nobody_writes_is_removed(generations: Generations, working: WorkingFolder) -> None:
    long_ago = 100 * QUIET_SECONDS
    left = begin(generations, 1, files=2, ago=long_ago)
    empty = begin(generations, 2, files=0, ago=long_ago)
    between_two_files = begin(generations, 3, files=1)
    written = begin(generations, 4, files=1, ago=long_ago)
    (generations.reverb / "0-restored").mkdir()
    with (written / RECORD_FILES[0]).open("ab"):
        assert working.tidy() == [left.name, empty.name]
        assert names(generations.reverb) == ["0-restored", between_two_files.name, written.name]
    assert working.tidy() == [written.name]
    assert working.tidy(wait=True) == [between_two_files.name]
    assert names(generations.reverb) == ["0-restored"]
    assert names(generations.taken) == []


def test_an_entry_from_the_future_is_removed_when_nothing_happens_in_it(
    generations: Generations, working: WorkingFolder
) -> None:
    """The clock was set back."""
    left = begin(generations, 1, ago=-3600)
    assert working.tidy() == []
    assert working.tidy(wait=True) == [left.name]


def test_nothing_is_removed_under_a_call_that_may_be_deleting_it(
    generations: Generations, working: WorkingFolder
) -> None:
    """It has just finished: its DONE is there, and it deletes the others."""
    left = begin(generations, 1, ago=100 * QUIET_SECONDS)
    adopted = finish(generations, 2, ago=100 * QUIET_SECONDS)
    working.adopted(adopted, 1)
    just = finish(generations, 3)
    assert working.tidy() == []
    assert names(generations.reverb) == [left.name, adopted, just]
    working.adopted(just, 2)
    age(generations.reverb / just, 2 * QUIET_SECONDS)
    assert working.tidy() == [left.name]
    assert names(generations.reverb) == []


def test_an_adopted_entry_is_not_found_again_even_when_its_generation_was_put_away(
    generations: Generations, working: WorkingFolder, tmp_path: Path
) -> None:
    name = finish(generations, 1)
    begin(generations, 2)  # so that the first one stays
    staged = working.take(name)
    assert staged is not None
    generation = generations.adopt(staged, {"one": 1}, 0.0)
    working.adopted(name, generation.number)
    working.tidy()
    assert (generations.reverb / name / DONE).read_text() == "000001\n"
    assert read_generation(generation.folder) == generation  # its own DONE is as it was
    generation.folder.rename(tmp_path / "put away")
    moved = tmp_path / "moved"
    shutil.copytree(generations.folder, moved)
    for folder in (generations.folder, moved):
        assert clients.keep_left(Generations(folder, 3), logger("test")) is None


def test_a_start_keeps_the_newest_that_was_finished(generations: Generations) -> None:
    for number in (1, 2):
        finish(generations, number, ago=100 - number)
    begin(generations, 3, files=3)
    found = clients.keep_left(generations, logger("test"))
    assert found is not None
    assert (which(found), found.number) == (2, 1)
    assert clients.keep_left(generations, logger("test")) is None
    removed = sorted({path.name for path in generations.clean()})
    assert removed == [entry(2)]


def test_a_start_keeps_nothing_older_than_the_newest_generation(generations: Generations) -> None:
    old = finish(generations, 2, ago=100)
    write_checkpoint(generations.taken / "newer", 1)
    generations.adopt(generations.taken / "newer", {"one": 1}, 0.0)
    assert clients.keep_left(generations, logger("test")) is None
    assert names(generations.reverb) == [old]
    age(generations.reverb / old, -100)
    found = clients.keep_left(generations, logger("test"))
    assert found is not None
    assert (which(found), found.number) == (2, 2)


def test_a_start_sets_a_broken_one_aside_and_takes_the_one_before(generations: Generations) -> None:
    finish(generations, 1)
    broken = finish(generations, 2)
    os.truncate(generations.reverb / broken / "chunks.tfrecord", 20)
    found = clients.keep_left(generations, logger("test"))
    assert found is not None
    assert (which(found), found.number) == (1, 1)
    [aside] = (generations.folder / "set_aside").iterdir()
    assert aside.name == f"of-reverb-{broken}-broken"
    assert (aside / "tables.tfrecord").read_bytes() == record_file(contents(2)["tables.tfrecord"])
    write_checkpoint(generations.reverb / "x", 4)
    assert generations.adopt(generations.reverb / "x", {}, 0.0).number == 2


def test_a_start_that_cannot_keep_it_leaves_it_there(generations: Generations, monkeypatch: pytest.MonkeyPatch) -> None:
    name = finish(generations, 1)
    with monkeypatch.context() as patched:
        patched.setattr("replay_server.generations.write_synced", refuse)
        with pytest.raises(CannotKeepError, match="cannot be kept"):
            clients.keep_left(generations, logger("test"))
    assert WorkingFolder(generations.reverb, generations.taken).finished() == [name]
    found = clients.keep_left(generations, logger("test"))
    assert found is not None
    assert which(found) == 1


def prepare(generations: Generations, monkeypatch: pytest.MonkeyPatch, start_empty: bool = False) -> int | None:
    """What a start loads, as `which`; None for nothing. The made-up tables fit."""
    monkeypatch.setattr(restore, "fit_checkpoint", lambda *_: Fit((), ()))
    section = CheckpointSection(folder=str(generations.folder), start_empty=start_empty)
    found = restore.prepare(Generations(generations.folder, 3), section, ()).generation
    return None if found is None else which(found)


def aside(generations: Generations) -> list[str]:
    return names(generations.folder / "set_aside")


def test_a_start_keeps_what_is_finished_in_a_folder_that_lacks_the_others(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(generations, 1)
    generations.taken.rmdir()
    assert prepare(generations, monkeypatch) == 1
    assert (names(generations.reverb), names(generations.taken), aside(generations)) == ([], [], [])


def test_a_start_deletes_nothing_finished_though_it_looks_old(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was set back."""
    add(generations, 1)
    old = finish(generations, 2, ago=3600)
    lacks_one = finish(generations, 3)
    (generations.reverb / lacks_one / "chunks.tfrecord").unlink()
    assert prepare(generations, monkeypatch) == 1
    assert aside(generations) == [f"of-reverb-{old}-older", f"of-reverb-{lacks_one}-older"]
    assert prepare(generations, monkeypatch) == 1
    assert len(aside(generations)) == 2


def test_a_start_takes_no_broken_generation_for_newer(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(generations, 1, ago=3600)
    os.truncate(add(generations, 2).folder / "items.tfrecord", 3)
    assert prepare(generations, monkeypatch) == 1


def test_a_refused_start_leaves_what_reverb_had_finished_for_the_next(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = finish(generations, 1, ago=3600)
    newest = add(generations, 2).folder
    io_error(newest / "items.tfrecord")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="--start-empty"):
            prepare(generations, monkeypatch)
        assert (names(generations.reverb), aside(generations)) == ([name], [])
    assert prepare(generations, monkeypatch, start_empty=True) is None
    assert aside(generations) == [f"of-reverb-{name}-older"]


def test_what_reverb_left_and_cannot_be_read_stops_a_start_until_it_is_told_to_go_on(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(generations, 1)
    io_error(generations.reverb / finish(generations, 2) / "chunks.tfrecord")
    for _ in range(2):
        with pytest.raises(CheckpointUnreadable, match=r"chunks\.tfrecord: cannot be read .*--start-empty"):
            prepare(generations, monkeypatch)
        assert aside(generations) == []
    assert prepare(generations, monkeypatch, start_empty=True) == 1
    assert aside(generations) == ["reverb-unreadable", "taken-unreadable"]
    assert prepare(generations, monkeypatch) == 1


def test_an_outlook_says_of_what_reverb_left_what_the_start_does(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = CheckpointSection(folder=str(generations.folder))
    whole, broken = finish(generations, 1), finish(generations, 2)
    os.truncate(generations.reverb / broken / "items.tfrecord", 3)
    found = outlook(section, TABLES)
    assert (whole in found.starts_from, f"{broken}/items.tfrecord" in found.notes[0]) == (True, True)
    io_error(generations.reverb / broken / "items.tfrecord")
    assert "items.tfrecord: cannot be read" in outlook(section, TABLES).refusal
    found = outlook(CheckpointSection(folder=str(generations.folder), start_empty=True), TABLES)
    assert (found.refusal, found.starts_from) == ("", "nothing: empty tables")
    monkeypatch.setattr(WorkingFolder, "finished", refuse)
    assert "not here" in outlook(section, TABLES).refusal


def test_a_start_makes_room_before_it_keeps_anything(generations: Generations, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(generations, 1)
    half = begin(generations, 2, files=2)
    monkeypatch.setattr("replay_server.generations.write_synced", refuse)
    with pytest.raises(CannotKeepError):
        clients.keep_left(generations, logger("test"))
    assert not half.exists()


def test_of_what_waits_to_be_kept_only_the_newest_takes_room(generations: Generations, working: WorkingFolder) -> None:
    for number in (1, 2, 3):
        assert working.take(finish(generations, number)) is not None
        shutil.rmtree(generations.reverb / entry(number))
        working.tidy()
        assert names(generations.taken) == [entry(number)]


def test_what_waits_is_not_dropped_because_its_name_is_older(generations: Generations, working: WorkingFolder) -> None:
    """The clock was set back."""
    working.adopted(finish(generations, 9), 1)
    assert working.take(finish(generations, 1)) is not None
    working.tidy()
    assert names(generations.taken) == [entry(1)]


def test_nothing_is_held_in_a_folder_that_is_lost(generations: Generations, working: WorkingFolder) -> None:
    looked = threading.Event()

    def guard() -> None:
        looked.set()
        raise FolderLost("another server has it")

    with working.holding(guard):
        begin(generations, 1)
        assert looked.wait(60)
    assert names(generations.taken) == []


def test_what_reverb_finishes_while_adopted_ones_are_removed_stays(
    generations: Generations, working: WorkingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    working.adopted(finish(generations, 1, ago=100), 1)
    look, looks = working.entries, iter(range(9))

    def looked() -> dict[str, bool]:
        found = look()
        if next(looks) == 2:  # the last time
            finish(generations, 2)
        return found

    monkeypatch.setattr(working, "entries", looked)
    working.tidy()
    assert names(generations.reverb) == [entry(2)]


@pytest.mark.parametrize("can_link", [True, False])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_step_neither_loses_nor_doubles_what_reverb_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, can_link: bool
) -> None:
    if not can_link:
        monkeypatch.setattr(os, "link", refuse)
    at, killed = 0, True
    while killed:
        at += 1
        generations = opened(tmp_path / f"{at}")
        write_checkpoint(generations.reverb / "first", 1)
        age(generations.reverb / "first", 1000)
        generations.adopt(generations.reverb / "first", {"one": 1}, 0.0)
        name = finish(generations, 2)

        def keep(generations: Generations = generations, name: str = name) -> None:
            working = WorkingFolder(generations.reverb, generations.taken)
            staged = working.take(name)
            assert staged is not None
            working.adopted(name, generations.adopt(staged, {"one": 2}, 0.0).number)
            working.tidy()

        killed = killed_at(monkeypatch, at, after, keep)
        again = Generations(generations.folder, 3)
        clients.keep_left(again, logger("test"))
        again.clean()
        assert [which(read_generation(path)) for path in again.paths()] == [2, 1]
        shutil.rmtree(generations.folder)
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
    began, ended = written_at(folder)
    assert began == second - 3600 * hours - 60 * minutes
    assert ended == (folder / "chunks.tfrecord").stat().st_mtime
    assert as_of(folder) == (folder / "tables.tfrecord").stat().st_mtime_ns
    assert (as_of(folder / "nothing"), MANIFEST in names(folder)) == (0, False)
