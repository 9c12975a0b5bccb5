"""What images of a dataset take, as files and decoded: measured over its first steps, before anybody chooses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlds2reverb.episodes import Array, Episode, column_bytes
from rlds2reverb.image_headers import image_size
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.sources.base import Source, kept_images, with_encoded
from rlds2reverb.sources.transformed import recorded_path_of
from rlds2reverb.specs import flatten

_ENOUGH_STEPS = 200
"""Steps to measure, at least; sizes of a camera's images differ little."""


@dataclass(frozen=True)
class ImageColumn:
    """A column of images, and what a step of it takes.

    Attributes:
      path: the column's.
      image: what the files decode to.
      is_encoded: whether the files' bytes are stored; otherwise they are decoded first.
      encoded_bytes: mean bytes of a step's files.
      decoded_bytes: mean bytes of a step once decoded; None where that is not known.
      measured_steps: of how many steps.
      recorded: the dataset's path of it, which the option `encoded` takes; another one where a transform renames it.
    """

    path: str
    image: ImageSpec
    is_encoded: bool
    encoded_bytes: int
    decoded_bytes: int | None
    measured_steps: int
    recorded: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "image": str(self.image),
            "encoded": self.is_encoded,
            "encoded_bytes": self.encoded_bytes,
            "decoded_bytes": self.decoded_bytes,
            "measured_steps": self.measured_steps,
            "recorded": self.recorded,
        }


def image_columns(source: Source) -> tuple[ImageColumn, ...]:
    """The image columns of a source, those that it decodes and could keep encoded, too; () when it has none.

    Raises:
      SourceError: the first episodes cannot be read.
    """
    kept = {path: leaf.image for path, leaf in flatten(source.spec()).items() if leaf.image is not None}
    offered = kept_images(source)
    images = {**offered, **kept}
    if not images:
        return ()
    episodes = list(_first(with_encoded(source, list(offered))))
    steps = sum(map(len, episodes))
    if not steps:
        return ()
    columns = {path: [episode.columns[path] for episode in episodes] for path in images}
    return tuple(
        ImageColumn(
            path,
            image,
            path in kept,
            round(sum(map(column_bytes, columns[path])) / steps),
            _decoded_bytes(image, columns[path], steps),
            steps,
            recorded_path_of(source, path),
        )
        for path, image in images.items()
    )


def _first(source: Source) -> Iterator[Episode]:
    steps = 0
    for episode in source:
        yield episode
        steps += len(episode)
        if steps >= _ENOUGH_STEPS:
            return


def _decoded_bytes(image: ImageSpec, columns: list[Array], steps: int) -> int | None:
    count = sum(column.size for column in columns)
    if image.nbytes is not None:
        return round(image.nbytes * count / steps)
    channels = image.shape[2]
    sizes = [image_size(file) for column in columns for file in column.ravel()]
    if channels is None or None in sizes:
        return None
    pixels = sum(math.prod(size) for size in sizes if size is not None)
    return round(pixels * channels * image.dtype.itemsize / steps)
