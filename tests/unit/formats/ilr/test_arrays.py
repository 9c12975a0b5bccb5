"""The dict format and the benchmarks' own demonstrations."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.support.formats import ilr as ilr_data


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def read(name: Any) -> list[Any]:
    return list(open_source(name))


def equal(one: Any, other: Any) -> bool:
    return one.columns.keys() == other.columns.keys() and all(
        column.dtype == other.columns[path].dtype and column.tolist() == other.columns[path].tolist()
        for path, column in one.columns.items()
    )


@pytest.mark.parametrize("options", ["", "?done_means=truncation", "?gaps=split", "?gaps=refuse"])
def test_the_dict_format_reads_as_shards_of_the_same(tmp_path: Path, rng: np.random.Generator, options: str) -> None:
    trajectories = [ilr_data.trajectory(rng, steps, is_done=steps != 5) for steps in (3, 12, 5)]
    trajectories[1]["next_obs"] = trajectories[1]["next_obs"].copy()
    trajectories[1]["next_obs"][9] ^= 1
    arrays = ilr_data.joined(trajectories)
    np.savez_compressed(tmp_path / "d.npz", **arrays)
    (tmp_path / "d.pickle").write_bytes(pickle.dumps(arrays))
    (tmp_path / "demos.tar").write_bytes(ilr_data.archive(ilr_data.frames(trajectories), None))
    of_shards, of_npz, of_pickle = (
        open_source(f"ilr:{tmp_path}/{name}{options}") for name in ("demos.tar", "d.npz", "d.pickle")
    )
    wanted = list(of_shards)
    for source in (of_npz, of_pickle):
        found = list(source)
        assert source.episode_count == len(found) == len(wanted)
        assert all(map(equal, wanted, found))
        assert [bool(episode.faults) for episode in wanted] == [bool(episode.faults) for episode in found]
        assert {notice.code: notice.count for notice in source.notices} == {
            notice.code: notice.count for notice in of_shards.notices
        }


def test_observations_may_be_lists_of_dictionaries(rng: np.random.Generator) -> None:
    arrays = ilr_data.joined([ilr_data.trajectory(rng, 3), ilr_data.trajectory(rng, 2)])
    whole = {key: arrays[key] for key in ("obs", "next_obs")}
    nests = {key: [{"a": row, "b": int(row[0])} for row in column] for key, column in whole.items()}
    first, _ = open_source({**arrays, **nests, "terminals": [False] * 5})
    seen = np.concatenate([whole["obs"][:3], whole["next_obs"][2:3]])
    assert np.array_equal(first.columns["observation/a"], seen)
    assert first.columns["observation/b"].tolist() == seen[:, 0].tolist()
    assert not first.columns["is_terminal"].any()


def test_gaps_among_lists_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    arrays = ilr_data.joined([ilr_data.trajectory(rng, 3)])
    nests = {key: [{"a": row} for row in arrays[key]] for key in ("obs", "next_obs")}
    (tmp_path / "d.pickle").write_bytes(pickle.dumps({**arrays, **nests}))
    with pytest.raises(SourceError, match="gaps=split compares arrays; obs is a list: use gaps=keep"):
        open_source(f"ilr:{tmp_path / 'd.pickle'}?gaps=split")


@pytest.mark.parametrize("gaps", ["keep", "split", "refuse"])
def test_nan_is_no_gap(tmp_path: Path, rng: np.random.Generator, gaps: str) -> None:
    arrays = ilr_data.joined([ilr_data.trajectory(rng, 4)])
    arrays["obs"], arrays["next_obs"] = (arrays[key].astype(np.float32) for key in ("obs", "next_obs"))
    arrays["obs"][2, 1] = arrays["next_obs"][1, 1] = np.nan
    np.savez(tmp_path / "d.npz", **arrays)
    source = open_source(f"ilr:{tmp_path}/d.npz?gaps={gaps}")
    assert [(len(episode), episode.faults) for episode in source] == [(5, ())]
    assert "gaps" not in {notice.code for notice in source.notices}


def test_a_dict_in_memory_is_a_source(rng: np.random.Generator) -> None:
    arrays = ilr_data.joined([ilr_data.trajectory(rng, 3), ilr_data.trajectory(rng, 2)])
    first, second = read(arrays)
    assert np.array_equal(first.columns["observation"][:-1], arrays["obs"][:3])
    assert np.array_equal(second.columns["observation"][-1], arrays["next_obs"][-1])
    assert [episode.id for episode in read(arrays)] == [first.id, second.id]
    assert [episode.id for episode in read(dict(arrays, acts=arrays["acts"] + 1))] != [first.id, second.id]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acts": np.zeros(3)}, "several lengths"),
        ({"dones": np.full(5, 2)}, "one true or false for each step"),
        ({"dones": np.zeros((5, 2), bool)}, "one true or false for each step"),
        ({"obs": 5}, "expected an array with a row for each step"),
        ({"obs": None}, "no obs|expected an array"),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(
    rng: np.random.Generator, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        open_source({**ilr_data.joined([ilr_data.trajectory(rng, 5)]), **change})


def test_no_step_and_no_obs_are_refused() -> None:
    with pytest.raises(SourceError, match="no obs"):
        open_source({"acts": np.zeros(0), "dones": np.zeros(0, bool)})
    with pytest.raises(SourceError, match="no step"):
        open_source({"obs": np.zeros(0), "acts": np.zeros(0), "dones": np.zeros(0, bool)})


def recorded(rng: np.random.Generator, steps: int, observations: int) -> Any:
    seen = rng.random((observations, 2)).astype(np.float32)
    return {"states": list(seen), "actions": list(range(steps)), "dones": [False] * (steps - 1) + [True]}


def atari(path: Path, trajectories: list[Any]) -> str:
    listed = np.empty(len(trajectories), object)
    listed[:] = trajectories
    np.savez(path / "demos.npz", listed)
    return f"ilr:{path / 'demos.npz'}"


def test_atari_keeps_the_last_action_or_marks_the_last_step(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectories = [recorded(rng, 4, 4), recorded(rng, 3, 3)]
    name = atari(tmp_path, trajectories)
    for kept, marked, trajectory in zip(read(name), read(f"{name}?last_step=mark"), trajectories, strict=True):
        assert np.array_equal(kept.columns["observation"], [*trajectory["states"], trajectory["states"][-1]])
        assert kept.columns["action"].tolist() == [*trajectory["actions"], 0]
        assert np.array_equal(marked.columns["observation"], trajectory["states"])
        assert marked.columns["action"].tolist() == [*trajectory["actions"][:-1], 0]
        assert kept.columns["is_terminal"][-1]
        assert marked.columns["is_terminal"][-1], "the done that il-representations cuts off"
    source = open_source(name)
    list(source)
    assert "repeated_last_observation" in {notice.code for notice in source.notices}


@pytest.mark.parametrize("more", [0, 1])
def test_procgen_reads_each_trajectory_for_itself(tmp_path: Path, rng: np.random.Generator, more: int) -> None:
    trajectories = [recorded(rng, steps, steps + more) for steps in (4, 3)]
    lists = {
        "obs": [trajectory["states"] for trajectory in trajectories],
        "acts": [trajectory["actions"] for trajectory in trajectories],
        "rews": [[0.5] * len(trajectory["actions"]) for trajectory in trajectories],
        "dones": [trajectory["dones"] for trajectory in trajectories],
    }
    (tmp_path / "demo.pickle").write_bytes(pickle.dumps(lists))
    for episode, trajectory in zip(read(f"ilr:{tmp_path}"), trajectories, strict=True):
        assert np.array_equal(episode.columns["observation"][: len(trajectory["states"])], trajectory["states"])
        assert len(episode) == len(trajectory["actions"]) + 1
        assert episode.columns["reward"].tolist() == [0.5] * len(trajectory["actions"]) + [0]
    for episode, trajectory in zip(read(f"ilr:{tmp_path}?last_step=mark"), trajectories, strict=True):
        assert np.array_equal(episode.columns["observation"], trajectory["states"])
        assert episode.columns["is_terminal"][-1]


def test_magical_has_a_file_for_each_demonstration(tmp_path: Path, rng: np.random.Generator) -> None:
    seen = rng.integers(0, 255, (3, 4, 2, 2), np.uint8)
    for number, frames in enumerate(seen):
        seen_twice = [{"ego": row, "allo": row} for row in frames]
        ilr_data.magical(tmp_path / f"demo-{number}.pkl.gz", np.arange(3), seen_twice, [0.0] * 3, [{"s": 1.0}] * 3)
    source = open_source(f"ilr:{tmp_path}")
    episodes = list(source)
    assert source.episode_count is None
    assert open_source(f"ilr:{tmp_path}?episodes=-1:").episode_count == 1
    for episode, images in zip(episodes, seen, strict=True):
        assert np.array_equal(episode.columns["observation/ego"], images)
        assert episode.columns["infos/s"].tolist() == [1, 1, 1, 0]
    (tmp_path / "demo-1.pkl.gz").write_bytes(b"\x1f\x8bnothing")
    good, bad, last = read(f"ilr:{tmp_path}")
    assert "demo-1.pkl.gz: cannot be read" in bad.faults[0][1]
    assert not good.faults
    assert not last.faults


@pytest.mark.parametrize("terminal", [True, False, None])
def test_dm_control_has_lists_of_imitations_trajectories(
    tmp_path: Path, rng: np.random.Generator, terminal: bool | None
) -> None:
    seen = rng.integers(0, 255, (4, 2), np.uint8)
    fields = {"obs": seen, "acts": np.zeros((3, 2)), "infos": np.array([{"s": 1.0}] * 3), "rews": np.ones(3)}
    fields |= {} if terminal is None else {"terminal": terminal}
    ilr_data.dm_control(tmp_path / "a.pkl.gz", [fields] * 2)
    episodes = read(f"ilr:{tmp_path / '*.pkl.gz'}")
    assert len(episodes) == 2
    assert np.array_equal(episodes[0].columns["observation"], seen)
    assert episodes[0].columns["is_terminal"][-1] == (terminal is not False)


@pytest.mark.parametrize("layout", ["dict", "atari", "dm_control", "magical", "procgen", "webdataset"])
@pytest.mark.parametrize(
    "value", [5, [], {}, {"obs": []}, {"trajectory": 5}, [5], {"obs": [1], "acts": [2], "dones": [3], "rews": [4]}]
)
def test_another_layout_is_refused(tmp_path: Path, layout: str, value: Any) -> None:
    (tmp_path / "x.pickle").write_bytes(pickle.dumps(value))
    with pytest.raises(SourceError):
        open_source(f"ilr:{tmp_path / 'x.pickle'}?layout={layout}")


@pytest.mark.parametrize("damage", ["header", "cut", "objects", "version"])
def test_damaged_npz_files_are_refused(tmp_path: Path, damage: str) -> None:
    data = {
        "header": b"\x93NUMPY\x01\0\x10\0{'descr': 'O'; x}" + bytes(9),
        "cut": b"\x93NUMPY\x01\0\x46\0{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }   \n",
        "objects": b"\x93NUMPY\x01\0\x46\0{'descr': '|O', 'fortran_order': False, 'shape': (9,), }            \n"
        + pickle.dumps(print),
        "version": b"\x93NUMPY\x09\0" + bytes(20),
    }[damage]
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        for name in ("obs", "acts", "dones"):
            file.writestr(f"{name}.npy", data)
    with pytest.raises(SourceError, match=r"x\.npz"):
        open_source(f"ilr:{tmp_path / 'x.npz'}")


def test_a_folder_with_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected files"):
        open_source(f"ilr:{tmp_path}")
    with pytest.raises(SourceError, match="not found"):
        open_source(f"ilr:{tmp_path}/*.tar")


@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.parametrize("odd", range(3))
def test_a_file_that_is_unlike_most_is_a_bad_episode(
    tmp_path: Path, rng: np.random.Generator, odd: int, broken: bool
) -> None:
    for number in range(3):
        found = ilr_data.trajectory(rng, 3, size=5 if number == odd else 4)
        np.savez(tmp_path / f"{number}.npz", **{key: column for key, column in found.items() if key != "infos"})
    if broken:
        (tmp_path / f"{odd}.npz").write_bytes(b"PK")
    source = open_source(f"ilr:{tmp_path}")
    assert [bool(episode.faults) for episode in source] == [number == odd for number in range(3)]
    assert ("mixed_specs" in {notice.code for notice in source.notices}) == (not broken)
