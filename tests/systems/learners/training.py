"""One rank of a distributed training run that may be killed: writes down what it was given, and its position after every step.

python -m tests.systems.learners.training '{"rank": 0, "world_size": 2, ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from rlds2reverb.adapters.torch import LocalDataset


def count_items(batch: Any) -> tuple[torch.Tensor, list[int]]:
    """What a worker makes of a batch: one small tensor and the keys."""
    return batch.data["observation"].double().sum(), batch.info.key.tolist()


def main(
    source: str,
    folder: str,
    meeting: str,
    rank: int,
    world_size: int,
    workers: int,
    batch_size: int,
    shuffle: int | str,
    killed_after: int | None = None,
    resumed: bool = False,
) -> None:
    """Trains one epoch; the ranks meet in every step, so one that has no batch any more would let the others wait."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    dataset = LocalDataset(
        source, "transition", batch_size, map=count_items, shuffle=shuffle, seed=3, rank=rank, world_size=world_size
    )
    position, before = Path(folder) / "position.json", 0
    if resumed:
        saved = json.loads(position.read_text())
        dataset.load_state_dict(saved["dataset"])
        before = saved["step"]
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        timeout=100 * bool(workers),
    )
    with (Path(folder) / f"given-{before}-{rank}.jsonl").open("w") as log:
        for step, (total, keys) in enumerate(loader, 1):
            dist.all_reduce(total)
            log.write(json.dumps({"step": before + step, "total": float(total), "keys": keys}) + "\n")
            log.flush()
            if rank == 0:
                state = {"step": before + step, "dataset": dataset.state_dict(batches=step)}
                position.with_suffix(".new").write_text(json.dumps(state))
                position.with_suffix(".new").replace(position)
            dist.barrier()
            if step == killed_after:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
