"""What is converted, and into what: all that stays the same from the first episode to the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.destinations.base import NO_ROWS, Content, Destination, Encode, Loss
from rlds2reverb.destinations.flags import LOSSES as OF_FLAGS
from rlds2reverb.destinations.flags import odd_flags
from rlds2reverb.destinations.losing import lines, refused
from rlds2reverb.destinations.taking import Read, Written
from rlds2reverb.episodes import Array, Episode, is_under
from rlds2reverb.errors import ConversionError, DecodeError, SourceError
from rlds2reverb.image_headers import JPEG_START, PNG_START
from rlds2reverb.image_spec import JPEG, PNG, ImageSpec
from rlds2reverb.images import decode_images
from rlds2reverb.metadata import metadata_values
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Preparation, Preparer
from rlds2reverb.source_options import parted
from rlds2reverb.sources.base import ALL as EVERY_IMAGE
from rlds2reverb.sources.base import Source, checked_spec, kept_images, metadata_spec_of, with_encoded
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.validation import Problem
from rlds2reverb.wording import counted

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
    """Whether rows of a value may have different lengths; those of an image have not."""
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
    offered, plain = kept_images(source), flatten(checked_spec(source))
    stored = [path for path, leaf in plain.items() if leaf.image is not None]
    wanted = list(offered) if encoded is None else [one for one in encoded if offered or not _covers(one, stored)]
    with_files = with_encoded(source, wanted)
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
    return _Files(with_encoded(source, [path for path in held if path not in stored]), tuple(held), decoded, odd_jpeg)


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
    """The format of all files; "" where they differ, or are of another one."""
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
