"""The page in a real browser, from a file."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.chromium import accessibility_findings, chromium
from tests.support.look.reported import HOSTILE, dataset, page, robot, robots

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages: of a dataset with problems, of one whose values are close, tiny and huge, and of two datasets."""
    folder = tmp_path_factory.mktemp("pages")
    one = dataset(robots(9, bad=(1, 2)), f"robots {HOSTILE}")
    far = {
        "observation/only": np.linspace(0.18, 0.85, 30),
        "observation/tiny": np.linspace(1e-300, 9e-300, 30),
        "observation/huge": np.linspace(-8e300, 8e300, 30),
        "observation/close": np.full(30, 1 + 2**-52),
    }
    others = dataset([robot(number, 30).with_columns(**far) for number in range(3)], "others")
    near = {"observation/tiny": np.linspace(0, 1e300, 12), "observation/close": np.ones(12)}
    two = page(dataset([robot(number).with_columns(**near) for number in range(6)]), others)
    texts = {"one": page(one), "two": two, "far": page(others)}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


class Opened:
    """An open page, and what went wrong on it."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str) -> None:
        self.view = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.requests: set[str] = set()
        self.view.on("console", lambda message: self.complaints.append(message.text))
        self.view.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.view.on("dialog", lambda dialog: self.complaints.append("a dialog opened"))
        self.view.on("request", lambda request: self.requests.add(request.url.partition(":")[0]))
        self.view.goto(path.as_uri())

    def until(self, script: str) -> None:
        """Waits for what a script says to be true; the page lets no text be evaluated, which Playwright's own waiting does."""
        until = time.monotonic() + 60
        while not self.view.evaluate(script):
            assert time.monotonic() < until, script
            self.view.wait_for_timeout(50)

    def draw_all(self) -> None:
        """Unfolds all, and brings every chart into view, one after the other."""
        self.view.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        for number in range(self.view.locator(".chart").count()):
            self.view.evaluate(f"document.querySelectorAll('.chart')[{number}].scrollIntoView({{behavior: 'instant'}})")
            self.until(f"!!document.querySelectorAll('.chart')[{number}].querySelector('canvas')")


DRAWN = """() => {
  const style = getComputedStyle(document.documentElement);
  const colours = ["--a", "--b", "--c"].map((name) => parseInt(style.getPropertyValue(name).trim().slice(1), 16));
  const is = (data, at, colour) => [16, 8, 0].every((bits, part) => Math.abs(data[at + part] - ((colour >> bits) & 255)) < 8);
  return [...document.querySelectorAll(".chart canvas")].filter((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 100 && colours.some((one) => is(data, at, one))) return true;
    return false;
  }).length;
}"""
"""Charts with a line or bars on them: axes alone have other colours."""


@pytest.mark.parametrize("name", ["one", "two", "far"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_drawn_and_nothing_else_happens(
    browser: Any, files: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    opened = Opened(browser, files[name], width, scheme)
    opened.draw_all()
    count = opened.view.locator(".chart").count()
    assert count > 20
    opened.until(f"({DRAWN})() === {count}")
    assert opened.view.evaluate("document.documentElement.scrollWidth") <= width
    background = opened.view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    assert opened.complaints == []
    assert opened.requests <= {"file", "data"}
    opened.view.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "two"])
def test_axe_finds_nothing(browser: Any, files: dict[str, Path], name: str, scheme: str) -> None:
    opened = Opened(browser, files[name], 1280, scheme)
    assert accessibility_findings(opened.view) == []
    opened.view.close()


def test_frames_are_played(browser: Any, files: dict[str, Path]) -> None:
    opened = Opened(browser, files["one"], 400, "light")
    player = opened.view.locator(".player").first
    told, slider = player.locator("output"), player.locator("input")
    assert told.text_content().startswith("step 0 (index 0 to ")
    first = player.locator("img").get_attribute("src")
    slider.fill("3")
    assert told.text_content().startswith("step 3 (index 0 to ")
    assert player.locator("img").get_attribute("src") != first
    player.locator("button").click()
    opened.until("!document.querySelector('.player output').textContent.startsWith('step 3 ')")
    player.locator("button").click()
    assert player.locator("button").text_content() == "Play"
    assert opened.complaints == []
    opened.view.close()


CURSORS = """() => [...document.querySelector(".episode").querySelectorAll(".chart")].map((chart) =>
  [chart.querySelector(".cursor")?.offsetLeft ?? -1, chart.parentElement.querySelector(".reading")?.textContent ?? ""])"""


def test_the_player_moves_a_cursor_in_all_curves(browser: Any, files: dict[str, Path]) -> None:
    opened = Opened(browser, files["one"], 1280, "light")
    opened.draw_all()
    slider = opened.view.locator(".player input").first
    assert (
        int(slider.get_attribute("max")) == int(opened.view.locator(".episode").first.get_attribute("data-steps")) - 1
    )
    slider.fill("2")
    before = opened.view.evaluate(CURSORS)
    slider.press("ArrowRight")
    after = opened.view.evaluate(CURSORS)
    assert len(before) >= 2
    assert all(words.startswith("step 2: ") for _, words in before)
    assert all(words.startswith("step 3: ") for _, words in after)
    assert all(right > left >= 0 for (left, _), (right, _) in zip(before, after))
    opened.view.close()


def test_a_curve_under_the_pointer_moves_the_player(browser: Any, files: dict[str, Path]) -> None:
    opened = Opened(browser, files["one"], 1280, "light")
    opened.draw_all()
    chart = opened.view.locator(".episode .chart").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    opened.view.mouse.move(box["x"] + box["width"] - 20, box["y"] + 30)
    last = opened.view.locator(".player input").first.get_attribute("max")
    assert opened.view.locator(".player output").first.text_content() == f"step {last} (index 0 to {last})"
    opened.view.mouse.move(2, 2)
    assert opened.view.locator(".player output").first.text_content() == f"step {last} (index 0 to {last})"
    opened.view.close()


@pytest.mark.parametrize("name", ["one", "two"])
def test_values_are_told_under_the_pointer_and_by_the_keys(browser: Any, files: dict[str, Path], name: str) -> None:
    opened = Opened(browser, files[name], 1280, "light")
    opened.draw_all()
    chart = opened.view.get_by_label("histogram: Episode lengths", exact=False)
    reading = chart.locator("xpath=following-sibling::p")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    opened.view.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    wanted = r"steps [\d,]+: \d+ episodes" if name == "one" else r"steps [\d,]+: robots [\d.]+ %, others [\d.]+ %"
    assert re.fullmatch(wanted, reading.text_content())
    assert chart.locator(".cursor").count() == 1
    opened.view.mouse.move(2, 2)
    assert reading.text_content() == ""
    chart.focus()
    found = {reading.text_content()}
    for _ in range(3):
        opened.view.keyboard.press("ArrowLeft")
        found.add(reading.text_content())
    assert len(found) == 4
    assert all(re.fullmatch(wanted, label) for label in found)
    opened.view.keyboard.press("Home")
    opened.view.evaluate("document.activeElement.blur()")
    assert reading.text_content() == ""
    assert opened.complaints == []
    opened.view.close()


def test_a_finger_chooses_a_value_that_stays(browser: Any, files: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800}, has_touch=True)
    view = context.new_page()
    view.goto(files["one"].as_uri())
    chart = view.get_by_label("histogram: Episode lengths", exact=False)
    chart.scroll_into_view_if_needed()
    chart.locator("canvas").wait_for()
    chart.tap(position={"x": 60, "y": 40})
    reading = chart.locator("xpath=following-sibling::p")
    first = reading.text_content()
    assert re.fullmatch(r"steps \d+: \d+ episodes", first)
    chart.tap(position={"x": 300, "y": 40})
    assert reading.text_content() != first
    context.close()


def test_the_contents_stay_in_view_and_columns_are_filtered_and_folded(browser: Any, files: dict[str, Path]) -> None:
    opened = Opened(browser, files["one"], 400, "dark")
    opened.view.locator("nav a", has_text="Columns").click()
    opened.until("Math.abs(document.getElementById('columns').getBoundingClientRect().top - 44) < 30")
    assert opened.view.locator("nav").bounding_box()["y"] == 0
    opened.view.locator("input[type=search]").fill("GRIPPER")
    shown = opened.view.locator("details.column:not([hidden]) > summary code")
    assert shown.all_text_contents() == ["observation/gripper_open"]
    assert opened.view.locator("tr[data-path]:not([hidden])").count() == 1
    opened.view.locator("input[type=search]").fill("")
    opened.view.locator("[data-fold]").click()
    assert opened.view.locator("details.column[open]").count() == 0
    opened.view.locator("a", has_text="observation/state").first.click()
    opened.until("document.querySelectorAll('details.column[open]').length === 1")
    opened.view.close()


def test_a_link_of_a_problem_leads_to_its_episode(browser: Any, files: dict[str, Path]) -> None:
    opened = Opened(browser, files["one"], 1280, "dark")
    link = opened.view.locator("#problems").locator("xpath=..").locator("a").first
    name = link.text_content()
    link.click()
    opened.until("!!document.querySelector('.episode:target')")
    assert opened.view.locator(".episode:target h3").text_content() == name
    opened.view.close()


def test_colours_follow_the_reader(browser: Any, files: dict[str, Path]) -> None:
    opened = Opened(browser, files["one"], 1280, "light")
    opened.draw_all()
    before = opened.view.evaluate("document.querySelector('.chart canvas').toDataURL()")
    opened.view.emulate_media(color_scheme="dark")
    opened.until(f"document.querySelector('.chart canvas').toDataURL() !== {before!r}")
    opened.view.close()
