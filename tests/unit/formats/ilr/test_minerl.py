"""MineRL's recordings are read as its own pipeline reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.support.formats.minerl import record

pytest.importorskip("av")


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
        ({"frames": 4}, "recording.mp4: 4 frames; expected 5"),
        ({"action$camera": np.zeros((4, 2), np.float32)}, "action$camera has 4 rows; expected 5"),
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
    assert why in faults[2][0]


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
