"""Every view of the suite, with what it knows of each: `tests/support/views/cases/NAME.py` has the `ViewCase` of a registered view."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import pytest

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Array, Episode
from rlds2reverb.views import VIEWS
from rlds2reverb.views.base import StreamView, View
from tests.support.views.case import ViewCase
from tests.support.views.cutting import Streamed, items_of

_HERE = __name__.rpartition(".")[0]

CASES: dict[str, ViewCase] = {name: importlib.import_module(f"{_HERE}.cases.{name}").CASE for name in VIEWS}
"""Name -> what is known; a view that is registered without a case is missed here."""

EVERY: dict[str, tuple[ViewCase, View]] = {
    text: (case, view) for case in CASES.values() for text, view in case.every_view().items()
}
"""How it is written -> a view."""

WITH_CASE = pytest.mark.parametrize(("case", "view"), EVERY.values(), ids=EVERY)


def case_of(view: View) -> ViewCase:
    """What is known of such views."""
    return CASES[view.label.partition(":")[0]]


def cuts_of(view: View, episodes: Sequence[Episode]) -> list[Cut]:
    """The cuts of episodes, which are one stream to views of streams."""
    cut: Callable[[Episode], Cut] = view.cut
    if isinstance(view, StreamView):
        cut = Streamed(view.stream())
    return [cut(episode) for episode in episodes]


def items_in(view: View, episodes: Sequence[Episode], order: Sequence[str]) -> list[list[Array]]:
    """The items of all episodes, columns in this order."""
    return [item for cut in cuts_of(view, episodes) for item in items_of(cut.in_order(list(order)))]


def slow_items(view: View, episode: Episode) -> list[list[Array]]:
    """The items of an episode in the slow, obvious way."""
    return case_of(view).items(view, [episode])
