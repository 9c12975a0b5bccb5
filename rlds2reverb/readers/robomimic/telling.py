"""What is to be said of a robomimic file: how its ends are read, and what its producers are known to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlds2reverb.readers.alignment import ENDINGS
from rlds2reverb.readers.robomimic.demos import is_of_libero
from rlds2reverb.readers.robomimic.options import AFTER, NOTHING
from rlds2reverb.readers.robomimic.plan import DONES, Plan
from rlds2reverb.remarks import Remark, note
from rlds2reverb.wording import counted


def remarks_of(plan: Plan, known: Mapping[str, Any], strangers: int) -> tuple[Remark, ...]:
    """All remarks on a file; `strangers` is how many names the mask has that are no demonstrations."""
    told = [*_of_alignment(plan), *_of_libero(plan, known)]
    if plan.options.done_means == NOTHING and DONES in plan.specs:
        told.append(
            note(
                "done_means",
                "dones are kept as a column: whether they mark success, the end of the demonstration or both is not in the file, so no end "
                "is terminal. done_means=terminal takes them for terminal states, done_means=reward a last reward above 0",
            )
        )
    if strangers:
        text = f'{counted(strangers, "name")} in mask "{plan.options.filter}" that the file has no demonstration of'
        told.append(Remark("masked_names", text, strangers))
    if plan.left_out:
        told.append(Remark("left_out", f"not a row for each action: {', '.join(plan.left_out)}", len(plan.left_out)))
    return tuple(told)


def _of_alignment(plan: Plan) -> Iterator[Remark]:
    if plan.align == AFTER:
        yield note(
            "align",
            "an observation is taken for what came after its row's action: it goes with the next action, and the first action, whose "
            "observation was not recorded, is left out. align=before reads rows as they stand",
        )
    else:
        yield note("last_step", ENDINGS[plan.last_step])


def _of_libero(plan: Plan, known: Mapping[str, Any]) -> Iterator[Remark]:
    if not is_of_libero(known):
        return
    if plan.align != AFTER:
        yield Remark(
            "observations_after",
            "LIBERO's create_dataset.py recorded each observation after its row's action, not before it; align=auto mends that",
        )
    if not plan.options.flips:
        yield Remark("upside_down", "LIBERO's images are upside down, as recorded; flip=yes turns them")
