"""Problems that only cutting an episode shows: a view refuses it, or no view makes an item of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.validation.problems import Problem
from rlds2reverb.wording import counted


class Made(Protocol):
    """What one view made of an episode."""

    @property
    def view_name(self) -> str:
        """What people call the view."""

    @property
    def items_per_table(self) -> int:
        """Items that each table of the view gets."""

    @property
    def is_of_stream(self) -> bool:
        """Whether later episodes may give the items that hold this one's steps."""


def view_refused(error: ViewError) -> Problem:
    """The problem of an episode that a view refuses."""
    return Problem("view_refused", "", str(error))


def lack_of_items(episode: Episode, made: Sequence[Made]) -> Problem | None:
    """The problem of an episode of which no view makes an item; None for a stream, where later episodes may give it."""
    for one in made:
        if one.items_per_table or one.is_of_stream:
            return None
    views = ", ".join(one.view_name for one in made)
    return Problem("no_items", "", f"{views} makes no item of {counted(len(episode), 'step')}")
