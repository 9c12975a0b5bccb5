"""Sets of a robot's camera for `benchmarks.robot`: as JPEG files in a TFDS dataset, and the same frames as LeRobot's own writer stores them.

python -m benchmarks.robot_sets JPEG_SET KIND FOLDER    in the Python of LeRobot: writes a set of KIND, a video codec or "images"
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks import datasets
from benchmarks.common import note
from rlds2reverb.formats import open_source

IMAGES, H264, AV1 = "images", "h264", "libsvtav1"
"""Kinds of LeRobot's sets: PNG files, and the codecs by LeRobot's name, with its own settings (a key frame every 2, crf 30)."""

CAMERA, STATE, ACTION = "observation.images.front", "observation.state", "action"
RATE = 30
_ROOT = Path(__file__).parent.parent


def jpeg_set(episodes: int) -> Path:
    """480x640 pixels, JPEG of quality 95, some 38 steps an episode."""
    return datasets.open_x("bridge", episodes)


def lerobot_set(python: Path, episodes: int, kind: str) -> Path:
    """The frames of the `jpeg_set`, decoded and written by LeRobot."""
    source = jpeg_set(episodes)

    def write(folder: Path) -> None:
        command = [python, "-m", "benchmarks.robot_sets", source, kind, folder / "set"]
        note(f"  LeRobot writes {kind} ...")
        subprocess.run(
            [*map(str, command)], check=True, cwd=_ROOT, env=environment(), stdout=2, stderr=subprocess.DEVNULL
        )

    return datasets.kept(f"lerobot-{kind}-{episodes}", write, Path(__file__)) / "set"


def environment(python: Path | None = None) -> Mapping[str, str]:
    """The environment of processes with LeRobot.

    torchcodec needs FFmpeg's libraries, under their own names. Where the system has none, PyAV's do, which it brings along.
    """
    own = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(_ROOT), "SVT_LOG": "0", "OMP_NUM_THREADS": "1"}
    if python is None:
        return own
    libraries = sorted(python.parent.parent.glob("lib/python3*/site-packages/av.libs/lib*-*.so.*"))
    folder = datasets.KEPT / "ffmpeg"
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        name, _, version = library.name.partition("-")
        link = folder / f"{name}.so.{version.split('.so.')[1].split('.')[0]}"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    paths = [str(folder), *(str(library.parent) for library in libraries[:1]), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**own, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}


def _write(source: str, kind: str, folder: str) -> None:
    import numpy as np
    from lerobot.configs.video import RGBEncoderConfig
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        CAMERA: {"dtype": "image" if kind == IMAGES else "video", "shape": (480, 640, 3), "names": ["height", "width", "channels"]},
        STATE: {"dtype": "float32", "shape": (7,), "names": None},
        ACTION: {"dtype": "float32", "shape": (6,), "names": None},
    }  # fmt: skip
    encoder = {} if kind == IMAGES else {"rgb_encoder": RGBEncoderConfig(vcodec=kind)}
    written = LeRobotDataset.create("bench/robot", RATE, features, folder, use_videos=kind != IMAGES, **encoder)
    for episode in open_source(f"tfds:{source}"):
        columns = episode.columns
        actions = np.concatenate([columns["action/world_vector"], columns["action/rotation_delta"]], 1)
        for image, state, action in zip(columns["observation/image"], columns["observation/state"], actions):
            written.add_frame({CAMERA: image, STATE: state, ACTION: action, "task": "put it there"})
        written.save_episode()
    written.finalize()


if __name__ == "__main__":
    _write(*sys.argv[1:])
