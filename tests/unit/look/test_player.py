"""The page: what is in it, as text; `test_page_in_chromium` opens it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from typing import Any

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.look.curves import HEIGHT, WIDTH, Curve, path_of
from rlds2reverb.look.pictures import png_file, small_file
from rlds2reverb.look.player import page
from tests.support.look.shown import HOSTILE, camera, contents, episode


class Read(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open = tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open, []).append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def data(self) -> Any:
        return json.loads(self.texts["script"][0])


def pixels(uri: str) -> Any:
    kind, _, data = uri.partition(";base64,")
    decode: Any = {"data:image/png": imagecodecs.png_decode, "data:image/jpeg": imagecodecs.jpeg8_decode}[kind]
    return decode(base64.b64decode(data))


def test_the_player_has_the_picture_of_each_step() -> None:
    data = Read(page(contents())).data
    assert (data["steps"], data["count"], data["fps"]) == ([0, 1, 2, 3, 4, 5], 6, 10)
    (pictures,) = data["pictures"]
    for found, wanted in zip(pictures, camera(6), strict=True):
        np.testing.assert_array_equal(pixels(found), wanted)


def test_photographs_are_jpeg_and_large_ones_are_made_smaller() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (2, 400, 500, 3), np.uint8)
    (pictures,) = Read(page(contents(Episode({"camera": noise}, id="e")))).data["pictures"]
    assert all(picture.startswith("data:image/jpeg") for picture in pictures)
    assert pixels(pictures[0]).shape == (256, 320, 3)
    assert abs(pixels(pictures[0]).mean() - noise[0].mean()) < 2


def test_the_values_of_each_step_are_told() -> None:
    one = Episode({"x": np.array([[1, 5, 7], [2.5, np.inf, 7]]), "y": np.arange(1)}, id="e")
    assert Read(page(contents(one))).data["values"] == [["1", "2.5"], ["5", "inf"]]
    assert "x[2] = 7; y = 0" in page(contents(one))


@pytest.mark.parametrize(("frames", "count"), [(None, 200), (7, 7), (1000, 400)])
def test_long_episodes_have_fewer_pictures(frames: int | None, count: int) -> None:
    one = contents(Episode({"camera": np.zeros((400, 8, 8), np.uint8)}, id="e"))
    assert len(Read(page(one, frames)).data["steps"]) == count


def test_nothing_can_be_asked_for_and_nothing_else_can_run() -> None:
    read = Read(page(contents()))
    policy = dict(part.strip().split(" ", 1) for part in str(read.of("meta")[1]["content"]).split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == "data:"
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        digest = base64.b64encode(hashlib.sha256(read.texts[tag][-1].encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"
    addresses = [value for _, attributes in read.tags for name, value in attributes.items() if name in ("src", "href")]
    assert addresses
    assert all(str(address).startswith("data:image/") for address in addresses)
    assert not [attributes for _, attributes in read.tags if "style" in attributes]


def test_hostile_names_and_texts_are_text() -> None:
    text = np.empty(6, object)
    text[:] = HOSTILE.encode()
    columns = {
        HOSTILE: np.arange(6),
        f"{HOSTILE}t": text,
        f"{HOSTILE}c": camera(6),
        f"{HOSTILE}o": np.zeros(6, complex),
    }
    plain, hostile = contents(), contents(episode(columns=columns, metadata={HOSTILE: HOSTILE}))
    read = Read(page(hostile))
    assert {tag for tag, _ in read.tags} == {tag for tag, _ in Read(page(plain)).tags}
    assert not [attributes for _, attributes in read.tags if any(name.startswith("on") for name in attributes)]
    assert "\x1b" not in page(hostile)


@pytest.mark.parametrize(
    "one", [Episode({}, id="e"), Episode({"x": np.zeros(0)}, id="e"), Episode({"t": np.array(["a"])}, id="e")]
)
def test_an_episode_with_nothing_to_play_has_no_player(one: Episode) -> None:
    assert Read(page(contents(one))).of("input") == []


def test_what_is_not_shown_is_told() -> None:
    text = page(contents(Episode({**{f"c{n}": np.zeros(2) for n in range(50)}, "z": np.zeros(2, complex)}, id="e")))
    assert "and 10 more number columns" in text
    assert "complex128[]" in text


def points(path: str) -> list[tuple[float, float]]:
    """The corners of a path of M, H and V; a break is (nan, nan)."""
    found: list[tuple[float, float]] = []
    for command, numbers in re.findall(r"([MHV])([^MHV]*)", path):
        values = [float(word) for word in numbers.split()]
        if command == "M":
            found += [(float("nan"), float("nan")), (values[0], values[1])]
        else:
            found.append((values[0], found[-1][1]) if command == "H" else (found[-1][0], values[0]))
    return found


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=1500))
def test_a_path_goes_through_every_value_and_stays_inside(values: list[float]) -> None:
    corners = np.array(points(path_of(Curve("", np.array(values)), (-9, 9))))
    x, y = corners[1:].T  # without the break before the first
    assert x.min() == 0
    assert x.max() == WIDTH
    assert (np.diff(x) >= 0).all()
    drawn = (HEIGHT - 4 - y) / (HEIGHT - 8) * 18 - 9
    np.testing.assert_allclose([drawn.min(), drawn.max()], [min(values), max(values)], atol=0.01)


def test_a_path_is_interrupted_where_there_is_no_number() -> None:
    assert path_of(Curve("", np.array([0, np.nan, 1, 1])), (0, 1)) == "M0 96H150M300 4H450V4H600"
    assert path_of(Curve("", np.array([np.nan])), (0, 1)) == ""
    assert path_of(Curve("", np.zeros(0)), (0, 1)) == ""


def test_pictures_of_another_size_get_that_of_the_first() -> None:
    column = np.empty(2, object)
    column[:] = [png_file(camera(1)[0]), png_file(camera(1, 48, 64)[0])]
    (pictures,) = Read(page(contents(Episode({"camera": column}, id="e")))).data["pictures"]
    assert [pixels(picture).shape for picture in pictures] == [(24, 32, 3)] * 2


@pytest.mark.parametrize("library", [True, False])
def test_a_png_file_has_every_pixel(monkeypatch: pytest.MonkeyPatch, library: bool) -> None:
    if not library:
        monkeypatch.setitem(sys.modules, "PIL", None)
    noise = np.random.default_rng(0).integers(0, 256, (7, 9, 3), np.uint8)
    np.testing.assert_array_equal(imagecodecs.png_decode(png_file(noise)), noise)
    assert len(small_file(noise)) <= len(png_file(noise))
