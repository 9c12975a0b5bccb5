"""What `inspect` tells of images: both sizes, whichever way they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Episode
from rlds2reverb.episode import column_bytes
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import Transform
from rlds2reverb.inspection.inspection import inspect, inspect_source
from rlds2reverb.prepare.image_files import ImageColumn, image_columns
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_with_path
from rlds2reverb.views.trajectory import two_step
from tests.support.pictures import CAMERA, HEIGHT, IMAGE, WIDTH, WRIST, Pictures, as_files, episodes

SOURCE = Pictures(episodes())
STEPS = 5 + 3 + 7
DECODED_BYTES = HEIGHT * WIDTH * 3


def file_bytes(path: str) -> int:
    return round(sum(column_bytes(as_files(episode).columns[path]) for episode in episodes()) / STEPS)


@pytest.mark.parametrize("encoded", [(), (CAMERA,), ("all",)])
def test_both_sizes_of_every_image_column(encoded: tuple[str, ...]) -> None:
    found = {column.path: column for column in image_columns(SOURCE.with_encoded(encoded))}
    assert found == {
        path: ImageColumn(
            path, IMAGE, encoded == ("all",) or path in encoded, file_bytes(path), DECODED_BYTES, STEPS, path
        )
        for path in (CAMERA, WRIST)
    }


def test_an_inspection_has_them_and_counts_files_in_the_bytes_of_a_step() -> None:
    plain = inspect_source(SOURCE, {"replay": two_step()})
    kept = inspect_source(SOURCE.with_encoded((CAMERA,)), {"replay": two_step()})
    assert kept.step_bytes == plain.step_bytes - DECODED_BYTES + file_bytes(CAMERA)
    told = kept.as_dict()["images"]
    assert told[CAMERA] == {
        "image": "png of uint8[9, 12, 3]",
        "encoded": True,
        "encoded_bytes": file_bytes(CAMERA),
        "decoded_bytes": DECODED_BYTES,
        "measured_steps": STEPS,
        "recorded": CAMERA,
    }
    assert not told[WRIST]["encoded"]
    assert kept.as_dict()["trajectory_data_spec"][CAMERA] == "string[?] (png of uint8[9, 12, 3])"


@pytest.mark.parametrize("encoded", [(), (CAMERA,)])
def test_a_renamed_column_is_told_with_the_path_that_encoded_takes(encoded: tuple[str, ...]) -> None:
    source = SOURCE.with_encoded(encoded)
    found = inspect_source(
        source, {"replay": two_step()}, options=EpisodeOptions(transform=Transform(rename={CAMERA: "camera"}))
    ).images
    assert {camera.path: camera.recorded for camera in found} == {"camera": CAMERA, WRIST: WRIST}
    for camera in found:
        assert flatten(SOURCE.with_encoded([camera.recorded]).spec())[camera.recorded].image is not None


def test_a_source_without_images_has_none() -> None:
    assert image_columns(EpisodeList(episodes())) == ()
    assert image_columns(EpisodeList(episodes()).first(1)) == ()
    assert inspect_source(EpisodeList(episodes()), {"replay": two_step()}).as_dict()["images"] == {}


class OfAnySize(Pictures):
    """Files whose height is not known before."""

    def __init__(self, channels: int | None, file: bytes = b"") -> None:
        super().__init__(episodes(), (CAMERA, WRIST))
        self._free = replace(IMAGE, shape=(None, None, channels))
        self._file = file

    def spec(self) -> Nest:
        def leaf(path: str, one: ArraySpec) -> ArraySpec:
            return one if one.image is None else ArraySpec.of_images(self._free)

        return map_with_path(leaf, super().spec())

    def __iter__(self) -> Iterator[Episode]:
        for episode in super().__iter__():
            column = episode.columns[CAMERA].copy()
            column[0] = self._file or column[0]
            yield episode.with_only_columns({**episode.columns, CAMERA: column})


@pytest.mark.parametrize(
    ("source", "decoded"),
    [(OfAnySize(3), DECODED_BYTES), (OfAnySize(None), None), (OfAnySize(3, b"no image"), None)],
)
def test_sizes_that_are_free_are_read_from_the_files(source: Any, decoded: int | None) -> None:
    assert {column.decoded_bytes for column in image_columns(source) if column.path == CAMERA} == {decoded}
    assert set(flatten(source.spec())) >= {CAMERA}


def test_a_dataset_without_steps_has_no_sizes() -> None:
    empty = Pictures([Episode({path: column[:0] for path, column in episodes()[0].columns.items()})])
    assert image_columns(empty) == ()
    assert np.all([len(part) == 0 for part in empty])


@pytest.mark.parametrize("encode", ["png", [f"{CAMERA}:png", f"{WRIST}:png"], {"observation": "png"}], ids=str)
def test_frames_that_become_files_are_counted_as_files(encode: Any) -> None:
    pytest.importorskip("imagecodecs")
    plain, encoded = inspect(episodes()), inspect(episodes(), encode=encode)
    assert plain.images == ()
    assert [(image.path, image.is_encoded) for image in encoded.images] == [(CAMERA, True), (WRIST, True)]
    assert encoded.step_bytes == plain.step_bytes - 2 * DECODED_BYTES + sum(
        image.encoded_bytes for image in encoded.images
    )
    assert {image.decoded_bytes for image in encoded.images} == {DECODED_BYTES}
    assert str(encoded.step_spec[CAMERA]) == "string[] (png of uint8[9, 12, 3])"
