"""Files that anybody may have written: nothing outside of the folder is read, no code runs, no memory is asked for that the files do not have."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.support.formats import ted as made

VERSION = made.VERSIONS[0]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder(VERSION) / "plain", tmp_path / "plain"))


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder(VERSION) / "ring_flat", tmp_path / "flat"))


def changed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    meta = json.loads(file.read_text())
    change(meta)
    file.write_text(json.dumps(meta))


def refused(folder: Path, match: str) -> None:
    with pytest.raises(SourceError, match=match) as caught:
        list(open_source(f"ted:{folder}"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["../outside", "a/b", "..", "/etc/passwd", "a\0b", ""])
def test_keys_do_not_lead_out(plain: Path, key: str) -> None:
    leaf = {"device": "cpu", "shape": [7], "dtype": "torch.int64", "is_nested": False}
    changed(plain / "meta.json", lambda meta: meta.update({key: leaf}))
    refused(plain, "leads out of the folder|cannot be read")


def test_links_do_not_lead_out(plain: Path, tmp_path: Path) -> None:
    shutil.move(plain / "action.memmap", tmp_path / "action.memmap")
    (plain / "action.memmap").symlink_to(tmp_path / "action.memmap")
    refused(plain, "leads out of the dataset")


@pytest.mark.parametrize("name", ["..", "ABSOLUTE", "/ABSOLUTE", "...outside", ""])
def test_a_pytree_does_not_lead_out(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(made.folder(VERSION) / "pytree", tmp_path / "pytree"))
    np.arange(10).tofile(tmp_path / "outside.memmap")
    name = name.replace("ABSOLUTE", str(tmp_path / "outside").replace("/", "."))
    file = folder / "storage" / "storage_metadata.json"
    changed(file, lambda meta: meta["metadata"].update({name: {"dtype": "torch.int64", "shape": [10]}}))
    refused(folder, "leads out of the folder")


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ([8], "has 56 bytes; expected 64"),
        ([1 << 61, 8], "has 56 bytes; expected"),
        ([-7], "expected sizes of at least 0"),
        ([7.0], "expected sizes"),
        ("7", "expected a list of sizes"),
        ([True], "expected sizes"),
        ([1] * 40 + [7], "expected a list of sizes"),
        ([1, 7], "expected it to begin with"),
    ],
)
def test_sizes_are_compared_with_the_files(plain: Path, shape: Any, match: str) -> None:
    changed(plain / "meta.json", lambda meta: meta["action"].update(shape=shape))
    refused(plain, match)


@pytest.mark.parametrize("dtype", ["torch.qint8", "float32", None, 7, "os.system"])
def test_an_unknown_dtype_is_named(plain: Path, dtype: Any) -> None:
    changed(plain / "meta.json", lambda meta: meta["action"].update(dtype=dtype))
    refused(plain, "action.memmap: dtype .*expected one of torch.bool")


def test_a_batch_size_of_the_moon(plain: Path) -> None:
    changed(plain / "meta.json", lambda meta: meta.update(shape=[1 << 40]))
    refused(plain, "expected it to begin with")


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["MARK"],)


@pytest.mark.parametrize("name", ["other.pickle", "pickle.pkl"])
def test_a_pickle_runs_nothing(plain: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARK", str(tmp_path / "ran"))
    kind = "NonTensorStack" if name.startswith("pickle") else "NonTensorData"
    meta: dict[str, Any] = {"_type": f"<class 'tensordict.tensorclass.{kind}'>"}
    (plain / "robot" / "meta.json").write_text(
        json.dumps({**meta, **({"data": name} if kind == "NonTensorStack" else {})})
    )
    (plain / "robot" / name).write_bytes(pickle.dumps({"data": Evil()}))
    refused(plain, "refused: the pickle refers to")
    assert not (tmp_path / "ran").exists()


def test_a_pickle_of_plain_values_is_read(plain: Path) -> None:
    (plain / "robot" / "meta.json").write_text('{"_type": "<class \'tensordict.tensorclass.NonTensorData\'>"}')
    (plain / "robot" / "other.pickle").write_bytes(pickle.dumps({"data": {"arm": [1, 2]}}))
    assert next(iter(open_source(f"ted:{plain}"))).metadata["robot"] == b'{"arm": [1, 2]}'


def test_nesting_is_bounded(plain: Path) -> None:
    below = plain
    for _ in range(40):
        below = below / "deeper"
        below.mkdir()
        (below / "meta.json").write_text('{"shape": [7], "_type": "TensorDict"}')
    refused(plain, "nested more than 32 deep")


@pytest.mark.parametrize(
    ("key", "data", "match"),
    [
        ("_storage_shape", [1 << 50], 'expected a key "done" of'),
        ("_storage_shape", [0], "expected sizes"),
        ("_storage_shape", "10", "expected sizes"),
        ("shift", 11, "expected a row of 10"),
        ("shift", -1, "expected a row of 10"),
        ("shift", None, "expected a row of 10"),
        ("is_full", 1, "expected a row of 10"),
    ],
)
def test_what_the_flat_form_says_of_itself_is_checked(flat: Path, key: str, data: Any, match: str) -> None:
    storage = flat / "storage"
    changed(storage / "is_full" / "meta.json", lambda meta: meta.update(data=False))
    changed(storage / key / "meta.json", lambda meta: meta.update(data=data))
    refused(flat, match)


def test_too_few_observations_of_the_flat_form_are_told(flat: Path) -> None:
    storage = flat / "storage"
    (storage / "done.memmap").write_bytes(b"\1" * 10)
    refused(flat, "expected 10 steps, or at least 20 observations")


def test_more_rows_than_there_is_room_for(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made.folder(VERSION) / "part_memmap", tmp_path / "part"))
    changed(folder / "storage" / "storage_metadata.json", lambda meta: meta.update(len=11))
    refused(folder, "len 11: expected at most 10")
    changed(folder / "storage" / "storage_metadata.json", lambda meta: meta.update(len="x"))
    refused(folder, "len 'x': expected a number of rows")


def test_groups_of_an_h5_file_that_do_not_go_together_are_bad_episodes(tmp_path: Path) -> None:
    shutil.copy(made.folder(VERSION) / "ring_h5" / "storage" / "checkpoint.h5", tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file["traj_1/action"]
        del file["traj_2/reward"]
        file["traj_2/reward"] = np.zeros((9, 1), np.float32)
        del file["traj_3"]
        file["traj_3"] = h5py.SoftLink("/nowhere")
    found = list(open_source(f"ted:{tmp_path / 'x.h5'}"))
    assert [len(one.faults) for one in found] == [0, 1, 1, 1]
    assert "traj_1/action" in found[1].faults[0][1]


@pytest.mark.parametrize("content", [b"", b"nothing"])
def test_what_is_no_buffer_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.h5").write_bytes(content)
    refused(tmp_path / "x.h5", "cannot be read as HDF5")
    refused(tmp_path, "expected a folder that ReplayBuffer.dumps")
    refused(tmp_path / "none", "no such file or folder")
    with h5py.File(tmp_path / "y.h5", "w"):
        pass
    refused(tmp_path / "y.h5", 'expected groups "traj_0"')
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "data_indices.json").write_text("[]")
    refused(tmp_path / "c", "CompressedListStorage")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("?next=all", "expected last or check or keep"),
        ("?trajectories=", "expected a key"),
        ("?trajectories=nothing", 'no key "nothing"'),
        ("?observation=a+b", 'no key "a"; there are: action'),
        ("?observation=image", "is there already, beside image; name both"),
        ("?cursor=x", "expected a whole number"),
        ("?trajectories=image", "expected one id"),
        ("?what=1", 'unknown option "what=1"'),
    ],
)
def test_options_that_make_no_sense(options: str, match: str) -> None:
    with pytest.raises(SourceError, match=match):
        list(open_source(f"ted:{made.folder(VERSION) / 'ring_memmap'}{options}"))


@pytest.mark.parametrize("form", ["flat", "nested", "h5"])
@pytest.mark.parametrize("option", ["next=check", "next=keep", "cursor=0", "items=steps"])
def test_options_of_teds_own_form_are_refused_for_others(form: str, option: str) -> None:
    with pytest.raises(
        SourceError, match=f"{option.split('=')[0]}: the Flat, Nested and H5 forms keep every observation once"
    ):
        open_source(f"ted:{made.folder(VERSION) / f'ring_{form}'}?{option}")
