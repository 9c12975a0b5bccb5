"""robomimic's files as robomimic itself reads them: the same observations, actions and next observations, which it casts to float32.

robomimic 0.3.0 reads what tests/support/formats/robomimic.py writes by its layout.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlds2reverb.formats import open_source

h5py = pytest.importorskip("h5py")
dataset = pytest.importorskip("robomimic.utils.dataset")
obs_utils = pytest.importorskip("robomimic.utils.obs_utils")
written = pytest.importorskip("tests.support.formats.robomimic")

LOW = "robot0_eef_pos"
KEYS = ("actions", "rewards", "dones")


@pytest.mark.parametrize("mask", [None, "valid"])
def test_steps_are_those_of_robomimic(tmp_path: Path, mask: str | None) -> None:
    path = tmp_path / "data.hdf5"
    lengths = (3, 2, 4, 2, 2, 2, 2, 2, 2, 2, 3, 4)
    with h5py.File(path, "w") as file:
        written.write_file(file, written.demonstrations(lengths))
        file["mask/valid"] = np.array([b"demo_10", b"demo_2", b"demo_1"])
    obs_utils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": [LOW], "rgb": ["agentview_image"]}})
    theirs = dataset.SequenceDataset(
        str(path), [LOW], KEYS, filter_by_attribute=mask, hdf5_use_swmr=False, load_next_obs=True
    )
    at = 0
    for episode in open_source(f"robomimic:{path}" + (f"?filter={mask}" if mask else "")):
        observations = episode.columns[f"observation/{LOW}"].astype(np.float32)
        for row in range(len(episode) - 1):
            step = theirs[at]
            np.testing.assert_array_equal(np.asarray(step["obs"][LOW])[0].astype(np.float32), observations[row])
            np.testing.assert_array_equal(
                np.asarray(step["next_obs"][LOW])[0].astype(np.float32), observations[row + 1]
            )
            for key, field in {"actions": "action", "rewards": "reward", "dones": "dones"}.items():
                np.testing.assert_array_equal(np.ravel(step[key]), np.ravel(episode.columns[field][row]))
            at += 1
    assert at == len(theirs)
