"""Links of HDF5 files of unknown origin: followed one by one, and to other files only where that is allowed.

h5py follows any link, into any file. Here every name on the way is looked at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py

from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.recordings import BrokenEpisode

Found = Any
"""A group or a dataset of h5py, which has no types."""

_MOST_HOPS = 8
_MOST_FILES = 256


class LinkedFiles:
    """An HDF5 file and those that its links lead to; used as a context.

    Args:
      main: the file.
      inside: the folder in which other files must lie; None for anywhere.
      way_out: what a message says of a link to elsewhere.

    Raises:
      SourceError: on entering: the main file cannot be opened.
    """

    def __init__(self, main: Path, inside: Path | None, way_out: str = "") -> None:
        self._main, self._inside, self._way_out = main, inside, way_out
        self._files = ExitStack()
        self._others: dict[Path, h5py.File] = {}

    def __enter__(self) -> LinkedFiles:
        self.main: h5py.File = self._files.enter_context(hdf5.opened(self._main))
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def found(self, group: h5py.Group, keys: Sequence[str], path: str) -> Found | None:
        """What lies below a group under these keys, one after the other; None for nothing.

        Raises:
          BrokenEpisode: a link leads where it must not, or nowhere; or the file is damaged. `path` is the column in it.
        """
        return self._walk(group, keys, path, 0)

    def _walk(self, group: h5py.Group, keys: Sequence[str], path: str, hops: int) -> Found | None:
        found: Found = group
        for key in keys:
            if not isinstance(found, h5py.Group):
                return None
            group = found
            with hdf5.told_as_broken(path, group, key):
                found = self._step(group, key, path, hops)
        return found if isinstance(found, (h5py.Group, h5py.Dataset)) else None

    def _step(self, group: h5py.Group, key: str, path: str, hops: int) -> Found | None:
        name, links = key.encode(), group.id.links
        if not links.exists(name):
            return None
        kind = links.get_info(name).type
        if kind == h5py.h5l.TYPE_HARD:
            return group[key]
        if kind == h5py.h5l.TYPE_EXTERNAL:
            file, inner = links.get_val(name)
            return self._elsewhere(group, key, file, inner, path, hops)
        raise BrokenEpisode(path, f"{hdf5.place(group, key)}: a soft link, which is not followed")

    def _elsewhere(self, group: h5py.Group, key: str, target: bytes, inner: bytes, path: str, hops: int) -> Found:
        where = hdf5.place(group, key)
        name, way = target.decode(), [part for part in inner.decode().split("/") if part]
        if hops >= _MOST_HOPS:
            raise BrokenEpisode(path, f"{where}: a chain of more than {_MOST_HOPS} links to other files")
        file = self._opened(Path(group.file.filename).parent / name, where, path)
        found = self._walk(file, way, path, hops + 1)
        if found is None:
            raise BrokenEpisode(path, f"{where}: a link to /{'/'.join(way)} of {name}, where there is nothing")
        return found

    def _opened(self, file: Path, where: str, path: str) -> h5py.File:
        real = file.resolve()
        if self._inside is not None and not real.is_relative_to(self._inside.resolve()):
            raise BrokenEpisode(path, f"{where}: a link to {file}, outside of {self._inside}{self._way_out}")
        if not real.exists():
            raise BrokenEpisode(path, f"{where}: a link to {file}, and there is no such file; copy it there")
        if real not in self._others:
            if len(self._others) >= _MOST_FILES:
                raise BrokenEpisode(path, f"{where}: links to more than {_MOST_FILES} other files")
            try:
                self._others[real] = self._files.enter_context(hdf5.opened(real))
            except SourceError as error:
                raise BrokenEpisode(path, f"{where}: {error}") from error
        return self._others[real]
