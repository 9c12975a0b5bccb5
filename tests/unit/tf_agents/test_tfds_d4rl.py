"""What TFDS' own conversion of D4RL files makes of the last observation, and what is told and done about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.endings import MOST_HELD
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.views.trajectory import two_step

pytest.importorskip("tensorflow_datasets")
h5py = pytest.importorskip("h5py")

from tensorflow_datasets.d4rl import dataset_utils

from rlds2reverb.formats import open_source


class Recording:
    """A D4RL file made of trajectories.

    Args:
      trajectories: [T + 1, values] observations of each, the last one after the last action.
      terminal: which of them end so; the others time out.
    """

    def __init__(self, trajectories: list[np.ndarray], terminal: list[bool]) -> None:
        self.trajectories, self.terminal = trajectories, terminal

    def write(self, path: Path, has_next: bool) -> Path:
        rng = np.random.default_rng(0)
        rows = [len(trajectory) - 1 for trajectory in self.trajectories]
        ends = np.cumsum(rows) - 1
        flags = {name: np.zeros(sum(rows), bool) for name in ("terminals", "timeouts")}
        for end, is_terminal in zip(ends, self.terminal):
            flags["terminals" if is_terminal else "timeouts"][end] = True
        with h5py.File(path, "w") as file:
            file["observations"] = np.concatenate([trajectory[:-1] for trajectory in self.trajectories]).astype(
                np.float32
            )
            file["actions"] = rng.normal(size=(sum(rows), 3)).astype(np.float32)
            file["rewards"] = rng.normal(size=sum(rows)).astype(np.float32)
            file["infos/qpos"] = rng.normal(size=(sum(rows), 2))
            for name, flag in flags.items():
                file[name] = flag
            if has_next:
                file["next_observations"] = np.concatenate([trajectory[1:] for trajectory in self.trajectories]).astype(
                    np.float32
                )
        return path


def converted(path: Path) -> EpisodeList:
    """The file as TFDS converts it, in an order of its own, as TFDS shuffles episodes."""
    episodes = []
    for number, example in dataset_utils.generate_examples(str(path)):
        steps = example["steps"]
        columns = {**steps, **{f"infos/{name}": column for name, column in steps.pop("infos").items()}}
        columns = {name: np.asarray(column) for name, column in columns.items() if name != "infos"}
        episodes.append(Episode({**columns, "discount": columns["discount"].astype(np.float32)}, id=f"e{number}"))
    np.random.default_rng(1).shuffle(episodes)  # type: ignore[arg-type]
    return EpisodeList(episodes, "d4rl")


def walks(count: int, terminal: bool | None = None) -> Recording:
    """Smooth trajectories of 17 values."""
    rng = np.random.default_rng(2)
    lengths = rng.integers(8, 60, count)
    ends = [bool(rng.integers(2)) if terminal is None else terminal for _ in range(count)]
    return Recording(
        [np.cumsum(rng.normal(size=(rows, 17)), axis=0) + rng.normal(size=17) * 5 for rows in lengths], ends
    )


def half_cheetah() -> Recording:
    """Real observations, fast and noisy; cut to sixteen trajectories that time out."""
    parts = [
        np.asarray(part)
        for episode in open_source("bundled:half_cheetah")
        for part in np.array_split(episode.columns["observation"], 4)
    ]
    return Recording(parts, [False] * len(parts))


def codes_of(source: Any, **conventions: Any) -> dict[str, int]:
    return dict(inspect_source(source, {}, options=EpisodeOptions(**conventions)).findings.episodes)


RECORDINGS: dict[str, Callable[[], Recording]] = {
    "three walks": lambda: walks(3),
    "thirty walks": lambda: walks(30),
    "walks that end terminal": lambda: walks(12, terminal=True),
    "half_cheetah": half_cheetah,
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_last_observation_of_the_whole_file_is_told_of_every_episode(tmp_path: Path, name: str) -> None:
    recording = RECORDINGS[name]()
    source = converted(recording.write(tmp_path / "d4rl.hdf5", has_next=True))
    last = recording.trajectories[-1][-1].astype(np.float32)
    assert all(np.array_equal(episode.columns["observation"][-1], last) for episode in source)  # the fault itself
    assert codes_of(source)["last_observation_shared"] == len(recording.trajectories)


@pytest.mark.parametrize("choice", ["repeat", "drop"])
def test_what_is_asked_for_mends_it(tmp_path: Path, choice: str) -> None:
    recording = walks(10)
    source = converted(recording.write(tmp_path / "d4rl.hdf5", has_next=True))
    assert codes_of(source, last_observation=choice) == {}
    conventions = Conventions(last_observation=choice)
    for episode in source:
        put = conventions.apply(episode).columns
        true = [
            trajectory
            for trajectory in recording.trajectories
            if np.array_equal(trajectory[0].astype(np.float32), put["observation"][0])
        ]
        assert len(true) == 1
        kept = len(true[0]) - 1  # all that the file has of it
        np.testing.assert_array_equal(put["observation"][:kept], true[0][:-1].astype(np.float32))
        assert len(put["observation"]) == kept + (choice == "repeat")
        assert put["is_last"].tolist() == [False] * (len(put["is_last"]) - 1) + [True]


def test_zeros_stand_where_the_file_had_none_and_only_where_it_ends_terminal(tmp_path: Path) -> None:
    recording = walks(20)
    source = converted(recording.write(tmp_path / "d4rl.hdf5", has_next=False))
    found = codes_of(source)
    assert found.pop("zero_last_observation") == sum(recording.terminal)
    assert set(found) == {"last_reward"}  # of episodes that time out, whose last row is a real one
    assert set(codes_of(source, last_observation="repeat")) == {"last_reward"}
    style = inspect_source(source, {"t": two_step()}).ends.style
    assert "TFDS' d4rl_* sets of files without next_observations" in style


def test_the_style_is_recognised(tmp_path: Path) -> None:
    source = converted(walks(20).write(tmp_path / "d4rl.hdf5", has_next=True))
    assert (
        "discount 0 in it even where truncated: as TFDS' d4rl_* sets"
        in inspect_source(source, {"t": two_step()}).ends.style
    )


def test_no_more_episodes_wait_than_are_said_to(tmp_path: Path) -> None:
    assert MOST_HELD > 3  # three that end alike are enough, and the first of them is told, too
    source = converted(walks(3).write(tmp_path / "d4rl.hdf5", has_next=True))
    assert codes_of(source) == {"last_observation_shared": 3}


@pytest.mark.parametrize("name", ["cartpole", "half_cheetah"])
def test_data_that_others_recorded_is_not_told(name: str) -> None:
    assert "last_observation_shared" not in codes_of(open_source(f"bundled:{name}"))
    assert "zero_last_observation" not in codes_of(open_source(f"bundled:{name}"))
