"""The exit code says whose fault it is: the same mistake in a source, in a table and in the command line ends in three codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlds2reverb import cli
from rlds2reverb.cli import inspect, push
from rlds2reverb.episode import Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.wire.codec import encode_signature
from rlds2reverb.wire.schema import message_class
from tests.support.fake_reverb import FakeReverb

LEAF = ArraySpec((), np.dtype(np.float32))
TWO_OF_ONE_NAME = {"a": {"b": LEAF}, "a/b": LEAF}

Run = Callable[..., tuple[int, str]]


class Source(EpisodeList):
    """An episode that a push takes, and a spec that says something else of it."""

    def __init__(self, extra: Nest) -> None:
        at = np.arange(3)
        flags = {"is_first": at == 0, "is_last": at == 2, "is_terminal": at == 2}
        super().__init__([Episode({"observation": at, "action": at, **flags})], "mine")
        self._extra = extra

    def spec(self) -> Nest:
        return {**super().spec(), **self._extra}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process: its exit code, and what it says on stderr."""

    def run(*arguments: str, source: Nest | None = None) -> tuple[int, str]:
        for command in (inspect, push):
            monkeypatch.setattr(command, "open_dataset", lambda _: Source(source or {}))
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr().err

    return run


@pytest.fixture
def server() -> Any:
    """A server with a table whose signature has two columns of one name."""
    signature = encode_signature(TWO_OF_ONE_NAME)
    table = {"name": "replay", "max_size": 100, "signature": signature}
    with FakeReverb() as fake:
        fake.info_bytes = message_class("ServerInfoResponse")(
            tables_state_id={"low": 7}, table_info=[table]
        ).SerializeToString()
        yield fake


PUSH = ("push", "mine", "--table", "replay", "--server")


def test_a_source_with_two_columns_of_one_name_is_the_sources_fault(run: Run, server: FakeReverb) -> None:
    said = 'error: mine: two columns are both named "a/b": a key holds a "/"; rename it in the dataset\n'
    for arguments in ((*PUSH, server.address), ("inspect", "mine")):
        code, text = run(*arguments, source=TWO_OF_ONE_NAME)
        assert (code, text) == (3, f"rlds2reverb: {said}")


def test_a_table_with_two_columns_of_one_name_is_the_tables_fault(run: Run, server: FakeReverb) -> None:
    code, text = run(*PUSH, server.address)
    assert code == 4
    assert 'error: table "replay": signature and items differ: table: two columns are both named "a/b"' in text
    assert "create the table with the items' signature" in text


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_the_status_of_such_a_table_names_it(run: Run, server: FakeReverb, json: tuple[str, ...]) -> None:
    code, text = run("status", "--server", server.address, *json)
    assert code == 4
    assert 'error: table "replay": its signature: two columns are both named "a/b": a key holds a "/"; create' in text


def test_a_command_line_that_makes_no_sense_has_a_code_of_its_own(run: Run, server: FakeReverb) -> None:
    assert run(*PUSH, server.address, "--view", "pairs")[0] == 2


def test_the_codes_that_are_documented_are_those_that_are_used() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", cli.__doc__ or "", re.MULTILINE)}
    assert documented == {0, *(code for _, code in cli.EXIT_CODES), cli.EXIT_BUG, cli.EXIT_INTERRUPTED}
