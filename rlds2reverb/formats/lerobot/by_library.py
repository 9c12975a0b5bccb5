"""What LeRobot itself reads of a dataset that is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from rlds2reverb.episode import IS_TERMINAL, Array
from rlds2reverb.files import read_object
from rlds2reverb.formats.lerobot.features import DONE, LANGUAGE_INSTRUCTION, OURS, TASK_INDEX, TIMESTAMP


def read_back(path: Path) -> Iterator[dict[str, Array]]:
    """The columns of every episode of a dataset's folder, up to the last action where it has no rows of later observations."""
    features = read_object(path / "meta/info.json", "a dataset of LeRobot")["features"]
    paths = {name: (entry.get("info") or {}).get(OURS, {}) for name, entry in features.items()}
    columns = {name: ours["path"] for name, ours in paths.items() if "path" in ours}
    columns[TIMESTAMP] = TIMESTAMP
    if paths[TASK_INDEX].get("task"):
        columns["task"] = LANGUAGE_INSTRUCTION
    dataset = LeRobotDataset("rlds2reverb/written", root=path, video_backend="pyav")
    is_image = {name: entry["dtype"] in ("image", "video") for name, entry in features.items()}
    for episode in dataset.meta.episodes:
        rows = [dataset[row] for row in range(episode["dataset_from_index"], episode["dataset_to_index"])]
        values = {
            column: _stack([row[name] for row in rows], is_image.get(name, False)) for name, column in columns.items()
        }
        if DONE in features and DONE not in columns:
            values[IS_TERMINAL] = np.append(False, _stack([row[DONE] for row in rows], is_image=False).reshape(-1))
        yield values


def _stack(values: list[Any], is_image: bool) -> Array:
    """Rows as LeRobot gives them, as a column; an image, floats [channels, height, width], as pixels."""
    if isinstance(values[0], str):
        return np.array([value.encode() for value in values], object)
    column = np.stack([np.asarray(value) for value in values])
    return np.asarray(np.rint(column * 255).astype(np.uint8).transpose(0, 2, 3, 1) if is_image else column)
