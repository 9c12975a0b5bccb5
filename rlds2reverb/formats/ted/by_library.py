"""What TorchRL itself reads of a buffer that is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from torch import Tensor, bfloat16, uint16
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.checkpointers import H5StorageCheckpointer

from rlds2reverb.episode import IS_TERMINAL, REWARD, Array
from rlds2reverb.formats.ted.keys import TRAJECTORY_IDS
from rlds2reverb.formats.ted.write import ENDS

_ALWAYS_NEXT = (*ENDS, REWARD)


def read_back(path: Path) -> Iterator[dict[str, Array]]:
    """The columns of every trajectory of a buffer's folder, or of an H5 file."""
    h5 = path if path.suffix == ".h5" else path / "storage" / "checkpoint.h5"
    with TemporaryDirectory() as scratch:
        if h5.exists():
            with h5py.File(h5) as file:
                rows = int(file["_len"][()])
        else:
            rows = json.loads((path / "storage" / "storage_metadata.json").read_bytes())["len"]
        storage = LazyMemmapStorage(rows, scratch_dir=scratch)
        buffer = TensorDictReplayBuffer(storage=storage)
        if h5.exists():
            storage.checkpointer = H5StorageCheckpointer()
        if path == h5:
            storage.loads(str(path))
        else:
            buffer.loads(path)
        ids = storage[:][tuple(TRAJECTORY_IDS[0].split("/"))].numpy()
        starts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), rows]
        for start, stop in pairwise(starts):
            yield _columns(storage[start:stop])


def _columns(steps: Any) -> dict[str, Array]:
    """Step columns of a TensorDict [T]; those that are under `next`, too, have T + 1 rows."""
    leaves = {"/".join(key) if isinstance(key, tuple) else key: _numbers(leaf) for key, leaf in steps.items(True, True)}
    columns = {}
    for name, values in leaves.items():
        after = leaves.get(f"next/{name}")
        if name.startswith("next/") and (name.removeprefix("next/") in leaves or name == f"next/{REWARD}"):
            continue
        columns[name] = values if after is None else np.concatenate([values, after[-1:]])
    terminated = leaves["next/terminated"]
    kept = {name: values for name, values in columns.items() if name not in ENDS}
    if f"next/{REWARD}" in leaves:
        kept[REWARD] = leaves[f"next/{REWARD}"]
    return {**kept, IS_TERMINAL: np.append(False, terminated)}


def _numbers(leaf: Tensor) -> Array:
    if leaf.dtype == bfloat16:
        return np.asarray(leaf.view(uint16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(leaf.numpy())
