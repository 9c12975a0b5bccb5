"""The sheet has every part of an episode; canvas, letters and panels that it is drawn with."""

from __future__ import annotations

import doctest
import string
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episodes import Episode
from rlds2reverb.showing import sheet as module
from rlds2reverb.showing.canvas import (
    COLOURS,
    CURSOR,
    INK,
    PAPER,
    Box,
    blank,
    fill,
    frame,
    paste,
    plot,
    step_columns,
    write,
)
from rlds2reverb.showing.curves import Curve
from rlds2reverb.showing.font import HEIGHT, WIDTH, letters
from rlds2reverb.showing.panels import draw_panel, panel_height, plot_box, range_line
from rlds2reverb.showing.sheet import sheet
from tests.showing.shown import HOSTILE, camera, contents, episode


def places_of(picture: Any, part: Any) -> list[tuple[int, int]]:
    """Where a picture stands in another."""
    height, width = part.shape[:2]
    row, column = np.argwhere((part != PAPER).any(-1))[0]
    inked = np.argwhere((picture == part[row, column]).all(-1)) - (row, column)
    corners = [(top, left) for top, left in inked.tolist() if top >= 0 and left >= 0]
    return [one for one in corners if np.array_equal(picture[one[0] : one[0] + height, one[1] : one[1] + width], part)]


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(module).failed == 0


def test_all_letters_differ_and_have_their_lines_within_their_box() -> None:
    drawn = {one: letters(one).tobytes() for one in string.printable[:95]}
    assert len(set(drawn.values())) == 95
    assert all(letters(one).shape == (HEIGHT, WIDTH) and not letters(one)[:, -1].any() for one in drawn)
    assert letters("\u6771").tobytes() == letters("\xe9").tobytes()
    assert letters("").shape == (HEIGHT, 0)


def test_what_lies_outside_of_a_canvas_is_cut_off() -> None:
    canvas = blank(10, 20)
    write(canvas, "wide enough", 6, 3)
    paste(canvas, camera(1)[0], 5, 15)
    fill(canvas, Box(8, 18, 9, 9), CURSOR)
    assert canvas.shape == (10, 20, 3)
    assert (canvas[9, 19] == CURSOR).all()
    write(canvas, "nothing", 0, 40)


def test_a_curve_is_drawn_where_its_values_are() -> None:
    canvas = blank(20, 14)
    plot(canvas, Curve("", np.array([0.0, np.nan, 1.0])), Box(2, 1, 11, 12), (0.0, 1.0), INK)
    ink = {(int(row), int(column)) for row, column in np.argwhere((canvas == INK).all(-1))}
    assert ink == {(row, at) for at in range(1, 5) for row in (11, 12)} | {
        (row, at) for at in range(9, 13) for row in (2, 3)
    }


@pytest.mark.parametrize(("steps", "width"), [(1, 7), (7, 7), (3, 10), (50, 7)])
def test_the_columns_of_a_step_are_in_the_plot(steps: int, width: int) -> None:
    found = [step_columns(step, steps, width) for step in range(steps)]
    assert found[0][0] == 0
    assert found[-1][1] <= width
    assert all(start < stop for start, stop in found)


def test_a_frame_is_one_pixel_wide() -> None:
    canvas = blank(6, 6)
    frame(canvas, Box(1, 1, 4, 4), INK)
    assert int((canvas == INK).all(-1).sum()) == 12


def test_a_panel_has_each_dimension_in_its_colour() -> None:
    (panel,) = contents(Episode({"x": np.arange(24.0).reshape(3, 8)}, id="e")).panels
    canvas = blank(200, 400)
    place = Box(10, 20, panel_height(80), 360)
    draw_panel(canvas, panel, place)
    room = plot_box(place)
    inside = canvas[room.top : room.top + room.height, room.left : room.left + room.width].reshape(-1, 3)
    assert {tuple(one) for one in inside.tolist()} == {*COLOURS, PAPER}
    assert (canvas[: place.top] == PAPER).all()
    assert (canvas[place.top + place.height :] == PAPER).all()


def test_the_line_of_a_panel_counts_what_is_not_drawn() -> None:
    (panel,) = contents(Episode({"x": np.zeros((3, 20))}, id="e")).panels
    assert range_line(panel) == "float64[20]  0  (first 8 of 20 dimensions)"


def test_the_strip_has_the_pictures_as_they_are_enlarged_by_whole_numbers() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 24, 32, 3), np.uint8)
    picture = sheet(contents(Episode({"camera": images, "reward": np.ones(3)}, id="e")))
    times = 10  # three of them beside one another in 1,000 pixels
    places = [places_of(picture, one.repeat(times, 0).repeat(times, 1)) for one in images]
    assert [len(found) for found in places] == [1, 1, 1]
    assert places[0][0][0] == places[1][0][0] == places[2][0][0]
    assert places[0][0][1] < places[1][0][1] < places[2][0][1]


def test_more_pictures_begin_a_new_row() -> None:
    few, many = (sheet(contents(episode(40)), frames) for frames in (8, 40))
    assert many.shape[0] == few.shape[0] + 4 * 90  # 72 of pictures, 18 of what stands below


def test_everything_is_on_it() -> None:
    whole = contents(episode(metadata={"seed": 7}))
    picture = sheet(whole)
    for text, colour in [("observation/state", INK), ("is_terminal: at 5", INK), ('language: "reach for it"', INK)]:
        drawn = blank(HEIGHT, len(text) * WIDTH)
        write(drawn, text, 0, 0, colour)
        assert len(places_of(picture, drawn)) == 1, text


@pytest.mark.parametrize(
    "one",
    [
        Episode({}, id="e"),
        Episode({"reward": np.zeros(0)}, id="e"),
        Episode({HOSTILE: np.full(3, np.nan)}, {HOSTILE: HOSTILE * 99}, id="e"),
        Episode({"camera": np.zeros((2, 700, 9, 3), np.uint8)}, id="e"),
    ],
)
def test_odd_episodes_have_one_too(one: Episode) -> None:
    assert sheet(contents(one)).shape[1] == 1040
