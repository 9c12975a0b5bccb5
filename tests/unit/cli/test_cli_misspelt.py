"""A misspelt option is told with what it was meant to be: every option of every command, and of the Python functions that take options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

from rlds2reverb import cli, convert, inspect, local
from rlds2reverb.client import Client
from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.push.options import PushOptions
from rlds2reverb.testing import MemoryServer, MemoryTransport
from rlds2reverb.views import VIEWS, view_from
from tests.support.learner.tables import once


def swapped(word: str) -> str:
    """The word with two letters in the middle in the other order."""
    at = next((at for at in range(len(word) // 2, len(word) - 1) if word[at] != word[at + 1]), None)
    if at is None:
        at = next(at for at in range(len(word) - 1) if word[at] != word[at + 1])
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def options_of_commands() -> Iterator[tuple[str, str]]:
    for name in cli.COMMANDS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--") and len(option) > 6:
                    yield name, option


@pytest.mark.parametrize(("command", "option"), [*options_of_commands()])
def test_an_option_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["rlds2reverb", command, swapped(option)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert f"No such option '{swapped(option)}'; did you mean \"{option}\"? See " in capsys.readouterr().err


def test_letters_that_are_shared_are_no_suggestion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, meant in (("--tabel", '; did you mean "--table"?'), ("--zzzzzz", "")):
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "push", "bundled:cartpole", given, "x"])
        with pytest.raises(SystemExit):
            cli.main()
        assert f"No such option '{given}'{meant}" in capsys.readouterr().err


# Of any type: mypy would find the misspelt arguments.
untyped_convert: Any = convert
untyped_inspect: Any = inspect
untyped_local: Any = local


def client() -> Any:
    return Client(MemoryTransport(MemoryServer(once())))


@pytest.mark.parametrize(
    ("call", "error", "meant"),
    [
        (lambda: client().sample("replay", batchsize=3), TypeError, "batch_size"),
        (lambda: client().push("bundled:cartpole", "replay", alow_eviction=True), TypeError, "allow_eviction"),
        (lambda: client().plan("bundled:cartpole", "replay", veiw="two_step"), TypeError, "view"),
        (lambda: client().writer("replay", max_waiting_bytes=3), TypeError, "most_waiting_bytes"),
        (lambda: untyped_local("bundled:cartpole", batchsize=3), ConfigError, "batch_size"),
        (lambda: untyped_convert("bundled:cartpole", "tfds:/nowhere", verifyy=True), ConfigError, "verify"),
        (lambda: untyped_inspect("bundled:cartpole", last_rewards="shift"), ConfigError, "last_reward"),
        (lambda: SampleOptions(ragged="padd"), ConfigError, "pad"),
        (lambda: Conventions(last_reward="shfit"), ConfigError, "shift"),
        (lambda: PushOptions("replay", duplicates="onec"), ConfigError, "once"),
        (lambda: PushOptions("replay", on_invalid="skp"), ConfigError, "skip"),
    ],
)
def test_an_argument_of_a_function(call: Callable[[], Any], error: type[Exception], meant: str) -> None:
    with pytest.raises(error, match=rf'; did you mean "{meant}"\?'):
        call()


@pytest.mark.parametrize("field", ["shift", "data_col", "batch_repeat_value"])
def test_a_field_of_a_requirement(field: str) -> None:
    with pytest.raises(ViewError, match=rf'unknown {swapped(field)}; .*; did you mean "{field}"\?'):
        view_from({"view": "requirements", "requirements": {"x": {swapped(field): 1}}})


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_an_option_of_a_view(name: str) -> None:
    with pytest.raises(ViewError, match=r'; did you mean "priority"\?'):
        view_from({"view": name, "priorty": 1.0})
