"""An output while a push runs: what cuts for it, names its items, counts them, and remembers which are confirmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlds2reverb.push.cutting import Cutter
from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.names import ItemNames
from rlds2reverb.push.outputs import Output
from rlds2reverb.push.part import Noted
from rlds2reverb.push.tally import Tally


@dataclass(eq=False)
class OpenOutput:
    """The parts of the push that belong to one output.

    Attributes:
      output: which.
      cutter, names, tally: of this output alone.
      ledger: the confirmed episodes, or None.
    """

    output: Output
    cutter: Cutter
    names: ItemNames
    tally: Tally = field(default_factory=Tally)
    ledger: Ledger | Noted | None = None

    def items_recorded(self, episode_id: str) -> int | None:
        """Items that each table has of an episode in the ledger; None when it is not there."""
        items = None if self.ledger is None else self.ledger.confirmed.get(episode_id)
        return None if items is None else items // len(self.output.tables)


def by_table(outputs: Sequence[OpenOutput], count: Callable[[OpenOutput], int]) -> dict[str, int]:
    """Table -> count, where there is any."""
    return {table: count(one) for one in outputs for table in one.output.tables if count(one)}
