"""RLDS to LeRobot with videos and back: tasks, the last action, metadata, and pixels as the videos have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConversionError, SourceError
from rlds2reverb.formats import open_source
from tests.contract.destination_cases import data

CAMERAS = ("observation/moving", "observation/still")


def robot_episodes() -> list[Episode]:
    """As in Open X sets: the last row's action and reward are data."""
    episodes = []
    for number in range(4):
        episode = data.with_images(
            number, {"language_instruction": f"task {number % 3}".encode(), "file": f"{number}.h5"}
        )
        rng = np.random.default_rng(300 + number)
        action = rng.normal(size=(len(episode), 2)).astype(np.float32)
        episodes.append(episode.with_columns(action=action, reward=action[:, 0].copy()))
    return episodes


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """A dataset of RLDS, whose images are files."""
    return f"tfds:{convert(robot_episodes(), f'tfds:{tmp_path}/robot').path}"


@pytest.mark.parametrize("encode", [{}, dict.fromkeys(CAMERAS, "jpeg:quality=95")])
def test_no_action_and_no_task_is_lost_on_the_way_and_back(encode: dict[str, str], tmp_path: Path) -> None:
    source = convert(robot_episodes(), f"tfds:{tmp_path}/robot", encode=encode).path
    report = convert(f"tfds:{source}?last_step=repeat", f"lerobot:{tmp_path}/videos?video=h264,fps=10", verify=True)
    assert report.verified == 4
    assert {loss.code for loss in report.losses} <= {"video", "flags"}
    assert set(report.psnr) == set(CAMERAS)
    back = convert(f"lerobot:{tmp_path}/videos", f"tfds:{tmp_path}/back", verify=True).path
    for written, between, read in zip(
        robot_episodes(), open_source(f"lerobot:{tmp_path}/videos"), open_source(f"tfds:{back}")
    ):
        rows = len(written)
        assert len(read) == rows + 1
        for path in ("action", "reward", "discount"):
            np.testing.assert_array_equal(read.columns[path][:rows], written.columns[path])
        assert read.metadata["language_instruction"] == written.metadata["language_instruction"]
        assert read.metadata["file"] == b"%d.h5" % read.metadata["episode_index"]
        for path in CAMERAS:
            np.testing.assert_array_equal(read.columns[path], between.columns[path])
            assert np.square(read.columns[path][:rows].astype(float) - written.columns[path]).mean() < 1500


def test_the_bytes_of_image_files_cannot_stay(recorded: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot hold the bytes of image files"):
        convert(recorded, f"lerobot:{tmp_path}/videos?video=h264", encoded=[CAMERAS[0]])
    with pytest.raises(ConversionError, match="video: observation"):
        convert(recorded, f"lerobot:{tmp_path}/videos?video=h264,fps=10", strict=True, allow_loss=["last_row"])
    assert not (tmp_path / "videos").exists()


@pytest.mark.full
def test_tfds_reads_what_the_videos_hold(recorded: str, tmp_path: Path) -> None:
    tfds: Any = pytest.importorskip("tensorflow_datasets")
    convert(f"{recorded}?last_step=repeat", f"lerobot:{tmp_path}/videos?video=av1,fps=10")
    report = convert(f"lerobot:{tmp_path}/videos", f"tfds:{tmp_path}/back", verify=True)
    assert len(report.verified_by) == 2
    episodes = tfds.as_numpy(tfds.builder_from_directory(report.path).as_dataset(split="train"))
    every = list(zip(episodes, open_source(f"lerobot:{tmp_path}/videos")))
    assert len(every) == 4
    for read, between in every:
        steps = list(read["steps"])
        assert len(steps) == len(between)
        for path in CAMERAS:
            pixels = np.stack([step["observation"][path.partition("/")[2]] for step in steps])
            np.testing.assert_array_equal(pixels, between.columns[path])
        np.testing.assert_array_equal([step["action"] for step in steps], between.columns["action"])
        assert [step["is_last"] for step in steps] == between.columns["is_last"].tolist()
        about = read.get("episode_metadata", read)
        assert about["language_instruction"] == between.metadata["language_instruction"]
