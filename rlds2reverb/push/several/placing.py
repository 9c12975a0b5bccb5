"""Which of several servers an episode goes to: rendezvous hashing of its name.

Every server has a number of its own for every episode, and the largest one wins. So a server that is added takes its share of
the episodes, about one in n, and no episode moves between the others. Source: Thaler and Ravishankar 1998, highest random weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.wire.keys import seed


class Placing:
    """Places episodes. The order of the servers does not matter; their addresses do, as they are written.

    Args:
      addresses: of the servers, at least one.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)

    def of(self, episode_id: str) -> str:
        """The address of the server that gets the episode.

        >>> placing = Placing(["a:8000", "b:8000", "c:8000"])
        >>> [placing.of(f"cartpole/{number}")[0] for number in range(8)]
        ['b', 'a', 'a', 'a', 'c', 'a', 'b', 'b']
        """
        return max(self._addresses, key=lambda address: (seed(address, episode_id), address))
