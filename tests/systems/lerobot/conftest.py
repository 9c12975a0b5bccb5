"""For tests with LeRobot itself: a real server, started by the Python that has Reverb; nothing is downloaded."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before huggingface_hub is imported

from pathlib import Path

import numpy as np
import pytest

from tests.systems.learners.conftest import start_server

LENGTHS = (9, 14, 5)
FPS = 10


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that LeRobot recorded: three episodes with images of a camera, a state, actions and two tasks."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.images.top": {"dtype": "image", "shape": (32, 40, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (4,), "names": None},
        "action": {"dtype": "float32", "shape": (3,), "names": None},
    }
    folder = tmp_path_factory.mktemp("lerobot") / "dataset"
    dataset = LeRobotDataset.create("test/policies", fps=FPS, features=features, root=folder, use_videos=False)
    drawn = np.random.default_rng(1)
    for episode, length in enumerate(LENGTHS):
        for _ in range(length):
            frame = {
                "observation.images.top": drawn.integers(0, 256, (32, 40, 3), np.uint8),
                "observation.state": drawn.normal(size=4).astype(np.float32),
                "action": drawn.normal(size=3).astype(np.float32),
                "task": f"task {episode % 2}",
            }
            dataset.add_frame(frame)
        dataset.save_episode()
    dataset.finalize()
    return folder


__all__ = ["start_server"]
