"""The page of an episode in a real browser, from a file, at the widths of a desk and of a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.look.saving import saver
from tests.support.chromium import accessibility_findings, chromium
from tests.support.look.shown import HOSTILE, camera, contents

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = np.empty(30, object)
    text[:] = HOSTILE.encode()
    columns = {
        "camera": camera(30),
        "depth": np.random.default_rng(0).random((30, 60, 90)),
        HOSTILE: np.random.default_rng(0).normal(size=(30, 12)),
        "a/very/long/path/of/a/column/that/fits/nowhere/and/goes/on/and/on/and/on": np.arange(30),
        "text": text,
        "is_first": np.arange(30) == 0,
    }
    metadata = {HOSTILE: HOSTILE, "x" * 400: "y" * 400}
    path = tmp_path_factory.mktemp("page") / "episode.html"
    saver(path, None, 50)(contents(Episode(columns, metadata, HOSTILE)))
    return path


class Opened:
    """The page, and what went wrong on it."""

    def __init__(self, browser: Any, path: Path, width: int) -> None:
        self.view = browser.new_page(viewport={"width": width, "height": 800})
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.view.on("console", lambda message: self.complaints.append(message.text))
        self.view.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.view.on("dialog", lambda dialog: self.complaints.append("a dialog opened"))
        self.view.on("request", lambda request: self.requests.append(request.url))
        self.view.goto(path.as_uri())


@pytest.fixture(params=[1280, 400])
def page(request: pytest.FixtureRequest, browser: Any, path: Path) -> Iterator[Any]:
    opened = Opened(browser, path, request.param)
    yield opened.view
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [path.as_uri()]
    opened.view.close()


def shown(page: Any, column: int) -> Any:
    """The pixels of an image column."""
    text = """number => {
        const image = document.querySelectorAll(".images > figure > img")[number];
        return image.decode().then(() => {
            const canvas = document.createElement("canvas");
            canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
            const drawn = canvas.getContext("2d");
            drawn.drawImage(image, 0, 0);
            return [canvas.height, canvas.width, [...drawn.getImageData(0, 0, canvas.width, canvas.height).data]];
        });
    }"""
    height, width, values = page.evaluate(text, column)
    return np.array(values, np.uint8).reshape(height, width, 4)[..., :3]


def test_nothing_is_wider_than_the_page(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("svg path").count() == 9
    assert page.locator("body > img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    assert accessibility_findings(page) == []


def test_the_slider_shows_each_step(page: Any) -> None:
    for step in (0, 7, 29):
        page.fill("#at", str(step))
        assert page.inner_text("#told") == f"step {step} (index 0 to 29)"
        np.testing.assert_array_equal(shown(page, 0), camera(30)[step])
        assert page.locator(".value").last.inner_text() == str(step)
        x = page.locator(".cursor").first.get_attribute("x1")
        assert float(x) == pytest.approx((step + 0.5) * 20)


def test_the_player_plays_to_the_end_and_begins_again(page: Any) -> None:
    page.click("#play")
    page.get_by_text("step 29 (index 0 to 29)").wait_for(timeout=120_000)
    page.get_by_role("button", name="Play", exact=True).wait_for(timeout=120_000)
    again = "() => { document.getElementById('play').click(); return document.getElementById('told').textContent; }"
    assert page.evaluate(again) == "step 0 (index 0 to 29)"
    page.fill("#at", "3")  # which stops it
    assert page.inner_text("#play") == "Play"
    assert page.inner_text("#told") == "step 3 (index 0 to 29)"


def test_a_picture_of_the_strip_leads_to_its_step(page: Any) -> None:
    thumb = page.locator(".strip button").nth(3)
    thumb.click()
    assert page.inner_text("#told") == f"step {thumb.inner_text()} (index 0 to 29)"
