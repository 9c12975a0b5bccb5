"""Any source into any destination: what `rlds2reverb.convert` and the command line take, made into a job for the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any

from rlds2reverb.destinations import open_destination
from rlds2reverb.destinations.account import Account
from rlds2reverb.destinations.base import Destination
from rlds2reverb.destinations.converting import Converter
from rlds2reverb.destinations.job import Job, job_of
from rlds2reverb.destinations.report import ConvertReport
from rlds2reverb.errors import ConfigError, keep_report, reason_of
from rlds2reverb.prepare.options import EpisodeOptions, split_options
from rlds2reverb.push.options import check_workers, unheard
from rlds2reverb.push.report import Progress
from rlds2reverb.scale.choosing import executor_of
from rlds2reverb.scale.converting import ByWorkers
from rlds2reverb.sources import open_source
from rlds2reverb.sources.base import first_episodes
from rlds2reverb.sources.places import label_of, places_of
from rlds2reverb.sources.transformed import transformed

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
    on_progress: Callable[[Progress], object] = field(default=unheard, compare=False)

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
        opens = partial(_job, source, destination, replace(chosen, on_progress=unheard), episodes.silent())
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
