"""Orders in which items come: a shuffle buffer over a stream of them, or a permutation of the numbers of all.

An order is a function of (seed, epoch, position) and keeps nothing else. So a position of a few numbers restores it, on any machine.

| order | holds | an item comes | needs |
| --- | --- | --- | --- |
| `ShuffleBuffer` | its items | about as many draws early as the buffer has items, at most | a stream |
| `Permutation` of a `GlobalOrder` | nothing | anywhere in the epoch, equally likely | random access, and counts of items |

Random numbers are hashes of the draw's number (`wire.insert.keys`), not draws from a generator, whose state could only be stored whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.local.options import GLOBAL
from rlds2reverb.learner.states import digest
from rlds2reverb.prepare.preparation import Preparation, item_bounds
from rlds2reverb.prepare.problems import ENDS_ALIKE
from rlds2reverb.views.base import item_count_of
from rlds2reverb.wire.insert import TOP_BIT, keys, seed

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

    def __init__(self, ready: Preparation) -> None:
        self._ready, (self._output,) = ready, ready.outputs
        refused = f'{ready.source.name}: shuffle="{GLOBAL}": '
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
