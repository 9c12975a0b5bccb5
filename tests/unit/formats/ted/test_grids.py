"""What the items of a memory-mapped storage are: steps or trajectories, written or not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Array, Episode, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source


def dump(folder: Path, batch: tuple[int, ...], leaves: Mapping[str, Array], length: int | None = None) -> str:
    """Writes a storage as TensorDict.memmap does; with its `len` as `ReplayBuffer.dumps` does. Returns the source."""
    storage = folder / "storage" if length is not None else folder
    metas: dict[Path, dict[str, Any]] = {}
    for key, values in leaves.items():
        file = storage / f"{key}.memmap"
        file.parent.mkdir(parents=True, exist_ok=True)
        values.tofile(file)
        leaf = {"dtype": f"torch.{values.dtype}", "shape": list(values.shape), "is_nested": False}
        metas.setdefault(file.parent, {})[file.stem] = leaf
    for below, meta in metas.items():
        (below / "meta.json").write_text(json.dumps({**meta, "shape": list(batch), "_type": "TensorDict"}))
    if length is not None:
        (storage / "storage_metadata.json").write_text(json.dumps({"metadata": {}, "is_pytree": False, "len": length}))
    return f"ted:{folder}"


def trajectories(count: int = 6, steps: int = 5, seed: int = 0) -> dict[str, Array]:
    """Keys of [count, steps, ...], in which `next` is the observation of the following step."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(count, steps + 1, 3)).astype(np.float32)
    return {
        "observation": seen[:, :-1].copy(),
        "action": rng.normal(size=(count, steps, 2)),
        "next/observation": seen[:, 1:].copy(),
        "next/reward": rng.normal(size=(count, steps, 1)).astype(np.float32),
    }


def with_ends(leaves: Mapping[str, Array]) -> dict[str, Array]:
    ends = np.zeros((*leaves["action"].shape[:2], 1), bool)
    ends[:, -1] = True
    return {**leaves, "next/done": ends, "next/terminated": ends, "next/truncated": np.zeros_like(ends)}


def check(episodes: list[Episode], leaves: Mapping[str, Array]) -> None:
    assert len(episodes) == len(leaves["action"])
    for number, episode in enumerate(episodes):
        columns = episode.columns
        seen = [*leaves["observation"][number], leaves["next/observation"][number, -1]]
        np.testing.assert_array_equal(columns["observation"], seen)
        np.testing.assert_array_equal(columns["action"][:-1], leaves["action"][number])
        np.testing.assert_array_equal(columns["reward"][:-1], leaves["next/reward"][number, :, 0])


def notices(name: str) -> dict[str, Notice]:
    return {notice.code: notice for notice in open_source(name).notices}


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("option", ["", "?items=trajectories"])
@pytest.mark.parametrize(("capacity", "length"), [(6, None), (6, 6), (9, 6)])
def test_trajectories_are_items(tmp_path: Path, ends: bool, option: str, capacity: int, length: int | None) -> None:
    leaves = with_ends(trajectories()) if ends else trajectories()
    allocated = {
        key: np.concatenate([leaf, np.ones((capacity - 6, *leaf.shape[1:]), leaf.dtype)])
        for key, leaf in leaves.items()
    }
    name = dump(tmp_path / "buffer", (capacity,), allocated | {"index": np.arange(capacity)}, length) + option
    episodes = list(open_source(name))
    check(episodes, leaves)
    for episode in episodes:
        assert ("is_terminal" in episode.columns and bool(episode.columns["is_terminal"][-1])) == ends
    assert ("items" in notices(name)) == (not option)


def test_ids_of_whole_trajectories_are_their_metadata(tmp_path: Path) -> None:
    leaves = trajectories() | {"collector/traj_ids": np.arange(30, 36)}
    episodes = list(open_source(dump(tmp_path, (6,), leaves)))
    check(episodes, leaves)
    assert [int(episode.metadata["trajectory_id"]) for episode in episodes] == [*range(30, 36)]


def test_an_end_inside_an_item_ends_a_trajectory(tmp_path: Path) -> None:
    leaves = with_ends(trajectories(2))
    leaves["next/done"][0, 1] = True
    name = dump(tmp_path, (2,), leaves, 2) + "?items=trajectories"
    assert [len(episode) for episode in open_source(name)] == [3, 4, 6]


def test_steps_that_fill_up_a_trajectory_are_left_out_and_told(tmp_path: Path) -> None:
    leaves = trajectories(4)
    for values in leaves.values():
        values[1, 3:] = 0
    name = dump(tmp_path, (4,), leaves, 4)
    assert [len(episode) for episode in open_source(name)] == [6, 4, 6, 6]
    assert notices(name)["unwritten"].count == 2
    masked = dump(tmp_path / "masked", (4,), leaves | {"mask": np.ones((4, 5), bool)}, 4) + "?items=trajectories"
    assert [len(episode) for episode in open_source(masked)] == [6, 6, 6, 6]


def agents(steps: int = 12) -> dict[str, Array]:
    """Steps of three agents, whose keys are all [steps, agents, ...]."""
    leaves = trajectories(3, steps)
    return {key: np.ascontiguousarray(values.swapaxes(0, 1)) for key, values in with_ends(leaves).items()}


def test_agents_of_a_step_are_no_trajectory(tmp_path: Path) -> None:
    """`next` goes on along the rows, and their flags divide them: nothing is asked."""
    leaves = agents()
    (episode,) = open_source(dump(tmp_path, (12,), leaves, 12))
    np.testing.assert_array_equal(episode.columns["observation"][:-1], leaves["observation"])
    np.testing.assert_array_equal(episode.columns["action"][:-1], leaves["action"])


def test_end_flags_that_say_different_things_are_told(tmp_path: Path) -> None:
    leaves = agents()
    assert "ends_differ" not in notices(dump(tmp_path / "alike", (12,), leaves, 12))
    some = {**leaves, "next/done": leaves["next/done"].copy(), "next/terminated": leaves["next/terminated"].copy()}
    some["next/done"][4, 0] = some["next/terminated"][4, 0] = True
    name = dump(tmp_path / "agents", (12,), some, 12)
    assert [len(episode) for episode in open_source(name)] == [6, 8]
    assert (notices(name)["ends_differ"].count, "of some agents" in notices(name)["ends_differ"].text) == (1, True)
    unmarked = {**leaves, "next/truncated": leaves["next/truncated"].copy()}
    unmarked["next/truncated"][[2, 4]] = True
    name = dump(tmp_path / "unmarked", (12,), unmarked, 12)
    assert [len(episode) for episode in open_source(name)] == [13]
    assert (notices(name)["ends_differ"].count, "by done alone" in notices(name)["ends_differ"].text) == (2, True)
    # What was never written says nothing.
    name = dump(tmp_path / "unwritten", (12,), unmarked, 2)
    assert "ends_differ" not in notices(name)


@pytest.mark.parametrize("ends", [False, True])
def test_items_of_which_nothing_tells_what_they_are_are_asked_for(tmp_path: Path, ends: bool) -> None:
    leaves = with_ends(trajectories()) if ends else trajectories()
    name = dump(tmp_path, (6,), {key: values for key, values in leaves.items() if key != "next/observation"}, 6)
    with pytest.raises(
        SourceError, match=r"items=trajectories reads 6 trajectories of 5 steps; items=steps reads 6 steps"
    ):
        open_source(name)
    assert [len(episode) for episode in open_source(f"{name}?items=trajectories")] == [6] * 6
    if ends:
        assert [len(episode) for episode in open_source(f"{name}?items=steps")] == [2] * 6
    else:
        with pytest.raises(SourceError, match="nothing says where trajectories end"):
            open_source(f"{name}?items=steps")


def test_the_example_of_the_manual_is_asked_for(tmp_path: Path) -> None:
    """obs[:-1] and obs[1:] of [100, 50, 1]: said to be 99 trajectories, whose `next` is the following trajectory."""
    seen = np.random.default_rng(0).normal(size=(100, 50, 1)).astype(np.float32)
    name = dump(tmp_path, (99,), {"obs": seen[:-1].copy(), "next/obs": seen[1:].copy()}, 99)
    with pytest.raises(SourceError, match="items=trajectories"):
        open_source(name)
    source = open_source(f"{name}?items=trajectories")
    assert [len(episode) for episode in source] == [51] * 99
    assert "next_differs" in {notice.code for notice in source.notices}


@pytest.mark.parametrize("ends", [False, True])
def test_a_key_that_stands_once_for_each_trajectory_changes_nothing(tmp_path: Path, ends: bool) -> None:
    leaves = with_ends(trajectories()) if ends else trajectories()
    goals = np.random.default_rng(1).normal(size=(6, 2))
    episodes = list(open_source(dump(tmp_path, (6,), {**leaves, "goal": goals}, 6)))
    check(episodes, leaves)
    for goal, episode in zip(goals, episodes):
        np.testing.assert_array_equal(episode.columns["goal"][:-1], np.repeat(goal[None], 5, 0))


def test_a_reward_of_several_numbers_is_no_trajectory(tmp_path: Path) -> None:
    """Rewards and end flags differ in their second size, so items are steps."""
    leaves = {key: values[0] for key, values in with_ends(trajectories(1, 12)).items()}
    leaves["next/reward"] = np.ones((12, 3), np.float32)
    assert [len(episode) for episode in open_source(dump(tmp_path, (12,), leaves, 12))] == [13]


def environments(rows: int = 10, columns: int = 3, capacity: int = 10) -> dict[str, Array]:
    """Keys of [capacity, columns, ...], as a storage of ndim=2 keeps the steps of environments beside each other."""
    leaves = with_ends(trajectories(columns, rows))
    leaves["next/done"][:, 4] = True
    turned = {key: values.swapaxes(0, 1) for key, values in leaves.items()}
    return {
        key: np.concatenate([values, np.zeros((capacity - rows, *values.shape[1:]), values.dtype)])
        for key, values in turned.items()
    }


@pytest.mark.parametrize("capacity", [10, 20])
@pytest.mark.parametrize("length", [None, 30, 10])
def test_next_tells_which_size_of_a_batch_is_time(tmp_path: Path, capacity: int, length: int | None) -> None:
    """`len` counts steps, or items where a batch [time, environments] was stored as its rows; a scratch_dir has none."""
    name = dump(tmp_path, (capacity, 3), environments(capacity=capacity), length)
    wanted = with_ends(trajectories(3, 10))
    episodes = list(open_source(name))
    assert [len(episode) for episode in episodes] == [6] * 6
    for number, episode in enumerate(episodes):
        column, start = number // 2, 5 * (number % 2)
        np.testing.assert_array_equal(
            episode.columns["observation"][:-1], wanted["observation"][column, start : start + 5]
        )
    assert ("items" in notices(name)) == (length == 10)
    assert ("unwritten" in notices(name)) == (length is None and capacity > 10)


def test_trajectories_of_a_storage_that_counts_steps_are_read_along_their_steps(tmp_path: Path) -> None:
    """dim_extend=0 of a storage of ndim=2: `len` counts steps, and time is the last size."""
    leaves = {key: np.concatenate([values, np.zeros_like(values)]) for key, values in with_ends(trajectories()).items()}
    name = dump(tmp_path, (12, 5), leaves, 30)
    check(list(open_source(name)), trajectories())
    assert "along the last size" in notices(name)["items"].text


def test_batches_of_trajectories_as_items_are_read_whole(tmp_path: Path) -> None:
    """Each of four items has two trajectories: [4, 2, 5, ...]."""
    leaves = trajectories(8)
    stored = {key: values.reshape(4, 2, *values.shape[1:]) for key, values in leaves.items()}
    check(list(open_source(dump(tmp_path, (4, 2, 5), stored, 4) + "?items=trajectories")), leaves)
    check(
        list(open_source(dump(tmp_path / "part", (4, 2, 5), stored, 3) + "?items=trajectories")),
        {k: v[:6] for k, v in leaves.items()},
    )


@pytest.mark.parametrize("length", [None, 6])
def test_a_batch_of_which_nothing_tells_the_time_is_asked_for(tmp_path: Path, length: int | None) -> None:
    leaves = {key: values for key, values in with_ends(trajectories(6, 3)).items() if key != "next/observation"}
    name = dump(tmp_path, (6, 3), leaves, length)  # 6 items, or 2 rows of 3; without a cursor
    with pytest.raises(
        SourceError, match=r"items=trajectories reads 6 trajectories of 3 steps.*items=steps reads 6 steps"
    ):
        open_source(name)
    assert [len(episode) for episode in open_source(f"{name}?items=trajectories")] == [4] * 6
    masked = dump(tmp_path / "masked", (6, 3), leaves | {"mask": np.ones((6, 3), bool)}, length)
    assert [len(episode) for episode in open_source(masked)] == [4] * 6


def test_keys_that_differ_in_their_steps_are_named(tmp_path: Path) -> None:
    leaves = {key: values for key, values in trajectories().items() if key in ("observation", "next/observation")}
    leaves["extra"] = np.ones((6, 4))
    with pytest.raises(SourceError, match=r"extra \[6, 4\].*observation \[6, 5, 3\]"):
        open_source(dump(tmp_path, (6,), leaves, 6) + "?items=trajectories")


def steps(count: int, capacity: int) -> dict[str, Array]:
    """Steps of trajectories of four, in a storage with more rows."""
    leaves = {key: values[0] for key, values in with_ends(trajectories(1, count)).items()}
    leaves["next/done"][3::4] = True
    leaves["collector/traj_ids"] = np.arange(count) // 4
    return {
        key: np.concatenate([leaf, np.zeros((capacity - count, *leaf.shape[1:]), leaf.dtype)])
        for key, leaf in leaves.items()
    }


@pytest.mark.parametrize("has_ids", [False, True])
def test_rows_that_were_never_written_are_left_out_and_told(tmp_path: Path, has_ids: bool) -> None:
    leaves = steps(10, 25)
    if not has_ids:
        del leaves["collector/traj_ids"]
    name = dump(tmp_path / "scratch", (25,), leaves)
    assert [len(episode) for episode in open_source(name)] == [5, 5, 3]
    assert notices(name)["unwritten"].count == 15
    dumped = dump(tmp_path / "dumped", (25,), leaves, 10)
    assert [len(episode) for episode in open_source(dumped)] == [5, 5, 3]
    assert "unwritten" not in notices(dumped)


def test_items_that_were_never_written_are_left_out(tmp_path: Path) -> None:
    leaves = {key: np.concatenate([leaf, np.zeros_like(leaf)]) for key, leaf in trajectories().items()}
    name = dump(tmp_path, (12,), leaves)
    check(list(open_source(name)), trajectories())
    assert notices(name)["unwritten"].count == 6


def test_ids_that_come_back_are_told(tmp_path: Path) -> None:
    leaves = steps(16, 16)
    leaves["collector/traj_ids"] = np.repeat([3, 4, 3, 5], 4)
    name = dump(tmp_path, (16,), leaves, 16)
    assert [len(episode) for episode in open_source(name)] == [5] * 4
    assert notices(name)["ids_return"].count == 1
    assert "first id 3" in notices(name)["ids_return"].text
    assert "ids_return" not in notices(dump(tmp_path / "other", (16,), steps(16, 16), 16))


def test_a_storage_without_room_has_no_trajectories(tmp_path: Path) -> None:
    leaves = {key: values[:0, :4] for key, values in with_ends(trajectories()).items()}
    name = dump(tmp_path, (0, 4), leaves, 0)
    (tmp_path / "writer").mkdir()
    (tmp_path / "writer" / "metadata.json").write_text(json.dumps({"cursor": 0}))
    assert not list(open_source(name))
    (tmp_path / "writer" / "metadata.json").write_text(json.dumps({"cursor": 3}))
    with pytest.raises(SourceError, match="write cursor 3: expected at most 0"):
        open_source(name)


@pytest.mark.parametrize(("added", "lengths"), [(6, [4, 4]), (4, [4, 2]), (8, [2, 4, 3]), (0, [])])
def test_a_split_of_atari_dqn_is_a_ring(tmp_path: Path, added: int, lengths: list[int]) -> None:
    """Each frame stands once, with an empty one behind the last; `add_count` says where the ring stands."""
    rows = {
        "data/observation": np.arange(1, 15, dtype=np.uint8).reshape(7, 2),
        "data/action": np.arange(6),
        "data/next/reward": np.arange(6.0),
        "data/next/terminated": np.array([0, 0, 1, 0, 0, 1], np.uint8),
        "invalid_range": np.arange(5),
        "add_count": np.array(added),
    }
    name = dump(tmp_path, (), rows)
    episodes = list(open_source(name))
    assert [len(episode) for episode in episodes] == lengths
    order = np.roll(np.arange(6), -(added % 6) if added > 6 else 0)[: min(added, 6)]
    if episodes:
        np.testing.assert_array_equal(np.concatenate([episode.columns["action"][:-1] for episode in episodes]), order)
        np.testing.assert_array_equal(episodes[0].metadata["invalid_range"], np.arange(5))
        assert "add_count" not in episodes[0].metadata
    assert ("cut_start" in notices(name)) == (added > 6)


def test_keys_of_a_split_of_atari_dqn_must_fit(tmp_path: Path) -> None:
    rows: dict[str, Array] = {
        "data/observation": np.zeros((7, 2)),
        "data/next/terminated": np.zeros(6, np.uint8),
        "invalid_range": np.arange(5),
    }
    with pytest.raises(SourceError, match=r"data/action: has shape \[5\]; expected 6 rows"):
        open_source(dump(tmp_path / "short", (), {**rows, "data/action": np.zeros(5)}))
    with pytest.raises(SourceError, match="add_count -1: expected a number of steps"):
        open_source(dump(tmp_path / "negative", (), {**rows, "add_count": np.array(-1)}))


def test_step_types_of_dm_env_say_where_trajectories_end(tmp_path: Path) -> None:
    leaves = {key: values[0] for key, values in trajectories(1, 7).items()}
    name = dump(tmp_path / "types", (7,), {**leaves, "state/step_type": np.array([0, 1, 2, 0, 1, 1, 2])})
    assert [len(episode) for episode in open_source(name)] == [4, 5]
    assert "step_type is 2" in notices(name)["keys"].text
    other = dump(tmp_path / "other", (7,), {**leaves, "state/step_type": np.array([0, 1, 2, 3, 1, 1, 2])})
    with pytest.raises(SourceError, match="nothing says where trajectories end"):
        open_source(other)


def test_a_last_observation_that_was_not_recorded_is_told_and_can_be_left_out(tmp_path: Path) -> None:
    leaves = with_ends(trajectories())
    leaves["next/observation"][:, -1] = 0
    name = dump(tmp_path, (6,), leaves, 6)
    assert notices(name)["no_last_observation"].count == 6
    for episode in open_source(name):
        assert not episode.columns["observation"][-1].any()
    dropped = f"{name}?next=drop"
    assert "no_last_observation" not in notices(dropped)
    for number, episode in enumerate(open_source(dropped)):
        seen = leaves["observation"][number]
        np.testing.assert_array_equal(episode.columns["observation"], [*seen, seen[-1]])
        np.testing.assert_array_equal(episode.columns["reward"][:-1], leaves["next/reward"][number, :, 0])
        assert episode.columns["is_terminal"][-1]
    marked = list(open_source(f"{dropped},last_step=mark"))
    np.testing.assert_array_equal(marked[0].columns["observation"], leaves["observation"][0])
    assert "no_last_observation" not in notices(dump(tmp_path / "whole", (6,), with_ends(trajectories()), 6))
