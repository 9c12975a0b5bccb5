"""Lets the items of a part of a push into their tables, as many as it was given places for; it asks the server nothing.

Other parts fill the same tables meanwhile. Whoever gives them their places sees to it that they are free (`scale.places`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from rlds2reverb.errors import CapacityError
from rlds2reverb.push.sender import Sender
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.wire.insert.requests import EncodedEpisode, Request, RequestLimits


class Crowded(CapacityError):
    """A part needs more places than it was given. What it has sent stays, and it can be run once more."""


class Quota:
    """The way of requests to the sender, as `admission.Admission`, for a part of a push.

    Args:
      sender: sends to the server.
      places: table -> items that fit, even if all are new; a table that is not named takes any number.
      limits: of the push.
      on_expect: told every admitted episode when it is encoded.
    """

    taken_out = 0

    def __init__(
        self,
        sender: Sender,
        places: Mapping[str, int],
        limits: RequestLimits,
        on_expect: Callable[[EncodedEpisode], object],
    ) -> None:
        self._sender, self._places, self._limits, self._on_expect = sender, places, limits, on_expect
        self._used: Counter[str] = Counter()

    def __enter__(self) -> Quota:
        return self

    def __exit__(self, *_: object) -> None:
        """Has nothing to let go of."""

    def wants_a_look(self, _: Mapping[str, int]) -> bool:
        """Never: others look."""
        return False

    def look(self) -> None:
        """Has nothing to look at."""

    def admit(self, items_by_table: Mapping[str, int], all_are_new: bool) -> None:
        """Makes sure that there are places for an episode's items; the episode comes next.

        Raises:
          Crowded: there are too few.
        """
        for table, items in items_by_table.items():
            if table in self._places and self._used[table] + items > self._places[table]:
                raise Crowded(
                    f'table "{table}": {self._places[table]:,} places for this part of the push, which needs more than '
                    f"{self._used[table] + items - 1:,}"
                )

    def expect(self, episode: EncodedEpisode) -> RequestLimits:
        """Takes note of an admitted episode whose requests come; returns how large they may be."""
        self._on_expect(episode)
        for table, keys in episode.table_keys.items():
            self._used[table] += len(keys)
        return self._limits

    def send(self, request: Request) -> None:
        """Sends a request of an expected episode; raises as `Sender.send`."""
        self._sender.send(request)

    def drain(self) -> None:
        """Waits until everything sent is confirmed; raises as `Sender.drain`."""
        self._sender.drain()

    def watch(self) -> None:
        """Others watch the tables."""

    def finish(self) -> None:
        """Has nothing to put back."""

    def put_back(self, _: Deadlines) -> None:
        """Has nothing to put back."""

    def look_back(self) -> None:
        """Others look."""

    def new_items(self) -> int | None:
        """Not known here."""
        return None

    def take_finished(self) -> list[str]:
        """The ids of episodes stored since the last call."""
        return [episode_id for episode_id, _ in self._sender.take_finished()]
