"""Batches of a dataset without a server: the items of a table that a push of it would fill, read straight from disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from rlds2reverb.episode import Array, Episode, column_bytes
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.identity import Identity, IdentityLike, identity_of
from rlds2reverb.images import SizeLike
from rlds2reverb.keywords import refuse_unknown, takes_options
from rlds2reverb.learner.batch import Batch, BatchIterator
from rlds2reverb.learner.options import LIST, RAGGED, SampleOptions, check_count, check_pad, check_word
from rlds2reverb.learner.packing import Packing
from rlds2reverb.learner.slices import ItemColumn, item_columns
from rlds2reverb.learner.states import State, check_state, count_in, counts_in, digest, pairs_in, state_of
from rlds2reverb.prepare.options import EpisodeKeywords, EpisodeOptions
from rlds2reverb.prepare.preparation import Preparation, Prepared, item_bounds, outputs_of
from rlds2reverb.prepare.problems import ENDS_ALIKE
from rlds2reverb.push.keys import ItemNames
from rlds2reverb.specs import Nest
from rlds2reverb.views import ViewLike
from rlds2reverb.views.base import item_count_of
from rlds2reverb.wire.codec import as_bytes, as_wire_array, wire_number
from rlds2reverb.wire.insert import TOP_BIT, Part, checked_span, item_fields, keys, keys_of_items, seed
from rlds2reverb.wire.messages import RateLimiter, TableInfo
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo, joined_parts, placed, stacked

if TYPE_CHECKING:
    from typing_extensions import Unpack

SHUFFLED = 1024  # items of a shuffle buffer of no given size

GLOBAL = "global"
"""In place of the items of a shuffle buffer: a permutation of all items."""


@dataclass(frozen=True)
class LocalOptions(EpisodeOptions):
    """Options of `local`: those of the episodes, and a few more. Each field is a keyword of `local`.

    Attributes:
      batch_size: samples per batch.
      table: name of a table; `info.key` has the keys that a push to it would give its items.
      epochs: how often the source is read; None for no end.
      shuffle: items of the shuffle buffer; True for 1024, 0 or False for the order of the source. "global" makes each epoch a permutation of
        all items of the source, in which every item is equally likely at every position; see `local` for what it needs and costs.
      shuffle_bytes: most bytes of items that are held for shuffle="global". The order does not depend on it.
      seed: of the shuffling; each epoch has an order of its own.
      drop_last: leave out the last batch where it is shorter than the rest. Batches extend across the ends of epochs.
      ragged, pad_to: as for `SampleOptions`.
      identity: as for a push: what names an episode in place of its content, and so decides `info.key`.
      decode: decode images that the items hold encoded (`encoded=...`); False leaves their bytes, a size decodes to that size, as for
        `SampleOptions`.

    Raises:
      ConfigError: as `EpisodeOptions`; a number out of its range, or an unknown word.
    """

    batch_size: int = 256
    _: KW_ONLY
    table: str = "replay"
    epochs: int | None = 1
    shuffle: int | bool | str = 0
    shuffle_bytes: int = 512 << 20
    seed: int = 0
    drop_last: bool = False
    ragged: str = LIST
    pad_to: int | None = None
    decode: bool | SizeLike = True
    identity: IdentityLike = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("batch_size", self.batch_size)
        if self.epochs is not None:
            check_count("epochs", self.epochs)
        if isinstance(self.shuffle, str) and self.shuffle != GLOBAL:
            raise ConfigError(f'shuffle "{self.shuffle}": expected the items of a buffer, True or False, or "{GLOBAL}"')
        if self.shuffle not in (False, 0, GLOBAL):
            check_count("shuffle", self.buffer_size)
        check_count("shuffle_bytes", self.shuffle_bytes)
        check_seed(self.seed)
        check_word("ragged", self.ragged, RAGGED)
        check_pad(self.pad_to, self.ragged)
        _ = self.chosen_identity  # refuses what makes no sense
        if not isinstance(self.table, str):
            raise ConfigError(f"local: table {self.table!r}: expected the name of one table")

    @property
    def chosen_identity(self) -> Identity | None:
        """What names episodes; None for their content."""
        return identity_of(self.identity)

    @property
    def buffer_size(self) -> int:
        """Items of the shuffle buffer; 0 without one."""
        if self.shuffle is True:
            return SHUFFLED
        return 0 if isinstance(self.shuffle, str) else self.shuffle


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


class _Taken(NamedTuple):
    """Some items of one episode, in memory of their own."""

    places: Array  # [n] int64, of these items in a batch, ascending
    keys: Array  # [n] uint64
    priorities: Array  # [n] float64
    columns: Sequence[Array]  # each [n, ...]

    @classmethod
    def of(cls, block: _Block, items: Array, places: Array) -> _Taken:
        columns = [column.take(items) for column in block.columns]
        return cls(places, block.keys[items], block.priorities[items], columns)

    def before(self, end: int) -> _Taken:
        """Those of places before `end`."""
        if len(self.places) and self.places[-1] < end:
            return self
        kept = self.places < end
        return _Taken(self.places[kept], self.keys[kept], self.priorities[kept], [one[kept] for one in self.columns])

    @property
    def nbytes(self) -> int:
        return sum(map(column_bytes, self.columns))


def _flat_batch(parts: Sequence[_Taken], among: Array, epoch: int) -> FlatBatch:
    """The batch that a sampler would give of these items: [B, ...] where all of a column have one shape, else B arrays.

    Args:
      parts: have the places [0, B) together.
      among: [B] int64, the number of items that each was drawn from.
    """
    key, priority = np.empty(len(among), np.uint64), np.empty(len(among), np.float64)
    for part in parts:
        key[part.places], priority[part.places] = part.keys, part.priorities
    groups = [part.places for part in parts]
    columns: tuple[Column, ...] = tuple(parts[0].columns) if len(parts) == 1 else ()
    if len(parts) > 1:
        columns = tuple(placed(values, groups, len(among)) for values in zip(*(part.columns for part in parts)))
    return FlatBatch(columns, _info(key, priority, among, epoch))


def _info(key: Array, priority: Array, among: Array, epoch: int) -> SampleInfo:
    return SampleInfo(key, 1 / among, among, priority, np.full(len(among), epoch + 1, np.int32))


class _Epoch(Protocol):
    """One epoch, from some item on.

    Attributes:
      number: of the epoch, from 0.
      drawn: number of items that it gave.
    """

    number: int

    @property
    def drawn(self) -> int: ...

    @property
    def rejected(self) -> dict[str, int]:
        """Code of a problem -> number of episodes that were left out for it so far."""

    def take(self, count: int) -> FlatBatch | None:
        """The next items, at most `count`; None at the end."""

    def position(self) -> State:
        """Plain values that the class's `at` takes."""

    def again(self, number: int) -> _Epoch:
        """Another epoch of the same items, from its start, without reports of bad episodes; this one is closed."""

    def close(self) -> None: ...


class _InOrder:
    """An epoch in the order of the source, or through a shuffle buffer; an `_Epoch`.

    Args:
      ready: the source, for one output with one table.
      first: episodes to pass over at the start; only where `_can_skip`.
      silent_until: bad episodes before this one are in the quarantine file already.
    """

    def __init__(
        self, ready: Preparation, options: LocalOptions, number: int, first: int = 0, silent_until: int = 0
    ) -> None:
        self.number, self._ready, self._options = number, ready, options
        self._policy = ready.options.policy()
        self._blocks = self._read(first, silent_until)
        self._current: _Block | None = None
        self._episode = self._item = 0  # what is read next
        self._buffer = ShuffleBuffer[_Item](options.buffer_size, options.seed, number)

    @classmethod
    def at(cls, ready: Preparation, options: LocalOptions, state: Mapping[str, Any]) -> _InOrder:
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
        return dict(self._policy.rejected)

    @property
    def drawn(self) -> int:
        return self._buffer.drawn

    def take(self, count: int) -> FlatBatch | None:
        picked: list[tuple[_Item, int]] = []  # each with the number of items that it was drawn from
        while len(picked) < count and (one := self._buffer.next(self._next_read)) is not None:
            picked.append(one)
        if not picked:
            return None
        blocks = {id(block): block for (block, _), _ in picked}
        which = np.array([id(block) for (block, _), _ in picked], np.uint64)
        items = np.array([item for (_, item), _ in picked], np.int64)
        groups = [(block, np.flatnonzero(which == place)) for place, block in blocks.items()]
        among = np.array([among for _, among in picked], np.int64)
        return _flat_batch([_Taken.of(block, items[group], group) for block, group in groups], among, self.number)

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
            "ids": _ids(blocks),
        }

    def again(self, number: int) -> _InOrder:
        self.close()
        return _InOrder(self._ready.silent(), self._options, number)

    def close(self) -> None:
        self._blocks.close()

    def _read(self, first: int, silent_until: int) -> Generator[_Block, None, None]:
        """The items of every episode that has any. Equal episodes have items of equal keys."""
        ready, silent = self._ready, self._ready.options.silent().policy()
        names, preparer = ItemNames(ready.outputs[0], ready.identity), ready.preparer(self._policy)
        for number, (episode, found) in enumerate(ready.read(start=first), first):
            preparer.policy = silent if number < silent_until else self._policy
            block = _block_of(number, preparer.prepare(episode, found), names)
            if block is not None:
                yield block

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


def _block_of(number: int, prepared: Prepared, names: ItemNames) -> _Block | None:
    """The items of an episode; None where it is left out, or has none."""
    if not prepared.is_good:
        return None
    names.take_in(prepared.key_name)
    (made,) = prepared.cuts
    return _Block.of(number, prepared.episode.id, names.part(made.cut)) if made.items_per_table else None


def _can_skip(ready: Preparation) -> bool:
    """Whether an episode's items are the same when those before it are not read.

    Items of streams depend on the episodes before. So does leaving out an episode because it ends like earlier ones; where that
    stops the reading instead, nothing is left out.
    """
    is_of_stream = any(output.is_of_stream for output in ready.outputs)
    return not is_of_stream and (ready.options.stops or ENDS_ALIKE in ready.options.allow)


def _ids(blocks: Mapping[int, _Block]) -> str:
    return digest(*(blocks[number].episode_id for number in sorted(blocks)))


_ROUNDS = 16
"""Of the network. With 8, pairs of places among 5 numbers were found to be off by a percent; with 12 nothing was found any more."""


class Permutation:
    """The numbers from 0 to `count` in a random order, of which any part can be computed; nothing is kept.

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
        numbers = self._sent(np.arange(start, stop, dtype=np.uint64))
        while len(beyond := np.flatnonzero(numbers >= self._count)):
            numbers[beyond] = self._sent(numbers[beyond])
        return numbers.astype(np.int64)

    def _sent(self, numbers: Array) -> Array:
        left, right = numbers >> self._bits, numbers & self._mask
        for one in self._seeds:
            left, right = right, left ^ (keys(one, right) & self._mask)
        sent: Array = left << self._bits | right
        return sent


class GlobalOrder:
    """The items of a source as numbers, of which `shuffle="global"` makes permutations.

    It needs a source that reads an episode by its number (`Source.has_random_access`), and a view that says how many items an episode of
    so many steps makes. Where the source does not know the lengths of its episodes, all are read once to count them, at the first batch.

    An episode has the numbers that its length allows, and at least one. Numbers whose items turn out not to exist, because the episode is
    left out, are passed over: the rest of a permutation is a permutation of the rest.

    Raises:
      ConfigError: the source or the view has not what is needed, or whether an episode is good depends on those before it.
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
        if not _can_skip(ready):
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
        return int(self.starts[-1])

    @property
    def episodes(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def starts(self) -> Array:
        """[episodes + 1] int64: episode `e` has the numbers from `starts[e]` to `starts[e + 1]`."""
        lengths, view = self._ready.source.count_lengths(), self._output.view
        most = {rows: max(1, item_bounds(view, self._ready.options.conventions, rows)[1]) for rows in set(lengths)}
        return np.cumsum([0, *(most[rows] for rows in lengths)], dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        return digest(self.starts.astype("<i8").tobytes().hex())


class _Window:
    """Items at places of a random order, which are put there in any order; a place may stay empty."""

    def __init__(self, count: int) -> None:
        self._keys, self._priorities = np.empty(count, np.uint64), np.empty(count, np.float64)
        self._columns: list[Column] = []
        self._bytes = np.zeros(count, np.int64)  # of the item at each place
        self._is_there = np.zeros(count, bool)
        self.nbytes = 0

    @property
    def places(self) -> Array:
        """[n] int64, ascending, those that have an item."""
        return np.flatnonzero(self._is_there)

    def put(self, taken: _Taken) -> None:
        at = taken.places
        if not len(at):
            return
        if not self._columns:
            self._columns = [np.empty((len(self._keys), *one.shape[1:]), one.dtype) for one in taken.columns]
        for number, values in enumerate(taken.columns):
            column = self._columns[number]
            if isinstance(column, np.ndarray) and column.shape[1:] != values.shape[1:]:
                column = self._columns[number] = self._apart(column)
            if isinstance(column, np.ndarray):
                column[at] = values
            else:
                for place, value in zip(at.tolist(), values):
                    column[place] = value
        self._keys[at], self._priorities[at], self._is_there[at] = taken.keys, taken.priorities, True
        self._bytes[at] = taken.nbytes // len(at)
        self.nbytes += taken.nbytes

    def cut(self, count: int) -> None:
        """Drops the items from this place on."""
        self._keys, self._priorities = self._keys[:count], self._priorities[:count]
        self._bytes, self._is_there = self._bytes[:count], self._is_there[:count]
        for number, column in enumerate(self._columns):
            self._columns[number] = column[:count].copy()
        self.nbytes = int(self._bytes.sum())

    def batch(self, places: Array, among: Array, epoch: int) -> FlatBatch:
        """The items at these places, in memory of their own."""
        columns = (
            column[places] if isinstance(column, np.ndarray) else stacked([column[place] for place in places])
            for column in self._columns
        )
        return FlatBatch(tuple(columns), _info(self._keys[places], self._priorities[places], among, epoch))

    def _apart(self, column: Array) -> list[Array]:
        items = [np.empty(0, column.dtype)] * len(column)
        for place in self.places:
            items[place] = column[place, ...].copy()
        return items


class _Permuted:
    """An epoch in a random order of all items; an `_Epoch`.

    Items are held in windows of the order, each of at most `shuffle_bytes`. The episodes of a window are read once, in the order of the
    files, and only its items are kept.

    Args:
      place: in the order, from which it goes on.
      bad: episodes that were left out already.
      size: items of the first window; 0 to find it out.
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
    ) -> None:
        self.number, self.drawn = number, drawn
        self._ready, self._options, self._order, self._place, self._bad = ready, options, order, place, set(bad)
        self._policy = ready.options.policy()
        self._names, self._preparer = ItemNames(ready.outputs[0], ready.identity), ready.preparer(self._policy)
        self._permutation = Permutation(order.count, str(options.seed), str(number))
        self._start = self._end = place  # of the window in the order
        self._size = size  # items that the next window may have
        self._window: _Window | None = None
        self._left = np.empty(0, np.int64)  # places of the window that are still to be given
        self._ids: dict[int, str] = {}  # of the window's episodes

    @classmethod
    def at(cls, ready: Preparation, options: LocalOptions, order: GlobalOrder, state: Mapping[str, Any]) -> _Permuted:
        """The epoch at the position of a state; raises ConfigError if its order is not one of this source."""
        number, place, drawn = (count_in(state, name) for name in ("epoch", "place", "drawn"))
        bad = counts_in(state, "bad")
        there = cls(ready if number == 0 else ready.silent(), options, order, number, place, drawn, bad)
        fits = place <= order.count and max(bad, default=-1) < order.episodes
        if fits and place:
            last = there._last_episode()
            there._ids = {one: episode.id for one, episode in ready.source.at([last])}
        if not fits or state.get("ids") != there._digest():
            raise ConfigError(
                "restore: the episodes that the state stands at are not those of this source: other data under the same name"
            )
        return there

    @property
    def rejected(self) -> dict[str, int]:
        return dict(self._policy.rejected)

    def take(self, count: int) -> FlatBatch | None:
        while self._window is None or not len(self._left):
            if self._end == self._order.count:
                return None
            self._window, self._ids = None, {}  # before there is another one
            self._window = self._read()
            self._left = self._window.places
        places, self._left = self._left[:count], self._left[count:]
        self.drawn += len(places)
        self._place = self._start + int(places[-1]) + 1
        return self._window.batch(places, self._order.count - self._start - places, self.number)

    def position(self) -> State:
        return {
            "epoch": self.number,
            "drawn": self.drawn,
            "place": self._place,
            "bad": sorted(self._bad),
            "ids": self._digest(),
        }

    def _digest(self) -> str:
        """Of the lengths of all episodes, and of the one whose item was given last."""
        return digest(self._order.digest, self._ids[self._last_episode()] if self._place else "")

    def _last_episode(self) -> int:
        number = int(self._permutation.at(self._place - 1, self._place)[0])
        return int(np.searchsorted(self._order.starts, number, "right")) - 1

    def again(self, number: int) -> _Permuted:
        self.close()
        return _Permuted(self._ready.silent(), self._options, self._order, number, size=self._size)

    def close(self) -> None:
        self._window = None

    def _read(self) -> _Window:
        """The next window, of as many places as `shuffle_bytes` hold, and at least one. It may have no item."""
        start, order, most_bytes = self._end, self._order, self._options.shuffle_bytes
        batch = (
            self._options.batch_size
        )  # a first batch comes early, where reading its episodes is little of all reading
        most = max(1, most_bytes // _PLACE_BYTES)
        count = min(
            self._size or (batch if _EARLY * batch <= order.episodes else order.count), order.count - start, most
        )
        places, items = self._episodes_of(start, count)
        window: _Window | None = None
        is_whole = False
        while not is_whole:
            wanted = [one for one, at in places.items() if at[0] < count and one not in self._bad]
            is_whole = True
            for number, episode in self._ready.source.at(wanted) if wanted else ():
                taken = self._taken(number, episode, places.pop(number), items, count)
                if taken is None:
                    continue
                fits = count
                if window is None:
                    fits = max(1, min(count, most_bytes * len(taken.places) // max(1, taken.nbytes)))
                    window = _Window(fits)
                    window.put(taken.before(fits))
                else:
                    window.put(taken)
                    while window.nbytes > most_bytes and fits > 1:
                        fits //= 2
                        window.cut(fits)
                if fits < count:
                    count, is_whole = fits, False
                    break
        window = _Window(count) if window is None else window
        self._start, self._end = start, start + count
        if window.nbytes:
            self._size = max(1, int(_FILLED * most_bytes * len(window.places) / window.nbytes))
        return window

    def _episodes_of(self, start: int, count: int) -> tuple[dict[int, Array], Array]:
        """Episode -> its places in a window, ascending; and [count] the number of the item at each place in its episode."""
        starts, numbers = self._order.starts, self._permutation.at(start, start + count)  # [count]
        episodes = np.searchsorted(starts, numbers, "right") - 1
        by_episode = np.argsort(episodes, kind="stable")
        each, begins = np.unique(episodes[by_episode], return_index=True)
        return dict(zip(each.tolist(), np.split(by_episode, begins[1:]))), numbers - starts[episodes]

    def _taken(self, number: int, episode: Episode, places: Array, items: Array, count: int) -> _Taken | None:
        """The items at those of these places, all of one episode, that are below `count`; None where it has none of them."""
        self._ids[number] = episode.id
        block = _block_of(number, self._preparer.prepare(episode), self._names)
        if block is None:
            self._bad.add(number)
            return None
        most = int(self._order.starts[number + 1] - self._order.starts[number])
        if len(block.keys) > most:
            raise SourceError(
                f"{self._ready.source.name}, episode {number}: makes {len(block.keys):,} items; expected at most {most:,} by its length as "
                "the dataset says it, or as it was counted: the data has changed, or its description is wrong; open it again"
            )
        there = places[(places < count) & (items[places] < len(block.keys))]
        return _Taken.of(block, items[there], there) if len(there) else None


_EARLY = 8
"""A first window has the items of one batch where there are as many times more episodes."""

_PLACE_BYTES = 64
"""Of a place of a window, without its item."""

_FILLED = 0.9
"""Of the bytes for a window that are filled by the size of the items in the last one."""


_KIND, _VERSION = "local", 1


class Local(BatchIterator):
    """Iterates batches of a source's items, like a `Sampler` of a table that was filled with them. Made by `local`. Not thread-safe.

    An iterator, as Python has it: at its end a second `for` gives nothing. `restart()` begins again; `epochs` gives several passes at once.

    `info` of a sample: `key` and `priority` as a push would store them; `times_sampled` counts the epochs; it was drawn from the
    `table_size` items of the shuffle buffer with `probability` 1 / `table_size` (1 of 1 without a buffer), so importance weights are 1.
    With shuffle="global" these are the items that the epoch has still to give, those of bad episodes included.

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
        self._since = 0  # the epoch that it began with
        self._is_closed = self._is_stopped = False
        self._order = GlobalOrder(ready) if options.shuffle == GLOBAL else None
        self._begun: _Epoch | None = None

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
        parts: list[FlatBatch] = []
        while count and (part := self._next_part(count)) is not None:
            parts.append(part)
            count -= len(part)
        return self._packing.pack(joined_parts(parts)) if parts else None

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
        self._begun = self._epoch.again(self._epoch.number + (self._epoch.drawn > 0))
        self._since = self._epoch.number
        self._is_stopped = False

    def state(self) -> State:
        """Returns its position between two batches, as plain values for JSON."""
        return state_of(_KIND, self._of, _VERSION, since=self._since, **self._epoch.position())

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to the position of another one of the same arguments: the same batches follow.

        `epochs`, `batch_size` and `drop_last` may differ: a state is a position, and what follows ends after the epochs that were asked
        for here, those before the state included. So epochs=3 continues a finished run of epochs=1 with two more.

        Earlier episodes are passed over where an episode's items depend on no other episode, and the source can do so
        (`tfds:`, `bundled:`, lists); else they are read, and not cut. Where they are passed over, two faults of the source are found
        only among the episodes that are read: ids that two episodes share, and ends that are not the episodes' own.

        Args:
          state: of `state()`.
          anew: without effect; everything here can be restored.

        Raises:
          ConfigError: a state of something else, of another version, or of other data, which says in what it differs; or one that
            stands behind the last of `epochs`.
          SourceError: the data cannot be read.
        """
        checked = check_state(state, _KIND, self._of, _VERSION)
        since, epochs = count_in(checked, "since"), self.options.epochs
        begun = count_in(checked, "epoch") - since + (count_in(checked, "drawn") > 0)
        if epochs is not None and begun > epochs:
            raise ConfigError(
                f"restore: the state stands in epoch {begun}, after the end of epochs={epochs}; give epochs={begun} or more, or None"
            )
        if self._order is None:
            there: _Epoch = _InOrder.at(self._ready, self.options, checked)
        else:
            there = _Permuted.at(self._ready, self.options, self._order, checked)
        if self._begun is not None:
            self._begun.close()
        self._begun, self._since, self._is_stopped = there, since, False

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
            **({} if self.options.identity is None else {"identity": self.options.identity}),
            "shuffle": int(self.options.buffer_size) if self._order is None else GLOBAL,
            "seed": self.options.seed,
            "on_invalid": options.on_invalid,
            "allow": sorted(options.allow),
            "strict": options.strict,
        }

    @property
    def _epoch(self) -> _Epoch:
        """The current epoch; the first begins when it is asked for, since counting items may read all episodes."""
        if self._begun is None:
            self._begun = self._first_epoch()
        return self._begun

    def _first_epoch(self) -> _Epoch:
        if self._order is None:
            return _InOrder(self._ready, self.options, 0)
        return _Permuted(self._ready, self.options, self._order, 0)

    def _next_part(self, count: int) -> FlatBatch | None:
        """The next items, at least one and at most `count`; None at the end."""
        epochs = self.options.epochs
        while (
            not self._is_closed
            and not self._is_stopped
            and (epochs is None or self._epoch.number - self._since < epochs)
        ):
            if (part := self._epoch.take(count)) is not None:
                return part
            if epochs is None and not self._epoch.drawn:
                raise SourceError(f"{self.name}: no item in a whole epoch, so epochs without end give no batch")
            self._begun = self._epoch.again(self._epoch.number + 1)
        return None


def _full_table(name: str, signature: Nest) -> TableInfo:
    """The table that a push of the source would have filled, with sampler "fifo" and without an end."""
    limiter = RateLimiter(1.0, -math.inf, math.inf, 1, 0, 0)
    return TableInfo(name, "fifo", "fifo", 0, 0, 0, limiter, signature, 0, 0, 0)


class LocalKeywords(EpisodeKeywords, total=False):
    """`LocalOptions` as keywords, without `batch_size`."""

    table: str
    epochs: int | None
    shuffle: int | bool | str
    shuffle_bytes: int
    seed: int
    drop_last: bool
    ragged: str
    pad_to: int | None
    decode: bool | SizeLike
    identity: IdentityLike


@takes_options(LocalOptions)
def local(
    source: Any,
    view: ViewLike = "two_step",
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
      view: of the items, as for `push`.
      batch_size: samples per batch.
      options: the other fields of `LocalOptions`.

    Raises:
      ConfigError: an unknown option, or one that makes no sense; or shuffle="global" of a source or a view that has not what it needs.
      SourceError, ViewError: as for a push.
    """
    refuse_unknown("local", options, LocalOptions)
    chosen = LocalOptions(batch_size, **options)
    outputs = outputs_of(chosen.table, view)
    chosen.check_files()
    return Local(Preparation.open(source, chosen, outputs, chosen.chosen_identity), chosen)
