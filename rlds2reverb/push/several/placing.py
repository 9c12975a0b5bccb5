"""Which of several servers an episode goes to: rendezvous hashing of its name.

Every server has a number of its own for every episode, and the largest one wins. So a server that is added takes its share of
the episodes, about one in n, and no episode moves between the others. Source: Thaler and Ravishankar 1998, highest random weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.wire.keys import seed


class Placing:
    """Places episodes. The order of the servers does not matter; their names do.

    Args:
      names: of the servers, at least one: their addresses as they are written, where they have no others.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def of(self, episode_id: str) -> str:
        """The name of the server that gets the episode.

        >>> placing = Placing(["a:8000", "b:8000", "c:8000"])
        >>> [placing.of(f"cartpole/{number}")[0] for number in range(8)]
        ['b', 'a', 'a', 'a', 'c', 'a', 'b', 'b']
        """
        return max(self._names, key=lambda name: (seed(name, episode_id), name))
