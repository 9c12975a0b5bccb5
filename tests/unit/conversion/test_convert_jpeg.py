"""JPEG files between systems that decode them in two ways: the files stay, or the pixels do, and what changes is told.

Minari and LeRobot decode by Pillow (libjpeg's accurate DCT), TFDS by TensorFlow (the fast one).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2reverb import convert
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.encoding import png_files
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, ConversionError, InvalidEpisode
from rlds2reverb.formats import open_source

simplejpeg = pytest.importorskip("simplejpeg")
pytest.importorskip("pyarrow")

SHAPE = (40, 48, 3)
PATH = "observation"


def pixels(rows: int, seed: int = 0) -> Array:
    """[rows, ...] pictures with edges and noise: no two decoders that differ give the same."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, *SHAPE), np.uint8)


def jpeg(image: Array) -> bytes:
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=80))


def decoded(files: list[bytes], exact: bool) -> Array:
    return np.stack([simplejpeg.decode_jpeg(file, fastdct=not exact, fastupsample=False) for file in files])


def episodes(seed: int = 0) -> list[Episode]:
    made = []
    for number, rows in enumerate((4, 3)):
        columns = {
            PATH: pixels(rows, seed + number),
            "action": np.arange(rows, dtype=np.float32) * (np.arange(rows) < rows - 1),
            "reward": np.zeros(rows, np.float64),
            "is_first": np.arange(rows) == 0,
            "is_last": np.arange(rows) == rows - 1,
            "is_terminal": np.zeros(rows, bool),
        }
        made.append(Episode(columns, {}, f"episode {number}"))
    return made


@pytest.fixture
def minari(tmp_path: Path) -> str:
    """A dataset of JPEG files, as Minari keeps them."""
    folder = tmp_path / "recorded-v0"
    convert(episodes(), f"minari:{folder}")
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        for group in file.values():
            values = group["observations"][()]
            del group["observations"]
            stored = group.create_dataset("observations", (len(values),), h5py.vlen_dtype(np.uint8))
            for row, image in enumerate(values):
                stored[row] = np.frombuffer(jpeg(image), np.uint8)
    about = folder / "data" / "metadata.json"
    about.write_text(about.read_text().replace('"jpeg_encoding": false', '"jpeg_encoding": true'))
    return f"minari:{folder}"


def files(name: str) -> list[list[bytes]]:
    source: Any = open_source(name)
    return [episode.columns[PATH].tolist() for episode in source.encoded([PATH])]


def read(name: str) -> list[Array]:
    found = list(open_source(name))
    assert not any(episode.faults for episode in found)
    return [episode.columns[PATH] for episode in found]


def told(report: ConvertReport) -> dict[str, int | None]:
    """Path -> of how many episodes it is told that pixels differ."""
    return {str(loss.path): loss.episodes for loss in report.losses if loss.code == "jpeg_pixels"}


def test_each_format_decodes_as_its_own_system_does(minari: str, tmp_path: Path) -> None:
    source = files(minari)
    for scheme, options, exact in (("lerobot", "?last_step=keep", True), ("tfds", "", False)):
        report = convert(minari, f"{scheme}:{tmp_path / scheme}{options}", verify=True)
        assert report.encoded == (PATH,)
        for found, kept in zip(read(f"{scheme}:{report.path}"), source, strict=True):
            np.testing.assert_array_equal(found, decoded(kept, exact))
    assert any((decoded(kept, True) != decoded(kept, False)).any() for kept in source)


def test_minari_to_lerobot_and_back_keeps_the_files(minari: str, tmp_path: Path) -> None:
    there = convert(minari, f"lerobot:{tmp_path / 'le'}?last_step=keep", verify=True)
    back = convert(f"lerobot:{there.path}", f"minari:{tmp_path / 'back-v0'}", verify=True)
    assert (there.verified, back.verified) == (2, 2)
    assert told(there) == told(back) == {}
    assert files(f"minari:{back.path}") == files(minari)
    for images, other in zip(read(f"minari:{back.path}"), read(minari), strict=True):
        np.testing.assert_array_equal(images, other)


def test_minari_to_tfds_and_back_tells_that_pixels_change(minari: str, tmp_path: Path) -> None:
    there = convert(minari, f"tfds:{tmp_path / 'kept'}", verify=True)
    assert there.verified == 2
    assert told(there) == {PATH: None}
    assert files(f"tfds:{there.path}") == files(minari)
    with pytest.raises(ConversionError, match="jpeg_pixels: observation: the files stay as they are"):
        convert(minari, f"tfds:{tmp_path / 'strict'}", strict=True)
    back = convert(f"tfds:{there.path}", f"minari:{tmp_path / 'files-v0'}?images=files", verify=True)
    assert told(back) == {PATH: None}
    assert files(f"minari:{back.path}") == files(minari)
    as_seen = convert(f"tfds:{there.path}", f"minari:{tmp_path / 'seen-v0'}", verify=True)
    assert told(as_seen) == {}
    for images, other in zip(read(f"minari:{as_seen.path}"), read(f"tfds:{there.path}"), strict=True):
        np.testing.assert_array_equal(images, other)


def test_pixels_stay_where_that_is_asked_for(minari: str, tmp_path: Path) -> None:
    there = convert(minari, f"tfds:{tmp_path / 'pixels'}", verify=True, decode=True, strict=True)
    assert (there.encoded, told(there)) == ((), {})
    for images, other in zip(read(f"tfds:{there.path}"), read(minari), strict=True):
        np.testing.assert_array_equal(images, other)


def stored_in(folder: Path, image: Any) -> str:
    """A LeRobot dataset whose first episode has PNG files, and the second what `image` makes of one."""
    return with_second_stored(convert(episodes(), f"lerobot:{folder}?last_step=keep").path, image)


def with_second_stored(folder: str, image: Any) -> str:
    """The name of a LeRobot dataset, after its second episode was given the files that `image` makes of its pictures."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (table,) = Path(folder).glob("data/**/*.parquet")
    rows = pq.read_table(table)
    at = rows.schema.get_field_index("observation.state")
    images = rows.column(at).to_pylist()
    for row, number in enumerate(rows.column("episode_index").to_pylist()):
        if number == 1:
            images[row]["bytes"] = image(pixels(1, row)[0])
    changed = rows.set_column(at, rows.schema.field(at), pa.array(images, rows.schema.field(at).type))
    pq.write_table(changed, table)
    return f"lerobot:{folder}"


def test_episodes_with_jpeg_are_counted_where_the_first_has_none(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    mixed = stored_in(tmp_path / "mixed", jpeg)
    report = convert(mixed, f"tfds:{tmp_path / 'mixed_too'}", verify=True)
    assert told(report) == {PATH: 1}


def test_pngs_are_decoded_alike(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    le = convert(episodes(), f"lerobot:{tmp_path / 'le'}", verify=True)
    report = convert(f"lerobot:{le.path}", f"tfds:{tmp_path / 'pngs'}", verify=True)
    assert report.encoded == (PATH,)
    assert told(report) == {}
    back = convert(f"lerobot:{le.path}", f"minari:{tmp_path / 'pngs-v0'}", verify=True)
    assert back.encoded == ()


def test_minari_refuses_files_that_it_cannot_hold(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    le = convert(episodes(), f"lerobot:{tmp_path / 'le'}", verify=True)
    with pytest.raises(ConfigError, match=r"images=files: .observation. is no column of colour images"):
        convert(f"lerobot:{le.path}", f"minari:{tmp_path / 'no-v0'}?images=files")


@pytest.mark.full
def test_lerobot_decodes_as_pillow_does(minari: str, tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    le = convert(minari, f"lerobot:{tmp_path / 'le'}?last_step=keep")
    for found, kept in zip(read(f"lerobot:{le.path}"), files(f"lerobot:{le.path}"), strict=True):
        wanted = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in kept])
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.full
def test_tfds_decodes_as_tensorflow_does(minari: str, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    made = convert(minari, f"tfds:{tmp_path / 'kept'}")
    for found, kept in zip(read(f"tfds:{made.path}"), files(f"tfds:{made.path}"), strict=True):
        np.testing.assert_array_equal(found, np.stack([tf.io.decode_image(file).numpy() for file in kept]))


def test_an_episode_with_a_file_that_is_no_jpeg_is_a_bad_one_for_minari(minari: str, tmp_path: Path) -> None:
    there = convert(minari, f"lerobot:{tmp_path / 'le'}?last_step=keep")
    mixed, name = (
        with_second_stored(there.path, lambda image: png_files(image[None])[0]),
        f"minari:{tmp_path / 'to-v0'}",
    )
    with pytest.raises(InvalidEpisode, match=r"observation.*step 0: a file that is no JPEG.*--on-invalid skip"):
        convert(mixed, name)
    report = convert(mixed, name, on_invalid="skip", verify=True)
    assert report.rejected == {"unfit": 1}
    assert files(name) == files(minari)[:1]
