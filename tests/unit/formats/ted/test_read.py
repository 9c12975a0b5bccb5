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

from rlds2reverb.episode import content_digest
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_destination, open_source
from tests.contract.destination_cases import data
from tests.support.formats import ted as ted_data
from tests.support.formats.ted_writing import content_of
from tests.unit.formats.ted.test_read_names import STEPS, written

VERSION = ted_data.VERSIONS[0]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ted_data.folder(VERSION) / "plain", tmp_path / "plain"))


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ted_data.folder(VERSION) / "ring_flat", tmp_path / "flat"))


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
    folder = Path(shutil.copytree(ted_data.folder(VERSION) / "pytree", tmp_path / "pytree"))
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
    folder = Path(shutil.copytree(ted_data.folder(VERSION) / "part_memmap", tmp_path / "part"))
    changed(folder / "storage" / "storage_metadata.json", lambda meta: meta.update(len=11))
    refused(folder, "len 11: expected at most 10")
    changed(folder / "storage" / "storage_metadata.json", lambda meta: meta.update(len="x"))
    refused(folder, "len 'x': expected a number of rows")


def test_groups_of_an_h5_file_that_do_not_go_together_are_bad_episodes(tmp_path: Path) -> None:
    shutil.copy(ted_data.folder(VERSION) / "ring_h5" / "storage" / "checkpoint.h5", tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file["traj_1/action"]
        del file["traj_2/reward"]
        file["traj_2/reward"] = np.zeros((9, 1), np.float32)
        del file["traj_3"]
        file["traj_3"] = h5py.SoftLink("/nowhere")
    found = list(open_source(f"ted:{tmp_path / 'x.h5'}"))
    assert [len(episode.faults) for episode in found] == [0, 1, 1, 1]
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
        list(open_source(f"ted:{ted_data.folder(VERSION) / 'ring_memmap'}{options}"))


@pytest.mark.parametrize("form", ["flat", "nested", "h5"])
@pytest.mark.parametrize("option", ["next=check", "next=keep", "cursor=0", "items=steps"])
def test_options_of_teds_own_form_are_refused_for_others(form: str, option: str) -> None:
    with pytest.raises(
        SourceError, match=f"{option.split('=')[0]}: the Flat, Nested and H5 forms keep every observation once"
    ):
        open_source(f"ted:{ted_data.folder(VERSION) / f'ring_{form}'}?{option}")


# A kill while a buffer is completed never leaves one without its data.


@pytest.mark.parametrize("name", ["buffer", "buffer.h5"])
def test_a_kill_while_columns_are_removed_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = [data.episode(number) for number in range(3)]
    destination = open_destination(f"ted:{tmp_path / name}")
    content = content_of(episodes)
    work = tmp_path / "work"
    work.mkdir()
    sink = destination.sink(work, content, None)
    for episode in episodes:
        sink.write(episode)
    state = sink.sync()

    def half(folder: Path, **_: object) -> None:
        if folder.exists():
            for file in sorted(folder.iterdir())[1:]:
                file.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            sink.finish()
    again = destination.sink(work, content, state)
    again.finish()
    again.close()
    path = work / name if name.endswith(".h5") else work
    found = [content_digest(stored.columns) for stored in open_source(destination.source(path))]
    assert found == [content_digest(recorded.columns) for recorded in episodes]
    assert not [file_path for file_path in work.iterdir() if file_path.name.startswith(".")]


@pytest.mark.parametrize("name", ["buffer.h5", "buffer?layout=memmap"])
def test_columns_that_are_shorter_than_they_were_are_refused(name: str, tmp_path: Path) -> None:
    episodes = [data.episode(number) for number in range(3)]
    destination = open_destination(f"ted:{tmp_path / name}")
    content = content_of(episodes)
    work = tmp_path / "work"
    work.mkdir()
    sink = destination.sink(work, content, None)
    sink.write(episodes[0])
    state = sink.sync()
    sink.close()
    for path in work.iterdir():
        shutil.rmtree(path)
    with pytest.raises(OSError, match="begin anew"):
        destination.sink(work, content, state)


# Ids part trajectories in every form, also where recording stopped without an end flag; what that costs is told.

IDS = "collector/traj_ids"


def h5_file(path: Path, groups: list[dict[str, Any]]) -> str:
    """The H5 form of these groups: ids, and what else differs from steps that see 0, 1, 2 and so on; the name of the source."""
    first = 0
    with h5py.File(path, "w") as file:
        for number, columns in enumerate(groups):
            count = len(columns["ids"])
            group = file.create_group(f"traj_{number}")
            group["observation"] = np.arange(first, first + count + 1, dtype=np.float32)[:, None]
            group["action"] = np.arange(first, first + count)
            group["reward"] = np.zeros((count, 1), np.float32)
            group["done"] = columns.get("done", np.arange(count) == count - 1)[:, None]
            group[columns.get("key", IDS)] = np.asarray(columns.get("stored", columns["ids"]))
            first += count
    return f"ted:{path}"


def read(name: str) -> list[tuple[Any, list[float], list[int]]]:
    """Id, observations and actions of each trajectory."""
    return [
        (
            episode.metadata.get("trajectory_id"),
            episode.columns["observation"][:, 0].tolist(),
            episode.columns["action"][:-1].tolist(),
        )
        for episode in open_source(name)
        if not episode.faults
    ]


def opened(name: str) -> Any:
    return open_source(name)


def counts(name: str) -> dict[str, int]:
    return {notice.code: notice.count for notice in opened(name).notices}


@pytest.mark.parametrize("stored", [[0, 0, 0, 1, 1, 1], [[0], [0], [0], [1], [1], [1]]])
def test_ids_part_a_group_of_the_h5_form(tmp_path: Path, stored: list[Any]) -> None:
    name = h5_file(tmp_path / "x.h5", [{"ids": [0, 0, 0, 1, 1, 1], "stored": stored}])
    wanted = [(0, [0, 1, 2], [0, 1]), (1, [3, 4, 5, 6], [3, 4, 5])]
    assert read(name) == read(f"{name}?trajectories=ids") == wanted
    assert counts(name) == {"final_lost": 1, "no_end": 1}
    assert open_source(name).episode_count == 2
    assert read(f"{name}?incomplete=drop") == wanted[1:]
    assert read(f"{name}?episodes=1:") == wanted[1:]
    assert read(f"{name}?where=trajectory_id=1") == wanted[1:]


def test_end_flags_alone_part_on_request(tmp_path: Path) -> None:
    name = h5_file(tmp_path / "x.h5", [{"ids": [0, 0, 0, 1, 1, 1]}, {"ids": [1, 2]}])
    found = list(open_source(f"{name}?trajectories=done"))
    assert [episode.columns[IDS][:-1].tolist() for episode in found] == [[0, 0, 0, 1, 1, 1], [1, 2]]
    assert counts(f"{name}?trajectories=done") == {}
    assert read(name)[1:] == [(1, [3, 4, 5, 6], [3, 4, 5]), (2, [7, 8], [7])]


def test_a_trajectory_of_one_step_that_loses_it_is_counted(tmp_path: Path) -> None:
    name = h5_file(tmp_path / "x.h5", [{"ids": [0, 1, 2, 2]}])
    assert read(name) == [(2, [2, 3, 4], [2, 3])]
    told = [notice.text for notice in opened(name).notices if notice.code == "final_lost"]
    assert "2 trajectories without" in told[0]
    assert "2 of them had no other step and are left out whole" in told[0]


def test_another_key_has_the_ids(tmp_path: Path) -> None:
    name = h5_file(tmp_path / "x.h5", [{"ids": [4, 4, 5], "key": "info/run"}])
    assert len(read(name)) == 1
    assert [episode[0] for episode in read(f"{name}?trajectories=info.run")] == [4, 5]
    with pytest.raises(SourceError, match=r"neither collector\.traj_ids nor episode is there"):
        open_source(f"{name}?trajectories=ids")
    with pytest.raises(SourceError, match=r'no key "info\.no"; there are: action, info\.run'):
        open_source(f"{name}?trajectories=info.no")
    with pytest.raises(SourceError, match="the H5 form keeps whole trajectories; expected ids, done"):
        open_source(f"{name}?trajectories=rows")


def test_ids_that_stand_under_next_as_well(tmp_path: Path) -> None:
    """Then the H5 form keeps one more of them than there are steps."""
    name = h5_file(
        tmp_path / "x.h5", [{"ids": [0, 0, 1], "stored": [0, 0, 1, 1]}, {"ids": [1, 1], "stored": [1, 1, 1]}]
    )
    assert read(name) == [(0, [0, 1], [0]), (1, [2, 3], [2]), (1, [3, 4, 5], [3, 4])]
    assert list(opened(name).metadata_spec()) == ["trajectory_id"]
    numbers = np.arange(STEPS) // 30
    memmap = written(tmp_path / "memmap", episode=numbers, **{"next/episode": numbers})
    assert [int(episode[0]) for episode in read(memmap)] == [0, 1, 2, 3]
    assert list(opened(memmap).metadata_spec()) == ["trajectory_id"]


@pytest.mark.parametrize("stored", [[0, 0, 1, 1], [0, 0, 1, 1, 1, 1], [0.5, 0.5, 1, 1, 1], []])
def test_ids_of_a_group_that_do_not_fit_make_bad_episodes(tmp_path: Path, stored: list[float]) -> None:
    good = {"ids": [7, 7, 8]}
    name = h5_file(tmp_path / "x.h5", [good, {"ids": [0, 0, 1, 1, 1], "stored": stored}, good])
    found = list(open_source(name))
    bad = [episode for episode in found if episode.faults]
    assert bad
    assert [int(episode.metadata["trajectory_id"]) for episode in found if not episode.faults][:2] == [7, 8]
    assert len(read(name)) >= 4
    assert not any(len(episode) > 4 for episode in found if not episode.faults)


def test_ids_that_are_no_ids_are_refused_with_a_way_out(tmp_path: Path) -> None:
    name = h5_file(tmp_path / "x.h5", [{"ids": [0, 0], "stored": np.zeros((2, 3), np.int64)}])
    with pytest.raises(SourceError, match=r"has \[3\] for each step; expected one id; trajectories=done"):
        open_source(name)
    assert len(read(f"{name}?trajectories=done")) == 1


def test_end_flags_inside_of_one_id_are_told(tmp_path: Path) -> None:
    """Two workers that count from 0 each, one after the other: the same id, no step between."""
    done = (np.arange(STEPS) % 50 == 49)[:, None]
    flags = {"next/done": done, "next/terminated": np.zeros_like(done), "next/truncated": done}
    name = written(tmp_path, episode=np.zeros(STEPS, np.int64), **flags)
    assert [len(episode[2]) for episode in read(name)] == [100]
    assert counts(name)["done_inside"] == 1
    assert [len(episode[2]) for episode in read(f"{name}?trajectories=done")] == [50, 50]
    assert counts(f"{name}?trajectories=done") == {}


@pytest.mark.parametrize("odd", range(3))
def test_most_groups_of_the_h5_form_say_what_all_have(tmp_path: Path, odd: int) -> None:
    name = h5_file(tmp_path / "x.h5", [{"ids": [number] * 3} for number in range(3)])
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file[f"traj_{odd}/action"]
        file[f"traj_{odd}/action"] = np.zeros((3, 2), np.float32)
        file[f"traj_{odd}/extra"] = np.zeros(3)
    found = list(open_source(name))
    assert [bool(episode.faults) for episode in found] == [number == odd for number in range(3)]
    assert "expected int64[] as most trajectories" in str(found[odd].faults)
    told = {(notice.code, notice.path) for notice in opened(name).notices}
    assert {("mixed_specs", "action"), ("left_out", "extra")} <= told
    chosen = list(open_source(f"{name}?spec_from={odd}"))
    assert [bool(episode.faults) for episode in chosen] == [number != odd for number in range(3)]
    with pytest.raises(SourceError, match=f"spec_from={odd + 3}: .*there are 3 episodes"):
        open_source(f"{name}?spec_from={odd + 3}")


@pytest.mark.parametrize("option", ["last_step=mark", "next=drop,last_step=mark"])
@pytest.mark.parametrize("discount", [False, True])
def test_a_last_step_that_is_the_last_row_keeps_its_end_and_values(tmp_path: Path, option: str, discount: bool) -> None:
    """Two trajectories: one ends in a terminal state, in its last step alone; the other is cut."""
    changes: dict[str, Any] = {} if option.startswith("next") else {"next/observation": None}
    ends = np.zeros((STEPS, 1), bool)
    ends[[39, STEPS - 1]] = True
    changes |= {"next/done": ends, "next/terminated": ends & (np.arange(STEPS) == 39)[:, None]}
    changes |= {"next/reward": np.arange(1, STEPS + 1, dtype=np.float32)[:, None]}
    if discount:
        changes["discount"] = np.linspace(0.5, 1, STEPS, dtype=np.float32)[:, None]
    name = written(tmp_path, **changes)
    marked, repeated = list(open_source(f"{name}?{option}")), list(open_source(f"{name}?next=drop"))
    for (start, stop), is_terminal, rows, longer in zip(
        [(0, 40), (40, STEPS)], [True, False], marked, repeated, strict=True
    ):
        assert not rows.faults
        assert len(rows) == len(longer) - 1 == stop - start
        np.testing.assert_array_equal(rows.columns["observation"][:, 0], np.arange(start, stop))
        np.testing.assert_array_equal(rows.columns["action"], np.arange(start, stop))
        np.testing.assert_array_equal(rows.columns["reward"], np.arange(start + 1, stop + 1))
        discounts = np.linspace(0.5, 1, STEPS, dtype=np.float32)
        expected: Any = discounts[start:stop] if discount else np.ones(stop - start)
        if is_terminal and not discount:
            expected[-2:] = 0
        np.testing.assert_array_equal(rows.columns["discount"], expected)
        assert rows.columns["is_terminal"].tolist() == [False] * (stop - start - 1) + [is_terminal]
        assert bool(longer.columns["is_terminal"][-1]) == is_terminal
