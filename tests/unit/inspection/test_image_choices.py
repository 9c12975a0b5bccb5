"""What ways of storing images take: sizes against Pillow's files, rates by a clock of the test's own."""

from __future__ import annotations

import io
import itertools
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rlds2reverb.episode import Array, Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.inspection import image_choices
from rlds2reverb.inspection.image_choices import ImageChoice, measure_image_choices
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.look.accounts import CHOICE_HEADS, choice_cells
from rlds2reverb.views.trajectory import two_step
from tests.support import strategies
from tests.support.pictures import CAMERA, HEIGHT, WIDTH, WRIST, Pictures, episodes, png

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

DECODED = HEIGHT * WIDTH * 3


def pillow_bytes(frames: Array) -> float:
    """Mean bytes of JPEG files of quality 95."""
    sizes = []
    for frame in frames:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "JPEG", quality=95, subsampling="4:2:0")
        sizes.append(len(file.getvalue()))
    return sum(sizes) / len(sizes)


def by_choice(choices: list[ImageChoice]) -> dict[str, ImageChoice]:
    return {choice.choice: choice for choice in choices}


def test_frames_are_measured_as_pixels_and_as_files() -> None:
    measured = measure_image_choices(EpisodeList(episodes()))
    assert measured.keys() == {CAMERA, WRIST}
    for path, choices in measured.items():
        frames = episodes()[0].columns[path]
        ways = by_choice(choices)
        assert list(ways) == ["pixels", "jpeg:quality=95", "png"]
        assert ways["pixels"] == ImageChoice("pixels", "", DECODED, None, None, 5)
        assert ways["jpeg:quality=95"].step_bytes == pillow_bytes(frames)
        assert ways["png"].option == f"--encode {path}:png"
        for choice in choices[1:]:
            for per_second in (choice.decoded_per_second, choice.half_size_per_second):
                assert per_second is not None
                assert 0 < per_second < np.inf


def test_files_of_the_dataset_are_a_choice_with_their_own_bytes() -> None:
    for kept, option in (((), f"--encoded {CAMERA}"), ((CAMERA,), "")):
        ways = by_choice(measure_image_choices(Pictures(episodes(), kept))[CAMERA])
        assert list(ways) == ["pixels", "files", "jpeg:quality=95", "png"]
        assert ways["files"].option == option
        assert ways["files"].step_bytes == np.mean([len(png(frame)) for frame in episodes()[0].columns[CAMERA]])


def test_what_a_transform_makes_is_measured() -> None:
    small = transformed(
        EpisodeList(episodes()), transform_of(f"resize={CAMERA}:8x8,rename={CAMERA}:camera,encode={WRIST}:png")
    )
    measured = measure_image_choices(small)
    assert by_choice(measured["camera"])["pixels"].step_bytes == 8 * 8 * 3
    assert by_choice(measured["camera"])["png"].option == f"--encode {CAMERA}:png"
    assert list(by_choice(measured[WRIST])) == ["pixels", "files"]


@pytest.mark.parametrize(
    ("dtype", "shape", "ways"),
    [
        ("uint16", (9, 8, 1), ["pixels", "png"]),
        ("uint8", (9, 8, 4), ["pixels", "png"]),
        ("uint8", (9, 8, 1), ["pixels", "jpeg:quality=95", "png"]),
        ("float32", (9, 8, 1), ["pixels"]),
    ],
    ids=str,
)
def test_only_files_that_can_hold_the_images_are_choices(dtype: str, shape: tuple[int, ...], ways: list[str]) -> None:
    columns: strategies.Columns = {"observation": (np.dtype(dtype), shape)}
    source = EpisodeList([strategies.episode(np.random.default_rng(0), 3, columns)])
    assert list(by_choice(measure_image_choices(source)["observation"])) == ways


def test_large_images_are_measured_on_fewer_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_choices, "_MOST_PIXELS", 2 * HEIGHT * WIDTH + 1)
    measured = measure_image_choices(EpisodeList(episodes()))
    assert {choice.frames for choices in measured.values() for choice in choices} == {2}


def test_damaged_episodes_and_files_are_passed_over() -> None:
    faulty = Episode({}, faults=(("", "cannot be read"),))
    assert by_choice(measure_image_choices(Late([faulty, *episodes()]))[CAMERA])["pixels"].frames == 5
    assert measure_image_choices(Late([faulty])) == {}


class Late(EpisodeList):
    """Its spec is known without its first episode."""

    def spec(self) -> Any:
        return EpisodeList(episodes()).spec()


def test_without_images_there_is_nothing_to_measure() -> None:
    assert measure_image_choices(EpisodeList([strategies.episode(np.random.default_rng(0), 3)])) == {}


def test_a_rate_is_frames_by_the_time_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=0.005)
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    decoded: list[bytes] = []
    # Rounds of three files until 0.02 s have gone: looks at 0.005, 0.01, 0.015 and 0.02 s.
    assert image_choices._rate(decoded.append, [b"a", b"b", b"c"]) == pytest.approx(9 / 0.02)
    assert len(decoded) == 1 + 9


def test_an_inspection_tells_them() -> None:
    inspection = inspect_source(EpisodeList(episodes()), {"replay": two_step()})
    told = inspection.as_dict()["image_choices"][CAMERA]
    assert [choice["choice"] for choice in told] == ["pixels", "jpeg:quality=95", "png"]
    assert told[0].keys() == {"choice", "option", "step_bytes", "decoded_per_second", "half_size_per_second"}
    cells = choice_cells(inspection)
    assert {len(row) for row in cells} == {len(CHOICE_HEADS)}
    assert [row[1] for row in cells[:2]] == ["pixels", f"--encode {CAMERA}:jpeg:quality=95"]
    assert cells[0][2:] == [f"{DECODED:,}", "4.86 kB", "-", "-"]
    page = str(inspection._repr_html_())
    assert "measured now on 5 frames" in page
    assert f"--encode {CAMERA}:png" in page
    assert inspection == inspect_source(EpisodeList(episodes()), {"replay": two_step()})
