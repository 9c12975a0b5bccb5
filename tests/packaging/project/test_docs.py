"""The documentation tells the truth: generated parts are fresh, names exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from rlds2reverb import cli
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.registry import DESTINATIONS, SOURCES
from rlds2reverb.views import VIEWS
from tests.support.project import ROOT

COMMAND = re.compile(r"^ *(?:\$ )?rlds2reverb ([a-z]+ .*)$", re.MULTILINE)
"""A line of a block of code."""
FRAGMENTS = sorted((ROOT / "changelog.d").glob("*.md"))
"""What will stand in CHANGELOG.md: links lead from there."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(section, marks=pytest.mark.full) if section == "config" else section
        for section in _generator().SECTIONS
    ],
)
def test_generated_sections_are_fresh(section: str) -> None:
    path, now, wanted = _generator().render(section)
    assert now == wanted, f"{path.name} is stale: run `make docs`"


def test_every_command_has_a_fresh_page() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "commands").iterdir()}
    assert pages == {name: _generator().command_page(name) for name in cli.COMMANDS}, "stale: run `make docs`"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_page_of_a_command_has_its_examples_first_and_all_of_its_options(name: str) -> None:
    text = (ROOT / "docs" / "commands" / f"{name}.md").read_text(encoding="utf-8")
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert isinstance(command, Command)
    title, _, examples = text.split("\n\n")[:3]
    assert title == f"# rlds2reverb {name}"
    assert re.findall("^rlds2reverb.*|^eval.*", re.sub(r" \\\n +", " ", examples), re.MULTILINE) == [
        *command.examples.values()
    ]
    rows = re.findall(r"^\| `(--?[\w-]+)", text, re.MULTILINE)
    assert sorted(rows) == sorted(param.opts[0] for param in command.params if isinstance(param, click.Option))


def test_architecture_names_modules_that_exist() -> None:
    """As paths, such as `rlds2reverb/push/run.py`, and where state lives, such as `push.capacity`."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = set(re.findall(r"\b((?:rlds2reverb|server|tests)/[\w/.]*\w/?)", text))
    dotted = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text)) - {"pyproject.toml"}
    assert len(paths) > 10
    assert len(dotted) > 10
    assert [name for name in paths if not (ROOT / name).exists()] == []
    assert [name for name in dotted if not any(_exists(package, name) for package in ("rlds2reverb", "server"))] == []


def _exists(package: str, module: str) -> bool:
    path = ROOT / package / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", *FRAGMENTS], ids=lambda page: page.name)
def test_links_into_a_page_lead_to_a_heading(page: Path) -> None:
    linked = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    broken = [(name, at) for name, at in linked if at not in _anchors(_folder(page) / name if name else page)]
    assert broken == []


def _folder(page: Path) -> Path:
    """From where its links lead."""
    return ROOT if page in FRAGMENTS else page.parent


def _anchors(page: Path) -> set[str]:
    """What its headings are called in links: lower case, words joined by hyphens, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", *FRAGMENTS], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [t for t in targets if not t.startswith("http") and not (_folder(page) / t).exists()] == []


def test_every_command_view_and_source_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for name in (*cli.COMMANDS, *VIEWS, *(row.partition(":")[0] for row, _ in (*SOURCES.rows(), *DESTINATIONS.rows()))):
        assert f"`{name}" in text or f"rlds2reverb {name}" in text or f"{name}:" in text, name


def test_every_make_target_that_the_pages_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named
    assert named <= targets


def _commands() -> list[Any]:
    pages = [
        *sorted((ROOT / "docs" / "formats").glob("*.md")),
        ROOT / "docs" / "convert.md",
        ROOT / "docs" / "mixing.md",
    ]
    return [
        pytest.param(line, id=f"{page.stem}: {line}") for page in pages for line in COMMAND.findall(page.read_text())
    ]


@pytest.mark.parametrize("line", _commands())
def test_a_command_is_one_that_the_shell_and_the_command_line_take(line: str) -> None:
    assert not re.search(r"[?*|;]", re.sub(r"'[^']*'|\"[^\"]*\"", "", line)), "quote it for the shell"
    name, *arguments = shlex.split(line)
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    given = command.make_context(name, arguments).params
    assert name not in ("push", "mix") or given["table"] or given["into"], "name the table"


@pytest.mark.parametrize("line", _commands())
def test_the_datasets_of_a_command_have_the_options_that_it_names(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are in the repository can be read; of others no more is wrong than that they are not there."""
    monkeypatch.chdir(ROOT)
    name, *arguments = shlex.split(line)
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    given = command.make_context(name, arguments).params
    if given.get("destination"):
        open_destination(given["destination"])
    source = given.get("source") or f"mix:{'|'.join(given['sources'])}"
    if source.startswith("bundled:") or "tests/data" in source:
        assert list(open_source(source).first(2))
        return
    with pytest.raises(Rlds2ReverbError) as caught:
        open_source(source)
    assert not re.search(r'option "', str(caught.value))
