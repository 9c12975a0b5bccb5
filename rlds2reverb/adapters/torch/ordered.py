"""Batches in one order, which the workers of a DataLoader make in turn, and positions in it.

A position counts samples of all ranks, so it means the same with any number of ranks and workers, and with batches of another size. Every
state holds what the data and their order are, as far as it is known where the state is made.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from numbers import Integral
from typing import Any, NoReturn, TypeAlias

from torch.utils.data import IterableDataset

from rlds2reverb.adapters.torch.passes import Passes, PassStart, worker_place
from rlds2reverb.adapters.torch.tensors import TensorBatch, tensors
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.local import Local, LocalOptions
from rlds2reverb.learner.mix import Mix, MixOptions
from rlds2reverb.learner.states import FORMAT, State, check_state, count_in, counts_in, state_of
from rlds2reverb.text import shortened

BatchFunction: TypeAlias = Callable[[TensorBatch], Any]
"""What a worker makes of each batch: augmented images, tokens, another structure."""

_logger = logging.getLogger("rlds2reverb.learner")

_KIND, _VERSION = "torch dataset", 2

# In the state of a StatefulDataLoader (torchdata 0.8 to 0.11): batches that it gave since its workers' states; whether its pass was at the end.
# Were they named otherwise, a state taken with snapshot_every_n_steps=1, the default, would still be right in all but the epoch after the end.
STEPS_SINCE, _IS_FINISHED = "_steps_since_snapshot", "_iterator_finished"


def check_map(where: str, map: object) -> BatchFunction | None:  # noqa: A002  # the word that users of `datasets` and tf.data know
    """Returns it; raises ConfigError for what is no function."""
    if map is not None and not callable(map):
        raise ConfigError(f"{where}: map {map!r}: expected a function of a batch")
    return map


class CountedDataset(IterableDataset):  # type: ignore[misc]  # PyTorch is Any where it is not installed
    """A dataset that knows its passes, also those that workers make, and begins one of them at a position that was loaded.

    Attributes:
      map: called in the worker with every batch of tensors; what it returns is what the loader gives.
    """

    def __init__(self, where: str, map: BatchFunction | None) -> None:  # noqa: A002  # as of `check_map`
        super().__init__()
        self.map, self.passes = check_map(where, map), Passes()
        self._loaded: State | None = None
        self._load = 0  # its number; 0 for one that a StatefulDataLoader gave this worker
        self._here: PassStart | None = None  # the pass of this process

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without the pass of this process."""
        return {**vars(self), "_here": None}

    def apply_map(self, batch: Batch) -> Any:
        """A batch as the loader gives it."""
        made_of_tensors = tensors(batch)
        return made_of_tensors if self.map is None else self.map(made_of_tensors)

    def _load_position(self, position: State, epoch: int = 0) -> None:
        """Has the next pass begin here; a worker's own position is for its own next pass alone."""
        self._loaded, self._here = position, None
        self._load = 0 if worker_place().is_worker else self.passes.load(epoch)

    def _begin_pass(self) -> tuple[PassStart, State | None]:
        """Begins a pass of this process; with the position that it begins at, None for the front.

        Raises:
          ConfigError: the pass begins at a position that this worker was not given.
        """
        # A StatefulDataLoader gave it to this worker alone, so no other one knows of it.
        is_own = self._loaded is not None and not self._load
        self._here = started = self.passes.begin(count_in({"epoch": 0, **self._loaded}, "epoch") if is_own else None)  # type: ignore[dict-item]
        position = self._loaded if is_own or (started.load and started.load == self._load) else None
        if started.load and position is None:
            raise ConfigError(
                "load_state_dict: the persistent workers of the DataLoader run already, and have not got the position; load it before the "
                "first pass, or make the DataLoader anew"
            )
        if is_own:
            self._loaded = None
        return started, position

    def _is_made_here(self) -> bool:
        """Whether this process makes the batches of the pass that began last; also before any began.

        Raises:
          ConfigError: another process makes them.
        """
        latest = self.passes.latest
        if worker_place().is_worker:
            return self._here is not None
        if latest is None:
            return False
        if self._here is None or latest.number != self._here.number:
            raise ConfigError(
                "state_dict: the workers of a DataLoader make the batches, and this process does not know how many came; give "
                "state_dict(batches=number) where the dataset takes it, or take a StatefulDataLoader (torchdata), whose state has it"
            )
        return True


class OrderedDataset(CountedDataset, ABC):
    """Batches in one order, which workers make in turn: with any number of them the loader gives the same batches in the same order.

    Each pass over the loader has an order of its own: its number is the epoch. It goes up by itself; `set_epoch` sets it.
    """

    options: LocalOptions | MixOptions

    def __init__(self, where: str, map: BatchFunction | None) -> None:  # noqa: A002  # as of `check_map`
        super().__init__(where, map)
        self._position: _Position | None = None

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass that of this epoch, counted from 0, as a `DistributedSampler` does; also for workers that run already.

        A position that was loaded stays if it is of this epoch and no pass has begun at it.

        Raises:
          ConfigError: it is no whole number of at least 0.
        """
        number = _whole_number("set_epoch: epoch", epoch)
        self.passes.set_epoch(number, self._loaded is not None and self._loaded["epoch"] == number)
        self._position = None

    def state_dict(self, batches: int | None = None) -> State:
        """The position in the pass that began last, as plain values.

        A StatefulDataLoader of torchdata asks for it by itself, in its workers. With a plain DataLoader count the batches.

        Args:
          batches: number of batches that the loop took of this pass, all of one size; None for those that this process made.

        Raises:
          ConfigError: workers make the batches, and their number is not given; or it is no whole number of at least 0.
        """
        if batches is not None:
            return self._ahead(self._start_of_latest(), _whole_number("state_dict: batches", batches))
        if self._is_made_here() and self._position is not None:
            return self._position.state()
        return self._start_of_latest()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass continue at a position: each of the rest of its samples comes, once. If nothing is left, the next epoch begins.

        Args:
          state: of `state_dict`, or of a whole StatefulDataLoader. The number of workers, ranks, and the size of batches may be others.

        Raises:
          ConfigError: it is no such state, or one of other data, as far as it is known before they are opened; the rest is refused when
            iterating begins. Or a StatefulDataLoader gives the state to workers with other ranks or batches of another size.
        """
        states = [check_state(inner, _KIND, self.identity(), _VERSION) for inner in states_in(state, _KIND)]
        if not states:
            raise ConfigError(f"load_state_dict: {shortened(repr(state), 80)}: expected what state_dict() gave")
        for inner in states:
            _check_numbers(inner)
        # Each is a position in the same order, and workers take turns: the farthest is that of the batch that came last.
        position = dict(max(states, key=lambda inner: (inner["epoch"], inner["samples"])))
        sizes = position["batch_size"], position["world_size"]
        own_sizes = self.options.batch_size, self.options.world_size
        place = worker_place()
        if place.is_worker:
            if sizes != own_sizes or position["workers"] not in (0, place.workers):
                raise ConfigError(
                    f"load_state_dict: a worker's state of num_workers={position['workers']}, batch_size={sizes[0]}, world_size={sizes[1]}; "
                    f"here num_workers={place.workers}, batch_size={own_sizes[0]}, world_size={own_sizes[1]}: the turns of workers are others; "
                    "give the loader's state to the dataset, before the loader is made: dataset.load_state_dict(state)"
                )
            self._load_position(position)
            return
        position = self._ahead(position, count_in({STEPS_SINCE: 0, **state}, STEPS_SINCE), *sizes)
        # It is of all workers now, and the first of them has the next batch.
        position.update(turn=0, workers=0)
        if state.get(_IS_FINISHED) is True:
            position = self._front(position["epoch"] + 1)
        if sizes != own_sizes:
            _logger.warning(
                "a state of batch_size=%d, world_size=%d continues with batch_size=%d, world_size=%d: exact is that each sample of the rest of "
                "the epoch comes once, in the same order (in a mix, of each part); the batches of all ranks together are the same only if "
                "world_size * batch_size is, and in a mix only if both are",
                *sizes,
                *own_sizes,
            )
        self._load_position(position, position["epoch"])
        self._position = None

    def __iter__(self) -> Iterator[Any]:
        """Batches of this worker."""
        try:
            started, position = self._begin_pass()
        except ConfigError as error:
            return raise_at_first(error)
        place = worker_place()
        self._position = _Position(self, started, position or self._front(started.epoch), place.worker, place.workers)
        return _Batches(self, self._position)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_position": None}

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What is known of the data and their order before anything is opened, as plain values."""

    @abstractmethod
    def open_at(self, stack: ExitStack, position: State, turn: int, workers: int) -> Local | Mix:
        """Opens the batches of a worker at a position.

        Args:
          stack: closes what is opened.
          position: a state.
          turn: number of batches from there on that are of other workers, before the first of this one.
          workers: how many there are; every so-many-th batch is the worker's.

        Raises:
          ConfigError: the position is of other data.
        """

    @abstractmethod
    def skip_others(self, batches: Local | Mix, count: int) -> None:
        """Passes over so many batches of other workers, where the worker's batches have them."""

    @abstractmethod
    def begin_epoch(self, batches: Local | Mix, epoch: int) -> None:
        """Goes to the front of the pass of this epoch."""

    def restore(self, batches: Local | Mix, position: State) -> None:
        """Takes batches that were just opened to a position, and compares the data."""
        if position["at"] is None:
            self.begin_epoch(batches, position["epoch"])
        else:
            # Another number of ranks was told once, when the state was loaded, and not by every worker.
            ranks = {"world_size": self.options.world_size} if isinstance(batches, Local) else {}
            batches.restore({**position["at"], **ranks}, anew=True)
        for count, batch_size, world_size in position["ahead"]:
            self._pass_over(batches, count, batch_size, world_size)
        # Only now: counting the items of a random order may read all episodes, and the lines above say better in what the data differ.
        if position["data"] is not None or self.passes.data is None:
            fingerprint = batches.fingerprint()
            if position["data"] not in (None, fingerprint):
                raise ConfigError(
                    f"load_state_dict: {batches.name}: the state is of other data under the same name, or of other options of them "
                    "(table, filters, on_invalid, transform, ...); give the dataset the arguments of then"
                )
            self.passes.data = fingerprint

    def _pass_over(self, batches: Local | Mix, count: int, batch_size: int, world_size: int) -> None:
        for _ in range(count):
            batches.pass_over(batch_size, world_size)

    def _front(self, epoch: int) -> State:
        """The begin of the pass of this epoch."""
        position: State = {"epoch": epoch, "samples": 0, "at": None, "ahead": [], "turn": 0, "workers": 0}
        return state_of(_KIND, self.identity(), _VERSION, data=self.passes.data, **position, **self._sizes)

    @property
    def _sizes(self) -> dict[str, int]:
        """As a state has them."""
        return {"batch_size": self.options.batch_size, "world_size": self.options.world_size}

    def _start_of_latest(self) -> State:
        """Where the pass that began last began; where none did, where the next one begins."""
        latest = self.passes.latest
        load = self.passes.new_load if latest is None else latest.load
        if self._loaded is not None and load and load == self._load:
            return self._loaded
        return self._front(self.passes.next_epoch if latest is None else latest.epoch)

    def _ahead(
        self, position: State, count: int, batch_size: int | None = None, world_size: int | None = None
    ) -> State:
        """The position so many batches later; of the size and the ranks of this dataset, unless others are named."""
        batch_size, world_size = batch_size or self.options.batch_size, world_size or self.options.world_size
        if not count:
            return dict(position)
        # As numbers of batches: they are passed over once the data are open, in `restore`.
        ahead = [list(run) for run in position["ahead"]]
        if ahead and ahead[-1][1:] == [batch_size, world_size]:
            ahead[-1][0] += count
        else:
            ahead.append([count, batch_size, world_size])
        samples = position["samples"] + count * batch_size * world_size
        data = position["data"] or self.passes.data
        return {**position, "samples": samples, "ahead": ahead, "data": data, **self._sizes}


class _Position:
    """One pass of one worker, and its position, as values of a state.

    | value | is |
    | --- | --- |
    | epoch | of the pass |
    | samples | number of samples of all ranks in the pass so far; a last batch that is shorter counts as a whole one |
    | at | a position as of `Local.state` or `Mix.state`; None at the begin of the pass |
    | ahead | [batches, batch_size, world_size] of what came after `at` |
    | turn | number of batches after these that are of other workers, before this one's next |
    | workers | that `turn` is for; with any other number, each worker waits for those before it |
    | batch_size, world_size | of the run that made the state |
    | data | a fingerprint of the data and their order; None where nothing was opened |
    """

    def __init__(self, dataset: OrderedDataset, started: PassStart, start: State, worker: int, workers: int) -> None:
        self._dataset, self._started, self._start, self._workers = dataset, started, start, workers
        self._is_own = bool(start["workers"])  # a StatefulDataLoader's, for this worker alone
        self._turn = start["turn"] if start["workers"] == workers else worker
        self._batches: Local | Mix | None = None
        # Batches of this worker: those that were read, and those up to the last that the loader was given.
        self._read = self._came = 0
        self._is_between = True  # no batch is being read

    def read(self) -> Iterator[Batch]:
        """The batches of the worker."""
        with ExitStack() as stack:
            batches = self._dataset.open_at(stack, self._start, self._turn, self._workers)
            passed = batches.passed
            self._dataset.skip_others(batches, self._turn)
            if (batch := self._next(batches)) is None and self._is_at_end(batches.passed - passed):
                self._started = self._dataset.passes.go_on(self._started)
                self._start = self._dataset._front(self._started.epoch)
                self._dataset.begin_epoch(batches, self._started.epoch)
                self._dataset.skip_others(batches, self._turn)
                batch = self._next(batches)
            while batch is not None:
                self._batches = batches
                self._read += 1
                yield batch
                self._dataset.skip_others(batches, self._workers - 1)
                batch = self._next(batches)

    def _next(self, batches: Local | Mix) -> Batch | None:
        self._is_between = False
        batch = batches.next_batch()
        self._is_between = True
        return batch

    def _is_at_end(self, left: int) -> bool:
        """Whether a position that was loaded had no batch left, for any worker: all of them find the same number of samples of a rank left."""
        options = self._dataset.options
        needs_whole = options.drop_last or getattr(options, "stacked", False)
        is_resumed = bool(self._start["samples"]) and not self._is_own
        return is_resumed and left < (options.batch_size if needs_whole else 1)

    def give(self) -> None:
        """The batch that was read last is the loader's."""
        self._came = self._read

    def state(self) -> State:
        if not self._came or self._batches is None:
            return {**self._start, "turn": self._turn, "workers": self._workers}
        state = self._dataset._ahead(self._start, self._turn + (self._came - 1) * self._workers + 1)
        state.update(turn=self._workers - 1, workers=self._workers)
        if self._came == self._read and self._is_between:  # else a map failed, or a source
            state.update(at=self._batches.state(), ahead=[])
        return state


class _Batches:
    """The batches of a worker as the loader gives them. A batch whose `map` fails does not count as given, and the next one follows."""

    def __init__(self, dataset: OrderedDataset, position: _Position) -> None:
        self._dataset, self._position, self._reading = dataset, position, position.read()

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        batch = self._dataset.apply_map(next(self._reading))
        self._position.give()
        return batch


def raise_at_first(error: ConfigError) -> Iterator[Any]:
    """Raises at the first batch: of an error in `__iter__` a DataLoader says only that a persistent worker exited."""

    def fail() -> NoReturn:
        raise error

    return iter(fail, None)


def _whole_number(what: str, value: object) -> int:
    """A number of Python or numpy; raises ConfigError for what is no whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ConfigError(f"{what} {value!r}: expected a whole number of at least 0")
    return int(value)


def _check_numbers(state: Mapping[str, Any]) -> None:
    for name in ("epoch", "samples", "turn", "workers", "batch_size", "world_size"):
        count_in(state, name)
    ahead = state.get("ahead")
    if not isinstance(ahead, (list, tuple)) or not all(len(counts_in({"ahead": run}, "ahead")) == 3 for run in ahead):
        raise ConfigError(f"load_state_dict: ahead is {shortened(repr(ahead), 80)}; expected triples of whole numbers")
    if state["workers"] and state["turn"] >= state["workers"]:
        raise ConfigError(f"load_state_dict: turn is {state['turn']} of {state['workers']} workers")
    if not isinstance(state.get("data"), (str, type(None))):
        raise ConfigError(f"load_state_dict: data is {shortened(repr(state['data']), 80)}; expected a text")


def states_in(value: object, kind: str) -> Iterator[Mapping[str, Any]]:
    """All states of a dataset of this kind in a state, such as those of the workers in a StatefulDataLoader's."""
    if isinstance(value, Mapping):
        if value.get(FORMAT) == f"rlds2reverb.{kind}":
            yield value
            return
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from states_in(inner, kind)
