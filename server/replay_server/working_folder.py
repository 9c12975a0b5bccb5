"""Reverb's working folder: finished entries are taken out before Reverb deletes them, unfinished ones are removed.

```
FOLDER/reverb/TIME/   an entry for each checkpoint that was requested of Reverb, by this service or a client
FOLDER/taken/TIME/    the same files under second names, of which a checkpoint is made; with DONE once all are there
```

How Reverb writes an entry (read in tfrecord_checkpointer.cc, observed in dm-reverb 0.14): its name is the time at which it
began. It writes the tables, the items, the chunks, one after the other, then DONE. Then it deletes every entry but the one
with the last name. When another call is still writing that one, Reverb deletes what it has just finished, and returns its
path all the same; two that finish at the same moment meet in the same entry, and one fails with NOT_FOUND. So does a call
whose entry another has deleted meanwhile. A call that fails leaves its entry behind.

So files are given second names while they are written: such a link is the file itself, whatever is written to it later, and
outlives the first name. Where the file system has no links, the whole entry is renamed once it is finished.

An entry that became a checkpoint has the checkpoint's number in its DONE, which is empty otherwise: a folder that is moved,
or whose checkpoints an operator has put away, does not get it a second time. Written in place, it can disturb no call that
is about to delete the entry.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from replay_server.errors import CheckpointError
from replay_server.files import DONE, RECORD_FILES, as_of, sync

QUIET_SECONDS = 1.0
"""An entry without DONE or open files is left over when nothing happened in it for so long: Reverb has none open for some
milliseconds between two files."""

_ENTRY = re.compile(r"\d{4}-\d\d-\d\dT[\d:.+-]+")
_OPEN_FILES = Path("/proc/self/fd")
_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.0005, 0.05


class WorkingFolder:
    """The entries of one server's folder. Reverb must run in this process: its open files show which entry is being written.

    Not thread-safe, but for the thread of `holding`.

    Attributes:
      last_adopted: name of the entry that became a checkpoint last, "" for none since the start.
    """

    def __init__(self, reverb: Path, taken: Path) -> None:
        self._reverb, self._taken = reverb, taken
        self._adopted: set[str] = set()
        self._ahead: dict[str, tuple[float, float]] = {}  # name -> last change, in the future; monotonic since when
        self.last_adopted = ""

    def entries(self) -> dict[str, bool]:
        """Name -> whether it is finished, for each entry that Reverb has in its folder now; adopted ones are left out."""
        is_whole = {path.name: (path / DONE).is_file() for path in _entries(self._reverb)}
        return {name: done for name, done in is_whole.items() if not self._is_adopted(name)}

    def list_finished(self) -> list[str]:
        """Names of the entries that were finished and not adopted, newest first."""
        taken = {path.name for path in _entries(self._taken) if (path / DONE).is_file()}
        here = {name for name, done in self.entries().items() if done}
        return sorted((taken | here) - self._adopted, reverse=True)

    def list_finished_after(self, when: float) -> list[str]:
        """Finished entries whose tables are newer than this time, see `as_of`."""
        return [name for name in self.list_finished() if as_of(self.place(name)) > when]

    def place(self, name: str) -> Path:
        """Where a finished entry is."""
        taken = self._taken / name
        return taken if (taken / DONE).is_file() else self._reverb / name

    @contextmanager
    def holding(self, guard: Callable[[], None] = lambda: None) -> Iterator[set[str]]:
        """Inside the block every file of an entry begun there gets a second name as soon as Reverb makes it.

        Args:
          guard: raises `CheckpointError` when the folder is another server's by now; nothing is held from then on.

        Yields:
          The names of the entries from before, also of those that only `taken` has: Reverb may have deleted the first name.
        """
        before = {path.name for folder in (self._reverb, self._taken) for path in _entries(folder)}
        ended = threading.Event()

        def hold() -> None:
            # The next look comes after a small part of the time so far: the chunks take more than that.
            began, wait = time.monotonic(), _SHORTEST_WAIT_SECONDS
            while not ended.wait(wait):
                begun = [path.name for path in _entries(self._reverb) if path.name not in before]
                try:
                    if begun:
                        guard()
                except CheckpointError:
                    return
                for name in begun:
                    self._link(name)
                wait = min(max((time.monotonic() - began) / 16, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)

        thread = threading.Thread(target=hold, name="holding", daemon=True)
        thread.start()
        try:
            yield before
        finally:
            ended.set()
            thread.join()

    def take(self, name: str, confirmed: bool = False) -> Path | None:
        """Makes `taken/NAME` complete: with DONE, it outlives a kill and whatever Reverb deletes.

        Args:
          confirmed: Reverb has said that it finished the entry; otherwise its DONE must be there.

        Returns:
          The folder, or None: the entry is not finished, lacks a file, or Reverb has deleted it.
        """
        source, target = self._reverb / name, self._taken / name
        if _has(target, *RECORD_FILES, DONE):
            return target
        if not confirmed and not (source / DONE).is_file():
            return None
        if self._link(name) or _has(target, *RECORD_FILES):
            (target / DONE).touch()
            sync(target)
            return target
        if not _has(source, *RECORD_FILES, DONE):
            return None
        with suppress(OSError):
            shutil.rmtree(target, ignore_errors=True)
            source.rename(target)
        return target if _has(target, *RECORD_FILES, DONE) else None

    def note_adopted(self, name: str, number: int) -> None:
        """Notes that an entry is a checkpoint now. Older ones that waited to become one need not any more."""
        self._adopted.add(name)
        self.last_adopted = name
        with suppress(OSError):
            self._adopted |= {path.name for path in _entries(self._taken) if (path / DONE).is_file()}
        with suppress(OSError):  # Reverb has deleted it, or the disk is full: then the set above must do until the end
            descriptor = os.open(self._reverb / name / DONE, os.O_WRONLY)
            try:
                # Reverb writes an empty DONE. One with a number says after a restart, too, that the entry was adopted.
                os.write(descriptor, f"{number:06d}\n".encode())
            finally:
                os.close(descriptor)

    def make_room(self) -> list[str]:
        """Removes the entries without DONE, at a start, when Reverb writes nothing; returns which."""
        unfinished = [p for folder in (self._reverb, self._taken) for p in _entries(folder) if not (p / DONE).exists()]
        for path in unfinished:
            shutil.rmtree(path, ignore_errors=True)
        return sorted({path.name for path in unfinished})

    def discard(self, name: str) -> None:
        shutil.rmtree(self._taken / name, ignore_errors=True)
        self._remove(name)

    def tidy(self, wait: bool = False) -> list[str]:
        """Removes unfinished entries, adopted ones, and second names of unfinished ones; returns the names of the first.

        What a call is writing at this moment stays, and what it may be about to delete: Reverb fails a call that cannot.

        Args:
          wait: waits until entries that look left over have been so for `QUIET_SECONDS`.
        """
        waiting = [name for name in self.list_finished() if _has(self._taken / name, *RECORD_FILES, DONE)]
        for path in _entries(self._taken):
            if path.name not in waiting[:1]:  # each takes as much room as a checkpoint
                shutil.rmtree(path, ignore_errors=True)
        end = time.monotonic() + 2 * QUIET_SECONDS
        removed = self._remove_left()
        while wait and self._may_be_left() and time.monotonic() < end:
            time.sleep(QUIET_SECONDS / 20)
            removed += self._remove_left()
        if not self.entries():  # else Reverb deletes the adopted ones with the next that it finishes
            adopted = [path.name for path in _entries(self._reverb) if self._is_adopted(path.name)]  # one may be new
            self._adopted = {name for name in adopted if not self._remove(name)}
        return removed

    def _is_adopted(self, name: str) -> bool:
        if name in self._adopted:
            return True
        try:
            return (self._reverb / name / DONE).stat().st_size > 0
        except OSError:
            return False

    def _link(self, name: str) -> bool:
        """Gives second names to what is there; whether all files have one."""
        target = self._taken / name
        try:
            target.mkdir(exist_ok=True)
            for file in RECORD_FILES:
                with suppress(FileExistsError):
                    os.link(self._reverb / name / file, target / file)
        except OSError:  # not there yet, deleted, no links here, or a full disk
            return False
        return True

    def _may_be_left(self) -> set[str]:
        """Entries without DONE of which no file is open in this process."""
        unfinished = {path.name for path in _entries(self._reverb) if not (path / DONE).exists()}
        if not unfinished:
            return unfinished
        inside, written = f"{os.path.realpath(self._reverb)}/", set()
        for path in _OPEN_FILES.iterdir():
            with suppress(OSError):
                target = str(path.readlink())
                if target.startswith(inside):
                    written.add(target[len(inside) :].partition("/")[0])
        return unfinished - written

    def _is_quiet(self, name: str) -> bool:
        entry = self._reverb / name
        try:
            changed = max(path.stat().st_mtime for path in (entry, *entry.iterdir()))
        except OSError:
            changed = time.time()
        if changed <= time.time():
            return time.time() - changed > QUIET_SECONDS
        before, since = self._ahead.get(name, (0.0, 0.0))  # the clock was set back: its times say nothing
        if before != changed:
            self._ahead[name] = changed, time.monotonic()
            return False
        return time.monotonic() - since > QUIET_SECONDS

    def _remove_left(self) -> list[str]:
        """Removes nothing when a call has just finished: it may be deleting the very same entries."""
        if any(finished and not self._is_quiet(name) for name, finished in self.entries().items()):
            return []
        return [name for name in sorted(self._may_be_left()) if self._is_quiet(name) and self._remove(name)]

    def _remove(self, name: str) -> bool:
        """Renamed first: a call of Reverb that lists the folder meanwhile does not meet half an entry."""
        target = self._taken / f"{name}.removed"
        try:
            (self._reverb / name).rename(target)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        shutil.rmtree(target, ignore_errors=True)
        return True


def _entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if _ENTRY.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []


def _has(folder: Path, *names: str) -> bool:
    return all((folder / name).is_file() for name in names)
