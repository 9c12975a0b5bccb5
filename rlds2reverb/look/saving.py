"""An episode as a file, of the kind that the suffix names. Errors that are known beforehand are raised before anything is read."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.files import check_can_be_replaced, whole_or_none, writing
from rlds2reverb.look.contents import Contents
from rlds2reverb.look.pictures import png_file
from rlds2reverb.look.player import page
from rlds2reverb.text import counted

Write = Callable[[Contents, Path, int | None, int], object]

_WAY_OUT = "nothing is left there, and a file from before stays. Make room or name another file, and run the same again"

_sheet: Any = Lazily("rlds2reverb.look.film:sheet")  # Pillow and PyAV, only where they draw
_film: Any = Lazily("rlds2reverb.look.film:Film")
_write_gif: Any = Lazily("rlds2reverb.look.videos:write_gif")
_write_mp4: Any = Lazily("rlds2reverb.look.videos:write_mp4")


def _save_film(write: Any, contents: Contents, path: Path, frames: int | None, fps: int) -> None:
    write(_film(contents, frames), fps, path)


@dataclass(frozen=True)
class FileKind:
    """A kind of file: what writes one (with at most so many pictures, at so many per second), the libraries that it needs with the extras that bring them, and its most pictures."""

    write: Write
    libraries: Mapping[str, str]
    most_frames: int | None = None


KINDS = {
    ".png": FileKind(
        lambda contents, path, frames, _: path.write_bytes(png_file(_sheet(contents, frames))), {"PIL": "images"}, 400
    ),
    ".gif": FileKind(partial(_save_film, _write_gif), {"PIL": "images", "av": "video"}),
    ".mp4": FileKind(partial(_save_film, _write_mp4), {"PIL": "images", "av": "video"}),
    ".html": FileKind(lambda contents, path, frames, fps: path.write_bytes(page(contents, frames, fps).encode()), {}),
}
"""The end of a file's name -> what is written."""


def saver(path: Path, frames: int | None, fps: int) -> Callable[[Contents], str]:
    """A function that writes an episode to a file, in place of an earlier one, and returns what it has written.

    `frames` is the most pictures, None for the kind's own number; `fps` are pictures per second.

    Raises:
      ConfigError: the name ends in another way, what writes the file is missing, or too many pictures for the kind; at once.
      WriteError: the file cannot be written; at once, if that is known before.
    """
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f'--save "{path}": expected a name that ends in {", ".join(KINDS)}; got "{path.suffix}"')
    if kind.most_frames is not None and frames is not None and frames > kind.most_frames:
        raise ConfigError(
            f"--frames {frames:,}: expected at most {kind.most_frames:,} for {path.suffix.lower()}, which is one picture"
        )
    for library, extra in kind.libraries.items():
        with needing(f"writing {path.suffix.lower()}", extra, ConfigError):
            importlib.import_module(library)
    check_can_be_replaced(path, f"--save {path}")

    def save(contents: Contents) -> str:
        with writing(f"--save {path}", _WAY_OUT), whole_or_none(path) as unfinished:
            kind.write(contents, unfinished, frames, fps)
        return f"written: {path}, {counted(path.stat().st_size, 'byte')}"

    return save
