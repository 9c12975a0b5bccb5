"""How a conversion prepares each episode, in this process or in workers, and how it counts them.

Some problems of an episode show only once all previous and a few later episodes are read. So the process that drives
the conversion accepts or rejects each episode, in order, and counts; workers do everything else before that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2reverb.conversion.report import ConvertReport, Losses, lines, refused
from rlds2reverb.episode import Array, Episode, Notice, is_under, metadata_values
from rlds2reverb.errors import ConversionError, DecodeError, SourceError
from rlds2reverb.formats.destination import LOSSES as OF_FLAGS
from rlds2reverb.formats.destination import NO_ROWS, Content, Destination, Encode, Loss, odd_flags
from rlds2reverb.formats.options import parted
from rlds2reverb.formats.source import ALL as EVERY_IMAGE
from rlds2reverb.formats.source import Source, checked_spec, metadata_spec_of
from rlds2reverb.images import JPEG_START, PNG_START, decode_images
from rlds2reverb.prepare.endings import Ending, Endings, problems_in_order
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.policy import Policy
from rlds2reverb.prepare.preparation import Preparation, Preparer
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import JPEG, PNG, ArraySpec, ImageSpec, flatten
from rlds2reverb.text import counted


@dataclass(frozen=True)
class Written:
    """An encoded episode.

    Attributes:
      encoded: for the sink.
      steps, bytes: of the episode; bytes as columns in memory.
      is_end_mended: whether its last row is not as recorded.
      odd_flags: paths of the flags that differ after reading back.
      jpeg: paths of JPEG images that the format's own system decodes differently; see `Job.odd_jpeg`.
    """

    encoded: Any
    steps: int
    bytes: int
    is_end_mended: bool
    odd_flags: tuple[str, ...]
    jpeg: tuple[str, ...] = ()


Accepted = Callable[[], Written]
"""Encodes an accepted episode. Raises ConversionError if the format cannot hold it."""


class Taken(Protocol):
    """An episode that was read."""

    @property
    def id(self) -> str:
        """The episode's id."""

    @property
    def title(self) -> str:
        """Its name in messages."""

    @property
    def steps(self) -> int:
        """The number of steps, as recorded."""

    def accepted(self, preparer: Preparer, found: Sequence[Problem]) -> Accepted | None:
        """Accepts or rejects the episode, and counts the decision; returns None if it is rejected.

        Args:
          preparer: of the conversion; its policy counts.
          found: problems that show only in comparison with other episodes.

        Raises:
          InvalidEpisode: it is bad and the policy is to stop.
        """


@dataclass(frozen=True)
class Read:
    """An episode that a worker has read, validated on its own, and encoded if it is good so far.

    Attributes:
      id, recorded_id, title: see `episodes.Episode`.
      steps: as recorded.
      problems, mended: results of validating it on its own; see `prepare.policy.Examined`.
      ending: how it ends; None if that is of no use for other episodes.
      too_short: why it is too short for the format.
      written: the encoded episode; None if it is rejected in any case.
      error: why the format cannot hold it.
    """

    id: str
    recorded_id: str | None
    title: str
    steps: int
    problems: tuple[Problem, ...]
    mended: tuple[Problem, ...]
    ending: Ending | None
    too_short: Problem | None = None
    written: Written | None = None
    error: ConversionError | None = None

    def accepted(self, preparer: Preparer, found: Sequence[Problem]) -> Accepted | None:
        """See `Taken.accepted`."""
        if not preparer.policy.accepts(self, [*self.problems, *found], self.mended):
            return None
        if self.too_short is not None:
            preparer.policy.reject(self, [self.too_short])
            return None
        return self._made

    def _made(self) -> Written:
        if self.error is not None:
            raise self.error
        assert self.written is not None  # it is good
        return self.written


class Readers(Protocol):
    """Workers that read the source of a conversion.

    Attributes:
      workers: the number of concurrent workers.
    """

    workers: int

    @property
    def parts_again(self) -> int:
        """Parts of the source that were begun anew, for their workers were lost."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The notices of the workers' sources."""

    def read(self, start: int) -> Generator[Read, None, None]:
        """The episodes from a number on, in order. Closing it stops all workers.

        Raises:
          Rlds2ReverbError: as reading the source does, at the same episode; or a worker cannot begin.
          WorkersLost: a worker was lost repeatedly.
        """


# The counts of a conversion while it runs; a restarted conversion continues them.

_COUNTERS = ("rejected", "advice", "repaired")


@dataclass
class Account:
    """The counts of a conversion; see `ConvertReport`.

    Attributes:
      policy: the policy of bad episodes, which counts them.
      losses: found so far.
    """

    policy: Policy
    losses: Losses = field(default_factory=Losses)
    episodes_read: int = 0
    steps_read: int = 0
    episodes_written: int = 0
    steps_written: int = 0
    episodes_resumed: int = 0
    steps_rejected: int = 0
    ends_mended: int = 0
    bytes: int = 0

    @property
    def rejections(self) -> str:
        """Why episodes were rejected, in words."""
        told = ", ".join(f"{code} {count:,}" for code, count in self.policy.rejected.items())
        return f"of {self.episodes_read:,} read, rejected were: {told}"

    def count_read(self, steps: int) -> None:
        """Counts an episode that was read."""
        self.episodes_read += 1
        self.steps_read += steps

    def count_written(self, written: Written, losses: Sequence[Loss]) -> None:
        """Counts an episode that was written with these losses."""
        self.losses.add(self.episodes_written, losses)
        self.episodes_written += 1
        self.steps_written += written.steps
        self.ends_mended += written.is_end_mended
        self.bytes += written.bytes

    def report(self) -> ConvertReport:
        """The report up to now, without source and destination."""
        of_policy: dict[str, Any] = self._counters()
        numbers: dict[str, Any] = self._numbers()
        return ConvertReport("", "", losses=self.losses.counted(), **numbers, **of_policy)

    def as_state(self) -> dict[str, Any]:
        """For JSON."""
        return {"numbers": self._numbers(), "counters": self._counters(), "losses": self.losses.as_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state made by `as_state`."""
        for name, value in state["numbers"].items():
            setattr(self, name, value)
        for name, counts in state["counters"].items():
            getattr(self.policy, name).update(counts)
        self.losses.restore(state["losses"])

    def _counters(self) -> dict[str, dict[str, int]]:
        return {name: dict(getattr(self.policy, name)) for name in _COUNTERS}

    def _numbers(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("policy", "losses")}


# The job: everything that stays the same from the first episode to the last.

LOSSES = {
    **OF_FLAGS,
    "ragged_metadata": "features of an episode with several free sizes, whose rows may have different lengths; they are left out",
    "jpeg_pixels": "the files stay as they are, but the two systems decode JPEG in two ways, by the fast DCT (TFDS) and by the accurate one (LeRobot, "
    "Minari): pixels differ by a few of 255 levels; decode=True (--decode) writes the pixels",
}
"""Code -> losses that the conversion itself reports, whatever the destination."""

_PIXELS = "jpeg_pixels"


@dataclass(frozen=True)
class Job:
    """One conversion.

    Attributes:
      ready: the transformed source, with kept images encoded, and the policy of bad episodes.
      destination: to be written.
      content: what the destination gets.
      losses: what is known to be lost.
      encoded: paths of the images that are kept as the bytes of their files.
      odd_jpeg: those of them whose files may be JPEG, if the destination's own system decodes JPEG differently.
      decoded: path -> decoded spec, of images that the source has only as files, which the destination cannot hold.
      allowed_losses: codes of losses that `strict` permits.
      places: folders and files that the source is read from.
      label: further options that must be equal for a conversion to continue.
      source_label: the source's name without its folders.
    """

    ready: Preparation
    destination: Destination
    content: Content
    losses: tuple[Loss, ...]
    encoded: tuple[str, ...] = ()
    odd_jpeg: tuple[str, ...] = ()
    decoded: Mapping[str, ImageSpec] = field(default_factory=dict)
    allowed_losses: Sequence[str] = ()
    places: Sequence[Path] = ()
    label: str = ""
    source_label: str = ""

    @property
    def source(self) -> Source:
        """What is read."""
        return self.ready.source

    @property
    def choice(self) -> dict[str, Any]:
        """The policy of bad episodes, as plain values."""
        options = self.ready.options
        return {"on_invalid": options.on_invalid, "allow": sorted(options.allow), "strict": options.strict}

    def check_losses(self, losses: Sequence[Loss], where: str) -> None:
        """Refuses losses if the conversion is strict.

        Raises:
          ConversionError: says which.
        """
        found = refused(losses, self.allowed_losses) if self.ready.options.strict else []
        if found:
            told = "; ".join(lines(found))
            raise ConversionError(
                f"{where}: {self.destination.name} cannot hold all of it: {told}. Leave out strict, or allow_loss={found[0].code} "
                "(--allow-loss)"
            )

    def lost_pixels(self, paths: Sequence[str]) -> list[Loss]:
        """The losses of an episode with JPEG files in these columns, without those already reported."""
        told = {one.path for one in self.losses if one.code == _PIXELS}
        return [Loss(_PIXELS, LOSSES[_PIXELS], path, NO_ROWS) for path in paths if path not in told]

    def identity(self) -> dict[str, Any]:
        """The facts that must be equal for a conversion to continue.

        Raises:
          SourceError: there is no episode.
        """
        first = next(iter(self.source), None)
        if first is None:
            raise SourceError(f"{self.source.name}: has no episodes, so there is nothing to convert")
        specs = {path: f"{spec} {spec.name}" for path, spec in self.content.columns.items()}
        scheme, _, rest = self.destination.name.partition(":")
        return {
            "source": {
                "name": self.source_label,
                "first episode": first.id,
                "episodes": self.source.episode_count,
                "columns": specs,
                "metadata": {path: str(spec) for path, spec in self.content.metadata.items()},
            },
            "destination": f"{scheme}:{self.destination.path.name}?{parted(rest)[1]}",
            "options": self.label,
        }

    def prepared(
        self, preparer: Preparer, episode: Episode, found: Sequence[Problem] = ()
    ) -> tuple[Episode | None, bool]:
        """The episode to write, None if it is rejected or the format cannot hold it; and whether its end was mended.

        Raises:
          InvalidEpisode: it is bad and the policy is to stop.
        """
        one = preparer.prepare(episode, found)
        if one.normalised is None:
            return None, False
        made = self._fitted(episode, one.normalised)
        if isinstance(made, Problem):
            preparer.reject(one, made)
            return None, False
        return made, one.is_end_mended

    def examined(self, preparer: Preparer, episode: Episode) -> Read:
        """An episode that waits for the comparison with other episodes; nothing is counted yet."""
        ending = self.ready.ending(episode)
        filled, problems, mended = preparer.examine(episode)
        read = Read(
            episode.id,
            episode.recorded_id,
            episode.title,
            len(episode),
            problems,
            mended,
            None if ending is None else ending.with_leap(episode),
        )
        if preparer.policy.bad(problems):
            return read
        made = self._fitted(episode, preparer.normalise(filled))
        if isinstance(made, Problem):
            return replace(read, too_short=made)
        try:
            return replace(read, written=self.written(made, self.ready.options.conventions.mends_end(filled)))
        except ConversionError as error:
            return replace(read, error=error)

    def written(self, prepared: Episode, is_end_mended: bool) -> Written:
        """Encodes an episode for the sink.

        Raises:
          ConversionError: the format cannot hold it.
        """
        odd = odd_flags(self.destination, prepared)
        jpeg = tuple(path for path in self.odd_jpeg if _has_jpeg(prepared.columns[path]))
        return Written(self._encode(prepared), len(prepared), prepared.nbytes, is_end_mended, odd, jpeg)

    @cached_property
    def _encode(self) -> Encode:
        return self.destination.encoder(self.content)

    def _fitted(self, episode: Episode, put: Episode) -> Episode | Problem:
        """The episode to write; or the problem that keeps it out of the format."""
        if len(put) < self.destination.least_rows:
            return Problem("single_step", "", self._too_short(put))
        columns = {path: _plain(put.columns[path]) for path in self.content.columns}
        for path, image in self.decoded.items():
            try:
                columns[path] = decode_images(columns[path], image, column=path)
            except DecodeError as error:
                return Problem("image", path, str(error))
        return replace(put, columns=columns, metadata=metadata_values(episode, self.content.metadata))

    def _too_short(self, episode: Episode) -> str:
        return (
            f"{self.destination.name} holds episodes of at least {counted(self.destination.least_rows, 'step')}, got {len(episode)}; "
            "on_invalid=skip (--on-invalid skip) leaves it out"
        )


def job_of(
    source: Source, destination: Destination, options: EpisodeOptions, encoded: Sequence[str] | None, **others: Any
) -> Job:
    """The job of a source that is already transformed.

    Args:
      source: to be read.
      destination: to be written.
      options: what episodes are to be.
      encoded: paths of images to keep as the bytes of their files; None for all that both sides can hold so.
      others: further fields of `Job`.

    Raises:
      SourceError: the source has no spec, or lacks is_first or is_last; or an image cannot stay as it is.
      ConfigError: the format can hold no episode of it.
      ConversionError: something would be lost, which is not allowed.
    """
    files = _with_files(source, destination, encoded)
    source = files.source
    features = flatten(metadata_spec_of(source))
    ragged = [path for path, leaf in features.items() if _may_be_ragged(leaf)]
    metadata = {path: leaf for path, leaf in features.items() if path not in ragged}
    ready = Preparation.of(source, options, metadata=metadata)
    columns: dict[str, ArraySpec] = flatten(ready.recorded_spec)
    for path, image in files.decoded.items():
        columns[path] = ArraySpec((*columns[path].shape, *image.shape), image.dtype)
    content = Content(source.name, columns, metadata)
    losses = [Loss("ragged_metadata", LOSSES["ragged_metadata"], f"metadata/{path}") for path in ragged]
    losses += destination.losses(content)
    losses += [
        Loss(_PIXELS, LOSSES[_PIXELS], path, NO_ROWS) for path, is_certain in files.odd_jpeg.items() if is_certain
    ]
    job = Job(
        ready,
        destination,
        content,
        tuple(losses),
        encoded=files.kept,
        odd_jpeg=tuple(files.odd_jpeg),
        decoded=files.decoded,
        **others,
    )
    job.check_losses(losses, source.name)
    return job


def _may_be_ragged(spec: ArraySpec) -> bool:
    """Whether rows of a value may have different lengths; those of an image may not."""
    is_image = len(spec.shape) == 3 and spec.shape[-1] is not None and spec.dtype.name in ("uint8", "uint16")
    return spec.shape.count(None) > 1 and not is_image


@dataclass(frozen=True)
class _Files:
    """How the image columns of a source are written.

    Attributes:
      source: with those columns encoded that are kept as files, or that it has only as files.
      kept: paths of images that are kept as the bytes of their files.
      decoded: path -> decoded spec, of images that the source has only as files, which the destination cannot hold.
      odd_jpeg: of the kept ones, those whose JPEG files the destination's own system decodes differently; and whether
        the first episode shows that they are JPEG.
    """

    source: Source
    kept: tuple[str, ...]
    decoded: Mapping[str, ImageSpec]
    odd_jpeg: Mapping[str, bool]


def _with_files(source: Source, destination: Destination, encoded: Sequence[str] | None) -> _Files:
    """Chooses the images to keep as files: the requested ones, or all that both sides can hold so."""
    offered, plain = source.images(), flatten(checked_spec(source))
    stored = [path for path, leaf in plain.items() if leaf.image is not None]
    wanted = list(offered) if encoded is None else [one for one in encoded if offered or not _covers(one, stored)]
    with_files = source.with_encoded(wanted)
    columns: dict[str, ArraySpec] = flatten(checked_spec(with_files)) if wanted else plain
    images = {path: offered.get(path, leaf.image) for path, leaf in columns.items() if leaf.image is not None}
    files = _of_the_first(with_files, images)
    held = {} if encoded is not None and not encoded else destination.held_files(columns, files)
    asked_for = [
        path for path in files if encoded and (path not in stored or any(_covers(one, [path]) for one in encoded))
    ]
    if odd := [path for path in asked_for if path not in held]:
        raise SourceError(
            f'{source.name}: encoded "{odd[0]}": {destination.name} cannot hold the bytes of image files; leave encoded (--encoded) out'
        )
    odd_jpeg = {
        path: files[path].format == JPEG
        for path, image in held.items()
        if images[path].format in ("", JPEG) and files[path].is_accurate != image.is_accurate
    }
    decoded = {path: images[path] for path in stored if path not in held}
    return _Files(source.with_encoded([path for path in held if path not in stored]), tuple(held), decoded, odd_jpeg)


def _covers(asked: str, paths: Sequence[str]) -> bool:
    """Whether `asked`, a path or "all", covers one of the paths."""
    return bool(paths) and (asked == EVERY_IMAGE or any(is_under(path, asked) for path in paths))


def _of_the_first(source: Source, images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
    """The images; a format that the source does not know is taken from the files of the first episode."""
    if all(image.format for image in images.values()):
        return images
    first = next(iter(source), None)
    if first is None or first.faults:
        return images
    return {
        path: replace(image, format=image.format or _format_of(first.columns[path])) for path, image in images.items()
    }


def _format_of(files: Array) -> str:
    """The common format of all files; "" if they differ or have another format."""
    for name, start in ((JPEG, JPEG_START), (PNG, PNG_START)):
        if len(files) and all(isinstance(file, bytes) and file.startswith(start) for file in files.ravel()):
            return name
    return ""


def _has_jpeg(files: Array) -> bool:
    return any(isinstance(file, bytes) and file.startswith(JPEG_START) for file in files.ravel())


def _plain(column: Any) -> Any:
    """Text as an array of objects, whatever it came as; numbers in the machine's byte order."""
    if column.dtype.kind in "SU":
        values = [one.encode() if isinstance(one, str) else bytes(one) for one in column.ravel().tolist()]
        plain = np.empty(len(values), object)
        plain[:] = values
        return plain.reshape(column.shape)
    return column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))


# The remaining episodes of a conversion, read by this process or by workers.

Judged = Generator[tuple[Taken, list[Problem]], None, None]
"""Episodes in order, each with the problems that show only in comparison with other episodes."""


@dataclass(frozen=True)
class Here:
    """An episode that was read by this process; it is encoded only after it is accepted."""

    job: Job
    episode: Episode

    @property
    def id(self) -> str:
        """The episode's id."""
        return self.episode.id

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.episode.title

    @property
    def steps(self) -> int:
        """The number of steps, as recorded."""
        return len(self.episode)

    def accepted(self, preparer: Preparer, found: Sequence[Problem]) -> Accepted | None:
        """See `Taken.accepted`."""
        prepared, is_end_mended = self.job.prepared(preparer, self.episode, found)
        return None if prepared is None else lambda: self.job.written(prepared, is_end_mended)


def read_here(job: Job, left: Iterable[Episode], endings: Endings, on_clear: Callable[[Endings], object]) -> Judged:
    """Reads the remaining episodes in this process.

    Args:
      job: of the conversion.
      left: the episodes.
      endings: of the previous episodes.
      on_clear: see `Preparation.read`.
    """
    for episode, found in job.ready.read(left, endings=endings, on_clear=on_clear):
        yield Here(job, episode), found


def read_by(readers: Readers, start: int, endings: Endings, on_clear: Callable[[Endings], object]) -> Judged:
    """Reads with workers, from episode number `start` on; further arguments as `read_here`."""
    with closing(readers.read(start)) as reads:
        yield from problems_in_order(reads, attrgetter("ending"), endings, on_clear)
