"""The script that makes a small robot dataset: what the tutorial filters out is in it, and nothing depends on the machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

import rlds2reverb
from tests.support.project import ROOT

_spec = importlib.util.spec_from_file_location("make_reach", ROOT / "examples" / "make_reach.py")
assert _spec is not None
assert _spec.loader is not None
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)


def test_episodes_have_what_is_filtered_and_what_is_learned() -> None:
    for number in range(10):
        episode = script.make_episode(3, number)
        actions, states = episode.columns["action"], episode.columns["observation/state"]
        is_success = number % 5 != 4
        assert episode.metadata["success"] == is_success
        assert episode.columns["reward"].sum() == is_success
        assert not actions[:6].any()
        np.testing.assert_allclose(np.diff(states, axis=0), actions[:-1, :2], atol=1e-6)
        moving = np.linalg.norm(actions[:, :2], axis=1) > 1e-3
        assert len(actions) - 1 - moving.argmax() >= 8, "a chunk of the tutorial is longer than the episode"
        assert not moving[np.flatnonzero(actions[:, 2])].any()


def test_a_seed_makes_equal_files(tmp_path: Path) -> None:
    for name in ("first", "second"):
        script.main([str(tmp_path / name), "--episodes", "5", "--seed", "7"])
    files = [sorted((tmp_path / name / "reach" / "1.0.0").iterdir()) for name in ("first", "second")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert rlds2reverb.inspect(f"tfds:{tmp_path}/first/reach/1.0.0", where=["success"]).episodes == 4
