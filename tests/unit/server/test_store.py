"""Generations on made-up files: what is damaged or half done is never taken for a checkpoint."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server.choosing import ChosenCheckpoint, find_checkpoint
from replay_server.errors import CheckpointError
from replay_server.files import DONE, MANIFEST, RECORD_FILES, link_files, read_records
from replay_server.restore import choose
from replay_server.retention import Keep
from replay_server.store import LEFT_OUT, Checkpoint, CheckpointStore, LeftOut, read_checkpoint

from rlds2reverb.wire.schema import message_class
from tests.support.profiles import DEEP
from tests.support.raising import error_of, outcome_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

FILES = (*RECORD_FILES, DONE, MANIFEST)


def record_file(records: list[bytes]) -> bytes:
    """A file as Reverb writes it, with checksums that nobody looks at."""
    plain = b"".join(len(data).to_bytes(8, "little") + b"sum_" + data + b"sum_" for data in records)
    return zlib.compress(plain)


def contents(number: int) -> dict[str, list[bytes]]:
    """Records of a made-up checkpoint, different for every number: a table "one" with as many items, and any bytes."""
    rng = np.random.default_rng(number)
    made = {name: [rng.bytes(int(size)) for size in rng.integers(0, 50, 5)] for name in RECORD_FILES}
    limiter = message_class("RateLimiterCheckpoint")(insert_count=number, samples_per_insert=1.0)
    limiter.min_diff, limiter.max_diff = -sys.float_info.max, sys.float_info.max
    table = message_class("PriorityTableCheckpoint")(table_name="one", rate_limiter=limiter)
    return {**made, RECORD_FILES[0]: [table.SerializeToString()]}


def write_checkpoint(folder: Path, number: int) -> Path:
    """What Reverb would have written."""
    folder.mkdir(parents=True)
    for name, records in contents(number).items():
        (folder / name).write_bytes(record_file(records))
    (folder / DONE).touch()
    return folder


def add(store: CheckpointStore, number: int) -> Checkpoint:
    """A checkpoint of the made-up checkpoint `number`, as the server writes one."""
    path = write_checkpoint(store.reverb / f"2026-{number}", number)
    checkpoint = store.adopt(path, {"one": number}, 0.0)
    store.prune()
    return checkpoint


def opened(folder: Path, keep: int | Keep = 3) -> CheckpointStore:
    """As a server opens them at its start."""
    store = CheckpointStore(folder, keep)
    store.clean()
    return store


def newest_valid(store: CheckpointStore, start_empty: bool = False) -> tuple[Checkpoint | None, list[Any]]:
    """What a start loads, and (place, reason) of what it passes over."""
    checkpoint, unloaded = choose(store, start_empty)
    return checkpoint, [(skipped.path, skipped.reason) for skipped in unloaded]


def which(checkpoint: Checkpoint | None) -> int:
    """The number of the made-up checkpoint in a checkpoint, all of whose records must be right."""
    assert checkpoint is not None
    number = checkpoint.manifest.items["one"]
    for name, records in contents(number).items():
        assert list(read_records(checkpoint.folder / name)) == records
    return number


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return opened(tmp_path / "checkpoints")


def test_an_adopted_checkpoint_is_the_newest_and_has_left_the_folder_of_reverb(store: CheckpointStore) -> None:
    assert newest_valid(store) == (None, [])
    written = add(store, 7)
    assert (written.number, written.folder.name) == (1, "000001")
    assert list(store.reverb.iterdir()) == []
    assert newest_valid(store) == (written, [])
    assert which(written) == 7
    sizes = {name: (written.folder / name).stat().st_size for name in (*RECORD_FILES, DONE)}
    assert {name: entry.bytes for name, entry in written.manifest.files.items()} == sizes
    assert written.bytes == sum(sizes.values())
    assert add(store, 8).number == 2
    assert which(newest_valid(store)[0]) == 8


def test_checkpoints_beyond_those_to_keep_are_removed_oldest_first(store: CheckpointStore) -> None:
    for number in range(1, 6):
        add(store, number)
    assert [path.name for path in store.paths()] == ["000005", "000004", "000003"]
    assert store.prune() == []
    fewer = opened(store.folder, keep=1)
    assert [path.name for path in fewer.prune()] == ["000004", "000003"]
    assert [path.name for path in fewer.paths()] == ["000005"]


def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    store = opened(tmp_path)
    add(store, 1).folder.rename(tmp_path / "generations" / "999999")
    assert add(store, 2).folder.name == "1000000"
    assert which(newest_valid(store)[0]) == 2


def test_numbers_never_repeat(store: CheckpointStore) -> None:
    numbers = []
    for n in range(12):
        numbers.append(add(store, n).number)
        if n % 3 == 0:
            store.set_aside(store.paths()[0], "broken")
        if n % 4 == 0:
            store = opened(store.folder, keep=1)
        if n == 7:
            for path in store.paths():
                store.set_aside(path, "other")
    assert numbers == list(range(1, 13))


def truncate(path: Path, rng: np.random.Generator) -> bool:
    data = path.read_bytes()
    path.write_bytes(data[: rng.integers(0, max(1, len(data)))])
    return len(data) > 0


def flip(path: Path, rng: np.random.Generator) -> bool:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
    return len(data) > 0


def lengthen(path: Path, rng: np.random.Generator) -> bool:
    path.write_bytes(path.read_bytes() + rng.bytes(3))
    return True


def remove(path: Path, _: np.random.Generator) -> bool:
    path.unlink()
    return True


@pytest.mark.parametrize("damage", [truncate, flip, lengthen, remove])
@pytest.mark.parametrize("name", FILES)
def test_damage_to_any_file_costs_exactly_one_checkpoint(
    store: CheckpointStore, tmp_path: Path, name: str, damage: Callable[[Path, np.random.Generator], bool]
) -> None:
    add(store, 1)
    add(store, 2)
    for seed in range(12):
        folder = tmp_path / f"copy-{seed}"
        shutil.copytree(store.folder, folder)
        copy = opened(folder)
        newest = copy.paths()[0]
        if not damage(newest / name, np.random.default_rng(seed)):
            continue
        found, broken = newest_valid(copy)
        assert found is not None
        assert which(found) == 1
        [(path, reason)] = broken
        assert path == folder / "set_aside" / "000002-broken"
        assert str(newest) in reason
        assert path.is_dir()
        assert [entry.name for entry in copy.paths()] == ["000001"]
        assert add(copy, 3).number == 3


def test_every_bit_of_the_manifest_counts(store: CheckpointStore) -> None:
    """But those that change no value, such as the last digits of a time."""
    written = add(store, 1)
    path = written.folder / MANIFEST
    data = path.read_bytes()
    unnoticed = 0
    for place in range(0, len(data) * 8, 1 if DEEP else 9):  # every ninth is another one of nearly every byte
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = outcome_of(CheckpointError, lambda: read_checkpoint(written.folder))
        if isinstance(found, CheckpointError):
            assert str(written.folder) in str(found)
        else:
            assert found == written
            unnoticed += 1
    assert unnoticed < 8


def test_damage_to_all_leaves_none(store: CheckpointStore) -> None:
    for number in (1, 2, 3):
        flip(add(store, number).folder / "items.tfrecord", np.random.default_rng(number))
    before = [path.name for path in store.paths()]
    for _ in range(2):  # a supervisor tries again
        with pytest.raises(CheckpointError, match=r"none of 3 loads: .*000003/items\.tfrecord.*--start-empty"):
            newest_valid(store)
        assert [path.name for path in store.paths()] == before
    found, broken = newest_valid(store, start_empty=True)
    assert found is None
    assert [path.name for path, _ in broken] == ["000003-broken", "000002-broken", "000001-broken"]
    assert add(store, 4).number == 4


def test_a_file_among_the_checkpoints_is_set_aside(store: CheckpointStore) -> None:
    written = add(store, 1)
    (written.folder.parent / "000009").write_text("what is this")
    (written.folder.parent / "lost+found").mkdir()
    found, broken = newest_valid(store)
    assert (found, [path.name for path, _ in broken]) == (written, ["000009-broken"])


def test_nothing_set_aside_takes_the_place_of_another(store: CheckpointStore) -> None:
    for _ in range(3):
        store.set_aside(write_checkpoint(store.folder / "generations" / "000001", 1), "broken")
    names = sorted(path.name for path in (store.folder / "set_aside").iterdir())
    assert names == ["000001-broken", "000001-broken-2", "000001-broken-3"]


@pytest.mark.parametrize("can_link", [True, False])
def test_what_is_kept_for_good_outlives_its_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    if not can_link:
        monkeypatch.setattr(os, "link", refuse)
    first = add(store, 1)
    left_out = [LeftOut("one", 1, "why")]
    kept = store.note_left_out(first, left_out)
    assert kept is not None
    assert kept == store.note_left_out(first, left_out)
    for number in range(2, 7):
        add(store, number)
    assert not first.folder.exists()
    assert which(read_checkpoint(kept)) == 1
    assert store.clean() == []
    assert which(read_checkpoint(kept)) == 1
    assert CheckpointStore(store.folder, 3).left_out() == [LeftOut("one", 1, "why", str(kept))]


def test_the_newest_start_from_a_checkpoint_says_what_was_left_out_of_it(store: CheckpointStore) -> None:
    first, second = add(store, 1), add(store, 2)
    yesterday = store.note_left_out(first, [LeftOut("one", 1, "another signature")])
    assert yesterday is not None
    yesterday = yesterday.rename(yesterday.with_name("000001-left-out-20200102"))
    kept = store.note_left_out(second, [LeftOut("one", 2, "smaller"), LeftOut("two", 3, "gone")])
    assert kept is not None
    assert [(notice.table, notice.items, Path(notice.folder)) for notice in store.left_out()] == [
        ("one", 2, kept),
        ("two", 3, kept),
        ("one", 1, yesterday),
    ]
    assert store.note_left_out(first, []) is None  # now it was restored as a whole
    assert {notice.folder for notice in store.left_out()} == {str(kept)}
    assert which(read_checkpoint(yesterday)) == 1  # and nothing is deleted
    (kept / LEFT_OUT).write_bytes(b"[{")
    [damaged] = store.left_out()
    assert (damaged.table, damaged.items, damaged.folder) == ("", 0, str(kept))
    shutil.rmtree(kept)
    assert store.left_out() == []


def refuse(*_: Any, **__: Any) -> None:
    raise OSError("not here")


def test_links_to_a_checkpoint_are_files_of_their_own_names(store: CheckpointStore, tmp_path: Path) -> None:
    checkpoint = add(store, 1)
    link_files(checkpoint.folder, tmp_path / "staged")
    for path in (tmp_path / "staged").iterdir():
        path.unlink()
    assert which(checkpoint) == 1


def test_what_was_never_finished_is_removed_at_the_start(store: CheckpointStore) -> None:
    checkpoint = add(store, 1)
    half = write_checkpoint(store.reverb / "2026-half", 2)
    shutil.copytree(checkpoint.folder, checkpoint.folder.parent / "000002.partial")
    (store.reverb / "stray").write_text("a file")
    removed = store.clean()
    assert sorted(path.name for path in removed) == ["000002.partial", half.name, "stray"]
    assert not any(path.exists() for path in removed)
    assert newest_valid(store) == (checkpoint, [])
    assert list(store.reverb.iterdir()) == []


@pytest.mark.parametrize("name", [*RECORD_FILES, DONE])
def test_an_incomplete_checkpoint_is_refused_and_does_not_stand_in_the_way_of_the_next(
    store: CheckpointStore, name: str
) -> None:
    add(store, 1)
    for attempt in range(3):
        path = write_checkpoint(store.reverb / f"2026-bad-{attempt}", 2)
        (path / name).unlink()
        with pytest.raises(CheckpointError, match=re.escape(name)):
            store.adopt(path, {}, 0.0)
        assert which(newest_valid(store)[0]) == 1
    assert add(store, 3).number == 2
    assert which(newest_valid(store)[0]) == 3


@given(st.integers(0, 2**32 - 1))
def test_a_damaged_record_file_is_never_adopted(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = np.random.default_rng(seed)
    store = opened(tmp_path_factory.mktemp("damaged"))
    path = write_checkpoint(store.reverb / "2026", 5)
    damaged = path / RECORD_FILES[rng.integers(3)]
    rng.choice(np.array([flip, truncate]))(damaged, rng)
    error = error_of(CheckpointError, lambda: store.adopt(path, {"one": 5}, 0.0))
    if error is not None:
        assert damaged.name in str(error)
    else:
        # An empty file is an empty stream, and two bits of zlib's head (its window and level) change nothing.
        assert damaged.stat().st_size == 0 or list(read_records(damaged)) == contents(5)[damaged.name]


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written to .*set checkpoints\.folder"):
        CheckpointStore(tmp_path / "file", 3)


def test_a_checkpoint_of_another_experiment_is_found_in_any_of_its_forms(store: CheckpointStore) -> None:
    add(store, 1)
    newest = add(store, 2)
    of_reverb = write_checkpoint(store.folder.parent / "2026-01", 3)
    assert find_checkpoint(store.folder) == find_checkpoint(newest.folder) == ChosenCheckpoint(newest.folder)
    assert find_checkpoint(of_reverb) == ChosenCheckpoint(of_reverb)
    truncate(newest.folder / "items.tfrecord", np.random.default_rng(0))
    found = find_checkpoint(store.folder)
    assert (found.folder.name, [checkpoint.path for checkpoint in found.unloaded]) == ("000001", [newest.folder])
    with pytest.raises(CheckpointError, match=r"items\.tfrecord"):
        find_checkpoint(newest.folder)
    (of_reverb / "chunks.tfrecord").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"chunks\.tfrecord"):
        find_checkpoint(of_reverb)
    with pytest.raises(CheckpointError, match="expected a checkpoint folder"):
        find_checkpoint(store.folder.parent)


class KilledError(BaseException):
    """Stands for SIGKILL: nothing handles it."""


CALLS = (
    "open",
    "rename",
    "replace",
    "mkdir",
    "rmdir",
    "unlink",
    "remove",
    "fsync",
    "link",
    "scandir",
    "listdir",
    "stat",
)


class Killer:
    """Counts the calls of the main thread to the file system, and kills at the n-th, before or after it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> None:
        self.calls, self._at, self._after = 0, at, after
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        # pathlib opens with io.open and writes through it.
        monkeypatch.setattr("io.open", self._counted(open))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():  # others close what earlier tests left
                return call(*args, **kwargs)
            self.calls += 1
            if self.calls == self._at and not self._after:
                raise KilledError
            result = call(*args, **kwargs)
            if self.calls >= self._at:  # nothing runs after a kill, no clean-up either
                if hasattr(result, "close"):
                    result.close()
                raise KilledError
            return result

        return counted


KILLS = pytest.mark.parametrize("after", [True, False] if DEEP else [True], ids=["after", "before"][: 2 if DEEP else 1])
"""The disk before a call is that after the one before it, but for what a file got meanwhile that was open: both are for deep runs."""


def killed_at(monkeypatch: pytest.MonkeyPatch, at: int, after: bool, work: Callable[[], Any]) -> bool:
    """Whether the work was killed at its n-th call; False when it had come to its end before."""
    with monkeypatch.context() as patched:
        Killer(patched, at, after)
        try:
            work()
        except KilledError:
            return True
    return False


@KILLS
def test_a_kill_at_any_step_of_a_checkpoint_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    seen, at, killed = set(), 0, True
    while killed:
        at += 1
        store = opened(tmp_path / f"{at}", keep=2)
        for number in (1, 2):
            add(store, number)
        path = write_checkpoint(store.reverb / "2026", 3)

        def write(store: CheckpointStore = store, path: Path = path) -> None:
            store.adopt(path, {"one": 3}, 0.0)
            store.prune()

        killed = killed_at(monkeypatch, at, after, write)
        again = opened(store.folder, keep=2)
        found, broken = newest_valid(again)
        assert found is not None
        assert broken == []
        assert (which(found), found.number) in ((2, 2), (3, 3))
        seen.add(which(found))
        following = add(again, 4)
        assert following.number == found.number + 1
        assert which(newest_valid(again)[0]) == 4
        assert [which(read_checkpoint(path)) for path in again.paths()] == [4, which(found)]
        shutil.rmtree(store.folder)
    assert seen == {2, 3}
    assert at > 20


@KILLS
def test_a_kill_at_any_step_of_a_start_costs_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    at, killed = 0, True
    while killed:
        at += 1
        folder = tmp_path / f"{at}"
        store = opened(folder)
        for number in (1, 2, 3):
            add(store, number)
        lengthen(store.paths()[0] / "items.tfrecord", np.random.default_rng(0))
        write_checkpoint(store.reverb / "2026", 4)
        shutil.copytree(store.paths()[1], folder / "generations" / "000004.partial")

        def start(folder: Path = folder) -> None:
            starting = opened(folder)
            checkpoint, _ = newest_valid(starting)
            assert checkpoint is not None
            starting.note_left_out(checkpoint, [LeftOut("one", 1, "why")])
            link_files(checkpoint.folder, starting.reverb / "0-restored")

        killed = killed_at(monkeypatch, at, after, start)
        again = opened(folder)
        found, _ = newest_valid(again)
        assert found is not None
        assert (which(found), found.number) == (2, 2)
        assert (folder / "set_aside" / "000003-broken").is_dir()
        kept = again.note_left_out(found, [LeftOut("one", 1, "why")])
        assert kept is not None
        assert which(read_checkpoint(kept)) == 2
        assert add(again, 5).number == 4
        shutil.rmtree(folder)
    assert at > 20
