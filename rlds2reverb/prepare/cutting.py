"""Cuts episodes for outputs: an output is a view, and the tables that take its items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.specs import ArraySpec, Nest, column_spec, differences, flatten
from rlds2reverb.views.base import EpisodeStream, StreamView, View
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
        """The view's name, for people."""
        return name_of(self.view)


def check_distinct(tables: Sequence[str]) -> None:
    """Refuses a table that is named twice.

    Raises:
      ConfigError: there is one.
    """
    if len(set(tables)) < len(tables):
        raise ConfigError(f"push: a table is named twice in {', '.join(tables)}; its items would have one key")


def outputs_of(table: str | Sequence[str] | Mapping[str, ViewLike], view: ViewLike | None = None) -> tuple[Output, ...]:
    """Outputs of the arguments of `Client.push`: one view for all tables, or one view per table.

    Raises:
      ConfigError: no table is named; a view is given although every table has its own; or what `Output` refuses.
      ViewError: a view's name that makes no sense.
    """

    def made(view: ViewLike) -> View:
        return view_from(view, "push: view") if isinstance(view, (str, Mapping)) else view

    names = (table,) if isinstance(table, str) or not isinstance(table, Iterable) else tuple(table)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"push: table {name!r}: expected a table's name, several, or a mapping from names to views"
            )
    if not isinstance(table, Mapping):
        return (Output(names, made("two_step" if view is None else view)),)
    if view is not None:
        raise ConfigError("push: every table has a view of its own here, so no other view can be given")
    if not table:
        raise ConfigError("push: at least one table is needed")
    return tuple(Output((name,), made(own)) for name, own in table.items())


class OutputCut(NamedTuple):
    """What one output makes of an episode.

    Attributes:
      output: which.
      cut: fields in the tables' order; it may have no items.
      stream: the output's stream after this episode; None for a view that cuts each episode by itself.
    """

    output: Output
    cut: Cut
    stream: EpisodeStream | None

    @property
    def items_per_table(self) -> int:
        """Items that each table of the output gets."""
        return len(self.cut.anchors)

    @property
    def items_in_all_tables(self) -> int:
        """Items that all tables of the output get together."""
        return len(self.cut.anchors) * len(self.output.tables)

    @property
    def is_of_stream(self) -> bool:
        """Whether the items depend on the episodes before."""
        return self.stream is not None

    @property
    def view_name(self) -> str:
        """The view's name, for people."""
        return self.output.view_name


class Cutter:
    """Cuts episodes for one output.

    Args:
      output: which.
      signature: of its items, as its view gives it for the steps with absent fields filled in.

    Attributes:
      output, signature: as given.
      columns: path -> spec of an item's leaf.
      stream: the stream so far; None for a view that cuts each episode by itself.
    """

    def __init__(self, output: Output, signature: Nest) -> None:
        self.output, self.signature = output, signature
        self.columns: dict[str, ArraySpec] = flatten(signature)
        self.stream: EpisodeStream | None = output.view.stream() if isinstance(output.view, StreamView) else None
        self._order = list(self.columns)

    @property
    def left_over(self) -> int:
        """Steps at the end of the stream that no item holds; 0 without a stream."""
        return 0 if self.stream is None else self.stream.left_over

    def cut(self, episode: Episode) -> OutputCut:
        """What the output makes of an episode. Only `take_in` advances the stream.

        Raises:
          ViewError: the episode cannot be cut.
        """
        if self.stream is None:
            return OutputCut(self.output, self.output.view.cut(episode).in_order(self._order), None)
        cut, stream = self.stream.cut(episode)
        return OutputCut(self.output, cut.in_order(self._order), stream)

    def take_in(self, made: OutputCut) -> None:
        """Advances the stream by an episode that was cut."""
        self.stream = made.stream

    def check_rows(self, cut: Cut) -> None:
        """Refuses rows that do not fit the signature, which a tolerated problem can cause.

        Raises:
          ViewError: says which column, what it has and what the items need.
        """
        for path, leaf in self.columns.items():
            found = column_spec(cut.field_rows(path)).with_leading(None)
            wanted = ArraySpec((None, *(leaf.shape if cut.fields[path].squeeze else leaf.shape[1:])), leaf.dtype)
            if differences(found, wanted):
                raise ViewError(
                    f'column "{path}" has {found}, the items need {wanted}; do not tolerate dtype or shape for it'
                )


@dataclass
class Tally:
    """What one output has made so far.

    Attributes:
      items_per_table: items that each of its tables gets, the resumed ones included.
      without_items: episodes of which the view made no item; 0 for a stream, where later episodes may give it.
    """

    items_per_table: int = 0
    without_items: int = 0

    def add(self, items_per_table: int, is_of_stream: bool) -> None:
        """Counts an episode of which so many items were made."""
        self.items_per_table += items_per_table
        if not (items_per_table or is_of_stream):
            self.without_items += 1
