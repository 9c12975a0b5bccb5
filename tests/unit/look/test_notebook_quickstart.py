"""The quickstart is a valid notebook, runs from top to bottom with Reverb and without, and shows what it has stored."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

import rlds2reverb
from rlds2reverb import cli
from rlds2reverb.strict_yaml import parse
from tests.support.look.notebooks import ADDRESS, HAS_REVERB, QUICKSTART, runner, stored
from tests.support.look.pages import Page

SHOWN = {"choose", "inspect", "episode", "serve", "plan", "push-run", "push-again", "sample-pairs", "sample-returns"}
"""Cells that show something."""

CODE = {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}
MARKDOWN = {"cell_type", "id", "metadata", "source"}
OUTPUTS = {
    "stream": {"name", "output_type", "text"},
    "execute_result": {"data", "execution_count", "metadata", "output_type"},
}
"""Kinds of cells and outputs in nbformat 4.5 -> the fields that they must have; others are not allowed."""


def cells(kind: str) -> list[Any]:
    return [cell for cell in stored()["cells"] if cell["cell_type"] == kind]


def code() -> str:
    return "\n".join("".join(cell["source"]) for cell in cells("code"))


def executed(*changes: tuple[str, str]) -> dict[str, list[str]]:
    """Cell -> what it shows in a run with these changes of its code."""
    assert all(code().count(old) == 1 for old, _ in changes)
    found: dict[str, list[str]] = runner().shown_by(runner().executed(stored(), dict(changes)))
    return found


def test_it_is_a_notebook() -> None:
    notebook = stored()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert notebook["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one) for one in ids)
    assert QUICKSTART.read_text(encoding="utf-8") == runner().text_of(notebook)


def test_its_cells_and_outputs_have_the_fields_of_the_format() -> None:
    assert all(set(cell) == MARKDOWN for cell in cells("markdown"))
    assert [(set(cell), cell["execution_count"]) for cell in cells("code")] == [
        (CODE, count + 1) for count in range(len(cells("code")))
    ]
    outputs = [output for cell in cells("code") for output in cell["outputs"]]
    assert all(set(output) == OUTPUTS[output["output_type"]] for output in outputs)
    texts = [cell["source"] for cell in stored()["cells"]]
    texts += [text for output in outputs for text in [output.get("text"), *output.get("data", {}).values()] if text]
    assert all(line.endswith("\n") for text in texts for line in text[:-1])


def test_what_it_has_stored_is_whole_and_harmless() -> None:
    pages = [
        "".join(output["data"]["text/html"]) for cell in cells("code") for output in cell["outputs"] if "data" in output
    ]
    assert len(pages) == 7
    assert all(Page(html).text for html in pages)


def test_its_lines_are_short_enough_to_be_read_without_scrolling() -> None:
    assert [line for line in code().splitlines() if len(line) > 100] == []


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_its_links_lead_somewhere() -> None:
    text = "\n".join("".join(cell["source"]) for cell in cells("markdown"))
    links = re.findall(r"\]\(([^)#]+)#?([^)]*)\)", text)
    assert len(links) > 3
    assert [name for name, _ in links if not (QUICKSTART.parent / name).exists()] == []
    assert [at for name, at in links if at and at not in anchors(QUICKSTART.parent / name)] == []


def test_without_reverb_a_server_in_memory_takes_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    shown = executed((HAS_REVERB, "False"))
    assert {cell for cell, outputs in shown.items() if outputs} == SHOWN
    assert shown.pop("choose") == ["Reverb is not installed here: a server in memory takes its place.\n"]
    assert shown == {cell: outputs for cell, outputs in runner().shown_by(stored()).items() if cell != "choose"}, (
        "stale: run `make docs`"
    )
    assert capsys.readouterr() == ("", "")


@pytest.mark.full
def test_it_starts_a_server_of_its_own_and_shows_what_it_has_stored() -> None:
    assert executed() == runner().shown_by(stored()), "stale: run `make docs`"


@pytest.mark.full
def test_it_takes_a_server_that_runs_elsewhere(forks: Any) -> None:
    from replay_server import TableConfig

    views = {"replay": "two_step", "returns": "n_step:n=3"}
    needed = rlds2reverb.inspect("bundled:cartpole", views).outputs
    with forks.embedded([TableConfig(name, one.signature) for name, one in needed.items()]) as server:
        shown = executed((ADDRESS, f'ADDRESS = "{server.address}"'))
        assert shown["choose"] == ["This notebook uses the server at localhost:#\n"]
        assert shown["push-again"] == ["# new items\n"]
        with rlds2reverb.connect(server.address) as client:
            assert {name: table.current_size for name, table in client.tables().items()} == {
                "replay": 2931,
                "returns": 2931,
            }


def commands() -> list[list[str]]:
    text = "\n".join("".join(cell["source"]) for cell in cells("markdown"))
    return [shlex.split(line) for line in re.findall(r"^rlds2reverb (.+)$", text, re.MULTILINE)]


def test_the_commands_for_a_server_elsewhere_are_taken() -> None:
    inspect, serve = commands()
    assert inspect[-2:] == [">", "server.yaml"]
    assert serve == ["serve", "--config", "server.yaml"]
    command = cli.cli.get_command(click.Context(cli.cli), "inspect")
    assert command is not None
    given = command.make_context("inspect", inspect[1:-2]).params
    assert given["server_config"]
    assert dict(one.split("=", 1) for one in given["into"]) == {"replay": "two_step", "returns": "n_step:n=3"}


@pytest.mark.full
def test_the_config_for_a_server_elsewhere_has_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    inspect, _ = commands()
    cli.cli(inspect[:-2], standalone_mode=False)
    assert [table["name"] for table in parse(capsys.readouterr().out)["tables"]] == ["replay", "returns"]
