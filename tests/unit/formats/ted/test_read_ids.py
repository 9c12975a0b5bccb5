"""Ids part trajectories in every form, also where recording stopped without an end flag; what that costs is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.unit.formats.ted.test_read_names import STEPS, written

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
            one.metadata.get("trajectory_id"),
            one.columns["observation"][:, 0].tolist(),
            one.columns["action"][:-1].tolist(),
        )
        for one in open_source(name)
        if not one.faults
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
    assert [one.columns[IDS][:-1].tolist() for one in found] == [[0, 0, 0, 1, 1, 1], [1, 2]]
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
    assert [one[0] for one in read(f"{name}?trajectories=info.run")] == [4, 5]
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
    assert [int(one[0]) for one in read(memmap)] == [0, 1, 2, 3]
    assert list(opened(memmap).metadata_spec()) == ["trajectory_id"]


@pytest.mark.parametrize("stored", [[0, 0, 1, 1], [0, 0, 1, 1, 1, 1], [0.5, 0.5, 1, 1, 1], []])
def test_ids_of_a_group_that_do_not_fit_make_bad_episodes(tmp_path: Path, stored: list[float]) -> None:
    good = {"ids": [7, 7, 8]}
    name = h5_file(tmp_path / "x.h5", [good, {"ids": [0, 0, 1, 1, 1], "stored": stored}, good])
    found = list(open_source(name))
    bad = [one for one in found if one.faults]
    assert bad
    assert [int(one.metadata["trajectory_id"]) for one in found if not one.faults][:2] == [7, 8]
    assert len(read(name)) >= 4
    assert not any(len(one) > 4 for one in found if not one.faults)


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
    assert [len(one[2]) for one in read(name)] == [100]
    assert counts(name)["done_inside"] == 1
    assert [len(one[2]) for one in read(f"{name}?trajectories=done")] == [50, 50]
    assert counts(f"{name}?trajectories=done") == {}


@pytest.mark.parametrize("odd", range(3))
def test_most_groups_of_the_h5_form_say_what_all_have(tmp_path: Path, odd: int) -> None:
    name = h5_file(tmp_path / "x.h5", [{"ids": [number] * 3} for number in range(3)])
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file[f"traj_{odd}/action"]
        file[f"traj_{odd}/action"] = np.zeros((3, 2), np.float32)
        file[f"traj_{odd}/extra"] = np.zeros(3)
    found = list(open_source(name))
    assert [bool(one.faults) for one in found] == [number == odd for number in range(3)]
    assert "expected int64[] as most trajectories" in str(found[odd].faults)
    told = {(notice.code, notice.path) for notice in opened(name).notices}
    assert {("mixed_specs", "action"), ("left_out", "extra")} <= told
    chosen = list(open_source(f"{name}?spec_from={odd}"))
    assert [bool(one.faults) for one in chosen] == [number != odd for number in range(3)]
    with pytest.raises(SourceError, match=f"spec_from={odd + 3}: .*there are 3 episodes"):
        open_source(f"{name}?spec_from={odd + 3}")
