"""What is to be said of a D4RL file: what it lacks, and what its producers are known to do."""

from __future__ import annotations

from collections.abc import Iterator

import h5py
import numpy as np

from rlds2reverb.readers.alignment import ENDINGS, NEXT_OBSERVATION
from rlds2reverb.readers.d4rl.layout import TERMINALS, TIMEOUTS, Layout, column, known_steps
from rlds2reverb.readers.d4rl.options import D4rlOptions
from rlds2reverb.readers.differences import differing
from rlds2reverb.readers.flat import cutting
from rlds2reverb.readers.flat.cutting import Cuts
from rlds2reverb.remarks import Remark, note
from rlds2reverb.wording import counted

_COMPARED_ROWS = 2_000
_MANY = 0.5
"""The share of terminals that follow a terminal, from which on they are taken for a state rather than for an end."""


def remarks_of(
    layout: Layout, cuts: Cuts, group: h5py.Group, options: D4rlOptions, last_step: str, file_name: str
) -> tuple[Remark, ...]:
    """All remarks on a file.

    Raises:
      BrokenEpisode: what is compared cannot be read.
    """
    told = [note("last_step", ENDINGS[last_step])]
    told += _of_ends(layout, options, file_name)
    if cuts.tail_rows:
        became = "an episode without an end" if options.keeps_tail else "left out"
        told.append(
            Remark(
                "unfinished_tail",
                f"{counted(cuts.tail_rows, 'row')} after the last end: {became} (tail=keep or drop)",
                cuts.tail_rows,
            )
        )
    told += _of_next(layout, cuts, group)
    if layout.left_out:
        names = ", ".join(layout.left_out[:8]) + (", ..." if len(layout.left_out) > 8 else "")
        told.append(
            Remark(
                "left_out", f"no numbers or texts of the file, and no row for each step: {names}", len(layout.left_out)
            )
        )
    return tuple(told)


def _of_ends(layout: Layout, options: D4rlOptions, file_name: str) -> Iterator[Remark]:
    terminals, timeouts = layout.flags[TERMINALS], layout.flags.get(TIMEOUTS)
    if timeouts is None:
        if options.max_episode_steps is None:
            known = known_steps(file_name)
            hint = f"; for files of this name it is {known}" if known else ""
            yield Remark(
                "no_timeouts",
                "the file has no timeouts, so only terminals end episodes. D4RL counts to its environment's max_episode_steps, which is "
                f"not in the file{hint}: set max_episode_steps=N",
            )
        else:
            yield note(
                "time_limit",
                f"the file has no timeouts: episodes end at terminals and after {options.max_episode_steps:,} steps",
            )
        if layout.terminals_dtype.kind == "f":
            yield Remark(
                "terminals_of_demonstrations",
                "float terminals and no timeouts, as kitchen's writer has them: they mark the end of a demonstration, which need not be a terminal state",
            )
    following = int((terminals[1:] & terminals[:-1]).sum())
    if following and following >= _MANY * terminals.sum() and options.ends != cutting.TIMEOUTS:
        yield Remark(
            "terminals_go_on",
            f"{following:,} of {int(terminals.sum()):,} terminals follow another one: they tell of a state, such as contact with the goal in antmaze, "
            "and end nothing. ends=timeouts cuts at timeouts only, and keeps terminals as a column",
            following,
        )


def _of_next(layout: Layout, cuts: Cuts, group: h5py.Group) -> Iterator[Remark]:
    """Whether next_observations are the next rows' observations, in the first rows of the file."""
    compared = min(_COMPARED_ROWS, layout.rows)
    ends = np.zeros(layout.rows, bool)
    ends[cuts.stops - 1] = True
    inside = ~ends[: compared - 1]
    for path, name in layout.names.items():
        if path.split("/")[0] != NEXT_OBSERVATION or not compared:
            continue
        beside = name[len("next_") :]
        if beside not in layout.names.values():
            continue
        after = column(group, name, path).rows(0, compared)[:-1]
        others = int((differing(after, column(group, beside, path).rows(0, compared)[1:]) & inside).sum())
        if others:
            yield Remark(
                "next_differs",
                f"of the first {compared:,} rows {others:,} have {name} that are not the next row's {beside}, though no flag ends an "
                "episode there: ends may be missing from the file",
                others,
                path,
            )
