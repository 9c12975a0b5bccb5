"""The status page over days, with alerts, and of many tables, in a real browser."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from replay_server.config import HttpSection, decode, table_configs
from replay_server.history import HISTORY, CheckpointRow, History, HistoryFile, MemorySample, fit_history
from replay_server.http import HttpServer, make_app
from replay_server.monitor import Monitor
from replay_server.service import ReplayService
from replay_server.store import CheckpointStore

import rlds2reverb
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo
from tests.support.forks import Forks
from tests.support.processes import wait_until
from tests.support.push.in_memory import table_info
from tests.support.server_running import Server
from tests.unit.server.test_http_page import HOSTILE, Page, browser, is_too_wide

sync_api = pytest.importorskip("playwright.sync_api")

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

__all__ = ["browser"]

FULL = "checkpoint: No space left on device <b>bold</b>"

TABLES = [
    {"name": "replay", "max_size": 8000, "rate_limiter": {"kind": "min_size", "min_size": 1000}},
    {"name": "queue", "rate_limiter": {"kind": "queue", "size": 5}},
]


def days(now: int) -> History:
    """Five days with a night without a server, and a disk that was full for half a day."""
    hour, history = 3600, History()
    began, night, full = now - 120 * hour, now - 80 * hour, now - 40 * hour
    for number, when in enumerate(range(began, now, hour // 2), 1):
        if night <= when < night + 9 * hour:
            continue
        first = began if when < night else night + 9 * hour
        size = 40_000_000 + 900_000 * number
        good = CheckpointRow(when, when, 1, 4.0 + number / 20, size, number, "schedule")
        bad = CheckpointRow(when, when, 1, 0.2, 0, 0, "schedule", FULL)
        history = history.running(first, when).with_checkpoint(bad if full <= when < full + 11 * hour else good)
        history = history.with_sample(MemorySample(when, 120_000_000 + size // 2, 300_000 + 7000 * number))
        history = fit_history(history, when)
    bad = CheckpointRow(now - 60, now - 60, 1, 0.2, 0, 0, "request", FULL)
    return history.with_checkpoint(bad).running(night + 9 * hour, now - 5)


@pytest.fixture(scope="module")
def server(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With five days behind it, whose newest checkpoint has failed."""
    folder = tmp_path_factory.mktemp("days")
    HistoryFile(CheckpointStore(folder / "checkpoints", 3)).write(days(int(time.time())))
    (folder / "checkpoints" / "set_aside" / "009999").mkdir()  # else a start misses the generations of these days
    with Server(forks, folder, {"tables": TABLES, "checkpoints": {"every_seconds": 1800}}).until_ready() as running:
        with rlds2reverb.connect(running.address) as client:
            client.push("bundled:half_cheetah", table="replay")
        assert running.get("/checkpoint", "POST")[0] == 200
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_days_are_shown_at_any_width_in_any_colours(browser: Any, server: Server, width: int, scheme: str) -> None:
    opened = Page(browser, server.url, width, scheme)
    view = opened.view
    sync_api.expect(view.locator("#timeline rect.failed").first).to_be_attached(timeout=60_000)
    sync_api.expect(view.locator("#timeline rect.ran")).to_have_count(3)
    sync_api.expect(view.locator("#timeline rect.missing").first).to_be_attached()
    sync_api.expect(view.locator("#gaps")).to_contain_text("no server ran for 10 h")
    sync_api.expect(view.locator("#gaps")).to_contain_text("no checkpoint succeeded for")
    sync_api.expect(view.locator("#days polyline.memory").first).to_be_attached()
    sync_api.expect(view.locator("#held polyline.items").first).to_be_attached()
    sync_api.expect(view.locator("#minutes polyline.memory")).to_be_attached()
    sync_api.expect(view.locator("#firing")).to_contain_text("ReplayCheckpointFailed")
    assert not is_too_wide(opened)
    view.locator("#rows-title").click()
    sync_api.expect(view.locator("#written-rows")).to_contain_text(FULL)
    assert view.locator("#written-rows b").count() == 0
    assert not is_too_wide(opened)
    assert opened.complaints == []
    assert opened.requests == {server.url}
    view.close()


def test_an_alert_leads_to_its_entry_in_the_runbook(browser: Any, server: Server) -> None:
    opened = Page(browser, server.url, 400)
    opened.view.get_by_role("link", name="ReplayCheckpointFailed").click()
    opened.view.wait_for_url("**/runbook#replaycheckpointfailed")
    heading = opened.view.get_by_role("heading", name="ReplayCheckpointFailed")
    sync_api.expect(heading).to_be_in_viewport()
    assert not is_too_wide(opened)
    opened.view.get_by_role("link", name="Status page", exact=True).click()
    opened.view.wait_for_selector("article")
    assert opened.complaints == []
    assert opened.requests == {server.url}
    opened.view.close()


def told_again(view: Any) -> None:
    """Waits until the page has asked anew, and shows it."""
    for _ in range(2):
        with view.expect_response("**/status.json", timeout=60_000):
            pass


def test_who_uses_the_keyboard_reaches_all_and_stays_there(browser: Any, server: Server) -> None:
    opened = Page(browser, server.url)
    reached = []
    for _ in range(24):
        opened.view.keyboard.press("Tab")
        reached.append(opened.view.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"ReplayCheckpointFailed", "rows-title", "write", "Runbook"} <= set(reached)
    opened.view.get_by_role("link", name="ReplayCheckpointFailed").focus()
    told_again(opened.view)
    assert opened.view.evaluate("document.activeElement.textContent") == "ReplayCheckpointFailed"
    opened.view.close()


def test_a_history_that_does_not_come_is_said_with_its_age(browser: Any, server: Server) -> None:
    opened = Page(browser, server.url)
    problem = opened.view.locator("#past-problem")
    sync_api.expect(opened.view.locator("#timeline rect.ran").first).to_be_attached(timeout=60_000)
    sync_api.expect(problem).to_be_hidden()
    opened.view.route("**/history.json", lambda route: route.fulfill(status=500, body="no"))
    opened.view.get_by_role("button", name="Write a checkpoint").click()
    sync_api.expect(problem).to_contain_text("The history does not answer; what is shown is", timeout=60_000)
    sync_api.expect(opened.view.locator("#state")).to_contain_text("ready")
    opened.view.unroute("**/history.json")
    opened.view.get_by_role("button", name="Write a checkpoint").click()
    sync_api.expect(problem).to_be_hidden(timeout=60_000)
    opened.view.close()


def test_a_restart_after_a_kill_keeps_the_history(browser: Any, forks: Forks, tmp_path: Path) -> None:
    config = {"tables": [{"name": HOSTILE}]}
    with Server(forks, tmp_path, config).until_ready() as first:
        assert first.get("/checkpoint", "POST")[0] == 200
        wait_until(
            lambda: (
                f'"{HOSTILE}"' not in (text := (tmp_path / "checkpoints" / HISTORY).read_text()) and '"request"' in text
            )
        )
        first.stop(signal.SIGKILL)
    with Server(forks, tmp_path, config).until_ready() as second:
        past = second.get("/history.json")[1]
        assert [(checkpoint["generation"], checkpoint["reason"]) for checkpoint in past["checkpoints"]] == [
            (1, "request")
        ]
        assert len(past["runs"]) == 2
        opened = Page(browser, second.url)
        sync_api.expect(opened.view.locator("#timeline rect.written")).to_have_count(1, timeout=60_000)
        sync_api.expect(opened.view.locator("#timeline rect.ran")).to_have_count(2)
        opened.view.close()
        assert second.stop() == 0
    with Server(forks, tmp_path, config).until_ready() as third:
        assert [checkpoint["reason"] for checkpoint in third.get("/history.json")[1]["checkpoints"]] == [
            "request",
            "not needed",
        ]


@contextmanager
def made_up(folder: Path, tables: Iterable[TableInfo]) -> Iterator[str]:
    """The address of a page of these tables, of a Reverb that is made up."""
    config = decode({"tables": [{"name": "t"}], "checkpoints": {"folder": str(folder)}}, "config")
    state = ReplayService(config, table_configs(config)).state
    held = {table.name: table for table in tables}
    state.monitor = Monitor(lambda: ServerInfo(7, held))
    state.phase = "ready"
    state.monitor.start()
    http = HttpServer(make_app(state, lambda: None), HttpSection(port=0))  # type: ignore[arg-type,return-value]
    http.start()
    yield http.url
    http.stop()
    state.monitor.stop()


MANY = 1000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A thousand tables."""
    names = [*(f"table-{n:03d}" for n in range(MANY - 1)), HOSTILE]
    tables = (replace(table_info(name), max_size=MANY, current_size=n) for n, name in enumerate(names))
    with made_up(tmp_path_factory.mktemp("many"), tables) as url:
        yield url


@pytest.mark.parametrize("width", [400, 1280])
def test_of_a_thousand_tables_some_are_shown_and_any_is_found(browser: Any, many: str, width: int) -> None:
    opened = Page(browser, many, width)
    view, rows = opened.view, opened.view.locator("#all-tables tbody tr")
    sync_api.expect(rows).to_have_count(100)
    sync_api.expect(view.locator("#counted")).to_have_text("1,000 tables")
    view.get_by_role("button", name="Show more: 900 are not shown").click()
    sync_api.expect(rows).to_have_count(200)
    view.get_by_label("find").fill("ONERROR")
    sync_api.expect(rows).to_have_count(1)
    sync_api.expect(rows.first).to_contain_text(HOSTILE)
    sync_api.expect(view.locator("#counted")).to_have_text("1 of 1,000 tables")
    view.get_by_label("find").fill("table-")
    view.get_by_role("button", name="items").click()
    sync_api.expect(rows.first).to_contain_text("table-998")
    told_again(view)
    assert view.get_by_label("find").input_value() == "table-"
    assert view.locator("img").count() == 0
    assert not is_too_wide(opened)
    assert opened.complaints == []
    assert opened.requests == {many}
    view.close()


RATIO = RateLimiter(4.0, 0.0, 1e9, 100, 2931, 13_336)
"""Of a table that has given more samples than its limiter allows."""
FREE = RateLimiter(1.0, -1e308, 1e308, 1, 5, 0)


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Forty tables: one empty, one blocked, one with a name that is markup, one full, one that lacks a single item."""
    tables = {
        name: replace(table_info(name), max_size=10_000, current_size=100 + n, rate_limiter=FREE)
        for n, name in enumerate([*(f"t{n}" for n in range(39)), HOSTILE])
    }
    tables["t2"] = replace(tables["t2"], name="t2" + "x" * 300)
    tables["t3"] = replace(tables["t3"], current_size=0, rate_limiter=replace(FREE, inserts=0))
    tables["t4"] = replace(tables["t4"], current_size=2931, rate_limiter=RATIO)
    tables["t5"] = replace(tables["t5"], current_size=10_000)
    tables["t6"] = replace(tables["t6"], current_size=9_999)
    with made_up(tmp_path_factory.mktemp("forty"), tables.values()) as url:
        yield url


def row(view: Any, name: str) -> Any:
    return view.locator("#all-tables tbody tr").filter(has=view.get_by_role("button", name=name, exact=True))


def names(view: Any) -> list[str]:
    return list(view.locator("#all-tables tbody th").all_inner_texts())


CONTRAST = """() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    let under = element;
    while (under.parentElement && (parts(getComputedStyle(under).backgroundColor)[3] ?? 1) === 0) under = under.parentElement;
    const [a, b] = [element.closest("svg") ? style.fill : style.color, getComputedStyle(under).backgroundColor].map(one => light(parts(one)));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push(`${texts.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""
"""Visible texts whose contrast is less than WCAG's AA."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_all_text_has_contrast_and_all_controls_have_names(browser: Any, forty: str, width: int, scheme: str) -> None:
    opened = Page(browser, forty, width, scheme, path="/?table=t4")
    view = opened.view
    sync_api.expect(view.get_by_role("article")).to_be_visible()
    assert view.evaluate(CONTRAST) == []
    for control in view.locator("button:visible, input:visible, select:visible, svg:visible").all():
        named = control.evaluate("node => node.ariaLabel || node.labels?.[0]?.innerText || node.textContent")
        assert named.strip(), control.evaluate("node => node.outerHTML")
    assert not is_too_wide(opened)
    view.close()


def test_forty_tables_are_one_table_in_natural_order_below_memory(browser: Any, forty: str) -> None:
    opened = Page(browser, forty)
    view = opened.view
    assert [name[:3].rstrip("x") for name in names(view)] == ["<im", *(f"t{n}" for n in range(39))]
    assert view.locator("article").count() == 0
    tops = [view.locator(selector).bounding_box()["y"] for selector in ("#tiles", "#memory", "#saved", "#all-tables")]
    assert tops == sorted(tops)
    sync_api.expect(row(view, "t3").locator(".state")).to_have_text("empty")
    sync_api.expect(row(view, "t3").locator(".state")).to_have_class("of-state state soft")
    sync_api.expect(row(view, "t4").locator(".state")).to_have_class("of-state state warn")
    sync_api.expect(view.locator("#tiles")).to_contain_text("1 blocked, 1 empty, 38 OK")
    full, nearly = (row(view, name).locator(".bar > div").bounding_box()["width"] for name in ("t5", "t6"))
    assert full == row(view, "t5").locator(".bar").bounding_box()["width"] > nearly
    view.close()


@pytest.mark.parametrize("width", [400, 1280])
def test_what_is_chosen_of_forty_tables_is_kept_by_the_address(browser: Any, forty: str, width: int) -> None:
    opened = Page(browser, forty, width)
    view = opened.view
    view.get_by_role("button", name="items").click()
    assert names(view)[:3] == ["t5", "t6", "t4"]
    sync_api.expect(view.get_by_role("columnheader", name="items")).to_have_attribute("aria-sort", "descending")
    view.get_by_role("button", name="items").click()
    sync_api.expect(view.get_by_role("columnheader", name="items")).to_have_attribute("aria-sort", "ascending")
    assert names(view)[0] == "t3"
    view.get_by_label("find").fill("T1")
    assert names(view) == ["t1", *(f"t{n}" for n in range(10, 20))]
    view.get_by_role("button", name="t12", exact=True).focus()
    view.keyboard.press("Enter")
    sync_api.expect(view.get_by_role("button", name="t12", exact=True)).to_have_attribute("aria-expanded", "true")
    sync_api.expect(view.get_by_role("article")).to_contain_text("112 of 10,000 items")
    assert view.url == f"{forty}/?find=T1&sort=-items&table=t12"
    told_again(view)
    assert view.evaluate("document.activeElement.textContent") == "t12"
    view.reload()
    sync_api.expect(view.get_by_role("article")).to_contain_text("112 of 10,000 items")
    assert names(view) == ["t1", *(f"t{n}" for n in range(10, 20))]
    assert view.get_by_label("find").input_value() == "T1"
    assert not is_too_wide(opened)
    view.get_by_role("button", name="t12", exact=True).click()
    sync_api.expect(view.get_by_role("article")).to_have_count(0)
    view.get_by_label("find").fill("")
    view.get_by_label("state").select_option("blocked")
    assert names(view) == ["t4"]
    assert view.url == f"{forty}/?state=blocked&sort=-items"
    assert opened.complaints == []
    assert opened.requests == {forty}
    view.close()


def test_an_address_may_have_anything(browser: Any, forty: str) -> None:
    opened = Page(browser, forty, path=f"/?table={quote(HOSTILE)}&sort={quote(HOSTILE)}&state=x&find={quote(HOSTILE)}")
    view = opened.view
    sync_api.expect(view.get_by_role("article")).to_contain_text("139 of 10,000 items")
    assert names(view) == [HOSTILE]
    assert view.locator("img").count() == 0
    assert opened.complaints == []
    view.close()


def test_a_block_is_a_plain_sentence_with_the_condition_that_blocks(browser: Any, forty: str) -> None:
    opened = Page(browser, forty, path="/?table=t4")
    card = opened.view.get_by_role("article")
    sync_api.expect(card.locator(".state")).to_have_text("Sampling blocked, inserting OK")
    sync_api.expect(card.locator(".why")).to_have_text(
        "sampling waits for 404 more inserts: 4.55 samples per insert, limit 4"
    )
    sync_api.expect(card.locator(".wanted")).to_have_text("target 4")
    line, done, gauge = (card.locator(f".gauge{name}").bounding_box() for name in (" > i", " > div", ""))
    assert line["x"] == pytest.approx(gauge["x"] + gauge["width"] / 2, abs=2)
    assert done["width"] / gauge["width"] == pytest.approx(4.55 / 8, abs=0.01)
    opened.view.close()


@pytest.mark.parametrize(
    ("severity", "words", "kind"), [("warning", "1 warning", "warn"), ("critical", "1 critical", "bad")]
)
def test_a_warning_is_no_critical_alert(browser: Any, forty: str, severity: str, words: str, kind: str) -> None:
    def with_alert(route: Any) -> None:
        found = [{"table": "t5", "words": "10,000 of 10,000 items"}]
        alert = {"alert": "ReplayTableNearlyFull", "severity": severity, "firing": True, "for_seconds": 300}
        document = route.fetch().json()
        document["alerts"] = [{**alert, "seconds": 32 * 60.0, "count": 1, "found": found}]
        route.fulfill(json=document)

    opened = Page(browser, forty)
    view = opened.view
    view.route("**/status.json", with_alert)
    sync_api.expect(view.locator("#wrong")).to_have_text(f"Alerts: {words}")
    sync_api.expect(view.locator("#alerts")).to_have_class(f"card {severity}")
    sync_api.expect(view.locator("#firing .state")).to_have_text(f"{severity.capitalize()}, firing for 32 min")
    sync_api.expect(view.locator("#firing .state")).to_have_class(f"state {kind}")
    sync_api.expect(view).to_have_title(f"1 alert · ready · {forty.removeprefix('http://')}")
    view.unroute_all(behavior="wait")
    view.close()
