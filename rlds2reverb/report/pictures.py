"""Images of an episode -> small ones that a page can hold."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import DecodeError
from rlds2reverb.images import decode_images
from rlds2reverb.specs import ArraySpec

_SMALLEST = 8
"""Height and width of what is taken for an image."""
_QUALITY = 72


def is_picture(spec: ArraySpec) -> bool:
    """Whether rows are images: [height, width, channels] of numbers, or [height, width] of uint8."""
    sizes = [_SMALLEST if size is None else size for size in spec.shape]
    if len(sizes) not in (2, 3) or min(sizes[:2]) < _SMALLEST:
        return False
    if len(sizes) == 2:
        return bool(spec.dtype == np.uint8)
    return spec.shape[2] in (1, 3, 4) and (spec.dtype.kind == "f" or spec.dtype in (np.uint8, np.uint16))


def frames_of(column: Array, spec: ArraySpec, most: int, side: int) -> tuple[Array, Array]:
    """Some images of a column, evenly spaced, made small.

    Args:
      column: [T, ...] images, or files of them.
      spec: of a row.
      most: images.
      side: pixels of the longer side, at most.

    Returns:
      [n] their time steps, and [n, height, width, 3] uint8; n is 0 for rows that are no images.

    Raises:
      DecodeError: an image cannot be decoded, or the library that does is missing.
    """
    steps = np.unique(np.linspace(0, len(column) - 1, min(most, len(column))).astype(np.int64))
    rows = column[steps]
    if spec.image is not None:
        rows = _decoded(rows, spec)
    if rows.ndim == 3:
        rows = rows[..., None]
    if rows.ndim != 4 or not rows.size:
        return steps[:0], np.zeros((0, 1, 1, 3), np.uint8)
    return steps, _in_colours(_smaller(rows, side), are_bytes=rows.dtype == np.uint8)


def data_uri(pixels: Array) -> str:
    """[height, width, 3] uint8 as the address of an image that holds itself: JPEG where the extra `images` is there, else PNG."""
    try:
        import simplejpeg
    except ImportError:
        return _uri("png", _png(pixels))
    return _uri("jpeg", simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), _QUALITY, "RGB", "420"))


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _decoded(files: Array, spec: ArraySpec) -> Array:
    """Images of the first one's size; where sizes are free, others are dropped for the first one."""
    image = spec.image
    assert image is not None  # asked before
    flat = files.reshape(len(files), -1)
    if not flat.shape[1]:
        raise DecodeError("no image in a step")
    if None not in image.shape:
        return decode_images(flat[:, 0], image)
    decoded = [decode_images(flat[row : row + 1, 0], image)[0] for row in range(len(flat))]
    return np.stack([one if one.shape == decoded[0].shape else np.zeros_like(decoded[0]) for one in decoded])


def _smaller(images: Array, side: int) -> Array:
    """[n, h, w, c] -> float32, each pixel the mean of a square of them."""
    height, width = images.shape[1:3]
    step = -(-max(height, width) // side)
    if step == 1:
        return images.astype(np.float32)
    down, across = max(1, height // step), max(1, width // step)
    cropped = images[:, : down * step, : across * step].astype(np.float32)
    high, wide = min(step, height), min(step, width)
    squares = cropped.reshape(len(images), down, high, across, wide, images.shape[3])
    return np.asarray(squares.mean(axis=(2, 4)))


def _in_colours(images: Array, are_bytes: bool) -> Array:
    """[n, h, w, c] -> [n, h, w, 3] uint8. Bytes stay; others span black to white, over all images together."""
    if are_bytes and images.shape[3] == 4:
        images = _over_white(images)
    shown = images if images.shape[3] == 3 else images[..., :1].repeat(3, axis=3)
    finite = shown[np.isfinite(shown)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if not are_bytes:
        shown = (shown - low) * (255 / (high - low) if high > low else 0.0)
    whole = np.nan_to_num(np.rint(shown), nan=0.0, posinf=255.0, neginf=0.0)
    return np.asarray(whole.clip(0, 255), np.uint8)


def _over_white(images: Array) -> Array:
    """[n, h, w, 4] RGBA, 0 to 255 -> [n, h, w, 3]."""
    opaque = images[..., 3:] / 255
    return np.asarray(images[..., :3] * opaque + 255 * (1 - opaque))


def _png(pixels: Array) -> bytes:
    """A PNG file. Source: PNG specification 5.3 (chunks), 11.2 (IHDR), 9.2 (filter 0)."""
    height, width, _ = pixels.shape
    lines = np.concatenate((np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)), axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
