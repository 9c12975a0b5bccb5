"""Orders in which items come: a shuffle buffer over a stream of them, or a permutation of the numbers of all.

An order is a function of (seed, epoch, position) and keeps nothing else. So a position of a few numbers restores it, on any machine.

| order | holds | an item comes | needs |
| --- | --- | --- | --- |
| `ShuffleBuffer` | its items | about as many draws early as the buffer has items, at most | a stream |
| `Permutation` of a `GlobalOrder` | nothing | anywhere in the epoch, equally likely | random access, and counts of items |
| `Draws` of a `DrawnOrder` | nothing, or all priorities | any number of times, by its priority | the same |

Random numbers are hashes of the draw's number (`wire.insert.keys`), not draws from a generator, whose state could only be stored whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.local.items import items_of
from rlds2reverb.learner.local.options import GLOBAL, UNIFORM, LocalOptions
from rlds2reverb.learner.states import digest
from rlds2reverb.prepare.preparation import Preparation, item_bounds
from rlds2reverb.prepare.problems import ENDS_ALIKE
from rlds2reverb.push.keys import ItemNames
from rlds2reverb.views.base import item_count_of
from rlds2reverb.wire.insert import TOP_BIT, keys, seed
from rlds2reverb.wire.sample.batches import FlatBatch

_T = TypeVar("_T")

_DRAWS_AT_ONCE = 1024  # numpy's overhead for one draw is that for a thousand
_BITS = 63  # of a draw; so that the draw times the items stays a whole number of Python, without a sign


class ShuffleBuffer(Generic[_T]):
    """A fixed buffer of one epoch, from which items are drawn at random, as il-representations and webdataset do it.

    The buffer is filled first. Each draw removes an item, and the next one takes its place; at the end of an epoch it runs empty. So an
    epoch is a permutation, and an item comes early by at most about the size of the buffer. Every draw is a function of
    (seed, epoch, number of the draw): the items in the buffer and that number are all there is to restore.
    """

    def __init__(self, size: int, seed_number: int, epoch: int, held: list[_T] | None = None, drawn: int = 0) -> None:
        self._size = max(1, size)
        self._seed = seed("shuffle", str(seed_number), str(epoch))
        self.held: list[_T] = [] if held is None else held
        self.drawn = drawn
        self._draws: list[int] = []
        self._first_draw = drawn

    def next(self, more: Callable[[], _T | None]) -> tuple[_T, int] | None:
        """Draws an item, and gives the number of items it was drawn from; None at the end.

        `more` gives the epoch's next item, or None.
        """
        while len(self.held) < self._size and (item := more()) is not None:
            self.held.append(item)
        if not (count := len(self.held)):
            return None
        place = self._draw() * count >> _BITS
        self.drawn += 1
        # Taken from the end, which moves no other item: a draw costs the same with a buffer of any size.
        self.held[place], self.held[-1] = self.held[-1], self.held[place]
        return self.held.pop(), count

    def _draw(self) -> int:
        """A random number of `_BITS` bits."""
        if not self._first_draw <= self.drawn < self._first_draw + len(self._draws):
            numbers = np.arange(self.drawn, self.drawn + _DRAWS_AT_ONCE)
            self._draws, self._first_draw = (keys(self._seed, numbers) & ~TOP_BIT).tolist(), self.drawn
        return self._draws[self.drawn - self._first_draw]


def can_skip(ready: Preparation) -> bool:
    """Whether an episode's items are the same when the episodes before it are not read.

    Items of streams depend on the episodes before. So does leaving out an episode because it ends like earlier ones; if that stops the
    reading instead, nothing is left out.
    """
    is_of_stream = any(output.is_of_stream for output in ready.outputs)
    return not is_of_stream and (ready.options.stops or ENDS_ALIKE in ready.options.allow)


_ROUNDS = 16
"""Rounds of the network. With 8, pairs of places among 5 numbers were off by a percent; with 12 no deviation could be measured."""


class Permutation:
    """The numbers below `count` in a random order, any part of which can be computed by itself; no array of `count` numbers is kept.

    A Feistel network over a range of 4**n numbers, with SplitMix64 as its function; a number beyond `count` is sent through again until it
    is one below (Black and Rogaway 2002, cycle walking).

    Args:
      names: of the order.
    """

    def __init__(self, count: int, *names: str) -> None:
        self._count = count
        bits = max(1, (count - 1).bit_length() + 1 >> 1)
        self._bits, self._mask = np.uint64(bits), np.uint64((1 << bits) - 1)
        self._seeds = [seed("permutation", *names, str(number)) for number in range(_ROUNDS)]

    def at(self, start: int, stop: int) -> Array:
        """[stop - start] int64, the numbers at these places."""
        return self.of(np.arange(start, stop))

    def of(self, places: Array) -> Array:
        """[n] int64, the numbers at these places [n]."""
        numbers = self._permute(places.astype(np.uint64))
        # The network permutes 4**n numbers, fewer than four times as many as are wanted, so few numbers need a second or third round.
        while len(beyond := np.flatnonzero(numbers >= self._count)):
            numbers[beyond] = self._permute(numbers[beyond])
        return numbers.astype(np.int64)

    def _permute(self, numbers: Array) -> Array:
        left, right = numbers >> self._bits, numbers & self._mask
        for round_seed in self._seeds:
            left, right = right, left ^ (keys(round_seed, right) & self._mask)
        permuted: Array = left << self._bits | right
        return permuted


class GlobalOrder:
    """The items of a source as numbers, of which `shuffle="global"` makes permutations.

    It needs a source that reads an episode by its number (`Source.has_random_access`), and a view that says how many items an episode of
    so many steps makes. If the source does not know the lengths of its episodes, all are read once to count them, at the first batch.

    An episode has as many numbers as its length allows, and at least one. A number whose item turns out not to exist, because the episode
    is left out, is passed over: what is left of a permutation is a permutation of what is left.

    Raises:
      ConfigError: the source or the view lacks what is needed, or whether an episode is good depends on those before it.
    """

    def __init__(self, ready: Preparation, options: LocalOptions) -> None:
        self._ready, self._options, (self._output,) = ready, options, ready.outputs
        asked = f'shuffle="{GLOBAL}"' if options.sampler is None else f'sampler="{options.sampler}"'
        refused = f"{ready.source.name}: {asked}: "
        way_out = "use a shuffle buffer, such as shuffle=10_000"
        view = self._output.view_name
        if not ready.source.has_random_access:
            raise ConfigError(
                f"{refused}episodes cannot be read by their numbers here; {way_out}, convert the data first (rlds2reverb convert), "
                "or mix sources that can (rlds2reverb.mix)"
            )
        if self._output.is_of_stream:
            raise ConfigError(f"{refused}items of {view} depend on the episodes before; {way_out}")
        if not can_skip(ready):
            raise ConfigError(
                f'{refused}with on_invalid="{ready.options.on_invalid}" an episode that ends like earlier ones is left out, which only '
                f'reading them in order shows; keep such episodes with allow=("{ENDS_ALIKE}",), or {way_out}'
            )
        if item_count_of(self._output.view, 0) is None:
            raise ConfigError(
                f"{refused}{view} does not say how many items it makes of an episode (`item_count`); {way_out}"
            )

    def places(self, epoch: int) -> Permutation | Draws:
        """The number at each place of an epoch."""
        return Permutation(self.count, str(self._options.seed), str(epoch))

    def inform(self, flat: FlatBatch, order: Permutation | Draws, places: Array, epoch: int) -> FlatBatch:
        """The samples with what is known of how they were chosen for these places of an epoch, of which `order` has the numbers."""
        return flat

    @property
    def count(self) -> int:
        """Numbers in all: at least as many as there are items."""
        return int(self.starts[-1])

    @property
    def episodes(self) -> int:
        """Number of episodes, good or bad."""
        return len(self.starts) - 1

    @cached_property
    def starts(self) -> Array:
        """[episodes + 1] int64: episode `e` has the numbers from `starts[e]` to `starts[e + 1]`."""
        lengths, view = self._ready.source.count_lengths(), self._output.view
        most = {rows: max(1, item_bounds(view, self._ready.options.conventions, rows)[1]) for rows in set(lengths)}
        return np.cumsum([0, *(most[rows] for rows in lengths)], dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        """Tells datasets apart whose episodes have other lengths."""
        return digest(self.starts.astype("<i8").tobytes().hex())


class Draws:
    """Numbers drawn with replacement: each place's is a function of the order's names and of that place.

    Args:
      count: of the numbers.
      cumulative: [count] float64 sums of their weights; None for equal ones.
      names: of the order.
    """

    def __init__(self, count: int, cumulative: Array | None, *names: str) -> None:
        self._count, self._cumulative = count, cumulative
        self._seed = seed("draws", *names)

    def at(self, start: int, stop: int) -> Array:
        """[stop - start] int64, the numbers at these places."""
        return self.of(np.arange(start, stop))

    def of(self, places: Array) -> Array:
        """[n] int64, the numbers at these places [n]."""
        bits = (keys(self._seed, places) & ~TOP_BIT) >> np.uint64(_BITS - _FRACTION_BITS)
        fractions = bits.astype(np.float64) / (1 << _FRACTION_BITS)
        if self._cumulative is None:
            numbers: Array = (fractions * self._count).astype(np.int64)
            return numbers
        # A number without weight adds nothing to the sums, so no draw stops at it; one that is rounded up to the total goes to the last with one.
        last = int(np.searchsorted(self._cumulative, self._cumulative[-1]))
        drawn = np.searchsorted(self._cumulative, fractions * self._cumulative[-1], "right")
        weighted: Array = np.minimum(drawn, last).astype(np.int64)
        return weighted


_FRACTION_BITS = 53  # of a float64


class DrawnOrder(GlobalOrder):
    """The items of a source as numbers, drawn with replacement: `sampler="uniform"` or "prioritized". An epoch is as many draws as numbers.

    Raises:
      ConfigError: as `GlobalOrder`.
    """

    def places(self, epoch: int) -> Draws:
        names = str(self._options.seed), str(epoch)
        return Draws(self.count, None if self._is_uniform else self._cumulative, *names)

    def inform(self, flat: FlatBatch, order: Permutation | Draws, places: Array, epoch: int) -> FlatBatch:
        """With the probability of a draw, the number of items, and the number of the draw as `times_sampled`: no two draws are the same."""
        if self._is_uniform:
            probability, size = np.full(len(places), 1 / self.count), self.count
        else:
            probability, size = self._weights[order.of(places)] / self._cumulative[-1], self._item_count
        draw = (epoch * self.count + places + 1) % (1 << 31)
        info = flat.info._replace(
            probability=probability, table_size=np.full(len(places), size), times_sampled=draw.astype(np.int32)
        )
        return FlatBatch(flat.columns, info)

    @cached_property
    def least_priority(self) -> float:
        """The smallest priority of an item above 0; 1 where none is."""
        above = self.priorities[self.priorities > 0]
        return float(above.min()) if len(above) else 1.0

    @cached_property
    def priorities(self) -> Array:
        """[count] float64 the priority of each number; NaN where it has no item. Reads all episodes."""
        ready = self._ready.silent()
        names, preparer = ItemNames(self._output, ready.identity), ready.preparer(ready.options.silent().policy())
        priorities = np.full(self.count, np.nan)
        for number, (episode, problems) in enumerate(ready.read(start=0)):
            block = items_of(number, preparer.prepare(episode, problems), names)
            if block is not None:
                first = int(self.starts[number])
                room = priorities[first : int(self.starts[number + 1])]
                room[: len(block.priorities)] = block.priorities[: len(room)]
        return priorities

    @property
    def _is_uniform(self) -> bool:
        return self._options.sampler == UNIFORM

    @cached_property
    def _item_count(self) -> int:
        return int(np.isfinite(self.priorities).sum())

    @cached_property
    def _cumulative(self) -> Array:
        return np.cumsum(self._weights)

    @cached_property
    def _weights(self) -> Array:
        """[count] float64 what the chance of each number is proportional to; as in a table, those of priority 0 come only while all are 0."""
        has_item = np.isfinite(self.priorities)
        raised = np.where(has_item, np.where(has_item, self.priorities, 0) ** self._options.exponent, 0)
        if not raised.any():
            raised = has_item.astype(np.float64)
        if not raised.any() or not np.isfinite(raised.sum()):
            raise ConfigError(
                f'{self._ready.source.name}: sampler="{self._options.sampler}": '
                + ("no item to draw" if not raised.any() else "priorities are too large for their exponent")
            )
        return raised


def order_of(ready: Preparation, options: LocalOptions) -> GlobalOrder | None:
    """The order of all items that the options ask for; None where items come as they are read. Raises as `GlobalOrder`."""
    if not options.is_global:
        return None
    return GlobalOrder(ready, options) if options.sampler is None else DrawnOrder(ready, options)
