"""The pictures of the docs can be taken again, and show what a user would recognise."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.project import ROOT

pytest.importorskip("playwright.sync_api")
Image: Any = pytest.importorskip("PIL.Image")

pytestmark = [pytest.mark.timeout(600)]

DOCS = ROOT / "docs"
DRAWN = {"pictures", "views"}
"""Folders of drawings that `make docs` makes."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("take_pictures", ROOT / "scripts" / "take_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pictures(docs: Path) -> set[str]:
    found = {path.relative_to(docs) for path in docs.rglob("*") if path.suffix in (".png", ".svg", ".gif", ".jpg")}
    return {path.as_posix() for path in found if path.parts[0] not in DRAWN}


def test_all_pictures_are_taken_of_the_staged_scene(script: ModuleType, tmp_path: Path) -> None:
    texts = script.take(tmp_path)
    assert pictures(tmp_path) == pictures(DOCS), (
        "a picture that `make pictures` does not take, or one that was not committed"
    )
    for text in texts:
        assert not re.search(r"/tmp|pytest|<\w+>|localhost|test", text), text
    assert "observation/image_0" in texts[4]
    assert "ReplayCheckpointDiskFull" in texts[0]
    for name in sorted(pictures(DOCS)):
        if name.endswith(".png"):
            assert (DOCS / name).stat().st_size <= script.MOST_BYTES
            with Image.open(DOCS / name) as published, Image.open(tmp_path / name) as taken:
                assert published.width == taken.width, f"{name}: stale: run `make pictures`"


def test_the_picture_of_top_is_fresh(script: ModuleType) -> None:
    published = (DOCS / "top.svg").read_text(encoding="utf-8")
    assert published == script.top(), "stale: run `make pictures`"
    ElementTree.fromstring(published)


def test_every_picture_is_shown_by_a_page_and_described() -> None:
    shown = set()
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for described, target in re.findall(
            r"(!?\[[^\]]*\])\(([^)\s]+\.(?:png|svg))\)", page.read_text(encoding="utf-8")
        ):
            assert len(described) > 8, f"{page.name}: {target} is not described"
            shown.add((page.parent / target).resolve().relative_to(DOCS).as_posix())
    assert pictures(DOCS) - shown <= {"images/status-1280-dark.png", "images/status-400-light.png"}
