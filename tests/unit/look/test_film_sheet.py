"""The sheet has every part of an episode, and what is drawn on it is where its values are."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.look import film as module
from rlds2reverb.look.film import COLOURS, CURSOR, PAPER, Film, sheet
from tests.support.look.shown import HOSTILE, contents, episode


def places_of(picture: Any, part: Any) -> list[tuple[int, int]]:
    """Where a picture stands in another."""
    height, width = part.shape[:2]
    row, column = np.argwhere((part != PAPER).any(-1))[0]
    inked = np.argwhere((picture == part[row, column]).all(-1)) - (row, column)
    corners = [(top, left) for top, left in inked.tolist() if top >= 0 and left >= 0]
    return [
        corner
        for corner in corners
        if np.array_equal(picture[corner[0] : corner[0] + height, corner[1] : corner[1] + width], part)
    ]


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(module).failed == 0


def test_a_curve_is_drawn_where_its_values_are() -> None:
    values = np.array([0.0, 0.0, np.nan, 1.0])
    picture = sheet(contents(Episode({"x": values}, id="e")))
    rows, columns = np.nonzero((picture == COLOURS[0]).all(-1))
    inside = columns > 100  # left of it stands the legend
    low, high = (rows[inside & (columns < 500)], rows[inside & (columns > 780)])
    assert low.min() > high.max() + 40
    assert not ((columns > 450) & (columns < 880)).any()


def test_every_peak_of_a_long_episode_is_drawn() -> None:
    values = np.zeros(50_000)
    values[12_345] = 1.0
    picture = sheet(contents(Episode({"x": values}, id="e")))
    rows, columns = np.nonzero(np.abs(picture.astype(int) - COLOURS[0]).sum(-1) < 60)
    inside = columns > 100
    assert np.ptp(rows[inside]) > 70
    peak = columns[inside & (rows < rows[inside].max() - 20)]
    assert pytest.approx(peak.mean(), abs=4) == 80 + 930 * 12_345 / 50_000


def test_text_is_smooth_and_never_cut() -> None:
    words = "pick up the cup " * 20
    long = Episode({"language_instruction": np.array([words] * 3), "x" * 300: np.arange(3)}, id="name/" * 90)
    picture = sheet(contents(long))
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 30  # letters have grey edges
    for text, size in ((words, 16), ("name/" * 90, 11), ("x" * 300, 13)):
        lines = module._lines(text, 1000, size)
        assert "".join(line.text for line in lines).replace(" ", "") == text.replace(" ", "")
        assert all(module._length(line.text, line.size) <= 1000 for line in lines)
    assert (picture[:, -19:] == PAPER).all()


def test_letters_that_the_font_lacks_are_spelled_out() -> None:
    missing = bytes(module._font(13).getmask("\u7acb"))
    written = module._drawable("".join(filter(str.isprintable, map(chr, range(32, 0x2100)))) + "\u7acb\U0001f916")
    assert not [letter for letter in written if bytes(module._font(13).getmask(letter)) == missing]
    assert written.endswith("\\u7acb\\U0001f916")


def test_constant_columns_have_no_curve() -> None:
    still = {"zeros": np.zeros(3), "ones": np.ones(3)}
    with_them, without = (
        sheet(contents(Episode({"x": np.arange(3), **more}, id="e"))) for more in (still, {"zeros": np.zeros(3)})
    )
    assert with_them.shape == without.shape


def test_each_dimension_has_its_colour() -> None:
    picture = sheet(contents(Episode({"x": np.arange(24.0).reshape(3, 8)}, id="e")))
    assert {tuple(colour) for colour in picture.reshape(-1, 3).tolist()} >= {*COLOURS, PAPER}


@pytest.mark.parametrize("steps", [2, 3, 7, 5_000])
def test_the_line_of_a_film_stays_in_its_panel(steps: int) -> None:
    film = Film(contents(Episode({"x": np.arange(steps)}, id="e")))
    for step in {0, steps // 2, steps - 1}:
        lines = np.argwhere((film.picture(step) == CURSOR).all(-1))
        assert len({int(left) for _, left in lines}) == 1
        assert 0 < lines[0][1] < film.size[1] - 1


def test_the_strip_has_the_pictures_as_they_are_enlarged_by_whole_numbers() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 24, 32, 3), np.uint8)
    picture = sheet(contents(Episode({"camera": images, "reward": np.ones(3)}, id="e")))
    times = 10  # three of them beside one another in 1,000 pixels
    places = [places_of(picture, image.repeat(times, 0).repeat(times, 1)) for image in images]
    assert [len(found) for found in places] == [1, 1, 1]
    assert places[0][0][0] == places[1][0][0] == places[2][0][0]
    assert places[0][0][1] < places[1][0][1] < places[2][0][1]


def test_more_pictures_begin_a_new_row() -> None:
    few, many = (sheet(contents(episode(40)), frames) for frames in (8, 40))
    assert many.shape[0] > few.shape[0] + 4 * 72


def test_more_is_written_for_more_that_is_there() -> None:
    few, many = (sheet(contents(episode(metadata=told))) for told in ({}, {"seed": 7}))
    assert many.shape[0] > few.shape[0]
    assert (many != PAPER).sum() > (few != PAPER).sum()


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
