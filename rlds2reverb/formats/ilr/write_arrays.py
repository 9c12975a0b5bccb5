"""Episodes -> il-representations' dict format: `ilr:NAME.npz`, `ilr:NAME.pkl.gz`; the inverse of its `load_dict_dataset`.

Arrays obs, next_obs, acts and dones of all trajectories, one after the other, with rews, infos and further columns. Values of each key are
appended to a file of its own while episodes come, so memory holds one episode; the dataset is put together of them at the end.

Source of the layout: `load_dict_dataset` in il_representations/envs/auto.py, and docs of its data; of npz files: numpy/lib/format.py.
"""

from __future__ import annotations

import gzip
import io
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlds2reverb.episode import IS_TERMINAL, Episode, metadata_path
from rlds2reverb.errors import ConfigError
from rlds2reverb.files import at_end, put
from rlds2reverb.formats.destination import Content, Loss, State
from rlds2reverb.formats.ilr import LOSSES, keys
from rlds2reverb.formats.ilr.pickles import (
    around,
    close_pickle,
    dictionary_around,
    list_around,
    objects_around,
    part_of,
)
from rlds2reverb.formats.ilr.write import IlrDestination, Leaves, find_losses, members_of, pickles_of_rows
from rlds2reverb.specs import ArraySpec

_GZIP_LEVEL = 6


class ArraysDestination(IlrDestination):
    """One file with a dictionary of arrays."""

    @property
    def marks(self) -> Sequence[str]:
        return ()

    def losses(self, content: Content) -> Sequence[Loss]:
        losses = [loss for loss in super().losses(content) if loss.code != "metadata"]
        kept = _keys_kept(content)
        if keys.ACTS not in kept or not any(map(keys.is_observation, kept)):
            raise ConfigError(
                f"{self.name}: a dict of il-representations has an array of actions, and of each observation; join nested actions to one column first (--transform)"
            )
        for key, leaves in members_of(content.columns).items():
            if key not in kept:
                losses += [Loss("nests", LOSSES["nests"], path) for path in leaves.values()]
        losses += [Loss("metadata", LOSSES["metadata"], metadata_path(name)) for name in content.metadata]
        return losses

    def sink(self, work: Path, content: Content, state: State | None) -> ArraysSink:
        return ArraysSink(work / self.path.name, self._options.terminals, content, state)


def _keys_kept(content: Content) -> dict[str, Leaves]:
    """Key -> its leaves, for the keys that the dict format can hold: arrays, `infos` as a list of dictionaries, texts as a list."""
    kept: dict[str, Leaves] = {}
    for key, leaves in members_of(content.columns).items():
        is_text = () in leaves and content.columns[leaves[()]].dtype.kind == "O"
        if key == keys.INFOS or (() in leaves and not (is_text and (keys.is_observation(key) or key == keys.ACTS))):
            kept[key] = leaves
    return kept


class ArraysSink:
    """Writes one dictionary; each key's values go to `NAME.parts/KEY` first."""

    def __init__(self, path: Path, terminals: bool, content: Content, state: State | None) -> None:
        self._path, self._terminals = path, terminals
        self._leaves = _keys_kept(content)
        self._specs: dict[str, ArraySpec | None] = {}  # of a row; None for a list of values
        for key, leaves in self._leaves.items():
            spec = content.columns[leaves[()]] if () in leaves else None
            spec = None if spec is None or spec.dtype.kind == "O" else spec
            self._specs[key] = spec
            if keys.is_observation(key):
                self._specs[keys.next_of(key)] = spec
        flags = (keys.DONES, keys.TERMINALS) if terminals else (keys.DONES,)
        self._specs |= dict.fromkeys(flags, ArraySpec((), np.dtype(bool)))
        self._beside = [
            path for key, leaves in self._leaves.items() for path in leaves.values() if not keys.is_observation(key)
        ]
        self._state: State = state or {"steps": 0, "bytes": dict.fromkeys(self._specs, 0)}
        folder = path.with_name(f"{path.name}.parts")
        folder.mkdir(exist_ok=True)
        # Numbers, not keys: these may have signs that no file's name may have.
        self._places = {key: folder / str(number) for number, key in enumerate(self._specs)}
        self._files: dict[str, IO[bytes]] = {
            key: at_end(place, self._state["bytes"][key]) for key, place in self._places.items()
        }

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Writes an episode of at least two rows."""
        steps = len(episode) - 1
        columns = episode.columns
        dones = np.arange(steps) == steps - 1
        self._files[keys.DONES].write(dones.tobytes())
        if self._terminals:
            is_terminal = bool(columns.get(IS_TERMINAL, np.zeros(1, bool))[-1])
            self._files[keys.TERMINALS].write((dones & is_terminal).tobytes())
        for key, leaves in self._leaves.items():
            if self._specs[key] is None:
                values = pickles_of_rows(leaves, columns, slice(0, steps))
                self._files[key].write(b"".join(value[2:-1] for value in values))  # without protocol and end
                continue
            column = columns[leaves[()]]
            self._files[key].write(np.ascontiguousarray(column[:steps]).data)
            if keys.is_observation(key):
                self._files[keys.next_of(key)].write(np.ascontiguousarray(column[1:]).data)
        self._state["steps"] += steps
        return list(find_losses(episode, steps, self._terminals, self._beside))

    def sync(self) -> State:
        for key, file in self._files.items():
            put(file)
            self._state["bytes"][key] = file.tell()
        return {**self._state, "bytes": dict(self._state["bytes"])}

    def finish(self) -> None:
        self.sync()
        is_npz = self._path.name.endswith(".npz")
        with self._path.open("wb") as file:
            (self._write_npz if is_npz else self._write_pickle)(file)
            put(file)
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _write_npz(self, file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for key in self._specs:
                # A fixed time, so that the same episodes are the same file.
                with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                    self._write_npy(key, member)

    def _write_npy(self, key: str, member: IO[bytes]) -> None:
        spec, count = self._specs[key], self._state["steps"]
        shape = (count, *(() if spec is None else spec.shape))
        header = io.BytesIO()
        descr = "|O" if spec is None else spec.dtype.str
        np.lib.format.write_array_header_1_0(  # type: ignore[no-untyped-call]
            header, {"descr": descr, "fortran_order": False, "shape": shape}
        )
        member.write(header.getvalue())
        start, end = (b"", b"") if spec is not None else objects_around(count)
        self._copy(key, member.write, start, end)

    def _write_pickle(self, file: IO[bytes]) -> None:
        if self._path.name.endswith(".gz"):
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                self._write_dictionary(packed.write)
        else:
            self._write_dictionary(file.write)

    def _write_dictionary(self, write: Callable[[bytes], Any]) -> None:
        start, end = dictionary_around()
        whole_start, _, whole_end = close_pickle(b"\0").partition(b"\0")
        write(whole_start + start)
        for key, spec in self._specs.items():
            count = self._state["steps"]
            sizes = () if spec is None else tuple(size or 0 for size in spec.shape)
            item = list_around() if spec is None else around(spec.dtype, (count, *sizes))
            write(part_of(key))
            self._copy(key, write, *item)
        write(end + whole_end)

    def _copy(self, key: str, write: Callable[[bytes], Any], start: bytes, end: bytes) -> None:
        write(start)
        with self._places[key].open("rb") as part:
            shutil.copyfileobj(part, _Writes(write), 1 << 20)
        write(end)


class _Writes:
    """A file of which only `write` is asked."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self.write = write
