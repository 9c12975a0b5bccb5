"""Rows that a later file has once more.

RLlib's runners of the new stack keep what they wrote, unless `output_max_rows_per_file` is set: each writing has all rows of the ones
before it. Source: rllib/offline/offline_env_runner.py of Ray 2.60 (`sample`, `stop`). Of such writings only the last one is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.readers.rllib.batches import Part
from rlds2reverb.readers.rllib.index import Found
from rlds2reverb.readers.rllib.store import Troubles


def without_repeated(found: Iterator[Found], troubles: Troubles) -> Iterator[Found]:
    """What is found, without a writing that the next one of the same worker begins with; its rows are counted."""
    held: list[Found] = []
    for run, parts in groupby(found, lambda one: one.file.run):
        if run is None:
            yield from held
            held = []
            yield from parts
            continue
        now = list(parts)
        if held and _begins_with(now, held):
            troubles.repeated += sum(one.part.rows for one in held)
        else:
            yield from held
        held = now
    yield from held


def _begins_with(now: list[Found], before: list[Found]) -> bool:
    run, last = now[0].file.run, before[0].file.run
    if run is None or last is None or run[0] != last[0]:
        return False
    rows = sum(one.part.rows for one in before)
    first, end = before[0].part.ends[0], before[-1].part.ends[1]
    if rows == 0 or not first or now[0].part.ends[0] != first or first == end:
        return False
    old, new = _story(before), _story(now)
    return len(new) == len(old) and all(
        len(one) >= rows and np.array_equal(one[:rows], other) for one, other in zip(new, old)
    )


def _story(found: list[Found]) -> list[Array]:
    """What happened in the rows: whose they are, rewards, ends."""
    parts = [one.part for one in found if one.part.rows]
    return [
        np.concatenate([_ids(one) for one in parts]),
        np.concatenate([one.ended for one in parts]),
        np.concatenate([_rewards(one) for one in parts]),
    ]


def _ids(part: Part) -> Array:
    return np.full(part.rows, "") if part.episodes is None else part.episodes.astype(str)


def _rewards(part: Part) -> Array:
    return np.zeros(part.rows) if part.rewards is None else part.rewards.reshape(part.rows, -1)[:, 0]
