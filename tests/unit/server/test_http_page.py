"""The status page in a real browser, on a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlds2reverb
from tests.support.chromium import accessibility_findings, chromium
from tests.support.forks import Forks
from tests.support.server_running import Server

sync_api = pytest.importorskip("playwright.sync_api")

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

HOSTILE = "<img src=x onerror=alert(1)>"
TABLES = [
    {"name": "replay", "max_size": 8000, "rate_limiter": {"kind": "min_size", "min_size": 5000}},
    {"name": HOSTILE, "rate_limiter": {"kind": "queue", "size": 5}},
    {"name": "signed", "signature": {"observation": {"camera": "uint8[84, 84, 4]", "joints": "float32[17]"}}},
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(forks, tmp_path_factory.mktemp("page"), {"tables": TABLES}).until_ready() as running:
        yield running


def is_too_wide(opened: Page) -> bool:
    return bool(opened.view.evaluate("document.documentElement.scrollWidth > innerWidth"))


def store(server: Server) -> list[str]:
    """Names of the finished ones."""
    kept = server.folder / "checkpoints" / "generations"
    return [path.name for path in kept.iterdir() if path.name.isdecimal()]


class Page:
    """An open page, and what went wrong on it."""

    def __init__(self, browser: Any, url: str, width: int = 1280, scheme: str = "light", path: str = "/") -> None:
        self.view = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.requests: set[str] = set()
        self.view.on("console", lambda message: self.complaints.append(message.text))
        self.view.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.view.on("dialog", lambda dialog: self.complaints.append("a dialog opened"))
        self.view.on("request", lambda request: self.requests.add("/".join(request.url.split("/")[:3])))
        self.view.goto(url + path)
        self.view.wait_for_selector("main" if path == "/runbook" else "article, #all-tables tbody tr")

    def table(self, name: str) -> Any:
        return self.view.locator("article").filter(has=self.view.get_by_role("heading", name=name, exact=True))


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    opened = Page(browser, server.url)
    yield opened
    assert opened.complaints == []
    assert opened.requests == {server.url}
    opened.view.close()


def test_a_push_shows_without_reloading(page: Page, server: Server) -> None:
    replay = page.table("replay")
    sync_api.expect(replay).to_contain_text("0 of 8,000 items")
    state = replay.locator(".state")
    sync_api.expect(state).to_have_text("Empty, sampling from 5,000 items on")
    sync_api.expect(state).to_have_class("state soft")
    sync_api.expect(replay.locator(".tiles")).to_contain_text("none yet")
    with rlds2reverb.connect(server.address) as client:
        client.push("bundled:half_cheetah", table="replay")
    sync_api.expect(replay).to_contain_text("4,000 of 8,000 items", timeout=15_000)
    sync_api.expect(state).to_have_text("Filling, sampling from 5,000 items on")
    sync_api.expect(state).to_have_class("state soft")
    sync_api.expect(replay.locator(".tiles")).to_contain_text("s ago")
    replay.get_by_text("Configuration and totals").click()
    sync_api.expect(replay.get_by_text("sampling waits for 1,000 more inserts")).to_be_visible()
    assert replay.get_by_role("meter").get_attribute("aria-valuenow") == "4000"
    line = replay.locator("polyline.insert")
    assert len({point.split(",")[1] for point in line.get_attribute("points").split()}) > 1  # not flat


def test_a_chart_tells_its_values_to_pointer_and_keys(page: Page) -> None:
    plot = page.table("signed").get_by_role("img")
    sync_api.expect(plot).to_have_attribute("aria-label", re.compile("^per second over .*: inserts 0 at the end"))
    reading = page.table("signed").locator(".reading")
    sync_api.expect(reading).to_have_text("")
    plot.hover()
    sync_api.expect(reading).to_contain_text("0 inserts/s, 0 samples/s")
    page.view.mouse.move(1, 1)
    sync_api.expect(reading).to_have_text("")
    plot.focus()
    newest = reading.inner_text()
    page.view.keyboard.press("Home")
    first = reading.inner_text()
    assert first != newest
    sync_api.expect(plot.locator(".cursor")).to_be_attached()
    page.view.keyboard.press("ArrowRight")
    assert first != reading.inner_text()
    page.view.keyboard.press("ArrowLeft")
    sync_api.expect(reading).to_have_text(first)
    with page.view.expect_response("**/status.json"):
        pass
    sync_api.expect(reading).to_have_text(re.compile(r".+ inserts/s, .+ samples/s"))  # still, after it was drawn anew


def test_a_table_of_any_name_is_text(page: Page) -> None:
    sync_api.expect(page.table(HOSTILE)).to_contain_text("inserts may go on")
    assert page.view.locator("img").count() == 0


def test_a_signature_is_a_tree_that_stays_open(page: Page) -> None:
    signed = page.table("signed")
    signed.get_by_text("Signature, 2 columns").click()
    sync_api.expect(signed.get_by_text("joints float32[17]")).to_be_visible()
    with page.view.expect_response("**/status.json"):
        pass
    sync_api.expect(signed.get_by_text("camera uint8[84, 84, 4]")).to_be_visible()


def test_the_button_writes_a_checkpoint(page: Page, server: Server) -> None:
    before = len(store(server))
    page.view.get_by_role("button", name="Write a checkpoint").click()
    sync_api.expect(page.view.locator("#written")).to_contain_text("checkpoint", timeout=30_000)
    assert len(store(server)) == before + 1
    sync_api.expect(page.view.locator("#checkpoints")).to_contain_text(f"checkpoint {before + 1},", timeout=15_000)


@pytest.mark.parametrize("path", ["/", "/runbook"])
@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_is_wider_than_the_screen(browser: Any, server: Server, width: int, path: str) -> None:
    opened = Page(browser, server.url, width, path=path)
    assert opened.view.evaluate("document.documentElement.scrollWidth") <= width
    opened.view.close()


BROKEN_WORDS = """() => {
  const broken = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const word of texts.currentNode.data.matchAll(/\\w+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  return broken;
}"""

CLIPPED = """() => [...document.querySelectorAll("pre, table")].filter(element => {
  const box = element.closest(".wide") ?? element;
  return box.scrollWidth > box.clientWidth && (getComputedStyle(box).overflowX !== "auto" || box.tabIndex !== 0);
}).map(element => element.textContent.slice(0, 60))"""


@pytest.mark.parametrize("width", [400, 1280])
def test_the_runbook_breaks_no_word_clips_no_code_and_shows_its_pictures(
    browser: Any, server: Server, width: int
) -> None:
    opened = Page(browser, server.url, width, path="/runbook")
    assert opened.view.evaluate(BROKEN_WORDS) == []
    assert opened.view.evaluate(CLIPPED) == []
    widths = opened.view.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
    assert widths
    assert all(widths)
    opened.view.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/runbook"])
def test_axe_finds_nothing(browser: Any, server: Server, path: str, scheme: str) -> None:
    opened = Page(browser, server.url, scheme=scheme, path=path)
    assert accessibility_findings(opened.view) == []
    opened.view.close()


SIZES = """() => {
  const found = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.getClientRects().length) continue;
    const scale = element.closest("svg")?.querySelector("text").getScreenCTM().a ?? 1;
    found.add((parseFloat(getComputedStyle(element).fontSize) * scale).toFixed(1));
  }
  return [...found].sort();
}"""
"""Sizes of all visible text, in pixels, as they are on the screen: a scaled plot scales its text."""


@pytest.fixture(scope="module")
def guarded(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of one table, whose plot has the whole width, and with a token."""
    config = {"tables": [TABLES[0]], "http": {"token": "s3cret"}}
    with Server(forks, tmp_path_factory.mktemp("guarded"), config).until_ready() as running:
        yield running


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("which", ["server", "guarded"])
def test_text_has_the_same_few_sizes_at_any_width(
    browser: Any, request: pytest.FixtureRequest, which: str, width: int
) -> None:
    opened = Page(browser, request.getfixturevalue(which).url, width)
    opened.view.wait_for_selector("article svg text")
    for details in opened.view.locator("summary:visible").all():
        details.click()
    assert set(opened.view.evaluate(SIZES)) <= {"13.0", "15.0", "17.0", "22.0"}
    opened.view.close()


def test_a_token_is_asked_for_where_one_is_wanted(browser: Any, guarded: Server) -> None:
    opened = Page(browser, guarded.url)
    button, words = opened.view.get_by_role("button", name="Write a checkpoint"), opened.view.locator("#written")
    token = opened.view.get_by_label("token")
    sync_api.expect(token).to_be_hidden()
    button.click()
    sync_api.expect(words).to_have_text("this server wants its token", timeout=30_000)
    token.fill("wrong")
    token.press("Enter")
    sync_api.expect(words).to_have_text("that is not this server's token", timeout=30_000)
    assert store(guarded) == []
    token.fill("s3cret")
    token.press("Enter")
    sync_api.expect(words).to_contain_text("checkpoint 1:", timeout=30_000)
    opened.view.close()


def test_a_server_that_is_gone_is_said(browser: Any, forks: Forks, tmp_path: Path) -> None:
    with Server(forks, tmp_path, {"tables": [{"name": "t"}]}).until_ready() as running:
        opened = Page(browser, running.url)
        sync_api.expect(opened.view.locator("#state")).to_have_text("ready")
        host = running.url.removeprefix("http://")
        sync_api.expect(opened.view).to_have_title(f"ready · {host}")
        sync_api.expect(opened.view.locator("#icon")).to_have_attribute(
            "href", re.compile("^data:image/svg.*%E2%9C%93")
        )
        sync_api.expect(opened.view.locator("article svg")).to_contain_text("now", timeout=15_000)
    sync_api.expect(opened.view.locator("#state")).to_contain_text("no answer since", timeout=15_000)
    sync_api.expect(opened.view.locator("#shown")).to_contain_text("What is shown is")
    sync_api.expect(opened.view).to_have_title(re.compile(rf"^no answer since .* · {re.escape(host)}$"))
    sync_api.expect(opened.view.locator("#icon")).to_have_attribute("href", re.compile("%C3%97"))
    assert "now" not in opened.view.locator("svg text").all_inner_texts()
    sync_api.expect(opened.view.locator("#gone")).to_contain_text("ReplayDown")
    sync_api.expect(opened.view.locator("article")).to_contain_text("0 of 1,000,000 items")  # as it was
    assert not is_too_wide(opened)
    opened.view.close()


def test_other_servers_are_summed_up_and_one_that_is_gone_is_said(
    browser: Any, forks: Forks, server: Server, tmp_path: Path
) -> None:
    peers = [f"localhost:{server.http}", "localhost:1"]
    with rlds2reverb.connect(server.address) as client:
        if not client.tables()["replay"].current_size:
            client.push("bundled:half_cheetah", table="replay")
    with Server(forks, tmp_path, {"tables": TABLES, "http": {"peers": peers}}).until_ready() as second:
        opened = Page(browser, second.url, 360)
        rows = opened.view.locator("#servers tr")
        sync_api.expect(opened.view.locator("#all")).to_have_text("2 of 3 servers ready", timeout=15_000)
        sync_api.expect(rows.nth(1)).to_contain_text("of 16,000")
        sync_api.expect(rows.nth(2)).to_contain_text("this server")
        sync_api.expect(rows.nth(3)).to_contain_text("sampling waits at replay")
        sync_api.expect(rows.nth(4)).to_contain_text("[Errno 111]")
        sync_api.expect(rows.nth(4).get_by_role("link", name="ReplayDown")).to_have_attribute(
            "href", "runbook#replaydown"
        )
        sync_api.expect(rows.first).to_contain_text(HOSTILE)
        assert opened.view.evaluate("document.documentElement.scrollWidth") <= 360
        assert opened.complaints == []
        assert opened.requests == {second.url}
        opened.view.close()
