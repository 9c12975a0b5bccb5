"""A .npz file with all episodes of a dataset, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import NEXT, NEXT_OBSERVATION, last_step_of
from rlds2reverb.readers.flat.columns import Rows
from rlds2reverb.readers.flat.recordings import ROWS, Description, FlatRecordings, Opened
from rlds2reverb.readers.npz.ends import cuts_of
from rlds2reverb.readers.npz.keys import ENDS, Keys, keys_of
from rlds2reverb.readers.npz.members import Member, checksums, opened
from rlds2reverb.readers.npz.options import NpzOptions
from rlds2reverb.readers.npz.telling import remarks_of
from rlds2reverb.readers.recordings import BrokenEpisode


def flat_recordings(path: Path, name: str, options: NpzOptions) -> FlatRecordings:
    """The episodes of a file.

    Args:
      path: of the file.
      name: what people call it.
      options: how it is read.

    Raises:
      SourceError: it cannot be read, its arrays differ in length, or an option does not go with it.
    """
    sums = checksums(path)
    try:
        with opened(path) as members:
            keys = keys_of(str(path), members)
            rows = _rows(path, {key: members[key] for key in (*keys.columns.values(), *_flags(keys).values())})
            cuts = cuts_of(str(path), members, keys, rows, options)
            values = {key: members[key].value() for key in keys.others if not members[key].shape}
            specs = {one: members[key].spec for one, key in keys.columns.items()}
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken
    last_step = ROWS if keys.is_of_rlds else last_step_of(name, keys.columns, options.last_step)
    if last_step != NEXT:
        specs = {one: spec for one, spec in specs.items() if one.split("/")[0] != NEXT_OBSERVATION}
    left_out = [*keys.unused, *(key for key in keys.others if key not in values)]
    remarks = remarks_of(last_step, keys, cuts, left_out, options)
    about = Description(name, last_step, specs, values, remarks)
    return FlatRecordings(about, cuts, _opener(path, sums, {one: keys.columns[one] for one in specs}))


def _opener(path: Path, sums: list[tuple[str, int, int]], keys: Mapping[str, str]) -> Opened:
    @contextmanager
    def opening() -> Iterator[Mapping[str, Rows]]:
        if checksums(path) != sums:
            raise SourceError(f"{path}: was written anew after it was first looked at; open the source again")
        with opened(path) as members:
            yield {one: members[key] for one, key in keys.items()}

    return opening


def _flags(keys: Keys) -> dict[str, str]:
    return {kind: key for kind, key in keys.ends.items() if kind != ENDS}


def _rows(path: Path, members: Mapping[str, Member]) -> int:
    lengths = {key: len(one) if one.shape else None for key, one in members.items()}
    first, rows = next(iter(lengths.items()))
    for key, length in lengths.items():
        if length is None or length != rows:
            raise SourceError(
                f"{path}: {key} has {'no' if length is None else f'{length:,}'} rows; expected {rows or 0:,}, as {first} has"
            )
    return rows or 0
