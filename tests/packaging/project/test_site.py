"""The docs' site has every page: in its navigation, in its reference, and whatever pages link to outside of docs/."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import rlds2reverb
from tests.support.project import ROOT

DOCS = ROOT / "docs"


def _hooks() -> ModuleType:
    return _script("site_hooks")


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _named(nav: Any) -> Iterator[str]:
    """Pages of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
        return
    for part in nav.values() if isinstance(nav, dict) else nav:
        yield from _named(part)


def navigation() -> list[str]:
    return list(_named(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))


def test_the_navigation_has_every_page_once() -> None:
    named = Counter(navigation())
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | set(_hooks().GUIDES)
    missing = sorted(there - set(named))
    assert not missing, f"mkdocs.yml: add to `nav`, where a reader looks for them: {', '.join(missing)}"
    gone = sorted(set(named) - there)
    assert not gone, f"mkdocs.yml: take out of `nav`, they are no pages of docs/: {', '.join(gone)}"
    twice = [page for page, times in named.items() if times > 1]
    assert not twice, f"mkdocs.yml: these are in `nav` more than once: {', '.join(twice)}"


def test_the_reference_has_every_public_name_once() -> None:
    texts = [page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference").glob("*.md"))]
    shown = Counter(name for text in texts for name in re.findall(r"^::: rlds2reverb\.(\w+)$", text, re.MULTILINE))
    errors = {"errors": 1, "Rlds2ReverbError": 1}  # a module, with that class in it
    assert shown | errors == Counter({"errors": 1, **dict.fromkeys(rlds2reverb.__all__, 1)}), (
        "docs/reference/: each name of rlds2reverb.__all__ needs a line `::: rlds2reverb.NAME`"
    )


def test_links_out_of_docs_lead_to_pages_of_the_site() -> None:
    hooks = _hooks()
    texts = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")}
    shown = {target: hooks.shown(target) for target in hooks.linked(texts)}
    assert "server.yaml" in shown["configs/server.yaml"]
    assert "## statefulset.yaml" in shown["deploy/kubernetes"]
    for page, line, wanted in (
        ("learner.md", "[a](../examples/learners/bc_torch.py)", "[a](sources/examples/learners/bc_torch.py.md)"),
        ("reference/config.md", "[a](../../configs/server.yaml)", "[a](../sources/configs/server.yaml.md)"),
        ("examples/open_x.md", "[a](../docs/views/extras.md)", "[a](../views/extras.md)"),
        ("examples/open_x.md", "[a](../docs/runbook.md#sizing)", "[a](../runbook.md#sizing)"),
        ("wire.md", "[a](cli.md#exit-codes) [b](https://example.org/x)", None),
    ):
        assert hooks.on_page_markdown(line, _page(page)) == (wanted or line)


@pytest.mark.parametrize("name", ["system", "terminal"])
def test_the_pictures_of_the_readme_are_fresh_and_load_nothing(name: str) -> None:
    text = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert text == _script("draw_readme").PICTURES[name](), "stale: run `make docs`"
    ElementTree.fromstring(text)
    assert re.findall(r"https?://[^\"]*|@import|url\(", text) == ["http://www.w3.org/2000/svg"]
    assert f"docs/pictures/{name}.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


def _page(name: str) -> Any:
    class File:
        src_uri = name

    class Page:
        file = File

    return Page
