"""What the items of an output are called: keys that are the same whenever the same data is pushed the same way."""

from __future__ import annotations

import secrets

from rlds2reverb.cuts import Cut
from rlds2reverb.push.outputs import Output
from rlds2reverb.wire.insert.encoder import Part
from rlds2reverb.wire.keys import seed


def bits_of(again: bool) -> int | None:
    """64 bits that no push before has used, for one with `again`; None for any other."""
    return secrets.randbits(64) if again else None


class ItemNames:
    """Names the items of one output, episode by episode.

    Args:
      output: which.
      data: what identifies the push's conventions, its transform, and which images stay encoded (`PushPlan.identity`).
      again: new 64 bits, which make keys that no push before can have used; None for the keys of every equal push.

    Attributes:
      identity: what two pushes must share for their items to be the same, without table and episode.
      key_name: names in item keys the episode taken in last; for a stream, all episodes so far, on which its items may depend.
    """

    def __init__(self, output: Output, data: str, again: int | None = None) -> None:
        self.identity = f"{output.view.label}|{data}"
        self.key_name = ""
        self._tables, self._is_of_stream = output.tables, output.is_of_stream
        self._push_seed = seed(self.identity) if again is None else again

    def take_in(self, key_name: str) -> None:
        """Goes on to the next episode, which `key_name` names by itself. One without items counts as well."""
        self.key_name = f"{seed(self.key_name, key_name):016x}" if self._is_of_stream else key_name

    def part(self, cut: Cut) -> Part:
        """What the tables get of the episode taken in last."""
        return Part(self._tables, self._push_seed, self.key_name, cut)
