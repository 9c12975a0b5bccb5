"""D4RL files as TFDS' own d4rl_* builders make RLDS of them: the same episodes, but for the last observation, where TFDS errs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.formats import open_source

h5py = pytest.importorskip("h5py")
dataset_utils = pytest.importorskip("tensorflow_datasets.d4rl.dataset_utils")

pytestmark = pytest.mark.full

ROWS = 20


@pytest.fixture(params=[True, False], ids=["with next", "without next"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    rng, at = np.random.default_rng(3), np.arange(ROWS)
    observations = rng.random((ROWS + 1, 3)).astype(np.float32)
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file["observations"], file["actions"] = observations[:-1], rng.random((ROWS, 2)).astype(np.float32)
        file["rewards"] = rng.random(ROWS).astype(np.float32)
        file["terminals"], file["timeouts"] = np.isin(at, (4, 15)), np.isin(at, (9,))
        file["infos/qpos"] = rng.random((ROWS, 2))
        if request.param:
            file["next_observations"] = observations[1:]
    return tmp_path / "data.hdf5"


def test_episodes_are_those_of_tfds(path: Path) -> None:
    theirs = [episode["steps"] for _, episode in dataset_utils.generate_examples(str(path))]
    ours = list(open_source(f"d4rl:{path}"))
    assert len(ours) == len(theirs) == 4
    for our, other in zip(ours, theirs):
        steps = len(our) - 1  # TFDS adds no last row to a timeout without next observations
        for field in ("observation", "action", "reward"):
            np.testing.assert_array_equal(our.columns[field][:steps], other[field][:steps])
        np.testing.assert_array_equal(our.columns["infos/qpos"][:steps], other["infos"]["qpos"][:steps])
        assert ends(our.columns) == ends(other)
        if len(other["is_first"]) == len(our):
            np.testing.assert_array_equal(our.columns["discount"][:steps], other["discount"][:steps])


def ends(columns: Any) -> bool:
    """Whether the last row is terminal."""
    return bool(columns["is_terminal"][-1])
