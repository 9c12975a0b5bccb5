"""What a robot's arm does in an episode, and what its cameras see of it. Part of make_open_x.py."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CAMERA_NOISE = 1.0  # standard deviation, grey levels of 255
LENS_BLUR = 1 / 160  # width of an edge, of the image's height
OBJECTS = 100  # in the background
TEXTURE = 12.0  # standard deviation, grey levels
TEXTURE_FALLOFF = 1.5  # amplitude over frequency ** this; 1 for whole scenes, more on surfaces
MARGIN = 0.15  # that a moving camera can show more than its image, of the image's size


@dataclasses.dataclass(frozen=True)
class Motion:
    """How the arm moves in one episode of T steps.

    Attributes:
        position: float64 [T, 3] in [0, 1].
        rotation: float64 [T, 3], radians.
        opening: float64 [T], 1 where the gripper is open.
        moved: float64 [T, 3], to the next position; of the last step, what would come next.
        turned: float64 [T, 3], the same of rotations.
    """

    position: Array
    rotation: Array
    opening: Array
    moved: Array
    turned: Array


def motion(rng: np.random.Generator, steps: int) -> Motion:
    """Return a reach for something and a move to somewhere else: smooth, with a hand's unrest."""
    stops = rng.uniform(0.15, 0.85, (3, 6))
    stops[:, 3:] = (stops[:, 3:] - 0.5) * 0.6  # radians
    time = np.linspace(0.0, 2.0, steps + 1)
    leg = np.minimum(time.astype(int), 1)
    share = time - leg
    smooth = (share**2 * (3 - 2 * share))[:, np.newaxis]
    pose = stops[leg] * (1 - smooth) + stops[leg + 1] * smooth  # [steps + 1, 6]
    pose += np.cumsum(rng.normal(0, 1e-3, pose.shape), axis=0)
    delta = np.diff(pose, axis=0)
    opening = ((time < 1.0) | (time > 1.9)).astype(np.float64)[:steps]
    return Motion(pose[:steps, :3], pose[:steps, 3:], opening, delta[:, :3], delta[:, 3:])


def texture(rng: np.random.Generator, height: int, width: int) -> Array:
    """Return noise whose amplitude falls with the frequency, float32 [height, width], mean 0, standard deviation 1."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, np.newaxis], np.fft.rfftfreq(width)[np.newaxis])
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((height, width))) / frequency**TEXTURE_FALLOFF
    picture = np.fft.irfft2(spectrum, s=(height, width))
    scaled: Array = (picture / picture.std()).astype(np.float32)
    return scaled


def disc(height: int, width: int, centre: tuple[float, float], radius: float, blur: float) -> Array:
    """Return how much of each pixel a disc covers, float32 [height, width, 1]; lengths in pixels."""
    y = np.arange(height, dtype=np.float32)[:, np.newaxis] - centre[0]
    x = np.arange(width, dtype=np.float32)[np.newaxis] - centre[1]
    cover: Array = np.clip((radius - np.hypot(y, x)) / blur + 0.5, 0.0, 1.0)[..., np.newaxis]
    return cover


def background(rng: np.random.Generator, height: int, width: int, blur: float) -> Array:
    """Return objects of all sizes, one before the other, and texture: float32 [height, width, 3]."""
    picture = np.full((height, width, 3), rng.uniform(60, 180, 3), np.float32)
    for _ in range(OBJECTS):
        radius = 0.03 * height / np.sqrt(rng.uniform(0.002, 1.0))
        centre = (rng.uniform(0, height), rng.uniform(0, width))
        colour = np.float32(rng.uniform(40, 215) + rng.normal(0, 25, 3))
        top, left = (max(0, int(place - radius - blur)) for place in centre)
        bottom, right = (int(place + radius + blur) + 1 for place in centre)
        part = picture[top:bottom, left:right]
        part += disc(part.shape[0], part.shape[1], (centre[0] - top, centre[1] - left), radius, blur) * (colour - part)
    return picture + TEXTURE * texture(rng, height, width)[..., np.newaxis]


def film(rng: np.random.Generator, moves: Motion, size: tuple[int, int], moving: bool) -> Iterator[Array]:
    """Yield what a camera sees of a motion, uint8 [height, width, 3] each.

    Args:
        rng: what the place looks like, and the noise.
        moves: where the arm is.
        size: height and width.
        moving: whether the camera is on the arm: the place moves then rather than the arm.
    """
    height, width = size
    blur = max(1.0, LENS_BLUR * height)
    margins = [int(MARGIN * length) + 1 for length in size]
    place = background(rng, height + margins[0], width + margins[1], blur)
    noise = np.float32(CAMERA_NOISE) * rng.standard_normal((height * 2, width * 2, 3), np.float32)
    colours = rng.uniform(20, 235, (2, 3)).astype(np.float32)
    start = moves.position[np.argmin(moves.opening)]  # where the object lies
    for at, opening in zip(moves.position, moves.opening):
        shift = [int(margin * share) if moving else 0 for margin, share in zip(margins, at)]
        frame = place[shift[0] : shift[0] + height, shift[1] : shift[1] + width].copy()
        held = at if opening < 0.5 else start
        for where, radius, colour in ((held, 0.06, colours[0]), (at, 0.04 + 0.03 * opening, colours[1])):
            centre = (0.5, 0.5) if moving and where is at else (float(where[0]), float(where[1]))
            cover = disc(height, width, (centre[0] * height, centre[1] * width), radius * height, blur)
            frame += cover * (colour - frame)
        y, x = rng.integers(0, height), rng.integers(0, width)
        frame += noise[y : y + height, x : x + width]
        yield np.clip(frame, 0, 255).astype(np.uint8)
