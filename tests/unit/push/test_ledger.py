"""The ledger: what is recorded survives a kill, and what is not proof or not ours is not taken for it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import LedgerError
from rlds2reverb.push import ledger as ledgers
from rlds2reverb.push.ledger import SqliteLedger, check_ledger_file
from tests.support.disks import fill, small_disk_at

EPISODES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)

RECORD_AND_DIE = """
import os, sys
from rlds2reverb.push.ledger import SqliteLedger

ledger = SqliteLedger(sys.argv[1], "push", "server").__enter__()
for number in range(int(sys.argv[2])):
    ledger.record([(f"episode {number}", 3), (f"twin {number}", 1)])
os.kill(os.getpid(), 9)
"""


def rows_of(path: Path) -> list[tuple[str, str, str, int]]:
    database = sqlite3.connect(path)
    try:
        return sorted(database.execute("SELECT push, episode, server, items FROM confirmed"))
    finally:
        database.close()


def test_a_new_ledger_is_empty(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db", "push", "server") as ledger:
        assert len(ledger) == 0
        assert ledger.outdated == 0
        assert "episode" not in ledger.confirmed


def test_what_was_recorded_is_there_again(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db", "push", "server") as ledger:
        ledger.record([("a", 3), ("b", 0)])
        assert len(ledger) == 2
    with SqliteLedger(str(tmp_path / "ledger.db"), "push", "server") as ledger:
        assert "a" in ledger.confirmed
        assert "b" in ledger.confirmed
        assert "c" not in ledger.confirmed
        assert (len(ledger), ledger.outdated) == (2, 0)
    assert rows_of(tmp_path / "ledger.db") == [("push", "a", "server", 3), ("push", "b", "server", 0)]


@settings(max_examples=15)
@given(st.lists(st.lists(st.tuples(EPISODES, st.integers(0, 1000)), max_size=4), max_size=6))
def test_any_batches_add_up(tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[str, int]]]) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    expected = {episode: items for batch in batches for episode, items in batch}
    for batch in batches:
        with SqliteLedger(path, "push", "server") as ledger:
            ledger.record(iter(batch))
    with SqliteLedger(path, "push", "server") as ledger:
        assert len(ledger) == len(expected)
        assert all(episode in ledger.confirmed for episode, items in expected.items())
    assert {row[1]: row[3] for row in rows_of(path)} == expected


def test_what_was_recorded_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    killed = subprocess.run([sys.executable, "-c", RECORD_AND_DIE, str(path), "7"], capture_output=True, timeout=60)
    assert killed.returncode == -9, killed.stderr
    with SqliteLedger(path, "push", "server") as ledger:
        assert len(ledger) == 14
        assert "twin 6" in ledger.confirmed


def test_a_batch_is_recorded_wholly_or_not_at_all(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[str, Any]]:
        yield "b", 1
        yield "c", object()

    with SqliteLedger(tmp_path / "ledger.db", "push", "server") as ledger:
        ledger.record([("a", 1)])
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.record(broken())
        assert len(ledger) == 1
    assert [row[1] for row in rows_of(tmp_path / "ledger.db")] == ["a"]


def test_rows_of_another_server_process_are_no_proof(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db", "push", "before") as ledger:
        ledger.record([("a", 3), ("b", 3)])
    with SqliteLedger(tmp_path / "ledger.db", "push", "after") as ledger:
        assert "a" not in ledger.confirmed
        assert (len(ledger), ledger.outdated) == (0, 2)
        ledger.record([("a", 4)])
    with SqliteLedger(tmp_path / "ledger.db", "push", "after") as ledger:
        assert (len(ledger), ledger.outdated) == (1, 1)
    assert rows_of(tmp_path / "ledger.db") == [("push", "a", "after", 4), ("push", "b", "before", 3)]


def test_rows_of_another_process_say_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path, "push", "before", "a:8000") as ledger:
        ledger.record([("a", 3)])
    with SqliteLedger(path, "push", "bare") as ledger:
        ledger.record([("b", 3)])
    with (
        SqliteLedger(path, "push", "after", "a:8000") as here,
        SqliteLedger(path, "push", "after", "b:8000") as elsewhere,
    ):
        assert ["a" in ledger.here for ledger in (here, elsewhere)] == [True, False]
        assert "a" not in here.confirmed
        assert "b" not in here.here
    with SqliteLedger(path, "push", "before", "other:8000") as moved, SqliteLedger(path, "push", "", "a:8000") as away:
        assert "a" in moved.confirmed  # the process is the same, by whatever name
        assert "a" not in moved.here
        assert "a" in away.here
    with SqliteLedger(path, "push", "bare", "") as ledger:
        assert "b" in ledger.confirmed
        assert "a" not in ledger.here


def test_pushes_share_a_file_without_seeing_each_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path, "one", "server") as one, SqliteLedger(path, "two", "server") as two:
        one.record([("a", 1)])
        two.record([("b", 1)])
        one.record([("c", 1)])
    with SqliteLedger(path, "one", "server") as one, SqliteLedger(path, "two", "server") as two:
        assert [name in one.confirmed for name in "abc"] == [True, False, True]
        assert [name in two.confirmed for name in "abc"] == [False, True, False]
        assert (one.outdated, two.outdated) == (0, 0)


def test_ledgers_opened_at_once_on_a_new_file_all_record(tmp_path: Path) -> None:
    path, start, failures = tmp_path / "ledger.db", threading.Barrier(4), []

    def work(name: str) -> None:
        try:
            start.wait(30)
            with SqliteLedger(path, name, "server") as ledger:
                for number in range(10):
                    ledger.record([(f"{number}", 1)])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"push {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(rows_of(path)) == 40


def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    with SqliteLedger(path, "push", "server") as ledger:
        ledger.record([])
        ledger.record([("a", 1)])
    assert len(rows_of(path)) == 1


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE confirmed (x)")
    database.commit()
    database.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"ledger .*other\.db: another program's file"):
        SqliteLedger(path, "push", "server")
    assert path.read_bytes() == before


def test_a_ledger_is_marked_as_ours(tmp_path: Path) -> None:
    SqliteLedger(tmp_path / "ledger.db", "push", "server").__exit__()
    database = sqlite3.connect(tmp_path / "ledger.db")
    marks = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    database.close()
    assert marks == [int.from_bytes(b"RL2R", "big"), 2]


def test_a_ledger_of_another_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    SqliteLedger(path, "push", "server").__exit__()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 1")
    database.close()
    with pytest.raises(
        LedgerError, match=r"of version 1, from before a release; .* reads version 2; name another file"
    ):
        SqliteLedger(path, "push", "server")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, but long enough to be looked at as one " * 40)
    with pytest.raises(LedgerError, match=r"notes\.txt: cannot be used \(.*not a database.*\); name another file"):
        SqliteLedger(path, "push", "server")


@pytest.mark.parametrize("path", ["", "no/such/folder/ledger.db"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(LedgerError, match=r"cannot be used \(.*unable to open.*\); name another file"):
        SqliteLedger(tmp_path / path, "push", "server")


def test_a_ledger_that_cannot_be_written_any_more_says_so(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db", "push", "server")
    ledger.__exit__()
    with pytest.raises(LedgerError, match=r"ledger\.db: cannot be written"):
        ledger.record([("a", 1)])
    assert len(ledger) == 0


def test_a_full_disk_says_what_is_not_in_the_ledger_and_how_to_go_on(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "disk", 1 << 20) as disk:
        with SqliteLedger(disk / "ledger.db", "push", "server") as ledger:
            ledger.record([("a", 1)])
            fill(disk, 0)
            with pytest.raises(LedgerError, match=r"disk is full\): 20,000 episodes .* are stored.* Make room"):
                ledger.record([(f"b{number}", 1) for number in range(20_000)])
            assert len(ledger) == 1
        fill(disk, 0)  # its log is gone
        with pytest.raises(LedgerError, match="make room where the disk is full"):
            SqliteLedger(disk / "new.db", "push", "server")
        fill(disk, 1 << 20)
        with SqliteLedger(disk / "ledger.db", "push", "server") as ledger:
            assert "a" in ledger.confirmed
            assert len(ledger) == 1


@pytest.mark.parametrize("how", ["folder", "file", "replaced", "moved"])
def test_a_ledger_that_is_removed_while_a_push_runs_is_told(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "ledger.db"
    with SqliteLedger(path, "push", "server") as ledger:
        ledger.record([("a", 1)])
        if how == "folder":
            shutil.rmtree(folder)
        elif how == "moved":
            folder.rename(tmp_path / "elsewhere")
        else:
            path.unlink()
        if how == "replaced":
            path.write_bytes(b"")
        with pytest.raises(
            LedgerError, match=r"ledger\.db: was removed or replaced while the push was running.*adds nothing"
        ):
            ledger.record([("b", 1)])


def test_a_ledger_in_the_working_folder_stays_the_same_file_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with SqliteLedger("ledger.db", "push", "server") as ledger:
        (tmp_path / "other").mkdir()
        os.chdir("other")
        ledger.record([("a", 1)])
    assert [row[1] for row in rows_of(tmp_path / "ledger.db")] == ["a"]


def test_a_locked_ledger_says_who_may_have_locked_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "_WAIT_SECONDS", 0.0)
    path = tmp_path / "ledger.db"
    with SqliteLedger(path, "push", "server") as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            LedgerError, match=r"is locked: another process has held it .*, or its file system has no locks"
        ):
            ledger.record([("a", 1)])
        with pytest.raises(LedgerError, match="another process has held it"):
            SqliteLedger(path, "push", "server")
        other.close()
        check_ledger_file(path)
        ledger.record([("a", 1)])
