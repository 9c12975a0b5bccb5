"""A loader of batches in a process of its own, in the Python of LeRobot: `python -m benchmarks.robot_loaders DESCRIPTION`.

DESCRIPTION is JSON, see `DATASETS`. Each line of the input is a number of batches: a loader is made, gives two batches for each worker, and is
timed for so many more; the answer is a line of JSON. Between two lines there is no loader, so nothing disturbs another process.

Batches are the same on all sides: 32 samples with two images of 224x224 as uint8 [32, 2, 3, 224, 224] (float32 from LeRobot's image files, which
it has no uint8 of), two states, sixteen actions, and the masks.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.robot_sets import ACTION, CAMERA, IMAGES, RATE, STATE

BATCH, HISTORY, HORIZON, SIDE, WORKERS = 32, 2, 16, 224, 2
VIEW = f"chunk:history={HISTORY},horizon={HORIZON}"
AHEAD = 2 * WORKERS
"""Batches that are taken before the clock starts: as many as the workers prepare in advance, at the start of the clock as at its end."""


def lerobot_dataset(root: str, kind: str) -> Any:
    """LeRobot's dataset, images resized by torchvision in the workers."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from torchvision.transforms import v2

    past = [-step / RATE for step in reversed(range(HISTORY))]
    windows = {CAMERA: past, STATE: past, ACTION: [step / RATE for step in range(HORIZON)]}
    return LeRobotDataset(
        "bench/robot",
        root,
        delta_timestamps=windows,
        image_transforms=v2.Resize((SIDE, SIDE)),
        video_backend=None if kind == IMAGES else "torchcodec",
        return_uint8=True,
    )


def table_dataset(address: str, table: str, side: int) -> Any:
    """A table, sampled and decoded by the workers; images that are stored larger than wanted are cropped, as a policy's augmentation does."""
    from rlds2reverb.adapters.torch import TableDataset

    size: Any = (SIDE, SIDE) if side == SIDE else True
    return TableDataset(address, table, BATCH, decode=size, map=_channels_first)


def local_dataset(source: str, **options: Any) -> Any:
    """A dataset on disk, read by the workers."""
    from rlds2reverb.adapters.torch import LocalDataset

    options = {"encoded": "all", "decode": (SIDE, SIDE), "shuffle": "global", "drop_last": True, **options}
    return LocalDataset(source, VIEW, BATCH, map=_channels_first, **options)


def make_loader(dataset: Any) -> Any:
    """Workers are forked: this process never connects to a server."""
    from torch.utils.data import DataLoader

    is_map = hasattr(dataset, "__len__")  # LeRobot's; ours give whole batches, shuffled
    options: dict[str, Any] = (
        {"batch_size": BATCH, "shuffle": True, "drop_last": True} if is_map else {"batch_size": None}
    )
    return DataLoader(dataset, num_workers=WORKERS, persistent_workers=True, **options)


def _channels_first(batch: Any) -> Any:
    """The columns, with images [B, T, channels, height, width], cropped at random where they are larger."""
    import torch

    columns = dict(_flat("", batch.data))
    for name, values in columns.items():
        if isinstance(values, torch.Tensor) and values.ndim == 5:
            top, left = (
                int(torch.randint(length - SIDE + 1, ())) if length > SIDE else 0 for length in values.shape[2:4]
            )
            columns[name] = values[:, :, top : top + SIDE, left : left + SIDE].permute(0, 1, 4, 2, 3)
    return columns


def _flat(prefix: str, nest: Any) -> Iterator[tuple[str, Any]]:
    for name, values in nest.items():
        yield from _flat(f"{prefix}{name}/", values) if isinstance(values, dict) else [(f"{prefix}{name}", values)]


DATASETS: dict[str, Callable[..., Any]] = {"lerobot": lerobot_dataset, "table": table_dataset, "local": local_dataset}


def import_libraries(make: Callable[..., Any]) -> None:
    """Imports what the loader is made of, which takes longer than its first batch."""
    if make is lerobot_dataset:
        import torchvision.transforms.v2  # noqa: F401
    else:
        import rlds2reverb.adapters.torch  # noqa: F401


def batches(loader: Any) -> Iterator[Any]:
    """Pass after pass, without end."""
    while True:
        yield from loader


def resident_bytes() -> int:
    """Memory of this process and its workers without pages of files, what they share counted once. Source: proc(5), /proc/PID/smaps_rollup."""
    total = 0
    for pid in [os.getpid(), *_children()]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total


def _children() -> Iterator[int]:
    """Processes below this one. Source: proc(5), /proc/PID/stat, ppid."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    processes = [os.getpid()]
    for pid in processes:
        processes += [child for child, parent in parents.items() if parent == pid]
    yield from processes[1:]


def main(description: dict[str, Any]) -> None:
    """Serves lines. With `keeps`, one loader serves all of them."""
    make, keeps = DATASETS[description.pop("loader")], description.pop("keeps", False)
    import_libraries(make)
    # Else the first full collection of each process, at some time, copies what it shares with the others.
    gc.collect()
    gc.freeze()
    dataset, stream = make(**description), None
    for line in sys.stdin:
        began = time.perf_counter()
        stream = stream or batches(make_loader(dataset))
        first = next(stream)
        first_seconds = time.perf_counter() - began
        for _ in range(AHEAD - 1):
            next(stream)
        began = time.perf_counter()
        for _ in range(int(line)):
            next(stream)
        seconds = time.perf_counter() - began
        _answer(seconds=seconds, first_seconds=first_seconds, images=_images(first), bytes=resident_bytes())
        del first
        if not keeps:
            stream = None  # its workers end
            gc.collect()


def _images(batch: Any) -> str:
    values = next(values for values in batch.values() if getattr(values, "ndim", 0) == 5)
    return f"{str(values.dtype).removeprefix('torch.')}{list(values.shape)}"


def _answer(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
