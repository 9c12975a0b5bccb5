"""What a push fills: views, and the tables that their items go to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ConfigError, SpecMismatch, ViewError
from rlds2reverb.ledger import Ledger
from rlds2reverb.specs import ArraySpec, Nest, differences, flatten
from rlds2reverb.views.base import Cut, StreamCutter, StreamView, View
from rlds2reverb.views.registry import view_of
from rlds2reverb.views.sequence import two_step
from rlds2reverb.wire.keys import seed
from rlds2reverb.wire.messages import ServerInfo

TableViews = Mapping[str, "str | View"]
"""Table -> its view, or the view's name."""


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
            raise ConfigError(f"push: view {self.view!r}: expected a view, or its name")


def check_distinct(tables: Sequence[str]) -> None:
    """Refuses a table that is named twice.

    Raises:
      ConfigError: there is one.
    """
    if len(set(tables)) < len(tables):
        raise ConfigError(f"push: a table is named twice in {', '.join(tables)}; its items would have one key")


def outputs_of(table: str | Sequence[str] | TableViews, view: str | View | None = None) -> tuple[Output, ...]:
    """What `Client.push` is told, as outputs: one view for some tables, or for every table a view of its own.

    Raises:
      ConfigError: no names of tables; tables that have their views, and yet a view for all; or what `Output` refuses.
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


class OpenOutput:
    """An output during one push: its cutter, and what it has made so far.

    Args:
      output: what it is.
      spec: of the steps, absent fields filled in.
      conventions: what identifies the push's conventions.

    Attributes:
      signature: of the items.
      columns: path -> spec of an item's leaf.
      identity: what two pushes must share for their items to be the same, without table and episode.
      tag: names the items of the last episode cut; for a stream, by all the episodes that they may depend on.
      ledger: the confirmed episodes, or None.
      items: anchors so far, the resumed ones included; each gives one item a table.
      empty_episodes: pushed episodes of which the view made no item.
    """

    def __init__(self, output: Output, spec: Nest, conventions: str) -> None:
        self.tables, self._view = output.tables, output.view
        self.signature = output.view.signature(spec)
        self.columns: dict[str, ArraySpec] = flatten(self.signature)
        self.identity = f"{output.view.label}|{conventions}"
        self.ledger: Ledger | None = None
        self.tag = ""
        self.items = self.empty_episodes = 0
        self._stream: StreamCutter | None = output.view.stream() if isinstance(output.view, StreamView) else None
        self._before = (self.tag, self._stream)

    @property
    def is_stream(self) -> bool:
        """Whether its items depend on the episodes before."""
        return self._stream is not None

    @property
    def left_over(self) -> int:
        """Steps at the end of the stream that no item holds; 0 of a view that cuts every episode for itself."""
        return self._stream.left_over if self._stream is not None else 0

    @property
    def label(self) -> str:
        """The view's name and options."""
        return self._view.label

    def check_tables(self, info: ServerInfo) -> None:
        """Compares every table's signature with that of the items, leaf by leaf; before the first byte is sent.

        Raises:
          ConfigError: the server has no such table.
          SpecMismatch: the signatures differ.
        """
        for name in self.tables:
            if name not in info.tables:
                known = ", ".join(sorted(info.tables)) or "none"
                raise ConfigError(f'the server has no table "{name}"; it has {known}')
            found = info.tables[name].signature
            if found is not None and (lines := differences(self.signature, found)):
                raise SpecMismatch(f'table "{name}"', lines)

    def cut(self, episode: Episode, tag: str) -> Cut:
        """The next episode's cut, its fields in the table's order.

        Args:
          episode: what to cut.
          tag: names it in item keys.

        Raises:
          ViewError: the episode cannot be cut.
        """
        self._before = (self.tag, copy(self._stream))
        self.tag = f"{seed(self.tag, tag):016x}" if self.is_stream else tag
        cut = self._view.cut(episode) if self._stream is None else self._stream(episode)
        return cut.in_order(list(self.columns))

    def count(self, cut: Cut) -> None:
        """Takes the items of a cut into account."""
        self.items += len(cut.anchors)
        self.empty_episodes += not len(cut.anchors) and not self.is_stream

    def undo(self) -> None:
        """Has the last episode never been cut: a stream goes on from the one before."""
        self.tag, self._stream = self._before

    def check_rows(self, cut: Cut) -> None:
        """Refuses rows that are not those of the signature, which only tolerated problems let through to here.

        Raises:
          ViewError: says which column, what it has and what the items need.
        """
        for path, leaf in self.columns.items():
            rows = cut.field_rows(path)
            dtype = np.dtype(object) if rows.dtype.kind in "SU" else rows.dtype
            found = ArraySpec((None, *rows.shape[1:]), dtype)
            wanted = ArraySpec((None, *(leaf.shape if cut.fields[path].squeeze else leaf.shape[1:])), leaf.dtype)
            if differences(found, wanted):
                raise ViewError(
                    f'column "{path}" has {found}, the items need {wanted}; do not tolerate dtype or shape for it'
                )


def _view(view: str | View) -> View:
    return view_of(view) if isinstance(view, str) else view
