"""Batches of a dataset without a server: the items of a table that a push of it would fill, read straight from disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.images import SizeLike
from rlds2reverb.learner.batch import Batch, BatchIterator
from rlds2reverb.learner.options import LIST, RAGGED, SampleOptions, check_count, check_pad, check_word
from rlds2reverb.learner.packing import Packing
from rlds2reverb.learner.slices import ItemColumn, item_columns
from rlds2reverb.learner.states import State, check_state, count_in, digest, pairs_in, state_of
from rlds2reverb.prepare.options import split_options
from rlds2reverb.prepare.preparation import Preparation, outputs_of
from rlds2reverb.prepare.problems import ENDS_ALIKE
from rlds2reverb.push.keys import ItemNames
from rlds2reverb.specs import Nest
from rlds2reverb.views import ViewLike
from rlds2reverb.wire.codec import as_bytes, as_wire_array, wire_number
from rlds2reverb.wire.insert import TOP_BIT, Part, checked_span, item_fields, keys, keys_of_items, seed
from rlds2reverb.wire.messages import RateLimiter, TableInfo
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo, placed

SHUFFLED = 1024  # items of a shuffle buffer of no given size


@dataclass(frozen=True)
class LocalOptions:
    """Options of `local` beside those of the episodes (`EpisodeOptions`). Each field is a keyword of `local`.

    Attributes:
      batch_size: samples per batch.
      table: name of a table; `info.key` has the keys that a push to it would give its items.
      epochs: how often the source is read; None for no end.
      shuffle: items of the shuffle buffer; True for 1024, 0 or False for the order of the source.
      seed: of the shuffling; each epoch has an order of its own.
      drop_last: leave out the last batch where it is shorter than the rest. Batches extend across the ends of epochs.
      ragged, pad_to: as for `SampleOptions`.
      decode: decode images that the items hold encoded (`encoded=...`); False leaves their bytes, a size decodes to that size, as for
        `SampleOptions`.

    Raises:
      ConfigError: a number out of its range, or an unknown word.
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
    decode: bool | SizeLike = True

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
    """Raises ConfigError for a seed that `numpy.random.RandomState` does not take."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise ConfigError(f"seed {seed!r}: expected a whole number from 0 to 2**32 - 1")


_T = TypeVar("_T")

_DRAWS_AT_ONCE = 1024
_BITS = 63  # of a draw


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
        self.held[place], self.held[-1] = self.held[-1], self.held[place]
        return self.held.pop(), count

    def _draw(self) -> int:
        """A number of `_BITS` bits."""
        if not self._first_draw <= self.drawn < self._first_draw + len(self._draws):
            numbers = np.arange(self.drawn, self.drawn + _DRAWS_AT_ONCE)
            self._draws, self._first_draw = (keys(self._seed, numbers) & ~TOP_BIT).tolist(), self.drawn
        return self._draws[self.drawn - self._first_draw]


@dataclass(frozen=True, eq=False)
class _Block:
    """The items of one episode; `number` is its place in the source, `columns` are in the order of the signature."""

    number: int
    episode_id: str
    keys: Array  # [n] uint64
    priorities: Array  # [n] float64
    columns: Sequence[ItemColumn]

    @classmethod
    def of(cls, number: int, episode_id: str, part: Part) -> _Block:
        """The items that a table would get of an episode; `part` is for one table, and has items.

        Raises:
          ViewError: a window of the cut reaches outside its rows.
          WireError: a column's dtype could not be stored.
        """
        cut = part.cut
        checked_span(cut, item_fields(cut))
        rows = {path: _stored(column) for path, column in cut.rows.items()}
        (keys,) = keys_of_items(part).values()
        return cls(number, episode_id, keys, np.asarray(cut.priorities, np.float64), item_columns(cut, rows))


def _stored(column: Array) -> Array:
    """A column as it comes back from a table: C order, native byte order, text as bytes. Raises WireError if Reverb cannot store it."""
    wire_number(column.dtype)
    rows = as_wire_array(column)
    if rows.dtype != object:
        return rows
    return np.array([as_bytes(text) for text in rows.ravel()], object).reshape(rows.shape)


_Item = tuple[_Block, int]
"""An episode's items, and the number of one of them."""


class _Drawn(NamedTuple):
    """An item, the number of items that it was drawn from, and its epoch."""

    item: _Item
    among: int
    epoch: int


def _flat_batch(picked: Sequence[_Drawn]) -> FlatBatch:
    """The batch that a sampler would give of these items: [B, ...] where all of a column have one shape, else B arrays."""
    blocks = list({id(one.item[0]): one.item[0] for one in picked}.values())
    places = {id(block): place for place, block in enumerate(blocks)}
    which = np.array([places[id(one.item[0])] for one in picked], np.int64)  # [B] places in `blocks`
    items = np.array([one.item[1] for one in picked], np.int64)
    groups = [np.flatnonzero(which == place) for place in range(len(blocks))]
    key, priority = np.empty(len(picked), np.uint64), np.empty(len(picked), np.float64)
    for block, group in zip(blocks, groups):
        key[group], priority[group] = block.keys[items[group]], block.priorities[items[group]]
    columns: list[Column] = []
    for number in range(len(blocks[0].columns)):
        values = [block.columns[number].take(items[group]) for block, group in zip(blocks, groups)]
        columns.append(values[0] if len(values) == 1 else placed(values, groups, len(picked)))
    among = np.array([one.among for one in picked], np.int64)
    times = np.array([one.epoch + 1 for one in picked], np.int32)
    return FlatBatch(tuple(columns), SampleInfo(key, 1 / among, among, priority, times))


class _Epoch:
    """One epoch, from some item on.

    Args:
      ready: the source, for one output with one table.
      first: episodes to pass over at the start; only where `_can_skip`.
      silent_until: bad episodes before this one are in the quarantine file already.
    """

    def __init__(
        self, ready: Preparation, options: LocalOptions, number: int, first: int = 0, silent_until: int = 0
    ) -> None:
        self.number, self._ready = number, ready
        self._policy = ready.options.policy()
        self._blocks = self._read(first, silent_until)
        self._current: _Block | None = None
        self._episode = self._item = 0  # what is read next
        self._buffer = ShuffleBuffer[_Item](options.buffer_size, options.seed, number)

    @classmethod
    def at(cls, ready: Preparation, options: LocalOptions, state: Mapping[str, Any]) -> _Epoch:
        """The epoch at the position of a state; raises ConfigError if its items are not those of the source."""
        number, episode, item = (count_in(state, name) for name in ("epoch", "episode", "item"))
        held = pairs_in(state, "buffer")
        needed = {one for one, _ in held} | ({episode} if item else set())
        first = min([episode, *needed]) if _can_skip(ready) else 0
        there = cls(ready if number == 0 else ready.silent(), options, number, first, episode)
        blocks = there._found(needed)
        for one, place in [*held, *([(episode, item)] if item else [])]:
            if place >= len(blocks[one].keys):
                raise ConfigError(
                    f"restore: the state has item {place} of episode {one}, which has {len(blocks[one].keys)}: other data"
                )
        if state.get("ids") != _ids(blocks):
            raise ConfigError(
                "restore: the episodes that the state stands at are not those of this source: other data under the same name"
            )
        there._current, there._episode, there._item = blocks.get(episode) if item else None, episode, item
        there._buffer = ShuffleBuffer(
            options.buffer_size,
            options.seed,
            number,
            [(blocks[one], place) for one, place in held],
            count_in(state, "drawn"),
        )
        return there

    @property
    def rejected(self) -> dict[str, int]:
        """Code of a problem -> number of episodes that were left out for it so far."""
        return dict(self._policy.rejected)

    @property
    def drawn(self) -> int:
        """Number of items that it gave."""
        return self._buffer.drawn

    def next(self) -> tuple[_Item, int] | None:
        """The next item, and the number of items that it was drawn from; None at the end."""
        return self._buffer.next(self._next_read)

    def position(self) -> State:
        """Plain values that `at` takes."""
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
            "ids": _ids(blocks),
        }

    def close(self) -> None:
        self._blocks.close()

    def _read(self, first: int, silent_until: int) -> Generator[_Block, None, None]:
        """The items of every episode that has any. Equal episodes have items of equal keys."""
        ready, silent = self._ready, self._ready.options.silent().policy()
        names, preparer = ItemNames(ready.outputs[0], ready.identity), ready.preparer(self._policy)
        for number, (episode, found) in enumerate(ready.read(start=first), first):
            preparer.policy = silent if number < silent_until else self._policy
            prepared = preparer.prepare(episode, found)
            if not prepared.is_good:
                continue
            names.take_in(prepared.key_name)
            (made,) = prepared.cuts
            if made.items_per_table:
                yield _Block.of(number, episode.id, names.part(made.cut))

    def _next_read(self) -> _Item | None:
        while self._current is None:
            block = next(self._blocks, None)
            if block is None:
                return None
            if block.number >= self._episode:
                self._current, self._episode, self._item = block, block.number, 0
        item = self._current, self._item
        self._item += 1
        if self._item == len(self._current.keys):
            self._current, self._episode, self._item = None, self._episode + 1, 0
        return item

    def _found(self, needed: set[int]) -> dict[int, _Block]:
        """Reads up to the last of these episodes."""
        found: dict[int, _Block] = {}
        while needed - found.keys():
            block = next(self._blocks, None)
            if block is None or block.number > max(needed):
                missing = min(needed - found.keys())
                raise ConfigError(f"restore: the state has items of episode {missing}, which has none here: other data")
            if block.number in needed:
                found[block.number] = block
        return found


def _can_skip(ready: Preparation) -> bool:
    """Whether an episode's items are the same when those before it are not read.

    Items of streams depend on the episodes before. So does leaving out an episode because it ends like earlier ones; where that
    stops the reading instead, nothing is left out.
    """
    is_of_stream = any(output.is_of_stream for output in ready.outputs)
    return not is_of_stream and (ready.options.stops or ENDS_ALIKE in ready.options.allow)


def _ids(blocks: Mapping[int, _Block]) -> str:
    return digest(*(blocks[number].episode_id for number in sorted(blocks)))


_KIND, _VERSION = "local", 1


class Local(BatchIterator):
    """Iterates batches of a source's items, like a `Sampler` of a table that was filled with them. Made by `local`. Not thread-safe.

    `info` of a sample: `key` and `priority` as a push would store them; `times_sampled` counts the epochs; it was drawn from the
    `table_size` items of the shuffle buffer with `probability` 1 / `table_size` (1 of 1 without a buffer), so importance weights are 1.

    Args:
      ready: the source, for one output with one table.
      options: batches, epochs and shuffling.

    Attributes:
      options: as given.
      structure: of the samples, nest of `ArraySpec`: the signature of such a table.
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
        self._epoch = _Epoch(ready, options, 0)

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

    def next_batch(self) -> Batch | None:
        """Returns the next batch; None at the end.

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
        """Returns the next `count` samples in one batch; fewer before the end, None at the end. Raises as `next_batch` does."""
        picked: list[_Drawn] = []
        while len(picked) < count and (one := self._next_item()) is not None:
            picked.append(one)
        return self._packing.pack(_flat_batch(picked)) if picked else None

    def stop(self) -> None:
        """Ends it at once: the next batch is None. Nothing is prefetched, so unlike a `Sampler` it has nothing to `drain`."""
        self._is_stopped = True

    def close(self) -> None:
        """Ends it, and closes the source's files."""
        self._is_closed = True
        self._epoch.close()

    def restart(self) -> None:
        """Begins again with the first item of the source; in another order when shuffled, since epochs are counted on."""
        self._begin(self._epoch.number + (self._epoch.drawn > 0))
        self._until = None if self.options.epochs is None else self._epoch.number + self.options.epochs
        self._is_stopped = False

    def state(self) -> State:
        """Returns its position between two batches, as plain values for JSON."""
        return state_of(_KIND, self._of, _VERSION, until=self._until, **self._epoch.position())

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to the position of another one of the same arguments: the same batches follow.

        Earlier episodes are passed over where an episode's items depend on no other episode, and the source can do so
        (`tfds:`, `bundled:`, lists); else they are read, and not cut. Where they are passed over, two faults of the source are found
        only among the episodes that are read: ids that two episodes share, and ends that are not the episodes' own.

        Args:
          state: of `state()`.
          anew: without effect; everything here can be restored.

        Raises:
          ConfigError: a state of something else, of another version, or of other data; says in what it differs.
          SourceError: the data cannot be read.
        """
        checked = check_state(state, _KIND, self._of, _VERSION)
        until = None if checked.get("until") is None else count_in(checked, "until")
        if (until is None) != (self.options.epochs is None):
            raise ConfigError(f"restore: a state of epochs until {until}, expected epochs={self.options.epochs}")
        there = _Epoch.at(self._ready, self.options, checked)
        self._epoch.close()
        self._epoch, self._until, self._is_stopped = there, until, False

    @property
    def _of(self) -> dict[str, Any]:
        """What two `Local` must share for a position to mean the same."""
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

    def _next_item(self) -> _Drawn | None:
        while (
            not self._is_closed and not self._is_stopped and (self._until is None or self._epoch.number < self._until)
        ):
            if (drawn := self._epoch.next()) is not None:
                return _Drawn(*drawn, self._epoch.number)
            if self._until is None and not self._epoch.drawn:
                raise SourceError(f"{self.name}: no item in a whole epoch, so epochs without end give no batch")
            self._begin(self._epoch.number + 1)
        return None

    def _begin(self, epoch: int) -> None:
        self._epoch.close()
        self._epoch = _Epoch(self._ready.silent(), self.options, epoch)


def _full_table(name: str, signature: Nest) -> TableInfo:
    """The table that a push of the source would have filled, with sampler "fifo" and without an end."""
    limiter = RateLimiter(1.0, -math.inf, math.inf, 1, 0, 0)
    return TableInfo(name, "fifo", "fifo", 0, 0, 0, limiter, signature, 0, 0, 0)


def local(source: Any, view: ViewLike = "two_step", batch_size: int = LocalOptions.batch_size, **options: Any) -> Local:
    """Iterates batches of a dataset, without a server: `for data, info in rlds2reverb.local("tfds:my_dataset")`.

    Structure, dtypes, shapes and values are those of `client.sample` on a table filled by `client.push(source, view=view)`, in
    the order in which the push inserts them (a table with the sampler "fifo"), or shuffled.

    Args:
      source: anything that `push` takes.
      view: of the items, as for `push`.
      batch_size: samples per batch.
      options: the other fields of `LocalOptions`, and those of `EpisodeOptions`: on_invalid, quarantine, allow, strict, terminal_discount,
        last_reward, last_observation, encoded, transform.

    Raises:
      ConfigError: an unknown option, or one that makes no sense.
      SourceError, ViewError: as for a push.
    """
    chosen, episodes = split_options(LocalOptions, "local", {"batch_size": batch_size, **options})
    outputs = outputs_of(chosen.table, view)
    episodes.check_files()
    return Local(Preparation.open(source, episodes, outputs), chosen)
