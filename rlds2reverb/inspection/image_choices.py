"""What each way of storing a dataset's images takes, and how many of them a core decodes: measured on a few of its frames.

Rates are by the time that the measuring thread had of a core, so other work on the machine hardly changes them; another machine, another image
and another version of libjpeg do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.encoding import Encoding, encode_images
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.source import Source, checked_spec
from rlds2reverb.images import LAST, Size, decode_files, kind
from rlds2reverb.plain import printed
from rlds2reverb.specs import JPEG, PNG, ArraySpec, ImageSpec, flatten

PIXELS, FILES = "pixels", "files"
"""The choices beside encodings: decoded, and the files that the dataset has or that `encode` makes already."""

_ENCODINGS = (Encoding(JPEG), Encoding(PNG))
_MOST_FRAMES = 8
_MOST_PIXELS = 4_000_000  # of all frames, of which at least one is taken
_MOST_TRIED = 4  # episodes, until one has no faults
_LEAST_SECONDS = 0.02  # of decoding


@printed("choice", "option", "step_bytes", "decoded_per_second", "half_size_per_second")
@dataclass(frozen=True)
class ImageChoice:
    """A way of storing a column of images.

    Attributes:
      choice: "pixels", "files", or what `encode` takes, such as "jpeg:quality=95".
      option: of a push that stores them so; "" where it does without one.
      step_bytes: mean bytes of a step, of the frames that were measured.
      decoded_per_second: images that one core decodes in a second; None for pixels.
      half_size_per_second: images that it decodes to half their height and width, as `decode=` does with a size; None for pixels, and for
        images of floats, which are not resized.
      frames: number of frames that were measured.
    """

    choice: str
    option: str
    step_bytes: float
    decoded_per_second: float | None
    half_size_per_second: float | None
    frames: int


def measure_image_choices(source: Source) -> dict[str, list[ImageChoice]]:
    """Path of each column of images -> the ways of storing it, pixels first; {} without such columns, or without the extra `images`.

    Of one episode, the first without faults, it takes up to 8 frames. Files that `encode` makes already are not encoded another time, which
    would tell nothing of the frames.
    """
    offered = source.images()
    columns: dict[str, ArraySpec] = flatten(checked_spec(source))
    paths = [path for path, spec in columns.items() if path in offered or spec.image is not None or kind(spec) == LAST]
    if not paths or not _has_libraries():
        return {}
    episode = _first_whole(source.with_encoded(list(offered)))
    choices: dict[str, list[ImageChoice]] = {}
    for path in paths if episode is not None else ():
        column = None if episode is None else episode.columns.get(path)
        try:
            if column is not None and column.ndim in (1, 4):
                choices[path] = list(_choices_of(column, source, path, offered.get(path, columns[path].image)))
        except SourceError:  # damaged files are reported when they are validated or decoded
            continue
    return choices


def _has_libraries() -> bool:
    try:
        with needing("measuring images", "images", ConfigError):
            import imagecodecs  # noqa: F401
            import simplejpeg  # noqa: F401
    except ConfigError:
        return False
    return True


def _first_whole(source: Source) -> Episode | None:
    whole = (episode for episode in source.episodes(0, _MOST_TRIED) if not episode.faults and len(episode))
    return next(whole, None)


def _choices_of(column: Array, source: Source, path: str, image: ImageSpec | None) -> Iterator[ImageChoice]:
    first = column[0] if image is None else decode_files(image, [column[0]], path)[0]
    count = min(_MOST_FRAMES, len(column), max(1, _MOST_PIXELS // max(1, first.shape[0] * first.shape[1])))
    frames = column[np.linspace(0, len(column) - 1, count).astype(np.int64)]
    pixels = frames if image is None else np.stack([decode_files(image, [file], path)[0] for file in frames])
    spec = ArraySpec(pixels.shape[1:], pixels.dtype)
    yield ImageChoice(PIXELS, "", pixels.nbytes / count, None, None, count)
    if image is not None:
        kept = [f"--encoded {recorded}" for recorded in source.recorded_paths(path)]
        option = " ".join(kept) if path in source.images() else ""
        yield _measured(FILES, option, frames.tolist(), image)
    for encoding in () if path in source.encodes else _ENCODINGS:
        if encoding.problem(spec) is None:
            made_image = encoding.spec(spec).image
            files = encode_images(pixels, encoding).tolist()
            if made_image is not None:
                yield _measured(str(encoding), f"--encode {source.path_to_encode(path)}:{encoding}", files, made_image)


def _measured(choice: str, option: str, files: Sequence[bytes], image: ImageSpec) -> ImageChoice:
    height, width = decode_files(image, files[:1], choice).shape[1:3]
    half = Size(max(1, height // 2), max(1, width // 2))

    def rate(**options: Any) -> float:
        return _rate(lambda file: decode_files(image, [file], choice, 1, **options), files)

    step_bytes = sum(map(len, files)) / len(files)
    at_half = None if image.dtype.kind == "f" else rate(size=half)
    return ImageChoice(choice, option, step_bytes, rate(), at_half, len(files))


def _rate(decode: Callable[[bytes], object], files: Sequence[bytes]) -> float:
    """Files that a core decodes in a second, by the time that this thread had of it."""
    decode(files[0])  # tables and libraries are ready then
    count, began = 0, time.thread_time()
    while (seconds := time.thread_time() - began) < _LEAST_SECONDS:
        for file in files:
            decode(file)
        count += len(files)
    return count / seconds
