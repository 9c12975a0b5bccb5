"""What is told of an episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.encoding import png_files
from rlds2reverb.episode import Array, Episode
from rlds2reverb.look.notebook import episode_html
from tests.support.look.held import images
from tests.support.look.pages import Page
from tests.support.strategies import array, dtypes, episode, shapes
from tests.unit.look.test_notebook_markup import any_text
from tests.unit.look.test_notebook_showing import MOST


def test_its_length_return_and_end_are_told() -> None:
    made = episode(np.random.default_rng(0), 12, episode_id="mine").with_columns(reward=np.full(12, 0.5))
    page = Page(episode_html(made))
    assert page.text.startswith("Episode mine")
    assert [page.row(name) for name in ("steps", "return", "ends")] == ["12", "6", "terminal"]
    assert page.row("observation").startswith("float32[12, 17] | ")


@pytest.mark.parametrize(
    ("is_last", "is_terminal", "end"),
    [(1, 0, "truncated"), (1, 1, "terminal"), (0, 0, "open: its last row is not marked is_last")],
)
def test_how_it_ends(is_last: int, is_terminal: int, end: str) -> None:
    flags = {"is_last": np.array([0, is_last], bool), "is_terminal": np.array([0, is_terminal], bool)}
    assert Page(episode_html(Episode(flags, id="a"))).row("ends") == end


def test_pictures_stand_below_the_columns() -> None:
    files = np.empty(3, object)
    files[:] = png_files(images(3))
    page = Page(episode_html(Episode({"image": images(3), "file": files}, id="a")))
    assert page.row("image") == "uint8[3, 20, 30, 3] | pictures"
    assert page.row("file").startswith('string[3] | pictures, the first: "png image of 20 x 30" (')
    assert len(page.pictures) == 6


def test_an_empty_episode_has_no_steps() -> None:
    assert Page(episode_html(Episode({}, id="nothing"))).row("steps") == "0"
    flags = {"is_last": np.zeros(0, bool), "reward": np.zeros(0)}
    assert Page(episode_html(Episode(flags, id="nothing"))).row("return") == "0"


def test_a_column_of_another_length_is_told() -> None:
    page = Page(episode_html(Episode({"a": np.zeros(3), "b": np.zeros(2)}, id="a")))
    assert page.row("b").startswith("float64[2] 2 rows, not 3")


def test_numbers_have_a_small_curve_and_constants_have_none() -> None:
    columns: dict[str, Array] = {
        "moving": np.sin(np.arange(500.0)),
        "wide": np.arange(60.0).reshape(3, 20),
        "gap": np.array([0.0, np.nan, 1.0]),
        "still": np.zeros((3, 2)),
        "images": images(3),
        "large": np.arange(1_000_000.0),
    }
    html = {path: episode_html(Episode({path: column}, id="a")) for path, column in columns.items()}
    assert {path: markup.count("<path") for path, markup in html.items()} == {
        "moving": 1,
        "wide": 4,
        "gap": 1,
        "still": 0,
        "images": 0,
        "large": 0,
    }
    assert html["gap"].count("M") == html["moving"].count("M") + 1
    assert len(html["moving"]) < 5_000


def test_ten_thousand_columns_are_counted() -> None:
    columns = {f"observation/{number}<{'x' * 500}>": np.zeros(3) for number in range(10_000)}
    html = episode_html(Episode(columns, id="many"))
    assert len(html) < MOST
    assert "and 9,960 more columns" in Page(html).text


def test_a_billion_steps_cost_a_glance() -> None:
    rows = 10**9
    columns: dict[str, Array] = {
        "image": np.broadcast_to(np.uint8(7), (rows, 64, 64, 3)),
        "reward": np.broadcast_to(np.float32(1), rows),
        "is_last": np.broadcast_to(np.bool_(True), rows),
    }
    page = Page(episode_html(Episode(columns, id="long")))
    assert page.row("return") == "too many rewards to add up here"
    assert len(page.pictures) == 8


@given(
    st.dictionaries(any_text, st.tuples(dtypes(), shapes()), max_size=5),
    any_text,
    st.dictionaries(any_text, any_text, max_size=3),
)
def test_any_names_and_any_values_make_a_whole_page(
    specs: dict[str, tuple[np.dtype[Any], tuple[int, ...]]], name: str, metadata: dict[str, str]
) -> None:
    rng = np.random.default_rng(0)
    columns = {path: array(rng, dtype, (3, *shape)) for path, (dtype, shape) in specs.items()}
    html = episode_html(Episode(columns, metadata, id=name or "empty", faults=((name, name),)))
    html.encode("utf-8")
    page = Page(html)
    assert "cannot be shown" not in page.text or "cannot be shown" in name
    assert len([row for row in page.cells if " pictures" in row or "[3" in row[1]]) >= len(columns)
