"""A dataset as batches without a server: what a table filled by a push of it would give, item by item, straight from disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.learner.batch import Batch, BatchIterator
from rlds2reverb.learner.items import Block, Picks, block_of
from rlds2reverb.learner.options import LIST, RAGGED, SampleOptions, check_count, check_pad, check_word
from rlds2reverb.learner.packing import Packing
from rlds2reverb.learner.states import State, check_state, count_in, digest, pairs_in, state_of
from rlds2reverb.prepare.cutting import outputs_of
from rlds2reverb.prepare.options import split_options
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.prepare.problems import ENDS_ALIKE
from rlds2reverb.push.keys import ItemNames
from rlds2reverb.specs import Nest
from rlds2reverb.views.registry import ViewLike
from rlds2reverb.wire.insert import TOP_BIT, keys, seed
from rlds2reverb.wire.messages import RateLimiter, TableInfo
from rlds2reverb.wire.sample.batches import FlatBatch, SampleInfo

SHUFFLED = 1024
"""Items of a shuffle buffer, where its size is not said."""


@dataclass(frozen=True)
class LocalOptions:
    """What `local` is told beside what episodes are to be (`EpisodeOptions`). Each field is a keyword of `local`.

    Attributes:
      batch_size: samples per batch.
      table: `info.key` has the keys that items of a push to the table of this name have.
      epochs: how often the source is read; None for no end.
      shuffle: items of the shuffle buffer; True for 1024, 0 or False for the order of the source.
      seed: of the shuffling; each epoch has an order of its own.
      drop_last: leave out the last batch where it is shorter than the others. Batches go across the ends of epochs.
      ragged, pad_to: as for `SampleOptions`.
      decode: decode images that the items hold encoded (`encoded=...`); False leaves their bytes.

    Raises:
      ConfigError: a number out of its range, or a word that is none of those above.
    """

    batch_size: int = 256
    _: KW_ONLY
    table: str = "replay"
    epochs: int | None = 1
    shuffle: int | bool = 0
    seed: int = 0
    drop_last: bool = False
    ragged: str = LIST
    pad_to: int | None = None
    decode: bool = True

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.epochs is not None:
            check_count("epochs", self.epochs)
        if self.shuffle is not False and self.shuffle != 0:
            check_count("shuffle", self.buffer_size)
        check_seed(self.seed)
        check_word("ragged", self.ragged, RAGGED)
        check_pad(self.pad_to, self.ragged)
        if not isinstance(self.table, str):
            raise ConfigError(f"local: table {self.table!r}: expected the name of one table")

    @property
    def buffer_size(self) -> int:
        """Items of the shuffle buffer; 0 without one."""
        return SHUFFLED if self.shuffle is True else self.shuffle


def check_seed(seed: object) -> None:
    """Refuses what `numpy.random.RandomState` does not take.

    Raises:
      ConfigError: no whole number from 0 to 2**32 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise ConfigError(f"seed {seed!r}: expected a whole number from 0 to 2**32 - 1")


# A small fixed buffer from which items are taken at random, as il-representations and webdataset do it.
#
# The buffer is filled first. Each draw takes one item out, and the next one takes its place; at the end of an epoch it runs empty. So an
# epoch is a permutation, and an item comes at most about so many places too early as the buffer has items. Every draw is a function of
# (seed, epoch, number of the draw): the items in the buffer and that number say all that there is to restore.

T = TypeVar("T")

_DRAWS_AT_ONCE = 1024
_BITS = 63
"""Of a draw."""


class ShuffleBuffer(Generic[T]):
    """The buffer during one epoch.

    Args:
      size: items; 0 keeps their order.
      seed_number, epoch: what the draws depend on.
      held: the items in it.
      drawn: items that were taken out.
    """

    def __init__(self, size: int, seed_number: int, epoch: int, held: list[T] | None = None, drawn: int = 0) -> None:
        self._size = max(1, size)
        self._seed = seed("shuffle", str(seed_number), str(epoch))
        self.held: list[T] = [] if held is None else held
        self.drawn = drawn
        self._draws: list[int] = []
        self._first_draw = drawn

    def next(self, more: Callable[[], T | None]) -> tuple[T, int] | None:
        """The next item, and from how many it was drawn; None at the end.

        Args:
          more: the next item of the epoch, None at its end.
        """
        while len(self.held) < self._size and (item := more()) is not None:
            self.held.append(item)
        if not (count := len(self.held)):
            return None
        place = self._draw() * count >> _BITS
        self.drawn += 1
        self.held[place], self.held[-1] = self.held[-1], self.held[place]
        return self.held.pop(), count

    def _draw(self) -> int:
        """A number of `_BITS` bits, for the draw that is next."""
        if not self._first_draw <= self.drawn < self._first_draw + len(self._draws):
            numbers = np.arange(self.drawn, self.drawn + _DRAWS_AT_ONCE)
            self._draws, self._first_draw = (keys(self._seed, numbers) & ~TOP_BIT).tolist(), self.drawn
        return self._draws[self.drawn - self._first_draw]


class Reading:
    """One pass over a source.

    Args:
      ready: the source, for one output with one table.
      first: episodes to pass over at the start; only where `can_skip`.
      silent_until: bad episodes before this one are not written into a quarantine file: they are there.

    Attributes:
      rejected: code of a problem -> episodes that were left out for it so far.
    """

    def __init__(self, ready: Preparation, first: int = 0, silent_until: int = 0) -> None:
        self._ready, self._first, self._silent_until = ready, first, silent_until
        self._preparer = ready.preparer()
        self._policy = self._preparer.policy

    @property
    def rejected(self) -> dict[str, int]:
        """Code of a problem -> episodes that were left out for it, without those before `silent_until`."""
        return dict(self._policy.rejected)

    def blocks(self) -> Generator[Block, None, None]:
        """The items, episode by episode; without the episodes that have none. Those of equal episodes have equal keys.

        Raises:
          InvalidEpisode, ViewError: an episode is bad, and the policy is to stop.
          SourceError: the data cannot be read.
          WireError: a column's dtype could not be stored.
        """
        (output,), preparer = self._ready.outputs, self._preparer
        names = ItemNames(output, self._ready.identity)
        silent = self._ready.options.silent().policy()
        for number, (episode, found) in enumerate(self._ready.read(start=self._first), self._first):
            preparer.policy = silent if number < self._silent_until else self._policy
            prepared = preparer.prepare(episode, found)
            if not prepared.is_good:
                continue
            names.take_in(prepared.key_name)
            (made,) = prepared.cuts
            if made.items_per_table:
                yield block_of(number, episode.id, names.part(made.cut))


def can_skip(ready: Preparation) -> bool:
    """Whether an episode's items are the same when those before it are not read.

    Items of streams depend on the episodes before. So does whether an episode is left out because it ends as others do; where that
    stops the reading instead, it leaves out nothing.
    """
    is_of_stream = any(output.is_of_stream for output in ready.outputs)
    return not is_of_stream and (ready.options.stops or ENDS_ALIKE in ready.options.allow)


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
