"""The dict format of il-representations is read by NumPy and pickle as it is documented, and gives back what was written."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content
from rlds2reverb.specs import column_spec
from tests.support.conversion.two_runs import write_in_two_runs

NAMES = ("set.npz", "set.pkl.gz", "set.pickle")


def make_episode(rows: int, is_terminal: bool = True, **more: Any) -> Episode:
    at = np.arange(rows)
    rng = np.random.default_rng(rows)
    columns = {
        "observation/ego": rng.integers(0, 255, (rows, 4, 5, 3), np.uint8),
        "observation/state": rng.standard_normal((rows, 2)),
        "action": rng.integers(0, 9, rows) * (at < rows - 1),
        "reward": np.where(at < rows - 1, rng.standard_normal(rows), 0).astype(np.float32),
        "is_first": at == 0,
        "is_last": at == rows - 1,
        "is_terminal": (at == rows - 1) & is_terminal,
        "infos/score": np.where(at < rows - 1, at, 0).astype(np.float32),
        "infos/lives/left": np.where(at < rows - 1, at, 0),
        "note": np.array([b"step"] * (rows - 1) + [b""], object),
        **more,
    }
    return Episode(columns, {}, "")


def load(path: Path) -> Mapping[str, Any]:
    """What the system's users do."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=True) as arrays:
            return dict(arrays)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return dict(pickle.load(file))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_dict_that_is_documented(tmp_path: Path, name: str) -> None:
    episodes = [make_episode(3), make_episode(2), make_episode(7)]
    report = convert(episodes, f"ilr:{tmp_path / name}", verify=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert not [loss.code for loss in report.losses]
    data = load(tmp_path / name)

    def joined(path: str, rows: slice) -> Any:
        return np.concatenate([episode.columns[path][rows] for episode in episodes])

    before, after = slice(0, -1), slice(1, None)
    for key, path, rows in (
        ("obs_ego", "observation/ego", before),
        ("next_obs_ego", "observation/ego", after),
        ("obs_state", "observation/state", before),
        ("next_obs_state", "observation/state", after),
        ("acts", "action", before),
        ("rews", "reward", before),
    ):
        expected = joined(path, rows)
        assert data[key].dtype == expected.dtype
        assert np.array_equal(data[key], expected)
    assert data["dones"].tolist() == [False, True, True, *[False] * 5, True]
    assert [(float(info["score"]), int(info["lives"]["left"])) for info in data["infos"]] == [
        (number, number) for number in (0, 1, 0, *range(6))
    ]
    assert list(data["note"]) == [b"step"] * 9
    for episode, written in zip(open_source(f"ilr:{tmp_path / name}"), episodes, strict=True):
        for path, column in written.columns.items():
            assert np.array_equal(episode.columns[path], column), path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_terminals_say_how_an_episode_ends(tmp_path: Path, name: str, is_terminal: bool) -> None:
    report = convert([make_episode(4, is_terminal)], f"ilr:{tmp_path / name}?terminals=yes", verify=True)
    assert not report.losses
    (episode,) = open_source(f"ilr:{tmp_path / name}")
    assert episode.columns["is_terminal"].tolist() == [False, False, False, is_terminal]


def test_what_a_dict_cannot_hold_is_told(tmp_path: Path) -> None:
    nested = {"observation/robot/joint": np.zeros((3, 2)), "observation/task": np.array([b"a"] * 3, object)}
    report = convert([make_episode(3, is_terminal=False, **nested)], f"ilr:{tmp_path / 'set.npz'}", verify=True)
    assert {(loss.code, loss.path) for loss in report.losses} == {
        ("nests", "observation/robot/joint"),
        ("nests", "observation/task"),
        ("ends", "is_terminal"),
    }
    with pytest.raises(ConfigError, match="join nested actions"):
        episode = make_episode(3)
        columns = {path: column for path, column in episode.columns.items() if path != "action"}
        convert([Episode({**columns, "action/arm": np.zeros((3, 2))}, {}, "")], f"ilr:{tmp_path / 'other.npz'}")
    with pytest.raises(ConfigError, match="task: is of shards"):
        open_destination(f"ilr:{tmp_path / 'set.npz'}?task=a")


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_from_any_state(tmp_path: Path, name: str) -> None:
    episodes = [make_episode(rows) for rows in (3, 4, 2)]
    destination = open_destination(f"ilr:{tmp_path / name}")
    content = Content("x", {path: column_spec(values) for path, values in episodes[0].columns.items()}, {})

    def write(folder: Path, stop: int, behind: int) -> bytes:
        write_in_two_runs(destination, content, folder, episodes, stop, behind)
        return (folder / name).read_bytes()

    whole = write(tmp_path / "whole", 3, 0)
    assert all(write(tmp_path / f"at{stop}", stop, 3 - stop) == whole for stop in range(3))
