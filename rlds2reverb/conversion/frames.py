"""How near frames of a video are to the images that they were made of, and whether they are those of other rows.

Compression changes frames more than many a movement does: noise all over a picture outweighs a small arm in another place. So a frame is
compared with two rows only where those two differ: with its own row w and another row v, by how far it has gone from w to v,
<frame - w, v - w> / |v - w|^2. Noise of compression cancels there: a frame of w has 0, one of v has 1, and one from which an encoder
has lost the movement about 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rlds2reverb.conversion.report import Nearness
from rlds2reverb.episode import Array

_PEAK = 255.0
_EQUAL_DB = 100.0
_SIDE = 48  # about so many pixels, each way, are compared with all other rows
_MOST_ROWS = 1024  # among which other rows are looked for: the work grows with the square
# Levels of 256 by which a pixel of two rows has to differ. Strong compression leaves changes of some twenty levels out, for as long as until the
# next key frame, so such a frame truly is that of an earlier row.
_CHANGE = 32
# Of the way to another row; see the module. Frames may lag behind their rows, up to the next key frame, and cannot be ahead of them.
_GONE, _AHEAD = 0.8, 0.65
_MAYBE_GONE = 0.55  # by a few of the pixels, so that it is worth a look at all
_SLIGHT = 16.0  # a squared error (36 dB) that is never taken for that of another frame
# By this factor a single frame is nearer to the row beside its own, over the whole picture, where it is that row's.
_NEARER = 4.0
# Squared errors of a frame that is no picture of its row: an image of one colour would be nearer. The second is for rows of nearly one colour.
_FLAT, _FLAT_SLIGHT = 1.5, 64.0


class FrameErrors:
    """The squared errors of the frames of a column, over all episodes."""

    def __init__(self) -> None:
        self._count, self._sum, self._worst = 0, 0.0, 0.0

    def nearness(self) -> Nearness:
        return Nearness(self._count, _decibels(self._sum / max(self._count, 1)), _decibels(self._worst))

    def add(self, written: Array, read: Array | None) -> Iterator[str]:
        """Measures the frames of an episode, [T, height, width, channels]; yields why frames are not those of their rows.

        A single frame is not its row's if it is far nearer to the row beside, or farther from its row than a picture of one colour would be.
        The frames of the episode, or of one half of it, are not if they are those of other rows where the images change by more than a few
        levels: of rows some steps earlier or later, in reverse, or of the first or last for all.
        """
        if read is None or read.dtype != written.dtype or read.shape != written.shape:
            yield difference(written, read)
            return
        is_wrong = False
        for row, (image, frame) in enumerate(zip(written, read)):
            error = _squared_error(image, frame)
            self._count, self._sum, self._worst = self._count + 1, self._sum + error, max(self._worst, error)
            if why := _judge_frame(written, row, frame, error):
                is_wrong = True
                yield f"row {row} of {len(written)}: {why}"
        for start in range(0, 0 if is_wrong else len(written), _MOST_ROWS):
            rows = slice(start, start + _MOST_ROWS)
            if why := _judge_order(written[rows], read[rows]):
                yield f"rows from {start} on: {why}"


def _judge_frame(written: Array, row: int, frame: Array, error: float) -> str:
    """Why a frame is not that of its row; "" if it is, as far as its squared error and the rows beside it say."""
    image = written[row]
    if error > _FLAT_SLIGHT and error > _FLAT_SLIGHT + _FLAT * float(image.astype(np.float32).var((0, 1)).mean()):
        return f"the frame is no picture of it: {_decibels(error):.1f} dB"
    if error <= _SLIGHT:
        return ""
    step = _step_of(written)
    coarse = frame[::step, ::step]
    own = _squared_error(image[::step, ::step], coarse)
    for beside in (row - 1, row + 1):
        if not 0 <= beside < len(written):
            continue
        other = _squared_error(written[beside][::step, ::step], coarse)
        if own > _NEARER * max(other, _SLIGHT / _NEARER) and _way(written, frame[None], [row], [beside]) > _GONE:
            return f"the frame is that of row {beside}: {_decibels(other):.1f} dB, and {_decibels(own):.1f} dB from its own"
    return ""


def _judge_order(written: Array, read: Array) -> str:
    """Of which other rows the frames of an episode are; "" if they are those of their own."""
    if len(written) < 2:
        return ""
    # Products of all pairs of rows in a few pixels say which order may be the frames'; all pixels then decide.
    step, count = _step_of(written), len(written)
    images = written[:, ::step, ::step].reshape(count, -1).astype(np.float32)
    frames = read[:, ::step, ::step].reshape(count, -1).astype(np.float32)
    mean = images.mean(0)
    images -= mean
    frames -= mean
    products, squares = images @ images.T, np.einsum("ij,ij->i", images, images)
    apart = np.maximum(squares[:, None] + squares - 2 * products, 0)
    along = frames @ images.T
    along -= along.diagonal()[:, None].copy() + products - squares[:, None]
    best, most = "", 0.0
    for order, rows, others in _orders(count):
        whole = float(apart[rows, others].sum())
        if whole > 0 and float(along[rows, others].sum()) > _MAYBE_GONE * whole:
            way = _way(written, read[rows], rows, others)
            if way > max(most, _AHEAD if (others > rows).all() else _GONE):
                best, most = order, way
    return f"the frames are those of other rows: {best}; should they look right, take a smaller crf" if best else ""


def _orders(count: int) -> Iterator[tuple[str, Array, Array]]:
    """What is looked for: a name, rows, and the row whose frame each of them has."""
    rows = np.arange(count)
    for off in range(1, count // 2 + 1):
        for first, past in ((0, count), (0, count // 2), (count // 2, count)):
            part = rows[first:past]
            if len(part) >= 2 * off:
                yield f"{off} earlier", part[off:], part[off:] - off
                yield f"{off} later", part[:-off], part[:-off] + off
    yield "in reverse", rows, rows[::-1]
    yield "all of row 0", rows, np.zeros(count, int)
    yield f"all of row {count - 1}", rows, np.full(count, count - 1)


def _way(written: Array, frames: Array, rows: Array | list[int], others: Array | list[int]) -> float:
    """How far frames have gone from their rows to others, where these differ by `_CHANGE` levels; 0 if they differ nowhere."""
    along = whole = 0.0
    for frame, row, other in zip(frames, rows, others):
        change = np.subtract(written[other], written[row], dtype=np.int16)
        is_changed = np.abs(change) >= _CHANGE
        change = change[is_changed].astype(np.float32)
        along += float(np.dot(change, np.subtract(frame[is_changed], written[row][is_changed], dtype=np.float32)))
        whole += float(np.dot(change, change))
    return along / whole if whole else 0.0


def _step_of(images: Array) -> int:
    """Every how many pixels are looked at: an odd number, for movements often go on by even ones."""
    return max(1, min(images.shape[1:3]) // _SIDE) | 1


def _squared_error(image: Array, frame: Array) -> float:
    apart = np.subtract(image, frame, dtype=np.float32).ravel()
    return float(np.dot(apart, apart)) / max(apart.size, 1)


def _decibels(error: float) -> float:
    """PSNR of a mean squared error of 8-bit values."""
    return min(_EQUAL_DB, round(10 * math.log10(_PEAK**2 / error), 2)) if error else _EQUAL_DB


def difference(written: Array, read: Array | None) -> str:
    """How values are not what was written, in words."""
    if read is None:
        return "is not there"
    if written.dtype != read.dtype or written.shape != read.shape:
        return f"expected {written.dtype}{list(written.shape)}, found {read.dtype}{list(read.shape)}"
    return "the values differ"
