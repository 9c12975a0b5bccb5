"""The episodes of a D4RL file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import xxhash

from rlds2reverb.episodes import REWARD
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.alignment import NEXT, NEXT_OBSERVATION, label_of, last_step_of
from rlds2reverb.readers.d4rl.layout import TERMINALS, TIMEOUTS, Layout, column, layout_of, part_of
from rlds2reverb.readers.d4rl.options import D4rlOptions
from rlds2reverb.readers.d4rl.telling import remarks_of
from rlds2reverb.readers.digests import content, sampled
from rlds2reverb.readers.flat import cutting
from rlds2reverb.readers.flat.columns import Rows
from rlds2reverb.readers.flat.cutting import Cuts, cut
from rlds2reverb.readers.flat.recordings import Description, FlatRecordings, Opened
from rlds2reverb.readers.recordings import BrokenEpisode

_LOOKED_AT = 8
"""Rows of a column that is not read whole for the digest."""


def d4rl_recordings(path: Path, name: str, options: D4rlOptions = D4rlOptions()) -> FlatRecordings:
    """The episodes of a D4RL file.

    Args:
      path: of the file.
      name: what people call it.
      options: how it is read.

    Raises:
      SourceError: it cannot be read, is no file of D4RL, or an option does not go with it.
    """
    with hdf5.opened(path) as file:
        stamp = hdf5.stamp_of(file)
        try:
            layout = layout_of(file, options)
            last_step = last_step_of(name, layout.names, options.last_step)
            cuts = _cuts(name, layout, options)
            remarks = remarks_of(layout, cuts, part_of(file, options.chunk), options, last_step, path.name)
            digest = _digest(part_of(file, options.chunk), layout)
        except BrokenEpisode as broken:
            raise SourceError(broken.why) from broken
    names = {one: at for one, at in layout.names.items() if last_step == NEXT or one.split("/")[0] != NEXT_OBSERVATION}
    specs = {one: layout.specs[one] for one in names}
    fingerprint = f"d4rl:{digest}{label_of(name, layout.names, last_step)}"
    about = Description(name, fingerprint, last_step, specs, layout.metadata, remarks)
    return FlatRecordings(about, cuts, _opener(path, options, stamp, names))


def _opener(path: Path, options: D4rlOptions, stamp: hdf5.Stamp, names: Mapping[str, str]) -> Opened:
    @contextmanager
    def opened() -> Iterator[Mapping[str, Rows]]:
        with hdf5.opened(path, stamp=stamp) as file:
            try:
                group = part_of(file, options.chunk)
                columns = {one: column(group, at, one) for one, at in names.items()}
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
            yield columns

    return opened


def _cuts(name: str, layout: Layout, options: D4rlOptions) -> Cuts:
    timeouts = layout.flags.get(TIMEOUTS)
    if options.ends == cutting.TIMEOUTS and timeouts is None and options.max_episode_steps is None:
        raise SourceError(
            f"{name}: ends=timeouts: the file has no timeouts; set max_episode_steps=N, or choose ends=terminals"
        )
    return cut(layout.flags[TERMINALS], timeouts, options.ends, options.max_episode_steps, options.keeps_tail)


def _digest(group: h5py.Group, layout: Layout) -> str:
    """16 hex digits of what the file has: columns, flags, rewards, metadata, and some rows of every column."""
    digest = xxhash.xxh3_64(
        f"{layout.rows}|{sorted((path, str(spec)) for path, spec in layout.specs.items())}".encode()
    )
    for key, value in sorted({**layout.flags, **layout.metadata}.items()):
        digest.update(repr(key).encode())
        digest.update(content(value))
    digest.update(content(column(group, layout.names[REWARD], REWARD).rows()))
    for path, name in sorted(layout.names.items()):
        one = column(group, name, path)
        for row in sampled(layout.rows, _LOOKED_AT):
            digest.update(content(one.rows(row, row + 1)))
    return digest.hexdigest()
