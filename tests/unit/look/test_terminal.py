"""What a terminal gets: it fits its width, pictures are in colour, and a pipe gets plain lines."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from rlds2reverb.episode import Episode
from rlds2reverb.look.contents import Contents
from rlds2reverb.look.terminal import picture_lines, show
from tests.support.look.shown import HOSTILE, camera, contents, episode
from tests.support.pictures import files

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
PIXELS = re.compile(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m(\u2580+)")
WIDE = episode(
    columns={
        "a/very/long/path/of/a/column/that/fits/nowhere/and/goes/on/and/on/and/on": np.zeros((6, 9)),
        "observation/\u6771\u4eac": np.arange(6),
        "text": np.array(["\u6771\u4eac " * 80] * 6),
    },
    metadata={"path/" * 30: "x" * 900},
)


class Screen(io.TextIOWrapper):
    """A stream that may say that it is a terminal."""

    def __init__(self, encoding: str, is_terminal: bool) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding)
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


Shown = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Everything that is printed of an episode."""

    def run(
        of: Contents,
        width: int = 80,
        encoding: str = "utf-8",
        is_terminal: bool = True,
        frames: int | None = None,
        **environment: str,
    ) -> str:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        told = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(width), "LINES": "24", **environment}
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        screen = Screen(encoding, is_terminal)
        show(of, screen, frames)
        screen.flush()
        return screen.bytes.getvalue().decode(encoding)

    return run


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [20, 40, 80, 160])
def test_every_line_fits_the_terminal(shown: Shown, width: int, encoding: str) -> None:
    lines = ESCAPE.sub("", shown(contents(WIDE), width, encoding)).splitlines()
    assert len(lines) > 30
    assert max(map(cell_len, lines)) <= width


def test_a_pipe_gets_plain_lines_as_long_as_they_are(shown: Shown) -> None:
    told = shown(contents(WIDE), is_terminal=False)
    assert "\x1b" not in told
    assert any(len(line) > 200 for line in told.splitlines())
    assert "6 pictures of 32 x 24 pixels; not drawn, for there is no colour here: --save writes them to a file" in told


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colour_sizes_are_told(shown: Shown, environment: dict[str, str]) -> None:
    told = shown(contents(), width=200, **environment)
    assert "6 pictures of 32 x 24 pixels; not drawn" in told
    assert "\u2580" not in told
    assert "38;2" not in told


def test_pictures_are_their_pixels_two_in_a_character(shown: Shown) -> None:
    images = np.random.default_rng(1).integers(0, 256, (1, 24, 24, 3), np.uint8)
    told = shown(contents(Episode({"camera": images}, id="e")), width=160)
    found = [
        [tuple(map(int, pixel[:6])) for pixel in PIXELS.findall(line) for _ in pixel[6]]
        for line in told.splitlines()
        if "\u2580" in line
    ]
    halves = np.array(found).reshape(12, 24, 2, 3).transpose(0, 2, 1, 3).reshape(24, 24, 3)
    assert (halves == images[0]).all()


def test_as_many_pictures_as_fit_or_as_are_asked_for(shown: Shown) -> None:
    many = contents(Episode({"camera": camera(30)}, id="e"))

    def steps(told: str) -> list[int]:
        last = max(at for at, line in enumerate(told.splitlines()) if "\u2580" in line)
        return [int(word) for word in told.splitlines()[last + 1].split()]

    assert steps(shown(many, 80)) == [0, 10, 19, 29]
    assert steps(shown(many, 160)) == [0, 6, 12, 17, 23, 29]
    assert steps(shown(many, 160, frames=2)) == [0, 29]


def test_ascii_terminals_get_ascii(shown: Shown) -> None:
    told = shown(contents(WIDE), encoding="ascii")
    assert told.isascii()
    assert "\\u6771" in told
    assert "48;2;" in told  # blanks before the pixels' colours


@pytest.mark.parametrize("is_ascii", [True, False])
def test_pictures_beside_one_another(is_ascii: bool) -> None:
    lines = list(picture_lines([camera(1, 8, 10)[0]] * 3, is_ascii))
    assert [line.cell_len for line in lines] == [1 + 3 * 11] * (8 if is_ascii else 4)


def test_everything_is_told(shown: Shown) -> None:
    told = shown(contents(), width=160, is_terminal=False)
    for part in (
        "Episode 3 (index 0 to 8)\ndata#3\n",
        "length  6 steps",
        "observation/state[1]",
        '"reach for it"',
        "is_last",
        "at 5",
    ):
        assert part in told
    assert "not drawn\n" not in told


def test_more_dimensions_and_columns_are_counted(shown: Shown) -> None:
    wide = np.arange(120).reshape(6, 20)
    columns: dict[str, Any] = {"wide": wide, **{f"c{n}": np.zeros(6) for n in range(50)}}
    told = shown(contents(episode(columns=columns)), is_terminal=False)
    assert "wide: 16 more of int64[20]" in told
    assert "and 15 more number columns; --columns chooses which are shown" in told


def test_a_damaged_file_is_told_and_the_rest_is_shown(shown: Shown) -> None:
    column = files(camera(6))
    column[5] = b"\x89PNG\r\n\x1a\ndamaged"
    told = shown(contents(episode(columns={"observation/camera": column})), width=300)
    assert "not drawn: " in told
    assert "curves, step 0 to 5" in told


def test_hostile_names_and_texts_are_harmless(shown: Shown) -> None:
    text = np.empty(6, object)
    text[:] = HOSTILE.encode()
    columns = {
        HOSTILE: np.arange(6),
        f"{HOSTILE}t": text,
        f"{HOSTILE}c": camera(6),
        f"{HOSTILE}o": np.zeros(6, complex),
    }
    told = shown(contents(episode(columns=columns, metadata={HOSTILE: HOSTILE})), is_terminal=False)
    assert all(line.isprintable() for line in told.splitlines())
    assert "\\x1b[2J" in told


@pytest.mark.parametrize("values", [np.full(6, np.nan), np.zeros(6), np.array([1, np.inf, 3, np.nan, 5, 6.0])])
def test_odd_numbers(shown: Shown, values: Any) -> None:
    told = shown(contents(Episode({"x": values}, id="e")), is_terminal=False)
    assert ("no finite value" in told) == bool(np.isnan(values).all())
    assert ("1 to 6, 2 not finite" in told) == (len(set(values.tolist())) == 6 and bool(np.isinf(values).any()))


@pytest.mark.parametrize("one", [Episode({}, id="e"), Episode({"reward": np.zeros(0)}, id="e")])
def test_an_empty_episode_has_a_header(shown: Shown, one: Episode) -> None:
    assert "0 steps" in shown(contents(one))
