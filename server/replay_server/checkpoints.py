"""Writing checkpoints of a running server: on request, on a schedule, at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from replay_server.fitting import items_by_table
from replay_server.generations import Generation, Generations
from replay_server.logs import logger
from replay_server.records import CheckpointError
from rlds2reverb.errors import Rlds2ReverbError


@dataclass(frozen=True)
class CheckpointState:
    """What is known of the checkpoints; replaced as a whole when it changes.

    Attributes:
      last: the newest generation, restored or written.
      writing_since: Unix time, while one is being written; inserts and samples wait then.
      failures: how many could not be written since the start.
      last_error: of the newest failure, "" when one has succeeded since.
    """

    last: Generation | None = None
    writing_since: float | None = None
    failures: int = 0
    last_error: str = ""


class CheckpointWriter:
    """Has Reverb write checkpoints and keeps them as generations; one at a time, from any thread.

    Args:
      generations: where they are kept.
      request: has Reverb write one, returns the folder; raises `Rlds2ReverbError`.
    """

    def __init__(self, generations: Generations, request: Callable[[], str]) -> None:
        self._generations, self._request = generations, request
        self._one_at_a_time = threading.Lock()
        self._log = logger("checkpoints")
        self.state = CheckpointState()

    def restored(self, generation: Generation | None) -> None:
        """Notes which generation the server has started from."""
        self.state = CheckpointState(last=generation)

    def write(self, reason: str) -> Generation:
        """Writes one and waits for it; a second caller waits for the first, then writes its own.

        Raises:
          CheckpointError: Reverb could not write it, or what it wrote is not valid.
        """
        with self._one_at_a_time:
            began = time.time()
            self.state = replace(self.state, writing_since=began)
            try:
                generation = self._write(began)
            except (Rlds2ReverbError, OSError) as error:
                failures = self.state.failures + 1
                self.state = replace(self.state, writing_since=None, failures=failures, last_error=str(error))
                self._log.error("checkpoint failed", reason=reason, error=str(error), failures=failures)
                if isinstance(error, CheckpointError):
                    raise
                raise CheckpointError(f"checkpoint: {error}") from error
            self.state = replace(self.state, last=generation, writing_since=None, last_error="")
            self._log.info(
                "checkpoint written",
                reason=reason,
                generation=generation.number,
                items=sum(generation.manifest.items.values()),
                bytes=generation.bytes,
                seconds=round(generation.manifest.seconds, 3),
            )
            return generation

    def _write(self, began: float) -> Generation:
        path = Path(self._request())
        generation = self._generations.adopt(path, items_by_table(path), began)
        for old in self._generations.prune():
            self._log.debug("generation removed", generation=old.name)
        return generation


class Schedule:
    """Writes a checkpoint every so many seconds, in a thread of its own, until `stop`.

    Args:
      writer: writes them; a failure is logged there, and the next one is tried in its turn.
      every_seconds: from the end of one to the start of the next.
    """

    def __init__(self, writer: CheckpointWriter, every_seconds: float) -> None:
        self._writer, self._every_seconds = writer, every_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Starts the clock."""
        self._thread.start()

    def stop(self) -> None:
        """No further one is begun; one being written goes on."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            try:
                self._writer.write("schedule")
            except CheckpointError:
                continue  # logged and counted by the writer
