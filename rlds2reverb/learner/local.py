"""A dataset as batches without a server: what a table filled by a push of it would give, item by item, straight from disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.learner.batch import Batch, Packing
from rlds2reverb.learner.batch_iterator import BatchIterator
from rlds2reverb.learner.items import Picks
from rlds2reverb.learner.local_options import LocalOptions
from rlds2reverb.learner.local_pass import Item, Pass
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.states import State, check_state, count_in, state_of
from rlds2reverb.prepare.options import split_options
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.outputs import outputs_of
from rlds2reverb.specs import Nest
from rlds2reverb.views.registry import ViewLike
from rlds2reverb.wire.messages import RateLimiter, TableInfo
from rlds2reverb.wire.sample.batches import FlatBatch, SampleInfo

_KIND, _VERSION = "local", 1


class Local(BatchIterator):
    """Iterates batches of a source's items, like a `Sampler` of a table that was filled with them. Made by `local`. Not thread-safe.

    `info` of a sample: `key` and `priority` as a push would store them; `times_sampled` counts the epochs; it was drawn from the
    `table_size` items of the shuffle buffer with `probability` 1 / `table_size` (1 of 1 without a buffer), so importance weights are 1.

    Args:
      ready: the source, for one output with one table.
      options: how.

    Attributes:
      options: as given.
      structure: of the samples, nest of `ArraySpec`: what the signature of such a table is.
    """

    def __init__(self, ready: Preparation, options: LocalOptions) -> None:
        self._ready, self.options = ready, options
        (self.structure,) = ready.signatures
        self._packing = Packing(
            _full_table(options.table, self.structure),
            SampleOptions(options.batch_size, ragged=options.ragged, pad_to=options.pad_to, decode=options.decode),
        )
        self._until = options.epochs
        self._is_closed = self._is_stopped = False
        self._pass = Pass(ready, options, 0)

    @property
    def name(self) -> str:
        """What people call it."""
        return self._ready.source.name

    @property
    def signature(self) -> Nest:
        """The spec of the items, as a table's signature."""
        return self.structure

    @property
    def rejected(self) -> dict[str, int]:
        """Code of a problem -> episodes that were left out for it, of those read in this epoch."""
        return self._pass.rejected

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end.

        Raises:
          InvalidEpisode, ViewError: an episode is bad, and `on_invalid` is to stop.
          SourceError: the data cannot be read, two episodes have one id, or endless epochs have no item.
          WireError: a column could not be stored in a table.
          DecodeError: an encoded image cannot be decoded.
        """
        batch = self.take(self.options.batch_size)
        is_short = batch is not None and batch.size < self.options.batch_size
        return None if is_short and self.options.drop_last else batch

    def take(self, count: int) -> Batch | None:
        """The next so many samples in one batch; fewer before the end, None at the end. Raises as `next_batch` does."""
        picked: list[tuple[Item, int, int]] = []
        while len(picked) < count and (one := self._next_item()) is not None:
            picked.append(one)
        if not picked:
            return None
        picks = Picks.of([item for item, _, _ in picked])
        drawn_from = np.array([among for _, among, _ in picked], np.int64)
        times = np.array([epoch + 1 for _, _, epoch in picked], np.int32)
        info = SampleInfo(picks.keys, 1 / drawn_from, drawn_from, picks.priorities, times)
        return self._packing.pack(FlatBatch(tuple(picks.columns()), info))

    def stop(self) -> None:
        """Ends it at once: the next batch is None. Nothing is asked for ahead, so nothing is left to `drain`, as of a `Sampler`."""
        self._is_stopped = True

    def close(self) -> None:
        """Ends it, and closes what it reads."""
        self._is_closed = True
        self._pass.close()

    def restart(self) -> None:
        """Begins again with the first epoch's first item; shuffled otherwise, since epochs count on."""
        self._begin(self._pass.epoch + (self._pass.drawn > 0))
        self._until = None if self.options.epochs is None else self._pass.epoch + self.options.epochs
        self._is_stopped = False

    def state(self) -> State:
        """Where it stands, between two batches: plain values, for JSON."""
        return state_of(_KIND, self._of, _VERSION, until=self._until, **self._pass.position())

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to where another one of the same arguments stood: the same batches follow.

        What lies before is passed over where an episode's items depend on no other episode, and the source can pass it over
        (`tfds:`, `bundled:`, lists); else it is read, and not cut. Where it is passed over, two faults of the source are found only
        among the episodes that are read: ids that two episodes share, and ends that are not the episodes' own.

        Raises:
          ConfigError: a state of something else, of another version, or of other data; says in what it differs.
          SourceError: the data cannot be read.
        """
        checked = check_state(state, _KIND, self._of, _VERSION)
        until = None if checked.get("until") is None else count_in(checked, "until")
        if (until is None) != (self.options.epochs is None):
            raise ConfigError(f"restore: a state of epochs until {until}, expected epochs={self.options.epochs}")
        there = Pass.at(self._ready, self.options, checked)
        self._pass.close()
        self._pass, self._until, self._is_stopped = there, until, False

    @property
    def _of(self) -> dict[str, Any]:
        """What two of them must share for a position to mean the same."""
        options, source = self._ready.options, self._ready.source
        return {
            "source": source.name,
            "episodes": source.episode_count,
            "view": self._ready.outputs[0].view.label,
            "data": self._ready.identity,
            "table": self.options.table,
            "shuffle": int(self.options.buffer_size),
            "seed": self.options.seed,
            "on_invalid": options.on_invalid,
            "allow": sorted(options.allow),
            "strict": options.strict,
        }

    def _next_item(self) -> tuple[Item, int, int] | None:
        """An item, from how many it was drawn, and its epoch; None at the end."""
        while not self._is_closed and not self._is_stopped and (self._until is None or self._pass.epoch < self._until):
            if (drawn := self._pass.next()) is not None:
                return *drawn, self._pass.epoch
            if self._until is None and not self._pass.drawn:
                raise SourceError(f"{self.name}: no item in a whole epoch, so epochs without end give no batch")
            self._begin(self._pass.epoch + 1)
        return None

    def _begin(self, epoch: int) -> None:
        self._pass.close()
        self._pass = Pass(self._ready.silent(), self.options, epoch)


def _full_table(name: str, signature: Nest) -> TableInfo:
    """The table that a push of the source would have filled: items come in the order in which they were inserted, and never run out."""
    limiter = RateLimiter(1.0, -math.inf, math.inf, 1, 0, 0)
    return TableInfo(name, "fifo", "fifo", 0, 0, 0, limiter, signature, 0, 0, 0)


def local(source: Any, view: ViewLike = "two_step", batch_size: int = LocalOptions.batch_size, **options: Any) -> Local:
    """A dataset as batches, without a server: `for data, info in rlds2reverb.local("tfds:my_dataset")`.

    Structure, dtypes, shapes and values are those that `client.sample` gives of a table filled by `client.push(source, view=view)`, in
    the order in which the push inserts them (a table with the sampler "fifo"), or shuffled.

    Args:
      source: anything that `push` takes.
      view: what the items are, as for `push`.
      batch_size: samples per batch.
      options: the other fields of `LocalOptions`, and those of `EpisodeOptions`: on_invalid, quarantine, allow, strict, terminal_discount,
        last_reward, last_observation, encoded, transform.

    Raises:
      ConfigError: an option that is none of these or makes no sense.
      SourceError, ViewError: as for a push.
    """
    chosen, episodes = split_options(LocalOptions, "local", {"batch_size": batch_size, **options})
    outputs = outputs_of(chosen.table, view)
    episodes.check_files()
    return Local(Preparation.open(source, episodes, outputs), chosen)
