"""A disk that is full, a real one: a conversion says what it could not write, and goes on when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.conversion.place import PREFIX
from rlds2reverb.errors import WriteError
from rlds2reverb.formats import open_destination
from rlds2reverb.formats.hdf5 import Output
from tests.contract.destination_cases import data
from tests.contract.test_destinations import written
from tests.support.disks import FILLER, fill, small_disk_at
from tests.support.profiles import drawn
from tests.support.raising import error_of
from tests.unit.conversion.test_convert_odd_episodes import PLACES, VIDEO

DISK_BYTES = 4 << 20
BLOCK_BYTES = 4096
FORMATS = {
    **{place: PLACES[place] for place in ("tfds", "minari", "ted", "ted memmap", "ilr", "lerobot")},
    "ted h5 in a folder": "ted:{}/own",
    "array_record": "tfds:{}/own?file_format=array_record",
    "parquet": "tfds:{}/own?file_format=parquet",
    "lerobot video": VIDEO,
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", DISK_BYTES) as folder:
        yield folder


@pytest.mark.parametrize("place", FORMATS)
def test_wherever_a_disk_is_full_it_is_told_and_the_conversion_goes_on(place: str, disk: Path, tmp_path: Path) -> None:
    if place == "array_record":
        pytest.importorskip("array_record")
    episodes = [data.with_images(number) if place == "lerobot video" else data.episode(number) for number in range(3)]
    whole = FORMATS[place].format(tmp_path / "whole")
    convert(episodes, whole)
    wanted = written(open_destination(whole))
    name = FORMATS[place].format(disk / "to")
    failures, left = 0, 0
    while True:
        fill(disk, left * BLOCK_BYTES)
        error = error_of(WriteError, lambda: convert(episodes, name, overwrite=True))
        if error is None:
            break
        assert f"cannot be written: No space left on device; {'' if failures else 'nothing of it is kept'}" in str(
            error
        )
        assert str(disk) in str(error)
        assert "\n" not in str(error)
        failures += 1
        left += 1 if left < 4 else drawn(8, 1)
    assert failures > 2
    (disk / FILLER).unlink()
    destination = open_destination(name)
    assert written(destination) == wanted
    assert [path for path in destination.path.parent.iterdir() if path.name.startswith(PREFIX)] == []


def test_what_an_hdf5_file_held_before_an_error_is_read_back_and_the_file_closes(disk: Path) -> None:
    h5py = pytest.importorskip("h5py")
    rows = np.arange(5000)
    fill(disk, 2 * BLOCK_BYTES)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.h5"), Output(disk / "a.h5") as output:
        with h5py.File(output, "w") as file:
            for number in range(20):
                file[f"group/{number}"] = rows + number
            for number in range(20):
                np.testing.assert_array_equal(file[f"group/{number}"], rows + number)
            file.flush()
            with pytest.raises(OSError, match="No space left"):
                output.check()


def test_an_hdf5_file_of_ours_is_as_any(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with Output(tmp_path / "a.h5") as output, h5py.File(output, "w") as file:
        file.create_dataset("packed", data=np.arange(100_000), compression="gzip")
        file.attrs["name"] = "x"
        del file["packed"]
        file["again"] = np.arange(3)
        output.check()
    with h5py.File(tmp_path / "a.h5", "r") as file:
        assert (list(file), file["again"][()].tolist(), file.attrs["name"]) == (["again"], [0, 1, 2], "x")
