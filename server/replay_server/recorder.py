"""Keeps the history of a checkpoint folder while its server runs, in a thread of its own.

Events are noted in memory, without waiting for a disk; the thread writes them soon after. A kill costs what came in the last
moment, and of the run's end up to `SAVE_SECONDS`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from replay_server import history as histories
from replay_server.checkpoints import Outcome
from replay_server.history import NOT_NEEDED, CheckpointRow, History, HistoryFile, MemorySample, shorten_error
from replay_server.logs import logger
from replay_server.memory import resident_bytes

LOOK_SECONDS = 5.0
SAVE_SECONDS = 60.0
GAP_SECONDS = 1.5 * SAVE_SECONDS  # how exactly the end of a killed run is known

_REST_SECONDS = 1.0  # between two writes, however much happens
_RECENT = 121
_JOIN_SECONDS = 5.0


class Recorder:
    """The history of one server's folder.

    Args:
      items: number of items in all tables now; None while it is not known.
    """

    def __init__(self, file: HistoryFile, items: Callable[[], int | None], started_at: float) -> None:
        self._file, self._items, self._began = file, items, started_at
        self._history = History()
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self._peak = 0
        self._look()
        self._changing = threading.Lock()
        self._noted, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._log = logger("history")

    def start(self) -> None:
        """Reads what earlier servers have left, once the folder is this server's, and records from now on."""
        before = self._file.read()
        with self._changing:
            noted, self._history = self._history, before
            for written in noted.checkpoints:
                self._history = self._history.with_checkpoint(written)
        self._sample()
        self._thread.start()

    def stop(self) -> None:
        """Records the end; waits for the disk a few seconds at most."""
        self._stopped.set()
        self._noted.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def note(self, outcome: Outcome) -> None:
        """Records a checkpoint, from any thread; waits for nothing."""
        ended, checkpoint = max(0, int(outcome.ended)), outcome.checkpoint
        row = CheckpointRow(
            ended,
            ended,
            1,
            round(max(0.0, outcome.seconds), 2),
            0 if checkpoint is None else checkpoint.bytes,
            0 if checkpoint is None else checkpoint.number,
            outcome.reason if checkpoint is None or checkpoint.is_new else NOT_NEEDED,
            shorten_error(outcome.error),
        )
        with self._changing:
            self._history = self._history.with_checkpoint(row)
        self._noted.set()

    def note_started(self) -> None:
        """Records that the server has started, see `HistoryFile.note_started`."""
        self._file.note_started()
        self._noted.set()

    def forget_checkpoints(self) -> None:
        """Records that the server has started without the earlier checkpoints: the next start need not look for them."""
        with self._changing:
            self._history = self._history.without_checkpoints()
        self._noted.set()

    def history(self) -> History:
        with self._changing:
            return histories.as_of(self._history, time.time())

    def document(self, every_seconds: float | None) -> dict[str, Any]:
        """For /history.json: rows of runs, checkpoints and gaps, and columns of samples; at most some 50 kB."""
        now = time.time()
        history = self.history()
        return {
            "now": now,
            "days": histories.DAYS,
            "problem": self._file.problem,
            "runs": [msgspec.structs.asdict(run) for run in history.runs],
            "checkpoints": [
                dict(zip(CheckpointRow.__struct_encode_fields__, msgspec.structs.astuple(written)))
                for written in history.checkpoints
            ],
            "gaps": [vars(gap) for gap in histories.gaps(history, now, GAP_SECONDS, every_seconds)],
            "samples": {
                name: [getattr(sample, name) for sample in history.samples] for name in MemorySample.__struct_fields__
            },
        }

    def recent_memory(self) -> dict[str, list[float]]:
        """Bytes over the last ten minutes."""
        recent = list(self._recent)
        return {"time": [round(when, 1) for when, _ in recent], "bytes": [count for _, count in recent]}

    def _run(self) -> None:
        try:
            saved_at = float("-inf")
            while not self._stopped.is_set():
                if self._noted.is_set() or time.monotonic() - saved_at >= SAVE_SECONDS:
                    self._noted.clear()
                    self._save()
                    saved_at = time.monotonic()
                    self._stopped.wait(_REST_SECONDS)
                self._noted.wait(LOOK_SECONDS)
                self._look()
            self._save()
        except Exception as error:
            self._file.give_up(f"a bug: {error!r}")
            self._log.exception(
                "the history is not kept any more", meaning="checkpoints and tables are not touched by it"
            )

    def _look(self) -> None:
        memory = resident_bytes()
        self._recent.append((time.time(), memory))
        self._peak = max(self._peak, memory)

    def _save(self) -> None:
        self._sample()
        with self._changing:
            history = self._history
        self._file.write(history)

    def _sample(self) -> None:
        now, items = time.time(), self._items()
        memory, self._peak = max(self._peak, resident_bytes()), 0  # a checkpoint's peak would be over by now
        with self._changing:
            past = histories.as_of(self._history, now)
            forgotten = len(self._history.checkpoints) - len(past.checkpoints)
            self._began = min(self._began, now)  # it stays where a clock that was set back has put it
            past = past.running(self._began, now)
            if items is not None:
                past = past.with_sample(MemorySample(int(now), memory, items))
            self._history = histories.fit_history(past, now)
        if forgotten:
            self._log.warning("the clock was set back", forgotten_checkpoints=forgotten)
