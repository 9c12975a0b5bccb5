"""Episodes -> parts of HDF5, made in memory and written whole; at the end one file of them all.

A part is on disk or it is not: nothing that ends the process leaves half of one. A state is how many there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5f, h5fd, h5g, h5p

from rlds2reverb.destinations.base import LAST_ROW, Loss, State
from rlds2reverb.destinations.comparing import are_equal, rows_that_differ
from rlds2reverb.destinations.hdf5_files import Output
from rlds2reverb.destinations.minari import LOSSES
from rlds2reverb.destinations.minari.layout import OUR_FEATURES, Place
from rlds2reverb.destinations.minari.spaces import Texts
from rlds2reverb.destinations.minari.values import attribute, encoded_texts, is_attribute
from rlds2reverb.destinations.whole_files import remove_whole, whole, write_whole
from rlds2reverb.episodes import DISCOUNT, IS_TERMINAL, REWARD, Array, Episode
from rlds2reverb.errors import ConversionError
from rlds2reverb.image_headers import JPEG_START
from rlds2reverb.metadata import metadata_path
from rlds2reverb.readers.alignment import terminal_discount, zero_row

MAIN_FILE, METADATA_FILE = "main_data.hdf5", "metadata.json"
_PARTS = ".parts"
_PART_BYTES = 64 << 20
_GROWS_BY_BYTES = 1 << 20
_TOO_MUCH = "no numbers or UTF-8 text of less than 60,000 bytes without a NUL"
_INT_REWARDS = np.dtype(np.float64)


class MinariSink:
    """Writes the folder `data` of a dataset.

    Args:
      work: the dataset's folder.
      places: where columns go.
      describe: number of episodes and of steps, texts -> `metadata.json`.
      state: of an earlier run.
    """

    def __init__(self, work: Path, places: Sequence[Place], describe: Any, state: State | None) -> None:
        self._data, self._places, self._describe = work / "data", list(places), describe
        told = state or {"parts": 0, "episodes": 0, "steps": 0, "texts": {}}
        self._parts, self._episodes, self._steps = told["parts"], told["episodes"], told["steps"]
        self._texts = {path: Texts.of_state(one) for path, one in told["texts"].items()}
        self._file: h5py.File | None = None
        self._bytes = 0
        self._is_done = state is not None and (self._data / METADATA_FILE).exists() and not self._folder.exists()
        if not self._is_done:
            self._folder.mkdir(parents=True, exist_ok=True)
            for extra in self._folder.iterdir():
                if extra.name not in {self._part(number).name for number in range(self._parts)}:
                    extra.unlink()

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Takes an episode of at least one row."""
        losses: list[Loss] = []
        name = f"episode_{self._episodes}".encode()
        group = h5py.Group(h5g.create(self._open().id, name, gcpl=_in_order(h5p.GROUP_CREATE)))
        steps = len(episode) - 1
        for place in self._places:
            self._write_column(group, place, episode.columns[place.path], losses)
        if "rewards" not in group:
            group["rewards"] = np.zeros(steps, np.float32)
        terminal = episode.columns.get(IS_TERMINAL)
        ends = np.arange(steps) == steps - 1
        is_terminal = terminal is not None and bool(terminal[-1])
        group["terminations"], group["truncations"] = ends & is_terminal, ends & (not is_terminal)
        group.require_group("infos")
        self._write_features(group, episode, steps, losses)
        losses += _of_ends(episode, is_terminal)
        self._episodes, self._steps = self._episodes + 1, self._steps + steps
        self._bytes += episode.nbytes
        if self._bytes >= _PART_BYTES:
            self._end_part()
        return losses

    def sync(self) -> State:
        """Puts the episodes that are in memory on disk."""
        self._end_part()
        return {
            "parts": self._parts,
            "episodes": self._episodes,
            "steps": self._steps,
            "texts": {path: one.as_state() for path, one in self._texts.items()},
        }

    def finish(self) -> None:
        """Makes one file of the parts, and says what is in it."""
        if not self._is_done:
            self._end_part()
            with whole(self._data / MAIN_FILE) as unfinished:
                _merge([self._part(number) for number in range(self._parts)], unfinished)
            told = self._describe(self._episodes, self._steps, self._texts)
            told["dataset_size"] = round((self._data / MAIN_FILE).stat().st_size / 1e6, 1)
            write_whole(self._data / METADATA_FILE, json.dumps(told).encode())
            self._is_done = True
        remove_whole(self._folder)

    def close(self) -> None:
        """Drops what is in memory."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _folder(self) -> Path:
        return self._data / _PARTS

    def _part(self, number: int) -> Path:
        return self._folder / f"{number}.hdf5"

    def _open(self) -> h5py.File:
        if self._file is None:
            self._file = _in_memory()
        return self._file

    def _end_part(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        image = self._file.id.get_file_image()
        write_whole(self._part(self._parts), image)
        self.close()
        self._parts, self._bytes = self._parts + 1, 0

    def _write_column(self, group: h5py.Group, place: Place, column: Array, losses: list[Loss]) -> None:
        rows = column[:-1] if place.is_of_steps else column
        if place.is_of_steps and not are_equal(column[-1:], zero_row(column)):
            losses.append(Loss("last_row", LOSSES["last_row"], place.path, LAST_ROW))
        if place.spec.image is not None:
            _write_files(group, place, rows)
        elif place.spec.dtype.kind == "O":
            texts, is_changed = encoded_texts(rows)
            if is_changed:
                losses.append(Loss("text", LOSSES["text"], place.path))
            if len(texts):
                self._texts.setdefault(place.path, Texts()).take(texts.ravel().tolist())
            group.create_dataset(place.dataset, data=texts, dtype=h5py.string_dtype())
        elif place.path == REWARD and place.spec.dtype.kind != "f":
            group[place.dataset] = rows.astype(_INT_REWARDS)
        else:
            group[place.dataset] = rows

    def _write_features(self, group: h5py.Group, episode: Episode, steps: int, losses: list[Loss]) -> None:
        ours = dict(zip(OUR_FEATURES, (self._episodes, steps)))
        for name, value in episode.metadata.items():
            if name in ours:
                if not np.array_equal(value, ours[name]):
                    losses.append(Loss("renumbered", LOSSES["renumbered"], metadata_path(name)))
            elif is_attribute(name):
                held = attribute(value)
                if held is None:
                    losses.append(Loss("metadata", f"{_TOO_MUCH}: {LOSSES['metadata']}", metadata_path(name)))
                else:
                    group.attrs[name] = held
        group.attrs.update(ours)


_NAMES = count()


def _in_order(kind: Any) -> Any:
    """How groups and files are created: names stay in the order in which they came, and no time is held.

    h5py's `track_order` alone has HDF5 1.14 write the time into them: no two runs would give the same bytes.
    """
    properties = h5p.create(kind)
    order = h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED
    properties.set_link_creation_order(order)
    properties.set_attr_creation_order(order)
    properties.set_obj_track_times(False)
    return properties


def _created(name: bytes, output: Output | None) -> h5py.File:
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    if output is None:
        access.set_fapl_core(_GROWS_BY_BYTES, False)
    else:
        access.set_fileobj_driver(h5fd.fileobj_driver, output)
    return h5py.File(h5f.create(name, h5f.ACC_TRUNC, fcpl=_in_order(h5p.FILE_CREATE), fapl=access))


def _in_memory() -> h5py.File:
    return _created(f"rlds2reverb-part-{next(_NAMES)}".encode(), None)


def _merge(parts: Sequence[Path], target: Path) -> None:
    with Output(target) as output, _created(os.fsencode(target), output) as merged:
        for part in parts:
            with h5py.File(part, "r", locking=False) as file:
                for name in file:
                    file.copy(name, merged)
                    output.check()


def _write_files(group: h5py.Group, place: Place, files: Array) -> None:
    dataset = group.create_dataset(place.dataset, (len(files),), h5py.vlen_dtype(np.uint8))
    for row, file in enumerate(files):
        if not file.startswith(JPEG_START):
            raise ConversionError(
                f'column "{place.path}", step {row}: a file that is no JPEG, which Minari does not hold; those before it are. '
                "Take images=decoded behind the destination's name, and begin anew with restart=True (--restart)"
            )
        dataset[row] = np.frombuffer(file, np.uint8)


def _of_ends(episode: Episode, is_terminal: bool) -> Iterator[Loss]:
    discount, rows = episode.columns.get(DISCOUNT), len(episode)
    if rows == 1 and is_terminal:
        yield Loss("terminal", LOSSES["terminal"], IS_TERMINAL)
        yield Loss("discount", LOSSES["discount"], DISCOUNT)
    elif discount is not None and discount.dtype == np.float32 and discount.shape == (rows,):
        odd = rows_that_differ(discount, terminal_discount(rows, is_terminal))
        if odd is not None:
            yield Loss("discount", LOSSES["discount"], DISCOUNT, odd)
