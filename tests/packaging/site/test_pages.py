"""Every page of the site in a browser, wide and narrow: nothing sticks out, complains, or asks another machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from tests.support.chromium import accessibility_findings

# Some tests open every page in turn: four minutes for the longest on two cores without a graphics card.
pytestmark = pytest.mark.timeout(1800)

WIDTHS = [1280, 400]
PICTURES = os.environ.get("RLDS2REVERB_SITE_PICTURES")
"""A folder: a screenshot of each page is put there, to be looked at."""


class Reader:
    """A browser's window, and what went wrong in it."""

    def __init__(self, browser: Any, width: int) -> None:
        self.width = width
        self.view = browser.new_page(viewport={"width": width, "height": 900})
        self.complaints: list[str] = []
        self.requests: set[str] = set()
        self.view.on("console", lambda message: self.complaints.append(f"{self.view.url}: {message.text}"))
        self.view.on("pageerror", lambda error: self.complaints.append(f"{self.view.url}: {error}"))
        self.view.on("requestfailed", self._failed)
        self.view.on("request", lambda request: self.requests.add(request.url))

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # what the next page cut short
            self.complaints.append(f"{request.failure}: {request.url}")

    def open(self, address: str) -> None:
        self.view.goto(address)
        self.view.wait_for_selector("article h1")

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(self.view.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def search(self, words: str) -> None:
        """Enters them into the search."""
        if self.width < 1000:
            self.view.locator("label[for=__search]").first.click()
        self.view.get_by_role("textbox", name="Search").click()
        self.view.keyboard.insert_text(words)
        self.view.keyboard.press("End")

    def results(self, words: str) -> list[str]:
        """The pages and sections that a search finds, best first."""
        self.search(words)
        sync_api.expect(self.view.locator(".md-search-result__meta")).to_contain_text("matching", timeout=60_000)
        links = self.view.locator(".md-search-result__link").evaluate_all("all => all.map(one => one.href)")
        return [link.partition("?")[0] + link.partition("#")[1] + link.partition("#")[2] for link in links]

    def summary(self) -> str:
        """How many pages the last search has found: "12 matching documents". The list shows the first ten until one scrolls."""
        return str(self.view.locator(".md-search-result__meta").inner_text())

    def save(self, name: str) -> None:
        if PICTURES:
            self.view.screenshot(path=Path(PICTURES) / f"{name.replace('/', '-')}-{self.width}.png")


@pytest.fixture(params=WIDTHS)
def reader(request: pytest.FixtureRequest, browser: Any) -> Iterator[Reader]:
    opened = Reader(browser, request.param)
    yield opened
    opened.view.close()


def test_every_page_fits_and_asks_nobody_else(reader: Reader, site: Path, address: str) -> None:
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html") if page.name != "404.html")
    assert {"index.html", "tutorials/first_push.html", "cli.html", "commands/push.html", "examples/open_x.html"} <= set(
        pages
    )
    wide = {}
    for page in pages:
        reader.open(f"{address}/{page}")
        if reader.overflow():
            wide[page] = reader.overflow()
        reader.save(page.removesuffix(".html"))
    assert wide == {}
    assert reader.complaints == []
    assert {url for url in reader.requests if not url.startswith(f"{address}/")} == set()


@pytest.mark.parametrize(("scheme", "rules"), [("light", []), ("dark", ["color-contrast"])])
def test_axe_finds_nothing(browser: Any, site: Path, scheme: str, rules: list[str]) -> None:
    view = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    found = {}
    for page in site.rglob("*.html"):
        if page.name != "404.html":  # the theme's own
            view.goto(page.as_uri())
            found[str(page.relative_to(site))] = accessibility_findings(view, *rules)
    assert {page: findings for page, findings in found.items() if findings} == {}
    assert "index.html" in found
    view.close()


def test_search_finds_a_word_and_leads_to_it(reader: Reader, address: str) -> None:
    reader.open(f"{address}/index.html")
    reader.search("quarantine")
    found = reader.view.locator(".md-search-result__item a").filter(has_text="quarantine").first
    sync_api.expect(found).to_be_visible(timeout=60_000)
    reader.save("search")
    found.click()
    reader.view.wait_for_url("**/*quarantine*")
    assert "quarantine" in reader.view.locator("article").inner_text()
    assert reader.complaints == []
    assert {url for url in reader.requests if not url.startswith(f"{address}/")} == set()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("prioritzed", "prioritized"), ("chekpoint", "checkpoint"), ("chekpoitn", "checkpoint"), ("bukcet", "bucket")],
)
def test_search_finds_the_same_in_spite_of_a_typing_error(reader: Reader, address: str, typed: str, meant: str) -> None:
    first, count = [], []
    for word in (meant, typed):
        reader.open(f"{address}/index.html")
        first.append(reader.results(word)[0])
        count.append(reader.summary())
    reader.save(f"search-{typed}")
    assert first[1] == first[0]
    assert count[1] == count[0]
    assert reader.complaints == []
    assert {url for url in reader.requests if not url.startswith(f"{address}/")} == set()


def test_search_takes_a_word_that_there_is_as_it_is(reader: Reader, address: str) -> None:
    """Though other words are a letter away: `tables`, `stable`. Words in quotation marks are never changed."""
    reader.open(f"{address}/index.html")
    reader.results("table")
    marked = reader.view.locator(".md-search-result__list mark").all_text_contents()
    assert marked
    assert {word[:5].lower() for word in marked} == {"table"}
    reader.open(f"{address}/index.html")
    reader.search('"chekpoint"')
    sync_api.expect(reader.view.locator(".md-search-result__meta")).to_have_text(
        "No matching documents", timeout=60_000
    )


@pytest.mark.parametrize(
    "words",
    [
        "action chunking",
        "delta_timestamps",
        "ACT",
        "diffusion policy",
        "VLA",
        "augmentation",
        "normalisation",
        "normalization",
        "no-op filter",
    ],
)
def test_the_words_of_robot_learning_lead_to_its_tutorial(browser: Any, address: str, words: str) -> None:
    reader = Reader(browser, WIDTHS[0])
    reader.open(f"{address}/index.html")
    pages = list(dict.fromkeys(link.partition("#")[0] for link in reader.results(words)))
    reader.save(f"search-{words}")
    reader.view.close()
    assert f"{address}/tutorials/diffusion_policy.html" in pages[:5]


@pytest.mark.parametrize(
    "words", ["Open X-Embodiment", "OXE", "standardisation", "standardization", "magic soup", "gripper", "OpenVLA"]
)
def test_the_words_of_open_x_lead_to_its_sets(browser: Any, address: str, words: str) -> None:
    reader = Reader(browser, WIDTHS[0])
    reader.open(f"{address}/index.html")
    pages = list(dict.fromkeys(link.partition("#")[0] for link in reader.results(words)))
    reader.view.close()
    assert f"{address}/open_x.html" in pages[:5]


def test_it_reads_from_a_folder(reader: Reader, site: Path) -> None:
    """Without a server: all but the search."""
    reader.open((site / "index.html").as_uri())
    reader.view.locator("article").get_by_role("link", name="Runbook").first.click()
    reader.view.wait_for_url("**/runbook.html")
    assert reader.overflow() == 0
    assert {url for url in reader.requests if not url.startswith(f"{site.as_uri()}/")} == set()


def test_a_narrow_window_scrolls_wide_content_in_itself(browser: Any, address: str) -> None:
    reader = Reader(browser, 400)
    for page, boxes in {"cli": ".md-typeset__scrollwrap", "commands/push": "pre code"}.items():
        reader.open(f"{address}/{page}.html")
        wider = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
        assert reader.view.locator(f"article {boxes}").evaluate_all(wider), boxes
        assert reader.overflow() == 0
    reader.view.close()


def test_dark_and_light_are_told_apart(browser: Any, address: str) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        view = browser.new_page(color_scheme=scheme)
        view.goto(f"{address}/index.html")
        colours.add(view.evaluate("getComputedStyle(document.body).backgroundColor"))
        view.close()
    assert len(colours) == 2
