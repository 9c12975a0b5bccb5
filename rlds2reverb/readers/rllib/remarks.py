"""What is said of a dataset of RLlib as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlds2reverb.readers.alignment import MARK
from rlds2reverb.readers.rllib.batches import GOES_ON
from rlds2reverb.readers.rllib.index import Index
from rlds2reverb.readers.rllib.store import Troubles
from rlds2reverb.remarks import Remark, note
from rlds2reverb.wording import counted, shortened

_FILLED = {
    MARK: "the last row of each is its last step, whose action and reward mean nothing (last_step=mark)",
    "repeat": "the last observation stands there twice, so that no action is lost (last_step=repeat)",
}


def remarks_on(
    troubles: Troubles, index: Index, without_next: int, last_step: str, differing: int
) -> tuple[Remark, ...]:
    """All that is to be said.

    Args:
      troubles: with the files.
      index: of the episodes.
      without_next: how many records have no next observations.
      last_step: what is done there.
      differing: how many next observations of the first episode are not its observations.
    """
    told = [*_of_files(troubles), *_of_episodes(index)]
    if without_next:
        text = f"{counted(without_next, 'record')} without new_obs; {_FILLED[last_step]}"
        told.append(note("no_last_observation", text, without_next))
    if differing:
        text = f"{counted(differing, 'next observation')} of the first episode differ from the observation of the following step, as RLlib's n_step > 1 writes them, with rewards of several steps; only the last one is used"
        told.append(Remark("next_differs", text, differing))
    return tuple(told)


def remarks_on_columns(partial: Mapping[str, int], records: int) -> tuple[Remark, ...]:
    """Of columns that only some records have: how many have each."""
    return tuple(
        Remark(
            "left_out",
            f"{records - count:,} of {counted(records, 'record')} have no value of it per step; the column is left out",
            records - count,
            name,
        )
        for name, count in partial.items()
    )


def _of_files(troubles: Troubles) -> Iterator[Remark]:
    if troubles.corrupt:
        named = shortened("; ".join(troubles.named))
        text = f"{counted(troubles.corrupt, 'record')} cannot be read and {'is' if troubles.corrupt == 1 else 'are'} left out, as RLlib does: {named}"
        yield Remark("lost_records", text, troubles.corrupt)
    if troubles.empty:
        yield Remark("empty_records", f"{counted(troubles.empty, 'empty record')}, left out", troubles.empty)
    if troubles.repeated:
        text = f"{counted(troubles.repeated, 'row')} left out that a later file has once more: RLlib's runners write all that they have at each sample() unless output_max_rows_per_file is set"
        yield Remark("repeated_records", text, troubles.repeated)


def _of_episodes(index: Index) -> Iterator[Remark]:
    late = sum(index.first_t(number) > 0 and index.has_sure_seams(number) for number in range(len(index)))
    if late:
        text = f"{counted(late, 'episode')} begin after step 0; their first row is is_first all the same, and metadata t tells the step"
        yield Remark("late_start", text, late)
    open_ends = sum(index.ended(number) == GOES_ON for number in range(len(index)))
    if open_ends:
        text = f"{counted(open_ends, 'episode')} without an end, which are read as truncated there; metadata ending is unfinished"
        yield Remark("no_end", text, open_ends)
