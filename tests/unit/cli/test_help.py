"""`rlds2reverb help`: topics say all that there is, commands their own help, and what is nearly right is understood."""

from __future__ import annotations

import re
from typing import Any

import pytest
from click.testing import CliRunner

from rlds2reverb import cli
from rlds2reverb.cli.help import WRITERS
from rlds2reverb.formats.registry import DESTINATIONS, SOURCES, Formats
from rlds2reverb.prepare.problems import CODES
from rlds2reverb.views import FROM_CONFIG_ONLY, PURPOSES, VIEWS, view_of
from tests.support.project import ROOT

_WIDE = 300


def shown(*arguments: str, width: int = _WIDE, code: int = 0) -> str:
    ended = CliRunner().invoke(cli.cli, list(arguments), terminal_width=width, max_content_width=width)
    assert ended.exit_code == code
    return ended.output


def test_every_topic_has_a_text_and_no_topic_hides_a_command() -> None:
    assert list(WRITERS) == list(cli.TOPICS)
    assert cli.TOPICS.keys().isdisjoint(cli.COMMANDS)


@pytest.mark.parametrize("topic", cli.TOPICS)
def test_a_topic_fits_a_terminal(topic: str) -> None:
    words = {word for line in shown("help", topic, width=80).splitlines() if len(line) > 80 for word in line.split()}
    assert all(len(word) > 70 for word in words)  # only what has no blank to be broken at


@pytest.mark.parametrize(("topic", "formats"), [("sources", SOURCES), ("destinations", DESTINATIONS)])
def test_every_form_of_a_name_is_listed(topic: str, formats: Formats[Any]) -> None:
    text = " ".join(shown("help", topic).split())
    for written, names in formats.rows():
        assert f"{written} {names}" in text


def test_every_view_is_listed_as_it_is_taken() -> None:
    assert PURPOSES.keys() == VIEWS.keys()
    text = re.sub(r"\n {10,}", "  ", shown("help", "views"))
    rows = {line.split()[0].partition(":")[0]: line.split(maxsplit=1) for line in text.splitlines() if line[:2] == "  "}
    assert rows.keys() == VIEWS.keys()
    for name, (written, purpose) in rows.items():
        assert purpose == PURPOSES[name]
        if name not in FROM_CONFIG_ONLY:
            assert view_of(written) == VIEWS[name]()


def test_the_docs_have_the_views_in_the_same_words() -> None:
    table = (ROOT / "docs" / "views.md").read_text(encoding="utf-8")
    for name, purpose in PURPOSES.items():
        assert f"| {purpose} | [`{name}`]" in table


def test_every_code_is_listed_below_what_it_does() -> None:
    problems, _, rest = shown("help", "codes").partition("\nAdvice, which")
    for name, code in CODES.items():
        assert f"  {name} " in (rest if code.is_advice else problems)


def test_every_exit_code_is_listed() -> None:
    text = shown("help", "exit-codes")
    assert all(
        f"\n  {code} " in text for code in {0, cli.EXIT_BUG, cli.EXIT_INTERRUPTED, *dict(cli.EXIT_CODES).values()}
    )


def test_a_command_has_its_own_help() -> None:
    assert shown("help", "push") == shown("push", "--help")


def test_without_a_topic_commands_and_topics_are_listed() -> None:
    text = shown("help")
    assert text == shown("--help")
    assert all(f"  {name} " in text for name in (*cli.COMMANDS, *cli.TOPICS))


@pytest.mark.parametrize(
    ("typed", "said"),
    [("sorces", 'did you mean "sources"?'), ("pusch", 'did you mean "push"?'), ("xyz", "there are sources, ")],
)
def test_another_topic_is_an_error_that_says_which_there_are(typed: str, said: str) -> None:
    assert said in shown("help", typed, code=2)
