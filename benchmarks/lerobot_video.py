"""RLDS to a dataset of LeRobot with videos: `rlds2reverb convert tfds:... lerobot:...?video=h264`, beside LeRobot's own writer.

Frames of 480 by 640 in episodes of 60. We read JPEG files of a TFDS dataset and decode them; LeRobot's writer gets the frames as pixels, for
nothing. Both run in LeRobot's Python with the same PyAV and encoders, LeRobot's settings (a key frame every 2, crf 30), and take statistics of
the images. Compared are frames per second of processor time, of all threads and children; for two workers beside one, frames per second.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.children import python_with
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison
from benchmarks.datasets import KEPT
from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Array, Episode

FULL = Size(items=900, reference_items=180, repeats=3)
SHORT = Size(items=60, reference_items=60, repeats=1)

DEFAULT_GOAL, STREAMING_GOAL, WORKERS_GOAL = Goal(3), Goal(1), Goal(1.8, fails_at=0.5)
CODECS = ("h264", "av1")

_ROWS, _HEIGHT, _WIDTH = 60, 480, 640
_ROOT = Path(__file__).parent.parent
_OURS, _ONE, _TWO, _DEFAULT, _STREAMING = "rlds2reverb", "one worker", "two workers", "LeRobot", "LeRobot streaming"


def run(size: Size) -> Iterator[Result]:
    """Rates in frames per second, of a core and of the machine."""
    python = python_with("LeRobot", "lerobot")
    if python is None:
        return
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        write = partial(_write, python, Path(folder))
        shape = f"{_HEIGHT}x{_WIDTH}x3"
        for codec in CODECS:
            sides = [
                Side(_OURS, partial(write, _OURS, codec), size.items),
                Side(_DEFAULT, partial(write, _DEFAULT, codec), size.reference_items),
                Side(_STREAMING, partial(write, _STREAMING, codec), size.reference_items),
            ]
            runs = alternate(sides, size.repeats)
            name = f"lerobot_video/{codec}"
            yield comparison(f"{name}/default", runs, _OURS, _DEFAULT, "frames/s and core", DEFAULT_GOAL, image=shape)
            yield comparison(
                f"{name}/streaming", runs, _OURS, _STREAMING, "frames/s and core", STREAMING_GOAL, image=shape
            )
        sides = [Side(many, partial(write, many, CODECS[0], is_wall=True), size.items) for many in (_TWO, _ONE)]
        runs = alternate(sides, size.repeats)
        yield comparison("lerobot_video/workers", runs, _TWO, _ONE, "frames/s", WORKERS_GOAL, image=shape)


def _write(python: Path, folder: Path, writer: str, codec: str, frames: int, is_wall: bool = False) -> Run:
    episodes = max(1, frames // _ROWS)
    source, decoded = _sources(folder, episodes)
    dataset = decoded if writer in (_DEFAULT, _STREAMING) else f"tfds:{source}"
    command = [str(python), "-m", "benchmarks.lerobot_writers", writer, str(dataset), str(folder / "written"), codec]
    variables = {**os.environ, "PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(command, check=True, capture_output=True, text=True, env=variables, cwd=_ROOT)
    written = json.loads(process.stdout)
    seconds = written["seconds"] if is_wall else written["processor_seconds"]
    return Run(written["frames"], seconds, written["processor_seconds"])


def _sources(folder: Path, episodes: int) -> tuple[Path, Path]:
    """A TFDS dataset of JPEG files, and the array of the frames that they were made of."""
    source, decoded = folder / f"jpeg_{episodes}" / "1.0.0", folder / f"decoded_{episodes}.npy"
    if not source.exists():
        recorded = [Episode(_columns(number), {}, str(number)) for number in range(episodes)]
        convert(recorded, f"tfds:{folder / source.parent.name}", encode={"observation/image": "jpeg:quality=95"})
        np.save(decoded, np.stack([episode.columns["observation/image"] for episode in recorded]))
    return source, decoded


def _columns(number: int) -> dict[str, Array]:
    """A textured scene that moves, with noise as cameras have it."""
    rng = np.random.default_rng(number)
    down, across = np.mgrid[:_HEIGHT, :_WIDTH]
    scene = np.stack(
        [
            128 + 60 * np.sin(across / 40 + number) + 60 * np.cos(down / 30),
            120 + 80 * np.sin((across + down) / 50),
            across * 255 / _WIDTH,
        ],
        -1,
    )
    scene += rng.normal(0, 6, scene.shape)
    image = np.empty((_ROWS, _HEIGHT, _WIDTH, 3), np.uint8)
    for row in range(_ROWS):
        frame = np.roll(scene, 2 * row, 1)
        frame[100 + row : 160 + row, 200:300] = (200, 30, 60)
        image[row] = np.clip(frame + rng.normal(0, 2, frame.shape), 0, 255)
    at = np.arange(_ROWS)
    numbers = rng.normal(size=(2, _ROWS, 7)).astype(np.float32)
    flags = {"is_first": at == 0, "is_last": at == _ROWS - 1, "is_terminal": at == _ROWS - 1}
    return {"observation/image": image, "observation/state": numbers[0], "action": numbers[1], **flags}
