"""The pages about views: their pictures are what the code draws now, and what they write makes the views that they say."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import yaml

import rlds2reverb
from rlds2reverb.views import FROM_CONFIG_ONLY, VIEWS, view_from, view_of

ROOT = Path(rlds2reverb.__file__).parent.parent
FOLDER = ROOT / "docs" / "views"
FIRST_PAGE = (ROOT / "docs" / "views.md").read_text(encoding="utf-8")
PAGES = "\n".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md")))


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
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(VIEWS)


@pytest.mark.parametrize("name", DRAWER.PICTURES)
def test_pictures_are_fresh(name: str) -> None:
    now = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert now == DRAWER.draw(DRAWER.PICTURES[name]), f"{name}.svg is stale: run `make docs`"


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
    assert [name for name in DRAWER.PICTURES if f"({name}.svg)" not in PAGES] == []


def test_every_view_that_the_pages_write_can_be_made() -> None:
    named = "|".join(VIEWS)
    written = set(re.findall(rf"(?:--view |[`\"])((?:{named}):[^`\"\s]*\w)[`\"\s]", PAGES))
    assert len(written) > 20
    for text in written:
        view_of(text)


def test_the_first_page_lists_every_option_with_its_default() -> None:
    found = re.findall(r"^\| [^|]+ \| \[`(\w+)`\]\((\S+)#(\w+)\) \| (.*?) ?\|$", FIRST_PAGE, re.MULTILINE)
    listed = {name: options for name, _, _, options in found}
    assert set(listed) == set(VIEWS)
    for name, page, heading, _ in found:
        assert heading == name
        assert f"\n## {name}\n" in (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in set(VIEWS) - set(FROM_CONFIG_ONLY):
        options = dict(re.findall(r"`(\w+)=(\S+)`", listed[name]))
        parameters = inspect.signature(VIEWS[name]).parameters.values()
        defaults = {
            parameter.name: str(parameter.default).lower()
            for parameter in parameters
            if parameter.name not in ("priority", "extras")
        }
        assert options == defaults


def test_the_view_files_of_the_pages_make_views() -> None:
    files = re.findall(r"```yaml\n# (\S+)\n(view: .*?)```", PAGES, re.DOTALL)
    assert {name for name, _ in files} == {"view.yaml", "heads.yaml"}
    assert any("frames" in view_from(yaml.safe_load(text), name).label for name, text in files)


def test_the_requirements_of_the_pages_make_a_view() -> None:
    lines = re.findall(r"^\| `.*ViewRequirement.*?` \| `(.*?)` \|$", PAGES, re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        parsed = yaml.safe_load(line)
        view_from({"view": "requirements", "requirements": parsed if "data_col" not in parsed else {"x": parsed}})
