"""What a push fills: outputs. Each is a view, and the tables that its items go to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rlds2reverb.errors import ConfigError
from rlds2reverb.views.base import StreamView, View
from rlds2reverb.views.registry import ViewLike, view_from
from rlds2reverb.views.sequence import name_of, two_step


@dataclass(frozen=True)
class Output:
    """A view, and one or more tables that take its items.

    Raises:
      ConfigError: no table, one named twice, or a view that is none.
    """

    tables: tuple[str, ...]
    view: View = field(default_factory=two_step)

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConfigError("push: at least one table is needed")
        check_distinct(self.tables)
        if isinstance(self.view, type) or not isinstance(self.view, View):
            raise ConfigError(f"push: view {self.view!r}: expected a view (label, signature, reads, cut), or its name")

    @property
    def is_of_stream(self) -> bool:
        """Whether its items depend on the episodes before."""
        return isinstance(self.view, StreamView)

    @property
    def view_name(self) -> str:
        """What people call the view."""
        return name_of(self.view)


def check_distinct(tables: Sequence[str]) -> None:
    """Refuses a table that is named twice.

    Raises:
      ConfigError: there is one.
    """
    if len(set(tables)) < len(tables):
        raise ConfigError(f"push: a table is named twice in {', '.join(tables)}; its items would have one key")


def outputs_of(table: str | Sequence[str] | Mapping[str, ViewLike], view: ViewLike | None = None) -> tuple[Output, ...]:
    """Makes outputs of what `Client.push` is told: one view for all tables, or a view of its own per table.

    Raises:
      ConfigError: no table is named; a view is given although every table has its own; or what `Output` refuses.
      ViewError: a view's name that makes no sense.
    """
    names = (table,) if isinstance(table, str) or not isinstance(table, Iterable) else tuple(table)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"push: table {name!r}: expected a table's name, several, or a mapping from names to views"
            )
    if not isinstance(table, Mapping):
        return (Output(names, _view("two_step" if view is None else view)),)
    if view is not None:
        raise ConfigError("push: every table has a view of its own here, so no other view can be given")
    if not table:
        raise ConfigError("push: at least one table is needed")
    return tuple(Output((name,), _view(own)) for name, own in table.items())


def _view(view: ViewLike) -> View:
    return view_from(view, "push: view") if isinstance(view, (str, Mapping)) else view
