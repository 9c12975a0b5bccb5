"""Sequences that hold a stream of episodes -> runs of rows of one episode each.

A sequence is cut before each of its first steps. Rows before the first of them are left out: what is left of an episode whose
beginning was removed, or, where `across_episodes` cut the items, rows of the episodes before that it stored once more.
"""

from __future__ import annotations

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.remarks import Remark, note
from rlds2reverb.stored.rows import RowReader
from rlds2reverb.stored.runs import Runs
from rlds2reverb.views.trajectory import FIRST, STEP_TYPE
from rlds2reverb.wording import counted


def episodes_in(name: str, runs: Runs, rows: RowReader) -> tuple[Runs, Remark]:
    """The runs, cut where episodes begin; reads the step types of all of them.

    Args:
      name: of the source, for messages.
      runs: of trajectories.
      rows: reads them.

    Raises:
      SourceError: step types cannot be read.
    """
    made: list[tuple[int, int, int]] = []
    left_out = 0
    for sequence, first, stop in zip(runs.sequences.tolist(), runs.firsts.tolist(), runs.stops.tolist()):
        try:
            kinds = rows.columns(sequence, first, stop, only=(STEP_TYPE,))[STEP_TYPE]
        except BrokenEpisode as broken:
            raise SourceError(f"{name}: sequence {sequence:016x}: {broken.path}: {broken.why}") from broken
        begins = (first + np.flatnonzero(kinds.reshape(len(kinds), -1)[:, :1].ravel() == FIRST)).tolist()
        left_out += (begins[0] if begins else stop) - first
        made += [(sequence, begin, end) for begin, end in zip(begins, [*begins[1:], stop])]
    sequences, firsts, stops = (np.array([one[at] for one in made], kind) for at, kind in enumerate("Qqq"))
    alone = np.ones(len(made), bool)
    text = (
        f"{counted(len(runs.sequences), 'sequence')} cut into {counted(len(made), 'episode')}; {counted(left_out, 'row')} before the "
        "first steps are left out"
    )
    return Runs(sequences, firsts, stops, alone, alone), note("streams_split", text, left_out)
