"""The engine of conversions: any source into any destination; see `base`.

A conversion goes through three stages, each of which is on disk before the next begins. `WRITING`: episodes go to the sink; every
few seconds it syncs, and how far it is gets saved. `READ`: all episodes are with the sink, which completes the dataset. `WRITTEN`:
the dataset is whole, and compared with the source where that is asked for; it gets its final name. A conversion that is begun again
goes on from what was saved last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds2reverb.destinations.account import Account
from rlds2reverb.destinations.base import Sink
from rlds2reverb.destinations.flags import lost_flags
from rlds2reverb.destinations.guarding import check_apart, check_free, checked_path
from rlds2reverb.destinations.job import Job
from rlds2reverb.destinations.place import Place, opened
from rlds2reverb.destinations.reading import Judged, read_by, read_here
from rlds2reverb.destinations.report import ConvertReport
from rlds2reverb.destinations.taking import Readers, Taken
from rlds2reverb.destinations.verifying import verify
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ConfigError, SourceError, WriteError
from rlds2reverb.files import write_error
from rlds2reverb.identity import Occurrences
from rlds2reverb.sources.base import episodes_of, remarks_of
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import Endings
from rlds2reverb.validation.endings_state import endings_of, state_of
from rlds2reverb.validation.holdings import duplicates_remark
from rlds2reverb.validation.policy import RAISE
from rlds2reverb.wording import counted

WRITING, READ, WRITTEN = "writing", "read", "written"
SYNC_SECONDS = 5.0
"""How often all is put on disk while episodes are written."""

Tell = Callable[[Account, int | None], object]
"""Hears of the account after every episode; and how many were compared, once they are compared and not written any more."""


class Converter:
    """One conversion.

    Args:
      job: what is converted.
      overwrite: replace what is at the final place, when all is done.
      restart: begin anew, whatever an earlier run has done.
      verifies: read back what was written, and compare.
      tell: see `Tell`.
      readers: who reads, judges and encodes the episodes; None for this process.
    """

    def __init__(
        self,
        job: Job,
        *,
        overwrite: bool = False,
        restart: bool = False,
        verifies: bool = False,
        tell: Tell = lambda *_: None,
        readers: Readers | None = None,
    ) -> None:
        self._job, self._overwrite, self._restart, self._verifies = job, overwrite, restart, verifies
        self._tell, self._readers = tell, readers
        self._preparer = job.ready.preparer()
        self._account = Account(self._preparer.policy)
        self._account.losses.of_all = job.losses
        self._began = time.monotonic()
        self._identity: dict[str, Any] = {}
        self._endings = Endings()
        self._verified: int | None = None
        self._kept = 0
        self._last = ""
        self._names = Occurrences()

    def report(self) -> ConvertReport:
        """The account so far."""
        readers = self._readers
        of_readers = () if readers is None else readers.remarks
        return replace(
            self._account.report(),
            source=self._job.source.name,
            destination=self._job.destination.name,
            path=str(self._job.destination.path),
            remarks=(
                *dict.fromkeys((*remarks_of(self._job.source), *of_readers)),
                *(() if self._account.episodes_resumed else duplicates_remark(self._names.copies)),
            ),
            encoded=self._job.encoded,
            seconds=time.monotonic() - self._began,
            verified=self._verified,
            episodes_kept=self._kept,
            workers=0 if readers is None else readers.workers,
            parts_again=0 if readers is None else readers.parts_again,
        )

    def run(self) -> ConvertReport:
        """Converts, from the beginning or from where an earlier run was stopped.

        Raises:
          ConfigError: the final place is taken, or is where the source is; an earlier run was another conversion, or another process is at it.
          InvalidEpisode: a bad episode and on_invalid="raise".
          SourceError: the source cannot be read, or nothing of it is left to be written.
          ConversionError: a loss that is not allowed, or what was written is not what was read.
          WriteError: the disk is full, say. With `restart` off, the same conversion goes on behind what is on disk.
        """
        path = checked_path(self._job.destination.path)
        check_apart(path, self._job.places)
        if not Place(path).folder.exists():
            self._check_free(path)
        with opened(path) as place:
            try:
                self._run(place)
            except BaseException as error:
                if not place.is_begun:
                    place.discard()
                if isinstance(error, OSError) and error.errno is not None and not isinstance(error, WriteError):
                    raise self._unwritten(path, error) from error
                raise
            place.discard()
        return replace(self.report(), episodes_kept=0)

    def _unwritten(self, path: Path, error: OSError) -> WriteError:
        file = "" if error.filename is None else f" ({os.fsdecode(error.filename)})"
        kept = (
            f"the {counted(self._kept, 'episode')} that are on disk stay"
            if self._kept
            else "nothing of it is kept, and what was there before stays"
        )
        way_out = f"{kept}. Make room there and convert again, or convert into another folder"
        return write_error(f"{path}{file}", error, way_out)

    def _run(self, place: Place) -> None:
        saved = None if self._restart else place.saved()
        self._identity = self._job.identity()
        if saved is not None and self._is_done(place, saved):
            if not self._odd(saved):
                self._complete(place, saved)
                return
            place.discard_work()
            saved = None
        if saved is None or not self._has_work(place, saved):
            saved = None
            place.put_back()
        self._check_free(place.path)
        if saved is None:
            place.begin()
        else:
            self._go_on(saved)
        stage = WRITING if saved is None else saved["stage"]
        if stage != WRITTEN:
            self._write(place, stage, None if saved is None else saved["sink"])
        self._publish(place)

    def _check_free(self, path: Path) -> None:
        check_free(self._job.destination, path, self._overwrite)

    @staticmethod
    def _is_done(place: Place, saved: dict[str, Any]) -> bool:
        """Whether the dataset is at its place already."""
        return saved["stage"] == WRITTEN and place.is_published(saved["is_file"])

    @staticmethod
    def _has_work(place: Place, saved: dict[str, Any]) -> bool:
        """Whether what was saved of is still there."""
        return place.holds(saved["is_file"]) if saved["stage"] == WRITTEN else place.work.exists()

    def _complete(self, place: Place, saved: dict[str, Any]) -> None:
        """The end of a conversion whose dataset is at its place."""
        self._account.restore(saved["account"])
        self._account.episodes_resumed = self._account.episodes_read
        if self._verifies:
            self._verify(place.path)

    def _odd(self, saved: dict[str, Any]) -> str:
        """In what a conversion that was saved is another one; "" when it is this one."""
        before, now = saved["identity"], self._identity
        odd = [name for name in now if before.get(name) != now[name]]
        if odd:
            return f"with another {' and another '.join(odd)}"
        was, choice = saved["choice"], self._job.choice
        if was != choice and not (was["on_invalid"] == RAISE and set(was["allow"]) <= set(choice["allow"])):
            return "with another policy of bad episodes"
        return ""

    def _go_on(self, saved: dict[str, Any]) -> None:
        """Takes up what was saved.

        Raises:
          ConfigError: it is of another conversion.
        """
        if odd := self._odd(saved):
            raise self._another(odd)
        self._account.restore(saved["account"])
        self._account.episodes_resumed = self._account.episodes_read
        self._kept = self._account.episodes_written
        self._endings, self._last = endings_of(saved["endings"]), saved["last"]

    def _left(self) -> Iterable[Episode]:
        """The episodes that have not been read.

        Raises:
          ConfigError: those that have been were others.
        """
        read = self._account.episodes_read
        if not read:
            return self._job.source
        episodes = episodes_of(self._job.source, read - 1)
        last = next(episodes, None)
        if last is None or last.id != self._last:
            raise self._another("with another source: the last episode that was read is another")
        return episodes

    def _another(self, how: str) -> ConfigError:
        return ConfigError(
            f"{self._job.destination.path}: a conversion was begun {how}, and stopped; run that one again to have it completed, or begin "
            "anew with restart=True (--restart)"
        )

    def _write(self, place: Place, stage: str, state: Any) -> None:
        with closing(self._job.destination.sink(place.work, self._job.content, state)) as sink:
            try:
                if stage == WRITING:
                    self._copy(place, sink)
            except BaseException:
                with suppress(OSError):
                    sink.close()
                raise
            if not self._account.episodes_written:
                place.discard()
                raise SourceError(
                    f"{self._job.source.name}: no episode is left to be written; {self._account.rejections}"
                )
            sink.finish()
        place.seal()

    def _copy(self, place: Place, sink: Sink) -> None:
        """Reads the source to its end."""
        synced_at = time.monotonic()

        def clear(endings: Endings) -> None:
            nonlocal synced_at
            self._endings = endings
            if time.monotonic() - synced_at >= SYNC_SECONDS:
                self._save(place, WRITING, sink.sync())
                synced_at = time.monotonic()

        with closing(self._episodes(clear)) as every:
            for one, found in every:
                self._take(sink, one, found)
                self._tell(self._account, None)
        self._save(place, READ, sink.sync())

    def _episodes(self, clear: Callable[[Endings], object]) -> Judged:
        left = self._left()
        if self._readers is None:
            return read_here(self._job, left, self._endings, clear)
        return read_by(self._readers, self._account.episodes_read, self._endings, clear)

    def _take(self, sink: Sink, one: Taken, found: list[Problem]) -> None:
        account = self._account
        account.count_read(one.steps)
        self._names.count(one.id)
        self._last = one.id
        try:
            accepted = one.accepted(self._preparer, found)
        except Exception:
            account.steps_rejected += one.steps
            raise
        if accepted is None:
            account.steps_rejected += one.steps
            return
        written = accepted()
        losses = list(sink.write(written.encoded))
        losses += lost_flags(written.odd_flags, (*self._job.losses, *losses))
        losses += self._job.lost_pixels(written.jpeg)
        self._job.check_losses(losses, f"episode {one.title}")
        account.count_written(written, losses)

    def _save(self, place: Place, stage: str, state: Any, **more: Any) -> None:
        place.save(
            {
                "identity": self._identity,
                "choice": self._job.choice,
                "stage": stage,
                "account": self._account.as_state(),
                "endings": state_of(self._endings),
                "sink": state,
                "last": self._last,
                **more,
            }
        )
        self._kept = self._account.episodes_written

    def _publish(self, place: Place) -> None:
        is_file = place.is_file
        if self._verifies:
            self._verify(place.result)
        self._save(place, WRITTEN, None, is_file=is_file)
        self._check_free(place.path)
        place.publish(is_file)

    def _verify(self, path: Path) -> None:
        self._verified = 0
        self._verified = verify(self._job, path, self._account.losses, self._compared)

    def _compared(self, number: int, _: Episode) -> None:
        self._verified = number
        self._tell(self._account, number)
