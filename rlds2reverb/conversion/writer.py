"""A dataset that takes episodes one by one, while they are collected: `rlds2reverb.dataset_writer`.

    with rlds2reverb.dataset_writer("minari:cartpole/mine-v0") as writer:
        for episode in play():
            writer.write(episode)

It is a conversion whose episodes are handed in: judged by the same rules, written beside the final place, on disk every few seconds or by
`checkpoint`, and visible when it is finished. A writer that was closed or killed before is continued by the next one of that place; a dataset that is
finished grows by one with `append=True`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rlds2reverb.conversion.convert import READ, WRITING, WRITTEN
from rlds2reverb.conversion.growing import (
    DUPLICATE,
    NAMES_FILE,
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
from rlds2reverb.conversion.guarding import check_free, check_path
from rlds2reverb.conversion.job import Account, Job, job_of
from rlds2reverb.conversion.place import open_place, place_of
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.episode import Episode, metadata_specs
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_destination
from rlds2reverb.formats.destination import Destination, Sink, lost_flags
from rlds2reverb.formats.source import About, Source, spec_of
from rlds2reverb.keywords import refuse_unknown, takes_options
from rlds2reverb.prepare.options import EpisodeKeywords, EpisodeOptions
from rlds2reverb.prepare.preparation import Preparer
from rlds2reverb.specs import Nest
from rlds2reverb.text import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHECKPOINT_SECONDS = 5.0
"""How often all is put on disk, where the caller does not say after how many episodes."""


@dataclass(frozen=True, kw_only=True)
class DatasetWriteOptions(EpisodeOptions):
    """The options of a dataset writer: those of episodes, and a few more. Each field is a keyword of `dataset_writer`.

    Attributes:
      append: add to the dataset that is there, if there is one.
      overwrite: replace the dataset that is there, when all is done.
      restart: begin anew, whatever a writer that was closed or killed has left.
      checkpoint_every: put all on disk after so many episodes; None for every few seconds.
      duplicates: "skip" leaves out an episode whose observations, actions and rewards are those of one that was there when the writer began, each of
        these once, and counts it; "keep" writes it. Equal episodes that come anew are all written.
      spec: nest of `ArraySpec` of a step, bounds included; None to learn it from the first episode.
      about: what the dataset says of itself as a whole.

    Raises:
      ConfigError: as `EpisodeOptions`; or options that make no sense.
    """

    append: bool = False
    overwrite: bool = False
    restart: bool = False
    checkpoint_every: int | None = None
    duplicates: str = "skip"
    spec: Nest | None = field(default=None, compare=False)
    about: About = field(default_factory=About, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.append and self.overwrite:
            raise ConfigError("append and overwrite contradict each other: leave one of them out")
        every = self.checkpoint_every
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ConfigError(f"checkpoint_every {every!r}: expected a whole number of at least 1, or None")
        if self.duplicates not in ("skip", "keep"):
            raise ConfigError(f'duplicates {self.duplicates!r}: expected "skip" or "keep"')
        if self.rules or self.chosen_map is not None or self.chosen_transform.as_dict():
            raise ConfigError(
                "dataset_writer: filters, map and transform are of sources; change the episodes before they are written"
            )


class DatasetWriteKeywords(EpisodeKeywords, total=False):
    """`DatasetWriteOptions` as keywords."""

    append: bool
    overwrite: bool
    restart: bool
    checkpoint_every: int | None
    duplicates: str
    spec: Nest | None
    about: About


@dataclass
class _Begun:
    """What the first episode makes."""

    job: Job
    preparer: Preparer
    account: Account
    sink: Sink
    names: PlayedNames
    played: Played
    old: Source | None  # the dataset that grows
    grown: Grown | None


class _HandedIn(Source):
    """Stands for the episodes that are handed in: the first one, by which specs are known."""

    def __init__(self, name: str, spec: Nest, example: Episode, about: About) -> None:
        self.name, self._spec, self._example, self._about = name, spec, example, about

    def spec(self) -> Nest:
        return self._spec

    def metadata_spec(self) -> Nest:
        return metadata_specs(self._example)

    @property
    def about(self) -> About:
        return self._about

    def __iter__(self) -> Iterator[Episode]:
        return iter([self._example])


class DatasetWriter:
    """Made by `dataset_writer`. Use it as a context manager: at its end the dataset is finished; after an error it is closed, to be continued.

    A writer is for one thread.
    """

    def __init__(self, destination: Destination, options: DatasetWriteOptions) -> None:
        self._destination, self._options = destination, options
        options.check_files()
        self._path = check_path(destination.path)
        place = place_of(destination, self._path)
        self._name = f"writer of {destination.name}"
        self._grows = options.append and is_there_to_grow(destination)
        if not self._grows and not place.is_partly_published and (place.is_new or options.restart):
            check_free(destination, self._path, options.overwrite)
        self._stack = ExitStack()
        self._place = self._stack.enter_context(open_place(place))
        try:
            self._saved = None if options.restart else self._place.saved()
            if self._saved is not None and self._saved["stage"] == WRITTEN and self._saved.get("grown"):
                settle(self._place, Grown(**self._saved["grown"]))
            if self._saved is not None and self._saved["stage"] == WRITTEN and self._place.result.exists():
                # It was killed before the rename.
                self._publish(None if self._saved["grown"] is None else Grown(**self._saved["grown"]))
                self._grows = options.append
            if self._saved is not None and self._saved["stage"] == WRITTEN and self._place.is_published:
                self._place.discard_work()  # it was finished, and killed before it could say so
                self._saved = None
                if not self._grows:
                    check_free(destination, self._path, options.overwrite)
            if self._saved is not None and not self._place.work.exists():
                self._saved = None
            if self._saved is None:
                self._place.put_back()
        except BaseException:
            self._stack.close()
            raise
        self._begun: _Begun | None = None
        self._is_closed = self._is_broken = False
        self._duplicates = 0
        self._unsaved = 0
        self._saved_at = self._began = time.monotonic()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None and (not self._is_closed or self._is_broken):
            self.finish()
        else:
            with suppress(OSError):
                self.close()

    @property
    def episodes(self) -> int:
        """Episodes written so far, by this writer and those before that it continues; without those of a dataset that grows."""
        if self._begun is not None:
            return self._begun.account.episodes_written
        return 0 if self._saved is None else int(self._saved["account"]["numbers"]["episodes_written"])

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def knows_columns(self) -> bool:
        """Whether an episode has come, so that the columns are known."""
        return self._begun is not None

    def learn(self, spec: Nest, about: About) -> None:
        """Sets what only the first steps have shown: the spec, and what the dataset says of itself. Only before the first episode."""
        if self._begun is not None:
            raise ConfigError(f"{self._name}: its columns are known from the first episode; say spec and about before")
        self._options = replace(self._options, spec=spec, about=about)

    @property
    def duplicates(self) -> int:
        """Episodes that were there already, and left out."""
        return self._duplicates

    def write(self, episode: Episode) -> bool:
        """Judges an episode, and writes it; returns whether it was.

        Raises:
          ConfigError: the writer is closed; or the first episode does not fit what was begun, or the dataset that grows.
          InvalidEpisode: it is bad, and the policy is to stop. Nothing of it is written; the next one may come.
          ConversionError: it would lose what may not be lost. This, and an OSError, closes the writer; the next one goes on from the last checkpoint.
          OSError: the disk is full, say.
        """
        if self._is_closed:
            raise ConfigError(f"{self._name}: it is closed; make another one, which goes on where it was")
        try:
            return self._write(episode)
        finally:
            if self._is_broken:  # half an episode may be in the files, which must not count
                with suppress(OSError):
                    self.close()

    def _write(self, episode: Episode) -> bool:
        begun = self._begun or self._begin(episode)
        job, account = begun.job, begun.account
        read = job.examine(begun.preparer, episode)
        account.count_read(read.steps)
        is_accepted = False
        try:
            is_accepted = read.is_accepted(begun.preparer, ())
        finally:
            account.steps_rejected += 0 if is_accepted else read.steps
        if not is_accepted:
            return False
        name = begun.played.name(episode.columns)
        if self._options.duplicates == "skip" and begun.names.take(name):
            self._duplicates += 1
            account.policy.rejected[DUPLICATE] += 1
            account.steps_rejected += read.steps
            return False
        written = read.written()
        self._is_broken = True  # until all of the episode is written and counted
        losses = list(begun.sink.write(written.encoded))
        losses += lost_flags(written.odd_flags, (*job.losses, *losses))
        losses += written.file_losses
        job.check_losses(losses, f"episode {read.title}")
        account.count_written(written, losses)
        begun.names.add(name)
        self._is_broken = False
        self._unsaved += 1
        every = self._options.checkpoint_every
        is_due = time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS if every is None else self._unsaved >= every
        if is_due:
            self.checkpoint()
        return True

    def checkpoint(self) -> int:
        """Puts all on disk, whence the next writer of this place goes on; returns `episodes`."""
        if self._begun is not None and not self._is_closed:
            self._save(self._begun, WRITING, self._begun.sink.sync())
        return self.episodes

    def finish(self) -> ConvertReport:
        """Completes the dataset, which appears at its place; closes the writer. Without a new episode, a dataset that grows stays as it is.

        Raises:
          SourceError: no episode was written.
          ConfigError: a dataset that grows has changed meanwhile, or would not be kept exactly.
        """
        if self._is_closed:
            raise ConfigError(f"{self._name}: it is closed")
        begun, place = self._begun, self._place
        if begun is None and self._saved is not None:
            raise ConfigError(
                f"{self._name}: {counted(self.episodes, 'episode')} of an earlier writer are on disk, and no episode has come to tell their columns: "
                "write one more, even one of these, or close() and go on later"
            )
        if begun is None or not self.episodes:
            self._is_closed = True
            if begun is not None:
                begun.sink.close()
            place.discard()
            self._stack.close()
            if self._grows:
                return self.report()
            raise SourceError(f"{self._name}: no episode was written, so there is no dataset")
        try:
            self._save(begun, READ, begun.sink.sync())
            self._complete(begun)
            place.discard()
        finally:
            self._is_closed = True
            begun.sink.close()
            self._stack.close()
        return self.report()

    def close(self) -> None:
        """Puts all on disk and frees the place; the next writer of it goes on. Closing twice is harmless."""
        if self._is_closed:
            return
        begun = self._begun
        try:
            if begun is not None and self.episodes and not self._is_broken:
                self._save(begun, WRITING, begun.sink.sync())
            elif self._saved is None and not (self._is_broken and self._place.is_begun):
                self._place.discard()
        finally:
            self._is_closed = True
            if begun is not None:
                begun.sink.close()
            self._stack.close()

    def report(self) -> ConvertReport:
        """The report so far, as that of a conversion; an episode that was there already counts as rejected, `duplicate`."""
        report = ConvertReport("", "") if self._begun is None else self._begun.account.report()
        return replace(
            report,
            source=self._name,
            destination=self._destination.name,
            path=str(self._path),
            seconds=time.monotonic() - self._began,
        )

    def _complete(self, begun: _Begun) -> None:
        """Makes of all that was written the dataset at its place."""
        begun.sink.finish()
        begun.sink.close()
        self._place.seal()
        if begun.grown is not None and begun.old is not None:
            check_kept(begun.job, self._place.result, begun.old, begun.grown)
        self._save(begun, WRITTEN, None)
        self._publish(begun.grown)

    def _publish(self, grown: Grown | None) -> None:
        if grown is None:
            if not self._place.is_partly_published:  # meanwhile somebody may have put something there
                check_free(self._destination, self._path, self._options.overwrite)
            self._place.publish()
        else:
            publish(self._place, grown)

    def _begin(self, episode: Episode) -> _Begun:
        """Begins, or goes on where an earlier writer was. One that was killed while it finished has taken parts away: its dataset is completed first."""
        begun = self._opened(episode)
        if self._saved is not None and self._saved["stage"] == READ:
            with closing(begun.sink):
                self._complete(begun)
            self._place.discard_work()
            self._saved, self._grows = None, self._options.append
            begun = self._opened(episode)
        self._begun = begun
        return begun

    def _opened(self, episode: Episode) -> _Begun:
        options, place, saved = self._options, self._place, self._saved
        spec = spec_of(episode) if options.spec is None else options.spec
        job = job_of(_HandedIn(self._name, spec, episode, options.about), self._destination, options, ())
        old: Source | None = None
        grown: Grown | None = None
        if self._grows:
            job, old = grown_job(job)
        preparer = job.ready.preparer()
        account = Account(preparer.policy)
        account.losses.of_all = job.losses
        names_path, played = place.folder / NAMES_FILE, Played.of(job)
        if saved is None:
            if not self._grows:
                check_free(self._destination, self._path, options.overwrite)
            place.begin()
            names_path.unlink(missing_ok=True)
            state, names = None, PlayedNames(names_path, 0)
            if old is not None:
                state, grown = take_over(job, old, place.work)
                names.add_there(played.stored_names(old))
        else:
            if saved["identity"] != self._identity(job):
                raise ConfigError(
                    f"{self._path}: a dataset was begun with other columns or options, and not finished: go on with those, or begin anew with "
                    "restart=True"
                )
            state, names = saved["sink"], PlayedNames(names_path, saved["names"])
            account.restore(saved["account"])
            account.episodes_resumed = account.episodes_read
            grown = None if saved["grown"] is None else Grown(**saved["grown"])
        sink = self._destination.sink(place.work, job.content, state)
        return _Begun(job, preparer, account, sink, names, played, old, grown)

    def _identity(self, job: Job) -> dict[str, Any]:
        specs: Mapping[str, Any] = job.content.columns
        return {
            "writer": True,
            "grows": self._grows,
            "columns": {path: f"{spec} {spec.name}" for path, spec in specs.items()},
            "metadata": {path: str(spec) for path, spec in job.content.metadata.items()},
            "destination": self._destination.name.partition("?")[2],
        }

    def _save(self, begun: _Begun, stage: str, state: Any) -> None:
        count = begun.names.sync()
        self._place.save(
            {
                "identity": self._identity(begun.job),
                "stage": stage,
                "account": begun.account.as_state(),
                "sink": state,
                "names": count,
                "grown": None if begun.grown is None else asdict(begun.grown),
            }
        )
        self._unsaved, self._saved_at = 0, time.monotonic()


@takes_options(DatasetWriteOptions)
def dataset_writer(destination: str | Destination, **options: Unpack[DatasetWriteKeywords]) -> DatasetWriter:
    """A writer of a dataset, in any format that `convert` writes. The place is taken at once; no file is visible there before `finish`.

    Args:
      destination: a name such as "minari:cartpole/mine-v0"; docs/convert.md has them all.
      options: the fields of `DatasetWriteOptions`, by name.

    Raises:
      ConfigError: an option or the name makes no sense, the place is taken, or another process writes there.
    """
    refuse_unknown("dataset_writer", options, DatasetWriteOptions)
    target = open_destination(destination) if isinstance(destination, str) else destination
    return DatasetWriter(target, DatasetWriteOptions(**options))
