"""Client, command line and documentation have the same options: names, defaults and help."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import click
import pytest

from rlds2reverb import Client
from rlds2reverb.cli import cli
from rlds2reverb.errors import ConfigError
from rlds2reverb.keywords import command_options
from rlds2reverb.prepare.preparation import Output
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import Tuning
from rlds2reverb.testing import MemoryTransport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views.trajectory import two_step
from tests.support.push.in_memory import Server

DOCS = Path(__file__).parents[3] / "docs"
OPTIONS = command_options(PushOptions)


def cli_options(command: str) -> dict[str, click.Option]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    return {param.name: param for param in found.params if isinstance(param, click.Option) and param.name}


def test_every_option_of_a_push_is_told() -> None:
    ours = set(inspect.signature(PushOptions).parameters) - {"table", "view", "on_progress"}
    assert set(OPTIONS) == ours
    assert all(command.help.endswith(".") for _, command in OPTIONS.values())


@pytest.mark.parametrize("name", ["push", "plan"])
def test_the_client_takes_them_by_name_with_these_defaults_and_tells_their_help(name: str) -> None:
    method = getattr(Client, name)
    taken = inspect.signature(method).parameters
    assert list(taken)[:4] == ["self", "source", "table", "view"]
    for option, command in OPTIONS.values():
        assert taken[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert taken[option.name].default == option.default
        assert f"  {option.name}: {command.help} Default {option.default!r}.\n" in f"{method.__doc__}\n"


@pytest.mark.parametrize("name", OPTIONS)
def test_the_command_line_has_the_same_name_default_and_help(name: str) -> None:
    option, (field, command) = cli_options("push")[name], OPTIONS[name]
    assert option.opts == [f"--{name.replace('_', '-')}"]
    assert parsed()[name] == field.default
    assert (option.help or "").startswith(command.help.removesuffix("."))
    if command.choices:
        assert isinstance(option.type, click.Choice)
        assert tuple(option.type.choices) == command.choices


def parsed() -> dict[str, object]:
    """What the command is called with when no option is typed."""
    command = cli.get_command(click.Context(cli), "push")
    assert command is not None
    return command.make_context("push", ["source", "--server", "localhost:1"]).params


def test_the_command_line_has_no_others_but_those_that_say_what_goes_where() -> None:
    others = set(cli_options("push")) - set(OPTIONS)
    where = {"table", "view", "view_config", "into", "limit", "dry_run", "as_json", "quiet"}
    assert others - where == {"server", "allow_missing", "tls_ca", "tls_cert", "tls_key", "header", "timeout", "wait"}


@pytest.mark.parametrize("name", ["allow", "strict"])
def test_validate_judges_by_the_same_options(name: str) -> None:
    assert cli_options("validate")[name].to_info_dict() == cli_options("push")[name].to_info_dict()


def test_the_documentation_lists_them() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(--[\w-]+)` \| `(.*?)` \| (.*) \|$", (DOCS / "cli.md").read_text(), re.MULTILINE
    )
    assert [(name, option, default) for name, option, default, _ in rows] == [
        (name, cli_options("push")[name].opts[0], repr(option.default)) for name, (option, _) in OPTIONS.items()
    ]
    assert all(text.startswith(OPTIONS[name][1].help) for name, _, _, text in rows)


def test_an_unknown_option_is_refused_by_name() -> None:
    client: Any = Client(MemoryTransport(Server()))
    with pytest.raises(
        TypeError, match=r"^Client\.push: got an unexpected keyword argument 'ledgr'; did you mean \"ledger\"\?$"
    ):
        client.push([], "table", ledgr="l.db")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'table'"):
        client.plan([])


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), True, "300", None])
def test_how_long_a_push_may_stall_is_a_positive_number(seconds: Any) -> None:
    with pytest.raises(ConfigError, match=r"^stall_seconds .*: expected a positive number$"):
        PushOptions("a", stall_seconds=seconds)


def test_one_code_is_not_taken_for_its_letters() -> None:
    with pytest.raises(ConfigError, match=r'^allow "nan": expected a list of codes, such as allow=\["nan"\]$'):
        PushOptions("a", allow="nan")


def test_tables_and_views_become_outputs() -> None:
    assert PushOptions("a").outputs == (Output(("a",), two_step()),)
    assert PushOptions({"a": "two_step", "b": "two_step"}).tables == ("a", "b")


def test_how_long_a_push_may_stall_is_all_that_users_tell_of_how_it_sends() -> None:
    assert Tuning.of(PushOptions("a")) == Tuning()
    assert Tuning.of(PushOptions("a", stall_seconds=3)).deadlines == Deadlines(stall=3)


@pytest.mark.parametrize("chunk_length", [0, -1, 2.5, True, "3"])
def test_a_chunk_length_is_a_whole_number_of_rows(chunk_length: Any) -> None:
    with pytest.raises(ConfigError, match=r"chunk_length .* expected at least 1 row, a whole number"):
        PushOptions("a", chunk_length=chunk_length)
    with pytest.raises(ConfigError, match=r"chunk_length .* expected at most 2,147,483,647"):
        PushOptions("a", chunk_length=1 << 31)
    assert PushOptions("a", chunk_length=(1 << 31) - 1).chunk_length == 2_147_483_647
