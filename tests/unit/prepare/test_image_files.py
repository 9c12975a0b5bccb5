"""Files in other modes than their column's images: decoded as Pillow does, and told with their number."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode, convert
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConversionError, SourceError
from rlds2reverb.images import decode_files, is_refused, mode_of
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.prepare.image_files import changes, image_columns
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, map_with_path
from rlds2reverb.views.trajectory import two_step
from tests.support.pictures import CAMERA, HEIGHT, IMAGE, WIDTH, WRIST, Pictures, episodes
from tests.support.raising import outcome_of

pytest.importorskip("simplejpeg")
imagecodecs = pytest.importorskip("imagecodecs")
Image = pytest.importorskip("PIL.Image")

EIGHT_BITS = ("1", "L", "LA", "P", "RGB", "RGBA")
SIXTEEN_BITS = {"I;16": 1, "LA;16": 2, "RGB;16": 3, "RGBA;16": 4}
MODES = (*EIGHT_BITS, *SIXTEEN_BITS)


def written(mode: str, seed: int = 0, kind: str = "PNG") -> tuple[bytes, Array]:
    """A file, and its pixels as they are stored: [height, width, channels]."""
    rng = np.random.default_rng(seed)
    if channels := SIXTEEN_BITS.get(mode):
        pixels = rng.integers(0, 1 << 16, (HEIGHT, WIDTH, channels), np.uint16)
        return bytes(imagecodecs.png_encode(pixels[..., 0] if channels == 1 else pixels)), pixels
    image, file = (
        Image.fromarray(rng.integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8), "RGBA").convert(mode),
        io.BytesIO(),
    )
    image.save(file, kind)
    stored = np.asarray(Image.open(io.BytesIO(file.getvalue())))
    return file.getvalue(), stored.reshape(HEIGHT, WIDTH, -1)


def columns(mode: str) -> st.SearchStrategy[ImageSpec]:
    dtypes = [np.dtype(np.uint8), np.dtype(np.uint16)]
    return st.builds(
        lambda channels, dtype: ImageSpec((None, None, channels), dtype),
        st.sampled_from([1, 3, 4]),
        st.sampled_from(dtypes),
    )


@pytest.mark.parametrize("mode", MODES)
def test_modes_are_those_of_pillow(mode: str) -> None:
    file, _ = written(mode)
    assert mode_of(file) == mode
    with Image.open(io.BytesIO(file)) as image:
        # Those of colours drop 8 bits; the one of grey is called "I" by Pillow before 11.
        assert image.mode.replace("I;16", "I") == {
            "LA;16": "RGBA",
            "RGB;16": "RGB",
            "RGBA;16": "RGBA",
            "I;16": "I",
        }.get(mode, mode)
    assert mode_of(file[:20]) == ""


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_modes_of_jpeg_are_those_of_pillow(mode: str) -> None:
    file, _ = written(mode, kind="JPEG")
    assert mode_of(file) == mode


@given(
    st.binary(max_size=60), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\xff\xd8\xff\xc0\0\x11\x08"])
)
def test_any_bytes_have_a_mode_or_none(noise: bytes, start: bytes) -> None:
    assert mode_of(start + noise) in ("", "CMYK", *MODES)


@given(st.data(), st.sampled_from(MODES), st.integers(0, 99))
def test_what_decoding_changes_is_told_and_nothing_else(data: st.DataObject, mode: str, seed: int) -> None:
    column, (file, stored) = data.draw(columns(mode)), written(mode, seed)
    told = changes(mode, column)
    outcome = outcome_of(SourceError, lambda: decode_files(column, [file], "here", exact=True))
    assert isinstance(outcome, SourceError) == is_refused(file, column)  # colours for one channel, and bits for four
    if isinstance(outcome, SourceError):
        return
    decoded = outcome[0]
    is_same = decoded.dtype == stored.dtype and np.array_equal(decoded, stored)
    assert is_same == (not told)
    if column.dtype == np.uint8 and mode in EIGHT_BITS and not (column.shape[2] == 1 and mode == "1"):
        shown = Image.open(io.BytesIO(file)).convert({1: "L", 3: "RGB", 4: "RGBA"}[column.shape[2] or 0])
        assert np.array_equal(decoded, np.asarray(shown).reshape(decoded.shape))


@given(st.sampled_from(["L", "RGB"]), st.sampled_from([1, 3]), st.integers(0, 99))
def test_jpeg_of_another_mode_is_told(mode: str, channels: int, seed: int) -> None:
    file, stored = written(mode, seed, "JPEG")
    decoded = decode_files(ImageSpec((None, None, channels), np.dtype(np.uint8)), [file], "here", exact=True)[0]
    told = changes(mode, ImageSpec((None, None, channels), np.dtype(np.uint8)))
    assert (decoded.shape == stored.shape) == (not told)
    if mode == "L":
        assert np.array_equal(decoded, np.repeat(stored, channels, 2))


@given(
    st.sampled_from(["1", "L", "P", "RGB", "RGBA", "CMYK"]),
    st.sampled_from(["PNG", "JPEG"]),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.sampled_from([("uint8", 1), ("uint8", 3), ("uint8", 4), ("uint8", None), ("uint16", 4), ("float32", 1)]),
)
def test_what_decoding_refuses_is_known_before(
    mode: str, kind: str, bits: int, is_transparent: bool, column: tuple[str, int | None]
) -> None:
    if mode in ({"1", "P", "RGBA"} if kind == "JPEG" else {"CMYK"}):
        return
    pixels = np.random.default_rng(bits).integers(0, 1 << bits, (HEIGHT, WIDTH), np.uint8)
    picture = Image.fromarray(pixels, "P" if mode == "P" else "L")
    if mode == "P":
        picture.putpalette([place % 256 for place in range(3 << bits)])
    else:
        picture = picture.convert(mode)
    extra: dict[str, Any] = {"bits": bits} if mode == "P" else {}
    if is_transparent and kind == "PNG" and mode in ("1", "L", "P"):
        extra["transparency"] = 0
    out = io.BytesIO()
    picture.save(out, kind, **extra)
    image = ImageSpec((None, None, column[1]), np.dtype(column[0]))
    outcome = outcome_of(SourceError, lambda: decode_files(image, [out.getvalue()], "here"))
    assert isinstance(outcome, SourceError) == is_refused(out.getvalue(), image)


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xc0\0\x11\x08"]))
def test_any_bytes_are_refused_by_their_mode_or_not(noise: bytes, start: bytes) -> None:
    is_known = bool(mode_of(start + noise))
    assert is_known or not is_refused(start + noise, IMAGE)


@pytest.mark.parametrize("is_encoded", [True, False])
def test_what_is_refused_is_not_told_to_be_decoded(is_encoded: bool) -> None:
    class Wrong(InModes):
        def spec(self) -> Nest:
            grey = replace(IMAGE, shape=(HEIGHT, WIDTH, 1))
            return map_with_path(
                lambda path, leaf: ArraySpec.of_images(grey) if path == CAMERA else leaf, super().spec()
            )

        def images(self) -> dict[str, ImageSpec]:
            return {}

    camera, _ = image_columns(Wrong(("RGB", "L"), {CAMERA, WRIST}))
    (told,) = replace(camera, is_encoded=is_encoded).notices
    assert (camera.modes, camera.refused) == ((), (("PNG of the mode RGB", 3),))
    assert "PNG of the mode RGB, in a column of 1 channel of uint8" in told.text
    assert ("kept as they are, and decoding refuses them" if is_encoded else "not read here") in told.text
    assert "grey" not in told.text


class InModes(Pictures):
    """Pictures whose camera has a file of each mode in every episode, the others RGB; those that are not kept are decoded."""

    def __init__(self, modes: tuple[str, ...], kept: Any = ()) -> None:
        super().__init__(episodes((len(modes), len(modes) + 1)), kept)
        self._modes = modes

    def encoded(self, paths: Any) -> InModes:
        return type(self)(self._modes, self._kept | set(paths))

    def __iter__(self) -> Iterator[Episode]:
        for number, episode in enumerate(self._decoded):
            kinds = [*self._modes, "RGB"][: len(episode)]
            column: Array = np.empty(len(episode), object)
            column[:] = [written(mode, number)[0] for mode in kinds]
            wrist = next(iter(Pictures([episode], {WRIST}))).columns[WRIST]
            files = {CAMERA: column, WRIST: wrist}
            shown = {
                path: file if path in self._kept else decode_files(IMAGE, file.tolist(), path)
                for path, file in files.items()
            }
            yield episode.with_only_columns({**episode.columns, **shown})


MIXED = InModes(("L", "P", "RGBA", "LA", "I;16", "1", "RGB"))


@pytest.mark.parametrize("views", [{"replay": two_step()}, {}])
@pytest.mark.parametrize("kept", [(), (CAMERA,)])
def test_an_inspection_counts_the_files_of_each_mode(views: dict[str, Any], kept: tuple[str, ...]) -> None:
    every = inspect_source(MIXED.with_encoded(kept), views).findings.notices
    notices = [notice for notice in every if notice.code != "last_actions"]
    told = {notice.text.split(" of the mode ")[1].partition(",")[0]: notice for notice in notices}
    assert {mode: (problem.code, problem.path, problem.count) for mode, problem in told.items()} == dict.fromkeys(
        ("L", "P", "RGBA", "LA", "I;16", "1"), ("image_mode", CAMERA, 2)
    )
    assert all(notice.is_note for notice in notices)
    assert all(("kept as they are" in notice.text) == bool(kept) for notice in notices)
    assert "low byte" in told["I;16"].text
    assert "in a column of 3 channels of uint8" in told["L"].text


def test_a_faulty_first_episode_shows_no_modes() -> None:
    class Faulty(InModes):
        def __iter__(self) -> Iterator[Episode]:
            _, *others = super().__iter__()
            yield Episode({}, {}, "broken", (("", "cannot be read"),))
            yield from others

    (camera, wrist) = image_columns(Faulty(("L", "RGB")))
    assert (camera.modes, wrist.modes) == ((("L", 1),), ())


@pytest.mark.parametrize(
    ("name", "options", "is_lost"),
    [("tfds:{}/set", {}, False), ("tfds:{}/set", {"decode": True}, True), ("minari:{}/set-v0", {}, True)],
)
def test_a_conversion_tells_modes_and_the_bits_that_are_lost(
    tmp_path: Path, name: str, options: dict[str, Any], is_lost: bool
) -> None:
    report = convert(MIXED, name.format(tmp_path), verify=True, **options)
    assert report.verified == 2
    assert [(notice.code, notice.path, notice.count) for notice in report.notices] == [("image_mode", CAMERA, 2)] * 6
    assert [(loss.path, loss.rows) for loss in report.losses if loss.code == "image_bits"] == [
        (CAMERA, "none")
    ] * is_lost
    if is_lost:
        with pytest.raises(ConversionError, match="image_bits: observation/camera: files of 16 bits"):
            convert(MIXED, name.format(tmp_path / "strict"), strict=True, **options)


def test_images_of_16_bits_lose_nothing() -> None:
    class Deep(InModes):
        def spec(self) -> Nest:
            deep = replace(IMAGE, shape=(HEIGHT, WIDTH, 1), dtype=np.dtype(np.uint16))
            return map_with_path(
                lambda path, leaf: ArraySpec.of_images(deep) if path == CAMERA else leaf, super().spec()
            )

        def images(self) -> dict[str, ImageSpec]:
            return {}

    (camera, wrist) = image_columns(Deep(("I;16", "L"), {CAMERA, WRIST}))
    assert (dict(camera.modes), dict(camera.refused)) == ({"L": 2}, {"PNG of the mode RGB": 1})
    assert not camera.loses_bits
    assert wrist.modes == ()
