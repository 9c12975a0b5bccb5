"""Batches of a dataset without a server: the items of a table that a push of it would fill, read straight from disk.

`Local` joins what an epoch gives into batches, and begins the next epoch at its end. Its chapters, from the bottom:

items     what one episode gives, with the keys, priorities and dtypes that a push would store
orders    a shuffle buffer over a stream of items, or a permutation of all of them
shares    places of that stream which are dealt to a rank, and to a worker
epochs    an epoch in the order of the source, through a buffer
windows   an epoch in a random order of all items, held a window at a time

A position is plain values: the epoch, what it gave, and what it stands at. `Local.restore` reads again what the position needs, and
compares it with the state, so that other data under the same name is refused.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.source import LeftOut
from rlds2reverb.keywords import refuse_unknown, takes_options
from rlds2reverb.learner.batch import Batch, BatchIterator
from rlds2reverb.learner.local.epochs import Epoch, InOrderEpoch
from rlds2reverb.learner.local.options import GLOBAL, PRIORITIZED, LocalKeywords, LocalOptions
from rlds2reverb.learner.local.orders import DrawnOrder, order_of
from rlds2reverb.learner.local.shares import Share
from rlds2reverb.learner.local.windows import PermutedEpoch
from rlds2reverb.learner.options import TABLE_MIN, SampleOptions
from rlds2reverb.learner.packing import Packing
from rlds2reverb.learner.slices import CutBatch, cut_each, join_cut
from rlds2reverb.learner.states import State, check_state, count_in, digest, state_of
from rlds2reverb.prepare.preparation import Preparation, outputs_of, view_for
from rlds2reverb.specs import Nest
from rlds2reverb.views import ViewLike
from rlds2reverb.wire.messages import RateLimiter, TableInfo
from rlds2reverb.wire.sample.batches import FlatBatch, in_batches, join_batches

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Local", "LocalOptions", "local"]

_KIND, _VERSION = "local", 1
_WORLD_SIZE = "world_size"
_MOST_EMPTY = (
    1000  # episodes that are too short for a slice, in a row, before endless epochs give up; and one epoch of them
)

_logger = logging.getLogger("rlds2reverb.learner")


class Local(BatchIterator):
    """Iterates batches of a source's items, like a `Sampler` of a table that was filled with them. Made by `local`. Not thread-safe.

    An iterator, as Python has it: at its end a second `for` gives nothing. `restart()` begins again; `epochs` gives several passes at once.

    `info` of a sample: `key` and `priority` as a push would store them; `times_sampled` counts the epochs; it was drawn from the
    `table_size` items of the shuffle buffer with `probability` 1 / `table_size` (1 of 1 without a buffer), so importance weights are 1.
    With shuffle="global" these are the items that the epoch has still to give, items of bad episodes included.

    Args:
      ready: the source, for one output with one table.
      options: batches, epochs and shuffling.
      share: the places of the stream that are dealt to this process, also if these are all; None for those of the options' rank.

    Attributes:
      options: as given.
      structure: of the samples, nest of `ArraySpec`: the signature of such a table, or of the slices of its items.
    """

    def __init__(self, ready: Preparation, options: LocalOptions, share: Share | None = None) -> None:
        self._ready, self.options = ready, options
        self._share = share or Share(options.rank, options.world_size)
        self._is_dealt = share is not None or not self._share.is_whole
        self._dealt = 0  # places of the share's stream that are behind
        self._repeated = 0  # in earlier epochs
        self._is_reported = False
        (signature,) = ready.signatures
        self._order = order_of(ready, options)
        self._check_shares()
        # The table that a push of the source would have filled: of any size, and without a limit on its samples.
        limiter = RateLimiter(1.0, -math.inf, math.inf, 1, 0, 0)
        drawn = self._order if isinstance(self._order, DrawnOrder) else None
        sampler = f"{options.sampler}({options.exponent})" if options.sampler == PRIORITIZED else "fifo"
        self._packing = Packing(
            TableInfo(options.table, sampler, "fifo", 0, 0, 0, limiter, signature, 0, 0, 0),
            SampleOptions(
                options.batch_size,
                ragged=options.ragged,
                pad_to=options.pad_to,
                decode=options.decode,
                slices=options.slices,
                weights=options.weights,
                beta=options.beta,
                # Asked for with the first batch: all items are read for it.
                min_priority=(lambda _: drawn.least_priority) if drawn and options.weights == TABLE_MIN else None,
            ),
        )
        self.structure: Nest = self._packing.structure
        self._since = 0  # the epoch that it began with
        self._is_closed = self._is_stopped = False
        self._begun: Epoch | None = None

    @property
    def name(self) -> str:
        """The source's name."""
        return self._ready.source.name

    @property
    def signature(self) -> Nest:
        """The spec of the items, as a table's signature."""
        return self.structure

    @property
    def rejected(self) -> dict[str, int]:
        """Code of a problem -> number of episodes of this epoch that were left out for it so far."""
        return self._epoch.rejected

    @property
    def repeated(self) -> int:
        """Number of samples so far that came once more, at places of the order that have no item.

        That happens with shuffle="global" and ranks or a DataLoader's workers, so that all of them give equally many batches: where
        episodes are left out, and where an episode has fewer items than its length allows.
        """
        return self._repeated + self._epoch.repeated

    @property
    def filtered(self) -> Mapping[str, LeftOut]:
        """What filters and a split take out: rule -> counts; {} without any."""
        return self._ready.source.filtered

    def next_batch(self) -> Batch | None:
        """Returns the next batch; None at the end.

        Raises:
          InvalidEpisode, ViewError: an episode is bad, and `on_invalid` is to stop.
          SourceError: the data cannot be read, two episodes have one id, or endless epochs have no item.
          WireError: a column could not be stored in a table.
          DecodeError: an encoded image cannot be decoded.
        """
        batch = self.take(self.options.batch_size)
        if batch is not None and batch.size < self.options.batch_size and self.options.drop_last:
            return None
        return batch

    @property
    def passed(self) -> int:
        """Samples of each rank that were given or skipped since places are dealt: since the begin of an epoch, or a position."""
        return self._dealt // self._share.world_size

    def take(self, count: int) -> Batch | None:
        """Returns the next `count` samples in one batch; fewer before the end, None at the end. Raises as `next_batch` does."""
        parts: list[FlatBatch] = []
        if self._is_dealt:
            own, parts = self._deal(count, self._share)
            self._report_repeated()
            parts = list(islice(in_batches(parts, own), 1)) if own else []
        elif self._packing.cutter is not None:
            return self._take_slices(count)
        else:
            while count and (part := self._next_part(count)) is not None:
                parts.append(part)
                count -= len(part)
        return self._pack(join_batches(parts)) if parts else None

    def _pack(self, samples: FlatBatch) -> Batch | None:
        cutter = self._packing.cutter
        flat = samples if cutter is None else cut_each(cutter, samples)
        return None if flat is None else self._packing.pack(flat)

    def _take_slices(self, count: int) -> Batch | None:
        """The next `count` slices: an episode gives one, or none where it is too short."""
        cutter, empty = self._packing.cutter, 0
        assert cutter is not None
        parts: list[CutBatch] = []
        while count and (part := self._next_part(count)) is not None:
            cut = cut_each(cutter, part)
            empty = empty + len(part) if cut is None else 0
            if empty > _MOST_EMPTY + self._epoch.drawn and self.options.epochs is None:
                raise ConfigError(f"{self.name}: {empty:,} episodes in a row gave nothing: {cutter.nothing}")
            if cut is not None:
                parts.append(cut)
                count -= len(cut)
        return self._packing.pack(join_cut(parts)) if parts else None

    def skip(self, count: int) -> int:
        """Passes over the next `count` samples. Returns how many there were; fewer before the end, 0 at the end.

        Nothing is cut, and no image decoded that the items hold encoded. With shuffle="global" and ranks nothing is read either; without
        ranks episodes are, since one that is left out has no items to pass over.
        """
        if self._is_dealt:
            return self._deal(count, None)[0]
        if self._packing.cutter is not None:
            return batch.size if (batch := self._take_slices(count)) is not None else 0
        skipped = 0
        for epoch in self._epochs_left():
            while skipped < count and (in_epoch := epoch.skip(count - skipped)):
                skipped += in_epoch
            if skipped == count:
                break
        return skipped

    def pass_over(self, count: int, world_size: int) -> int:
        """Passes over what each of `world_size` ranks took, `count` samples each, and deals the places from there on to the ranks of now.

        For a `Local` whose places are dealt. Returns how many there were, as `skip` does.
        """
        own, self._share, self._dealt = self._share, Share(world_size=world_size), 0
        try:
            return self._deal(count, None)[0]
        finally:
            self._share, self._dealt = own, 0

    def stop(self) -> None:
        """Ends it at once: the next batch is None. Nothing is prefetched, so unlike a `Sampler` it has nothing to `drain`."""
        self._is_stopped = True

    def close(self) -> None:
        """Ends it, and closes the source's files."""
        self._is_closed = True
        if self._begun is not None:
            self._begun.close()

    def restart(self) -> None:
        """Begins again with the first item of the source; in another order when shuffled, since epochs are counted on."""
        self.begin_epoch(self._epoch.number + (self._epoch.drawn > 0))

    def begin_epoch(self, number: int) -> None:
        """Begins the epoch of this number, counted from 0; the order of a shuffled source follows from it. `epochs` are counted from here on."""
        self._repeated += self._epoch.repeated
        self._begun = self._epoch.restart(number)
        self._since, self._dealt = self._epoch.number, 0
        self._is_stopped = False

    def state(self) -> State:
        """Returns its position between two batches, as plain values for JSON."""
        world = {_WORLD_SIZE: int(self.options.world_size)} if self.options.world_size > 1 else {}
        return state_of(_KIND, self._identity, _VERSION, since=self._since, **world, **self._epoch.position())

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to the position of another `Local` of the same arguments: the same batches follow. With ranks, items that stand in for those of bad
        episodes (`repeated`) may be other ones.

        `epochs`, `batch_size` and `drop_last` may differ: a state is a position, and what follows ends after the epochs that were asked
        for here, those before the state included. So epochs=3 continues a finished run of epochs=1 with two more.

        `world_size` may differ, too: each item of the rest comes once, to one of the ranks that there are now. What changes then is logged
        to `rlds2reverb.learner`.

        Earlier episodes are passed over if an episode's items depend on no other episode, and the source can skip
        (`tfds:`, `bundled:`, lists); else they are read, and not cut. If they are passed over, two faults of the source are found
        only among the episodes that are read: ids that two episodes share, and ends that are not the episodes' own.

        Args:
          state: of `state()`.
          anew: without effect; everything here can be restored.

        Raises:
          ConfigError: a state of something else, of another version, or of other data, which says in what it differs; or one that
            stands behind the last of `epochs`.
          SourceError: the data cannot be read.
        """
        checked = check_state(state, _KIND, self._identity, _VERSION)
        since, epochs = count_in(checked, "since"), self.options.epochs
        begun = count_in(checked, "epoch") - since + (count_in(checked, "drawn") > 0)
        if epochs is not None and begun > epochs:
            raise ConfigError(
                f"restore: the state stands in epoch {begun}, after the end of epochs={epochs}; give epochs={begun} or more, or None"
            )
        self._report_world(checked)
        if self._order is None:
            epoch: Epoch = InOrderEpoch.at(self._ready, self.options, checked)
        else:
            epoch = PermutedEpoch.at(self._ready, self.options, self._order, checked)
        if self._begun is not None:
            self._begun.close()
        self._begun, self._since, self._dealt, self._is_stopped = epoch, since, 0, False

    def _check_shares(self) -> None:
        slices = self.options.slices
        if slices is not None and slices.strict and self._is_dealt:
            raise ConfigError(
                f"{self.name}: slices: ranks and workers must give equally many, and strict=True leaves short episodes out; use strict=False, or leave them out "
                "by a filter"
            )

    def _report_world(self, state: Mapping[str, Any]) -> None:
        """Logs what a state of another number of ranks leaves exact."""
        before, now = count_in({_WORLD_SIZE: 1, **state}, _WORLD_SIZE), self.options.world_size
        if before != now and self._share.worker == 0:
            _logger.warning(
                "%s: a state of %d ranks continues with %d: exact is that each item of the rest comes once, in the same order; batches of a "
                "rank are others, and those of all ranks together are the same only if world_size * batch_size is",
                self.name,
                before,
                now,
            )

    def fingerprint(self) -> str:
        """Tells data and orders apart: two `Local` of the same one give the same items at the same positions."""
        return digest(json.dumps(self._identity), "" if self._order is None else self._order.digest)

    def _report_repeated(self) -> None:
        """Logs once, in the first epoch, that places without an item repeat others."""
        if self._is_reported or self._epoch.number or not self._epoch.repeated:
            return
        self._is_reported = True
        _logger.warning(
            '%s: shuffle="global": places of the order have no item, of episodes that are left out or have fewer items than their length '
            "allows; other items of their batches come once more, so that ranks and workers give equally many (`local` without ranks gives "
            "each item once)",
            self.name,
        )

    @property
    def _identity(self) -> dict[str, Any]:
        """What two `Local` must share for a position to mean the same. States on disk hold it: no value may change its spelling."""
        options, source = self._ready.options, self._ready.source
        return {
            "source": source.name,
            "episodes": source.episode_count,
            "view": self._ready.outputs[0].view.label,
            "data": self._ready.identity,
            **({"filter": options.filter_label} if options.filter_label else {}),
            "table": self.options.table,
            **({} if self.options.identity is None else {"identity": self.options.identity}),
            "shuffle": GLOBAL if self.options.shuffle == GLOBAL else int(self.options.buffer_size),
            "seed": self.options.seed,
            **self.options.order_label,
            "on_invalid": options.on_invalid,
            "allow": sorted(options.allow),
            "strict": options.strict,
        }

    @property
    def _epoch(self) -> Epoch:
        """The current epoch; the first begins when it is asked for, since counting items may read all episodes."""
        if self._begun is None:
            ready, options, order = self._ready, self.options, self._order
            self._begun = InOrderEpoch(ready, options, 0) if order is None else PermutedEpoch(ready, options, order, 0)
        return self._begun

    def _next_part(self, count: int) -> FlatBatch | None:
        """The next items, at least one and at most `count`; None at the end."""
        for epoch in self._epochs_left():
            if (part := epoch.take(count)) is not None:
                return part
        return None

    def _deal(self, count: int, cut: Share | None) -> tuple[int, list[FlatBatch]]:
        """Goes on to the end of the round of the share's `count`-th place; items are cut at the places of `cut`.

        Of the last round, if it is not whole, no rank gets an item.

        Returns:
          The number of items of the share, which is less than `count` at the end only; and the items, one more at most.
        """
        share, start = self._share, self._dealt
        end = share.end_of(start, count) if count else start
        parts: list[FlatBatch] = []
        for epoch in self._epochs_left() if count else ():
            advanced = -1
            while advanced and self._dealt < end:
                advanced, part = epoch.deal(end - self._dealt, self._dealt, cut)
                self._dealt += advanced
                parts += [] if part is None else [part]
            if self._dealt == end:
                break
        return max(0, share.count(share.end_of_round(self._dealt)) - share.count(start)), parts

    def _epochs_left(self) -> Iterator[Epoch]:
        """The current epoch and those after it; asked for the next one, it begins it."""
        epochs = self.options.epochs
        while (
            not self._is_closed
            and not self._is_stopped
            and (epochs is None or self._epoch.number - self._since < epochs)
        ):
            yield self._epoch
            if epochs is None and not self._epoch.drawn:
                raise SourceError(f"{self.name}: no item in a whole epoch, so epochs without end give no batch")
            self._repeated += self._epoch.repeated
            self._begun = self._epoch.restart(self._epoch.number + 1)


@takes_options(LocalOptions)
def local(
    source: Any,
    view: ViewLike | None = None,
    batch_size: int = LocalOptions.batch_size,
    **options: Unpack[LocalKeywords],
) -> Local:
    """Iterates batches of a dataset, without a server: `for data, info in rlds2reverb.local("tfds:my_dataset")`.

    It is an iterator: a second `for` over it gives nothing. For several passes give `epochs`, or call its `restart()` before each further one.

    Structure, dtypes, shapes and values are those of `client.sample` on a table filled by `client.push(source, view=view)`, in
    the order in which the push inserts them (a table with the sampler "fifo"), or shuffled.

    shuffle="global" needs a source that reads single episodes (`Source.has_random_access`), a view that counts its items, and episodes whose
    validity depends on no other. It holds windows of its order, each of at most `shuffle_bytes` of items, and reads the episodes of a window
    once: with all items of B bytes an episode is read at most about B / `shuffle_bytes` + 1 times an epoch. Where the source does not say
    how long its episodes are, all are read once before the first batch.

    Args:
      source: anything that `push` takes.
      view: of the items, as for `push`: by default that of a mixture file, else "two_step".
      batch_size: samples per batch.
      options: the other fields of `LocalOptions`.

    Raises:
      ConfigError: an unknown option, or one that makes no sense; or shuffle="global" of a source or a view that lacks what it needs.
      SourceError, ViewError: as for a push.
    """
    refuse_unknown("local", options, LocalOptions)
    chosen = LocalOptions(batch_size, **options)
    view = "episode" if view is None and chosen.slices is not None else view
    return Local(open_for_local(source, view_for(source, view), chosen), chosen)


def open_for_local(source: Any, view: ViewLike, options: LocalOptions) -> Preparation:
    """Opens a source for any number of `Local`, one after the other; raises as `local` does."""
    outputs = outputs_of(options.table, view)
    options.check_files()
    return Preparation.open(source, options, outputs, options.chosen_identity)
