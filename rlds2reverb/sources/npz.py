"""NumPy's .npz files as a source: `npz:PATH[?OPTIONS]`, of one file, a folder, or a pattern such as `runs/*.npz`."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import MARK, NEXT, REPEAT
from rlds2reverb.readers.flat.cutting import ENDS
from rlds2reverb.readers.npz.files import NpzFiles
from rlds2reverb.readers.npz.flat import flat_recordings
from rlds2reverb.readers.npz.options import NpzOptions
from rlds2reverb.readers.paths import stays_in
from rlds2reverb.readers.recordings import Recordings
from rlds2reverb.source_options import Parse, at_least_one, one_of, words
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.opening import Asked, asked

_OPTIONS: dict[str, Parse] = {
    "ends": words(*ENDS),
    "max_episode_steps": at_least_one,
    "last_step": words(REPEAT, MARK, NEXT),
    "tail": one_of(keep=True, drop=False),
}
_FIELDS = {"tail": "keeps_tail"}
_OF_ONE_FILE = ("ends", "max_episode_steps", "tail")
_WILD = "*["


def open_npz(text: str) -> Source:
    """Opens what stands behind "npz:".

    Raises:
      SourceError: nothing is there, it is damaged or has no steps, or an option makes no sense.
    """
    wanted = asked("npz", text, _OPTIONS)
    return wanted.source_of(_recordings(wanted))


def _recordings(wanted: Asked) -> Recordings:
    path, name, options = wanted.path, wanted.name, NpzOptions(**wanted.renamed(_FIELDS))
    if path.is_file():
        return flat_recordings(path, name, options)
    for key in _OF_ONE_FILE:
        if key in wanted.options:
            raise SourceError(
                f'"{name}": option {key} is for one file with many episodes; here each file is an episode'
            )
    return NpzFiles(_files(path, name), name, options)


def _files(path: Path, people: str) -> list[Path]:
    """The files of a folder or of a pattern; each must lie in the folder where it seems to be."""
    folder, pattern = (path, "*.npz") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir() or (folder != path and not any(sign in pattern for sign in _WILD)):
        raise SourceError(f"{people}: no such file or folder")
    try:
        found = [one for one in folder.glob(pattern) if not one.is_dir() and one.suffix == ".npz"]
    except (ValueError, NotImplementedError, OSError) as error:
        raise SourceError(f"{people}: {error}") from error
    for one in found:
        if not stays_in(folder, one):
            raise SourceError(f"{people}: {one.name} is a link out of the folder; not followed")
    return found
