"""Makes the datasets of tests/data/lerobot with LeRobot itself: `python make_lerobot.py NAME FOLDER`.

| NAME | lerobot | what |
| --- | --- | --- |
| v21 | 0.3.3 | every kind of feature that it writes, with a video |
| v30 | 0.6.1 | the same, in the files of v3.0 |
| v30_old | 0.4.0 | some of it, in several files; its tasks are an index without a name |
| v30_merged | 0.4.0 | some of it, merged of two sets with images; its meta/episodes has other files than the rows are in |
| v30_depth | 0.6.1 | depth as images (TIFF) and as a video (hevc) |

v20 is v21 with the version and the statistics of v2.0: `meta/stats.json` in place of `meta/episodes_stats.jsonl`.

Made with Python 3.11, torch 2.13.0 (cpu), av 15.1.0; datasets 3.6.0 for lerobot 0.3.3, else 4.8.5. torchvision was a module of a
few lines that turns images into tensors, and lerobot 0.6.1 had its generics spelled as Python 3.11 has them. Beside each dataset stands
what `LeRobotDataset` gives for it: `NAME.json`, with the mean of each channel in place of an image.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

LENGTHS = (5, 7, 4)
FPS = 10

IMAGE = {"dtype": "image", "shape": (8, 10, 3), "names": ["height", "width", "channels"]}
VIDEO = {"dtype": "video", "shape": (64, 80, 3), "names": ["height", "width", "channels"]}
DEPTH = {"shape": (32, 40, 1), "names": ["height", "width", "channels"], "info": {"is_depth_map": True}}


def _plain(dtype: str, *shape: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "names": None}


FEATURES: dict[str, Any] = {
    "observation.state": {**_plain("float32", 4), "names": ["a", "b", "c", "d"]},
    "observation.images.top": IMAGE,
    "observation.images.wrist": VIDEO,
    "observation.matrix": _plain("float64", 2, 3),
    "observation.cube": _plain("uint8", 2, 1, 2, 2),
    "action": _plain("float32", 3),
    "next.reward": _plain("float32", 1),
    "next.done": _plain("bool", 1),
    "next.success": _plain("bool", 1),
    "gripper": _plain("int64", 1),
    "note": _plain("string", 1),
}

LEFT_OUT = {
    "v21": (),
    "v30": ("observation.cube", "gripper", "next.success"),
    "v30_old": set(FEATURES) - {"observation.images.wrist", "action"},
    "v30_merged": set(FEATURES) - {"observation.images.top", "action"},
}
"""So that the files stay small."""

FILES: dict[str, dict[str, Any]] = {
    "v30_old": {"chunks_size": 1, "data_files_size_in_mb": 0.004, "video_files_size_in_mb": 0.001},
    "v30_merged": {"chunks_size": 1000, "data_files_size_in_mb": 0.001, "video_files_size_in_mb": 0.001},
}
"""Those with several files."""

COLUMNS = {
    "observation.state": "observation/state",
    "observation.images.top": "observation/images/top",
    "observation.images.wrist": "observation/images/wrist",
    "observation.images.far": "observation/images/far",
    "observation.depth": "observation/depth",
    "observation.matrix": "observation/matrix",
    "observation.cube": "observation/cube",
    "action": "action",
    "next.reward": "reward",
    "next.success": "next.success",
    "gripper": "gripper",
    "note": "note",
}
"""Name of a feature -> path of the column that it becomes."""


def picture(height: int, width: int, shade: int) -> Any:
    """A picture that differs from the others by its shade."""
    down, across = np.mgrid[0:height, 0:width]
    return np.stack([down * 2 % 256, across * 2 % 256, np.full((height, width), shade)], -1).astype(np.uint8)


def frame(episode: int, row: int, length: int) -> dict[str, Any]:
    """What is recorded at a row."""
    rng = np.random.default_rng(100 * episode + row)
    return {
        "observation.state": rng.normal(size=4).astype(np.float32),
        "observation.images.top": picture(8, 10, 10 * row + 60 * episode),
        "observation.images.wrist": picture(64, 80, 30 * row + 10 * episode),
        "observation.matrix": rng.normal(size=(2, 3)),
        "observation.cube": rng.integers(0, 256, (2, 1, 2, 2), np.uint8),
        "action": rng.normal(size=3).astype(np.float32),
        "next.reward": np.array([row / 4], np.float32),
        "next.done": np.array([row == length - 1 and episode != 1]),
        "next.success": np.array([row == length - 1]),
        "gripper": np.array([row - 3], np.int64),
        "note": f"row {row} of épisode {episode}",
    }


def depth_frame(episode: int, row: int, length: int) -> dict[str, Any]:
    """What is recorded at a row of the depth dataset."""
    down, across = np.mgrid[0:32, 0:40]
    near = (500 + 20 * down + 10 * across + 100 * row).astype(np.uint16)[..., None]
    return {
        "observation.depth": (near / 1000).astype(np.float32),
        "observation.images.far": near,
        "action": np.array([row, episode, length], np.float32),
    }


DEPTH_FEATURES: dict[str, Any] = {
    "observation.depth": {"dtype": "image", **DEPTH},
    "observation.images.far": {"dtype": "video", **DEPTH},
    "action": _plain("float32", 3),
}


def task(episode: int, row: int) -> str:
    """The last episode has two."""
    return "push the cube" if episode == 1 or row > 1 else "lift the cube"


def make(name: str, folder: Path) -> None:
    """Records a dataset."""
    if name == "v30_merged":
        return merge(folder)
    return record(name, folder, range(2 if name == "v30_depth" else len(LENGTHS)))


def record(name: str, folder: Path, episodes: Iterable[int]) -> None:
    """Records these episodes."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features, recorder = (DEPTH_FEATURES, depth_frame) if name == "v30_depth" else (FEATURES, frame)
    features = {key: feature for key, feature in features.items() if key not in LEFT_OUT.get(name, ())}
    made = LeRobotDataset.create(f"test/{name}", FPS, copy.deepcopy(features), folder, "robot")
    if name in FILES:
        made.meta.update_chunk_settings(**FILES[name])
    for episode in episodes:
        for row in range(LENGTHS[episode]):
            recorded = {
                key: value for key, value in recorder(episode, row, LENGTHS[episode]).items() if key in features
            }
            if name == "v21":
                made.add_frame(recorded, task(episode, row) if episode else "lift the cube")
            else:
                made.add_frame({**recorded, "task": task(episode, row) if episode else "lift the cube"})
        made.save_episode()
    if hasattr(made, "finalize"):
        made.finalize()
    shutil.rmtree(folder / "images", ignore_errors=True)


def merge(folder: Path) -> None:
    """Records two datasets, the first with two episodes, and merges them."""
    from lerobot.datasets.aggregate import aggregate_datasets

    with TemporaryDirectory() as place:
        parts = [Path(place) / "first", Path(place) / "second"]
        for part, episodes in zip(parts, ((0, 1), (2,))):
            record("v30_merged", part, episodes)
        aggregate_datasets(
            ["test/part"] * 2, "test/v30_merged", roots=parts, aggr_root=folder, data_files_size_in_mb=0.001
        )


def told(name: str, folder: Path) -> list[dict[str, Any]]:
    """Every row as LeRobot gives it."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    read = LeRobotDataset(f"test/{name}", root=folder, video_backend="pyav")
    return [{key: _value(value) for key, value in read[row].items()} for row in range(len(read))]


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return value
    array = value.numpy()
    if array.ndim == 3 and array.shape[1] >= 8:  # [channels, height, width]
        return array.astype(np.float64).mean((1, 2)).tolist()
    return array.tolist()


def main() -> None:
    """Makes one of them."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    make(name, folder)
    Path(f"{folder}.json").write_text(json.dumps(told(name, folder)))


if __name__ == "__main__":
    main()
