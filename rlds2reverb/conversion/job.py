"""How a conversion prepares each episode, in this process or in workers, and how it counts them.

Some problems of an episode show only once all previous and a few later episodes are read. So the process that drives
the conversion accepts or rejects each episode, in order, and counts; everything else comes before that (`Job.examine`).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2reverb.conversion.report import ConvertReport, Losses, lines, refuse_losses
from rlds2reverb.episode import Array, Episode, is_under, metadata_values
from rlds2reverb.errors import ConfigError, ConversionError, DecodeError, SourceError
from rlds2reverb.formats.destination import LOSSES as OF_FLAGS
from rlds2reverb.formats.destination import NO_ROWS, Content, Destination, Encode, Loss, UnfitEpisode, odd_flags
from rlds2reverb.formats.options import split_options
from rlds2reverb.formats.source import ALL as EVERY_IMAGE
from rlds2reverb.formats.source import Source, checked_spec, metadata_spec_of
from rlds2reverb.images import JPEG_START, PNG_START, decode_images
from rlds2reverb.prepare.endings import Ending
from rlds2reverb.prepare.image_files import ImageColumn, has_orientation, image_columns
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.policy import Examined, Policy
from rlds2reverb.prepare.preparation import Preparation, Preparer
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import JPEG, PNG, ArraySpec, ImageSpec, flatten
from rlds2reverb.text import counted

_TOGETHER_ROWS, _TOGETHER_BYTES, _WAIT_SECONDS = 1024, 1 << 19, 0.05
"""Episodes are judged together while one more like the last keeps them within so many rows, until they have so many bytes, or the first has waited so
long: most of what a short one costs does not depend on its length."""

UNFIT = "unfit"
"""The code of episodes that the destination's format cannot hold."""


@dataclass(frozen=True)
class Written:
    """An encoded episode."""

    encoded: Any  # for the sink
    # of the episode; bytes as columns in memory
    steps: int
    bytes: int
    is_end_mended: bool  # whether its last row is not as recorded
    odd_flags: tuple[str, ...]  # paths of the flags that differ after reading back
    file_losses: tuple[Loss, ...] = ()  # of image files that stay as they are, without those of all episodes


@dataclass(frozen=True)
class Read:
    """An episode that was read, validated on its own, and encoded if it is good so far."""

    # see `Episode`
    id: str
    recorded_id: str | None
    title: str
    steps: int  # as recorded
    # results of validating it on its own; see `prepare.policy.Examined`
    problems: tuple[Problem, ...]
    mended: tuple[Problem, ...]
    ending: Ending | None  # how it ends; None if that is of no use for other episodes
    # the encoded episode, or why it is kept out of the format; None if it is rejected in any case
    outcome: Written | Problem | None = None
    played: bytes = b""  # see `growing.Played`; of a dataset that grows

    def for_others(self) -> Read:
        """What is sent to another process."""
        return self if self.ending is None else replace(self, ending=self.ending.with_leap())

    def is_accepted(self, preparer: Preparer, shown: Sequence[Problem]) -> bool:
        """Decides about the episode, and counts the decision; `shown` are problems that only other episodes show.

        Raises:
          InvalidEpisode: it is bad and the policy is to stop.
        """
        if not preparer.policy.accepts(self, [*self.problems, *shown], self.mended):
            return False
        if isinstance(self.outcome, Problem):
            preparer.policy.reject(self, [self.outcome], is_tolerable=False)
        return not isinstance(self.outcome, Problem)

    def written(self) -> Written:
        """The encoded episode, if it is accepted."""
        assert isinstance(self.outcome, Written)  # it is good
        return self.outcome


@dataclass
class Account:
    """The counts of a conversion, see `ConvertReport`; a restarted conversion continues them."""

    policy: Policy  # the policy of bad episodes, which counts them
    losses: Losses = field(default_factory=Losses)  # found so far
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
        counts = ", ".join(f"{code} {count:,}" for code, count in self.policy.rejected.items())
        return f"of {self.episodes_read:,} read, rejected were: {counts}"

    def count_read(self, steps: int) -> None:
        self.episodes_read += 1
        self.steps_read += steps

    def count_written(self, written: Written, losses: Sequence[Loss]) -> None:
        self.losses.add(self.episodes_written, losses)
        self.episodes_written += 1
        self.steps_written += written.steps
        self.ends_mended += written.is_end_mended
        self.bytes += written.bytes

    def report(self) -> ConvertReport:
        """The report up to now, without source and destination."""
        state = self.as_state()
        return ConvertReport("", "", losses=self.losses.counted(), **state["numbers"], **state["counters"])

    def as_state(self) -> dict[str, Any]:
        """Plain values for JSON, which `restore` reads."""
        numbers = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("policy", "losses")
        }
        counters = {name: dict(getattr(self.policy, name)) for name in ("rejected", "advice", "repaired")}
        return {"numbers": numbers, "counters": counters, "losses": self.losses.as_state()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state["numbers"].items():
            setattr(self, name, value)
        for name, counts in state["counters"].items():
            getattr(self.policy, name).update(counts)
        self.losses.restore(state["losses"])


LOSSES = {
    **OF_FLAGS,
    "ragged_metadata": "features of an episode with more than one free size, whose rows may have different lengths; they are left out",
    "dataset_metadata": "what the source says of the dataset as a whole, for which the format has no place; left out",
    "jpeg_pixels": "the files stay as they are, but the two systems decode JPEG in two ways, by the fast DCT (TFDS) and by the accurate one (LeRobot, "
    "Minari): pixels differ by a few of 255 levels; decode=True (--decode) writes the pixels",
    "orientation": "the files stay as they are, but LeRobot turns images by the orientation in their files (EXIF), and TFDS and Minari do not; decode=True "
    "(--decode) writes the pixels as the source's system shows them",
    "image_bits": "files of 16 bits in an image of uint8, by the first episodes: decoding drops the low byte of each value; where the destination holds image files, they "
    "stay as they are without decode (--decode)",
}
"""Code -> losses that the conversion itself reports, whatever the destination."""

_PIXELS, _TURNED, _BITS = "jpeg_pixels", "orientation", "image_bits"


class NamesPlayed(Protocol):
    """See `growing.Played`."""

    def name(self, columns: Mapping[str, Array]) -> bytes: ...


@dataclass(frozen=True)
class Job:
    """One conversion: everything that stays the same from the first episode to the last."""

    ready: Preparation  # the transformed source, with kept images encoded, and the policy of bad episodes
    destination: Destination  # to be written
    content: Content  # what the destination gets
    losses: tuple[Loss, ...]  # what is known to be lost
    encoded: tuple[str, ...] = ()  # paths of the images that are kept as the bytes of their files
    # those of them whose files may be JPEG, if the destination's own system decodes JPEG differently
    odd_jpeg: tuple[str, ...] = ()
    odd_turned: tuple[str, ...] = ()  # those of them that one of the two systems turns by EXIF, and the other does not
    images: tuple[ImageColumn, ...] = ()  # what the image files of the first episodes are
    # path -> decoded spec, of images that the source has only as files, which the destination cannot hold
    decoded: Mapping[str, ImageSpec] = field(default_factory=dict)
    allowed_losses: Sequence[str] = ()  # codes of losses that `strict` permits
    places: Sequence[Path] = ()  # folders and files that the source is read from
    label: str = ""  # further options that must be equal for a conversion to continue
    source_label: str = ""  # the source's name without its folders
    is_live: bool = False  # whether reading the source again gives other episodes
    old: Source | None = None  # the dataset that grows
    old_files: str = ""  # a digest of its files before it was opened
    played: NamesPlayed | None = None  # names episodes by what was played, where a dataset grows

    @property
    def source(self) -> Source:
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
        forbidden = refuse_losses(losses, self.allowed_losses) if self.ready.options.strict else []
        if forbidden:
            every = "; ".join(lines(forbidden))
            raise ConversionError(
                f"{where}: {self.destination.name} cannot hold all of it: {every}. Leave out strict, or allow_loss={forbidden[0].code} "
                "(--allow-loss)"
            )

    def with_images(self) -> Job:
        """The job with what the image files of the first episodes are, and with the losses that they show.

        Raises:
          ConversionError: such a loss is not allowed.
        """
        try:
            columns = image_columns(self.source)
        except SourceError:  # told when the episodes are converted
            return self
        images = tuple(
            replace(column, is_encoded=column.is_encoded and column.path not in self.decoded) for column in columns
        )
        losses = [
            Loss(_BITS, LOSSES[_BITS], image.path, NO_ROWS)
            for image in images
            if image.loses_bits and not image.is_encoded
        ]
        self.check_losses(losses, self.source.name)
        return replace(self, images=images, losses=(*self.losses, *losses))

    def _file_losses(self, episode: Episode) -> tuple[Loss, ...]:
        """What the destination's system shows differently of the image files that stay, without the losses of all episodes."""
        shown = ((_PIXELS, self.odd_jpeg, _is_jpeg), (_TURNED, self.odd_turned, has_orientation))
        reported = {(loss.code, loss.path) for loss in self.losses}
        return tuple(
            Loss(code, LOSSES[code], path, NO_ROWS)
            for code, paths, is_shown in shown
            for path in paths
            if (code, path) not in reported
            and any(isinstance(file, bytes) and is_shown(file) for file in episode.columns[path].ravel())
        )

    def identity(self) -> dict[str, Any]:
        """The facts that must be equal for a conversion to continue.

        Raises:
          SourceError: there is no episode.
        """
        first = next(iter(self.source), None)
        if first is None:
            raise SourceError(f"{self.source.name}: has no episodes, so there is nothing to convert")
        specs = {path: f"{spec} {spec.name}" for path, spec in self.content.columns.items()}
        scheme, _, text = self.destination.name.partition(":")
        return {
            "source": {
                "name": self.source_label,
                "first episode": "" if self.is_live else first.id,
                "episodes": self.source.episode_count,
                "columns": specs,
                "metadata": {path: str(spec) for path, spec in self.content.metadata.items()},
            },
            "destination": f"{scheme}:{self.destination.path.name}?{split_options(text)[1]}",
            "options": self.label,
        }

    def examine(self, preparer: Preparer, episode: Episode) -> Read:
        """An episode that waits for the comparison with other episodes; nothing is counted yet."""
        return self._read(preparer, episode, preparer.examine(episode))

    def examine_all(self, preparer: Preparer, episodes: Iterable[Episode]) -> Generator[Read, None, None]:
        """Does as `examine` for every episode; short ones that come quickly are judged together, which is faster. Those before an error come first."""
        together: list[Episode] = []
        rows = size = 0
        is_at_hand, due = self.source.is_at_hand, time.monotonic() + _WAIT_SECONDS
        try:
            for episode in episodes:
                together.append(episode)
                rows, size = rows + len(episode), size + episode.nbytes
                is_enough = rows + len(episode) > _TOGETHER_ROWS or size >= _TOGETHER_BYTES
                if is_enough or not is_at_hand or time.monotonic() >= due:
                    taken, together, rows, size = together, [], 0, 0
                    yield from map(partial(self._read, preparer), taken, preparer.examine_together(taken))
                    due = time.monotonic() + _WAIT_SECONDS
        except Exception:
            yield from map(partial(self._read, preparer), together, preparer.examine_together(together))
            raise
        yield from map(partial(self._read, preparer), together, preparer.examine_together(together))

    def _read(self, preparer: Preparer, episode: Episode, examined: Examined) -> Read:
        outcome, played = self._outcome(preparer, episode, examined)
        return Read(
            episode.id,
            episode.recorded_id,
            episode.title,
            len(episode),
            examined.problems,
            examined.mended,
            self.ready.ending(episode),
            outcome,
            played,
        )

    def _outcome(
        self, preparer: Preparer, episode: Episode, examined: Examined
    ) -> tuple[Written | Problem | None, bytes]:
        """See `Read.outcome` and `Read.played`."""
        filled = examined.episode
        if preparer.policy.bad(examined.problems):
            return None, b""
        fitted = self.fit(episode, preparer.normalise(filled))
        encoded = fitted if isinstance(fitted, Problem) else self.encode(fitted)
        if isinstance(fitted, Problem) or isinstance(encoded, Problem):
            return encoded, b""
        is_end_mended = self.ready.standard.conventions.mends_end(filled)
        odd = odd_flags(self.destination, fitted)
        written = Written(encoded, len(fitted), fitted.nbytes, is_end_mended, odd, self._file_losses(fitted))
        return written, b"" if self.played is None else self.played.name(fitted.columns)

    def encode(self, episode: Episode) -> Any:
        """What the sink takes of an episode to write; or the `Problem` that keeps it out of the format."""
        try:
            return self._encoder(episode)
        except UnfitEpisode as unfit:
            return Problem(UNFIT, unfit.path, unfit.why)

    @cached_property
    def _encoder(self) -> Encode:
        return self.destination.encoder(self.content)

    def fit(self, episode: Episode, normalised: Episode) -> Episode | Problem:
        """The episode to write; or the problem that keeps it out of the format."""
        if len(normalised) < self.destination.least_rows:
            detail = (
                f"{self.destination.name} holds episodes of at least {counted(self.destination.least_rows, 'step')}, "
                f"got {len(normalised)}; allow (--allow) cannot change that"
            )
            return Problem("single_step", "", detail)
        columns = {path: _plain(normalised.columns[path]) for path in self.content.columns}
        for path, image in self.decoded.items():
            try:
                columns[path] = decode_images(columns[path], image, column=path)
            except DecodeError as error:
                return Problem("image", path, str(error))
        return replace(normalised, columns=columns, metadata=metadata_values(episode, self.content.metadata))


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
    files = _plan_images(source, destination, encoded)
    source = files.source
    features = flatten(metadata_spec_of(source))
    ragged = [path for path, leaf in features.items() if _may_be_ragged(leaf)]
    metadata = {path: leaf for path, leaf in features.items() if path not in ragged}
    ready = Preparation.of(source, options, metadata=metadata)
    columns: dict[str, ArraySpec] = flatten(ready.recorded_spec)
    for path, image in files.decoded.items():
        columns[path] = ArraySpec((*columns[path].shape, *image.shape), image.dtype)
    content = Content(source.name, columns, metadata, source.about, source)
    losses = [Loss("ragged_metadata", LOSSES["ragged_metadata"], f"metadata/{path}") for path in ragged]
    losses += destination.losses(content)
    losses += _lost_facts(destination, content)
    losses += [Loss(_PIXELS, LOSSES[_PIXELS], path, NO_ROWS) for path, is_jpeg in files.odd_jpeg.items() if is_jpeg]
    job = Job(
        ready,
        destination,
        content,
        tuple(losses),
        encoded=files.kept,
        odd_jpeg=tuple(files.odd_jpeg),
        odd_turned=files.odd_turned,
        decoded=files.decoded,
        **others,
    )
    job.check_losses(losses, source.name)
    return job


def _lost_facts(destination: Destination, content: Content) -> Iterator[Loss]:
    kept, about = destination.kept_facts(content), content.about
    for name in about.facts:
        if name not in kept:
            yield Loss("dataset_metadata", LOSSES["dataset_metadata"], f"dataset/{name}", NO_ROWS)
    for name in about.unequal:
        text = "what the parts of a mix say of themselves differently, or only some of them say; left out"
        yield Loss("dataset_metadata", text, f"dataset/{name}", NO_ROWS)


def _is_jpeg(file: bytes) -> bool:
    return file.startswith(JPEG_START)


def _may_be_ragged(spec: ArraySpec) -> bool:
    """Whether rows of a value may have different lengths; those of an image may not."""
    is_image = len(spec.shape) == 3 and spec.shape[-1] is not None and spec.dtype.name in ("uint8", "uint16")
    return spec.shape.count(None) > 1 and not is_image


@dataclass(frozen=True)
class _ImagePlan:
    """How the image columns of a source are written."""

    source: Source  # with those columns encoded that are kept as files, or that it has only as files
    kept: tuple[str, ...]  # paths of images that are kept as the bytes of their files
    # path -> decoded spec, of images that the source has only as files, which the destination cannot hold
    decoded: Mapping[str, ImageSpec]
    # of the kept ones, those whose JPEG files the destination's own system decodes differently; and whether the first
    # episode shows that they are JPEG
    odd_jpeg: Mapping[str, bool]
    odd_turned: tuple[str, ...]  # of the kept ones, those that only one of the two systems turns by EXIF


def _plan_images(source: Source, destination: Destination, encoded: Sequence[str] | None) -> _ImagePlan:
    offered, plain = source.images(), flatten(checked_spec(source))
    stored = [path for path, leaf in plain.items() if leaf.image is not None]
    to_encode = list(offered) if encoded is None else [path for path in encoded if offered or not _covers(path, stored)]
    with_files = source.with_encoded(to_encode)
    columns: dict[str, ArraySpec] = flatten(checked_spec(with_files)) if to_encode else plain
    images = {path: offered.get(path, leaf.image) for path, leaf in columns.items() if leaf.image is not None}
    files = _look_for_formats(with_files, images)
    held = {} if encoded is not None and not encoded else destination.held_files(columns, files)
    asked_for = [
        path for path in files if encoded and (path not in stored or any(_covers(choice, [path]) for choice in encoded))
    ]
    if odd := [path for path in asked_for if path not in held]:
        raise SourceError(
            f'{source.name}: encoded "{odd[0]}": {destination.name} cannot hold the bytes of image files; leave encoded (--encoded) out'
        )
    odd_jpeg = {
        path: files[path].format == JPEG
        for path, image in held.items()
        if path not in source.encodes
        and images[path].format in ("", JPEG)
        and files[path].is_accurate != image.is_accurate
    }
    odd_turned = tuple(path for path, image in held.items() if images[path].is_upright != image.is_upright)
    decoded = {path: images[path] for path in stored if path not in held}
    if lost := [path for path in decoded if path in source.encodes]:
        raise ConfigError(
            f'{source.name}: encode "{lost[0]}": {destination.name} cannot hold the bytes of image files; leave encode (--encode) out'
        )
    kept = source.with_encoded([path for path in held if path not in stored])
    return _ImagePlan(kept, tuple(held), decoded, odd_jpeg, odd_turned)


def _covers(choice: str, paths: Sequence[str]) -> bool:
    """Whether a choice, a path or "all", covers one of the paths."""
    return bool(paths) and (choice == EVERY_IMAGE or any(is_under(path, choice) for path in paths))


def _look_for_formats(source: Source, images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
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


def _plain(column: Any) -> Any:
    """Text as an array of objects, whatever it came as; numbers in the machine's byte order."""
    if column.dtype.kind in "SU":
        values = [text.encode() if isinstance(text, str) else bytes(text) for text in column.ravel().tolist()]
        return np.array(values, object).reshape(column.shape)
    return column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))
