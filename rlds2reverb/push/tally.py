"""Counts what one output has made so far."""

from __future__ import annotations

from dataclasses import dataclass

from rlds2reverb.push.cutting import OutputCut


@dataclass
class Tally:
    """What one output has made so far.

    Attributes:
      items_per_table: items that each of its tables gets, the resumed ones included.
      without_items: episodes of which the view made no item; 0 for a stream, where later episodes may give it.
    """

    items_per_table: int = 0
    without_items: int = 0

    def add(self, made: OutputCut) -> None:
        """Takes an episode into account."""
        self.add_items(made.items_per_table, made.is_of_stream)

    def add_items(self, items_per_table: int, is_of_stream: bool = False) -> None:
        """Takes an episode into account of which so many items were made."""
        self.items_per_table += items_per_table
        if not (items_per_table or is_of_stream):
            self.without_items += 1
