"""A table of a server for a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rlds2reverb.adapters.common import Server, check_pickles, open_client
from rlds2reverb.adapters.torch.ordered import STEPS_SINCE, BatchFunction, CountedDataset, raise_at_first, states_in
from rlds2reverb.adapters.torch.passes import worker_place
from rlds2reverb.errors import ConfigError, TransportError
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import BatchIterator
from rlds2reverb.learner.options import SampleKeywords, SampleOptions
from rlds2reverb.learner.states import State, check_state, count_in, state_of
from rlds2reverb.text import shortened
from rlds2reverb.transport.grpc import check_not_forked

if TYPE_CHECKING:
    from typing_extensions import Unpack

_KIND, _VERSION = "torch table", 2


class TableDataset(CountedDataset):
    """Samples of a table as ready batches of tensors, for `DataLoader(dataset, batch_size=None, num_workers=n)`.

    It holds no connection, so it pickles: each worker connects for itself when it begins to iterate, and closes its streams when
    it ends or is dropped; a persistent worker whose epoch ended early, when the next one begins. Every worker samples by itself. From
    a table that draws at random the workers' samples are independent; a table that hands items out once (fifo, max_times_sampled=1)
    divides them between the workers, in no fixed order.

    gRPC does not survive a fork. Where this process has connected to a server, give the loader
    `multiprocessing_context="forkserver"` or "spawn"; the workers of a fork raise an error that says so.

    Args:
      server: "host:port", a list of addresses, a function without arguments that connects, or an open client, see
        `adapters.common.Server`. Workers that are not forked get it pickled: a function must be `functools.partial(...)` or of a
        module, and a client cannot be pickled.
      table: its name.
      batch_size: samples per batch.
      map: called in the worker with every batch of tensors; what it returns is what the loader gives.
      options: the other fields of `SampleOptions`, by name. `samples` are divided between the ranks, and a rank's between its workers;
        each may end with a short batch.

    Raises:
      ConfigError: an option makes no sense; in the workers: `epochs` with several workers. The server is asked when iterating begins,
        which raises as `connect` and `Client.sample` do.
      TransportError (when iterating): this worker was forked from a process that had connected.
    """

    @takes_options(SampleOptions)
    def __init__(
        self,
        server: Server,
        table: str,
        batch_size: int = SampleOptions.batch_size,
        map: BatchFunction | None = None,  # noqa: A002  # as of `check_map`
        **options: Unpack[SampleKeywords],
    ) -> None:
        super().__init__("TableDataset", map)
        make_options(SampleOptions, "TableDataset", batch_size, **options)  # wrong ones fail here, not in a worker
        self.server, self.table, self.batch_size, self.options = server, table, batch_size, options
        # Samples of this rank in the pass: before it was stopped the last time, by all workers; and by this worker since then.
        self._before = self._came = 0

    def __iter__(self) -> Iterator[Any]:
        """Batches of this worker; a new connection each time."""
        place = worker_place()
        try:
            _, position = self._begin_pass()
            options = self.options_of(place.worker, place.workers)
        except ConfigError as error:
            return raise_at_first(error)
        self._before, self._came, samples = 0, 0, self._own_samples()
        if position is not None:
            self._before = count_in(position, "before") // self._world_size
            self._came = count_in(position, "given") // self._world_size
        if samples is not None and samples <= self._before:  # that pass was at its end
            self._before = 0
        if samples is not None:
            options["samples"] = _share_of(samples - self._before, place.worker, place.workers) - self._came
        return self._read(options)

    def state_dict(self) -> State:
        """How many of `samples` came: a server keeps no account of which. Other batches follow, and together they are as many.

        Raises:
          ConfigError: the workers of a DataLoader make the batches; a StatefulDataLoader asks them by itself.
        """
        before, came = (self._before, self._came) if self._is_made_here() else (0, 0)
        if self._here is None and self._loaded is not None and self.passes.new_load == self._load:
            return dict(self._loaded)
        position = {"before": before * self._world_size, "given": came * self._world_size}
        return state_of(_KIND, {"table": self.table}, _VERSION, **position, world_size=self._world_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has the next pass give the rest of `samples`; a whole pass where there is none.

        Args:
          state: of `state_dict`, or of a whole StatefulDataLoader: exact if it was taken with snapshot_every_n_steps=1, the default; else
            its last batches count as whole ones.

        Raises:
          ConfigError: it is no such state, or one of another table; or a StatefulDataLoader gives it to a worker of another world size.
        """
        states = [check_state(inner, _KIND, {"table": self.table}, _VERSION) for inner in states_in(state, _KIND)]
        if not states:
            raise ConfigError(f"load_state_dict: {shortened(repr(state), 80)}: expected what state_dict() gave")
        # `before` counts for all workers, and each state has it; `given` is of one worker.
        before = max(count_in(inner, "before") for inner in states)
        came = sum(count_in(inner, "given") for inner in states)
        world_size = count_in(states[0], "world_size")
        if worker_place().is_worker:
            if world_size != self._world_size:
                raise ConfigError(
                    f"load_state_dict: a worker's state of world_size={world_size}, here world_size={self._world_size}; give the loader's "
                    "state to the dataset, before the loader is made: dataset.load_state_dict(state)"
                )
            self._load_position({**states[0]})
            return
        steps = count_in({STEPS_SINCE: 0, **state}, STEPS_SINCE)
        whole = before + came + steps * self.batch_size * world_size
        self._load_position({**states[0], "before": whole, "given": 0, "world_size": self._world_size})

    def __getstate__(self) -> dict[str, Any]:
        """For workers. Raises ConfigError where the server is an open client."""
        check_pickles(self.server)
        return super().__getstate__()

    def options_of(self, worker: int, workers: int, rank_options: SampleKeywords | None = None) -> SampleKeywords:
        """The options of one worker: its share of the samples of its rank, which is that of `rank_options` where they are given."""
        options: SampleKeywords = {**self.options, **(rank_options or {})}
        if workers > 1 and options.get("epochs") is not None:
            raise ConfigError(
                f'table "{self.table}": epochs, with {workers} workers: each would wait for all samples of an epoch; take one worker, '
                "or samples=, which is shared out"
            )
        samples = options.get("samples")
        if samples is not None:
            options["samples"] = _share_of(samples // options.get("world_size", 1), worker, workers)
        options.pop("rank", None)
        options.pop("world_size", None)
        return options

    def sample(self, stack: ExitStack, options: SampleKeywords) -> BatchIterator:
        """A sampler with a connection of its own, closed with the stack."""
        if worker_place().is_worker:
            try:
                check_not_forked()
            except TransportError as error:
                raise TransportError(f'{error}. Of a DataLoader: multiprocessing_context="forkserver"') from error
        client = stack.enter_context(open_client(self.server))
        return stack.enter_context(client.sample(self.table, self.batch_size, **options))

    @property
    def _world_size(self) -> int:
        return int(self.options.get("world_size", 1))

    def _own_samples(self) -> int | None:
        samples = self.options.get("samples")
        return None if samples is None else samples // self._world_size

    def _read(self, options: SampleKeywords) -> Iterator[Any]:
        samples = options.get("samples")
        if samples is not None and samples <= 0:  # more workers than samples, or this worker gave all of its own
            return
        with ExitStack() as stack:
            for batch in self.sample(stack, options):
                mapped = self.apply_map(batch)
                # Before the yield: a StatefulDataLoader asks for the state while this generator waits in it.
                self._came += batch.size
                yield mapped


def _share_of(samples: int, worker: int, workers: int) -> int:
    return samples // workers + (worker < samples % workers)
