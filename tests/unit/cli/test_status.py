"""`status`: a line a table; with --verbose all that is known of each."""

from __future__ import annotations

from collections.abc import Callable

from rlds2reverb.testing import table_info
from tests.unit.transport.fake_reverb import FakeReverb

Run = Callable[..., tuple[int, str, str]]


def test_a_table_is_a_line(run: Run) -> None:
    with FakeReverb(table_info("replay", max_size=100_000), table_info("x\x1b[31m", max_size=7)) as server:
        server.limiters["replay"] = {"min_size_to_sample": 10}
        code, shown, said = run("status", "--server", server.address)
    assert (code, said) == (0, "")
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


def test_a_table_that_is_nearly_right_is_named(run: Run) -> None:
    with FakeReverb("replay") as server:
        code, _, said = run("sample", "--server", server.address, "--table", "replya")
    assert code == 2
    assert 'the server has no table "replya"; it has replay; did you mean "replay"?' in said
