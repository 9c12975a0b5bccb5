"""One epoch after another: what an epoch is, and the one that reads a source in order.

`Local` sees an `Epoch`: it takes items until there are none, and asks for the next one. An `InOrderEpoch` reads episodes once, in the
order of the source, and hands out their items through a shuffle buffer, which with shuffle=0 holds one item and so keeps the order.

Its position is what is read next and which items the buffer holds, each as (episode, item). Restoring reads these episodes again: from the
first of them on where the source can skip, else from the start. A digest of their ids shows data that changed under the same name.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.local.items import EpisodeItems, TakenItems, flat_batch, items_of
from rlds2reverb.learner.local.options import LocalOptions
from rlds2reverb.learner.local.orders import ShuffleBuffer, can_skip
from rlds2reverb.learner.local.shares import Share
from rlds2reverb.learner.states import State, count_in, digest, pairs_in
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.keys import ItemNames
from rlds2reverb.wire.sample.batches import FlatBatch

_Item = tuple[EpisodeItems, int]
"""An episode's items, and the number of one of them."""

_Draw = tuple[_Item, int]
"""An item, and the number of items that it was drawn from."""


class Epoch(Protocol):
    """One epoch, from some item on; `number` counts from 0.

    `repeated` counts samples that `deal` gave once more, in place of items of episodes that are left out.
    """

    number: int
    repeated: int

    @property
    def drawn(self) -> int:
        """Number of items that it gave."""

    @property
    def rejected(self) -> dict[str, int]:
        """Code of a problem -> number of episodes that were left out for it so far."""

    def take(self, count: int) -> FlatBatch | None:
        """The next items, at most `count`; None at the end."""

    def skip(self, count: int) -> int:
        """Passes over the next items, at most `count`, and cuts none; returns how many there were, 0 at the end."""

    def deal(self, count: int, start: int, share: Share | None) -> tuple[int, FlatBatch | None]:
        """Goes on by at most `count` places, which are those of a share from `start` on; gives the items at the places of the share.

        Without a share it gives none.

        Returns:
          How many places it went on, 0 at the end; and the items, None where no place is of the share.
        """

    def position(self) -> State:
        """Plain values that the class's `at` takes."""

    def restart(self, number: int) -> Epoch:
        """Closes this epoch, and begins another one of the same items, which reports no bad episode again."""

    def close(self) -> None:
        """Lets go of files and items."""


class InOrderEpoch:
    """An epoch in the order of the source, or through a shuffle buffer; an `Epoch`.

    Args:
      ready: the source, for one output with one table.
      first: episodes to pass over at the start; only where `can_skip`.
      silent_until: bad episodes before this one are in the quarantine file already.
    """

    def __init__(
        self, ready: Preparation, options: LocalOptions, number: int, first: int = 0, silent_until: int = 0
    ) -> None:
        self.number, self.repeated, self._ready, self._options = number, 0, ready, options
        self._policy = ready.options.policy()
        self._blocks = self._read(first, silent_until)
        self._current: EpisodeItems | None = None
        self._episode = self._item = 0  # what is read next
        self._buffer = ShuffleBuffer[_Item](options.buffer_size, options.seed, number)

    @classmethod
    def at(cls, ready: Preparation, options: LocalOptions, state: Mapping[str, Any]) -> InOrderEpoch:
        """The epoch at the position of a state; raises ConfigError if its items are not those of the source."""
        number, episode, item = (count_in(state, name) for name in ("epoch", "episode", "item"))
        held = pairs_in(state, "buffer")
        positions = [*held, (episode, item)] if item else held
        needed = {in_episode for in_episode, _ in positions}
        first = min([episode, *needed]) if can_skip(ready) else 0
        # Episodes before the position were reported when they were read first, and so were all of them in an earlier epoch.
        epoch = cls(ready if number == 0 else ready.silent(), options, number, first, episode)
        blocks = epoch._read_again(needed)
        for in_episode, place in positions:
            if place >= (count := len(blocks[in_episode].keys)):
                raise ConfigError(
                    f"restore: the state has item {place} of episode {in_episode}, which has {count}: other data"
                )
        if state.get("ids") != _digest_ids(blocks):
            raise ConfigError(
                "restore: the episodes that the state stands at are not those of this source: other data under the same name"
            )
        epoch._current, epoch._episode, epoch._item = blocks.get(episode) if item else None, episode, item
        in_buffer = [(blocks[in_episode], place) for in_episode, place in held]
        epoch._buffer = ShuffleBuffer(options.buffer_size, options.seed, number, in_buffer, count_in(state, "drawn"))
        return epoch

    @property
    def rejected(self) -> dict[str, int]:
        return dict(self._policy.rejected)

    @property
    def drawn(self) -> int:
        return self._buffer.drawn

    def take(self, count: int) -> FlatBatch | None:
        picked = list(islice(self._draws(), count))
        return self._batch(picked) if picked else None

    def skip(self, count: int) -> int:
        return sum(1 for _ in islice(self._draws(), count))

    def deal(self, count: int, start: int, share: Share | None) -> tuple[int, FlatBatch | None]:
        if share is None:
            return self.skip(count), None
        if share.is_whole:
            picked = list(islice(self._draws(), count))
            return len(picked), self._batch(picked) if picked else None
        own = frozenset((share.between(start, start + count) - start).tolist())
        advanced, picked = 0, []
        for place, draw in enumerate(islice(self._draws(), count)):
            advanced += 1
            if place in own:
                picked.append(draw)
        return advanced, self._batch(picked) if picked else None

    def _draws(self) -> Iterator[_Draw]:
        while (draw := self._buffer.next(self._next_read)) is not None:
            yield draw

    def _batch(self, picked: Sequence[_Draw]) -> FlatBatch:
        # Items of one episode are cut by one call of numpy: a call for each item would cost more than the copy.
        blocks = {id(block): block for (block, _), _ in picked}
        which = np.array([id(block) for (block, _), _ in picked], np.uint64)
        items = np.array([item for (_, item), _ in picked], np.int64)
        groups = [(block, np.flatnonzero(which == place)) for place, block in blocks.items()]
        among = np.array([among for _, among in picked], np.int64)
        return flat_batch([TakenItems.of(block, items[group], group) for block, group in groups], among, self.number)

    def position(self) -> State:
        held = [(block.number, item) for block, item in self._buffer.held]
        blocks = {block.number: block for block, _ in self._buffer.held}
        if self._item and self._current is not None:
            blocks[self._current.number] = self._current
        return {
            "epoch": self.number,
            "drawn": self._buffer.drawn,
            "episode": self._episode,
            "item": self._item,
            "buffer": [list(pair) for pair in held],
            "ids": _digest_ids(blocks),
        }

    def restart(self, number: int) -> InOrderEpoch:
        self.close()
        return InOrderEpoch(self._ready.silent(), self._options, number)

    def close(self) -> None:
        self._blocks.close()

    def _read(self, first: int, silent_until: int) -> Generator[EpisodeItems, None, None]:
        """The items of every episode that has any. Equal episodes have items of equal keys."""
        ready, silent = self._ready, self._ready.options.silent().policy()
        names, preparer = ItemNames(ready.outputs[0], ready.identity), ready.preparer(self._policy)
        for number, (episode, problems) in enumerate(ready.read(start=first), first):
            preparer.policy = silent if number < silent_until else self._policy
            block = items_of(number, preparer.prepare(episode, problems), names)
            if block is not None:
                yield block

    def _next_read(self) -> _Item | None:
        while self._current is None:
            block = next(self._blocks, None)
            if block is None:
                return None
            # Episodes before the position were read again for the buffer alone: their other items came already.
            if block.number >= self._episode:
                self._current, self._episode, self._item = block, block.number, 0
        item = self._current, self._item
        self._item += 1
        if self._item == len(self._current.keys):
            self._current, self._episode, self._item = None, self._episode + 1, 0
        return item

    def _read_again(self, needed: set[int]) -> dict[int, EpisodeItems]:
        """Reads up to the last of these episodes; number -> items. Raises ConfigError if one of them has no items."""
        blocks: dict[int, EpisodeItems] = {}
        while missing := needed - blocks.keys():
            block = next(self._blocks, None)
            if block is None or block.number > max(needed):
                raise ConfigError(
                    f"restore: the state has items of episode {min(missing)}, which has none here: other data"
                )
            if block.number in needed:
                blocks[block.number] = block
        return blocks


def _digest_ids(blocks: Mapping[int, EpisodeItems]) -> str:
    return digest(*(blocks[number].episode_id for number in sorted(blocks)))
