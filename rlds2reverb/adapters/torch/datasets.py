"""Datasets on disk, and mixes, for a DataLoader: `rlds2reverb.local` and `rlds2reverb.mix` in its workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rlds2reverb.adapters.torch.ordered import BatchFunction, OrderedDataset
from rlds2reverb.adapters.torch.passes import worker_place
from rlds2reverb.adapters.torch.tables import TableDataset
from rlds2reverb.errors import ConfigError
from rlds2reverb.keywords import make_options, refuse_unknown, takes_options
from rlds2reverb.learner.batch import BatchIterator
from rlds2reverb.learner.local import Local, open_for_local
from rlds2reverb.learner.local.options import GLOBAL, LocalKeywords, LocalOptions
from rlds2reverb.learner.local.shares import Share
from rlds2reverb.learner.mix import (
    BATCH,
    Mix,
    MixKeywords,
    MixOptions,
    PartChoices,
    Parts,
    mix,
    pairs_of,
    parts_of_mixture,
)
from rlds2reverb.learner.states import State
from rlds2reverb.prepare.preparation import Preparation, outputs_of, view_for
from rlds2reverb.views import ViewLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

_logger = logging.getLogger("rlds2reverb.learner")


class LocalDataset(OrderedDataset):
    """Batches of a dataset on disk, for `DataLoader(dataset, batch_size=None, num_workers=n)`: `rlds2reverb.local` in workers.

    Reading, decoding, resizing (`decode=(224, 224)`) and `map` happen in the workers, which make the batches in turn: the loader gives what
    a single process gives, in the same order, with any number of workers. Each worker reads the episodes of its batches, or, without
    shuffle="global", all of them; keep images encoded then (`encoded="all"`), so that each worker decodes those of its batches only.

    The items are those of `local`, in its order. With shuffle="global" a place of the order may have no item: of an episode that is left
    out, or that has fewer items than its length allows (`last_step="repeat"`, `last_observation="drop"`, filters of steps). No worker
    knows what another one finds there, so another item of the same batch comes once more, which a warning says; `local` gives each once.

    Each pass over the loader is the next `epochs` epochs; `set_epoch` sets the number. `state_dict` and `load_state_dict` resume it in the
    middle of an epoch, with the same or another number of workers and of ranks, see `load_state_dict`.

    Args:
      source: anything that `local` takes; it is pickled for workers that are not forked.
      view: of the items; by default that of a mixture file, else "two_step".
      batch_size: samples per batch.
      map: called in the worker with every batch of tensors; what it returns is what the loader gives.
      map_episodes: called with every episode before it is cut, as the option `map` of `local` and of a push.
      options: the other fields of `LocalOptions`, by name: `shuffle`, `rank`, `world_size`, ...

    Raises:
      ConfigError, ViewError: an option or a view makes no sense. The source is opened when iterating begins, which raises as `local` does.
    """

    options: LocalOptions

    @takes_options(LocalOptions)
    def __init__(  # type: ignore[misc]  # `map` is left out of the keywords: here it means batches
        self,
        source: Any,
        view: ViewLike | None = None,
        batch_size: int = LocalOptions.batch_size,
        map: BatchFunction | None = None,  # noqa: A002  # as of `TableDataset`
        map_episodes: str | Callable[[Any], Any] | None = None,
        **options: Unpack[LocalKeywords],
    ) -> None:
        super().__init__("LocalDataset", map)
        refuse_unknown("LocalDataset", options, LocalOptions)
        self.source, self.view = source, view_for(source, view)
        self.options = LocalOptions(batch_size, map=map_episodes, **options)
        (output,) = outputs_of(self.options.table, self.view)  # a wrong view fails here, not in a worker
        self._label = output.view.label
        self._opened: tuple[int, Preparation] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without open files."""
        return {**super().__getstate__(), "_opened": None}

    def make_local(self, options: LocalOptions, share: Share | None) -> Local:
        """Batches of the source. A process opens it once, and counts its items once, whatever number of passes it makes."""
        # A forked process opens its own: files that it shared with its parent would share their positions, too.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), open_for_local(self.source, self.view, options)
        return Local(self._opened[1], options, share)

    def identity(self) -> dict[str, Any]:
        """See `OrderedDataset`."""
        options, source = self.options, self.source
        name = os.fspath(source) if isinstance(source, (str, os.PathLike)) else getattr(source, "name", None)
        return {
            "source": str(name) if isinstance(name, (str, bytes)) else type(source).__name__,
            "view": self._label,
            "shuffle": GLOBAL if options.shuffle == GLOBAL else int(options.buffer_size),
            "seed": int(options.seed),
            **options.order_label,
            "epochs": None if options.epochs is None else int(options.epochs),
        }

    def open_at(self, stack: ExitStack, position: State, turn: int, workers: int) -> Local:
        """See `OrderedDataset`."""
        options = self.options
        share = Share(options.rank, options.world_size, turn, workers, options.batch_size)
        batches = stack.enter_context(self.make_local(options, share))
        self.restore(batches, position)
        return batches

    def skip_others(self, batches: Local | Mix, count: int) -> None:
        """See `OrderedDataset`. The share of a worker has no places of the others, so there is nothing to pass over."""

    def begin_epoch(self, batches: Local | Mix, epoch: int) -> None:
        """See `OrderedDataset`."""
        if number := epoch * (self.options.epochs or 1):
            batches.begin_epoch(number)

    def _pass_over(self, batches: Local | Mix, count: int, batch_size: int, world_size: int) -> None:
        batches.pass_over(count * batch_size, world_size)


class MixDataset(OrderedDataset):
    """Batches mixed of several datasets and tables, for `DataLoader(dataset, batch_size=None, num_workers=n)`: `rlds2reverb.mix` in workers.

    Workers make the batches in turn, each by the whole mix, and pass over the batches of the others: what is on disk is read by every worker,
    and decoded by one. Tables have no order: each worker samples for itself. Places without an item are as for `LocalDataset`.

    With `samples` every pass begins each part anew, in the order of its epoch. So give the parts shuffle="global", where each pass has other
    items: in order, or through a buffer, all passes would have items of the front of the part only.

    Args:
      parts: part -> weight, or pairs of them. A part is a `LocalDataset`, a `TableDataset` or another `MixDataset`, all without `map`; or
        anything that `local` takes, as 2-step items. Or a mixture file or a `Mixture`, whose sets are the parts. The mix's rank is that of
        its parts. Without `samples` a pass has no end.
      batch_size: samples per batch.
      map: called in the worker with every batch of tensors; what it returns is what the loader gives.
      options: the other fields of `MixOptions`, by name.

    Raises:
      ConfigError: parts, weights or options make no sense; a part is named twice, or is of another rank than the mix. Parts are opened when
        iterating begins, which raises as `mix` does.
    """

    options: MixOptions

    @takes_options(MixOptions)
    def __init__(
        self,
        parts: Parts,
        batch_size: int = MixOptions.batch_size,
        map: BatchFunction | None = None,  # noqa: A002  # as of `TableDataset`
        **options: Unpack[MixKeywords],
    ) -> None:
        super().__init__("MixDataset", map)
        parts, options = parts_of_mixture(parts, options, partial(LocalDataset, batch_size=batch_size))
        self.options = make_options(MixOptions, "MixDataset", batch_size, **options)
        self.parts: list[tuple[OrderedDataset | TableDataset, float]] = []
        for number, (part, weight) in enumerate(pairs_of(parts)):
            is_dataset = isinstance(part, (OrderedDataset, TableDataset))
            if is_dataset and part.map is not None:
                raise ConfigError(
                    f"MixDataset: part {number} has a map; expected it of the whole: MixDataset(parts, map=...)"
                )
            if isinstance(part, BatchIterator):
                raise ConfigError(
                    f"MixDataset: part {number} is a {type(part).__name__}, which is open in this process; expected what workers can open: "
                    "LocalDataset, TableDataset, MixDataset, or a source"
                )
            dataset = part if is_dataset else LocalDataset(part, batch_size=batch_size)
            self._check_ranks(number, dataset)
            self.parts.append((dataset, weight))
        if len({id(part) for part in self.leaves()}) < len(list(self.leaves())):
            raise ConfigError("MixDataset: a part is named twice; give it one weight")
        PartChoices(self.options.seed, [weight for _, weight in self.parts])  # wrong weights fail here, not in a worker
        self._report_fronts()

    def leaves(self) -> Iterator[LocalDataset | TableDataset]:
        """The parts that are no mixes, those of mixes within it, too."""
        for part, _ in self.parts:
            if isinstance(part, MixDataset):
                yield from part.leaves()
            elif isinstance(part, (LocalDataset, TableDataset)):
                yield part

    def identity(self) -> dict[str, Any]:
        """See `OrderedDataset`."""
        options = self.options
        parts = [{"table": part.table} if isinstance(part, TableDataset) else part.identity() for part, _ in self.parts]
        weights = PartChoices(options.seed, [weight for _, weight in self.parts]).shares.tolist()
        by_batch = {"batch_size": int(options.batch_size), "draws": options.draws} if options.by == BATCH else {}
        samples = None if options.samples is None else int(options.samples)
        return {"parts": parts, "weights": weights, "seed": int(options.seed), "samples": samples, **by_batch}

    def open_at(self, stack: ExitStack, position: State, turn: int, workers: int) -> Mix:
        """See `OrderedDataset`."""
        mixed = stack.enter_context(self._mix(stack, self.options.rank, self.options.world_size))
        self.restore(mixed, position)
        return mixed

    def skip_others(self, batches: Local | Mix, count: int) -> None:
        """See `OrderedDataset`."""
        for _ in range(count):
            batches.skip(self.options.batch_size)

    def begin_epoch(self, batches: Local | Mix, epoch: int) -> None:
        """See `OrderedDataset`."""
        batches.begin_epoch(epoch)

    def _mix(self, stack: ExitStack, rank: int, world_size: int) -> Mix:
        """The mix of the parts, each opened for this worker."""
        place = worker_place()
        pairs: list[tuple[BatchIterator, float]] = []
        for part, weight in self.parts:
            if isinstance(part, MixDataset):
                pairs.append((part._mix(stack, rank, world_size), weight))
            elif isinstance(part, LocalDataset):
                # Places are dealt also in a world of one rank: all workers must pass over the same places of what others were given.
                local_options = replace(part.options, rank=rank, world_size=world_size)
                pairs.append((part.make_local(local_options, Share(rank, world_size)), weight))
            elif isinstance(part, TableDataset):
                options = part.options_of(place.worker, place.workers, {"rank": rank, "world_size": world_size})
                pairs.append((part.sample(stack, options), weight))
        options_of_rank = replace(self.options, rank=rank, world_size=world_size)
        return mix(pairs, **{field.name: getattr(options_of_rank, field.name) for field in fields(options_of_rank)})

    def _check_ranks(self, number: int, part: OrderedDataset | TableDataset) -> None:
        """Raises ConfigError for a part of ranks of its own: the mix's would take their place, and all ranks might get the same samples."""
        if isinstance(part, TableDataset):
            ranks = part.options.get("rank", 0), part.options.get("world_size", 1)
        else:
            ranks = part.options.rank, part.options.world_size
        own = self.options.rank, self.options.world_size
        if ranks not in ((0, 1), own):
            raise ConfigError(
                f"MixDataset: part {number} is of rank={ranks[0]}, world_size={ranks[1]}, and the mix of rank={own[0]}, world_size={own[1]}; "
                "give them to the mix, which gives its own to all parts"
            )

    def _report_fronts(self) -> None:
        """Logs which parts give items of their front only."""
        in_order = [
            str(part.identity()["source"])
            for part, _ in self.parts
            if isinstance(part, LocalDataset) and not part.options.is_global
        ]
        if self.options.samples is not None and in_order:
            _logger.warning(
                'MixDataset: each pass of samples=%d begins %s at the front, so items further behind may never come; give shuffle="global", '
                "which begins each pass with other items, or leave out samples",
                self.options.samples,
                ", ".join(in_order),
            )
