"""Mixes samples: tables, datasets on disk, and other mixes, by weights that a seed draws with.

`by="item"` is il-representations' InterleavedDataset: each sample is of a part drawn for it; a part at its end begins again.
`by="batch"` is TorchRL's ReplayBufferEnsemble: for each batch some parts are drawn, with replacement, and each gives an equal share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, Rlds2ReverbError
from rlds2reverb.learner.batch import Batch, BatchInfo, BatchIterator, columns_of, in_structure, paths_of
from rlds2reverb.learner.joining import Feed, Interleave, Iterated, Repeated
from rlds2reverb.learner.local import Local, check_seed, local
from rlds2reverb.learner.options import LIST, RAGGED, check_count, check_pad, options_of
from rlds2reverb.learner.states import State, check_state, count_in, state_of
from rlds2reverb.specs import Nest, flatten

ITEM, BATCH = "item", "batch"
BY = (ITEM, BATCH)


@dataclass(frozen=True)
class MixOptions:
    """Everything about a mix but its parts. Each field is a keyword of `mix`.

    Attributes:
      batch_size: samples per batch.
      seed: of the choices between parts.
      by: "item": each sample is of a part chosen for it alone; "batch": parts are chosen for runs of samples of a batch.
      samples: how many in all; None for no end.
      drop_last: leave out the last batch where it is shorter than the others.
      draws: by "batch": how many runs a batch has; None for as many as there are parts. A part may be drawn more than once.
      sample_from_all: by "batch": one run of every part, in their order, whatever their weights.
      stacked: by "batch": [draws, batch_size / draws, ...] instead of [batch_size, ...].
      ragged, pad_to: as for `SampleOptions`, of the whole batch.

    Raises:
      ConfigError: a number out of its range, a word that is none of those above, or options that do not go together.
    """

    batch_size: int = 256
    _: KW_ONLY
    seed: int = 0
    by: str = ITEM
    samples: int | None = None
    drop_last: bool = False
    draws: int | None = None
    sample_from_all: bool = False
    stacked: bool = False
    ragged: str = LIST
    pad_to: int | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_seed(self.seed)
        for name in ("samples", "draws"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name, words in (("by", BY), ("ragged", RAGGED)):
            if getattr(self, name) not in words:
                raise ConfigError(f"mix: {name} {getattr(self, name)!r}: expected one of {', '.join(words)}")
        check_pad(self.pad_to, self.ragged)
        if self.by == ITEM and (self.draws is not None or self.sample_from_all or self.stacked):
            raise ConfigError('mix: draws, sample_from_all and stacked are of by="batch"; give that, or leave them out')
        if self.sample_from_all and self.draws is not None:
            raise ConfigError("mix: sample_from_all draws every part once; leave out draws")

    def draws_of(self, parts: int) -> int:
        """Runs of a batch.

        Raises:
          ConfigError: the batch cannot be cut into so many equal ones, or all samples into whole batches.
        """
        draws = parts if self.draws is None else self.draws
        if self.batch_size % draws:
            raise ConfigError(
                f"mix: batch_size {self.batch_size} cannot be divided by the {draws} parts that a batch is drawn from; change it, or draws"
            )
        if self.samples is not None and self.samples % self.batch_size:
            raise ConfigError(
                f'mix: samples {self.samples}: by="batch" gives whole batches only; expected a multiple of {self.batch_size}'
            )
        return draws


_KIND, _VERSION = "mix", 1


class Mix(BatchIterator):
    """Iterates batches of samples of several parts. Made by `mix`. Close it, or use it as a context manager. Not thread-safe.

    Samples of a part come in the order in which it gives them. `info.source` says of which part a sample is; all else in `info` is as
    the part tells it: `probability` and `table_size` are those within the part. Where some parts tell a `weight` or a `mask`,
    those of the others are 1, and true for all rows that an item has; `start` is None then, as is all that only some tell.

    Args:
      feeds: the parts, numbered from 0.
      weights: one per part.
      options: how.

    Raises:
      ConfigError: weights or options that make no sense.
      SpecMismatch: the items of two parts differ, as far as the parts tell of them; else the first batch raises it.
    """

    def __init__(self, feeds: Sequence[Feed], weights: Sequence[float], options: MixOptions) -> None:
        if len(feeds) != len(weights):
            raise ConfigError(f"mix: {len(weights)} weights for {len(feeds)} parts; expected one each")
        self.options, self._choices = options, Choices(options.seed, weights)
        self._weights = [float(share) for share in self._choices.shares]
        self._draws = options.draws_of(len(feeds)) if options.by != ITEM else 0
        self._parts = Interleave(feeds, options.ragged, options.pad_to)
        self._given = 0
        self._is_closed = self._is_stopped = False

    @property
    def structure(self) -> Nest | None:
        """Nest of the samples, as a table's signature; None before the first batch where no part tells it."""
        return self._parts.structure

    @property
    def name(self) -> str:
        """What people call it."""
        return f"mix of {', '.join(feed.name for feed in self._parts.feeds)}"

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end. After an error of a part the same batch is made on, with what had come for it.

        Raises:
          ConfigError: a part is empty, or pads its samples.
          SpecMismatch: the items of two parts differ.
          Rlds2ReverbError: as the parts do.
        """
        size = self.options.batch_size
        batch = self._next(size if self._draws == 0 else self._draws, size)
        if batch is None or (batch.size < size and (self.options.drop_last or self.options.stacked)):
            return None
        return _stacked(batch, self._draws, self.structure) if self.options.stacked else batch

    def take(self, count: int) -> Batch | None:
        """The next so many samples in one batch; fewer before the end, None at the end. Raises as `next_batch` does.

        After an error the batch that it left unfinished comes first, with as many samples as were asked for then.

        Raises:
          ConfigError: by "batch", `count` is not that of whole batches.
        """
        if self._draws and count != self.options.batch_size:
            raise ConfigError(
                f'mix: by="batch" gives batches of {self.options.batch_size} samples; it cannot be part of a mix by items'
            )
        return self._next(self._draws or count, count)

    def stop(self) -> None:
        """Ends it at once: the next batch is None. The parts hear nothing of it before `close`.

        What its parts had asked for ahead is theirs: `stop` and `drain` a `Sampler` that is a part where no sample may get lost, before
        the mix is closed.
        """
        self._is_stopped = True

    def close(self) -> None:
        """Ends it, and closes all parts."""
        self._is_closed = True
        self._parts.close()

    def state(self) -> State:
        """Where it stands, between two batches: plain values, for JSON. Of tables of a server there is nothing to keep but their names.

        Raises:
          ConfigError: an error left it within a batch.
        """
        if self._parts.is_begun:
            raise ConfigError(
                "mix: state: an error came between, and the batch is not complete; expected that it is taken first: next_batch()"
            )
        parts = [feed.state() for feed in self._parts.feeds]
        return state_of(_KIND, self._of, _VERSION, chosen=self._choices.made, given=self._given, parts=parts)

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to where another one of the same arguments stood: the same batches follow.

        What comes from sources is the same to the bit, and so is which part each sample is of. Samples of a server's tables are not:
        the server draws them, and keeps no account of it.

        Args:
          state: of `state()`.
          anew: restore all the same where there are tables, and continue with what they give now.

        Raises:
          ConfigError: a state of something else, of another version, or of other data; or there are tables, and `anew` is false.
          SourceError: the data cannot be read.
        """
        checked = check_state(state, _KIND, self._of, _VERSION)
        parts = checked.get("parts")
        feeds = self._parts.feeds
        if not isinstance(parts, (list, tuple)) or len(parts) != len(feeds):
            raise ConfigError(f"restore: the state has no list of {len(feeds)} parts")
        chosen, given = count_in(checked, "chosen"), count_in(checked, "given")
        for feed, part in zip(feeds, parts):
            feed.check(part, anew)
        self._restore_parts(parts, anew)
        self._parts.drop()
        self._choices.go_to(chosen)
        self._given, self._is_stopped, self._parts.is_over = given, False, False

    @property
    def _of(self) -> dict[str, Any]:
        """What two of them must share for a position to mean the same."""
        options = self.options
        return {
            "parts": [feed.name for feed in self._parts.feeds],
            "weights": self._weights,
            "seed": options.seed,
            "by": options.by,
            "draws": self._draws,
            "batch_size": options.batch_size if self._draws else None,
            "sample_from_all": options.sample_from_all,
        }

    def _restore_parts(self, parts: Sequence[Mapping[str, Any]], anew: bool) -> None:
        """All parts, or none: those that went there come back where a later one cannot."""
        feeds = self._parts.feeds
        before = [_state_of(feed) for feed in feeds]
        for number, feed in enumerate(feeds):
            try:
                feed.restore(parts[number], anew)
            except Rlds2ReverbError:
                for moved, was in zip(feeds[:number], before):
                    if was is not None:
                        moved.restore(was, anew=True)
                raise

    def _next(self, draws: int, count: int) -> Batch | None:
        """The next batch, of `count` samples in `draws` runs; or that which an error came between."""
        left = count if self.options.samples is None else min(count, self.options.samples - self._given)
        if left <= 0 or self._is_closed or self._is_stopped or self._parts.is_over:
            return None
        if not self._parts.is_begun:
            parts = self._drawn(min(draws, left))
            self._parts.begin(np.repeat(parts, left // len(parts)))
        batch = self._parts.finish()
        self._given += 0 if batch is None else batch.size
        return batch

    def _drawn(self, count: int) -> Array:
        return np.arange(count) if self.options.sample_from_all else self._choices.take(count)


def _state_of(feed: Feed) -> State | None:
    """Where a part stands; None of a mix that an error left within a batch."""
    try:
        return feed.state()
    except ConfigError:
        return None


def _stacked(batch: Batch, draws: int, structure: Nest) -> Batch:
    """[B, ...] -> [draws, B / draws, ...], everywhere."""
    columns = columns_of(batch.data, paths_of(batch.data, structure))
    for path, column in zip(flatten(structure), columns):
        if isinstance(column, list):
            raise ConfigError(
                f'mix: column "{path}" has items of several shapes, which cannot be stacked; give ragged="pad"'
            )

    def fold(values: Any) -> Any:
        if isinstance(values, Mapping):
            return {name: fold(inside) for name, inside in values.items()}
        return values.reshape(draws, len(values) // draws, *values.shape[1:])

    fields: list[Any] = [None if values is None else fold(values) for values in batch.info]
    return Batch(in_structure(map(fold, columns), structure), BatchInfo(*fields))


def mix(
    parts: Mapping[Any, float] | Sequence[tuple[Any, float]], batch_size: int = MixOptions.batch_size, **options: Any
) -> Mix:
    """Batches of samples of several tables and datasets: `mix({client.sample("online"): 3, local("tfds:demos"): 1}, 256, seed=1)`.

    Args:
      parts: part -> weight, or pairs of them where a part cannot be a key. A part is a `Sampler`, a `Local`, another mix, an iterator or
        a list of `Batch`; (client, "table"), which is sampled with the mix's batch size; or anything that `local` takes, as 2-step items.
      batch_size: samples per batch.
      options: the other fields of `MixOptions`, by name.

    Returns:
      An iterator of `Batch`; close it, or use it as a context manager: that closes the parts.

    Raises:
      ConfigError: parts, weights or options that make no sense.
      SpecMismatch: the items of two parts differ, as far as the parts tell of them; else the first batch raises it.
    """
    chosen = options_of(MixOptions, "mix", batch_size, **options)
    pairs = (
        list(parts.items()) if isinstance(parts, Mapping) else [_pair(number, one) for number, one in enumerate(parts)]
    )
    weights = [weight for _, weight in pairs]
    Choices(chosen.seed, weights)  # refuses them before anything is opened
    feeds = [_feed(number, part, chosen) for number, (part, _) in enumerate(pairs)]
    if len({id(feed.batches) for feed in feeds}) < len(feeds):
        raise ConfigError("mix: a part is named twice; give it one weight")
    return Mix(feeds, weights, chosen)


def _pair(number: int, given: Any) -> tuple[Any, float]:
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise ConfigError(f"mix: part {number}: expected a pair of a part and its weight, got {type(given).__name__}")
    return given[0], given[1]


def _feed(number: int, part: Any, options: MixOptions) -> Feed:
    if isinstance(part, tuple) and len(part) == 2 and hasattr(part[0], "sample"):
        client, table = part
        return Feed(number, client.sample(table, options.batch_size), f"table {table}")
    if hasattr(part, "next_batch"):
        return Feed(number, part, _name_of(part))
    if isinstance(part, Iterator):
        return Feed(number, Iterated(part), _name_of(part))
    if isinstance(part, (list, tuple)) and part and all(isinstance(one, Batch) for one in part):
        return Feed(number, Repeated(part), "batches")
    made: Local = local(part, batch_size=options.batch_size)
    return Feed(number, made, made.name)


def _name_of(part: Any) -> str:
    name = getattr(part, "name", None)
    return name if isinstance(name, str) else type(part).__name__


_AT_ONCE = 1 << 20
"""Choices that are made again at a time, to come to a place."""


class Choices:
    """The sequence of parts that samples come from, decided by the seed and the weights, and found again at any place.

    Draws with replacement: `RandomState(seed).randint` where all weights are equal, as il-representations' InterleavedDataset; else `choice` with p.

    Args:
      seed: of the draws.
      weights: one per part.

    Raises:
      ConfigError: as `shares_of`.

    Attributes:
      made: draws so far.
      shares: [n] float64, weights that add up to 1.
    """

    def __init__(self, seed: int, weights: Sequence[float]) -> None:
        self._seed, self._random = seed, np.random.RandomState(seed)
        self.made = 0
        self.shares = shares_of(weights)
        self._are_equal = len(set(weights)) == 1

    def take(self, count: int) -> Array:
        """[count] int64 numbers of parts."""
        self.made += count
        if self._are_equal:
            return self._random.randint(len(self.shares), size=count)
        return self._random.choice(len(self.shares), size=count, p=self.shares)

    def go_to(self, made: int) -> None:
        """Goes to where so many draws were made."""
        self._random, self.made = np.random.RandomState(self._seed), 0
        while self.made < made:
            self.take(min(_AT_ONCE, made - self.made))


def shares_of(weights: Sequence[object]) -> Array:
    """[n] float64 weights that add up to 1.

    Raises:
      ConfigError: there is none, one is negative or not finite, or all are 0.
    """
    if not weights:
        raise ConfigError("mix: expected at least one part")
    for number, weight in enumerate(weights):
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= float(weight) < np.inf:
            raise ConfigError(f"mix: weight {weight!r} of part {number}: expected a finite number of at least 0")
    values = np.array(weights, np.float64)  # each of them a number
    if not 0 < (whole := sum(values.tolist())) < np.inf:
        raise ConfigError("mix: weights that add up to 0, or to no finite number; expected one above 0 at least")
    shares: Array = values / whole
    return shares
