"""`journal`: a line an entry; the same as JSON, and as a file for SQL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlds2reverb.servers.own_tables import SIGNATURE
from rlds2reverb.testing import table_info
from rlds2reverb.wire.messages import JOURNAL
from tests.support.fake_reverb import FakeReverb

Run = Callable[..., tuple[int, str, str]]
OWN = table_info(JOURNAL, SIGNATURE, 1 << 20)


def push(run: Run, server: FakeReverb, *options: str) -> None:
    assert run("push", "bundled:cartpole@train[:2]", "--server", server.address, "--table", "replay", *options)[0] == 0


def test_every_push_is_a_line(run: Run) -> None:
    with FakeReverb("replay", OWN) as server:
        code, shown, said = run("journal", "--server", server.address)
        assert (code, shown, said) == (0, "", "no entries\n")
        push(run, server, "--note", "first")
        push(run, server)
        code, shown, said = run("journal", "--server", server.address)
        assert (code, said) == (0, "")
        head, first, second = shown.splitlines()
        assert head.split() == ["ID", "WHEN", "WHAT", "STATE", "TABLES", "EPISODES", "ITEMS", "NEW", "WHO", "FROM"]
        assert " (first) " in first
        assert [line.split()[4:7] for line in (first, second)] == [["push", "done", "replay"]] * 2
        assert (
            run("journal", "--server", server.address, "--last", "1")[1].splitlines()[1].split()[4:]
            == second.split()[4:]
        )
        assert run("journal", "--server", server.address, "--table", "other")[2] == "no entries\n"
        assert "rlds2reverb.journal" not in run("status", "--server", server.address)[1]


def test_json_has_all_that_is_known(run: Run) -> None:
    with FakeReverb("replay", OWN) as server:
        push(run, server, "--on-invalid", "skip")
        code, shown, _ = run("journal", "--server", server.address, "--json")
    (entry,) = json.loads(shown)["entries"]
    assert (code, entry["state"], entry["server"], entry["episodes"]) == (0, "done", server.address, 2)
    assert entry["options"] == {"on_invalid": "skip"}


def test_a_server_without_a_journal_is_said(run: Run) -> None:
    with FakeReverb("replay") as server:
        code, shown, said = run("journal", "--server", server.address, "--json")
    assert (code, json.loads(shown)) == (0, {"entries": []})
    assert said == f"server {server.address} keeps no journal: that is done by `rlds2reverb serve` of this version\n"


def test_a_file_for_sql_has_a_row_an_entry(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "journal.parquet"
    with FakeReverb("replay", OWN) as server:
        push(run, server)
        code, shown, said = run("journal", "--server", server.address, "--parquet", str(path))
        assert (code, shown, said) == (0, "", f"1 entry in {path}\n")
        (row,) = parquet.read_table(path).to_pylist()
        assert (row["kind"], row["tables"], row["items"], row["state"]) == ("push", ["replay"], 53, "done")
        assert row["ended"] >= row["began"]
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        for refused in (pipe, tmp_path / "missing" / "x"):
            # Port 1: it is refused before a server is asked.
            code, _, said = run("journal", "--server", "localhost:1", "--parquet", str(refused))
            assert (code, f"--parquet {refused}: no file can be written there" in said) == (6, True)
        assert sorted(tmp_path.iterdir()) == [path, pipe]
        assert pipe.is_fifo()
