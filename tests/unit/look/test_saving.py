"""What is saved is what was there: files are decoded again, and their pictures compared."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import av
import imagecodecs
import ml_dtypes
import numpy as np
import pytest

from rlds2reverb import extras
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, DecodeError, WriteError
from rlds2reverb.look import videos
from rlds2reverb.look.contents import Contents
from rlds2reverb.look.film import Film, sheet
from rlds2reverb.look.saving import KINDS, saver
from tests.support.disks import FILLER, fill, small_disk_at
from tests.support.look.shown import HOSTILE, camera, contents, episode
from tests.support.pictures import files

FILMS = [".gif", ".mp4"]


def saved(folder: Path, suffix: str, of: Contents, frames: int | None = None, fps: int = 10) -> Path:
    path = folder / f"episode{suffix}"
    said = saver(path, frames, fps)(of)
    assert said == f"written: {path}, {path.stat().st_size:,} bytes"
    assert [entry.name for entry in folder.iterdir()] == [path.name]
    return path


def decoded(path: Path) -> list[Any]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def seen(film: Film, pictures: list[Any], column: int = 0) -> list[Any]:
    """The part of each picture that shows an image column."""
    box = film.seen[column].box
    return [picture[box.top : box.top + box.height, box.left : box.left + box.width] for picture in pictures]


def test_a_png_is_the_sheet(tmp_path: Path) -> None:
    path = saved(tmp_path, ".png", contents())
    assert (imagecodecs.png_decode(path.read_bytes()) == sheet(contents())).all()


@pytest.mark.parametrize(("suffix", "off"), [(".gif", 4), (".mp4", 12)])
def test_a_film_has_the_images_of_every_step(tmp_path: Path, suffix: str, off: int) -> None:
    steps = 12
    film = Film(contents(episode(steps)))
    pictures = decoded(saved(tmp_path, suffix, film.contents))
    assert [picture.shape for picture in pictures] == [(*film.size, 3)] * steps
    for step, (found, image) in enumerate(zip(seen(film, pictures), camera(steps))):
        box = film.seen[0].box
        wanted = image.repeat(box.height // 24, 0).repeat(box.width // 32, 1).astype(int)
        far = np.abs(found - wanted).max(-1)
        assert np.quantile(far, 0.9) <= off, step  # a codec blurs edges
        assert far.mean() < off


def test_a_gif_of_few_colours_keeps_the_images_as_they_are(tmp_path: Path) -> None:
    film = Film(contents(episode(5)))
    pictures = decoded(saved(tmp_path, ".gif", film.contents))
    for found, wanted in zip(seen(film, pictures), seen(film, [*film.pictures()]), strict=True):
        assert np.abs(found.astype(int) - wanted).max() <= 2


@pytest.mark.parametrize("suffix", FILMS)
@pytest.mark.parametrize("fps", [1, 10, 50])
def test_films_have_their_pace(tmp_path: Path, suffix: str, fps: int) -> None:
    with av.open(str(saved(tmp_path, suffix, contents(episode(7)), fps=fps))) as container:
        times = [frame.time for frame in container.decode(video=0)]
    np.testing.assert_allclose(times, np.arange(7) / fps, atol=0.011)


@pytest.mark.parametrize("suffix", FILMS)
@pytest.mark.parametrize("size", [(8, 9), (9, 8), (33, 17), (481, 9)])
def test_films_have_even_sides(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    odd = contents(
        Episode({"camera": np.zeros((3, *size, 3), np.uint8), "other": np.zeros((3, 9, 11), np.uint8)}, id="e")
    )
    pictures = decoded(saved(tmp_path, suffix, odd))
    assert len(pictures) == 3
    assert all(side % 2 == 0 for side in pictures[0].shape[:2])


GREY = camera(3)[..., 0]


@pytest.mark.parametrize(
    "column",
    [
        GREY,
        GREY.astype(np.uint16) * 9,
        GREY / 255,
        (GREY / 255).astype(ml_dtypes.bfloat16),
        GREY * -7.5,
        np.where(GREY > 99, np.nan, GREY),
        GREY > 99,
        np.concatenate([camera(3), GREY[..., None]], -1),
        np.moveaxis(camera(3), -1, 1),
        files(camera(3)),
    ],
)
@pytest.mark.parametrize("suffix", KINDS)
def test_images_of_any_dtype_are_saved(tmp_path: Path, suffix: str, column: Any) -> None:
    assert saved(tmp_path, suffix, contents(Episode({"camera": column}, id="e"))).stat().st_size > 500


def test_several_image_columns_stand_side_by_side_and_then_below() -> None:
    columns = {f"camera{n}": np.full((2, 200, 300, 3), 40 * n, np.uint8) for n in range(6)}
    film = Film(contents(Episode(columns, id="e")))
    boxes = [picture.box for picture in film.seen]
    assert [box.top == boxes[0].top for box in boxes] == [True] * 4 + [False] * 2
    for number, box in enumerate(boxes):
        (first, *_) = film.pictures()
        assert (first[box.top : box.top + box.height, box.left : box.left + box.width] == 40 * number).all()


@pytest.mark.parametrize("suffix", FILMS)
def test_a_film_of_numbers_alone_and_of_fewer_frames(tmp_path: Path, suffix: str) -> None:
    numbers = contents(Episode({"x": np.sin(np.arange(500) / 9)}, id="e"))
    assert len(decoded(saved(tmp_path, suffix, numbers, frames=11))) == 11


def test_the_line_moves_with_the_step() -> None:
    film = Film(contents(Episode({"x": np.arange(9)}, id="e")))
    lefts = [int(np.argwhere((picture == (217, 48, 37)).all(-1))[0, 1]) for picture in film.pictures()]
    assert lefts == sorted(set(lefts))


@pytest.mark.parametrize(
    "one", [Episode({}, id="e"), Episode({"x": np.zeros(0)}, id="e"), Episode({"t": np.array(["a"])}, id="e")]
)
@pytest.mark.parametrize("suffix", FILMS)
def test_a_film_of_nothing_is_refused(tmp_path: Path, suffix: str, one: Episode) -> None:
    with pytest.raises(ConfigError, match="a film needs steps"):
        saver(tmp_path / f"a{suffix}", None, 10)(contents(one))
    assert not (tmp_path / f"a{suffix}").exists()


@pytest.mark.parametrize("suffix", FILMS)
def test_a_film_that_is_too_large_is_refused(tmp_path: Path, suffix: str) -> None:
    huge = contents(Episode({"camera": np.zeros((1, 8, 9000), np.uint8)}, id="e"))
    with pytest.raises(ConfigError, match=r"a film of 9,016 x .* choose fewer --columns"):
        saver(tmp_path / f"a{suffix}", None, 10)(huge)


@pytest.mark.parametrize(
    "error", [av.error.InvalidDataError(1, "odd"), av.codec.codec.UnknownCodecError("libx264")], ids=["data", "codec"]
)
@pytest.mark.parametrize("suffix", FILMS)
def test_what_ffmpeg_refuses_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Film, "pictures", refuse)
    with pytest.raises(ConfigError, match=r"FFmpeg cannot write this film: .*; save it as .png or .html"):
        saver(tmp_path / f"a{suffix}", None, 10)(contents())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", KINDS)
def test_columns_of_unequal_length(tmp_path: Path, suffix: str) -> None:
    odd = episode(columns={"observation/camera": camera(2), "reward": np.ones(3)})
    saved(tmp_path, suffix, contents(odd))


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.PNG.txt", ".png"])
def test_another_kind_is_refused_with_the_list(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("ends in .png, .gif, .mp4, .html")):
        saver(tmp_path / name, None, 10)


def test_one_picture_has_no_room_for_any_number_of_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--frames 401: expected at most 400 for \.png"):
        saver(tmp_path / "a.png", 401, 10)
    saver(tmp_path / "a.gif", 401, 10)


def test_capital_letters_do(tmp_path: Path) -> None:
    saver(tmp_path / "A.PNG", None, 10)(contents())
    assert (tmp_path / "A.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", KINDS)
def test_what_cannot_be_written_is_told_at_once(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(OSError, match="it is a folder"):
        saver(tmp_path / f"folder{suffix}", None, 10)
    with pytest.raises(OSError, match="its folder is not there, or cannot be written"):
        saver(tmp_path / "nowhere" / f"a{suffix}", None, 10)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="this user may write anywhere")
def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="cannot be written"):
        saver(tmp_path / "a.png", None, 10)


@pytest.mark.parametrize("suffix", KINDS)
def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    with small_disk_at(tmp_path / "disk", 1 << 20) as disk:
        save = saver(disk / f"a{suffix}", None, 10)
        fill(disk, 0)
        with pytest.raises(WriteError, match=rf"--save .*a\{suffix}: cannot be written: No space left on device"):
            save(contents(episode()))
        assert [path.name for path in disk.iterdir()] == [FILLER]


@pytest.mark.parametrize("suffix", KINDS)
def test_what_was_there_stays_when_writing_fails(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"before")
    column = files(camera(6))
    column[5] = b"\x89PNG\r\n\x1a\ndamaged"
    with pytest.raises(DecodeError, match="observation/camera"):
        saver(path, None, 10)(contents(episode(columns={"observation/camera": column})))
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_colours_are_chosen_from_a_few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    at = Film.picture
    monkeypatch.setattr(Film, "picture", lambda self, step: made.append(step) or at(self, step))
    videos._palette(Film(contents(episode(100))))
    assert len(made) <= 24


def test_hostile_names_are_only_pixels(tmp_path: Path) -> None:
    columns = {HOSTILE: camera(2), f"{HOSTILE}x": np.zeros(2)}
    for suffix in KINDS:
        (tmp_path / suffix).mkdir()
        saved(tmp_path / suffix, suffix, contents(Episode(columns, {HOSTILE: HOSTILE}, HOSTILE)))


@pytest.mark.parametrize(
    ("suffix", "library", "extra"),
    [(".png", "PIL", "images"), (".gif", "PIL", "images"), (".gif", "av", "video"), (".mp4", "av", "video")],
)
def test_a_missing_library_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=re.escape(extras.how_to_install(extra))):
        saver(tmp_path / f"a{suffix}", None, 10)


def test_a_page_needs_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("imagecodecs", "simplejpeg", "PIL"):
        monkeypatch.setitem(sys.modules, library, None)
    assert "data:image/png" in saved(tmp_path, ".html", contents()).read_text(encoding="utf-8")
