"""The episodes of a D4RL file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.alignment import NEXT, NEXT_OBSERVATION, last_step_of
from rlds2reverb.readers.d4rl.layout import TERMINALS, TIMEOUTS, Layout, column, layout_of, part_of
from rlds2reverb.readers.d4rl.options import D4rlOptions
from rlds2reverb.readers.d4rl.telling import remarks_of
from rlds2reverb.readers.flat import cutting
from rlds2reverb.readers.flat.columns import Rows
from rlds2reverb.readers.flat.cutting import Cuts, cut
from rlds2reverb.readers.flat.recordings import Description, FlatRecordings, Opened
from rlds2reverb.readers.recordings import BrokenEpisode


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
        except BrokenEpisode as broken:
            raise SourceError(broken.why) from broken
    names = {one: at for one, at in layout.names.items() if last_step == NEXT or one.split("/")[0] != NEXT_OBSERVATION}
    specs = {one: layout.specs[one] for one in names}
    about = Description(name, last_step, specs, layout.metadata, remarks)
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
