"""Columns that are left out change nothing of those that are kept, and are not read where a format can skip them: `Source.without`, and transforms."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pyarrow.parquet import ParquetFile

from rlds2reverb.episode import IS_FIRST, IS_LAST, Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content
from rlds2reverb.formats.source import Source
from rlds2reverb.formats.transform import Transform
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.specs import ArraySpec, ImageSpec, column_spec, flatten
from tests.contract.source_cases import d4rl, data, minari, robomimic, ted
from tests.contract.source_cases.lerobot import DATA as LEROBOT
from tests.contract.test_sources import SOURCES, bytes_of, kinds
from tests.support.buckets import Faults, Storage
from tests.support.formats.minari import dataset
from tests.support.push import in_memory


def values(source: Source, kept: Any = None) -> list[Any]:
    """Columns and metadata of every episode, of the kept columns only."""
    return [
        (
            {
                path: (column.dtype, column.shape, bytes_of(column))
                for path, column in episode.columns.items()
                if kept is None or path in kept
            },
            repr(sorted(episode.metadata.items())),
        )
        for episode in source
    ]


def choices(paths: list[str]) -> list[list[str]]:
    """What may be left out: each column alone, all of one field, half of them, and all."""
    fields = {path.split("/")[0] for path in paths}
    together = [[path for path in paths if path.split("/")[0] == field] for field in sorted(fields)]
    return [*([path] for path in paths), *(group for group in together if len(group) > 1), paths[::2], paths]


@pytest.mark.parametrize("kind", kinds(*SOURCES))
def test_columns_that_are_kept_are_as_in_the_whole(kind: str) -> None:
    source = SOURCES[kind]()
    if source.episode_count == 0:
        pytest.skip("an empty list has no spec")
    spec = flatten(source.spec())
    names = [episode.id for episode in source]
    for left_out in choices([path for path in spec if path not in (IS_FIRST, IS_LAST)]):
        kept = {path: leaf for path, leaf in spec.items() if path not in left_out}
        fewer = source.without(left_out)
        assert flatten(fewer.spec()) == kept
        assert values(fewer) == values(source, kept)
        assert not any(episode.faults for episode in fewer)
        assert fewer.images() == {path: image for path, image in source.images().items() if path in kept}
        assert fewer.episode_lengths() == source.episode_lengths()
        assert fewer.episode_count == source.episode_count
    assert [episode.id for episode in source] == names


@pytest.mark.parametrize("kind", kinds(*SOURCES))
def test_a_name_depends_on_the_columns_that_are_kept_and_on_nothing_else(kind: str) -> None:
    source = SOURCES[kind]()
    if source.episode_count == 0:
        pytest.skip("an empty list has no spec")
    first, second, *_ = [path for path in flatten(source.spec()) if path not in (IS_FIRST, IS_LAST)]
    ids = [episode.id for episode in source.without([first, second])]
    assert [episode.id for episode in source.without([first]).without([second])] == ids
    assert [episode.id for episode in source.without([second, first, "no such column"])] == ids
    by_transform = transformed(source, Transform(drop=[second, first]))
    assert [episode.id for episode in by_transform] == ids
    assert [episode.id for episode in by_transform.shard(1, 2)] == ids[1::2]
    assert [episode.id for episode in by_transform.slice(1, 3)] == ids[1:3]
    if source.has_random_access:
        assert [(number, episode.id) for number, episode in by_transform.at([0])] == [(0, ids[0])]
    known = [episode.id for episode in by_transform.read(is_known=lambda name: name in ids[::2])]
    assert known == ids


def broken_video(dataset: str) -> Callable[[Path], tuple[str, str]]:
    """A copy of LeRobot's data whose video cannot be read; its name, and the column."""

    def write(folder: Path) -> tuple[str, str]:
        copied = shutil.copytree(LEROBOT / dataset, folder / dataset)
        for video in copied.rglob("*.mp4"):
            video.write_bytes(b"no video")
        return f"lerobot:{copied}", "observation/images/wrist"

    return write


def missing_video(folder: Path) -> tuple[str, str]:
    name, path = broken_video("v30")(folder)
    shutil.rmtree(folder / "v30" / "videos")
    return name, path


def broken_images(folder: Path) -> tuple[str, str]:
    """A TFDS dataset with images that are no files of images."""
    image, rows = ImageSpec((4, 5, 3), np.dtype(np.uint8), "png"), 3
    columns = {
        "observation/image": np.array([b"\x89PNG\r\n\x1a\nno image"] * rows, object),
        "observation/state": np.arange(rows, dtype=np.float32),
        "action": np.arange(rows, dtype=np.float32),
        "is_first": np.arange(rows) == 0,
        "is_last": np.arange(rows) == rows - 1,
    }
    specs = {path: column_spec(column) for path, column in columns.items()}
    content = Content("test", {**specs, "observation/image": ArraySpec.of_images(image)}, {})
    destination = open_destination(f"tfds:{folder / 'my_set'}")
    destination.path.mkdir(parents=True)
    sink, encode = destination.sink(destination.path, content, None), destination.encoder(content)
    for number in range(2):
        sink.write(encode(Episode({**columns, "action": columns["action"] + number})))
    sink.sync()
    sink.finish()
    sink.close()
    return destination.source(destination.path), "observation/image"


def break_array(path: Path, key: str) -> None:
    """Changes the values of an array in an archive, so that their checksum is wrong; its header stays."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{key}.npy")
    data = bytearray(path.read_bytes())
    start = info.header_offset + 30 + int.from_bytes(data[info.header_offset + 26 :][:2], "little")
    end = start + int.from_bytes(data[info.header_offset + 28 :][:2], "little") + info.compress_size
    data[end - 1] ^= 0xFF
    path.write_bytes(data)


def broken_files(folder: Path) -> tuple[str, str]:
    """Files of .npz, each with a damaged picture."""
    for number, columns in enumerate(data.columns()):
        arrays = {key: column for key, column in columns.items() if key != "observation"}
        path = folder / f"episode_{number}.npz"
        camera = np.zeros((len(columns["reward"]), 64, 64), np.uint8)  # more than is read with the header
        np.savez(path, **arrays, **{"observation/state": columns["observation"], "observation/camera": camera})
        break_array(path, "observation/camera")
    return f"npz:{folder}", "observation/camera"


def broken_file(folder: Path) -> tuple[str, str]:
    """One file of .npz with all episodes and a damaged picture."""
    path, rows = folder / "all.npz", 9
    state, camera = np.arange(rows, dtype=np.float32), np.zeros((rows, 64, 64), np.uint8)
    numbers = dict.fromkeys(("observation/state", "actions", "rewards"), state)
    np.savez(path, **numbers, **{"observation/camera": camera}, episode_ends=[4, rows])
    break_array(path, "observation/camera")
    return f"npz:{path}", "observation/camera"


def break_dataset(path: Path, wanted: Callable[[str], bool]) -> None:
    """Packs datasets of a file by gzip, and changes the packed bytes, so that the values cannot be read; shape and dtype stay."""
    places = []
    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visititems(
            lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) and wanted(name) else None
        )
        for name in names:
            values = file[name][()]
            del file[name]
            packed = file.create_dataset(name, data=values, chunks=values.shape, compression="gzip")
            places.append(packed.id.get_chunk_info(0))
    content = bytearray(path.read_bytes())
    assert places
    for place in places:
        content[place.byte_offset : place.byte_offset + place.size] = b"\xff" * place.size
    path.write_bytes(content)


def broken_hdf5(write: Callable[[Path], str], ending: str, path: str) -> Callable[[Path], tuple[str, str]]:
    """A dataset in HDF5 of which the datasets with this ending of their names cannot be read, which are a column."""

    def broken(folder: Path) -> tuple[str, str]:
        name = write(folder)
        (file,) = (file_path for file_path in folder.rglob("*") if file_path.suffix in (".hdf5", ".h5"))
        break_dataset(file, lambda dataset: dataset.endswith(ending))
        return name, path

    return broken


def broken_parquet(folder: Path) -> tuple[str, str]:
    """Minari's Parquet files, of which all but the first have a damaged column of infos."""
    name = f"minari:{shutil.copytree(dataset('0.5.4', 'kinds/parquet-v0'), folder / 'own-v0')}"
    paths = list(flatten(open_source(name).spec()))
    broken = next(path for path in paths if path.startswith("infos/"))
    for file in sorted(folder.rglob("*.parquet"))[1:]:
        about = ParquetFile(file).metadata
        content = bytearray(file.read_bytes())
        for place in map(about.row_group(0).column, range(about.num_columns)):
            if place.path_in_schema.startswith(broken.replace("/", ".")):
                start = place.data_page_offset if place.dictionary_page_offset is None else place.dictionary_page_offset
                content[start : start + place.total_compressed_size] = b"\xff" * place.total_compressed_size
        file.write_bytes(content)
    return name, broken


BROKEN: dict[str, Callable[[Path], tuple[str, str]]] = {
    "lerobot, v2.1": broken_video("v21"),
    "lerobot, v3.0": broken_video("v30"),
    "lerobot, no video": missing_video,
    "tfds": broken_images,
    "npz, files": broken_files,
    "npz, one file": broken_file,
    "d4rl": broken_hdf5(d4rl.write, "observations", "observation"),
    "robomimic": broken_hdf5(robomimic.write, "/obs/robot0_eef_pos", "observation/robot0_eef_pos"),
    "minari": broken_hdf5(minari.write, "observations", "observation"),
    "minari, Parquet": broken_parquet,
    "ted, H5": broken_hdf5(ted.WRITE["H5"], "observation", "observation"),
}
"""What writes a dataset of which one column cannot be read, and gives its name and the column."""


def is_readable(source: Source) -> bool:
    try:
        return not any(episode.faults for episode in source)
    except SourceError:
        return False


@pytest.mark.parametrize("kind", BROKEN)
def test_a_column_that_is_left_out_is_not_checked(kind: str, tmp_path: Path) -> None:
    name, path = BROKEN[kind](tmp_path)
    source = open_source(name)
    assert path in flatten(source.spec())
    assert not is_readable(source)
    for fewer in (
        source.without([path]),
        transformed(source, Transform(drop=[path])),
        open_source(f"mix:{name}").without([path]),
    ):
        episodes = list(fewer)
        assert len(episodes) == source.episode_count
        assert all(len(episode) and not episode.faults for episode in episodes)
    kept = [column for column in flatten(source.spec()) if column != path]
    assert is_readable(transformed(source, Transform(select=kept)))


def test_the_video_that_is_left_out_is_not_requested_from_a_bucket(
    storage: Storage, cloud: Faults, tmp_path: Path
) -> None:
    storage.create("videos")
    storage.upload(LEROBOT / "v30", "videos", "v30")
    here = transformed(open_source(f"lerobot:{LEROBOT / 'v30'}"), Transform(drop=["observation/images/wrist"]))
    there = transformed(open_source("lerobot:s3://videos/v30"), Transform(drop=["observation/images/wrist"]))
    assert [episode.id for episode in there] == [episode.id for episode in here]
    assert values(there) == values(here)
    assert cloud.requests
    assert not [request.path for request in cloud.requests if ".mp4" in request.path and request.method == "GET"]


def test_a_push_that_leaves_out_a_column_is_stored_once_and_beside_that_of_another_transform(tmp_path: Path) -> None:
    server, ledger = in_memory.Server(), tmp_path / "ledger"
    name, path = broken_video("v30")(tmp_path)
    dropped, fewer = f"drop={path}", f"drop={path},drop=note"
    first = in_memory.push(server, name, transform=dropped, ledger=ledger)
    items = len(server.items["replay"])
    assert (first.episodes_pushed, first.rejected) == (3, {})
    assert in_memory.push(server, name, transform=dropped, ledger=ledger).episodes_resumed == 3
    in_memory.push(server, name, transform=dropped)
    assert len(server.items["replay"]) == items > 0
    assert in_memory.push(server, name, transform=fewer, ledger=ledger).episodes_pushed == 3
    assert len(server.items["replay"]) == 2 * items
    in_memory.push(server, name, transform=fewer)
    assert len(server.items["replay"]) == 2 * items
