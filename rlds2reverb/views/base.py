"""What a view is: it cuts episodes into rows and items (`cuts`). Here, too, what all views share: the checks of their options, and their labels.

Labels are part of the item keys. Equal labels mean equal items, and a label that changes makes every item of its view
another one. So every field counts unless it says why not, and a field that is added later is left out at its default.

| field | in the label |
| --- | --- |
| any | as `name=value`, in the order of the fields |
| `priority` | never: items keep their keys whatever their priority |
| with `metadata=CHANGES_NO_ITEM` | never |
| with `metadata=UNSAID_AT_DEFAULT` | when its value is not the default |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Episode, is_under
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import Nest, flatten

MOST_ROWS = (1 << 31) - 1
"""The most rows that any option may count."""

MOST_MADE_UP_ROWS = 1 << 20
"""The most rows before and after an episode; a window that needs more is a slip of the pen."""


def check_options(view: str, priority: float, **counts: int) -> None:
    """Refuses options that make no sense.

    Raises:
      ViewError: a count is no whole number of at least 1, or the priority no finite number of at least 0.
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise ViewError(f"{view}: {name} {count!r}: expected a whole number of at least 1")
        if count > MOST_ROWS:
            raise ViewError(f"{view}: {name} {count}: expected at most {MOST_ROWS}")
    if isinstance(priority, bool) or not isinstance(priority, (int, float, np.number)) or not 0 <= priority < np.inf:
        raise ViewError(f"{view}: priority {priority}: expected a finite number of at least 0")


def check_made_up(rows: int) -> None:
    """Refuses to make up more rows than any window needs; before the memory is asked for.

    Raises:
      ViewError: more than `MOST_MADE_UP_ROWS`.
    """
    if rows > MOST_MADE_UP_ROWS:
        raise ViewError(
            f"{rows} rows beside those of the episode would be made up, expected at most {MOST_MADE_UP_ROWS}"
        )


def check_flags(view: str, **flags: object) -> None:
    """Refuses what is neither true nor false.

    Raises:
      ViewError: says which option.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ViewError(f"{view}: {name} {flag}: expected true or false")


@runtime_checkable
class View(Protocol):
    """A way to cut episodes into items. Views hold options only, no state."""

    @property
    def label(self) -> str:
        """Name and options; part of the item keys, so equal labels must mean equal items."""

    def signature(self, step_spec: Nest) -> Nest:
        """The table signature of this view's items for steps of `step_spec`.

        Raises:
          ViewError: the spec lacks a field that the view needs.
        """

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """What its items are made of: paths of step columns or of nests of them; the steps may lack some.

        A column counts whatever its name in the item is, and whatever is made of it: flags that become a step type, rewards
        that become a return, a number that becomes the item's priority.
        """

    def cut(self, episode: Episode) -> Cut:
        """Rows, anchors and windows for one valid episode; no anchors when it is too short.

        Raises:
          ViewError: the episode cannot be cut (too long, a column is missing).
        """


@runtime_checkable
class CountsItems(Protocol):
    """A view that can tell how many items it makes without seeing an episode. Offering it is optional."""

    def item_count(self, rows: int | None) -> int | None:
        """Items of a good episode of so many rows; None when that is not known.

        Args:
          rows: of the episode; None for the most items of an episode of any length.
        """


def item_count_of(view: View, rows: int | None) -> int | None:
    """See `CountsItems.item_count`; None for a view that cannot tell."""
    return view.item_count(rows) if isinstance(view, CountsItems) else None


def not_in_items(view: View, step_spec: Nest) -> tuple[str, ...]:
    """Paths of the step columns that are in no item of a view, in whatever form; in the spec's order."""
    read = view.reads(step_spec)
    return tuple(path for path in flatten(step_spec) if not any(is_under(path, one) for one in read))


class EpisodeStream(Protocol):
    """A stream of episodes as far as it has been cut. A value: cutting the next episode makes another one, and leaves this one as it is."""

    def cut(self, episode: Episode) -> tuple[Cut, EpisodeStream]:
        """The cut of the next episode, and the stream after it; an episode may give no items and still count for the next one."""

    @property
    def left_over(self) -> int:
        """Steps after the end of the last item: when the stream ends here, no item holds them."""


@runtime_checkable
class StreamView(View, Protocol):
    """A view whose items depend on the episodes before: it cuts them in order, as one stream."""

    def stream(self) -> EpisodeStream:
        """The stream before its first episode."""


_PRIORITY = "priority"
_COUNTS = "counts"

CHANGES_NO_ITEM: Mapping[str, str] = MappingProxyType({_COUNTS: "never"})
"""Metadata of an option that does not change what an item holds."""

UNSAID_AT_DEFAULT: Mapping[str, str] = MappingProxyType({_COUNTS: "unless default"})
"""Metadata of an option that was added when labels without it were in use."""


def label_of(name: str, view: Any, **instead: object) -> str:
    """The label of a view.

    Args:
      name: of the view.
      view: a dataclass.
      instead: by field, what stands for its value; it must tell the same values apart.

    >>> from rlds2reverb.views.n_step import NStep
    >>> label_of("n_step", NStep(n=5))
    'n_step:n=5,gamma=0.99,style=acme'
    """
    options = ",".join(f"{option}={value}" for option, value in identity(view, **instead).items())
    return f"{name}:{options}" if options else name


def identity(options: Any, **instead: object) -> dict[str, object]:
    """Field -> value, of the fields of a dataclass that count; `instead` as for `label_of`."""
    return {
        field.name: instead.get(field.name, getattr(options, field.name))
        for field in fields(options)
        if _counts(field, getattr(options, field.name))
    }


def _counts(field: Field[Any], value: object) -> bool:
    if field.name == _PRIORITY or not field.init or field.metadata == CHANGES_NO_ITEM:
        return False
    return field.metadata != UNSAID_AT_DEFAULT or value != field.default
