"""Memory-mapped tensors of TorchRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.format_files.base import TRANSITIONS, Columns, FormatFiles, episodes

_FLAGS = ("done", "terminated", "truncated")


def _write_ted_memmap(folder: Path, count: int) -> str:
    """What a ReplayBuffer of one memory-mapped storage dumps; a row holds what came after its step, too."""
    made = folder / "buffer" / "storage"
    held = list(episodes(count))
    joined = {key: np.concatenate([columns[key] for columns in held]) for key in ("actions", "rewards", "ends")}
    flags = {"done": joined["ends"], "truncated": joined["ends"], "terminated": joined["ends"] & False}
    root = {key: np.zeros_like(flag[:, None]) for key, flag in flags.items()} | {
        "observation": np.concatenate([columns["observations"][:-1] for columns in held]),
        "action": joined["actions"],
    }
    after = {key: flag[:, None] for key, flag in flags.items()} | {
        "observation": np.concatenate([columns["observations"][1:] for columns in held]),
        "reward": joined["rewards"][:, None],
    }
    _write_tensors(made, root)
    _write_tensors(made / "next", after)
    (made / "storage_metadata.json").write_text(json.dumps({"is_pytree": False, "len": count * TRANSITIONS}))
    return f"ted:{folder / 'buffer'}"


def _write_tensors(folder: Path, columns: Columns) -> None:
    """A TensorDict in a folder."""
    folder.mkdir(parents=True)
    rows = len(next(iter(columns.values())))
    about: dict[str, Any] = {"shape": [rows], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
    for key, column in columns.items():
        about[key] = {"device": "cpu", "shape": list(column.shape), "dtype": f"torch.{column.dtype}"}
        column.tofile(folder / f"{key}.memmap")
    (folder / "meta.json").write_text(json.dumps(about))


def _read_ted_memmap(folder: Path) -> int:
    """By the trajectory, with what came after its last step at the end."""
    storage = folder / "buffer" / "storage"
    sizes = {"observation": 17, "action": 6}
    root, after = (
        {
            key: np.memmap(place / f"{key}.memmap", bool if key in _FLAGS else np.float32, "r").reshape(
                -1, sizes.get(key, 1)
            )
            for key in keys
        }
        for place, keys in (
            (storage, ("observation", "action")),
            (storage / "next", ("observation", "reward", *_FLAGS)),
        )
    )
    stops = np.flatnonzero(after["done"]) + 1
    for start, stop in zip([0, *stops], stops):
        observations = np.concatenate([root["observation"][start:stop], after["observation"][stop - 1 : stop]])
        columns = [
            np.array(root["action"][start:stop]),
            *(np.array(after[key][start:stop]) for key in ("reward", *_FLAGS)),
        ]
        assert len(observations) == len(columns[0]) + 1
    return int(stops[-1])


FORMATS = (FormatFiles("ted_memmap", _write_ted_memmap, _read_ted_memmap, is_mapped=True),)
