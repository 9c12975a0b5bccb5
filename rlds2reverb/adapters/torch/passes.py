"""Which epoch a pass over a DataLoader is of: one number for all its workers, which may be new processes in every pass.

A DataLoader tells its workers nothing about the pass, and a dataset hears nothing of it in the learner's process. So the workers agree in
shared memory: the first of a pass that begins takes the next epoch and writes it down, the rest read it. What workers of one pass share:

seed      `get_worker_info().seed - id`, which the loader draws anew for every iterator
process   the number of its first worker among the children of this process: a user may seed the loader with one number again and again,
          and a StatefulDataLoader takes up the seed of its state
count     passes of the worker's process so far: a persistent worker makes many, with one seed

A lock is not needed, nor would one survive a pickle: workers of one pass that begin at once compute the same values. For that each reads
the numbers of the dataset first and looks for its pass after that, and the first one writes its pass before the numbers.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from rlds2reverb.episode import Array
from rlds2reverb.wire.insert import seed as hash_of

_ROWS = 1024
"""Passes that are remembered, by a hash of what their workers share: a row is written over long after the last worker of its pass began."""

# Numbers of the dataset.
_NEXT_EPOCH, _EPOCH, _EPOCH_LOAD, _IS_BEGUN, _PASSES, _NEW_LOAD, _LOADS, _DATA = range(8)
# Numbers of a pass.
_SEED, _PROCESS, _COUNT, _WORKERS, _ROW_EPOCH, _ROW_LOAD, _ROW_PASS, _IS_SET = range(8)


class WorkerPlace(NamedTuple):
    """The number of this worker of a DataLoader, and how many there are; 0 and 1 in any other process."""

    worker: int
    workers: int
    is_worker: bool


def worker_place() -> WorkerPlace:
    info = get_worker_info()
    return WorkerPlace(0, 1, False) if info is None else WorkerPlace(info.id, info.num_workers, True)


class PassStart(NamedTuple):
    """How a pass begins.

    Attributes:
      number: of the pass, counted from 1.
      epoch: of the pass.
      load: number of the `load_state_dict` whose position it begins at; 0 to begin at the front.
    """

    number: int
    epoch: int
    load: int


class Passes:
    """Counts the passes of one dataset in shared memory. A copy by `pickle` or `copy` counts by itself, from the same numbers on."""

    def __init__(self) -> None:
        self._tensor = torch.zeros((_ROWS + 1, 8), dtype=torch.int64).share_memory_()
        self._own = os.getpid(), 0  # a process, and its passes

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if not self._tensor.is_shared():  # to a worker it goes as it is; else it was copied
            self._tensor = self._tensor.clone().share_memory_()

    @property
    def _numbers(self) -> Array:
        """[8] int64, those of the dataset."""
        return self._tensor.numpy()[_ROWS]  # type: ignore[no-any-return]

    @property
    def next_epoch(self) -> int:
        return int(self._numbers[_NEXT_EPOCH])

    @property
    def latest(self) -> PassStart | None:
        """The pass that began last, in whatever process; None where none began since the epoch was set."""
        numbers = self._numbers
        if not numbers[_IS_BEGUN]:
            return None
        return PassStart(int(numbers[_PASSES]), int(numbers[_EPOCH]), int(numbers[_EPOCH_LOAD]))

    def set_epoch(self, epoch: int, keeps_position: bool = False) -> None:
        """Sets the epoch of the next pass, which begins at the front unless a position that was loaded is kept."""
        numbers = self._numbers
        numbers[_NEXT_EPOCH], numbers[_IS_BEGUN] = epoch, 0
        if not keeps_position:
            numbers[_NEW_LOAD] = 0

    def load(self, epoch: int) -> int:
        """Has the next pass begin at a position of this epoch; returns the load's number."""
        numbers = self._numbers
        numbers[_LOADS] += 1
        numbers[_NEW_LOAD], numbers[_NEXT_EPOCH], numbers[_IS_BEGUN] = numbers[_LOADS], epoch, 0
        return int(numbers[_LOADS])

    @property
    def new_load(self) -> int:
        """Number of the load that no pass has begun at; 0 if there is none."""
        return int(self._numbers[_NEW_LOAD])

    def begin(self, epoch: int | None = None) -> PassStart:
        """Begins a pass, or joins the workers that began it; `epoch` is that of a worker's own position, for a StatefulDataLoader."""
        numbers = self._numbers
        own_epoch = int(numbers[_NEXT_EPOCH]) if epoch is None else epoch
        started = PassStart(int(numbers[_PASSES]) + 1, own_epoch, int(numbers[_NEW_LOAD]) if epoch is None else 0)
        info = get_worker_info()
        if info is not None and (joined := self._join(info, started)) is not None:
            return joined
        self._write(started)
        return started

    def go_on(self, started: PassStart) -> PassStart:
        """Nothing was left of a pass: it is the next epoch's, from the front on."""
        started = PassStart(started.number, started.epoch + 1, 0)
        self._write(started)
        return started

    @property
    def data(self) -> str | None:
        """Fingerprint of the data that a pass has opened, in whatever process; None before."""
        value = int(self._numbers[_DATA])
        return f"{value & (1 << 64) - 1:016x}" if value else None

    @data.setter
    def data(self, fingerprint: str) -> None:
        # The same 64 bits as a signed number: the shared tensor is of int64.
        self._numbers[_DATA] = np.array(int(fingerprint, 16), np.uint64).astype(np.int64)

    def _join(self, info: Any, started: PassStart) -> PassStart | None:
        """What the first worker of this pass wrote; None for that worker itself, whose `started` is written."""
        pid, count = self._own
        count = count + 1 if pid == os.getpid() else 1
        self._own = os.getpid(), count
        seed = int(info.seed) - info.id
        # Only a private attribute says how many processes were started; 0 without it.
        process = (getattr(multiprocessing.current_process(), "_identity", None) or (0,))[-1] - info.id
        row = self._tensor.numpy()[hash_of("pass", str(seed), str(count)) % _ROWS]
        is_same = row[_IS_SET] and (row[_SEED], row[_COUNT], row[_WORKERS]) == (seed, count, info.num_workers)
        # Workers of the next iterator have numbers at least so much higher. Within one they may be some apart: another thread starts processes, too.
        if is_same and abs(process - int(row[_PROCESS])) < info.num_workers:
            return PassStart(int(row[_ROW_PASS]), int(row[_ROW_EPOCH]), int(row[_ROW_LOAD]))
        row[_IS_SET] = 0
        row[:_IS_SET] = seed, process, count, info.num_workers, started.epoch, started.load, started.number
        row[_IS_SET] = 1
        return None

    def _write(self, started: PassStart) -> None:
        numbers = self._numbers
        if started.number < numbers[_PASSES]:  # a worker that starts late, of a pass that ended early
            return
        numbers[_EPOCH], numbers[_EPOCH_LOAD] = started.epoch, started.load
        numbers[_NEXT_EPOCH], numbers[_PASSES], numbers[_IS_BEGUN] = started.epoch + 1, started.number, 1
        if started.load == numbers[_NEW_LOAD]:
            numbers[_NEW_LOAD] = 0
