"""Replay buffers, dumped by TorchRL itself, and what TorchRL itself loads of them: what tests/unit/formats/ted reads.

    python tests/data/make_ted.py tests/data/ted

Each version writes an archive of its own. Those here were written by these, each with Python 3.11 and torch 2.13.0 (cpu):

| archive | torchrl | tensordict | numpy | h5py |
| --- | --- | --- | --- | --- |
| v0.14.1.tar.xz | 0.14.1 | 0.14.3 | 2.4.6 | 3.16.0 |
| v0.7.2.tar.xz | 0.7.2 | 0.7.2 | 2.4.6 | 3.16.0 |

Beside each buffer lies `expected.npz`: the rows that TorchRL loads, `keys.<key>` [rows, ...] or [rows, columns, ...], and where
trajectories begin and end in them (`start`, `stop`, inclusive, as its find_start_stop_traj has it).
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from torchrl.data.postprocs import MultiStep
from torchrl.data.replay_buffers import checkpointers

FORMS = {
    "memmap": None,
    "flat": checkpointers.FlatStorageCheckpointer,
    "nested": checkpointers.NestedStorageCheckpointer,
    "h5": checkpointers.H5StorageCheckpointer,
}


def steps(count: int, lengths: tuple[int, ...], seed: int = 0, ids: bool = True, brain: bool = True) -> TensorDict:
    """TED of episodes of these lengths in turn, the last one cut; every third one is truncated."""
    rng = np.random.default_rng(seed)
    episode, at = np.zeros(count, int), np.zeros(count, int)
    ends = np.zeros((count, 1), bool)
    row = number = 0
    while row < count:
        length = lengths[number % len(lengths)]
        stop = min(row + length, count)
        episode[row:stop], at[row:stop] = number, np.arange(stop - row)
        ends[stop - 1] = stop - row == length
        row, number = stop, number + 1
    truncated = ends & (episode[:, None] % 3 == 2)
    noise = rng.normal(size=(number, 16, 3)).astype(np.float32)
    image = rng.integers(0, 256, (number, 16, 2, 2), np.uint8)

    def seen(later: int) -> dict[str, Any]:
        where = episode, at + later
        state = torch.from_numpy(noise[where])
        return {
            "observation": {"state": state, "half": state[:, :2].half()}
            | ({"brain": state[:, :1].bfloat16()} if brain else {}),
            "image": torch.from_numpy(image[where]),
            "is_even": torch.from_numpy((at + later) % 2 == 0),
        }

    no = torch.zeros(count, 1, dtype=torch.bool)
    done = {"done": ends, "terminated": ends & ~truncated, "truncated": truncated}
    after = {**seen(1), "reward": torch.from_numpy(rng.normal(size=(count, 1)).astype(np.float32))}
    root = {
        **seen(0),
        "action": torch.from_numpy(rng.integers(0, 9, count)),
        "log_prob": torch.from_numpy(rng.normal(size=count)),
    }
    made = TensorDict(
        {**root, "next": {**after, **{key: torch.from_numpy(flag) for key, flag in done.items()}}}, [count]
    )
    made.update({key: no.clone() for key in done})
    if ids:
        made["collector", "traj_ids"] = torch.from_numpy(episode + 10 * seed)
    return made


def buffer(capacity: int, form: str = "memmap", ndim: int = 1, storage: Any = LazyMemmapStorage, **more: Any) -> Any:
    """An empty buffer."""
    made = TensorDictReplayBuffer(storage=storage(capacity, ndim=ndim), batch_size=4, **more)
    if FORMS[form] is not None:
        made.storage.checkpointer = FORMS[form]()
    return made


def filled(
    form: str, capacity: int, count: int, columns: tuple[int, ...] = (), dirty: bool = False, **more: Any
) -> Any:
    """A buffer of so many steps in all, written in two parts."""
    size = int(np.prod(columns, dtype=int))
    more["brain"] = form != "h5"  # HDF5 has no bfloat16
    parts = [steps(count, (3, 4, 2) if number % 2 == 0 else (2, 5, 4), number, **more) for number in range(size)]
    data = torch.stack(parts).reshape(*columns, count) if columns else parts[0]
    made = buffer(capacity * size, form, len(columns) + 1, **({"dim_extend": len(columns)} if columns else {}))
    cut = min(7, count)
    made.extend(data[..., :cut])
    if dirty:  # what memory that was not cleared may hold
        made.storage._storage["next", "done"][-1] = True
    if cut < count:
        made.extend(data[..., cut:])
    return made


def ensemble() -> Any:
    return ReplayBufferEnsemble(filled("memmap", 10, 5), filled("memmap", 10, 14), batch_size=4)


def best() -> Any:
    made = buffer(5, writer=TensorDictMaxValueWriter(rank_key=("next", "reward")))
    made.extend(steps(14, (3, 4, 2)))
    return made


def multi_step() -> Any:
    made = buffer(14, storage=LazyTensorStorage)
    made.extend(MultiStep(0.9, 3)(steps(14, (7,)).unsqueeze(0)).squeeze(0))
    return made


def items() -> Any:
    """Whole trajectories as items."""
    made = buffer(4, storage=LazyTensorStorage)
    made.extend(torch.stack([steps(6, (6,), 0), steps(6, (6,), 1), steps(6, (4,), 2)]))
    return made


def pytree() -> Any:
    rows = steps(7, (3, 4))
    made = ReplayBuffer(storage=LazyMemmapStorage(10))
    after = rows["next"]
    made.extend(
        (
            rows["observation", "state"],
            rows["action"],
            {"r": after["reward"], "d": [after["done"], after["observation", "state"]]},
        )
    )
    return made


BUFFERS: dict[str, Callable[[], Any]] = {
    **{f"part_{form}": partial(filled, form, 10, 7) for form in FORMS},
    **{f"full_{form}": partial(filled, form, 10, 10) for form in FORMS},
    **{f"ring_{form}": partial(filled, form, 10, 14) for form in FORMS},
    **{f"by_done_{form}": partial(filled, form, 10, 14, ids=False) for form in FORMS},
    **{f"columns_part_{form}": partial(filled, form, 10, 7, (3,), dirty=True) for form in FORMS},
    **{f"columns_ring_{form}": partial(filled, form, 10, 14, (2, 2)) for form in FORMS},
    "ensemble": ensemble,
    "best": best,
    "multi_step": multi_step,
    "items": items,
    "pytree": pytree,
}


def expected(made: Any, folder: Path) -> dict[str, Any]:
    """The rows that TorchRL holds, and its own bounds of trajectories."""
    held = made.storage._storage
    if not isinstance(held, TensorDict):
        return {}
    found = {
        f"keys.{'.'.join(key if isinstance(key, tuple) else (key,))}": as_array(leaf)
        for key, leaf in held.items(True, True)
    }
    try:
        from torchrl.data.replay_buffers.utils import find_start_stop_traj
    except ImportError:
        return found
    filled_rows = made.storage._len // max(int(np.prod(held.shape[1:])), 1)
    if ("collector", "traj_ids") in held.keys(True) and 0 < filled_rows <= len(held):
        start, stop, _ = find_start_stop_traj(
            trajectory=held["collector", "traj_ids"][:filled_rows],
            at_capacity=made.storage._is_full,
            cursor=made.storage._last_cursor if made.storage._is_full else None,
        )
        found |= {"start": start.numpy(), "stop": stop.numpy()}
    return found


def as_array(one: Any) -> np.ndarray[Any, Any]:
    return one.float().numpy() if one.dtype == torch.bfloat16 else one.numpy()


def plain(folder: Path) -> None:
    """TensorDicts that no buffer wrote."""
    rows = steps(7, (3, 4), ids=False)
    rows["episode"] = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    rows["said"] = NonTensorStack(*[f"step {number} ü" for number in range(7)])
    rows["robot"] = NonTensorData("arm", batch_size=[7])
    rows.memmap(folder / "plain")
    padded = torch.stack([steps(5, (5,), 0), steps(5, (3,), 1)])
    padded["mask"] = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    padded.memmap(folder / "padded")
    torch.save({"no": "need"}, folder / "plain" / "transform.t")


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    version = importlib.metadata.version("torchrl")
    with tempfile.TemporaryDirectory() as temporary:
        made_in = Path(temporary) / "data"
        made_in.mkdir()
        for name, make in BUFFERS.items():
            try:
                made = make()
                made.dumps(made_in / name)
                if hasattr(made.storage, "_storage"):
                    np.savez_compressed(made_in / name / "expected.npz", **expected(made, made_in / name))
            except Exception as error:  # old versions cannot do all of it
                print(f"{name}: not by {version}: {type(error).__name__}: {error}")
                shutil.rmtree(made_in / name, ignore_errors=True)
        try:
            plain(made_in)
        except Exception as error:
            print(f"plain: not by {version}: {error}")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / f"v{version}.tar.xz", "w:xz", preset=9) as archive:
            for path in sorted(made_in.rglob("*")):
                if path.is_file() and path.name != "prefetch.pkl":
                    info = tarfile.TarInfo(str(path.relative_to(made_in)))
                    info.size = path.stat().st_size
                    with path.open("rb") as file:
                        archive.addfile(info, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
