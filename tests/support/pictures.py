"""Episodes with images, decoded and as their files; PNG is written by the book, so that no library is needed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from rlds2reverb import Episode
from rlds2reverb.episode import Array
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import Source, spec_of
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, map_with_path
from tests.support import strategies

HEIGHT, WIDTH = 9, 12
CAMERA, WRIST = "observation/camera", "observation/wrist"
IMAGE = ImageSpec((HEIGHT, WIDTH, 3), np.dtype(np.uint8), "png")
COLUMNS: strategies.Columns = {
    CAMERA: (np.dtype(np.uint8), (HEIGHT, WIDTH, 3)),
    WRIST: (np.dtype(np.uint8), (HEIGHT, WIDTH, 3)),
    "observation/state": (np.dtype(np.float32), (2,)),
    "action": (np.dtype(np.float32), (3,)),
}


def png(image: Array) -> bytes:
    """A PNG file of a [height, width, 3] uint8 image."""
    height, width, _ = image.shape
    lines = b"".join(b"\0" + line.tobytes() for line in image)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def files(images: Array) -> Array:
    """[T] files of [T, height, width, 3] images."""
    out = np.empty(len(images), object)
    out[:] = [png(image) for image in images]
    return out


def episodes(lengths: Sequence[int] = (5, 3, 7), seed: int = 0) -> list[Episode]:
    """Decoded."""
    rngs = (np.random.default_rng([seed, number]) for number in range(len(lengths)))
    return [
        strategies.episode(rng, rows, COLUMNS, episode_id=f"e{n}") for n, (rng, rows) in enumerate(zip(rngs, lengths))
    ]


class Pictures(Source):
    """A source of such episodes that can keep images encoded."""

    def __init__(self, decoded: Sequence[Episode], kept: Collection[str] = ()) -> None:
        self.name, self._decoded, self._kept = "pictures", list(decoded), frozenset(kept)

    @property
    def episode_count(self) -> int | None:
        return len(self._decoded)

    def spec(self) -> Nest:
        def leaf(path: str, one: ArraySpec) -> ArraySpec:
            return ArraySpec.of_images(IMAGE) if path in self._kept else one

        return map_with_path(leaf, spec_of(self._decoded[0]))

    def images(self) -> dict[str, ImageSpec]:
        return dict.fromkeys(sorted({CAMERA, WRIST} - self._kept), IMAGE)

    def encoded(self, paths: Collection[str]) -> Pictures:
        return Pictures(self._decoded, self._kept | set(paths))

    def __iter__(self) -> Iterator[Episode]:
        for episode in self._decoded:
            yield as_files(episode, self._kept)

    def shard(self, index: int, count: int) -> Pictures:
        return Pictures(list(EpisodeList(self._decoded).shard(index, count)), self._kept)


def as_files(episode: Episode, paths: Collection[str] = (CAMERA, WRIST)) -> Episode:
    """The same episode with these columns as files."""
    columns: dict[str, Any] = {path: files(episode.columns[path]) for path in paths}
    return episode.with_only_columns({**episode.columns, **columns})
