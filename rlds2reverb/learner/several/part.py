"""One server's part in what several give of a table."""

from __future__ import annotations

from collections.abc import Iterator

from rlds2reverb.errors import Stalled, TransportError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.sampler import Sampler
from rlds2reverb.learner.several.servers import Servers
from rlds2reverb.learner.several.sizes import Sizes
from rlds2reverb.push.tables import table_of
from rlds2reverb.specs import Nest


class Part:
    """The table on one server, as `feed.Batches`: its sampler is made when it is first asked.

    Args:
      servers: of the group.
      sizes: of the table.
      number: the server's.
      table: its name.
      options: how this server is sampled.
      structure: nest of what the samples' columns are called; None where nothing tells.

    Attributes:
      number, structure: as given.
    """

    def __init__(
        self, servers: Servers, sizes: Sizes, number: int, table: str, options: SampleOptions, structure: Nest | None
    ) -> None:
        self._servers, self._sizes, self._table, self._options = servers, sizes, table, options
        self.number, self.structure = number, structure
        self._sampler: Sampler | None = None
        self._received = self._lost = 0

    def next_batch(self) -> Batch | None:
        """The next batch; None when none came for a while, and when the server is missing: then `sizes` knows it.

        Raises:
          TransportError: the server is gone, and none may be missing; or another fault. Names the server.
          WireError, ServerRestarted: as a `Sampler` does.
        """
        try:
            if self._sampler is None:
                transport, info = self._servers.transports[self.number], self._sizes.infos[self.number]
                self._sampler = Sampler(transport, info, table_of(info, self._table), self._options)
            return self._sampler.next_batch()
        except TransportError as error:
            if isinstance(error, Stalled) or not error.retryable:
                raise self._servers.named(self.number, error) from error
            self._servers.lost(self.number, error)
            self._sizes.lose(self.number)
            self.close()
            return None

    def stop(self) -> None:
        """Asks for nothing more."""
        if self._sampler is not None:
            self._sampler.stop()

    def drain(self, quiet_seconds: float) -> Iterator[Batch]:
        """What was asked for; see `Sampler.drain`."""
        return iter(()) if self._sampler is None else self._sampler.drain(quiet_seconds)

    def close(self) -> None:
        """Ends it."""
        if self._sampler is not None:
            self._sampler.close()
            self._received += self._sampler.received
            self._lost += self._sampler.lost_at_most
            self._sampler = None

    @property
    def received(self) -> int:
        """Samples that came so far."""
        return self._received + (0 if self._sampler is None else self._sampler.received)

    @property
    def lost_at_most(self) -> int:
        """Samples that the server may have taken and nobody gets."""
        return self._lost + (0 if self._sampler is None else self._sampler.lost_at_most)
