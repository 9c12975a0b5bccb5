"""The help of every command: what it does, three examples, options in sections, and where names are explained."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rlds2reverb import cli
from rlds2reverb.cli import sections


def command_of(name: str) -> Any:
    return cli.cli.get_command(click.Context(cli.cli), name)


COMMANDS = {name: command_of(name) for name in cli.COMMANDS}
OPTIONS = [option for command in COMMANDS.values() for option in command.params if isinstance(option, click.Option)]


def help_of(name: str, width: int = 80) -> str:
    return CliRunner().invoke(COMMANDS[name], ["-h"], terminal_width=width, max_content_width=width).output


def headings(text: str) -> list[str]:
    return [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_three_examples_or_more_stand_above_all_but_the_first_paragraph(name: str) -> None:
    examples = COMMANDS[name].examples
    assert len(examples) >= 3
    assert all(f"rlds2reverb {name}" in line for line in examples.values())
    text = help_of(name)
    assert headings(text)[0] == "Examples"
    assert text.index("Examples:") < 400
    listed = text.partition("Examples:\n")[2].partition("\n\n")[0].replace(" \\\n", " ")
    said = [" ".join(line.split()) for line in listed.splitlines() if not line.startswith("  #")]
    assert said == list(examples.values())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_an_example_is_a_line_that_the_command_takes(name: str) -> None:
    for line in COMMANDS[name].examples.values():
        words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"').partition(" >")[0])
        assert words[:2] == ["rlds2reverb", name]
        COMMANDS[name].make_context(name, words[2:])


def test_options_of_several_commands_stand_below_a_heading_of_their_own() -> None:
    uses = Counter((tuple(option.opts), option.help) for option in OPTIONS)
    for option in OPTIONS:
        if uses[tuple(option.opts), option.help] > 1:
            assert sections.section_of(option) != sections.OWN, option.name


def test_every_name_of_a_section_is_an_option() -> None:
    assert {name for names in sections.SECTIONS.values() for name in names} <= {option.name for option in OPTIONS}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_is_listed_once_and_sections_have_one_order(name: str) -> None:
    text = help_of(name, 200)
    order = [sections.OWN, *sections.SECTIONS]
    found = [title for title in headings(text) if title in order]
    assert found == sorted(found, key=order.index)
    for option in COMMANDS[name].params:
        if isinstance(option, click.Option):
            [line] = [
                line for line in text.splitlines() if line.startswith((f"  {option.opts[0]} ", f"  {option.opts[0]}, "))
            ]
            assert text.rindex(f"\n{sections.section_of(option)}:\n", 0, text.index(line)) >= 0
    *_, last = text.partition("\n\nMore help:")[0].splitlines()
    assert last.startswith("  -h, --help")


def test_the_help_of_a_push_is_in_sections() -> None:
    of_others = ("Environment", "Destination")
    titles = [title for title in sections.SECTIONS if title not in of_others]
    assert headings(help_of("push")) == ["Examples", *titles, "More help"]


@pytest.mark.parametrize(
    ("name", "topics"),
    [("push", "SOURCE sources VIEW views CODE codes"), ("convert", "SOURCE sources DEST destinations CODE codes")],
)
def test_the_help_ends_with_where_names_are_explained(name: str, topics: str) -> None:
    words = help_of(name).partition("More help:\n")[2].replace("rlds2reverb help ", "").split()
    assert words == topics.split()
    assert {word for word in words if word.islower()} <= cli.TOPICS.keys()


def test_no_help_names_a_file_of_the_repository() -> None:
    """Who has installed the package does not have it."""
    for name in cli.COMMANDS:
        assert ".md" not in help_of(name)
        assert "configs/" not in help_of(name)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_no_word_is_broken_at_a_hyphen(name: str) -> None:
    assert [line for line in help_of(name).splitlines() if re.search(r"\w-$", line)] == []


@pytest.mark.parametrize("no_color", ["", "1"])
def test_headings_are_bold_on_a_terminal_with_colours(no_color: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    formatter = sections.HelpContext(COMMANDS["push"]).make_formatter()
    formatter.write_heading("Server")
    assert formatter.getvalue() == ("Server:\n" if no_color else "\x1b[1mServer\x1b[0m:\n")
