"""The image files of a source, by those of its first episodes: what they take, and what decoding changes in them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from rlds2reverb.episode import Array, Episode, Notice, column_bytes, note
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.source import Source
from rlds2reverb.images import AS_STORED, JPEG_START, SIXTEEN_BITS, image_size, is_refused, mode_of, orientation_of
from rlds2reverb.plain import Count, printed
from rlds2reverb.specs import ImageSpec, flatten
from rlds2reverb.text import counted

_ENOUGH_STEPS = 200  # steps to measure, at least; sizes of a camera's images differ little


@printed("image", "encoded=is_encoded", "encoded_bytes", "decoded_bytes", "measured_steps", "recorded")
@dataclass(frozen=True)
class ImageColumn:
    """A column of images, and what a step of it takes.

    Attributes:
      path: the column's.
      image: what the files decode to.
      is_encoded: whether the files' bytes are stored; otherwise they are decoded first.
      encoded_bytes: mean bytes of a step's files.
      decoded_bytes: mean bytes of a step once decoded; None where that is not known.
      measured_steps: number of steps that were measured.
      recorded: the dataset's path of it, which the option `encoded` takes; another one where a transform renames it.
      oriented_files: number of measured files that say how their image is to be turned or mirrored (EXIF).
      modes: (mode, number of measured files), of files whose pixels decoding changes to fit the image; see `images.mode_of`.
      refused: ("JPEG of the mode CMYK", number of measured files), of files that cannot be decoded to the image.
    """

    path: str
    image: ImageSpec
    is_encoded: bool
    encoded_bytes: Count
    decoded_bytes: Count | None
    measured_steps: Count
    recorded: str
    oriented_files: int = 0
    modes: tuple[tuple[str, int], ...] = ()
    refused: tuple[tuple[str, int], ...] = ()

    @property
    def notices(self) -> Iterator[Notice]:
        """What becomes of the files' orientation, if any has one, and of files in other modes than the image's."""
        if self.oriented_files:
            yield self._orientation()
        steps = counted(self.measured_steps, "step")
        kept = "the files are kept as they are, and " if self.is_encoded else ""
        place = f"in a column of {self._what}"
        for mode, files in self.modes:
            text = f"image files of the {steps} looked at, of the mode {mode}, {place}: {kept and kept + 'in decoding '}{'; '.join(changes(mode, self.image))}"
            yield note("image_mode", text, files, self.path)
        for kind, files in self.refused:
            refused = "decoding refuses them" if self.is_encoded else "they are not read here"
            text = f"image files of the {steps} looked at, each a {kind}, {place}: {kept}{refused}"
            yield note("image_mode", text, files, self.path)

    @property
    def loses_bits(self) -> bool:
        """Whether decoding drops the low byte of values in the files looked at."""
        return self.image.dtype == np.uint8 and any(mode.endswith(SIXTEEN_BITS) for mode, _ in self.modes)

    @property
    def _what(self) -> str:
        channels = self.image.shape[2]
        return f"{self.image.dtype}" if channels is None else f"{counted(channels, 'channel')} of {self.image.dtype}"

    def _orientation(self) -> Notice:
        became = "it is not applied, as the format's own reader does not apply it"
        if self.is_encoded:
            became = "the files are kept as they are, and decoding them does not apply it"
        elif self.image.is_upright:
            became = "it is applied, as the format's own reader does"
        steps = counted(self.measured_steps, "step")
        text = f"image files of the {steps} looked at that have an orientation (EXIF): {became}"
        return note("orientation", text, self.oriented_files, self.path)


def image_columns(source: Source) -> tuple[ImageColumn, ...]:
    """The image columns of a source, including those that it decodes and could keep encoded; it reads the first episodes."""
    kept = {path: leaf.image for path, leaf in flatten(source.spec()).items() if leaf.image is not None}
    offered = source.images()
    images = {**offered, **kept}
    if not images:
        return ()
    episodes: list[Episode] = []
    steps = 0
    for episode in source.with_encoded(list(offered)):
        episodes.append(episode)
        steps += len(episode)
        if steps >= _ENOUGH_STEPS:
            break
    if not steps:
        return ()
    columns = {
        path: [episode.columns[path] for episode in episodes if path in episode.columns]  # faulty ones may lack it
        for path in images
    }
    return tuple(
        ImageColumn(
            path,
            image,
            path in kept,
            round(sum(map(column_bytes, columns[path])) / steps),
            _decoded_bytes(image, columns[path], steps),
            steps,
            source.recorded_paths(path)[0],
            sum(map(has_orientation, _files(columns[path]))),
            _odd_modes(image, _files(columns[path])),
            _refused(image, _files(columns[path])),
        )
        for path, image in images.items()
    )


def _files(columns: Sequence[Array]) -> Iterator[bytes]:
    return chain.from_iterable(column.ravel() for column in columns)


def _odd_modes(image: ImageSpec, files: Iterable[bytes]) -> tuple[tuple[str, int], ...]:
    """(mode, number of files) of the modes that decoding changes, most files first."""
    modes = Counter(mode_of(file) for file in files if not is_refused(file, image))
    return tuple((mode, count) for mode, count in modes.most_common() if changes(mode, image))


def _refused(image: ImageSpec, files: Iterable[bytes]) -> tuple[tuple[str, int], ...]:
    """(kind, number of files) of the files that decoding refuses, most files first."""
    kinds = Counter(
        f"{'JPEG' if file.startswith(JPEG_START) else 'PNG'} of the mode {mode_of(file)}"
        for file in files
        if is_refused(file, image)
    )
    return tuple(kinds.most_common())


_GREY = ("1", "L", "I", "LA")


def changes(mode: str, image: ImageSpec) -> list[str]:
    """What decoding does to the pixels of a file in a mode of `images.mode_of`, so that they fit an image; [] for nothing.

    Not of files that it refuses (`images.is_refused`). As `images.decode_files` does it, so as TensorFlow and TFDS.
    """
    if not mode or image.dtype.kind == "f":  # no image file; floats are bytes of RGBA
        return []
    colours, bits = mode.removesuffix(SIXTEEN_BITS), 16 if mode.endswith(SIXTEEN_BITS) else 8
    is_grey, channels = colours in _GREY, image.shape[2]
    has_alpha = colours in ("LA", "RGBA")
    texts = []
    if colours == "P":
        texts.append("its places in the palette become colours")
    if colours == "1":
        texts.append(f"its bits become 0 and {np.iinfo(image.dtype).max}")
    if channels == 1 and not is_grey:
        texts.append("its colours become grey")
    elif channels in (3, 4) and is_grey:
        texts.append("its grey becomes the red, the green and the blue")
    if has_alpha and channels in (1, 3):
        texts.append("its alpha is dropped, and colours are not blended")
    elif channels == 4 and not has_alpha:
        texts.append("it becomes opaque")
    if bits == 16 and image.dtype == np.uint8:
        texts.append("the low byte of its values of 16 bits is dropped")
    elif bits == 8 and image.dtype == np.uint16:
        texts.append("its values of 8 bits are scaled to 16")
    return texts


def has_orientation(file: bytes) -> bool:
    """Whether a file says how its image is to be turned or mirrored (EXIF)."""
    try:
        return orientation_of(file, "") != AS_STORED
    except SourceError:  # a damaged file is reported when it is decoded
        return False


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
