"""A TFDS dataset with one bad episode, written by TFDS's own writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write(folder: Path) -> Path:
    """Three episodes: good, with a NaN, and terminal with discount 1 throughout; the version directory."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.rlds import rlds_base

    config = rlds_base.DatasetConfig(
        name="bad",
        observation_info=tfds.features.Tensor(shape=(2,), dtype=np.float32),
        action_info=np.int64,
        reward_info=np.float32,
        discount_info=np.float32,
    )
    directory = folder / "bad" / "1.0.0"
    directory.mkdir(parents=True)
    identity = tfds.core.DatasetIdentity(
        name="bad", version=tfds.core.Version("1.0.0"), data_dir=str(directory), module_name=""
    )
    writer = tfds.core.SequentialWriter(rlds_base.build_info(config, identity), max_examples_per_shard=10)
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [_episode(), _episode(bad_value=np.nan), _episode(terminal=True)]})
    writer.close_all()
    return directory


def _episode(bad_value: float = 0.0, terminal: bool = False) -> dict[str, object]:
    return {
        "steps": [
            {
                "observation": np.array([step, bad_value if step == 1 else 0.0], np.float32),
                "action": step % 2,
                "reward": np.float32(step < 3),
                "discount": np.float32(1),
                "is_first": step == 0,
                "is_last": step == 3,
                "is_terminal": terminal and step == 3,
            }
            for step in range(4)
        ]
    }
