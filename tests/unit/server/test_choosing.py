"""What a start may load: broken is told apart from unreadable, nothing is passed over in silence, nothing hangs."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server.choosing import find_checkpoint, find_start, survey
from replay_server.config import CheckpointSection
from replay_server.errors import CheckpointError, CheckpointUnreadable
from replay_server.files import DONE, MANIFEST, list_folder, open_file, read_small
from replay_server.folder_lock import FolderLock
from replay_server.history import HISTORY, CheckpointRow, History, HistoryFile
from replay_server.restore import choose, outlook
from replay_server.store import Checkpoint, CheckpointStore, LeftOut
from replay_server.tables import TableConfig

from rlds2reverb.specs import ArraySpec
from tests.support.profiles import examples
from tests.support.raising import error_of
from tests.unit.server.test_store import FILES, add, record_file, which, write_checkpoint
from tests.unit.server.test_store import opened as open_folder

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

TABLES = [TableConfig("one")]
"""What the config has; the checkpoints here hold as many items as their number, in that table."""


def io_error(path: Path) -> None:
    """A regular file whose first byte cannot be read: EIO, for whoever asks."""
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/self/mem")


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}")  # its name may be too long


NO_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": bind,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda _: None,
}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Three checkpoints, 1 to 3."""
    made = open_folder(tmp_path / "checkpoints", keep=9)
    for number in (1, 2, 3):
        add(made, number)
    return made


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_broken_and_nobody_waits_for_it(store: CheckpointStore, name: str, kind: str) -> None:
    path = store.paths()[0] / name
    path.unlink()
    NO_FILES[kind](path)
    found, [passed] = choose(store, start_empty=False)
    assert found is not None
    assert which(found) == 2
    assert name in passed.reason
    assert passed.path == store.folder / "set_aside" / "000003-broken"


@pytest.mark.parametrize("name", FILES)
def test_what_cannot_be_read_stops_the_start_and_stays_where_it_is(store: CheckpointStore, name: str) -> None:
    io_error(store.paths()[0] / name)
    before = names(store.folder)
    for _ in range(2):
        with pytest.raises(
            CheckpointError, match=rf"000003/{name}: cannot be read \(Input/output error\).*--start-empty"
        ):
            choose(store, start_empty=False)
        assert names(store.folder) == before


def test_told_to_go_on_a_start_takes_the_older_one_and_keeps_what_it_could_not_read(store: CheckpointStore) -> None:
    io_error(store.paths()[0] / "items.tfrecord")
    found, [passed] = choose(store, start_empty=True)
    assert found is not None
    assert (which(found), passed.path.name, passed.is_readable) == (2, "000003", False)
    fewer = CheckpointStore(store.folder, 2)
    for number in range(4, 8):
        assert add(fewer, number).number == number
    assert [path.name for path in fewer.paths()] == ["000007", "000006", "000003"]  # whole, should it be read again


def test_unreadable_and_broken_ones_without_a_valid_one(store: CheckpointStore, tmp_path: Path) -> None:
    three, two, one = store.paths()
    (three / DONE).write_text("longer")
    io_error(two / MANIFEST)
    os.truncate(one / "items.tfrecord", 1)
    before = names(store.folder)
    with pytest.raises(CheckpointError, match=rf"none of 3 loads: .*000002/{MANIFEST}: cannot be read"):
        choose(store, start_empty=False)
    assert names(store.folder) == before
    found, passed = choose(store, start_empty=True)
    assert found is None
    assert [checkpoint.path.name for checkpoint in passed] == ["000003-broken", "000002", "000001-broken"]
    assert [path.name for path in store.paths()] == ["000002"]


@examples(40)
@given(states=st.lists(st.sampled_from(["valid", "broken", "unreadable"]), max_size=4), start_empty=st.booleans())
def test_nothing_newer_is_passed_over_in_silence(
    tmp_path_factory: pytest.TempPathFactory, states: list[str], start_empty: bool
) -> None:
    """Against the table of the module: the newest first."""
    store = open_folder(tmp_path_factory.mktemp("states"), keep=9)
    for number, state in enumerate(states[::-1], 1):
        folder = add(store, number).folder
        if state == "broken":
            (folder / DONE).unlink()
        if state == "unreadable":
            io_error(folder / "tables.tfrecord")
    newer = states[: states.index("valid")] if "valid" in states else states
    refused = "unreadable" in newer or (bool(states) and "valid" not in states)
    before = names(store.folder)
    if refused and not start_empty:
        with pytest.raises(CheckpointError, match="start_empty: true"):
            choose(store, start_empty)
        assert names(store.folder) == before
        return
    found, passed = choose(store, start_empty)
    assert (None if found is None else which(found)) == (len(states) - len(newer) if "valid" in states else None)
    assert [checkpoint.is_readable for checkpoint in passed] == [state == "broken" for state in newer]
    assert all(checkpoint.path.exists() for checkpoint in passed)
    shutil.rmtree(store.folder)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that any user may come to; pytest's are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def as_nobody() -> Iterator[Callable[[], None]]:
    """From its call on this process has no rights that root has."""
    yield lambda: os.seteuid(65534) if os.geteuid() == 0 else None
    if os.getuid() == 0:
        os.seteuid(0)


@pytest.mark.parametrize("locked", ["000002", "000002/items.tfrecord", f"000002/{MANIFEST}", ""])
def test_a_permission_says_nothing_of_the_content(
    open_to_all: Path, as_nobody: Callable[[], None], locked: str
) -> None:
    store = open_folder(open_to_all / "c")
    for number in (1, 2):
        add(store, number)
    path = store.kept / locked
    path.chmod(0)
    as_nobody()
    found = survey(store.kept)
    assert "cannot be read (Permission denied)" in found.refusal()
    assert [checkpoint.is_readable for checkpoint in found.unloaded] == [False]
    assert (found.checkpoint is None) == (not locked)
    with pytest.raises(CheckpointUnreadable, match="Permission denied"):
        find_checkpoint(open_to_all / "c")
    assert "Permission denied" in outlook(CheckpointSection(folder=str(open_to_all / "c")), TABLES).refusal


def test_a_folder_that_cannot_be_listed_can_be_left_as_it_is(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterdir = Path.iterdir

    def stale(path: Path) -> Any:
        if path == store.kept:
            raise OSError(116, "Stale file handle")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", stale)
    assert store.clean() == []
    with pytest.raises(CheckpointError, match=r"Stale file handle.*--start-empty"):
        choose(store, start_empty=False)
    found, [passed] = choose(store, start_empty=True)
    assert (found, passed.path, passed.is_readable) == (None, store.kept, False)
    with pytest.raises(CheckpointError, match="Stale file handle"):
        store.adopt(write_checkpoint(store.reverb / "2026", 4), {}, 0.0)


@given(number=st.integers(1, 200))
def test_every_error_of_the_system_is_a_checkpoint_error_of_one_kind(number: int) -> None:
    """Any but those that say that something is missing or no file leaves open what is there."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", fail)
        patch.setattr(Path, "iterdir", fail)
        for read in (
            lambda: read_small(Path("x"), 9),
            lambda: list_folder(Path("x")),
            lambda: open_file(Path("x")).__enter__(),
        ):
            error = error_of(CheckpointError, read)
            if error is None:
                assert number == 2  # a folder that is missing holds nothing
                continue
            missing = number in (2, 6, 19, 20, 21, 40)
            assert os.strerror(number) in str(error)
            assert isinstance(error, CheckpointUnreadable) != missing


def test_a_manifest_without_end_is_broken(store: CheckpointStore) -> None:
    os.truncate(store.paths()[0] / MANIFEST, 1 << 40)  # takes no room
    found, [passed] = choose(store, start_empty=False)
    assert found is not None
    assert "more than" in passed.reason


def other(tmp_path: Path, kind: str) -> tuple[Path, Checkpoint]:
    """A checkpoint of another experiment: a server's folder, one checkpoint, or Reverb's own."""
    made = open_folder(tmp_path / "other", keep=9)
    add(made, 1)
    newest = add(made, 2)
    of_reverb = write_checkpoint(tmp_path / "of-reverb", 3)
    return {"folder": made.folder, "generation": newest.folder, "reverb": of_reverb}[kind], newest


@pytest.mark.parametrize("kind", ["folder", "generation", "reverb"])
@pytest.mark.parametrize("name", ["items.tfrecord", "chunks.tfrecord"])
def test_a_start_from_another_experiment_is_refused_when_it_cannot_be_read(
    tmp_path: Path, kind: str, name: str
) -> None:
    path, newest = other(tmp_path, kind)
    io_error((newest.folder if kind == "folder" else path) / name)
    with pytest.raises(CheckpointError, match=rf"checkpoints\.start_from: .*{name}: cannot be read \(Input/output"):
        find_start(str(path))
    found = outlook(CheckpointSection(folder=str(tmp_path / "new"), start_from=str(path)), TABLES)
    assert name in found.refusal
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["folder", "generation", "reverb"])
@pytest.mark.parametrize("name", [MANIFEST, DONE, "chunks.tfrecord"])
def test_a_pipe_in_another_experiment_hangs_nobody(tmp_path: Path, kind: str, name: str) -> None:
    path, newest = other(tmp_path, kind)
    pipe = (newest.folder if kind == "folder" else path) / name
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    if kind == "folder":
        found = find_checkpoint(path)
        assert (found.folder.name, [checkpoint.path for checkpoint in found.unloaded]) == ("000001", [newest.folder])
        looked = outlook(CheckpointSection(folder=str(tmp_path / "new"), start_from=str(path)), TABLES)
        assert (looked.refusal, "passed over" in looked.notes[0]) == ("", True)
    else:
        with pytest.raises(CheckpointError, match=name):
            find_checkpoint(path)


def test_links_that_lead_out_of_the_folder_are_not_followed_by_cleaning(tmp_path: Path) -> None:
    store = open_folder(tmp_path / "c")
    (tmp_path / "precious").mkdir()
    (store.kept / "000001.partial").symlink_to(tmp_path / "precious")
    os.mkfifo(store.reverb / "pipe")
    (store.reverb / "link").symlink_to(tmp_path / "precious")
    assert len(store.clean()) == 3
    assert (tmp_path / "precious").is_dir()


def test_an_outlook_moves_nothing_and_says_what_a_start_would(store: CheckpointStore) -> None:
    section = CheckpointSection(folder=str(store.folder))
    assert outlook(section, TABLES).starts_from.startswith("checkpoint 3, 3 items")
    assert re.fullmatch(r"checkpoint 3, written at .*Z, .* ago, .* bytes", outlook(section, TABLES).last)
    (store.paths()[0] / DONE).unlink()
    before = names(store.folder)
    found = outlook(section, TABLES)
    assert (found.starts_from.split(",")[0], found.refusal) == ("checkpoint 2", "")
    assert found.last.startswith("checkpoint 2, ")
    [note] = found.notes
    assert note.endswith("it would be set aside")
    for path in store.paths():
        (path / DONE).unlink(missing_ok=True)
    assert ("none of 3 loads" in outlook(section, TABLES).refusal, outlook(section, TABLES).last) == (True, "")
    allowed = outlook(CheckpointSection(folder=str(store.folder), start_empty=True), TABLES)
    assert (allowed.starts_from, allowed.refusal, len(allowed.notes)) == ("nothing: empty tables", "", 3)
    assert [name for name in names(store.folder) if DONE not in name] == [n for n in before if DONE not in n]


@pytest.mark.parametrize(("way", "lost"), [("own", "set aside"), ("start_from", "left out")])
def test_an_outlook_says_what_becomes_of_each_table(
    store: CheckpointStore, tmp_path: Path, way: str, lost: str
) -> None:
    folder = str(store.folder)
    own = CheckpointSection(folder=folder)
    section = own if way == "own" else CheckpointSection(folder=str(tmp_path / "new"), start_from=folder)
    found = outlook(section, [TableConfig("one", max_size=3), TableConfig("two")])
    assert (found.notes, found.tables) == (
        (),
        {"one": "3 items restored", "two": "empty: it is not in the checkpoint"},
    )
    found = outlook(section, [TableConfig("one", max_size=2)])
    assert found.tables == {"one": f"2 items restored, 1 item {lost}: max_size is 2 now"}
    assert found.notes == (f'table "one": {found.tables["one"]}',)
    found = outlook(section, [TableConfig("another")])
    assert found.tables["one"] == f"3 items {lost}: the config has no such table"
    signed = TableConfig("one", ArraySpec((2,), np.dtype(np.float32)))
    found = outlook(section, [signed])
    reason = "its items were stored without a signature, the config has one"
    assert (found.tables["one"], found.refusal) == (f"empty, 3 items {lost}: {reason}", "")
    refusing = msgspec.structs.replace(section, unfit_tables="refuse")
    found = outlook(refusing, [signed, TableConfig("two")])
    assert found.starts_from == "nothing: the start would be refused"
    assert found.tables == {"one": f"refused: {reason}", "two": "not started, because the start is refused"}
    assert "set checkpoints.unfit_tables to set_aside" in found.refusal
    assert outlook(refusing, [TableConfig("one")]).refusal == ""


def remembers(folder: Path, *numbers: int) -> None:
    """The folder's history has these checkpoints."""
    rows = tuple(CheckpointRow(number, number, 1, 1.0, 100, number, "schedule") for number in numbers)
    HistoryFile(CheckpointStore(folder, 3)).write(History(checkpoints=rows))


def test_checkpoints_that_are_gone_are_no_new_folder(store: CheckpointStore, tmp_path: Path) -> None:
    folder, kept = store.folder, store.kept
    remembers(folder, 1, 2, 3)
    own = CheckpointSection(folder=str(folder))
    assert outlook(own, TABLES).notes == ()
    shutil.rmtree(kept / "000003")
    found = outlook(own, TABLES)
    assert (found.starts_from.split(",")[0], found.refusal) == ("checkpoint 2", "")
    assert found.notes[0].startswith(f"{folder}: checkpoint 3, written at 1970-01-01 00:00:03Z, is not there any more")
    checkpoint, _ = choose(store, start_empty=False)
    assert checkpoint is not None
    assert which(checkpoint) == 2
    copy = store.note_left_out(checkpoint, [LeftOut("one", 3, "why")])
    assert copy is not None
    copy.rename(copy.with_name("000003-left-out-20260102"))  # a copy is no generation to start from
    shutil.rmtree(kept)
    elsewhere = msgspec.structs.replace(own, start_from=str(write_checkpoint(tmp_path / "of-reverb", 7)))
    for section in (own, elsewhere):
        found = outlook(section, TABLES)
        assert found.starts_from == "nothing: the start would be refused"
        assert "checkpoint 3, written at" in found.refusal
        assert "--start-empty" in found.refusal
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"checkpoint 3, written at .*--start-empty"):
            choose(store, start_empty=False)
    assert choose(store, start_empty=True) == (None, ())
    allowed = outlook(msgspec.structs.replace(elsewhere, start_empty=True), TABLES)
    assert (allowed.starts_from.endswith("named by start_from"), allowed.refusal, len(allowed.notes)) == (True, "", 1)


def test_a_history_that_says_nothing_of_checkpoints_stops_no_start(store: CheckpointStore) -> None:
    shutil.rmtree(store.kept)
    remembers(store.folder)
    assert choose(store, start_empty=False) == (None, ())
    (store.folder / HISTORY).write_bytes(b"{")
    assert choose(store, start_empty=False) == (None, ())
    remembers(store.folder, 3)
    store.make_folders()
    (store.folder / "set_aside" / "000003-broken").mkdir()  # then a start was told to go on without it
    assert choose(store, start_empty=False) == (None, ())


def test_a_description_of_tables_that_is_none_is_a_refusal_with_its_file(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "of-reverb", 1)
    (path / "tables.tfrecord").write_bytes(record_file([b"\xff" * 9]))
    section = CheckpointSection(folder=str(tmp_path / "new"), start_from=str(path))
    assert f"{path}/tables.tfrecord: not the description of a table" in outlook(section, TABLES).refusal


def test_an_outlook_on_a_folder_in_use_is_a_refusal_and_tells_the_rest(store: CheckpointStore) -> None:
    lock, section = FolderLock(store.folder, 0.0), CheckpointSection(folder=str(store.folder))
    lock.take()
    assert lock.settle(lambda _: False)
    found = outlook(section, TABLES)
    assert f"another server uses it: process {os.getpid()} on host" in found.refusal
    assert (found.used_by in found.refusal, found.starts_from.split(",")[0]) == (True, "checkpoint 3")
    for path in store.paths():
        (path / DONE).unlink()
    used, unloadable = outlook(section, TABLES).refusal.splitlines()
    assert ("another server uses it" in used, "none of 3 loads" in unloadable) == (True, True)
    lock.release()
    assert outlook(section, TABLES).used_by == ""
