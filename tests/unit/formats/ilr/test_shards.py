"""Shards as il-representations writes them are read exactly; what is odd about them is told."""

from __future__ import annotations

import io
import pickle
import re
import shutil
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import content_digest, content_name
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.ilr import archives
from rlds2reverb.specs import ArraySpec
from tests.support.formats import ilr as ilr_data
from tests.support.profiles import examples


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def written(folder: Path, trajectories: Any, first: bytes | None = b"", **options: Any) -> str:
    first = ilr_data.description(np.asarray(trajectories[0]["obs"][0])) if first == b"" else first
    (folder / "demos.tar").write_bytes(ilr_data.archive(ilr_data.frames(trajectories), first, **options))
    return f"ilr:{folder / 'demos.tar'}"


def read(name: str) -> list[Any]:
    return list(open_source(name))


def codes(name: str) -> dict[str, int]:
    source = open_source(name)
    list(source)
    return {notice.code: notice.count for notice in source.notices}


def check(episode: Any, trajectory: Any, is_terminal: bool = True) -> None:
    assert not episode.faults
    columns, steps = episode.columns, len(trajectory["obs"])
    observation = np.concatenate([trajectory["obs"], trajectory["next_obs"][-1:]])
    assert columns["observation"].dtype == observation.dtype
    assert np.array_equal(columns["observation"], observation)
    wanted = {"action": "acts", "reward": "rews"}
    for path, key in wanted.items():
        if key in trajectory:
            assert columns[path].dtype == trajectory[key].dtype
            assert np.array_equal(columns[path][:-1], trajectory[key])
    assert columns["is_terminal"].tolist() == [False] * steps + [is_terminal]
    assert columns["infos/state"][:-1].tolist() == [info["state"].tolist() for info in trajectory["infos"]]
    assert columns["infos/note"][:-1].tolist() == [info["note"].encode() for info in trajectory["infos"]]


@examples(30)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    protocol=st.sampled_from(range(pickle.HIGHEST_PROTOCOL + 1)),
    seed=st.integers(0, 99),
    is_done=st.booleans(),
    with_rewards=st.booleans(),
)
def test_trajectories_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    protocol: int,
    seed: int,
    is_done: bool,
    with_rewards: bool,
) -> None:
    draw = np.random.default_rng(seed)
    trajectories = [ilr_data.trajectory(draw, steps, with_rewards=with_rewards) for steps in lengths]
    if not is_done:
        trajectories[-1]["dones"] = trajectories[-1]["dones"] & False
    episodes = read(written(tmp_path_factory.mktemp("shards"), trajectories, protocol=protocol))
    assert len(episodes) == len(trajectories)
    for number, (episode, trajectory) in enumerate(zip(episodes, trajectories)):
        check(episode, trajectory, is_done or number < len(trajectories) - 1)


def test_what_done_means_is_chosen(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectory = ilr_data.trajectory(rng, 3)
    name = written(tmp_path, [trajectory])
    (as_terminal,), (as_truncated,) = read(name), read(f"{name}?done_means=truncation")
    check(as_terminal, trajectory)
    check(as_truncated, trajectory, is_terminal=False)
    assert as_terminal.columns["discount"].tolist() == [1, 1, 0, 0]
    assert as_truncated.columns["discount"].tolist() == [1, 1, 1, 1]
    assert as_terminal.id != as_truncated.id


def test_dones_of_random_rollouts_are_whole_numbers(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectories = [ilr_data.trajectory(rng, 2), ilr_data.trajectory(rng, 3)]
    for recorded in trajectories:
        recorded["dones"] = recorded["dones"].astype(np.int64)
    for episode, trajectory in zip(read(written(tmp_path, trajectories)), trajectories, strict=True):
        check(episode, trajectory)


@pytest.mark.parametrize("is_dict", [False, True], ids=["shard", "dict"])
def test_rewards_that_are_missing_are_zeros_of_float32_and_told(
    tmp_path: Path, rng: np.random.Generator, is_dict: bool
) -> None:
    trajectories = [ilr_data.trajectory(rng, steps, with_rewards=False) for steps in (2, 5)]
    name = written(tmp_path, trajectories)
    if is_dict:
        np.savez(tmp_path / "d.npz", **ilr_data.joined(trajectories))
        name = f"ilr:{tmp_path}/d.npz"
    source = open_source(name)
    assert source.spec()["reward"] == ArraySpec((), np.dtype(np.float32))
    for episode, trajectory in zip(source, trajectories, strict=True):
        check(episode, trajectory)
        assert episode.columns["reward"].dtype == np.float32
        assert episode.columns["reward"].tolist() == [0] * (len(trajectory["obs"]) + 1)
    assert codes(name)["no_rewards"] == 1
    without = source.without(["reward"])
    assert "reward" not in without.spec()
    assert [episode.columns.keys() & {"reward"} for episode in without] == [set(), set()]


def test_rewards_that_are_made_up_are_no_part_of_the_name(tmp_path: Path, rng: np.random.Generator) -> None:
    (episode,) = read(written(tmp_path, [ilr_data.trajectory(rng, 3, with_rewards=False)]))
    recorded = {path: column for path, column in episode.columns.items() if path != "reward"}
    assert episode.id == content_name(content_digest(recorded))


def test_shards_of_which_one_has_no_rewards_are_not_filled(tmp_path: Path, rng: np.random.Generator) -> None:
    for number in range(3):
        trajectory = ilr_data.trajectory(rng, 2, with_rewards=number != 1)
        ilr_data.shard(tmp_path / f"{number}.tar", [trajectory])
    recorded = [not episode.faults for episode in read(f"ilr:{tmp_path}")]
    assert recorded == [True, False, True]


def test_a_tail_that_is_not_done_is_a_truncated_episode(tmp_path: Path, rng: np.random.Generator) -> None:
    assert (
        codes(written(tmp_path, [ilr_data.trajectory(rng, 2), ilr_data.trajectory(rng, 2, is_done=False)]))["no_end"]
        == 1
    )


@pytest.fixture(scope="module")
def beyond_a_thousand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of `demos.tar` with one trajectory, and the trajectory."""
    trajectory = ilr_data.trajectory(np.random.default_rng(3), 1003, size=1)
    folder = tmp_path_factory.mktemp("long")
    written(folder, [trajectory])
    return folder, trajectory


def test_steps_stay_in_order_beyond_the_thousandth(beyond_a_thousand: tuple[Path, Any]) -> None:
    folder, trajectory = beyond_a_thousand
    (episode,) = read(f"ilr:{folder / 'demos.tar'}")
    check(episode, trajectory)


def test_members_sorted_by_their_names_are_bad_episodes(tmp_path: Path, beyond_a_thousand: tuple[Path, Any]) -> None:
    with tarfile.open(beyond_a_thousand[0] / "demos.tar") as tar, tarfile.open(tmp_path / "sorted.tar", "w") as other:
        for member in sorted(tar.getmembers(), key=lambda one: one.name):
            other.addfile(member, tar.extractfile(member))
    episodes = read(f"ilr:{tmp_path / 'sorted.tar'}")
    assert all(episode.faults for episode in episodes)
    assert "frame_1000: follows step 100; the members are not in the order of time" in episodes[0].faults[0][1]


def test_several_shards_are_read_by_name_each_ending_its_trajectory(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectories = [
        ilr_data.trajectory(rng, 2),
        ilr_data.trajectory(rng, 3, is_done=False),
        ilr_data.trajectory(rng, 2),
    ]
    ilr_data.shard(tmp_path / "b.tar.zst", trajectories[2:], task="Other-v0")
    ilr_data.shard(tmp_path / "a.tar", trajectories[:2])
    for name in (f"ilr:{tmp_path}", f"ilr:{tmp_path}/*.tar*"):
        episodes = read(name)
        for episode, trajectory, is_terminal in zip(episodes, trajectories, (True, False, True), strict=True):
            check(episode, trajectory, is_terminal)
        assert [recorded.metadata["task_name"] for recorded in episodes] == [b"Toy-v0", b"Toy-v0", b"Other-v0"]
        assert codes(name)["other_metadata"] == 1


def test_a_later_description_within_a_shard_is_passed_over(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectories = [ilr_data.trajectory(rng, 2), ilr_data.trajectory(rng, 2)]
    first, other = (ilr_data.description(trajectories[0]["obs"][0], task=task) for task in ("a", "b"))
    end = 2 * 512
    parts = [
        ilr_data.archive(ilr_data.frames([trajectory]), told, start=2 * at)
        for at, (trajectory, told) in enumerate(zip(trajectories, (first, other)))
    ]
    whole = b"".join(part.rstrip(b"\0") + bytes(-len(part.rstrip(b"\0")) % 512) for part in parts) + bytes(end)
    (tmp_path / "demos.tar").write_bytes(whole)
    episodes = read(f"ilr:{tmp_path}")
    assert [episode.metadata["task_name"] for episode in episodes] == [b"a", b"a"]
    assert codes(f"ilr:{tmp_path}")["other_metadata"] == 1


def test_a_shard_without_a_description_is_read(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectory = ilr_data.trajectory(rng, 2)
    (episode,) = read(written(tmp_path, [trajectory], first=None))
    check(episode, trajectory)
    assert dict(episode.metadata) == {}


def test_the_description_is_told_of_every_episode(tmp_path: Path, rng: np.random.Generator) -> None:
    (episode,) = read(written(tmp_path, [ilr_data.trajectory(rng, 2)]))
    assert {key: value.decode() for key, value in episode.metadata.items()} == {
        "benchmark_name": "toy",
        "task_name": "Toy-v0",
        "color_space": "RGB",
        "action_space": '{"n": 3, "type": "Discrete"}',
        "observation_space": '{"dtype": "uint8", "high": 1, "low": 0, "shape": [4], "type": "Box"}',
        "env_cfg": '{"benchmark_name": "toy", "task_name": "Toy-v0"}',
    }


def test_frames_of_zstd_follow_one_another(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectories = [ilr_data.trajectory(rng, 2), ilr_data.trajectory(rng, 3)]
    written(tmp_path, trajectories)
    data = (tmp_path / "demos.tar").read_bytes()
    skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    frames = [bytes(cramjam.zstd.compress(data[at : at + 700])) for at in range(0, len(data), 700)]
    (tmp_path / "demos.tar.zst").write_bytes(skipped + skipped.join(frames))
    (tmp_path / "demos.tar").unlink()
    for episode, trajectory in zip(read(f"ilr:{tmp_path}"), trajectories, strict=True):
        check(episode, trajectory)


def gap(trajectory: Any, step: int) -> Any:
    trajectory["next_obs"] = trajectory["next_obs"].copy()
    trajectory["next_obs"][step] ^= 1
    return trajectory


def test_gaps_are_told_cut_or_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    broken, whole = gap(ilr_data.trajectory(rng, 12), 9), ilr_data.trajectory(rng, 3)
    name = written(tmp_path, [broken, whole])
    assert codes(name)["gaps"] == 1
    check(read(name)[0], broken)
    first, second, third = read(f"{name}?gaps=split")
    check(first, {key: value[:10] for key, value in broken.items()}, is_terminal=False)
    check(second, {key: value[10:] for key, value in broken.items()})
    check(third, whole)
    bad, good = read(f"{name}?gaps=refuse")
    assert "frame_010: is not the observation that followed the step before" in bad.faults[0][1]
    check(good, whole)
    assert [episode.id for episode in open_source(f"{name}?gaps=split,episodes=1")] == [second.id]


def test_gaps_at_the_first_steps_are_told_as_those_of_stacked_frames(tmp_path: Path, rng: np.random.Generator) -> None:
    source = open_source(written(tmp_path, [gap(ilr_data.trajectory(rng, 12), 1)]))
    list(source)
    assert any("as where frames are stacked anew" in notice.text for notice in source.notices)


def test_a_last_observation_of_the_next_trajectory_is_told(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectories = [ilr_data.trajectory(rng, 3) for _ in range(3)]
    for trajectory, following in pairwise(trajectories):
        trajectory["next_obs"] = np.concatenate([trajectory["next_obs"][:-1], following["obs"][:1]])
    assert codes(written(tmp_path, trajectories))["foreign_last_observation"] == 2


def test_a_last_observation_that_is_the_one_before_is_told(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectory = ilr_data.trajectory(rng, 3)
    trajectory["next_obs"] = np.concatenate([trajectory["next_obs"][:-1], trajectory["obs"][-1:]])
    assert codes(written(tmp_path, [trajectory]))["repeated_last_observation"] == 1


def test_without_next_observations_the_last_one_stands_there_again(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectory = ilr_data.trajectory(rng, 3)
    after = trajectory.pop("next_obs")
    trajectory["next_obs"] = after
    (episode,) = read(written(tmp_path, [{key: value for key, value in trajectory.items() if key != "next_obs"}]))
    assert np.array_equal(episode.columns["observation"], trajectory["obs"][[0, 1, 2, 2]])


def test_observations_and_actions_may_be_dictionaries_and_several_keys(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    ego, allo = rng.random((2, 4, 3))
    trajectory = {
        "obs_ego": ego[:-1],
        "next_obs_ego": ego[1:],
        "obs_allo": [{"a": image} for image in allo[:-1]],
        "next_obs_allo": [{"a": image} for image in allo[1:]],
        "acts": [{"vector": np.float32(at)} for at in range(3)],
        "dones": np.array([0, 0, 1]),
        "reward": np.arange(3.0),
        "speed": np.arange(3),
    }
    (tmp_path / "demos.tar").write_bytes(
        ilr_data.archive(({key: value[at] for key, value in trajectory.items()} for at in range(3)), None)
    )
    (episode,) = read(f"ilr:{tmp_path}")
    columns = episode.columns
    assert np.array_equal(columns["observation/ego"], ego)
    assert np.array_equal(columns["observation/allo/a"], allo)
    assert columns["action/vector"].tolist() == [0, 1, 2, 0]
    assert columns["extras/reward"].tolist() == [0, 1, 2, 0]
    assert columns["speed"].tolist() == [0, 1, 2, 0]


def steps_with(rng: np.random.Generator, step: int, **values: Any) -> list[Any]:
    steps = list(ilr_data.frames([ilr_data.trajectory(rng, 3), ilr_data.trajectory(rng, 2)]))
    for key, value in values.items():
        steps[step].pop(key)
        if value is not None:
            steps[step][key] = value
    return steps


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"obs": np.zeros(5, np.uint8)}, r"expected uint8\[4\], as most first steps have, found uint8\[5\]"),
        ({"obs": np.zeros(4, np.int8)}, r"expected uint8\[4\], as most first steps have, found int8\[4\]"),
        ({"acts": "left"}, r"expected int64\[\], as most first steps have, found string"),
        ({"acts": None}, "no acts"),
        ({"infos": {}}, r"expected string\[\], as most first steps have, found nothing"),
        ({"dones": np.float64(0.5)}, "dones"),
        ({"dones": None}, "no dones"),
    ],
    ids=str,
)
def test_one_step_that_is_broken_makes_a_bad_episode(
    tmp_path: Path, rng: np.random.Generator, values: dict[str, Any], message: str
) -> None:
    (tmp_path / "demos.tar").write_bytes(ilr_data.archive(steps_with(rng, 1, **values), None))
    bad, good = read(f"ilr:{tmp_path}")
    assert len(bad.faults) == 1
    assert not good.faults
    assert re.search(message, bad.faults[0][1])
    assert "demos.tar: frame_001" in bad.faults[0][1]


def test_a_pickle_that_would_run_code_makes_a_bad_episode(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "demos.tar").write_bytes(ilr_data.archive(steps_with(rng, 1, acts=print), None))
    bad, good = read(f"ilr:{tmp_path}")
    assert 'refused: the pickle refers to "builtins.print"' in bad.faults[0][1]
    assert not good.faults


def test_a_value_that_only_later_steps_have_is_left_out_and_told(tmp_path: Path, rng: np.random.Generator) -> None:
    steps = steps_with(rng, 0)
    steps[2]["odd"] = 5
    (tmp_path / "demos.tar").write_bytes(ilr_data.archive(steps, None))
    assert codes(f"ilr:{tmp_path}")["left_out"] == 1


def infos_that_change(rng: np.random.Generator) -> list[Any]:
    """Two trajectories as vectorised environments of Gym leave them: the last infos have more, and some become no column."""
    trajectories = [ilr_data.trajectory(rng, 3), ilr_data.trajectory(rng, 2)]
    for trajectory in trajectories:
        trajectory["infos"] = [{**info, "odd": None, "a/b": 1, "a_b": 2} for info in trajectory["infos"]]
        trajectory["infos"][-1] |= {"terminal_observation": np.zeros(4), "episode": {"r": 1.0, "l": 3}}
    return trajectories


LEFT_OUT = {
    "infos/a_b": 5,
    "infos/episode/l": 2,
    "infos/episode/r": 2,
    "infos/odd": 5,
    "infos/terminal_observation": 2,
}


def left_out(name: Any) -> dict[str, int]:
    """Path -> count of values that a whole reading tells as left out; no episode is a bad one."""
    source = open_source(name)
    assert not any(episode.faults for episode in source)
    return {notice.text.split('"')[1]: notice.count for notice in source.notices if notice.code == "left_out"}


def test_infos_that_later_steps_have_more_of_are_told_by_their_names(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectories = infos_that_change(rng)
    assert left_out(written(tmp_path, trajectories)) == LEFT_OUT
    assert left_out(ilr_data.joined(trajectories)) == LEFT_OUT
    first = next(iter(open_source(f"ilr:{tmp_path}?episodes=0")))
    assert sorted(path for path in first.columns if path.startswith("infos")) == ["infos/note", "infos/state"]


@pytest.mark.parametrize("is_dict", [False, True])
def test_time_limits_in_infos_are_counted_and_read(tmp_path: Path, rng: np.random.Generator, is_dict: bool) -> None:
    trajectories = [ilr_data.trajectory(rng, steps) for steps in (3, 2, 4)]
    trajectories[0]["infos"][-1]["TimeLimit.truncated"] = True
    trajectories[1]["infos"][-1]["TimeLimit.truncated"] = np.bool_(False)
    trajectories[2]["infos"][1]["TimeLimit.truncated"] = True  # of a step that is not done
    place = written(tmp_path, trajectories)
    if is_dict:
        (tmp_path / "d.pickle").write_bytes(pickle.dumps(ilr_data.joined(trajectories)))
        place = f"ilr:{tmp_path / 'd.pickle'}"
    for option, terminals, text in (
        ("", [True, True, True], "done_means=infos all but 1 trajectory whose infos say TimeLimit.truncated"),
        ("?done_means=terminal", [True, True, True], "done_means=infos all but 1 trajectory"),
        ("?done_means=infos", [False, True, True], "but for 1 whose infos say TimeLimit.truncated"),
        ("?done_means=truncation", [False, False, False], "no step is read as terminal"),
    ):
        source = open_source(f"{place}{option}")
        assert [bool(episode.columns["is_terminal"][-1]) for episode in source] == terminals
        assert text in next(notice.text for notice in source.notices if notice.code == "done_means")


@pytest.mark.parametrize("lacking", [{}, {"note": "step 1"}])
def test_infos_that_later_steps_lack_make_a_bad_episode(
    tmp_path: Path, rng: np.random.Generator, lacking: dict[str, Any]
) -> None:
    trajectories = [ilr_data.trajectory(rng, 3), ilr_data.trajectory(rng, 2)]
    trajectories[0]["infos"][1] = lacking
    sources: list[Any] = [written(tmp_path, trajectories), ilr_data.joined(trajectories)]
    for source in sources:
        bad, good = open_source(source)
        assert re.search(r"expected .*, as most first steps have, found nothing", bad.faults[0][1])
        assert not good.faults


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    made_header = bytearray(512)
    for start, text in ((0, name), (124, size), (148, b" " * 8), (156, kind), (257, b"ustar\x0000")):
        made_header[start : start + len(text)] = text
    made_header[148:156] = b"%06o\0 " % sum(made_header)
    return bytes(made_header)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no step"),
        (bytes(1024), "no step"),
        (b"x" * 700, "checksum"),
        (header(b"frame_000.obs.pickle", b"%011o\0" % 100) + b"abc", "cut off"),
        (header(b"frame_000.obs.pickle", b"7" * 11), "expected at most"),
        (header(b"frame_000.obs.pickle", b"\x80" + b"\xff" * 11), "expected at most"),
        (header(b"frame_000.obs.pickle", b"zzz"), "size"),
        (header(b"x", b"%011o\0" % 12, b"x") + b"12 size=abc\n".ljust(512, b"\0") + header(b"y", b"0"), "no number"),
        (header(b"frame_000.obs.pickle", b"0")[:300], "cut off"),
        (b"\x28\xb5\x2f\xfd" + bytes(20), "cannot be read"),
        (bytes(cramjam.zstd.compress(bytes(10**6) + b"x"))[:-3], "no step|cannot be read"),
    ],
)
def test_a_damaged_archive_is_an_error_of_ours(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "demos.tar").write_bytes(data)
    with pytest.raises(SourceError, match=message):
        read(f"ilr:{tmp_path / 'demos.tar'}?layout=webdataset")


def test_an_archive_that_is_cut_off_gives_what_is_before_and_an_error(tmp_path: Path, rng: np.random.Generator) -> None:
    name = written(tmp_path, [ilr_data.trajectory(rng, 3) for _ in range(4)])
    data = (tmp_path / "demos.tar").read_bytes()
    (tmp_path / "demos.tar").write_bytes(data[: len(data) // 2 + 100])
    episodes = iter(open_source(name))
    assert not next(episodes).faults
    with pytest.raises(SourceError, match="cut off"):
        list(episodes)


def test_a_bomb_is_unpacked_no_further_than_a_member(tmp_path: Path) -> None:
    bomb = header(b"frame_000.obs.pickle", b"%011o\0" % (1 << 27)) + bytes(1 << 22)
    (tmp_path / "demos.tar.zst").write_bytes(bytes(cramjam.zstd.compress(bomb)))
    with pytest.raises(SourceError, match="cut off"):
        read(f"ilr:{tmp_path}")


def test_the_values_of_one_step_are_bounded_together(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_with(rng, 0)
    (tmp_path / "demos.tar").write_bytes(ilr_data.archive([*steps[:1], {**steps[1], "infos": bytes(3000)}], None))
    monkeypatch.setattr(archives, "_MOST_STEP_BYTES", 3000)
    with pytest.raises(SourceError, match=r"demos.tar: frame_001.infos.pickle: 3,\d+ bytes up to its end; expected"):
        read(f"ilr:{tmp_path}")
    monkeypatch.setattr(archives, "_MOST_KEYS", 3)
    with pytest.raises(SourceError, match="frame_000: a step of more than 3 keys"):
        read(f"ilr:{tmp_path}")


def test_a_key_that_the_first_step_has_not_is_not_read(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_with(rng, 0)
    steps[1]["odd"] = bytes(3000)
    (tmp_path / "demos.tar").write_bytes(ilr_data.archive(steps, None))
    monkeypatch.setattr(archives, "_MOST_STEP_BYTES", 3000)
    source = open_source(f"ilr:{tmp_path}")
    assert not any(episode.faults for episode in source)
    assert [notice.count for notice in source.notices if notice.code == "left_out"] == [1]


@pytest.mark.parametrize("name", [b"_metadata.meta.pickle", b"./@LongLink"])
def test_descriptions_and_headers_are_bounded(tmp_path: Path, name: bytes) -> None:
    kind = b"L" if name.startswith(b".") else b"0"
    (tmp_path / "demos.tar").write_bytes(header(name, b"%011o\0" % (1 << 29), kind))
    with pytest.raises(SourceError, match=r"bytes.*; expected at most"):
        read(f"ilr:{tmp_path}")


def test_names_of_members_may_be_long_and_have_folders(tmp_path: Path, rng: np.random.Generator) -> None:
    trajectory, packed = ilr_data.trajectory(rng, 2), io.BytesIO()
    steps = list(ilr_data.frames([trajectory]))
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=form) as tar:
            tar.addfile(tarfile.TarInfo("folder"))
            for number, step in enumerate(steps):
                for key, value in sorted(step.items()):
                    data = pickle.dumps(value)
                    member = tarfile.TarInfo(f"{'folder' * 10}/{'inner' * 8}/frame_{number:03d}.{key}.pickle")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        (tmp_path / "demos.tar").write_bytes(packed.getvalue())
        (episode,) = read(f"ilr:{tmp_path}")
        check(episode, trajectory)


def test_members_are_passed_over_unless_they_are_read() -> None:
    packed = io.BytesIO(ilr_data.archive([{"a": 1, "b": 2}], None))
    names = [member.name for member in archives.members(packed, "x")]
    assert names == ["frame_000.a.pickle", "frame_000.b.pickle", "frame_000.frame.pickle"]


def test_the_count_is_read_where_a_choice_needs_it(tmp_path: Path, rng: np.random.Generator) -> None:
    name = written(tmp_path, [ilr_data.trajectory(rng, 2) for _ in range(5)])
    assert open_source(name).episode_count is None
    whole = [episode.id for episode in read(name)]
    assert [episode.id for episode in read(f"{name}?episodes=-2:")] == whole[-2:]
    assert len(read(f"{name}?sample=3")) == 3
    assert open_source(f"{name}?split=2+3,part=1").episode_count == 3


def test_a_copy_has_the_same_names_and_changed_data_has_others(tmp_path: Path, rng: np.random.Generator) -> None:
    name = written(tmp_path, [ilr_data.trajectory(rng, 2)])
    shutil.copy(tmp_path / "demos.tar", tmp_path / "copy.tar")
    (tmp_path / "other").mkdir()
    (Path(written(tmp_path / "other", [ilr_data.trajectory(rng, 2)]).partition(":")[2])).rename(tmp_path / "other.tar")
    ids = [
        next(iter(open_source(dataset))).id
        for dataset in (name, f"ilr:{tmp_path}/copy.tar", f"ilr:{tmp_path}/other.tar")
    ]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("odd", range(3))
def test_most_shards_say_what_all_have(tmp_path: Path, rng: np.random.Generator, odd: int) -> None:
    for number in range(3):
        ilr_data.shard(tmp_path / f"{number}.tar", [ilr_data.trajectory(rng, 3, size=5 if number == odd else 4)])
    source = open_source(f"ilr:{tmp_path}")
    assert [bool(episode.faults) for episode in source] == [number == odd for number in range(3)]
    told = [notice.text for notice in source.notices if notice.code == "mixed_specs"]
    assert told == [
        f"1 of 3 shards looked at differ from most in what they have, shard {odd} in observation; their episodes are bad"
    ]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a{000..002}.tar", ["a000", "a001", "a002"]),
        ("a{9..11}.tar", ["a9", "a10", "a11"]),
        ("a{0..010}.tar", [f"a{number:03d}" for number in range(11)]),
        ("a{2..1}.tar", ["a2", "a1"]),
        ("{b,c}{1..2}.tar", ["b1", "b2", "c1", "c2"]),
    ],
)
def test_shards_in_braces_are_those_that_webdataset_takes(tmp_path: Path, pattern: str, names: list[str]) -> None:
    rng = np.random.default_rng(3)
    for number, name in enumerate(names):
        ilr_data.shard(tmp_path / f"{name}.tar", [ilr_data.trajectory(rng, number + 1)])
    ilr_data.shard(tmp_path / "a7.tar", [ilr_data.trajectory(rng, 50)])
    assert [len(episode) for episode in open_source(f"ilr:{tmp_path / pattern}")] == [
        number + 2 for number in range(len(names))
    ]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a{000..003}.tar", "3 of 4 shards not found: a001.tar, a002.tar, a003.tar"),
        ("a{0..999999999}.tar", "more than 100,000"),
        ("a{000,000}.tar", "a000.tar is named twice"),
    ],
)
def test_shards_in_braces_that_make_no_sense_are_refused(tmp_path: Path, pattern: str, why: str) -> None:
    ilr_data.shard(tmp_path / "a000.tar", [ilr_data.trajectory(np.random.default_rng(3), 2)])
    with pytest.raises(SourceError, match=why):
        open_source(f"ilr:{tmp_path / pattern}")
