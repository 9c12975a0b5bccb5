"""A dataset of LeRobot with videos, written in the Python that has LeRobot: `python -m benchmarks.lerobot_writers WRITER SOURCE PLACE CODEC`.

Prints frames, seconds and processor seconds, its children's too, as JSON. Loading libraries is not timed.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

FPS = 10
STATE = 7


def write_by_lerobot(source: str, place: Path, codec: str, streaming: bool) -> Callable[[], int]:
    """LeRobot's recorder: `add_frame` and `save_episode`, frames from an array [episodes, rows, height, width, 3] of decoded images.

    Its defaults (PNG files between), or its streaming encoder with one thread, the fastest per core, and a queue that loses no frame.
    """
    import numpy as np
    from lerobot.configs.video import RGBEncoderConfig
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    episodes = np.load(source, mmap_mode="r")
    numbers = np.zeros(STATE, np.float32)
    features: dict[str, Any] = {
        "observation.image": {"dtype": "video", "shape": episodes.shape[2:], "names": ["height", "width", "channels"]},
        **{name: {"dtype": "float32", "shape": (STATE,), "names": None} for name in ("observation.state", "action")},
    }
    encoder = RGBEncoderConfig(vcodec={"h264": "h264", "av1": "libsvtav1"}[codec])
    fastest = {"streaming_encoding": True, "encoder_threads": 1, "encoder_queue_maxsize": 1 << 16} if streaming else {}

    def write() -> int:
        dataset = LeRobotDataset.create(
            "benchmarks/set", FPS, features, root=place, use_videos=True, rgb_encoder=encoder, **fastest
        )
        for frames in episodes:
            for frame in frames:
                row = {"observation.image": np.array(frame), "observation.state": numbers, "action": numbers}
                dataset.add_frame({**row, "task": "push"})
            dataset.save_episode()
        dataset.finalize()
        return int(episodes.shape[0] * episodes.shape[1])

    return write


def write_by_us(source: str, place: Path, codec: str, workers: int | None) -> Callable[[], int]:
    """`rlds2reverb convert` of a TFDS dataset of JPEG files, which it decodes."""
    from rlds2reverb.conversion.convert import convert

    def write() -> int:
        report = convert(
            source, f"lerobot:{place}?video={codec},fps={FPS},last_step=keep", workers=workers, restart=True
        )
        return report.steps_written

    return write


WRITERS: dict[str, Callable[[str, Path, str], Callable[[], int]]] = {
    "rlds2reverb": partial(write_by_us, workers=None),
    "one worker": partial(write_by_us, workers=1),
    "two workers": partial(write_by_us, workers=2),
    "LeRobot": partial(write_by_lerobot, streaming=False),
    "LeRobot streaming": partial(write_by_lerobot, streaming=True),
}


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(writer: str, source: str, place: str, codec: str) -> None:
    os.environ["SVT_LOG"] = "1"
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    shutil.rmtree(place, ignore_errors=True)
    write = WRITERS[writer](source, Path(place), codec)
    began, processor = time.perf_counter(), _processor_seconds()
    frames = write()
    took = {"seconds": time.perf_counter() - began, "processor_seconds": _processor_seconds() - processor}
    print(json.dumps({"frames": frames, **took}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
