"""What is converted, and into what: all that stays the same from the first episode to the last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.conventions import Conventions
from rlds2reverb.destinations.base import Content, Destination, Encode, Loss
from rlds2reverb.destinations.flags import LOSSES as OF_FLAGS
from rlds2reverb.destinations.flags import odd_flags
from rlds2reverb.destinations.losing import lines, refused
from rlds2reverb.destinations.taking import Read, Written
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ConversionError, SourceError
from rlds2reverb.metadata import metadata_values
from rlds2reverb.source_options import parted
from rlds2reverb.sources.base import Source, check_steps, checked_spec, kept_images, metadata_spec_of, with_encoded
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.validation import Policy, Problem, Standard
from rlds2reverb.validation.endings import ending_that_counts
from rlds2reverb.wording import counted

LOSSES = {
    **OF_FLAGS,
    "ragged_metadata": "features of an episode with several free sizes, whose rows may have different lengths; they are left out",
}
"""Code -> what no destination is given."""


@dataclass(frozen=True)
class Job:
    """One conversion.

    Attributes:
      source: what is read: transformed, and with the images encoded that stay their files' bytes.
      destination: what is written.
      content: what the destination gets.
      standard: what makes an episode good.
      losses: what is known to be lost.
      policy: makes the policy of bad episodes, anew for each reading; `again=True` for one that reports nothing.
      encoded: paths of the images that stay their files' bytes.
      strict: whether losses are refused, but those allowed.
      allowed_losses: their codes.
      places: folders and files that the source is read from.
      label: what else must be the same where a conversion goes on.
      source_label: what the source is called, wherever it lies.
      choice: of the policy, as plain values.
    """

    source: Source
    destination: Destination
    content: Content
    standard: Standard
    losses: tuple[Loss, ...]
    policy: Callable[..., Policy]
    encoded: tuple[str, ...] = ()
    strict: bool = False
    allowed_losses: Sequence[str] = ()
    places: Sequence[Path] = ()
    label: str = ""
    source_label: str = ""
    choice: Mapping[str, Any] = field(default_factory=dict)

    def check_losses(self, losses: Sequence[Loss], where: str) -> None:
        """Refuses losses, where they are.

        Raises:
          ConversionError: says which.
        """
        found = refused(losses, self.allowed_losses) if self.strict else []
        if found:
            told = "; ".join(lines(found))
            raise ConversionError(
                f"{where}: {self.destination.name} cannot hold all of it: {told}. Leave out strict, or allow_loss={found[0].code} "
                "(--allow-loss)"
            )

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

    def prepared(self, episode: Episode, policy: Policy, found: Sequence[Problem]) -> tuple[Episode | None, bool]:
        """What is written of an episode, None when it is rejected, or the format can hold nothing of it; and whether its end was mended.

        Raises:
          InvalidEpisode: it is bad and the policy is to stop.
        """
        accepted = policy.judge(episode, self.standard, found).episode
        if accepted is None:
            return None, False
        made = self._put(episode, accepted)
        if isinstance(made, Problem):
            return policy.reject(episode, [made]).episode, False
        return made, self._is_mended(accepted)

    def examined(self, episode: Episode, policy: Policy) -> Read:
        """What stands for an episode until all are heard of that may show something of it; nothing is counted."""
        conventions = self.standard.conventions
        ending = ending_that_counts(episode, conventions)
        accepted, problems, mended = policy.examined(episode, self.standard)
        read = Read(
            episode.id,
            episode.recorded_id,
            episode.title,
            len(episode),
            problems,
            mended,
            None if ending is None else ending.with_leap(episode),
        )
        if policy.bad(problems):
            return read
        made = self._put(episode, accepted)
        if isinstance(made, Problem):
            return replace(read, too_short=made)
        try:
            return replace(read, written=self.written(made, self._is_mended(accepted)))
        except ConversionError as error:
            return replace(read, error=error)

    def written(self, prepared: Episode, is_end_mended: bool) -> Written:
        """What a sink is given of an episode.

        Raises:
          ConversionError: the format cannot hold it.
        """
        odd = odd_flags(self.destination, prepared)
        return Written(self._encode(prepared), len(prepared), prepared.nbytes, is_end_mended, odd)

    @cached_property
    def _encode(self) -> Encode:
        return self.destination.encoder(self.content)

    def _is_mended(self, accepted: Episode) -> bool:
        return self.standard.conventions.mends_end(accepted)

    def _put(self, episode: Episode, accepted: Episode) -> Episode | Problem:
        """What is written of a good episode; or why the format holds nothing of it."""
        put = self.standard.put(accepted)
        if len(put) < self.destination.least_rows:
            return Problem("single_step", "", self._too_short(put))
        columns = {path: _plain(put.columns[path]) for path in self.content.columns}
        return replace(put, columns=columns, metadata=metadata_values(episode, self.content.metadata))

    def _too_short(self, episode: Episode) -> str:
        return (
            f"{self.destination.name} holds episodes of at least {counted(self.destination.least_rows, 'step')}, got {len(episode)}; "
            "on_invalid=skip (--on-invalid skip) leaves it out"
        )


def job_of(
    source: Source, destination: Destination, conventions: Conventions, encoded: Sequence[str] | None, **others: Any
) -> Job:
    """The job of a source that is transformed already.

    Args:
      source: what is read.
      destination: what is written.
      conventions: how episodes are put.
      encoded: paths of images that are to stay their files' bytes; None for those that both sides can hold so.
      others: further fields of `Job`.

    Raises:
      SourceError: the source has no spec, or lacks is_first or is_last; or an image cannot stay as it is.
      ConfigError: the format can hold nothing of it.
      ConversionError: something would be lost, which is not allowed.
    """
    source, kept = _with_files(source, destination, encoded)
    spec = checked_spec(source)
    check_steps(source, spec)
    features = flatten(metadata_spec_of(source))
    ragged = [path for path, leaf in features.items() if _may_be_ragged(leaf)]
    metadata = {path: leaf for path, leaf in features.items() if path not in ragged}
    content = Content(source.name, flatten(spec), metadata)
    losses = [Loss("ragged_metadata", LOSSES["ragged_metadata"], f"metadata/{path}") for path in ragged]
    losses += destination.losses(content)
    standard = Standard.of(spec, conventions, metadata)
    job = Job(source, destination, content, standard, tuple(losses), encoded=kept, **others)
    job.check_losses(losses, source.name)
    return job


def _may_be_ragged(spec: ArraySpec) -> bool:
    """Whether rows of a value may have different lengths; those of an image have not."""
    is_image = len(spec.shape) == 3 and spec.shape[-1] is not None and spec.dtype.name in ("uint8", "uint16")
    return spec.shape.count(None) > 1 and not is_image


def _with_files(
    source: Source, destination: Destination, encoded: Sequence[str] | None
) -> tuple[Source, tuple[str, ...]]:
    """The source with images as the bytes of their files, as asked for, or wherever both sides can."""
    wanted = list(kept_images(source)) if encoded is None else list(encoded)
    if not wanted:
        return source, ()
    leaves: dict[str, ArraySpec] = flatten(with_encoded(source, wanted).spec())
    files = {path: leaf for path, leaf in leaves.items() if leaf.image is not None}
    held = tuple(path for path, leaf in files.items() if destination.holds_files(leaf))
    if encoded is not None and len(held) < len(files):
        odd = next(path for path in files if path not in held)
        raise SourceError(
            f'{source.name}: encoded "{odd}": {destination.name} cannot hold the bytes of image files; leave encoded (--encoded) out'
        )
    return (with_encoded(source, held), held) if held else (source, ())


def _plain(column: Any) -> Any:
    """Text as an array of objects, whatever it came as; numbers in the machine's byte order."""
    if column.dtype.kind in "SU":
        values = [one.encode() if isinstance(one, str) else bytes(one) for one in column.ravel().tolist()]
        plain = np.empty(len(values), object)
        plain[:] = values
        return plain.reshape(column.shape)
    return column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))
