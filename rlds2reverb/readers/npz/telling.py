"""What is to be said of .npz files: how ends were found, and what is not read."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.readers.alignment import ENDINGS
from rlds2reverb.readers.flat.cutting import Cuts
from rlds2reverb.readers.flat.recordings import ROWS
from rlds2reverb.readers.npz.keys import Keys
from rlds2reverb.readers.npz.options import NpzOptions
from rlds2reverb.remarks import Remark, note
from rlds2reverb.wording import counted


def remarks_of(
    last_step: str, keys: Keys, cuts: Cuts, left_out: Sequence[str], options: NpzOptions
) -> tuple[Remark, ...]:
    """All remarks on a file of many episodes."""
    told = [] if last_step == ROWS else [note("last_step", ENDINGS[last_step])]
    if not keys.ends and not keys.is_of_rlds and options.max_episode_steps is None:
        told.append(
            Remark("no_ends", "no flags and no episode_ends: the whole file is one episode; or set max_episode_steps=N")
        )
    elif cuts.tail_rows:
        became = "an episode without an end" if options.keeps_tail else "left out"
        text = f"{counted(cuts.tail_rows, 'row')} after the last end: {became} (tail=keep or drop)"
        told.append(Remark("unfinished_tail", text, cuts.tail_rows))
    return (*told, *left_out_remark(left_out))


def left_out_remark(left_out: Sequence[str]) -> tuple[Remark, ...]:
    """Says which arrays are no columns."""
    if not left_out:
        return ()
    return (Remark("left_out", f"arrays that make no column: {', '.join(left_out[:8])}", len(left_out)),)
