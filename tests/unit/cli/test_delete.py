"""`delete`: what it says, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import grpc
import pytest

from tests.support.fake_reverb import FakeReverb
from tests.support.servers.own import OWN_TABLES

Run = Callable[..., tuple[int, str, str]]
SOURCE = "bundled:cartpole@train[:4]"


@pytest.fixture
def server(run: Run) -> Iterator[FakeReverb]:
    with FakeReverb("replay", *OWN_TABLES) as running:
        assert run("push", SOURCE, "--server", running.address, "--table", "replay")[0] == 0
        yield running


def test_a_source_says_which_episodes(run: Run, server: FakeReverb) -> None:
    address = ("--server", server.address)
    before = len(server.tables["replay"].items)
    code, shown, said = run("delete", f"{SOURCE[:-4]}[1:3]", *address, "--table", "replay", "--dry-run", "--quiet")
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (code, said, fields["episodes"], fields["items"][-8:]) == (0, "nothing was changed\n", "2", " at most")
    assert len(server.tables["replay"].items) == before
    name = fields["names"].split(", ")[0]
    code, shown, _ = run("delete", *address, "--episode", name.removeprefix("content:"), "--json")
    report = json.loads(shown)
    assert (code, report["names"], report["dry_run"]) == (0, [name], False)
    assert len(server.tables["replay"].items) == before - report["items"]["replay"]
    assert (
        run("push", SOURCE, *address, "--table", "replay")[1].count(
            "deleted    1 episode deleted from the tables before, left out"
        )
        == 1
    )
    code, shown, said = run("delete", *address, "--episode", name, "--restore", "--no-checkpoint")
    assert (code, said) == (0, "the same push stores them anew\n")
    assert run("push", SOURCE, *address, "--table", "replay")[0] == 0
    assert len(server.tables["replay"].items) == before


def test_what_falls_short_is_said(run: Run, server: FakeReverb) -> None:
    server.checkpoint_codes.append(grpc.StatusCode.FAILED_PRECONDITION)  # as a server without checkpoints answers
    code, shown, said = run("delete", "--server", server.address, "--episode", "x")  # no such name
    assert (code, said) == (0, "it holds from the next checkpoint on: a crash before that undoes it\n")
    assert "1 name that no push has listed as stored" in shown
    assert f"no checkpoint  {server.address}: TransportError" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which episodes?"),
        (("--limit", "3"), "options that say how a source is read need SOURCE"),
        (("--identity", "columns=action"), "options that say how a source is read need SOURCE"),
        ((SOURCE,), "name the tables that the push has filled"),
        (("--push", "x"), "no episode was chosen"),
        (("--push", "x", "--dataset", ""), '--dataset "": expected a name'),
        (("--episode", ""), '--episode "": expected a name'),
        (("--episode", "x", "--table", "replai"), 'did you mean "replay"?'),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, server: FakeReverb, arguments: tuple[str, ...], message: str) -> None:
    code, _, said = run("delete", *arguments, "--server", server.address)
    assert code == 2
    assert message in said
