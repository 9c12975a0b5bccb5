"""The engine of conversions: any source into any destination; see `base`.

A conversion goes through three stages, each of which is on disk before the next begins. `WRITING`: episodes go to the sink; every
few seconds it syncs, and how far it is gets saved. `READ`: all episodes are with the sink, which completes the dataset. `WRITTEN`:
the dataset is whole, and compared with the source where that is asked for; it gets its final name. A conversion that is begun again
goes on from what was saved last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlds2reverb.conversion.job import Account, Job, Judged, Readers, Taken, job_of, read_by, read_here
from rlds2reverb.conversion.place import Place, check_apart, check_free, checked_path, label_of, opened, places_of
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.conversion.verify import verify
from rlds2reverb.conversion.workers import ByWorkers
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, SourceError, WriteError, keep_report, reason_of
from rlds2reverb.files import write_error
from rlds2reverb.fleet.processes import executor_of
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Destination, Sink, lost_flags
from rlds2reverb.formats.source import episodes_of, first_episodes, notices_of
from rlds2reverb.formats.transform import transformed
from rlds2reverb.identity import Occurrences
from rlds2reverb.prepare.column_stats import duplicates_notice
from rlds2reverb.prepare.endings import Endings, endings_of, state_of
from rlds2reverb.prepare.options import EpisodeOptions, split_options
from rlds2reverb.prepare.policy import RAISE
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.push.options import check_workers, ignored
from rlds2reverb.push.report import Progress
from rlds2reverb.text import counted

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
        of_readers = () if readers is None else readers.notices
        return replace(
            self._account.report(),
            source=self._job.source.name,
            destination=self._job.destination.name,
            path=str(self._job.destination.path),
            notices=(
                *dict.fromkeys((*notices_of(self._job.source), *of_readers)),
                *(() if self._account.episodes_resumed else duplicates_notice(self._names.copies)),
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


# Any source into any destination: what `rlds2reverb.convert` and the command line take, made into a job for the engine.

_ONE_SPEC = ("missing_column", "shape", "dtype")
"""Codes of episodes that do not fit the dataset's spec, which all episodes of a file must."""

_TELL_SECONDS = 0.25


@dataclass(frozen=True)
class ConvertOptions:
    """What a conversion is told beside what episodes are to be (`EpisodeOptions`). Each field is a keyword of `convert`.

    Attributes:
      limit: convert at most so many episodes.
      overwrite: replace what is at the destination, when all is done; else it is refused.
      restart: begin anew, whatever an earlier run of this or another conversion into this place has done.
      decode: decode images also where the source and the destination could both hold the bytes of their files.
      verify: read back what was written, and compare it with the source, before it gets its name.
      allow_loss: codes of losses that `strict` lets pass; "all" of them.
      workers, ray: as for a push: processes that read, judge and encode parts of the source, while this one writes in order.
      on_progress: called a few times per second.

    Raises:
      ConfigError: a limit or workers below 1, or an address that is none.
    """

    _: KW_ONLY
    limit: int | None = None
    overwrite: bool = False
    restart: bool = False
    decode: bool = False
    verify: bool = False
    allow_loss: Sequence[str] = ()
    workers: int | None = None
    ray: str | None = None
    on_progress: Callable[[Progress], object] = field(default=ignored, compare=False)

    def __post_init__(self) -> None:
        if self.limit is not None and (
            isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1
        ):
            raise ConfigError(f"limit (--limit) {self.limit}: expected at least 1 episode, a whole number")
        if isinstance(self.allow_loss, str):
            raise ConfigError(f'allow_loss "{self.allow_loss}": expected several codes, such as allow_loss=["all"]')
        check_workers(self.workers, self.ray)


def convert(source: Any, destination: str | Destination, **options: Any) -> ConvertReport:
    """Writes a dataset in another format: `rlds2reverb.convert("d4rl:hopper.hdf5", "tfds:/data/hopper")`.

    The dataset appears at its place when all of it is written. A conversion that was stopped, however, goes on when it is called again.
    Images stay the bytes of their files where source and destination can hold these, and `decode` is not set.

    Args:
      source: anything that `open_source` takes.
      destination: a name such as "tfds:/data/my_set"; docs/convert.md has them all.
      options: the fields of `ConvertOptions`, and those of `EpisodeOptions`: on_invalid, quarantine, allow,
        strict, terminal_discount, last_reward, last_observation, encoded, transform. `strict` also refuses losses.

    Raises:
      ConfigError: an option that is none of these or makes no sense; or the place is taken.
      SourceError: the source cannot be opened or read, or nothing of it is left to be written.
      InvalidEpisode: a bad episode, and the policy is to stop.
      ConversionError: a loss that is not allowed, or what was written is not what was read.
      WorkersLost: with workers, those of one part were killed or lost again and again.
      WriteError: the disk is full, say; the message names the file, and what stays. It is an OSError, too.
    """
    return planned(source, destination, **options).run()


class Conversion:
    """A conversion that is known to make sense; made by `planned`.

    Attributes:
      job: what is converted.
    """

    def __init__(
        self, job: Job, episodes: EpisodeOptions, options: ConvertOptions, count: int | None, readers: ByWorkers | None
    ) -> None:
        self.job, self._episodes, self._options, self._count, self._readers = job, episodes, options, count, readers
        self._told_at = 0.0
        self._compares_since: float | None = None
        self._began = time.monotonic()

    def run(self) -> ConvertReport:
        """Converts. What stops it has the account up to there as its attribute `report`.

        Raises:
          ConfigError, SourceError, InvalidEpisode, ConversionError, WriteError: as `convert`.
        """
        options = self._options
        converter = Converter(
            self.job,
            overwrite=options.overwrite,
            restart=options.restart,
            verifies=options.verify,
            tell=self._tell,
            readers=self._readers,
        )
        try:
            return self._completed(converter.run())
        except BaseException as error:
            keep_report(error, replace(self._completed(converter.report()), stopped=reason_of(error)))
            raise

    def _completed(self, report: ConvertReport) -> ConvertReport:
        return replace(report, transform=self._episodes.chosen_transform.as_dict())

    def _tell(self, account: Account, compared: int | None) -> None:
        now = time.monotonic()
        if compared is not None and self._compares_since is None:
            self._compares_since = now
        if now - self._told_at < _TELL_SECONDS:
            return
        self._told_at = now
        self._options.on_progress(self._progress(account, compared, now))

    def _progress(self, account: Account, compared: int | None, now: float) -> Progress:
        if compared is None or self._compares_since is None:
            return Progress(account.episodes_read, account.steps_read, self._count, 0, account.bytes, now - self._began)
        seconds = now - self._compares_since
        return Progress(compared, 0, account.episodes_written, 0, 0, seconds, doing="verifying")


def planned(source: Any, destination: str | Destination, **options: Any) -> Conversion:
    """Opens both sides, and refuses what makes no sense; nothing is written.

    Arguments and errors as `convert`.
    """
    chosen, episodes = _split(options)
    job = _job(source, destination, chosen, episodes)
    readers = None
    if chosen.workers is not None or chosen.ray is not None:
        opens = partial(_job, source, destination, replace(chosen, on_progress=ignored), episodes.silent())
        readers = ByWorkers(job, opens, executor_of(chosen.workers, chosen.ray))
    return Conversion(job, episodes, chosen, job.source.episode_count, readers)


def _job(source: Any, destination: str | Destination, chosen: ConvertOptions, episodes: EpisodeOptions) -> Job:
    """The job of a conversion, in this process or in a worker."""
    target = open_destination(destination) if isinstance(destination, str) else destination
    recorded = open_source(source)
    return job_of(
        transformed(first_episodes(recorded, chosen.limit), episodes.chosen_transform),
        target,
        episodes,
        () if chosen.decode else episodes.encoded_paths or None,
        allowed_losses=chosen.allow_loss,
        places=places_of(source, recorded),
        source_label=label_of(source, recorded),
        label=f"{episodes.data_label}|limit={chosen.limit}",
    )


def _split(options: dict[str, Any]) -> tuple[ConvertOptions, EpisodeOptions]:
    chosen, episodes = split_options(ConvertOptions, "convert", options)
    if chosen.decode and episodes.encoded_paths:
        raise ConfigError("decode (--decode) and encoded (--encoded) contradict each other: leave one of them out")
    if refused := sorted(set(episodes.allow) & set(_ONE_SPEC)):
        raise ConfigError(
            f"allow (--allow): {', '.join(refused)}: all episodes of a dataset have one spec, so it cannot be tolerated"
        )
    episodes.check_files()
    return chosen, episodes
