"""Any source into any destination: `rlds2reverb.convert`, and `rlds2reverb convert` on the command line.

A conversion has three stages, each of which is on disk before the next begins. `WRITING`: episodes go to the sink; every few seconds it
syncs, and the progress is saved. `READ`: all episodes are with the sink, which completes the dataset. `WRITTEN`: the dataset is whole,
is compared with the source where requested, and gets its final name. A restarted conversion continues from what was
saved last. `Conversion._convert` is the main loop; `place` knows the folders, `guarding` what they may not be, `job` prepares each episode, `verify` compares.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds2reverb.conversion.growing import (
    DUPLICATE,
    NAMES_FILE,
    TAKEN_FILE,
    Grown,
    Played,
    PlayedNames,
    check_kept,
    grown_job,
    is_there_to_grow,
    publish,
    settle,
    take_over,
)
from rlds2reverb.conversion.guarding import check_apart, check_free, check_path, label_of, places_of
from rlds2reverb.conversion.job import LOSSES, UNFIT, Account, Job, Read, job_of
from rlds2reverb.conversion.place import Place, open_place, place_of
from rlds2reverb.conversion.report import ALL, ConvertReport, Nearness
from rlds2reverb.conversion.verify import verify
from rlds2reverb.conversion.workers import ByWorkers
from rlds2reverb.episode import Episode, Notice, Occurrences, note
from rlds2reverb.errors import ConfigError, SourceError, StorageError, WriteError, keep_report, reason_of
from rlds2reverb.files import write_error
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Destination, Sink, lost_flags
from rlds2reverb.formats.filtered import filtered, share_findings
from rlds2reverb.formats.mapped import mapped
from rlds2reverb.formats.registry import DESTINATIONS
from rlds2reverb.formats.source import Source
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.interrupts import held_interrupts, noted_interrupts, raise_lost_interrupt
from rlds2reverb.keywords import command_option, refuse_unknown, takes_options
from rlds2reverb.prepare.endings import Endings, endings_of, state_of, with_problems_of_ends
from rlds2reverb.prepare.options import RAY, WORKERS, EpisodeKeywords, EpisodeOptions
from rlds2reverb.prepare.policy import RAISE
from rlds2reverb.prepare.preparation import duplicates_notice
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.progress import Progress, ignored
from rlds2reverb.text import counted, did_you_mean
from rlds2reverb.workers import check_workers
from rlds2reverb.workers.processes import choose_executor

if TYPE_CHECKING:
    from typing_extensions import Unpack

WRITING, READ, WRITTEN = "writing", "read", "written"
SYNC_SECONDS = 5.0
"""How often all is put on disk while episodes are written."""
_PROGRESS_SECONDS = 0.25

_ONE_SPEC = ("missing_column", "shape", "dtype")
"""Codes of episodes that do not fit the dataset's spec, which all episodes of a file must."""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(EpisodeOptions):
    """The options of a conversion: those of episodes, and a few more. Each field is a keyword of `convert`.

    Attributes:
      limit: the most episodes to convert.
      decode: decode images also where the source and the destination could both hold the bytes of their files.
      allow_loss: codes of losses that `strict` lets pass; "all" of them.
      workers, ray: as for a push: processes that read, judge and encode parts of the source, while this one writes in order.
      on_progress: called a few times per second.

    Raises:
      ConfigError: as `EpisodeOptions`; a limit or workers below 1, an empty address, or options that exclude each other.
    """

    strict: bool = field(
        default=False,
        metadata=command_option("Refuse advice (terminal_discount, last_reward, ...), and losses.", section="Bad data"),
    )
    encoded: str | Sequence[str] = field(
        default=(),
        metadata=command_option(
            'Path of an image column, or "all": fail unless the bytes of its JPEG or PNG files are kept. Without this option they are '
            "kept where both formats can.",
            metavar="PATH",
            section="Data",
        ),
    )
    limit: int | None = field(
        default=None, metadata=command_option("Read at most so many episodes.", least=1, section="Data")
    )
    overwrite: bool = field(
        default=False,
        metadata=command_option("Replace the dataset that is at DEST, when all is done.", section="Destination"),
    )
    append: bool = field(
        default=False,
        metadata=command_option(
            "Add to the dataset that is at DEST, if there is one; episodes that it has are left out, and counted as duplicate.",
            section="Destination",
        ),
    )
    restart: bool = field(
        default=False,
        metadata=command_option("Begin anew, whatever a run that was stopped has done.", section="Destination"),
    )
    decode: bool = field(
        default=False,
        metadata=command_option("Decode images also where both formats could hold the bytes of their files."),
    )
    verify: bool = field(
        default=False,
        metadata=command_option(
            "Read back what was written and compare it with SOURCE, before it appears at DEST.", section="Destination"
        ),
    )
    allow_loss: Sequence[str] = field(
        default=(),
        metadata=command_option('Losses that --strict lets pass, or "all".', metavar="CODE", section="Bad data"),
    )
    workers: int | None = field(default=None, metadata=WORKERS)
    ray: str | None = field(default=None, metadata=RAY)
    on_progress: Callable[[Progress], object] = field(default=ignored, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit is not None and (
            isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1
        ):
            raise ConfigError(f"limit (--limit) {self.limit}: expected at least 1 episode, a whole number")
        if isinstance(self.allow_loss, str):
            raise ConfigError(f'allow_loss "{self.allow_loss}": expected a list of codes, such as allow_loss=["all"]')
        check_workers(self.workers, self.ray)
        if self.append and self.overwrite:
            raise ConfigError(
                "append (--append) and overwrite (--overwrite) contradict each other: leave one of them out"
            )
        if self.decode and self.encoded_paths:
            raise ConfigError("decode (--decode) and encoded (--encoded) contradict each other: leave one of them out")
        if self.decode and self.chosen_transform.encode:
            raise ConfigError("decode (--decode) and encode (--encode) contradict each other: leave one of them out")
        if refused := sorted(set(self.allow) & set(_ONE_SPEC)):
            raise ConfigError(
                f"allow (--allow): {', '.join(refused)}: all episodes of a dataset have one spec, so it cannot be tolerated"
            )
        if UNFIT in self.allow:
            raise ConfigError(
                f"allow (--allow): {UNFIT}: what the format cannot hold cannot be tolerated; on_invalid=skip (--on-invalid skip) leaves such episodes out"
            )


class ConvertKeywords(EpisodeKeywords, total=False):
    """`ConvertOptions` as keywords."""

    limit: int | None
    overwrite: bool
    append: bool
    restart: bool
    decode: bool
    verify: bool
    allow_loss: Sequence[str]
    workers: int | None
    ray: str | None
    on_progress: Callable[[Progress], object]


@takes_options(ConvertOptions)
def convert(source: Any, destination: str | Destination, **options: Unpack[ConvertKeywords]) -> ConvertReport:
    """Writes a dataset in another format: `rlds2reverb.convert("d4rl:hopper.hdf5", "tfds:/data/hopper")`.

    The dataset appears at its place when all of it is written. A conversion that was stopped continues when it is called again.
    Images stay the bytes of their files where source and destination can hold these, and `decode` is not set.

    Args:
      source: anything that `open_source` takes.
      destination: a name such as "tfds:/data/my_set"; docs/convert.md has them all.
      options: the fields of `ConvertOptions`, by name. `strict` also refuses losses.

    Raises:
      ConfigError: an unknown option or code, or one that makes no sense; or the place is taken.
      SourceError: the source cannot be opened or read, or nothing of it is left to be written.
      InvalidEpisode: a bad episode, and the policy is to stop.
      ConversionError: a loss that is not allowed, or what was written is not what was read.
      WorkersLost: with workers, those of one part were killed or lost again and again.
      WriteError: the disk is full, say; the message names the file, and what stays. It is an OSError, too.
    """
    return planned(source, destination, **options).run()


class Conversion:
    """A validated conversion, made by `planned`; it runs once.

    Args:
      job: what is converted.
      options: of the conversion.
      readers: workers that read, judge and encode the episodes; None where this process does.
    """

    def __init__(self, job: Job, options: ConvertOptions, readers: ByWorkers | None = None) -> None:
        self.job, self._options, self._readers = job, options, readers
        self._preparer = job.ready.preparer()
        self._account = Account(self._preparer.policy)
        self._account.losses.of_all = job.losses
        self._names = Occurrences()
        self._identity: dict[str, Any] = {}
        self._endings = Endings()  # of the episodes so far
        self._last = ""  # the id of the episode that was read last
        self._grown: Grown | None = None  # the dataset that grows
        self._played: PlayedNames | None = None  # its episodes
        self._taken: PlayedNames | None = None  # those of the source that were recognised as one of these
        self._kept = 0  # episodes that are on disk for the next run
        self._verified: int | None = None
        self._verified_by: tuple[str, ...] = ()
        self._nearness: dict[str, Nearness] = {}
        self._began = self._progress_at = self._verify_began = self._upload_began = 0.0

    def run(self) -> ConvertReport:
        """Converts, from the beginning or from where an earlier run was stopped. An error that stops it has the report so far as its attribute `report`.

        Raises:
          ConfigError, SourceError, InvalidEpisode, ConversionError, WorkersLost, WriteError: as `convert`.
        """
        self._began = time.monotonic()
        is_complete = False
        try:
            path = check_path(self.job.destination.path)
            check_apart(path, self.job.places)
            place = place_of(self.job.destination, path, self._options.verify)
            if place.is_new:
                self._check_free(place)
            with noted_interrupts():
                # Filters are judged here: where they leave nothing, no folder is made.
                self._identity = self.job.identity()
            with noted_interrupts(), open_place(place), self._write_errors(path):
                try:
                    self._convert(place)
                except BaseException:
                    if not place.is_begun:
                        with suppress(StorageError):  # which is raised already
                            place.discard()
                    raise
                raise_lost_interrupt()
                with held_interrupts():
                    place.discard()
                    is_complete = True
        except BaseException as error:
            if is_complete:  # only an interrupt, which comes too late
                keep_report(error, replace(self.report(), episodes_kept=0))
            else:
                keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return replace(self.report(), episodes_kept=0)

    def _convert(self, place: Place) -> None:
        """The main loop: read, write, complete, verify, publish."""
        saved = None if self._options.restart else place.saved()
        is_whole = saved is not None and saved["stage"] == WRITTEN
        if saved is not None and is_whole and saved["grown"] is not None:
            settle(place, Grown(**saved["grown"]))
        if saved is not None and is_whole and place.is_published:
            if not self._difference(saved):
                self._restore(saved)
                self._grown = None if saved["grown"] is None else Grown(**saved["grown"])
                self._verify(place.path)
                return
            place.discard_work()
        if not (place.result if is_whole else place.work).exists():  # its data are not on disk any more
            saved = None
        if saved is None:
            place.put_back()
        self._check_free(place)
        if saved is None:
            place.begin()
        else:
            self._restore(saved)

        stage, state = (WRITING, None) if saved is None else (saved["stage"], saved["sink"])
        if self.job.old is not None:
            state = self._grow(place, self.job.old, saved)
        if stage != WRITTEN:
            with closing(self.job.destination.sink(place.work, self.job.content, state)) as sink:
                if stage == WRITING:
                    self._write_all(place, sink)
                if not self._account.episodes_written:
                    place.discard()
                    if self._account.policy.rejected[DUPLICATE]:
                        return  # all of it is there: the dataset stays as it is
                    raise SourceError(
                        f"{self.job.source.name}: no episode is left to be written; {self._account.rejections}"
                    )
                sink.finish()
            place.seal()

        if self._grown is not None and self.job.old is not None:
            check_kept(self.job, place.result, self.job.old, self._grown)
        self._verify(place.result)
        self._save(place, WRITTEN, None)
        self._check_free(place)  # once more: meanwhile somebody may have put something there
        if self._grown is None:
            place.publish(self._tell_sent)
        else:
            publish(place, self._grown)

    def _grow(self, place: Place, old: Source, saved: dict[str, Any] | None) -> Any:
        """Begins with all that the dataset has that grows, or goes on where an earlier run was; returns the state of the sink."""
        self._played = PlayedNames(place.folder / NAMES_FILE, 0 if saved is None else saved["names"])
        self._taken = PlayedNames(place.folder / TAKEN_FILE, 0 if saved is None else saved["taken"])
        if saved is not None:
            self._grown = Grown(**saved["grown"])
            self._played.take_all(self._taken)
            return saved["sink"]
        state, self._grown = take_over(self.job, old, place.work)
        self._played.add_there(Played.of(self.job).stored_names(old))
        return state

    def _write_all(self, place: Place, sink: Sink) -> None:
        synced_at = time.monotonic()

        def sync(endings: Endings) -> None:
            """Called when no episode that was read waits for later ones."""
            nonlocal synced_at
            self._endings = endings
            if time.monotonic() - synced_at >= SYNC_SECONDS:
                self._save(place, WRITING, sink.sync())
                synced_at = time.monotonic()

        try:
            with closing(self._read_rest(sync)) as every:
                for read, shown in every:
                    self._write(sink, read, shown)
                    self._tell_progress()
            self._save(place, READ, sink.sync())
        except BaseException:
            with suppress(OSError):
                sink.close()
            raise

    def _read_rest(self, sync: Callable[[Endings], object]) -> Generator[tuple[Read, list[Problem]], None, None]:
        """The unread episodes, each with the problems that show only in comparison with other episodes.

        Raises:
          ConfigError: the last episode read by the earlier run differs from the source's episode of that number.
        """
        read, source = self._account.episodes_read, self.job.source
        episodes: Iterable[Episode] = source
        if read and self.job.is_live:  # it goes on with episodes that are new
            episodes = source.episodes(read)
        elif read:
            episodes = source.episodes(read - 1)
            last = next(episodes, None)
            if last is None or last.id != self._last:
                raise self._another(
                    "with another source: the last episode that was read is another", is_of_episodes=True
                )
        reads = self.job.examine_all(self._preparer, episodes)
        with closing(reads if self._readers is None else self._readers.read(read)) as every:
            yield from with_problems_of_ends(every, endings=self._endings, on_clear=sync, ending=attrgetter("ending"))

    def _write(self, sink: Sink, read: Read, shown: list[Problem]) -> None:
        account = self._account
        account.count_read(read.steps)
        self._names.count(read.id)
        self._last = read.id
        is_accepted = False
        try:
            is_accepted = read.is_accepted(self._preparer, shown)
        finally:
            account.steps_rejected += 0 if is_accepted else read.steps
        if not is_accepted:
            return
        if self._played is not None and self._taken is not None and self._played.take(read.played):
            self._taken.add(read.played)
            account.policy.rejected[DUPLICATE] += 1
            account.steps_rejected += read.steps
            return
        written = read.written()
        losses = list(sink.write(written.encoded))
        losses += lost_flags(written.odd_flags, (*self.job.losses, *losses))
        losses += written.file_losses
        self.job.check_losses(losses, f"episode {read.title}")
        account.count_written(written, losses)

    def _verify(self, path: Path) -> None:
        if self._options.verify:
            self._verified, self._verify_began = 0, time.monotonic()
            there = 0 if self._grown is None else self._grown.episodes
            self._verified_by, self._nearness = verify(self.job, path, self._account, self._tell_verified, there)

    def _check_free(self, place: Place) -> None:
        if not place.is_partly_published:
            check_free(self.job.destination, place.path, self._options.overwrite or self.job.old is not None)

    def _save(self, place: Place, stage: str, state: Any) -> None:
        raise_lost_interrupt()  # else what it spoiled would count as written
        place.save(
            {
                "identity": self._identity,
                "choice": self.job.choice,
                "stage": stage,
                "account": self._account.as_state(),
                "endings": state_of(self._endings),
                "sink": state,
                "last": self._last,
                "names": 0 if self._played is None else self._played.sync(),
                "taken": 0 if self._taken is None else self._taken.sync(),
                "grown": None if self._grown is None else asdict(self._grown),
            }
        )
        self._kept = self._account.episodes_written

    def _restore(self, saved: dict[str, Any]) -> None:
        """Continues from what was saved.

        Raises:
          ConfigError: the saved state belongs to another conversion.
        """
        if difference := self._difference(saved):
            was, now = (
                {**identity, "source": {**identity["source"], "first episode": ""}}
                for identity in (saved["identity"], self._identity)
            )
            raise self._another(difference, is_of_episodes=was == now)
        self._account.restore(saved["account"])
        self._account.episodes_resumed = self._account.episodes_read
        self._kept = self._account.episodes_written
        self._endings, self._last = endings_of(saved["endings"]), saved["last"]

    def _difference(self, saved: dict[str, Any]) -> str:
        """How a saved conversion differs from this one; "" if it does not."""
        before, now = saved["identity"], self._identity
        if self.job.is_live:  # it goes on whatever was first: with episodes that are new
            before = {**before, "source": {**before["source"], "first episode": ""}}
        changed = [name for name in now if before.get(name) != now[name]]
        if (saved.get("grown") is None) != (self.job.old is None):
            return "with another choice of append (--append)"
        if changed:
            return f"with another {' and another '.join(changed)}"
        was, choice = saved["choice"], self.job.choice
        if was != choice and not (was["on_invalid"] == RAISE and set(was["allow"]) <= set(choice["allow"])):
            return "with another policy of bad episodes"
        return ""

    def _another(self, how: str, is_of_episodes: bool = False) -> ConfigError:
        """That another conversion was begun here; `is_of_episodes`: the source is the same by name, and gives other episodes."""
        hint = self.job.source.other_episodes_hint if is_of_episodes else ""
        return ConfigError(
            f"{self.job.destination.path}: a conversion was begun {how}, and stopped; run that one again to have it completed, or begin "
            f"anew with restart=True (--restart){hint and f'. {hint}'}"
        )

    def report(self) -> ConvertReport:
        """The report up to now."""
        job, account, readers = self.job, self._account, self._readers
        return replace(
            account.report(),
            source=job.source.name,
            destination=job.destination.name,
            path=str(job.destination.path),
            notices=(
                *dict.fromkeys((*job.source.notices, *(() if readers is None else readers.notices))),
                *(notice for image in job.images for notice in image.notices),
                *(() if account.episodes_resumed else duplicates_notice(self._names.copies)),
                *(() if self._grown is None else [_appended_note(self._grown.episodes)]),
            ),
            encoded=job.encoded,
            seconds=time.monotonic() - self._began,
            verified=self._verified,
            verified_by=self._verified_by,
            psnr=self._nearness,
            transform=job.ready.options.chosen_transform.as_dict(),
            filtered=job.source.filtered,
            episodes_kept=self._kept,
            workers=0 if readers is None else readers.workers,
            parts_again=0 if readers is None else readers.parts_again,
        )

    def _tell_verified(self, number: int) -> None:
        self._verified = number
        raise_lost_interrupt()
        self._tell_progress()

    def _tell_sent(self, sent: int, files: int) -> None:
        raise_lost_interrupt()
        if not self._upload_began:
            self._upload_began = time.monotonic()
        seconds = time.monotonic() - self._upload_began
        self._options.on_progress(Progress(sent, 0, files, 0, 0, seconds, doing="uploading"))

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._progress_at < _PROGRESS_SECONDS:
            return
        self._progress_at = now
        account, count = self._account, self.job.source.episode_count
        if self._verified is None:
            progress = Progress(account.episodes_read, account.steps_read, count, 0, account.bytes, now - self._began)
        else:
            seconds = now - self._verify_began
            progress = Progress(self._verified, 0, account.episodes_written, 0, 0, seconds, doing="verifying")
        self._options.on_progress(progress)

    @contextmanager
    def _write_errors(self, path: Path) -> Iterator[None]:
        """Turns disk errors inside into one that names the file, what stays on disk, and how to continue."""
        try:
            yield
        except OSError as error:
            if isinstance(error, WriteError) or error.errno is None:
                raise
            file = "" if error.filename is None else f" ({os.fsdecode(error.filename)})"
            kept = (
                f"the {counted(self._kept, 'episode')} that are on disk stay"
                if self._kept
                else "nothing of it is kept, and what was there before stays"
            )
            way_out = f"{kept}. Make room there and convert again, or convert into another folder"
            raise write_error(f"{path}{file}", error, way_out) from error


def _appended_note(episodes: int) -> Notice:
    return note("appended", f"{counted(episodes, 'episode')} were there before", episodes)


def planned(source: Any, destination: str | Destination, **options: Unpack[ConvertKeywords]) -> Conversion:
    """Opens source and destination, and checks the options; writes nothing. Arguments and errors as `convert`."""
    refuse_unknown("convert", options, ConvertOptions)
    chosen = ConvertOptions(**options)
    if isinstance(destination, str):  # a class of the caller's may have codes of its own
        # Codes of every format that this package writes are taken, so that one command fits several destinations.
        entry = DESTINATIONS.find(destination)
        sides = [*DESTINATIONS.own_sides().values(), *(() if entry is None else (entry[1],))]
        known = {ALL, *LOSSES, *chain.from_iterable(side.losses for side in sides)}
        if unknown := sorted(set(chosen.allow_loss) - known):
            hint = did_you_mean(unknown[0], known) or f"; known: {', '.join(sorted(known))}"
            raise ConfigError(f"allow_loss (--allow-loss): unknown code {', '.join(unknown)}{hint}")
    chosen.check_files()
    job = _make_job(source, destination, chosen).with_images()
    readers = None
    if chosen.workers is not None or chosen.ray is not None:
        opens = partial(
            _make_job, source, destination, replace(chosen.silent(), on_progress=ignored).with_rules_of(chosen)
        )
        readers = ByWorkers(job, opens, choose_executor(chosen.workers, chosen.ray))
    return Conversion(job, chosen, readers)


def _make_job(source: Any, destination: str | Destination, chosen: ConvertOptions) -> Job:
    target = open_destination(destination) if isinstance(destination, str) else destination
    recorded = open_source(source)
    left = filtered(recorded.first(chosen.limit), chosen.rules)
    share_findings(left, chosen.rules)
    # A function of the user's gets what it gets in a push: the files of the images that are named, and pixels of all others.
    is_mapped = chosen.chosen_map is not None
    read = left.with_encoded(chosen.encoded_paths) if is_mapped and not chosen.decode else left
    job = job_of(
        transformed(mapped(read, chosen.chosen_map), chosen.chosen_transform),
        target,
        chosen,
        () if chosen.decode else None if is_mapped else chosen.encoded_paths or None,
        allowed_losses=chosen.allow_loss,
        places=places_of(source, recorded),
        source_label=label_of(source, recorded),
        is_live=recorded.is_live,
        label=f"{chosen.data_label}|limit={chosen.limit}{chosen.filter_label and f'|filter={chosen.filter_label}'}",
    )
    if not chosen.append or not is_there_to_grow(target):
        return job
    grown, old = grown_job(job)
    return replace(grown, old=old, played=Played.of(grown))
