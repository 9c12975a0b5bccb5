"""MineRL's recordings are read as its own pipeline reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source

av = pytest.importorskip("av")


def record(folder: Path, steps: int, skipped: int = 0, frames: int | None = None, **arrays: Any) -> dict[str, Any]:
    """Writes one recording, and returns what its video shows, decoded frame by frame."""
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


def test_recordings_are_episodes(tmp_path: Path) -> None:
    recorded = [record(tmp_path / "v3_a", 12, 3), record(tmp_path / "v3_b", 30)]
    source = open_source(f"ilr:{tmp_path}")
    assert source.episode_count == 2
    for episode, arrays in zip(source, recorded, strict=True):
        steps = len(arrays["reward"])
        columns = episode.columns
        assert np.array_equal(columns["observation/pov"][:-1], arrays["pov"][:-1])
        assert np.array_equal(columns["observation/pov"][-1], arrays["pov"][-2])  # as MineRL's pipeline has it
        assert np.array_equal(columns["observation/inventory/coal"], arrays["observation$inventory$coal"])
        assert columns["observation/equipped_items/mainhand/type"].tolist() == [b"air"] * (steps + 1)
        assert np.array_equal(columns["action/camera"][:-1], arrays["action$camera"])
        assert [text.decode() for text in columns["action/craft"][:-1]] == arrays["action$craft"].tolist()
        assert np.array_equal(columns["reward"][:-1], arrays["reward"].astype(np.float32))
        assert columns["is_terminal"].tolist() == [False] * steps + [True]
        assert json.loads(episode.metadata["metadata_json"])["success"] is True
    (alone,) = open_source(f"ilr:{tmp_path / 'v3_b'}?done_means=truncation")
    assert len(alone) == 31
    assert not alone.columns["is_terminal"].any()
    assert [len(episode) for episode in open_source(f"ilr:{tmp_path}?episodes=1:2")] == [31]


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"frames": 4}, "4 frames; expected 5"),
        ({"action$camera": np.zeros((4, 2), np.float32)}, "action\\$camera has 4 rows; expected 5"),
        ({"observation$inventory$coal": np.zeros(5, int)}, "coal has 5 rows; expected 6"),
        ({"reward": np.zeros((5, 2))}, "expected an array reward"),
        ({"action$jump": np.zeros(5, int)}, "expected none, as most recordings have"),
    ],
)
def test_an_odd_recording_is_one_bad_episode(tmp_path: Path, odd: dict[str, Any], why: str) -> None:
    for name in ("a", "b", "d"):
        record(tmp_path / name, 5)
    record(tmp_path / "c", 5, **odd)
    faults = [[text for _, text in episode.faults] for episode in open_source(f"ilr:{tmp_path}")]
    assert [len(texts) for texts in faults] == [0, 0, 1, 0]
    assert np.char.find(faults[2][0], why.replace("\\", "")) >= 0


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"true_video_frame_count": "6"}', '{"true_video_frame_count": 2}']
)
def test_a_damaged_description_is_one_bad_episode(tmp_path: Path, content: str) -> None:
    record(tmp_path / "a", 5)
    record(tmp_path / "b", 5)
    (tmp_path / "b" / "metadata.json").write_text(content)
    first, second = open_source(f"ilr:{tmp_path}")
    assert not first.faults
    assert "metadata.json" in second.faults[0][1]


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"recording\.mp4, rendered\.npz and metadata\.json"):
        open_source(f"ilr:{tmp_path}?layout=minerl")
