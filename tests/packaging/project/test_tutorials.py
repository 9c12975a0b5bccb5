"""What tutorials say before anything runs: which extras they install, which files and services they name, and who tries them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.support.project import ROOT, project
from tests.support.walkthrough import BLOCK, TUTORIALS

PAGES = sorted(page for page in TUTORIALS.glob("*.md") if page.name != "index.md")
NEEDS = {
    "rlds2reverb serve": "server",
    "--encoded": "images",
    "minari:": "hdf5",
    "import torch": "torch",
    "import tf_agents": "tf-agents",
    "from tf_agents": "tf-agents",
    "make_open_x.py": "tfds",
}
"""Text of a block -> the extra that it needs."""
SUGGESTED = {"`rlds2reverb top`": "top"}
"""A command that the text tells the reader to try -> the extra that it needs."""


def _blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_installs_what_it_needs(page: Path) -> None:
    text = "\n".join(text for _, text in _blocks(page))
    (listed,) = re.findall(r'^pip install "\.\./rlds2reverb\[(.*)\]"$', text, re.MULTILINE)
    extras = set(listed.split(","))
    assert extras <= set(project()["optional-dependencies"])
    suggested = {extra for command, extra in SUGGESTED.items() if command in page.read_text(encoding="utf-8")}
    assert extras == suggested | {extra for needle, extra in NEEDS.items() if needle in text}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_of_a_kind_that_is_tried(page: Path) -> None:
    kinds = [kind for kind, _ in _blocks(page)]
    assert set(kinds) <= {"sh", "text", "python", "yaml"}
    assert len(kinds) * 2 == len(re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE))
    for kind, text in _blocks(page):
        assert kind not in ("python", "yaml") or re.match(r"# [\w.]+\n", text), "the first line names the file"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_compose_services_exist(page: Path) -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^docker compose (.*)$", text, re.MULTILINE):
        command, *words = [word for word in shlex.split(line) if not word.startswith("-")]
        assert command in ("up", "run", "down")
        assert set(words) <= set(services)


def test_every_tutorial_is_worked_through_once_and_listed() -> None:
    tests = "".join(
        (ROOT / "tests" / folder / "test_tutorials.py").read_text(encoding="utf-8")
        for folder in ("packaging/walkthroughs", "systems/learners")
    )
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        lists = re.findall(r"\[(\"[^]]*)\]", tests)
        assert sum(f'"{page.stem}"' in text for text in lists) == 1, f"no test works through {page.stem}"
        assert f"tutorials/{page.name}" in listed, f"mkdocs.yml does not list {page.name}"
