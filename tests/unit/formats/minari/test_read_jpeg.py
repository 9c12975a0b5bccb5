"""Numbers that Minari 0.5.3 took for images: its HDF5 writer stores every uint8 array of two or three sizes as JPEG files, its reader gives the files' bytes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from rlds2reverb.episode import Array
from rlds2reverb.formats import open_source
from tests.support.formats.minari_written import Change, dataset


def box(*shape: int, high: int = 255) -> dict[str, Any]:
    return {
        "type": "Box",
        "dtype": "uint8",
        "shape": list(shape),
        "low": np.zeros(shape, int).tolist(),
        "high": np.full(shape, high).tolist(),
    }


def files_of(values: Array) -> list[bytes]:
    """The JPEG file of each row, as Minari encodes it: a row of numbers is an image of width 1."""
    files = []
    for row in values:
        held = io.BytesIO()
        Image.fromarray(row).save(held, format="JPEG")
        files.append(held.getvalue())
    return files


def pixels_of(files: list[bytes], shape: tuple[int, ...]) -> Array:
    return np.stack([np.array(Image.open(io.BytesIO(file))).reshape(shape) for file in files])


def store(group: h5py.Group, name: str, files: list[bytes]) -> None:
    """As 0.5.3 does: rows of bytes if all files have one length, else arrays of any length."""
    del group[name]
    rows = [np.frombuffer(file, np.uint8) for file in files]
    dtype = h5py.vlen_dtype(np.uint8) if len({len(row) for row in rows}) > 1 else None
    group.create_dataset(name, data=rows, dtype=dtype, chunks=True)


def observed(files: list[bytes]) -> Change:
    return lambda group: store(group, "observations", files)


def values(rng: np.random.Generator, rows: int, shape: tuple[int, ...], is_constant: bool) -> Array:
    drawn = rng.integers(0, 256, (rows, *shape), dtype=np.uint8)
    return np.repeat(drawn[:1], rows, axis=0) if is_constant else drawn


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("shape", [(3,), (500,), (5, 6), (7, 7, 3)])
def test_observations_are_the_pixels_of_the_files(tmp_path: Path, shape: tuple[int, ...], is_constant: bool) -> None:
    rng = np.random.default_rng(len(shape))
    files = [files_of(values(rng, 4, shape, is_constant)) for _ in range(2)]
    name = dataset(tmp_path, [*map(observed, files)], {"observation_space": json.dumps(box(*shape))})
    source = open_source(name)
    episodes = list(source)
    for episode, own in zip(episodes, files, strict=True):
        np.testing.assert_array_equal(episode.columns["observation"], pixels_of(own, shape))
        assert episode.columns["observation"].dtype == np.uint8
    (told,) = source.notices
    assert (told.code, told.path, told.count) == ("jpeg_values", "observation", 2)


def test_actions_and_infos_are_as_well(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    actions, mask = (files_of(values(rng, rows, (4,), False)) for rows in (3, 4))

    def change(group: h5py.Group) -> None:
        store(group, "actions", actions)
        group["infos/mask"] = 0
        store(group, "infos/mask", mask)

    source = open_source(dataset(tmp_path, [change], {"action_space": json.dumps(box(4, high=9))}))
    (episode,) = source
    np.testing.assert_array_equal(episode.columns["action"][:-1], pixels_of(actions, (4,)))
    np.testing.assert_array_equal(episode.columns["infos/mask"], pixels_of(mask, (4,)))
    assert {notice.path for notice in source.notices} == {"action", "infos/mask"}


def test_numbers_that_begin_like_a_file_are_numbers_where_the_space_says_so(tmp_path: Path) -> None:
    rows = np.zeros((4, 6), np.uint8)
    rows[:, :3] = 0xFF, 0xD8, 0xFF

    def change(group: h5py.Group) -> None:
        del group["observations"]
        group["observations"] = rows

    source = open_source(dataset(tmp_path, [change], {"observation_space": json.dumps(box(6))}))
    (episode,) = source
    np.testing.assert_array_equal(episode.columns["observation"], rows)
    assert not source.notices


def test_a_damaged_file_makes_a_bad_episode(tmp_path: Path) -> None:
    files = files_of(values(np.random.default_rng(0), 4, (3,), True))
    files[2] = files[2][:20] + bytes(len(files[2]) - 20)
    changes = [observed([files[0]] * 4), observed(files)]
    source = open_source(dataset(tmp_path, [*changes], {"observation_space": json.dumps(box(3))}))
    good, bad = source
    assert len(good.columns["observation"]) == 4
    assert bad.faults
