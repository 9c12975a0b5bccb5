"""Which demonstrations a robomimic file has, and what it says of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import EPISODE_ID
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.recordings import BrokenEpisode

_DEMO = re.compile(r"demo_(\d{1,18})", re.ASCII)
_LIBERO = ("bddl_file_name", "problem_info")
LANGUAGE = "language_instruction"


def data_of(file: h5py.File) -> h5py.Group:
    """The group of the demonstrations.

    Raises:
      SourceError: there is none.
      BrokenEpisode: it cannot be read.
    """
    data = hdf5.found(file, "data")
    if not isinstance(data, h5py.Group):
        raise SourceError(
            f"{hdf5.path_of(file)}: no group data; expected a robomimic file with data/demo_0, data/demo_1, ..."
        )
    return data


def demo_of(data: h5py.Group, name: str) -> h5py.Group:
    """The group of one demonstration.

    Raises:
      BrokenEpisode: it is none, or cannot be read.
    """
    demo = hdf5.found(data, name)
    if not isinstance(demo, h5py.Group):
        raise BrokenEpisode("", f"{hdf5.where(data)}/{name}: expected a group, found something else")
    return demo


def demos_of(file: h5py.File, wanted: str | None) -> tuple[list[str], int]:
    """Names of the demonstrations that are wanted, by their numbers, and how many names a mask has that are of none.

    Args:
      file: open.
      wanted: a mask's name; None for all.

    Raises:
      SourceError: there are no demonstrations, or there is no such mask.
      BrokenEpisode: they cannot be read.
    """
    there = {name: int(found[1]) for name in hdf5.names(data_of(file)) if (found := _DEMO.fullmatch(name))}
    if not there:
        raise SourceError(f"{hdf5.path_of(file)}: no data/demo_0, data/demo_1, ...; expected a robomimic file")
    chosen = set(there) if wanted is None else _masked(file, wanted)
    return sorted(chosen & set(there), key=lambda name: (there[name], name)), len(chosen - set(there))


def _masked(file: h5py.File, wanted: str) -> set[str]:
    masks = hdf5.found(file, "mask")
    known = hdf5.names(masks) if isinstance(masks, h5py.Group) else []
    if wanted not in known:
        raise SourceError(f'{hdf5.path_of(file)}: filter "{wanted}": there are: {", ".join(known) or "no masks"}')
    column = hdf5.column(masks, wanted, "")
    if column.dtype.kind != "O" or column.ndim != 1:
        raise SourceError(
            f"{hdf5.path_of(file)}: mask/{wanted}: expected names of demonstrations, found {column.dtype}"
        )
    return {name.decode("utf-8", "replace") for name in column}


def known_of(data: h5py.Group) -> dict[str, Any]:
    """What the file says of all demonstrations: numbers and texts as `bytes`.

    Raises:
      SourceError: it cannot be read.
    """
    said = _plain(hdf5.attributes(data))
    language = _language(said.get("problem_info"))
    return said | ({LANGUAGE: language} if language else {})


def is_of_libero(known: Mapping[str, Any]) -> bool:
    """Whether LIBERO's create_dataset.py wrote the file."""
    return all(key in known for key in _LIBERO)


def metadata_of(demo: h5py.Group, name: str) -> dict[str, Any]:
    """What the file says of one demonstration.

    Raises:
      SourceError: it cannot be read.
    """
    return {**_plain(hdf5.attributes(demo)), EPISODE_ID: name.encode()}


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as `bytes`; empty attributes left out."""
    return {key: _as_bytes(value) for key, value in attributes.items() if value is not None}


def _as_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        flat = [_as_bytes(one) for one in value.ravel().tolist()]
        made = np.empty(len(flat), object)
        made[:] = flat
        return made.reshape(value.shape)
    return value


def _language(problem_info: Any) -> bytes:
    """LIBERO's task in words; b"" where it is not told."""
    try:
        said = json.loads(problem_info) if isinstance(problem_info, bytes) else None
    except (ValueError, RecursionError):
        return b""
    found = said.get(LANGUAGE) if isinstance(said, dict) else None
    text = "".join(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else found
    return text.encode("utf-8", "replace") if isinstance(text, str) else b""
