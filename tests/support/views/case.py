"""What the suite knows of a view, beside the view itself: one file of `tests/support/views/cases` each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.views import view_of
from rlds2reverb.views.base import View
from tests.support import strategies

Rows = list[tuple[int, int | None]]
"""Rows of an item: number of the episode, and the row in it; None is a row of padding."""


class Picture(NamedTuple):
    """What the page about a view shows.

    Attributes:
      title: how the view is written.
      columns: the stored columns to show, the others are left out.
      items: their numbers, at most three.
      rows: of the episode; several episodes are cut as one stream, and the last one is drawn.
      view: where no text writes it.
      replaced: columns of an episode of so many rows that stand in place of words, for views that compute.
    """

    title: str
    columns: str
    items: tuple[int, ...] = (0, 1)
    rows: tuple[int, ...] = (6,)
    replaced: Callable[[int], dict[str, Array]] = lambda rows: {}
    view: View | None = None


def of_each(slow: Callable[[Any, Episode], list[Any]]) -> Callable[[Any, Sequence[Episode]], list[Any]]:
    """Of a view that cuts every episode for itself."""
    return lambda view, episodes: [item for episode in episodes for item in slow(view, episode)]


def steps_of(number: int, episode: Episode) -> list[Rows]:
    """The rows of a view with one item per transition."""
    return [[(number, t)] for t in range(len(episode) - 1)]


@dataclass(frozen=True, kw_only=True)
class ViewCase:
    """A view.

    Attributes:
      labels: how views of this kind are written -> their label; every contract holds for each.
      more_labels: the same, where only the label is of interest.
      items: the slow, obvious way from episodes to all items, columns in the order of the signature.
      rows: the rows of every item's extras, from the number of an episode and the episode; or, with `rows_of_stream`, from all episodes.
      random: any view of the kind.
      picture: what the page about it shows; its title writes the view.
      views: the views that `labels` writes, where text does not.
      specs: columns that random episodes must have; None for any.
      columns: the same for one episode.
      extras_field: of the items, that holds extras.
      is_window: extras stand over the rows of an item; else at its step.
      narrows: float64 becomes float32.
      holds_all: the items hold every step column anyway.
      with_extras: the same view with these extras.
      own_columns: fields of items that are no step's, though they have the name of one.
    """

    labels: Mapping[str, str]
    more_labels: Mapping[str, str] = field(default_factory=dict)
    items: Callable[[Any, Sequence[Episode]], list[list[Array]]]
    rows: Callable[[Any, int, Episode], list[Rows]] = lambda view, number, episode: steps_of(number, episode)
    rows_of_stream: Callable[[Any, Sequence[Episode]], list[Rows]] | None = None
    random: st.SearchStrategy[View]
    picture: Picture
    views: Mapping[str, View] = field(default_factory=dict)
    specs: Callable[[Any], st.SearchStrategy[Any] | None] = lambda view: None
    columns: Callable[[Any], strategies.Columns | None] = lambda view: None
    extras_field: str = "extras"
    is_window: bool = False
    narrows: bool = False
    holds_all: bool = False
    own_columns: tuple[str, ...] = ()
    with_extras: Callable[[Any, Any], View] = lambda view, wanted: replace(view, extras=wanted)

    def every_view(self) -> dict[str, View]:
        """How it is written -> view, for the contracts."""
        return {text: self.views[text] if text in self.views else view_of(text) for text in self.labels}

    def rows_of_items(self, view: View, episodes: Sequence[Episode]) -> list[Rows]:
        """For every item the rows of its extras, in order."""
        if self.rows_of_stream is not None:
            return self.rows_of_stream(view, episodes)
        return [item for number, episode in enumerate(episodes) for item in self.rows(view, number, episode)]

    def episodes(self, view: View, min_steps: int = 1, max_steps: int = 9) -> st.SearchStrategy[Episode]:
        """Random episodes that the view may take."""
        specs = self.specs(view)
        if specs is None:
            return strategies.episodes(min_steps, max_steps)
        return specs.flatmap(lambda columns: strategies.episodes(min_steps, max_steps, columns))

    def episode(self, view: View, rows: int, seed: int = 0, **options: Any) -> Episode:
        """An episode that the view takes, without hypothesis."""
        return strategies.episode(np.random.default_rng(seed), rows, self.columns(view), **options)
