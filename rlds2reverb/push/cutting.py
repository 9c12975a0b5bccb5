"""Cuts episodes for the outputs of a push: what each view makes of an episode, and how far its stream is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlds2reverb.cuts import Cut
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.push.outputs import Output
from rlds2reverb.specs import ArraySpec, Nest, column_spec, differences, flatten
from rlds2reverb.views.base import EpisodeStream, StreamView


class OutputCut(NamedTuple):
    """What one output makes of an episode.

    Attributes:
      output: which.
      cut: its fields in the tables' order; maybe without items.
      stream: the output's stream once the episode is taken in; None for a view that cuts every episode for itself.
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
        """What people call the view."""
        return self.output.view_name


class Cutter:
    """Cuts episodes for one output.

    Args:
      output: which.
      signature: of its items, as its view gives it for the steps with absent fields filled in.

    Attributes:
      output, signature: as given.
      columns: path -> spec of an item's leaf.
      stream: how far the stream is; None for a view that cuts every episode for itself.
    """

    def __init__(self, output: Output, signature: Nest) -> None:
        self.output, self.signature = output, signature
        self.columns: dict[str, ArraySpec] = flatten(signature)
        self.stream: EpisodeStream | None = output.view.stream() if isinstance(output.view, StreamView) else None
        self._order = list(self.columns)

    @property
    def left_over(self) -> int:
        """Steps at the end of the stream that no item holds; 0 for a view that cuts every episode for itself."""
        return 0 if self.stream is None else self.stream.left_over

    def cut(self, episode: Episode) -> OutputCut:
        """What the output makes of an episode. The stream goes on only with `take_in`.

        Raises:
          ViewError: the episode cannot be cut.
        """
        if self.stream is None:
            return OutputCut(self.output, self.output.view.cut(episode).in_order(self._order), None)
        cut, stream = self.stream.cut(episode)
        return OutputCut(self.output, cut.in_order(self._order), stream)

    def take_in(self, made: OutputCut) -> None:
        """Lets the stream go on after the episode that was cut."""
        self.stream = made.stream

    def check_rows(self, cut: Cut) -> None:
        """Refuses rows that do not fit the signature. Only tolerated problems let such rows through to here.

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


def cut_for_all(cutters: Sequence[Cutter], episode: Episode) -> list[OutputCut]:
    """What every output makes of a good episode, which no stream has taken in yet.

    Raises:
      ViewError: one of them refuses the episode.
    """
    return [cutter.cut(episode) for cutter in cutters]


def take_in(cutters: Sequence[Cutter], cuts: Sequence[OutputCut]) -> None:
    """Lets the streams go on after an episode that was cut for all."""
    for cutter, made in zip(cutters, cuts):
        cutter.take_in(made)
