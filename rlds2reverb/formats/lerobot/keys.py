"""Which rows of a file of version 3 are which episode's, by their own `episode_index`.

meta/episodes says which file has an episode, and at which row of the dataset it begins. Both are derived, and often stale: LeRobot 0.4.0 counts
files wrongly where it converts or merges datasets, and others remove episodes from meta only. LeRobot reads all files and follows the rows' keys.
Here the file that meta names is asked first. Where it has the episode in one piece, no other is opened; else an index of all files is made, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rlds2reverb.episode import Array
from rlds2reverb.formats.arrow import check_row_groups, is_list, stored_values
from rlds2reverb.formats.lerobot.features import EPISODE_INDEX, INDEX
from rlds2reverb.formats.lerobot.values import ERRORS
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.text import line_of

_MOST_RUNS = 100  # of one episode: each is a place that is read by itself
NO_EPISODE = -1  # of rows without a key


@dataclass(frozen=True)
class Run:
    """Adjacent rows of one episode in a file; the least and the greatest `index` among them, or -1 where it was not read."""

    path: Path
    episode: int
    start: int
    stop: int
    least: int = -1
    greatest: int = -1

    def __str__(self) -> str:
        return f"{self.path}, rows {self.start:,} to {self.stop:,}"


@dataclass(frozen=True)
class Keys:
    """The runs of one file or of all, by episode; `unread` says which rows have keys that cannot be read, and why."""

    runs: Mapping[int, list[Run]]
    unread: str = ""

    @staticmethod
    def join(files: Iterable[Keys]) -> Keys:
        runs: dict[int, list[Run]] = {}
        unread = ""
        for keys in files:
            unread = unread or keys.unread
            for episode, of_file in keys.runs.items():
                runs.setdefault(episode, []).extend(of_file)
        return Keys(runs, unread)

    def whole(self, episode: int, path: Path, rows: int) -> list[Run] | None:
        """The one run of an episode in a file; None where that has another number of rows, or there are several, or none."""
        runs = [run for run in self.runs.get(episode, ()) if run.path == path]
        return runs if len(runs) == 1 and runs[0].stop - runs[0].start == rows else None


def read_keys(path: Path, file: Any, with_index: bool = False) -> Keys:
    """Reads one column of a `ParquetFile`, or two with `index`, and only of row groups whose statistics do not say it all."""
    schema = file.metadata.schema
    numbers = {schema.column(number).path: number for number in range(len(schema))}
    names = [EPISODE_INDEX, INDEX] if with_index and INDEX in file.schema_arrow.names else [EPISODE_INDEX]
    columns = {name: numbers.get(name) for name in names}
    runs: dict[int, list[Run]] = {}
    last: Run | None = None
    first, unread = 0, ""
    for group in range(file.metadata.num_row_groups):
        stop = first + file.metadata.row_group(group).num_rows
        try:
            of_group = list(_read_runs(path, file, group, first, columns))
        except ERRORS as error:
            of_group = []
            unread = unread or f"{path}, rows {first:,} to {stop:,}: {line_of(error)}"
        for run in of_group:
            if last is not None and (last.episode, last.stop) == (run.episode, run.start):
                least, greatest = min(last.least, run.least), max(last.greatest, run.greatest)
                last = runs[run.episode][-1] = replace(last, stop=run.stop, least=least, greatest=greatest)
            else:
                last = run
                runs.setdefault(run.episode, []).append(run)
        first = stop
    return Keys(runs, unread)


def _read_runs(path: Path, file: Any, group: int, first: int, columns: Mapping[str, int | None]) -> Iterator[Run]:
    """The runs of a row group whose first row is `first`; `columns` has the places of the keys' columns among all of the file."""
    about = file.metadata.row_group(group)
    episode, *index = (_range_by_statistics(about, number) for number in columns.values())
    # LeRobot writes an episode as a row group.
    if episode is not None and episode[0] == episode[1] and None not in index:
        yield Run(path, episode[0], first, first + about.num_rows, *(index[0] if index and index[0] else ()))
        return
    check_row_groups(path, file, columns, [group])
    table = file.read_row_group(group, columns=list(columns))
    episodes, *indices = (_whole_numbers(table[name]) for name in columns)
    # Where the number changes, with a change before the first row and behind the last.
    bounds = np.flatnonzero(np.diff(episodes, prepend=episodes[:1] - 1, append=episodes[-1:] + 1)).tolist()
    for start, stop in pairwise(bounds):
        within = [(int(column[start:stop].min()), int(column[start:stop].max())) for column in indices]
        yield Run(path, int(episodes[start]), first + start, first + stop, *(within[0] if within else ()))


def _range_by_statistics(group: Any, number: int | None) -> tuple[int, int] | None:
    """The least and the greatest value of a column of whole numbers; None where the statistics do not say it."""
    statistics = None if number is None else group.column(number).statistics
    if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
        return None
    ends = statistics.min, statistics.max
    return ends if all(type(end) is int for end in ends) else None


def _whole_numbers(column: Any) -> Array:
    """[rows] int64 of a column, `NO_EPISODE` where a row has none."""
    values = stored_values(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type))
    while is_list(values.type):  # of one number each
        values = values.flatten()
    if len(values) != len(column):
        raise ValueError(f"expected a whole number in each row, found {column.type}")
    return np.asarray(values.cast(pa.int64()).fill_null(NO_EPISODE).to_numpy(zero_copy_only=False))


def find_places(keys: Keys, episode: int, rows: int) -> list[Run]:
    """All runs of an episode in the order of their `index`.

    Raises:
      BrokenEpisode: there is none, they have another number of rows than meta says, or the same `index` stands in two of them.
    """
    runs = sorted(keys.runs.get(episode, []), key=lambda run: run.least)
    count = sum(run.stop - run.start for run in runs)
    behind = f"; the keys of some rows cannot be read: {keys.unread}" if keys.unread else ""
    if not runs:
        raise BrokenEpisode("", f"no file has rows of episode {episode}{behind}")
    where = "; ".join(map(str, runs[:3])) + ("; ..." if len(runs) > 3 else "")
    if count != rows:
        raise BrokenEpisode(
            "", f"{where}: {count:,} rows of episode {episode}; expected {rows:,}, as meta/episodes says{behind}"
        )
    are_ordered = all(0 <= run.greatest < following.least for run, following in pairwise(runs))
    if len(runs) > _MOST_RUNS or not are_ordered:
        raise BrokenEpisode(
            "",
            f"{where}: rows of episode {episode} stand in {len(runs):,} places, and their index does not say in which order",
        )
    return runs
