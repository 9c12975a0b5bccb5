"""Tables of encoded images in other formats: files stay files where the format holds them, and become pixels where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb import convert
from rlds2reverb.encoding import Encoding, encode_images
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.images import decode_images
from rlds2reverb.views.trajectory import two_step
from tests.support.stored import folders
from tests.unit.conversion.test_convert_jpeg import PATH, episodes, jpeg

pytest.importorskip("imagecodecs")


def stored(folder: Path, change: Any = lambda file: file) -> str:
    """A checkpoint of a table of encoded images; the name of the source.

    Args:
      folder: to write into.
      change: what becomes of the PNG file of a step.
    """
    plain = [
        episode.with_columns(discount=np.ones(len(episode), np.float32), reward=np.zeros(len(episode), np.float32))
        for episode in episodes()
    ]
    made = convert(plain, f"tfds:{folder / 'pictures'}")
    source: Any = open_source(f"tfds:{made.path}")
    encoded = source.encoded([PATH])
    signature = two_step().signature(encoded.spec())
    sent = folders.pushed(Changed(encoded, change), two_step(), signature=signature)
    return f"reverb:{folders.write_stored(folder / 'checkpoint', sent, {'replay': signature})}"


class Changed:
    """A source whose files are changed."""

    def __init__(self, source: Any, change: Any) -> None:
        self._source, self._change = source, change
        self.name, self.episode_count = source.name, source.episode_count

    def spec(self) -> Any:
        return self._source.spec()

    def __iter__(self) -> Any:
        for episode in self._source:
            files = np.empty(len(episode), object)
            files[:] = [self._change(file) for file in episode.columns[PATH]]
            yield episode.with_columns(**{PATH: files})

    def shard(self, index: int, count: int) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return stored(tmp_path_factory.mktemp("table"))


HOLD = ("tfds:out", "lerobot:out", "lerobot:out?last_step=keep")
DO_NOT = ("minari:out-v0", "ted:out", "ted:out?layout=memmap", "ted:out.h5", "ilr:out")


def into(folder: Path, name: str) -> str:
    scheme, _, rest = name.partition(":")
    return f"{scheme}:{folder}/{rest}"


@pytest.mark.parametrize("options", [{}, {"decode": True}, {"workers": 1}])
@pytest.mark.parametrize("name", [*HOLD, *DO_NOT])
def test_a_table_of_files_is_written_and_compared(
    table: str, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    if name.startswith("lerobot"):
        pytest.importorskip("pyarrow")
    report = convert(table, into(tmp_path, name), verify=True, **options)
    assert report.verified == report.episodes_written == 2
    assert report.encoded == ((PATH,) if name in HOLD and "decode" not in options else ())
    found = [episode.columns[PATH] for episode in open_source(f"{name.partition(':')[0]}:{report.path}")]
    for column, files in zip(found, open_source(table), strict=True):
        rows = slice(None, -1) if name == "lerobot:out" else slice(None)
        np.testing.assert_array_equal(column[rows], decode_images(files.columns[PATH], (40, 48, 3))[rows])


def test_what_must_stay_files_does_or_is_refused(table: str, tmp_path: Path) -> None:
    for asked in ("all", PATH):
        report = convert(table, f"tfds:{tmp_path / asked}", encoded=asked, verify=True)
        assert report.encoded == (PATH,)
        with pytest.raises(SourceError, match=f'encoded "{PATH}": ted:.* cannot hold the bytes of image files'):
            convert(table, f"ted:{tmp_path / 'ted'}", encoded=asked)
    with pytest.raises(SourceError, match="encoded"):
        convert(table, f"tfds:{tmp_path / 'no'}", encoded="action")


@pytest.mark.parametrize("name", HOLD[:2])
def test_frames_are_written_as_the_files_that_are_asked_for(tmp_path: Path, name: str) -> None:
    if name.startswith("lerobot"):
        pytest.importorskip("pyarrow")
    report = convert(episodes(), into(tmp_path, name), encode="jpeg:quality=90", verify=True)
    assert (report.encoded, report.verified) == ((PATH,), 2)
    assert not [loss for loss in report.losses if loss.code == "jpeg_pixels"]
    kept = open_source(f"{name.partition(':')[0]}:{report.path}").with_encoded([PATH])
    for episode, recorded in zip(kept, episodes(), strict=True):
        files = encode_images(recorded.columns[PATH], Encoding("jpeg", 90))
        assert episode.columns[PATH].tolist()[:-1] == files.tolist()[:-1]


def test_files_that_the_other_side_cannot_hold_are_not_made_in_vain(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f'encode "{PATH}": ted:.* cannot hold the bytes of image files'):
        convert(episodes(), f"ted:{tmp_path / 'ted'}", encode="jpeg")
    with pytest.raises(ConfigError, match=r"decode .* and encode .* contradict"):
        convert(episodes(), f"tfds:{tmp_path / 'no'}", encode="jpeg", decode=True)


def test_a_file_that_cannot_be_decoded_is_a_bad_episode(tmp_path: Path) -> None:
    damaged = iter([True])
    table = stored(tmp_path, lambda file: file[: len(file) // 2] if next(damaged, False) else file)
    with pytest.raises(InvalidEpisode, match="image"):
        convert(table, f"ted:{tmp_path / 'ted'}")
    report = convert(table, f"ted:{tmp_path / 'ted'}", on_invalid="skip", verify=True, restart=True)
    assert (report.episodes_written, report.verified, report.rejected) == (1, 1, {"image": 1})


def test_jpeg_of_a_table_that_the_other_side_decodes_otherwise_is_told(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8)
    table = stored(tmp_path, lambda file: jpeg(pixels))
    report = convert(table, f"lerobot:{tmp_path / 'le'}", verify=True)
    assert [loss.path for loss in report.losses if loss.code == "jpeg_pixels"] == [PATH]
    report = convert(table, f"minari:{tmp_path / 'files-v0'}?images=files", verify=True)
    assert report.encoded == (PATH,)
    assert [loss.path for loss in report.losses if loss.code == "jpeg_pixels"] == [PATH]
