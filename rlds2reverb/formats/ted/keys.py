"""TED's keys under the names that options give them, the options of reading, and torch's names of dtypes.

A key is '/'-joined; options write "." for "/". Keys under `next` belong to the following step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from rlds2reverb.episode import is_under
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import MOST, SpecFrom
from rlds2reverb.formats.rows import REPEAT
from rlds2reverb.specs import NUMBERS

NEXT = "next/"
DONES = frozenset({"done", "terminated", "truncated"})
REWARD = "reward"
TRAJECTORY_IDS = ("collector/traj_ids", "episode")
"""Where collectors and TorchRL's own datasets put trajectory ids; in the order in which its samplers look for them."""

LAST, CHECK, KEEP, DROP = "last", "check", "keep", "drop"
IDS, DONE, ROWS = "ids", "done", "rows"

Value = TypeVar("Value")


@dataclass(frozen=True)
class TedOptions:
    """How to read.

    Attributes:
      trajectories: "" for ids if there are any, else end flags; "ids", "done", "rows", or the key of ids.
      next: "last" takes the last row of `next` only, "check" refuses trajectories in which other rows differ from the following
        observation, "keep" makes columns of it, "drop" reads the data as without `next`.
      keeps_priorities: whether what a prioritised sampler dumped becomes a column.
      cursor: where the writer of a full ring would write next; None to read that from its files.
      drop_incomplete: leaves out trajectories whose beginning or end was not recorded.
      buffer: the number of one in an ensemble; None for all.
      done_is_terminal: the meaning of `done` where neither `terminated` nor `truncated` is recorded; None if unknown.
      holds_trajectories: whether each item of the storage is a trajectory [T]; None to decide by its files.
      last_step: of data without `next`, see `formats.rows`.
      names: new key -> the keys that it renames.
      spec_from: which groups of the H5 form say what all have, see `agreement`.
    """

    trajectories: str = ""
    keeps_priorities: bool = True
    next: str = LAST
    cursor: int | None = None
    drop_incomplete: bool = False
    buffer: int | None = None
    done_is_terminal: bool | None = None
    holds_trajectories: bool | None = None
    last_step: str = REPEAT
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spec_from: SpecFrom = MOST


def last_part(key: str) -> str:
    """The innermost name of a key."""
    return key.rpartition("/")[2]


def rename_keys(where: str, held: Mapping[str, Value], names: Mapping[str, tuple[str, ...]]) -> dict[str, Value]:
    """Keys under the names that options ask for: new key -> the old ones, of which two or more go below the new one.

    Raises:
      SourceError: there is no such key, or the data has a key of the new name besides.
    """
    renamed = dict(held)
    for new, olds in names.items():
        for old in olds:
            if not any(is_under(key, old) for key in held):
                raise _no_key(where, old, held)
        there = [key for key in held if is_under(key, new) and not any(is_under(key, old) for old in olds)]
        if there:
            raise SourceError(
                f'{where}: "{_option(there[0])}" is there already, beside {"+".join(map(_option, olds))}; name both, as in observation=a+b'
            )
        for old in olds:
            target = f"{new}/{old}" if len(olds) > 1 else new
            for prefix in ("",) if new.startswith(NEXT) else ("", NEXT):
                moved = [key for key in held if is_under(key, prefix + old)]
                for key in moved:
                    renamed.pop(key, None)
                renamed.update({prefix + target + key[len(prefix + old) :]: held[key] for key in moved})
    return renamed


def id_key(where: str, trajectories: str, held: Collection[str]) -> str:
    """The key whose values divide trajectories; "" if end flags do, or each row is a trajectory. Raises `SourceError` if it is missing."""
    if trajectories in (DONE, ROWS):
        return ""
    if trajectories not in ("", IDS):
        if trajectories not in held:
            raise _no_key(where, trajectories, held)
        return trajectories
    ids = next((key for key in TRAJECTORY_IDS if key in held), "")
    if trajectories and not ids:
        raise SourceError(
            f"{where}: no ids of trajectories: neither {' nor '.join(map(_option, TRAJECTORY_IDS))} is there; "
            "name a key by trajectories=KEY, or leave the option out: then end flags divide them"
        )
    return ids


def _no_key(where: str, key: str, held: Iterable[str]) -> SourceError:
    return SourceError(f'{where}: no key "{_option(key)}"; there are: {", ".join(sorted(map(_option, held)))}')


def _option(key: str) -> str:
    return key.replace("/", ".")


DTYPES: dict[str, np.dtype[Any]] = {  # Torch's name -> numpy's dtype; both keep the same bytes, little-endian on disk
    **{f"torch.{name}": dtype for name, dtype in NUMBERS.items()},
    "torch.bfloat16": np.dtype(ml_dtypes.bfloat16),
}

NAMES = {dtype: name for name, dtype in DTYPES.items()}
