"""What a conversion makes of an episode, and its account: read and judged in this process, or by workers.

What the other episodes show of one is known only when all before it, and a few behind, are read. So whoever drives the conversion decides
about each, in order, and counts; a worker has done all else by then.
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
    """What is written of an episode.

    Attributes:
      encoded: for the sink.
      steps, bytes: of it; bytes as columns in memory.
      is_end_mended: whether its last row is not as recorded.
      odd_flags: paths of the flags that do not come back as they are.
      jpeg: paths of images that are JPEG files, which the format's own system decodes otherwise; see `Job.odd_jpeg`.
    """

    encoded: Any
    steps: int
    bytes: int
    is_end_mended: bool
    odd_flags: tuple[str, ...]
    jpeg: tuple[str, ...] = ()


Accepted = Callable[[], Written]
"""Makes what is written. Raises ConversionError: the format cannot hold it."""


class Taken(Protocol):
    """An episode that was read."""

    @property
    def id(self) -> str:
        """Of the episode."""

    @property
    def title(self) -> str:
        """As messages name it."""

    @property
    def steps(self) -> int:
        """How many it has, as recorded."""

    def accepted(self, preparer: Preparer, found: Sequence[Problem]) -> Accepted | None:
        """Decides about it, and has that counted; None when it is rejected.

        Args:
          preparer: of the conversion; its policy counts.
          found: what others show.

        Raises:
          InvalidEpisode: it is bad and the policy is to stop.
        """


@dataclass(frozen=True)
class Read:
    """One that a worker has read, judged by itself, and encoded where it is good so far.

    Attributes:
      id, recorded_id, title: see `episodes.Episode`.
      steps: as recorded.
      problems, mended: what it shows by itself; see `validation.policy.Examined`.
      ending: how it ends; None where that cannot tell.
      too_short: why the format holds nothing of it.
      written: None where it is rejected anyway.
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
      workers: how many at a time.
    """

    workers: int

    @property
    def parts_again(self) -> int:
        """Parts of the source that were begun anew, for their workers were lost."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What their sources say of the dataset."""

    def read(self, start: int) -> Generator[Read, None, None]:
        """The episodes from a number on, in order. Closing it stops all workers.

        Raises:
          Rlds2ReverbError: as reading the source does, at the same episode; or a worker cannot begin.
          WorkersLost: one was lost again and again.
        """


# The account of a conversion while it runs; it goes on over several runs.

_COUNTERS = ("rejected", "advice", "repaired")


@dataclass
class Account:
    """What a conversion has seen; see `ConvertReport`.

    Attributes:
      policy: counts bad episodes.
      losses: what is lost.
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
        """An episode of so many steps came from the source."""
        self.episodes_read += 1
        self.steps_read += steps

    def count_written(self, written: Written, losses: Sequence[Loss]) -> None:
        """An episode is with the sink, which told these losses."""
        self.losses.add(self.episodes_written, losses)
        self.episodes_written += 1
        self.steps_written += written.steps
        self.ends_mended += written.is_end_mended
        self.bytes += written.bytes

    def report(self) -> ConvertReport:
        """So far; who converts what is not known here."""
        of_policy: dict[str, Any] = self._counters()
        numbers: dict[str, Any] = self._numbers()
        return ConvertReport("", "", losses=self.losses.counted(), **numbers, **of_policy)

    def as_state(self) -> dict[str, Any]:
        """For JSON."""
        return {"numbers": self._numbers(), "counters": self._counters(), "losses": self.losses.as_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        for name, value in state["numbers"].items():
            setattr(self, name, value)
        for name, counts in state["counters"].items():
            getattr(self.policy, name).update(counts)
        self.losses.restore(state["losses"])

    def _counters(self) -> dict[str, dict[str, int]]:
        return {name: dict(getattr(self.policy, name)) for name in _COUNTERS}

    def _numbers(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("policy", "losses")}


# What is converted, and into what: all that stays the same from the first episode to the last.

LOSSES = {
    **OF_FLAGS,
    "ragged_metadata": "features of an episode with several free sizes, whose rows may have different lengths; they are left out",
    "jpeg_pixels": "the files stay as they are, but the two systems decode JPEG in two ways, by the fast DCT (TFDS) and by the accurate one (LeRobot, "
    "Minari): pixels differ by a few of 255 levels; decode=True (--decode) writes the pixels",
}
"""Code -> what no destination is given, or not as the source's own system sees it."""

_PIXELS = "jpeg_pixels"


@dataclass(frozen=True)
class Job:
    """One conversion.

    Attributes:
      ready: what is read: transformed, and with the images encoded that stay their files' bytes; and what is done with bad episodes.
      destination: what is written.
      content: what the destination gets.
      losses: what is known to be lost.
      encoded: paths of the images that stay their files' bytes.
      odd_jpeg: those of them whose files may be JPEG or not, and JPEG is decoded otherwise by the destination's own system.
      decoded: path -> what it decodes to, of images that the source has as files only and the destination cannot hold so.
      allowed_losses: codes of losses that are not refused, where losses are.
      places: folders and files that the source is read from.
      label: what else must be the same where a conversion goes on.
      source_label: what the source is called, wherever it lies.
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
        """What becomes of bad episodes, as plain values."""
        options = self.ready.options
        return {"on_invalid": options.on_invalid, "allow": sorted(options.allow), "strict": options.strict}

    def check_losses(self, losses: Sequence[Loss], where: str) -> None:
        """Refuses losses, where they are.

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
        """The losses of an episode that has JPEG files in these columns, but those told already."""
        told = {one.path for one in self.losses if one.code == _PIXELS}
        return [Loss(_PIXELS, LOSSES[_PIXELS], path, NO_ROWS) for path in paths if path not in told]

    def identity(self) -> dict[str, Any]:
        """What must be the same where a conversion goes on.

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
        """What is written of an episode, None when it is rejected, or the format can hold nothing of it; and whether its end was mended.

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
        """What stands for an episode until all are heard of that may show something of it; nothing is counted."""
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
        """What a sink is given of an episode.

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
        """What is written of a good episode; or why the format holds nothing of it."""
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
    """The job of a source that is transformed already.

    Args:
      source: what is read.
      destination: what is written.
      options: what episodes are to be.
      encoded: paths of images that are to stay their files' bytes; None for those that both sides can hold so.
      others: further fields of `Job`.

    Raises:
      SourceError: the source has no spec, or lacks is_first or is_last; or an image cannot stay as it is.
      ConfigError: the format can hold nothing of it.
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
    """What becomes of the image columns of a source.

    Attributes:
      source: with the columns that are kept as the bytes of their files, and those that it has no other way.
      kept: paths of images that stay their files' bytes.
      decoded: path -> what it decodes to, of those that the source has as files only, and the destination cannot hold so.
      odd_jpeg: of the kept ones, those whose JPEG files, if that is what they are, the destination's own system decodes otherwise; whether
        the first episode tells that they are JPEG.
    """

    source: Source
    kept: tuple[str, ...]
    decoded: Mapping[str, ImageSpec]
    odd_jpeg: Mapping[str, bool]


def _with_files(source: Source, destination: Destination, encoded: Sequence[str] | None) -> _Files:
    """Images as the bytes of their files, as asked for, or wherever both sides can; a table of Reverb may hold nothing else."""
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
    """Whether one of the paths is asked for."""
    return bool(paths) and (asked == EVERY_IMAGE or any(is_under(path, asked) for path in paths))


def _of_the_first(source: Source, images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
    """The images, with the format that their files have in the first episode where the source itself does not know it."""
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


# The episodes of a conversion that are left, with what others show of them: read by this process, or by workers.

Judged = Generator[tuple[Taken, list[Problem]], None, None]
"""Episodes, in order, and what others show of each."""


@dataclass(frozen=True)
class Here:
    """One that was read by this process, which does the rest when it is accepted."""

    job: Job
    episode: Episode

    @property
    def id(self) -> str:
        """Of the episode."""
        return self.episode.id

    @property
    def title(self) -> str:
        """As messages name it."""
        return self.episode.title

    @property
    def steps(self) -> int:
        """How many it has, as recorded."""
        return len(self.episode)

    def accepted(self, preparer: Preparer, found: Sequence[Problem]) -> Accepted | None:
        """See `Taken.accepted`."""
        prepared, is_end_mended = self.job.prepared(preparer, self.episode, found)
        return None if prepared is None else lambda: self.job.written(prepared, is_end_mended)


def read_here(job: Job, left: Iterable[Episode], endings: Endings, on_clear: Callable[[Endings], object]) -> Judged:
    """By this process.

    Args:
      job: of the conversion.
      left: the episodes.
      endings: of those before them.
      on_clear: see `Preparation.read`.
    """
    for episode, found in job.ready.read(left, endings=endings, on_clear=on_clear):
        yield Here(job, episode), found


def read_by(readers: Readers, start: int, endings: Endings, on_clear: Callable[[Endings], object]) -> Judged:
    """By workers, from episode number `start` on; other arguments as `read_here`."""
    with closing(readers.read(start)) as reads:
        yield from problems_in_order(reads, attrgetter("ending"), endings, on_clear)
