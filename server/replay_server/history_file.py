"""The history of a checkpoint folder, in a small file beside the checkpoints.

```
FOLDER/HISTORY.json           see `history`; replaced as a whole
FOLDER/HISTORY.json.partial   while that is done
```

It is of use and never in the way: what goes wrong with it is told, and neither a checkpoint nor the service fails.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from replay_server.errors import CheckpointError
from replay_server.history import MOST_BYTES, History, Written, decode, encode
from replay_server.logs import logger
from replay_server.reading import read_small, stands_at
from replay_server.record_files import sync_folder, write_synced
from replay_server.store import CheckpointStore

HISTORY = "HISTORY.json"

_PARTIAL = f"{HISTORY}.partial"


def newest_checkpoint(folder: Path) -> Written | None:
    """The newest checkpoint that a checkpoint folder should have, as its history knows; None where that cannot be told."""
    try:
        return decode(read_small(folder / HISTORY, MOST_BYTES)).newest_checkpoint()
    except CheckpointError:
        return None


class HistoryFile:
    """The file of one server's folder.

    Args:
      store: of the folder; its guard is asked before each change.

    Attributes:
      problem: why it is not written, "" when it is.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store, self.path = store, store.folder / HISTORY
        self.problem = ""
        self._is_in_the_way = False
        self._log = logger("history")

    def read(self) -> History:
        """What the servers before have left; empty when nothing. What is damaged, or cannot be read, is set aside."""
        try:
            if not stands_at(self.path):
                return History()
            return decode(read_small(self.path, MOST_BYTES))
        except CheckpointError as error:
            self._set_aside(str(error))
            return History()

    def write(self, history: History) -> None:
        """Puts this one in its place."""
        if self._is_in_the_way:
            return
        try:
            self._write(encode(history))
        except (CheckpointError, OSError) as error:
            self._tell(f"{self.path}: cannot be written ({error})")
        else:
            self._tell("")

    def give_up(self, problem: str) -> None:
        """Writes no more, and says why."""
        self._is_in_the_way = True
        self._tell(problem)

    def _write(self, data: bytes) -> None:
        partial = self.path.with_name(_PARTIAL)
        self._store.guard()
        try:
            write_synced(partial, data)
            self._store.guard()
            partial.replace(self.path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)  # a full disk needs the room
            raise
        sync_folder(self.path.parent)

    def _set_aside(self, reason: str) -> None:
        try:
            place = self._store.set_aside(self.path, "damaged")
        except (CheckpointError, OSError) as error:
            self._is_in_the_way = True
            self._tell(f"{self.path}: cannot be read ({reason}), and not be moved away ({error})")
            return
        self._log.warning("history set aside", path=str(place), reason=reason, meaning="that of before is not shown")

    def _tell(self, problem: str) -> None:
        if problem and not self.problem:
            self._log.warning("the history is not kept", problem=problem)
        self.problem = problem
