"""Recordings as MineRL publishes them: recording.mp4, rendered.npz and metadata.json in a folder each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def record(folder: Path, steps: int, skipped: int = 0, frames: int | None = None, **arrays: Any) -> dict[str, Any]:
    """Writes one recording, and returns what its video shows, decoded frame by frame."""
    import av

    folder.mkdir(parents=True)
    count = steps + 1 + skipped if frames is None else frames
    with av.open(str(folder / "recording.mp4"), "w") as container:
        stream = container.add_stream("h264", rate=20)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(count):
            pixels = np.full((48, 64, 3), number * 5 % 255, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    rng = np.random.default_rng(steps)
    content = {
        "reward": rng.random(steps),
        "action$camera": rng.random((steps, 2)).astype(np.float32),
        "action$craft": np.array(["none", "torch"])[rng.integers(0, 2, steps)],
        "observation$inventory$coal": np.arange(steps + 1),
        "observation$equipped_items$mainhand$type": np.array(["air"] * (steps + 1)),
        **arrays,
    }
    np.savez(folder / "rendered.npz", **content)
    about = {"success": True, "true_video_frame_count": steps + 1 + skipped, "stream_name": folder.name}
    (folder / "metadata.json").write_text(json.dumps(about))
    with av.open(str(folder / "recording.mp4")) as container:
        shown = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    return {**content, "pov": shown[skipped : skipped + steps + 1]}
