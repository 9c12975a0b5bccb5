"""`status`: a line a table; with --verbose all that is known of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb.look.accounts import next_command
from rlds2reverb.specs import ArraySpec, with_view
from rlds2reverb.testing import table_info
from rlds2reverb.transport.http import CheckpointPart, KeptCheckpoint, ServerHttp, ServerPart, Status
from rlds2reverb.wire.messages import TableInfo
from tests.support.cli.top_status import table
from tests.support.fake_reverb import FakeReverb

SIGNED = with_view({"reward": ArraySpec((2,), np.dtype(np.float32))}, "n_step:n=5")

Run = Callable[..., tuple[int, str, str]]


def test_a_table_is_a_line(run: Run) -> None:
    with FakeReverb(table_info("replay", max_size=100_000), table_info("x\x1b[31m", max_size=7)) as server:
        server.limiters["replay"] = {"min_size_to_sample": 10}
        code, shown, said = run("status", "--server", server.address)
    assert (code, said) == (
        0,
        f"next:\n  rlds2reverb push SOURCE --server {server.address} --table replay\n",
    )
    head, replay, other = shown.splitlines()
    assert head.split() == ["TABLE", "ITEMS", "EPISODES", "SAMPLER", "REMOVER", "VIEW", "WAITS"]
    assert replay.split()[:4] == ["replay", "0", "of", "100,000"]
    assert replay.endswith("  sampling waits for 10 more inserts")
    assert other.startswith("x\\x1b[31m  0 of 7 ")
    assert head.index("ITEMS") == replay.index("0 of 100,000") == other.index("0 of 7")


def test_each_server_has_a_line_below(run: Run) -> None:
    with FakeReverb("replay") as one, FakeReverb("replay") as other:
        _, shown, _ = run("status", "--server", f"{one.address},{other.address}")
        _, verbose, _ = run("status", "--verbose", "--server", f"{one.address},{other.address}")
    assert [line.split("  ")[0] for line in shown.splitlines()[:2]] == ["TABLE", "replay"]
    assert {line.split()[1] for line in shown.splitlines()[2:]} == {one.address, other.address}
    assert f"  on {one.address}" in verbose


def test_verbose_has_what_the_rate_limiter_lets_through_and_the_signature(run: Run) -> None:
    with FakeReverb("replay") as server:
        _, shown, _ = run("status", "--server", server.address, "--verbose")
    assert shown.startswith("replay\n  items ")
    assert 'inserts    table "replay": inserts may go on' in shown


def test_the_next_command_samples_a_table_that_has_items(run: Run) -> None:
    with FakeReverb("empty", "replay") as server:
        address = ("--server", server.address)
        assert run("push", "bundled:cartpole@train[:1]", *address, "--table", "replay")[0] == 0
        for verbose in ((), ("--verbose",)):
            _, shown, said = run("status", *address, *verbose)
            assert said == f"next:\n  rlds2reverb sample --server {server.address} --table replay\n"
            assert "next:" not in shown
        assert run("sample", *address, "--table", "replay")[0] == 0
        assert run("status", *address, "--json")[2] == ""
        assert run("status", *address, "--header", "token=secret")[2] == ""


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([table("a"), table("b", size=0)], "sample --server S --table a"),
        ([table("a", size=0, calls=(0, 0)), table("b")], "sample --server S --table b"),
        ([table("a", max_times_sampled=1)], "top --server S"),  # a sample would take an item
        ([table("b", size=0), table("a", size=0)], "push SOURCE --server S --table a"),
        ([table("a", signature=SIGNED)], "push SOURCE --server S --table a --view n_step:n=5"),
    ],
)
def test_what_comes_next_depends_on_the_tables(tables: list[TableInfo], words: str) -> None:
    tables = [replace(info, current_size=0) if info.signature else info for info in tables]
    assert next_command(tables, "S") == ["rlds2reverb", *words.split()]


def test_a_table_that_is_nearly_right_is_named(run: Run) -> None:
    with FakeReverb("replay") as server:
        code, _, said = run("sample", "--server", server.address, "--table", "replya")
    assert code == 2
    assert 'the server has no table "replya"; it has replay; did you mean "replay"?' in said


KEPT = [
    KeptCheckpoint(412, "000412", 1_795_000_000.0, 90.0, {"replay": 91_204}, 11_800_000, ["last", "daily"], True, ""),
    KeptCheckpoint(411, "000411", None, None, {}, None, [], False, "not a manifest"),
]


def test_the_kept_checkpoints_are_listed_without_a_server_of_grpc(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(kept: list[KeptCheckpoint] | None) -> None:
        checkpoints = CheckpointPart(None, None, 0, "", "", None, kept)
        status = Status(ServerPart("ready", "", 0.0, 0.0, 0), checkpoints, [])
        monkeypatch.setattr(ServerHttp, "status", lambda *_: status)

    monkeypatch.delenv("RLDS2REVERB_SERVER", raising=False)
    tell(KEPT)
    code, shown, _ = run("status", "--checkpoints")
    head, newest, older = shown.splitlines()
    assert (code, head.split()[:2]) == (0, ["CHECKPOINT", "WRITTEN"])
    assert newest.split("  ")[0] == "000412"
    assert "2026-11-18 11:06:40Z  1 min  replay 91,204  11.8 MB  last, daily" in newest
    assert older.endswith("until the next one  no: not a manifest")
    document: Any = json.loads(run("status", "--checkpoints", "--json")[1])
    assert [row["generation"] for row in document["checkpoints"]] == [412, 411]
    tell([])
    assert run("status", "--checkpoints")[1:] == ("", "the server has no checkpoint yet\n")
    tell(None)
    assert "older version" in run("status", "--checkpoints")[2]
    code, _, said = run("status")
    assert (code, "Missing option '--server'" in said) == (2, True)
