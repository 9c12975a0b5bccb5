"""The pictures of the views in the documentation are what the code draws now, of every view, and each is shown."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from rlds2reverb.views.registry import VIEWS

ROOT = Path(__file__).parent.parent.parent


def _drawer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_views", ROOT / "scripts" / "draw_views.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


DRAWER = _drawer()


def test_every_view_has_a_picture() -> None:
    assert set(DRAWER.PICTURES) == set(VIEWS)
    assert {path.stem for path in (ROOT / "docs" / "views").glob("*")} == set(VIEWS)


@pytest.mark.parametrize("name", DRAWER.PICTURES)
def test_pictures_are_fresh(name: str) -> None:
    now = (ROOT / "docs" / "views" / f"{name}.svg").read_text(encoding="utf-8")
    assert now == DRAWER.draw(DRAWER.PICTURES[name]), f"{name}.svg is stale: run `python scripts/draw_views.py`"


@pytest.mark.parametrize("name", DRAWER.PICTURES)
def test_bars_lie_under_boxes(name: str) -> None:
    root = ElementTree.fromstring(DRAWER.draw(DRAWER.PICTURES[name]))
    shapes = [(shape.get("class"), float(shape.get("x", 0)), float(shape.get("width", 0))) for shape in root.iter()]
    boxes = [(left, left + width) for kind, left, width in shapes if kind == "box"]
    bars = [(left, left + width) for kind, left, width in shapes if kind in ("i0", "i1", "i2")]
    assert boxes
    assert len(bars) > 2 * len(DRAWER.PICTURES[name].items) - 1
    assert all(min(box[0] for box in boxes) <= left < right <= max(box[1] for box in boxes) for left, right in bars)


def test_every_picture_is_shown() -> None:
    page = (ROOT / "docs" / "views.md").read_text(encoding="utf-8")
    assert [name for name in DRAWER.PICTURES if f"(views/{name}.svg)" not in page] == []
