"""A random order of all items, read in windows: what is held in memory is bounded, and files are read forwards.

A window is the next so many numbers of a `Permutation`. Its items lie in nearly as many episodes; these are read once, in the order of the
files, and only the window's items are kept of them, each put at its place. Batches are then runs of places. So an epoch of B bytes of items
reads an episode about B / `shuffle_bytes` + 1 times, and a larger window means less reading.

How many items a window may have is not known before some are there, since items differ in size. The first episode's items give a first
estimate, a window that grows too large is cut and the rest left to the next one, and each window tells the size of its successor. None of
that changes the order: it depends on the seed and the epoch only.

A rank or a worker has windows of its own places (`Share`), and so reads the episodes of its own items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.images import LazyImage, Size, load_images
from rlds2reverb.learner.local.items import TakenItems, items_of, sample_info
from rlds2reverb.learner.local.options import LocalOptions
from rlds2reverb.learner.local.orders import GlobalOrder
from rlds2reverb.learner.local.shares import Share
from rlds2reverb.learner.states import State, count_in, counts_in, digest
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.keys import ItemNames
from rlds2reverb.wire.sample.batches import Column, FlatBatch, join_batches, stack_values, take_rows

_EPISODES_PER_ITEM = 8
"""If there are so many times more episodes than items in a batch, the first window has the items of one batch only. So the first batch comes
early, and reading its episodes again for the next window is at most an eighth of all reading."""

_PLACE_BYTES = 64
"""Bytes that a place of a window costs beside its item: key, priority, size, flag, and the order's own numbers while it is sorted."""

_FILL = 0.9
"""Share of `shuffle_bytes` that a window is meant to fill. A window that grows too large is halved, and what it drops is read again by the
next one. That costs more than the tenth that stays free, which is for items that differ in size."""


class KeptEpisodes:
    """Episodes of which slices are cut, as they were prepared: each slice needs a whole one, and preparing it costs a hundred times more than cutting.

    Those that come first stay, as many as the bytes hold: draws at random need any of them equally often. Lazy images are not kept, whose pixels would
    stay with them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left, self._episodes = most_bytes, dict[int, tuple[str, TakenItems]]()

    def __contains__(self, number: int) -> bool:
        return number in self._episodes

    def keep(self, number: int, episode_id: str, items: TakenItems) -> None:
        """Keeps all items of an episode, if there is room."""
        is_plain = all(column.dtype != object for column in items.columns)
        if is_plain and items.nbytes <= self._left:
            self._left -= items.nbytes
            self._episodes[number] = episode_id, items

    def get(self, number: int) -> tuple[str, TakenItems]:
        """The id of an episode, and all of its items."""
        return self._episodes[number]


class ItemWindow:
    """Items at places of a random order, which are put there in any order; a place may stay empty.

    Args:
      is_listed: keeps items as arrays of their own, and gives batches as lists of them, not copied: for slices, which copy a part of each.
    """

    def __init__(self, count: int, is_listed: bool = False) -> None:
        self._is_listed = is_listed
        self._keys, self._priorities = np.empty(count, np.uint64), np.empty(count, np.float64)
        self._columns: list[Column] = []  # an array each, or a list of arrays once items differ in shape
        self._bytes = np.zeros(count, np.int64)  # of the item at each place
        self._is_there = np.zeros(count, bool)
        self.nbytes = 0

    @property
    def places(self) -> Array:
        """[n] int64, ascending, the places that have an item."""
        return np.flatnonzero(self._is_there)

    def put(self, taken: TakenItems) -> None:
        """Puts items at their places."""
        at = taken.places
        if not len(at):
            return
        if not self._columns:
            places = len(self._keys)
            self._columns = [
                [np.empty(0, values.dtype)] * places
                if self._is_listed
                else np.empty((places, *values.shape[1:]), values.dtype)
                for values in taken.columns
            ]
        for number, values in enumerate(taken.columns):
            column = self._columns[number]
            if isinstance(column, np.ndarray) and column.shape[1:] != values.shape[1:]:
                column = self._columns[number] = self._split(column)
            if isinstance(column, np.ndarray):
                column[at] = values
            else:
                for place, value in zip(at.tolist(), values):
                    column[place] = value
        self._keys[at], self._priorities[at], self._is_there[at] = taken.keys, taken.priorities, True
        # A mean of the episode's items: it only has to say what is left when the window is cut.
        self._bytes[at] = taken.nbytes // len(at)
        self.nbytes += taken.nbytes

    def lazy_images(self) -> list[Column]:
        """The columns with lazy images, see `LazyImage`."""
        first = self.places[:1]
        values = [np.asarray(column[int(first[0])]) if len(first) else np.empty(0) for column in self._columns]
        return [
            column
            for column, value in zip(self._columns, values)
            if value.dtype == object and any(isinstance(image, LazyImage) for image in value.flat)
        ]

    def cut(self, count: int) -> None:
        """Drops the items from this place on."""
        self._keys, self._priorities = self._keys[:count], self._priorities[:count]
        self._bytes, self._is_there = self._bytes[:count], self._is_there[:count]
        for number, column in enumerate(self._columns):
            self._columns[number] = column[:count].copy()  # a view would keep the memory of what is dropped
        self.nbytes = int(self._bytes.sum())

    def batch(self, places: Array, among: Array, epoch: int) -> FlatBatch:
        """The items at these places, in memory of their own; those of a window that is listed are the window's."""
        columns = tuple(self._take(column, places) for column in self._columns)
        return FlatBatch(columns, sample_info(self._keys[places], self._priorities[places], among, epoch))

    def _take(self, column: Column, places: Array) -> Column:
        if isinstance(column, np.ndarray):
            return column[places]
        values = [column[place] for place in places.tolist()]
        return values if self._is_listed else stack_values(values)

    def _split(self, column: Array) -> list[Array]:
        """An array for each place, so that items may differ in shape."""
        items = [np.empty(0, column.dtype)] * len(column)
        for place in self.places:
            items[place] = column[place, ...].copy()
        return items


class LoadingAhead:
    """Decodes the lazy images of a window some batches ahead: in a video, frames of many items are decoded together at little more than the cost of
    one.

    The first run is a batch, so that it comes early. Each run is four times as long as the one before, up to `most_bytes` of pixels.

    Args:
      window: the items.
      size: of the decoded images; None for their own.
    """

    def __init__(self, window: ItemWindow, size: Size | None, most_bytes: int) -> None:
        self._size, self._most_bytes = size, most_bytes
        self._images = window.lazy_images()  # columns of [places] arrays
        self._count = 0  # items of the last run
        self._end = -1  # the place up to which items are loaded
        self._loaded: dict[int, LazyImage] = {}

    def load(self, places: Array, count: int) -> None:
        """Loads the images of the first `count` of these ascending places, and of some more if one of them is not loaded."""
        if not self._images or not count or places[count - 1] <= self._end:
            return
        self._count = max(count, 4 * self._count)
        run = places[: self._count]
        images: dict[int, LazyImage] = {}
        size = 0
        for number, place in enumerate(run.tolist()):
            for column in self._images:
                for image in column[place].flat:
                    if id(image) not in images and isinstance(image, LazyImage):
                        images[id(image)] = image
                        size += math.prod(
                            image.shape if self._size is None else (self._size.height, self._size.width, image.shape[2])
                        )
            if size > self._most_bytes and number >= count:
                run = run[: number + 1]
                break
        for key in self._loaded.keys() - images.keys():
            self._loaded[key].pixels = None
        self._loaded, self._count, self._end = images, len(run), int(run[-1])
        with suppress(SourceError):  # raised by the batch that needs the image
            load_images(images.values(), self._size)


class PermutedEpoch:
    """An epoch in a random order of all items; an `Epoch`.

    Args:
      place: in the order, from which it goes on.
      drawn: items that came before `place`.
      bad: episodes that were left out already.
      size: items of the first window; 0 to find it out.
      kept: episodes of earlier epochs, where slices are cut.
    """

    def __init__(
        self,
        ready: Preparation,
        options: LocalOptions,
        order: GlobalOrder,
        number: int,
        place: int = 0,
        drawn: int = 0,
        bad: Iterable[int] = (),
        size: int = 0,
        kept: KeptEpisodes | None = None,
    ) -> None:
        self.number, self.drawn, self.repeated = number, drawn, 0
        self._ready, self._options, self._order, self._place, self._bad = ready, options, order, place, set(bad)
        self._policy = ready.options.policy()
        self._names, self._preparer = ItemNames(ready.outputs[0], ready.identity), ready.preparer(self._policy)
        self._permutation = order.places(number)
        self._size = size  # items that the next window may have
        # Whole episodes take half of the bytes then, and the window the other half.
        self._most_bytes = options.shuffle_bytes if options.slices is None else options.shuffle_bytes // 2
        self._kept = KeptEpisodes(0 if options.slices is None else self._most_bytes) if kept is None else kept
        self._window: ItemWindow | None = None
        self._ahead: LoadingAhead | None = None
        self._decoded_size = options.decode if isinstance(options.decode, Size) else None
        self._places = np.empty(0, np.int64)  # in the order, of each place of the window
        self._end = place  # of the order, up to which the window has the places of the share
        self._left = np.empty(0, np.int64)  # places of the window that are still to be given
        self._first: FlatBatch | None = None  # the first item of the order, once a batch without any needed it
        self._ids: dict[int, str] = {}  # of the window's episodes

    @classmethod
    def at(
        cls, ready: Preparation, options: LocalOptions, order: GlobalOrder, state: Mapping[str, Any]
    ) -> PermutedEpoch:
        """The epoch at the position of a state; raises ConfigError if its order is not one of this source."""
        number, place, drawn = (count_in(state, name) for name in ("epoch", "place", "drawn"))
        bad = counts_in(state, "bad")
        epoch = cls(ready if number == 0 else ready.silent(), options, order, number, place, drawn, bad)
        fits = place <= order.count and max(bad, default=-1) < order.episodes
        if fits and place:
            epoch._ids = {at: episode.id for at, episode in ready.source.at([epoch._last_episode()])}
        # A rank does not know the id of an item that another rank was given.
        digests = (epoch._digest(), digest(order.digest, "")) if fits else ()
        if state.get("ids") not in digests:
            raise ConfigError(
                "restore: the episodes that the state stands at are not those of this source: other data under the same name"
            )
        return epoch

    @property
    def rejected(self) -> dict[str, int]:
        return dict(self._policy.rejected)

    def take(self, count: int) -> FlatBatch | None:
        at = self._next_items(count, decodes=True)
        if self._window is None or not len(at):
            return None
        return self._batch_of(at)

    def skip(self, count: int) -> int:
        return len(self._next_items(count, decodes=False))

    def _next_items(self, count: int, decodes: bool) -> Array:
        """[n] int64, places of the window that have the next items, at most `count`; empty at the end. Their lazy images are decoded if asked."""
        while self._window is None or not len(self._left):
            if self._end == self._order.count:
                return self._left
            self._left = self._open_window(self._end, 0, Share()).places
        if decodes:
            self._load(self._left, count)
        at, self._left = self._left[:count], self._left[count:]
        self.drawn += len(at)
        self._place = int(self._places[at[-1]]) + 1
        return at

    def deal(self, count: int, start: int, share: Share | None) -> tuple[int, FlatBatch | None]:
        """A place without an item gets another item of the same batch once more: the next one that is there, or the first.

        No rank or worker knows what another one finds, and all must give equally many batches: a rank that gives fewer would let the
        others wait for ever. What stands in depends on the batch alone, so a batch is the same whichever worker makes it.
        """
        count = min(count, self._order.count - self._place)
        first = start - self._place  # of the share's places, where this epoch begins
        own = np.empty(0, np.int64) if share is None else share.between(start, start + count) - first
        batch = None if share is None or not len(own) else self._batch_at(own, first, share)
        self._place += count
        self.drawn += count
        return count, batch

    def _batch_at(self, places: Array, first: int, share: Share) -> FlatBatch | None:
        """The items of a batch at these places of the order, which are the share's; None if no episode at all is good."""
        parts: list[FlatBatch] = []
        are_there: list[Array] = []
        left = places
        while len(left):
            if self._window is None or left[0] >= self._end:
                self._open_window(int(left[0]), first, share)
            assert self._window is not None
            there = self._window.places
            here, left = np.split(left, [int(np.searchsorted(left, self._end))])
            is_there = np.isin(here, self._places[there], assume_unique=True)
            are_there.append(is_there)
            numbers = np.searchsorted(self._places[there], here[is_there])
            if len(at := there[numbers]):
                self._load(there[numbers[0] :], int(numbers[-1] - numbers[0]) + 1)
                parts.append(self._batch_of(at))
        has_item = np.concatenate(are_there)
        if has_item.all():
            return join_batches(parts)
        self.repeated += int(np.count_nonzero(~has_item))
        if len(with_item := np.flatnonzero(has_item)):
            batch, rows = join_batches(parts), np.searchsorted(with_item, np.arange(len(places))) % len(with_item)
        elif (item := self._first_item()) is not None:
            batch, rows = item, np.zeros(len(places), np.int64)
        else:
            return None
        batch = take_rows(batch, rows)
        info = sample_info(batch.info.key, batch.info.priority, self._order.count - places, self.number)
        return self._inform(FlatBatch(batch.columns, info), places)

    def _batch_of(self, at: Array) -> FlatBatch:
        """The items at these places of the window."""
        assert self._window is not None
        places = self._places[at]
        return self._inform(self._window.batch(at, self._order.count - places, self.number), places)

    def _inform(self, flat: FlatBatch, places: Array) -> FlatBatch:
        return self._order.inform(flat, self._permutation, places, self.number)

    def _first_item(self) -> FlatBatch | None:
        """The first item of the order, for a batch whose places have none; None if no episode is good."""
        place = 0
        while self._first is None and place < self._order.count:
            window, count = self._read(np.arange(place, min(self._order.count, place + self._most_places())))
            if len(at := window.places[:1]):
                self._first = window.batch(at, self._order.count - place - at, self.number)
            place += count
        return self._first

    def _load(self, places: Array, count: int) -> None:
        """Decodes the lazy images of the window's items at the first of these places, some batches in advance."""
        if self._ahead is not None:
            self._ahead.load(places, min(count, len(places)))

    def position(self) -> State:
        return {
            "epoch": self.number,
            "drawn": self.drawn,
            "place": self._place,
            "bad": sorted(self._bad),
            "ids": self._digest(),
        }

    def _digest(self) -> str:
        """Digests the lengths of all episodes, and the id of the one at the last place; "" where it was not read."""
        return digest(self._order.digest, self._ids.get(self._last_episode(), "") if self._place else "")

    def _last_episode(self) -> int:
        number = int(self._permutation.at(self._place - 1, self._place)[0])
        return int(np.searchsorted(self._order.starts, number, "right")) - 1

    def restart(self, number: int) -> PermutedEpoch:
        self.close()
        return PermutedEpoch(self._ready.silent(), self._options, self._order, number, size=self._size, kept=self._kept)

    def close(self) -> None:
        self._window = self._ahead = None

    def _open_window(self, place: int, first: int, share: Share) -> ItemWindow:
        """Reads the next window of a share's places, from this place on: as many as `shuffle_bytes` hold, and at least one.

        It may have no item. `first` is the place of the share where the order begins.
        """
        self._window, self._ahead, self._ids = None, None, {}  # first, or two windows would be in memory
        number, stop = share.count(first + place), share.count(first + self._order.count)
        places = share.at(np.arange(number, min(stop, number + self._most_places()))) - first
        window, count = self._read(places)
        self._window, self._places = window, places[:count]
        self._ahead = LoadingAhead(window, self._decoded_size, self._options.shuffle_bytes)
        next_place = share.at(np.array([number + count])) - first
        self._end = min(self._order.count, int(next_place[0]))
        return window

    def _most_places(self) -> int:
        """Places of the next window, as far as is known before it is read."""
        order, batch_size = self._order, self._options.batch_size
        first_size = batch_size if _EPISODES_PER_ITEM * batch_size <= order.episodes else order.count
        return min(self._size or first_size, max(1, self._options.shuffle_bytes // _PLACE_BYTES))

    def _read(self, order_places: Array) -> tuple[ItemWindow, int]:
        """A window of the first of these places, at least one, and their number."""
        count, most_bytes = len(order_places), self._most_bytes
        places, items = self._episodes_of(order_places)
        window: ItemWindow | None = None
        is_whole = False
        while not is_whole:
            # Asked anew after a cut: the rest of the list that the source was given has episodes which the smaller window does not need.
            unread = [number for number, at in places.items() if at[0] < count and number not in self._bad]
            is_whole = True
            for number, episode in self._read_episodes(unread):
                taken = self._take_from(number, episode, places.pop(number), items, count)
                if taken is None:
                    continue
                fits = count
                if window is None:
                    fits = max(1, min(count, most_bytes * len(taken.places) // max(1, taken.nbytes)))
                    window = ItemWindow(fits, self._options.slices is not None)
                    window.put(taken.before(fits))
                else:
                    window.put(taken)
                    while window.nbytes > most_bytes and fits > 1:
                        fits //= 2
                        window.cut(fits)
                if fits < count:
                    count, is_whole = fits, False
                    break
        window = ItemWindow(count, self._options.slices is not None) if window is None else window
        if window.nbytes:
            self._size = max(1, int(_FILL * most_bytes * len(window.places) / window.nbytes))
        return window, count

    def _episodes_of(self, order_places: Array) -> tuple[dict[int, Array], Array]:
        """Episode -> its places in a window, ascending; and [count] the number of the item at each place in its episode."""
        starts, numbers = self._order.starts, self._permutation.of(order_places)  # [count]
        episodes = np.searchsorted(starts, numbers, "right") - 1
        by_episode = np.argsort(episodes, kind="stable")
        each, begins = np.unique(episodes[by_episode], return_index=True)
        return dict(zip(each.tolist(), np.split(by_episode, begins[1:]))), numbers - starts[episodes]

    def _read_episodes(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode | None]]:
        """These episodes, with None for those that are kept."""
        yield from ((number, None) for number in numbers if number in self._kept)
        unread = [number for number in numbers if number not in self._kept]
        if unread:
            yield from self._ready.source.at(unread)

    def _take_from(
        self, number: int, episode: Episode | None, places: Array, items: Array, count: int
    ) -> TakenItems | None:
        """Takes an episode's items at these places, as far as they are below `count`; None if it has none of them. None for one that is kept."""
        if episode is None:
            self._ids[number], kept = self._kept.get(number)
            places = places[(places < count) & (items[places] < len(kept.keys))]
            return kept.pick(items[places], places) if len(places) else None
        self._ids[number] = episode.id
        block = items_of(number, self._preparer.prepare(episode), self._names)
        if block is None:
            self._bad.add(number)
            return None
        # The numbers of an order are given out by length; an item beyond them would be in no permutation, and be lost without a word.
        most = int(self._order.starts[number + 1] - self._order.starts[number])
        if len(block.keys) > most:
            raise SourceError(
                f"{self._ready.source.name}, episode {number}: makes {len(block.keys):,} items; expected at most {most:,} by its length as "
                "the dataset says it, or as it was counted: the data has changed, or its description is wrong; open it again"
            )
        if self._options.slices is not None:
            every = np.arange(len(block.keys))
            self._kept.keep(number, episode.id, TakenItems.of(block, every, every))
        places = places[(places < count) & (items[places] < len(block.keys))]
        return TakenItems.of(block, items[places], places) if len(places) else None
