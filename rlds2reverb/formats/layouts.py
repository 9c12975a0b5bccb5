"""Tells which format a file has where several share an extension, by the names in it. For suggestions: what is opened is checked by its format.

Each function of `LAYOUTS` raises what its library raises of a damaged file, and `ModuleNotFoundError` where that is not installed.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.buckets import for_library

_OF_D4RL = {"observations", "actions", "rewards", "terminals"}
_OF_D4RL_IN_PARTS = "virtual"
_DEMO = re.compile(r"demo_\d+", re.ASCII)
_OF_RLLIB = {"obs", "new_obs", "actions", "rewards", "eps_id", "terminateds", "dones"}
_LEAST_OF_RLLIB = 3  # LeRobot, too, may have a column `actions` or `rewards`
_EPISODES_OF_RLLIB = ["item"]
_JSON_OF_RLLIB = re.compile(rb'"type"\s*:\s*"(?:SampleBatch|MultiAgentBatch)"')
_JSON_KEY = re.compile(rb'"(\w+)"\s*:')
_JSON_BYTES = _PICKLE_BYTES = 1 << 16
_OF_ILR = {"acts.npy", "dones.npy"}


def _is_d4rl(path: Path) -> bool:
    names = _hdf5_names(path)
    return names >= _OF_D4RL or _OF_D4RL_IN_PARTS in names


def _is_robomimic(path: Path) -> bool:
    return any(map(_DEMO.fullmatch, _hdf5_names(path, "data")))


def _is_ted(path: Path) -> bool:
    """Trajectories as TorchRL's `H5StorageCheckpointer` writes them, or a file of `torch.save` with a TensorDict or a buffer: weights have other names."""
    if path.suffix in (".pt", ".pth"):
        check_regular(path)
        with zipfile.ZipFile(for_library(path)) as archive:
            pickled = next((name for name in archive.namelist() if name.endswith("/data.pkl")), "")
            with archive.open(pickled) as file:
                start = file.read(_PICKLE_BYTES)
        return b"tensordict" in start or b"_storage" in start or b"next" in start
    return any(name.startswith("traj") for name in _hdf5_names(path))


def _is_rllib(path: Path) -> bool:
    """JSON lines or Parquet files of RLlib's batches or episodes."""
    if path.suffix.lower() == ".parquet":
        from pyarrow.parquet import ParquetFile

        check_regular(path)
        with ParquetFile(for_library(path)) as file:
            columns = file.schema_arrow.names
        return columns == _EPISODES_OF_RLLIB or len(_OF_RLLIB.intersection(columns)) >= _LEAST_OF_RLLIB
    check_regular(path)
    with path.open("rb") as file:
        start = file.read(_JSON_BYTES)
    keys = {key.decode() for key in _JSON_KEY.findall(start)}
    return _JSON_OF_RLLIB.search(start) is not None or len(_OF_RLLIB & keys) >= _LEAST_OF_RLLIB


def _is_ilr(path: Path) -> bool:
    """Whether a .npz file has the arrays of il-representations' dict format; True for the other extensions, which no other format has."""
    if path.suffix.lower() != ".npz":
        return True
    check_regular(path)
    with zipfile.ZipFile(for_library(path)) as archive:
        return set(archive.namelist()) >= _OF_ILR


def _hdf5_names(path: Path, group: str = "") -> set[str]:
    """The first names in the file, or in a group of it; none if there is no such group."""
    import h5py

    from rlds2reverb.formats import hdf5
    from rlds2reverb.formats.recordings import BrokenEpisode

    try:
        with hdf5.open_file(path) as file:
            place = hdf5.find(file, group) if group else file
            return set(hdf5.list_names(place)) if isinstance(place, h5py.Group) else set()
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken


LAYOUTS: Mapping[str, Callable[[Path], bool]] = {
    "d4rl": _is_d4rl,
    "ilr": _is_ilr,
    "rllib": _is_rllib,
    "robomimic": _is_robomimic,
    "ted": _is_ted,
}
"""Scheme -> whether a file has that format's layout."""
