"""One epoch of a local source: items in the order in which they are drawn, and where it stands."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.items import Block
from rlds2reverb.learner.local_options import LocalOptions
from rlds2reverb.learner.local_reading import Reading, can_skip
from rlds2reverb.learner.shuffle import ShuffleBuffer
from rlds2reverb.learner.states import State, count_in, digest, pairs_in
from rlds2reverb.prepare.preparation import Preparation

Item = tuple[Block, int]
"""An episode's items, and the number of one of them."""


class Pass:
    """One epoch, from some item on.

    Args:
      ready: the source, for one output with one table.
      options: how.
      epoch: its number, from 0.

    Attributes:
      epoch: as given.
    """

    def __init__(self, ready: Preparation, options: LocalOptions, epoch: int) -> None:
        self.epoch = epoch
        self._reading = Reading(ready)
        self._blocks: Generator[Block, None, None] = self._reading.blocks()
        self._current: Block | None = None
        self._episode = self._item = 0  # what is read next
        self._buffer = ShuffleBuffer[Item](options.buffer_size, options.seed, epoch)

    @classmethod
    def at(cls, ready: Preparation, options: LocalOptions, state: Mapping[str, Any]) -> Pass:
        """The pass where another one stood.

        Raises:
          ConfigError: the state's items are not those of the source.
        """
        episode, item, held = count_in(state, "episode"), count_in(state, "item"), pairs_in(state, "buffer")
        needed = {number for number, _ in held} | ({episode} if item else set())
        first = min([episode, *needed]) if can_skip(ready) else 0
        epoch = count_in(state, "epoch")
        there = cls(ready, options, epoch)
        there._reading = Reading(ready if epoch == 0 else ready.silent(), first, silent_until=episode)
        there._blocks = there._reading.blocks()
        blocks = there._found(needed)
        _check_items(state, blocks, [*held, *([(episode, item)] if item else [])])
        there._current, there._episode, there._item = blocks.get(episode) if item else None, episode, item
        there._buffer = ShuffleBuffer(
            options.buffer_size,
            options.seed,
            epoch,
            [(blocks[number], one) for number, one in held],
            count_in(state, "drawn"),
        )
        return there

    @property
    def rejected(self) -> dict[str, int]:
        """Code of a problem -> episodes that were left out for it so far."""
        return self._reading.rejected

    @property
    def drawn(self) -> int:
        """Items that it gave."""
        return self._buffer.drawn

    def next(self) -> tuple[Item, int] | None:
        """The next item, and from how many it was drawn; None at the end."""
        return self._buffer.next(self._next_read)

    def position(self) -> State:
        """Plain values that `at` takes."""
        held = [(block.number, item) for block, item in self._buffer.held]
        blocks = {block.number: block for block, _ in self._buffer.held}
        if self._item and self._current is not None:
            blocks[self._current.number] = self._current
        return {
            "epoch": self.epoch,
            "drawn": self._buffer.drawn,
            "episode": self._episode,
            "item": self._item,
            "buffer": [list(pair) for pair in held],
            "ids": _ids(blocks),
        }

    def close(self) -> None:
        """Closes what it reads."""
        self._blocks.close()

    def _next_read(self) -> Item | None:
        """The next item in the order of the source."""
        while self._current is None:
            block = next(self._blocks, None)
            if block is None:
                return None
            if block.number >= self._episode:
                self._current, self._episode, self._item = block, block.number, 0
        item = self._current, self._item
        self._item += 1
        if self._item == len(self._current):
            self._current, self._episode, self._item = None, self._episode + 1, 0
        return item

    def _found(self, needed: set[int]) -> dict[int, Block]:
        """Reads as far as the last of these episodes."""
        found: dict[int, Block] = {}
        while needed - found.keys():
            block = next(self._blocks, None)
            if block is None or block.number > max(needed):
                missing = min(needed - found.keys())
                raise ConfigError(f"restore: the state has items of episode {missing}, which has none here: other data")
            if block.number in needed:
                found[block.number] = block
        return found


def _ids(blocks: Mapping[int, Block]) -> str:
    return digest(*(blocks[number].episode_id for number in sorted(blocks)))


def _check_items(state: Mapping[str, Any], blocks: Mapping[int, Block], items: list[tuple[int, int]]) -> None:
    for number, item in items:
        if item >= len(blocks[number]):
            raise ConfigError(
                f"restore: the state has item {item} of episode {number}, which has {len(blocks[number])}: other data"
            )
    if state.get("ids") != _ids(blocks):
        raise ConfigError(
            "restore: the episodes that the state stands at are not those of this source: other data under the same name"
        )
