"""A .npz file with all episodes of a dataset, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash

from rlds2reverb.episodes import IS_FIRST, IS_LAST, IS_TERMINAL, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import NEXT, NEXT_OBSERVATION, last_step_of
from rlds2reverb.readers.flat.columns import Rows
from rlds2reverb.readers.flat.cutting import Cuts, at_stops, cut
from rlds2reverb.readers.flat.recordings import ROWS, Description, FlatRecordings, Opened
from rlds2reverb.readers.npz.keys import ENDS, TERMINALS, TIMEOUTS, Keys, keys_of
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
            cuts = _cuts(str(path), members, keys, rows, options)
            values = {key: members[key].value() for key in keys.others if not members[key].shape}
            specs = {one: members[key].spec for one, key in keys.columns.items()}
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken
    last_step = ROWS if keys.is_of_rlds else last_step_of(name, keys.columns, options.last_step)
    if last_step != NEXT:
        specs = {one: spec for one, spec in specs.items() if one.split("/")[0] != NEXT_OBSERVATION}
    remarks = remarks_of(last_step, keys, cuts, [key for key in keys.others if key not in values], options)
    fingerprint = f"npz:{xxhash.xxh3_64_hexdigest(repr(sorted(sums)).encode())}"
    about = Description(name, fingerprint, last_step, specs, values, remarks)
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


def _cuts(where: str, members: Mapping[str, Member], keys: Keys, rows: int, options: NpzOptions) -> Cuts:
    """Where episodes end: by the numbers of `episode_ends`, RLDS' flags, or flags as D4RL's; one episode without any."""
    no = np.zeros(rows, bool)
    terminals = _truths(members[keys.ends[TERMINALS]]) if TERMINALS in keys.ends else no
    if ENDS in keys.ends:
        return at_stops(_stops(where, members[keys.ends[ENDS]], rows), terminals, options.keeps_tail)
    if keys.is_of_rlds:
        terminals = _truths(members[keys.columns[IS_TERMINAL]]) if IS_TERMINAL in keys.columns else no
        return at_stops(_rlds_stops(members, keys, rows), terminals, options.keeps_tail)
    timeouts = _truths(members[keys.ends[TIMEOUTS]]) if TIMEOUTS in keys.ends else None
    return cut(terminals, timeouts, options.ends, options.max_episode_steps, options.keeps_tail)


def _rlds_stops(members: Mapping[str, Member], keys: Keys, rows: int) -> Array:
    if IS_LAST in keys.columns:
        return np.flatnonzero(_truths(members[keys.columns[IS_LAST]])) + 1
    starts = np.flatnonzero(_truths(members[keys.columns[IS_FIRST]]))
    return np.append(starts[starts > 0], rows) if rows else starts


def _stops(where: str, member: Member, rows: int) -> Array:
    """`episode_ends` as numbers, checked."""
    stops = member.rows() if len(member.shape) == 1 else np.zeros(0)
    if (
        stops.dtype.kind not in "iu"
        or (len(stops) and (int(stops[0]) < 0 or int(stops[-1]) > rows))
        or np.any(stops[1:] < stops[:-1])
    ):
        raise SourceError(
            f"{where}: {member.key}: expected ascending whole numbers up to {rows:,}, the row after each episode's last"
        )
    return stops.astype(np.int64)


def _truths(member: Member) -> Array:
    values = member.rows()
    flags = values.reshape(-1)
    if values.dtype.kind not in "biuf" or len(flags) != len(values) or not np.isin(flags, (0, 1)).all():
        raise BrokenEpisode(
            member.key,
            f"{member.where}: expected a flag of 0 or 1 for each row, found {values.dtype}{list(values.shape)}",
        )
    return np.asarray(flags != 0)
