"""One of RLlib's view requirements: which column, shifted by which rows.

>>> ViewRequirement(shift="-3:-1").offsets, ViewRequirement(shift="0:4:2").offsets, ViewRequirement(shift=[0, -2]).offsets
((-3, -2, -1), (0, 2, 4), (0, -2))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rlds2reverb.errors import ViewError
from rlds2reverb.views.base import check_made_up, check_options
from rlds2reverb.views.labels import CHANGES_NO_ITEM, UNSAID_AT_DEFAULT, identity
from rlds2reverb.views.steps import Fill, checked_fill, fill_name

_RANGE = re.compile(r"(-?\d+):(-?\d+)(?::(\d+))?")


@dataclass(frozen=True)
class ViewRequirement:
    """One column of an item; the fields are RLlib's.

    Attributes:
      data_col: the column it reads, by RLlib's name (obs, new_obs, actions, rewards, terminateds, truncateds, dones, t) or
        by that of any other step field; None for the requirement's own name.
      shift: an int, a list of ints, "a:b" or "a:b:s".
      space: ignored, the data has its shapes; RLlib fills with its zeros.
      index: ignored, it is for RLlib's inference.
      batch_repeat_value: how many items in a row get the rows of the first of them.
      used_for_compute_actions: ignored, there is no inference here.
      used_for_training: without it the column is left out.
      fill: ours, not RLlib's. None follows RLlib's rule. "first" puts the first value before the start and zeros past the end,
        "zero" puts zeros and a number puts itself in both places.

    Raises:
      ViewError: a shift, a repeat or a fill that makes no sense.
    """

    data_col: str | None = None
    shift: int | str | Sequence[int] = 0
    space: Any = field(default=None, metadata=CHANGES_NO_ITEM)
    index: Any = field(default=None, metadata=CHANGES_NO_ITEM)
    batch_repeat_value: int = 1
    used_for_compute_actions: bool = field(default=True, metadata=CHANGES_NO_ITEM)
    used_for_training: bool = field(default=True, metadata=CHANGES_NO_ITEM)
    fill: Fill | None = field(default=None, metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        if self.fill is not None:
            object.__setattr__(self, "fill", checked_fill("requirements", self.fill))
        if not isinstance(self.data_col, (str, type(None))):
            raise ViewError(f"requirements: data_col {self.data_col!r}: expected the name of a column")
        if not self.offsets:
            raise ViewError(f"requirements: shift {self.shift!r} names no row")
        check_options("requirements", 1.0, batch_repeat_value=self.batch_repeat_value)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Rows relative to the item's, in order."""
        shift = self.shift
        if isinstance(shift, (int, np.integer)) and not isinstance(shift, bool):
            return (int(shift),)
        if isinstance(shift, str):
            return _range(shift)
        if isinstance(shift, (Sequence, np.ndarray)) and all(isinstance(one, (int, np.integer)) for one in shift):
            return tuple(int(one) for one in shift)
        raise ViewError(f'requirements: shift {shift!r}, expected an int, a list of ints, "a:b" or "a:b:step"')

    def column_for(self, name: str) -> str:
        """The column that a requirement of that name reads."""
        return name if self.data_col is None else self.data_col

    def identity_for(self, name: str) -> list[object]:
        """What tells the items of a requirement of that name from others, as plain values."""
        column, offsets = self.column_for(name), list(self.offsets)
        fill = None if self.fill is None else fill_name(self.fill)
        repeat = int(self.batch_repeat_value)
        return list(identity(self, data_col=column, shift=offsets, batch_repeat_value=repeat, fill=fill).values())

    @staticmethod
    def of(name: str, value: Any) -> ViewRequirement:
        """A requirement from another one, from a mapping of its fields, or from an object that has them (RLlib's own).

        Raises:
          ViewError: the mapping has an unknown field, or the object is no requirement.
        """
        if isinstance(value, ViewRequirement):
            return value
        known = [one.name for one in fields(ViewRequirement)]
        if isinstance(value, Mapping):
            unknown = sorted(map(str, set(value) - set(known)))
            if unknown:
                raise ViewError(f'requirements: "{name}": unknown {", ".join(unknown)}; there are {", ".join(known)}')
            return ViewRequirement(**value)
        if not hasattr(value, "shift"):
            raise ViewError(f'requirements: "{name}": expected the fields of a ViewRequirement, got {value!r}')
        return ViewRequirement(**{key: getattr(value, key) for key in known if hasattr(value, key)})


def _range(shift: str) -> tuple[int, ...]:
    """The rows of "a:b" or "a:b:step", b included."""
    match = _RANGE.fullmatch(shift.strip())
    if match is None or match[3] == "0":
        raise ViewError(f'requirements: shift "{shift}", expected an int, a list of ints, "a:b" or "a:b:step"')
    rows = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
    check_made_up(len(rows))
    return tuple(rows)
