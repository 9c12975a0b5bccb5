"""The script that makes Open X-Embodiment-shaped datasets, read back by TFDS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import open_x

tfds = pytest.importorskip("tensorflow_datasets")

script = open_x.script()

NAMES = sorted(script.SHAPES)
SIZE = (24, 32)
IN_OBSERVATION = {"natural_language_instruction", "natural_language_embedding"}
STEP = {"observation", "action", "reward", "is_first", "is_last", "is_terminal"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small dataset of each shape, of five episodes in two files."""
    folder = tmp_path_factory.mktemp("made")
    return {name: open_x.small(name, folder, episodes=5, shards=2) for name in NAMES}


def read(directory: Path) -> list[dict[str, Any]]:
    """The episodes as TFDS reads them; `steps` becomes columns [T, ...]."""
    episodes = []
    for episode in tfds.builder_from_directory(directory).as_dataset(split="train"):
        (steps,) = episode.pop("steps").batch(1_000).as_numpy_iterator()
        episodes.append({**episode, "steps": steps})
    return episodes


@pytest.mark.parametrize("name", NAMES)
def test_episodes_keep_the_conventions_of_these_sets(name: str, made: dict[str, Path]) -> None:
    episodes = read(made[name])
    assert len(episodes) == 5
    for episode in episodes:
        steps = episode["steps"]
        rows = np.arange(len(steps["reward"]))
        last = rows == len(rows) - 1
        np.testing.assert_array_equal(steps["is_first"], rows == 0)
        np.testing.assert_array_equal(steps["is_last"], last)
        np.testing.assert_array_equal(steps["is_terminal"], last)
        np.testing.assert_array_equal(steps["reward"], last.astype(np.float32))
        for camera in script.SHAPES[name].cameras:
            assert steps["observation"][camera].shape == (len(rows), *SIZE, 3)
            assert steps["observation"][camera].dtype == np.uint8
            assert len(np.unique(steps["observation"][camera], axis=0)) == len(rows)  # it moves


def test_bridge_has_a_dict_of_actions_and_language_in_the_observation(made: dict[str, Path]) -> None:
    steps = read(made["bridge"])[0]["steps"]
    assert steps.keys() == STEP
    assert steps["observation"].keys() == IN_OBSERVATION | {"image", "state"}
    actions = {name: (column.dtype.name, column.shape[1:]) for name, column in steps["action"].items()}
    assert actions == {
        "world_vector": ("float32", (3,)),
        "rotation_delta": ("float32", (3,)),
        "open_gripper": ("bool", ()),
        "terminate_episode": ("float32", ()),
    }
    state = steps["observation"]["state"]
    np.testing.assert_allclose(steps["action"]["world_vector"][:-1], np.diff(state[:, :3], axis=0), atol=1e-6)
    assert np.any(steps["action"]["world_vector"][-1])  # there is no extra last step
    np.testing.assert_allclose(np.linalg.norm(steps["observation"]["natural_language_embedding"], axis=1), 1, atol=1e-5)
    assert len(set(steps["observation"]["natural_language_instruction"])) == 1


def test_rt1_has_the_columns_of_the_catalog(made: dict[str, Path]) -> None:
    episode = read(made["rt1"])[0]
    assert episode.keys() == {"steps", "aspects", "attributes"}
    assert episode["steps"].keys() == STEP
    assert len(episode["steps"]["observation"]) == 14 and len(episode["steps"]["action"]) == 6
    ends = episode["steps"]["action"]["terminate_episode"]
    assert ends.dtype == np.int32 and ends[-1].tolist() == [1, 0, 0] and ends[0].tolist() == [0, 1, 0]


def test_droid_has_float64_three_cameras_and_episodes_without_language(made: dict[str, Path]) -> None:
    episodes = read(made["droid"])
    texts = set()
    for episode in episodes:
        steps = episode["steps"]
        assert episode.keys() == {"steps", "episode_metadata"}
        assert steps.keys() == STEP | {
            "action_dict",
            "discount",
            "language_instruction",
            "language_instruction_2",
            "language_instruction_3",
        }
        assert steps["action"].dtype == np.float64 and steps["action"].shape[1:] == (7,)
        assert np.all(steps["discount"] == 1.0)
        texts |= set(steps["language_instruction"])
    assert b"" in texts and len(texts) > 3


def test_the_same_command_makes_equal_files(made: dict[str, Path], tmp_path: Path) -> None:
    again = open_x.small("rt1", tmp_path, episodes=5, shards=2)
    other = open_x.small("rt1", tmp_path / "other", episodes=5, shards=2, seed=1)
    names = sorted(path.name for path in made["rt1"].glob("*.tfrecord*"))
    assert len(names) == 2
    for name in names:
        assert (again / name).read_bytes() == (made["rt1"] / name).read_bytes() != (other / name).read_bytes()


@pytest.mark.parametrize(("encoding", "magic"), [("jpeg", b"\xff\xd8\xff"), ("png", b"\x89PNG")])
def test_images_are_stored_in_the_encoding_asked_for(encoding: str, magic: bytes, tmp_path: Path) -> None:
    directory = open_x.small("bridge", tmp_path, episodes=1, encoding=encoding)
    skip = {"steps": tfds.decode.SkipDecoding()}
    (episode,) = tfds.builder_from_directory(directory).as_dataset(split="train", decoders=skip)
    images = episode["steps"]["observation"]["image"].numpy()
    assert len(images) >= 4 and all(image.startswith(magic) for image in images)


def test_an_image_compresses_as_a_cameras_does(tmp_path: Path) -> None:
    """RT-1's catalog entry says 1.37 MB per episode, which is about 30 kB per step; so is this."""
    directory = script.make("rt1", tmp_path, episodes=1, steps=4)
    split = tfds.builder_from_directory(directory).info.splits["train"]
    (episode,) = read(directory)
    per_step = split.num_bytes / len(episode["steps"]["reward"])
    assert 20_000 < per_step < 45_000


def test_an_existing_dataset_is_not_overwritten(made: dict[str, Path]) -> None:
    with pytest.raises(FileExistsError, match="remove it or choose another"):
        script.make("bridge", made["bridge"].parents[1], episodes=1)


@pytest.mark.parametrize(
    "wrong", [{"episodes": 0}, {"steps": 1}, {"shards": 0}, {"shards": 3, "episodes": 2}, {"seed": -1}]
)
def test_what_makes_no_dataset_is_refused_before_anything_is_written(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected at least 1 episode, 2 steps"):
        script.make("bridge", tmp_path, **{"episodes": 1, "steps": 5, **wrong})
    assert not any(tmp_path.iterdir())


def test_command_line_prints_the_directory_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.main(["droid", str(tmp_path), "--episodes", "1", "--steps", "2", "--size", "16x24"])
    (printed,) = capsys.readouterr().out.splitlines()
    assert Path(printed) == tmp_path / "droid" / "1.0.0"
    assert (Path(printed) / "features.json").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--size", "large"], "--size: invalid image_size value: 'large'"),
        (["--size", "7x8"], "--size: invalid image_size value: '7x8'"),
        (["--episodes", "0"], "got 0 episodes"),
    ],
)
def test_nonsense_is_told_in_a_line(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(["bridge", str(tmp_path), *options])
    assert told in capsys.readouterr().err
