"""Pictures -> GIF and MP4 files, by FFmpeg through PyAV (extra `video`).

GIF: 256 colours for the whole film, chosen from some of its pictures; then every pixel gets the nearest, without dithering, so that a
still background stays still. MP4: H.264 with halved colour resolution, which every browser and phone plays.
Source: FFmpeg's documentation of palettegen, paletteuse and libx264.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from rlds2reverb.errors import ConfigError
from rlds2reverb.look.film import Film
from rlds2reverb.look.pictures import Picture, choose_steps
from rlds2reverb.text import line_of

_PALETTE_FROM = 24  # pictures that a film's colours are chosen from
_QUALITY = "18"
"""libx264's constant rate factor: hardly distinguishable from the original."""


def write_mp4(film: Film, fps: int, path: Path) -> None:
    """Writes a film as MP4, `fps` pictures per second.

    Raises:
      ConfigError: FFmpeg cannot: it lacks the codec, say.
      OSError: the file cannot be written.
    """
    # faststart: the index stands in front, so a browser plays the film while it loads.
    with _explain_errors(), av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream: Any = container.add_stream("libx264", rate=fps, options={"crf": _QUALITY, "preset": "medium"})
        # The only pixel format of H.264 that every browser and player shows.
        (stream.height, stream.width), stream.pix_fmt = film.size, "yuv420p"
        for picture in film.pictures():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def write_gif(film: Film, fps: int, path: Path) -> None:
    """Writes a film as GIF that repeats for ever, `fps` pictures per second. Raises as `write_mp4`."""
    with _explain_errors(), av.open(str(path), "w", format="gif", options={"loop": "0"}) as container:
        stream: Any = container.add_stream("gif", rate=fps)
        (stream.height, stream.width), stream.pix_fmt = film.size, "pal8"
        stream.time_base = Fraction(1, fps)
        for number, frame in enumerate(_in_palette(film)):
            frame.pts, frame.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Turns FFmpeg's errors into ours, except those of the system."""
    try:
        yield
    except (av.error.FFmpegError, av.codec.codec.UnknownCodecError) as error:
        if isinstance(error, OSError):
            raise
        raise ConfigError(f"FFmpeg cannot write this film: {line_of(error)}; save it as .png or .html") from error


def _in_palette(film: Film) -> Iterator[Any]:
    """The pictures as frames of 256 colours."""
    graph: Any = av.filter.Graph()
    pictures = graph.add_buffer(width=film.size[1], height=film.size[0], format="rgb24", time_base=Fraction(1, 1))
    palette = graph.add_buffer(width=16, height=16, format="bgra", time_base=Fraction(1, 1))
    as_bgra = graph.add("format", "bgra")
    mapped, sink = graph.add("paletteuse", "dither=none"), graph.add("buffersink")
    pictures.link_to(as_bgra)
    as_bgra.link_to(mapped, 0, 0)
    palette.link_to(mapped, 0, 1)
    mapped.link_to(sink)
    graph.configure()
    palette.push(_palette(film))
    palette.push(None)
    for number, picture in enumerate(film.pictures()):
        pictures.push(_frame(picture, number))
        yield from _ready(graph)
    pictures.push(None)
    yield from _ready(graph)


def _palette(film: Film) -> Any:
    """The colours of a film: a frame of 16 x 16 pixels."""
    graph: Any = av.filter.Graph()
    source = graph.add_buffer(width=film.size[1], height=film.size[0], format="rgb24", time_base=Fraction(1, 1))
    chosen, sink = graph.add("palettegen", "reserve_transparent=0:stats_mode=full"), graph.add("buffersink")
    source.link_to(chosen)
    chosen.link_to(sink)
    graph.configure()
    steps = film.steps
    for number, place in enumerate(choose_steps(len(steps), _PALETTE_FROM)):
        source.push(_frame(film.picture(steps[place]), number))
    source.push(None)
    return sink.pull()


def _ready(graph: Any) -> Iterator[Any]:
    """The frames that are ready."""
    while True:
        try:
            yield graph.pull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return


def _frame(picture: Picture, number: int) -> Any:
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    frame.pts, frame.time_base = number, Fraction(1, 1)
    return frame
