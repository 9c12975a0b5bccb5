"""The documentation tells the truth: generated parts are fresh, names exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from rlds2reverb import cli
from rlds2reverb.sources import SCHEMES
from rlds2reverb.views.registry import VIEWS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("section", ["codes", "cli"])
def test_generated_sections_are_fresh(section: str) -> None:
    path, now, wanted = _generator().render(section)
    assert now == wanted, f"{path.name} is stale: run `make docs`"


def test_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:rlds2reverb|server|tests)/[\w/.]+)`", text))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [t for t in targets if not t.startswith("http") and not (page.parent / t).exists()] == []


def test_every_command_view_and_source_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for name in (*cli.COMMANDS, *VIEWS, *SCHEMES):
        assert f"`{name}" in text or f"rlds2reverb {name}" in text or f"{name}:" in text, name


def test_every_make_target_that_the_pages_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named
    assert named <= targets
