"""Mixes samples: tables, datasets on disk, and other mixes, by weights that a seed draws with.

`by="item"` is il-representations' InterleavedDataset: each sample is of a part drawn for it; a part at its end begins again.
`by="batch"` is TorchRL's ReplayBufferEnsemble: for each batch some parts are drawn, with replacement, and each gives an equal share.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SpecMismatch
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch, BatchInfo, BatchIterator, columns_of, in_structure, paths_of
from rlds2reverb.learner.joining import Feed, Iterated, Piece, Repeated, cut_short, join_pieces
from rlds2reverb.learner.local import Local, local
from rlds2reverb.learner.local.options import LocalOptions, check_seed
from rlds2reverb.learner.options import LIST, RAGGED, check_count, check_pad, check_rank, check_word
from rlds2reverb.learner.states import State, check_state, count_in, digest, state_of
from rlds2reverb.prepare.mixture import Mixture
from rlds2reverb.prepare.preparation import view_for
from rlds2reverb.specs import Nest, differences, flatten
from rlds2reverb.wire.insert import seed as hash_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

ITEM, BATCH = "item", "batch"


@dataclass(frozen=True)
class MixOptions:
    """Options of a mix. Each field is a keyword of `mix`.

    Attributes:
      batch_size: samples per batch.
      seed: of the choices between parts.
      by: "item": each sample is of a part chosen for it alone; "batch": parts are chosen for runs of samples of a batch.
      samples: in all; None for no end.
      drop_last: leave out the last batch where it is shorter than the rest.
      rank, world_size: this process of a training run of so many, as of the parts. All ranks draw the same parts, so that they take equally
        many samples of each; `samples` are those of all ranks together, of which each gives an equal number.
      draws: by "batch": number of runs of a batch; None for the number of parts. A part may be drawn more than once.
      sample_from_all: by "batch": one run of every part, in their order, whatever their weights.
      stacked: by "batch": [draws, batch_size / draws, ...] instead of [batch_size, ...].
      ragged, pad_to: as for `SampleOptions`, of the whole batch.

    Raises:
      ConfigError: a number out of its range, an unknown word, or options that do not go together.
    """

    batch_size: int = 256
    _: KW_ONLY
    seed: int = 0
    by: str = ITEM
    samples: int | None = None
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    draws: int | None = None
    sample_from_all: bool = False
    stacked: bool = False
    ragged: str = LIST
    pad_to: int | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_seed(self.seed)
        rank, world_size = check_rank("mix", self.rank, self.world_size)
        # As `check_rank` makes them: numbers of Python, since the counts of a state are made with them, and a state is JSON.
        vars(self).update(rank=rank, world_size=world_size)
        for name in ("samples", "draws"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.own_samples == 0:
            raise ConfigError(
                f"mix: samples {self.samples}, for all ranks together: expected at least world_size={self.world_size}"
            )
        check_word("mix: by", self.by, (ITEM, BATCH))
        check_word("mix: ragged", self.ragged, RAGGED)
        check_pad(self.pad_to, self.ragged)
        if self.by == ITEM and (self.draws is not None or self.sample_from_all or self.stacked):
            raise ConfigError('mix: draws, sample_from_all and stacked are of by="batch"; give that, or leave them out')
        if self.sample_from_all and self.draws is not None:
            raise ConfigError("mix: sample_from_all draws every part once; leave out draws")

    def draws_of(self, parts: int) -> int:
        """Number of runs of a batch.

        Raises:
          ConfigError: a batch cannot be divided into equal runs, or `samples` into whole batches.
        """
        draws = parts if self.draws is None else self.draws
        if self.batch_size % draws:
            raise ConfigError(
                f"mix: batch_size {self.batch_size} cannot be divided by the {draws} parts that a batch is drawn from; change it, or draws"
            )
        if self.own_samples is not None and self.own_samples % self.batch_size:
            expected = self.batch_size * self.world_size
            raise ConfigError(
                f'mix: samples {self.samples}: by="batch" gives whole batches only; expected a multiple of {expected}'
            )
        return draws

    @property
    def own_samples(self) -> int | None:
        """Samples of this rank; None for no end."""
        return None if self.samples is None else self.samples // self.world_size


_KIND, _VERSION = "mix", 1


class Mix(BatchIterator):
    """Iterates batches of samples of several parts. Made by `mix`. Close it, or use it as a context manager. Not thread-safe.

    Samples of a part come in its order. `info.source` is the number of each sample's part; the rest of `info` comes from the part:
    `probability` and `table_size` are those within the part. Where only some parts have a `weight` or a `mask`, it is 1, or true for all
    rows of an item, in the samples of the rest; any other field that only some parts have, such as `start`, is None.

    Args:
      feeds: the parts, numbered from 0.
      weights: one per part.
      options: batch size, seed, and how parts are chosen.

    Raises:
      ConfigError: weights or options that make no sense.
      SpecMismatch: the items of two parts differ. Parts without a signature are compared at the first batch, which raises it then.
    """

    def __init__(self, feeds: Sequence[Feed], weights: Sequence[float], options: MixOptions) -> None:
        if len(feeds) != len(weights):
            raise ConfigError(f"mix: {len(weights)} weights for {len(feeds)} parts; expected one each")
        self.options, self._choices = options, PartChoices(options.seed, weights)
        self._weights = [float(share) for share in self._choices.shares]
        self._draws = options.draws_of(len(feeds)) if options.by != ITEM else 0
        self._feeds = feeds
        self._compared = 0  # parts whose specs are known, and were compared
        self._parts: Array | None = None  # [B] part of each sample of a batch that an error left unfinished
        self._pieces: list[Piece] = []  # that came for it
        self._samples = 0  # of all ranks together, so far
        self._epoch = 0
        self._is_closed = self._is_stopped = self._is_over = False
        self._compare()

    @property
    def structure(self) -> Nest | None:
        """Nest of the samples, as a table's signature; None before the first batch where no part has it."""
        nests = [feed.spec if feed.spec is not None else feed.structure for feed in self._feeds]
        return next((nest for nest in nests if nest is not None), None)

    @property
    def name(self) -> str:
        """For messages and states: the parts' names."""
        return f"mix of {', '.join(feed.name for feed in self._feeds)}"

    def next_batch(self) -> Batch | None:
        """Returns the next batch; None at the end. After an error of a part the next call continues the same batch, and loses nothing.

        Raises:
          ConfigError: a part is empty, or pads its samples.
          SpecMismatch: the items of two parts differ.
          Rlds2ReverbError: as the parts do.
        """
        size = self.options.batch_size
        batch = self._next(self._draws or size, size)
        if batch is None or (batch.size < size and (self.options.drop_last or self.options.stacked)):
            return None
        return _stack(batch, self._draws, self.structure) if self.options.stacked else batch

    def take(self, count: int) -> Batch | None:
        """Returns the next `count` samples in one batch; fewer before the end, None at the end. Raises as `next_batch` does.

        After an error the batch that it left unfinished comes first, with the count of that call.

        Raises:
          ConfigError: by "batch", `count` is not `batch_size`.
        """
        if self._draws and count != self.options.batch_size:
            raise ConfigError(
                f'mix: by="batch" gives batches of {self.options.batch_size} samples; it cannot be part of a mix by items'
            )
        return self._next(self._draws or count, count)

    def skip(self, count: int) -> int:
        """Passes over a batch of `count` samples, as another learner takes it; samples of tables stay there.

        Returns:
          Their number; fewer before the end, 0 at the end.
        """
        return self._skip(count, None)

    def pass_over(self, count: int, world_size: int) -> int:
        """Passes over a batch that each of `world_size` ranks took, of `count` samples each; all else as `skip`."""
        return self._skip(count, world_size)

    @property
    def passed(self) -> int:
        """Samples of each rank that were given or skipped."""
        return self._samples // self.options.world_size

    def _skip(self, count: int, world_size: int | None) -> int:
        ranks = world_size or self.options.world_size
        if not (left := self._count_left(count, ranks)):
            return 0
        parts = self._draw_parts(self._draws or count, left)
        for feed, skipped in zip(self._feeds, np.bincount(parts, minlength=len(self._feeds)).tolist()):
            feed.skip(skipped, world_size)
        self._samples += len(parts) * ranks
        return len(parts)

    def begin_epoch(self, number: int) -> None:
        """Begins again, with the epoch of this number of every part that has epochs, and other draws of parts."""
        self._go_to_epoch(number)
        self._parts, self._samples, self._is_stopped, self._is_over = None, 0, False, False
        for feed in self._feeds:
            feed.begin_epoch(number)

    def _go_to_epoch(self, number: int) -> None:
        """Draws parts as in this epoch, from its begin on."""
        # Hashed, not added: seed 1 would draw in its first epoch what seed 0 draws in its second.
        seed = self.options.seed if not number else hash_of("mix", str(self.options.seed), str(number)) % (1 << 32)
        self._epoch, self._choices = number, PartChoices(seed, self._weights)

    def stop(self) -> None:
        """Ends it at once: the next batch is None. The parts are not stopped before `close`.

        Samples that a part has prefetched stay with the part: where none may get lost, `stop` and `drain` a `Sampler` that is a part
        before the mix is closed.
        """
        self._is_stopped = True

    def close(self) -> None:
        """Ends it, and closes all parts."""
        self._is_closed = True
        for feed in self._feeds:
            feed.batches.close()

    def state(self) -> State:
        """Returns its position between two batches, as plain values for JSON. Of tables of a server it holds only the names.

        Raises:
          ConfigError: an error left a batch unfinished.
        """
        if self._parts is not None:
            raise ConfigError(
                "mix: state: an error came between, and the batch is not complete; expected that it is taken first: next_batch()"
            )
        parts = [feed.state() for feed in self._feeds]
        epoch = {"epoch": self._epoch} if self._epoch else {}
        position = {"chosen": self._choices.made, "given": self.passed, "samples": self._samples, "parts": parts}
        return state_of(_KIND, self._of, _VERSION, **epoch, **position)

    def fingerprint(self) -> str:
        """Tells mixes apart: two of the same one give the same samples of what is on disk at the same positions."""
        return digest(json.dumps(self._of), *(feed.fingerprint() for feed in self._feeds))

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to the position of another mix of the same arguments: the same batches follow.

        Samples of sources are the same to the bit, and so is the part of each sample. Samples of a server's tables are not: the server
        draws them, and keeps no account of it.

        `world_size` may differ: each item of the rest of a part's epoch comes once, and `samples` are counted on for all ranks.

        Args:
          state: of `state()`.
          anew: restore also where there are tables, and continue with their next samples.

        Raises:
          ConfigError: a state of something else, of another version, or of other data; or there are tables, and `anew` is false.
          SourceError: the data cannot be read.
        """
        checked = check_state(state, _KIND, self._of, _VERSION)
        parts = checked.get("parts")
        if not isinstance(parts, (list, tuple)) or len(parts) != len(self._feeds):
            raise ConfigError(f"restore: the state has no list of {len(self._feeds)} parts")
        chosen, epoch = count_in(checked, "chosen"), count_in({"epoch": 0, **checked}, "epoch")
        # States of earlier releases have the samples of one rank only; they are taken as those of a rank of now.
        samples = count_in({"samples": count_in(checked, "given") * self.options.world_size, **checked}, "samples")
        for feed, part in zip(self._feeds, parts):
            feed.check(part, anew)
        self._restore_parts(parts, anew)
        self._parts = None
        self._go_to_epoch(epoch)
        self._choices.go_to(chosen)
        self._samples, self._is_stopped, self._is_over = samples, False, False

    @property
    def _of(self) -> dict[str, Any]:
        """What two mixes must share for a position to mean the same."""
        options = self.options
        return {
            "parts": [feed.name for feed in self._feeds],
            "weights": self._weights,
            "seed": options.seed,
            "by": options.by,
            "draws": self._draws,
            "batch_size": options.batch_size if self._draws else None,
            "sample_from_all": options.sample_from_all,
        }

    def _restore_parts(self, parts: Sequence[Mapping[str, Any]], anew: bool) -> None:
        """Restores all parts, or none: where one cannot be restored, those before it go back."""
        before: list[State | None] = []
        for feed in self._feeds:
            try:
                before.append(feed.state())
            except ConfigError:  # a mix that an error left within a batch
                before.append(None)
        for number, feed in enumerate(self._feeds):
            try:
                feed.restore(parts[number], anew)
            except Rlds2ReverbError:
                for moved, was in zip(self._feeds[:number], before):
                    if was is not None:
                        moved.restore(was, anew=True)
                raise

    def _next(self, draws: int, count: int) -> Batch | None:
        """The next batch, of `count` samples in `draws` runs; or the unfinished one. None at the end, fewer samples before it."""
        if not (left := self._count_left(count, self.options.world_size)):
            return None
        if self._parts is None:
            self._parts, self._pieces = self._draw_parts(draws, left), []
        parts, pieces, options = self._parts, self._pieces, self.options
        came = np.bincount([piece.part for piece in pieces], [piece.size for piece in pieces], len(self._feeds))
        lacking = np.bincount(parts, minlength=len(self._feeds)) - came.astype(np.int64)
        for feed, lacks in zip(self._feeds, lacking.tolist()):
            for piece in feed.take(lacks):
                pieces.append(piece)  # one by one: an error may come between
        self._compare()
        self._parts = None
        if sum(piece.size for piece in pieces) < len(parts):
            self._is_over = True
            pieces, parts = cut_short(pieces, parts, len(self._feeds))
        if not len(parts):
            return None
        batch = join_pieces(self._feeds, pieces, parts, options.ragged, options.pad_to)
        self._samples += len(parts) * self.options.world_size
        return batch

    def _count_left(self, count: int, world_size: int) -> int:
        """Of `count` samples of each of so many ranks those that are left; 0 at the end."""
        if self._is_closed or self._is_stopped or self._is_over:
            return 0
        samples = self.options.samples
        return count if samples is None else max(0, min(count, (samples - self._samples) // world_size))

    def _draw_parts(self, draws: int, left: int) -> Array:
        """[B] the part of each sample of a batch of `left` samples in `draws` runs."""
        draws = min(draws, left)
        drawn = np.arange(draws) if self.options.sample_from_all else self._choices.take(draws)
        return np.repeat(drawn, left // draws)

    def _compare(self) -> None:
        """Refuses parts whose items differ, whenever the spec of one more is known. A free size in one fits any in another."""
        feeds = [feed for feed in self._feeds if feed.spec is not None]
        for feed in feeds[1:] if len(feeds) != self._compared else ():
            lines = differences(feed.spec, feeds[0].spec)
            if lines and differences(feeds[0].spec, feed.spec):
                raise SpecMismatch(
                    f'mix: "items" are those of {feed.title}, "table" is {feeds[0].title}',
                    lines,
                    "give the parts the same view, the same transform and the same columns",
                )
        self._compared = len(feeds)


def _stack(batch: Batch, draws: int, structure: Nest) -> Batch:
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


class MixKeywords(TypedDict, total=False):
    """`MixOptions` as keywords, without `batch_size`."""

    seed: int
    by: str
    samples: int | None
    drop_last: bool
    rank: int
    world_size: int
    draws: int | None
    sample_from_all: bool
    stacked: bool
    ragged: str
    pad_to: int | None


Parts = Mapping[Any, float] | Sequence[tuple[Any, float]] | Mixture | Path | str
"""What can be mixed: part -> weight, pairs of them, or a mixture with its file."""


@takes_options(MixOptions)
def mix(
    parts: Parts,
    batch_size: int = MixOptions.batch_size,
    **options: Unpack[MixKeywords],
) -> Mix:
    """Mixes samples of several tables and datasets: `mix({client.sample("online"): 3, local("tfds:demos"): 1}, 256, seed=1)`.

    Args:
      parts: part -> weight, or pairs of them where a part cannot be a key. A part is a `Sampler`, a `Local`, another mix, an iterator or
        a list of `Batch`; (client, "table"), which is sampled with the mix's batch size; or anything that `local` takes, as 2-step items.
        Or a mixture file, or a `Mixture`: its sets, by their shares, with its view, shuffle and seed.
      batch_size: samples per batch.
      options: the other fields of `MixOptions`, by name.

    Returns:
      An iterator of `Batch`; close it, or use it as a context manager: that closes the parts.

    Raises:
      ConfigError: parts, weights or options that make no sense.
      SpecMismatch: the items of two parts differ. Parts without a signature are compared at the first batch, which raises it then.
    """
    rank, world_size = options.get("rank", MixOptions.rank), options.get("world_size", MixOptions.world_size)
    open_part = partial(local, batch_size=batch_size, rank=rank, world_size=world_size)
    parts, options = parts_of_mixture(parts, options, open_part)
    chosen = make_options(MixOptions, "mix", batch_size, **options)
    pairs = pairs_of(parts)
    weights = [weight for _, weight in pairs]
    PartChoices(chosen.seed, weights)  # refuses them before anything is opened
    feeds = [_make_feed(number, part, chosen) for number, (part, _) in enumerate(pairs)]
    if len({id(feed.batches) for feed in feeds}) < len(feeds):
        raise ConfigError("mix: a part is named twice; give it one weight")
    return Mix(feeds, weights, chosen)


def pairs_of(parts: Mapping[Any, float] | Sequence[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """Parts and their weights. Raises ConfigError for what is no pair."""
    pairs = list(parts.items()) if isinstance(parts, Mapping) else list(parts)
    for number, pair in enumerate(pairs):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ConfigError(
                f"mix: part {number}: expected a pair of a part and its weight, got {type(pair).__name__}"
            )
    return pairs


def parts_of_mixture(
    parts: Parts, options: MixKeywords, open_part: Callable[..., Any]
) -> tuple[Mapping[Any, float] | Sequence[tuple[Any, float]], MixKeywords]:
    """The sets of a mixture with their shares, each opened as `open_part(source, view, shuffle=, seed=)`, and its seed unless there is one; other parts as they are.

    Raises:
      ConfigError, ViewError: the file makes no sense.
      SourceError: a set cannot be opened, is empty, or has other steps than the first.
    """
    if isinstance(parts, (str, Path)):
        parts = Mixture.read(parts)
    if not isinstance(parts, Mixture):
        return parts, options
    seed = options.get("seed", parts.seed)
    shares, view, shuffle = parts.shares(), view_for(parts, None), parts.shuffle
    pairs = [
        (open_part(part, view, shuffle=shuffle, seed=seed), shares[name]) for name, part in parts.sources().items()
    ]
    return pairs, {**options, "seed": seed}


class _Ranks(TypedDict):
    rank: int
    world_size: int


def _make_feed(number: int, part: Any, options: MixOptions) -> Feed:
    if isinstance(part, tuple) and len(part) == 2 and hasattr(part[0], "sample"):
        client, table = part
        return Feed(number, client.sample(table, options.batch_size, **_ranks_of(options)), f"table {table}")
    name = getattr(part, "name", None)
    name = name if isinstance(name, str) else type(part).__name__
    if hasattr(part, "next_batch"):
        _check_ranks(number, part, options)
        return Feed(number, part, name)
    if isinstance(part, Iterator):
        return Feed(number, Iterated(part), name)
    if isinstance(part, (list, tuple)) and part and all(isinstance(batch, Batch) for batch in part):
        return Feed(number, Repeated(part), "batches")
    dataset: Local = local(part, batch_size=options.batch_size, **_ranks_of(options))
    return Feed(number, dataset, dataset.name)


def _ranks_of(options: LocalOptions | MixOptions) -> _Ranks:
    return {"rank": options.rank, "world_size": options.world_size}


def _check_ranks(number: int, part: Any, options: MixOptions) -> None:
    """Raises ConfigError for a part whose items are dealt to other ranks than the mix's."""
    if isinstance(part, (Local, Mix)) and _ranks_of(part.options) != _ranks_of(options):
        own = part.options
        raise ConfigError(
            f"mix: part {number} ({part.name}) is of rank={own.rank}, world_size={own.world_size}, and the mix of rank={options.rank}, "
            f"world_size={options.world_size}; give both the same, or all ranks would be given the same samples"
        )


_AT_ONCE = 1 << 20  # choices that are made again at a time, to come to a place


class PartChoices:
    """The parts that samples come from: a sequence that follows from the seed and the weights, found again at any place.

    Draws with replacement: `RandomState(seed).randint` where all weights are equal, as il-representations' InterleavedDataset; else `choice` with p.

    Raises:
      ConfigError: no weight, one that is negative or not finite, or all are 0.

    Attributes:
      made: draws so far.
      shares: [n] float64, weights that add up to 1.
    """

    def __init__(self, seed: int, weights: Sequence[float]) -> None:
        if not weights:
            raise ConfigError("mix: expected at least one part")
        any_weights: Sequence[Any] = weights  # whatever a caller passed
        for number, weight in enumerate(any_weights):
            is_number = isinstance(weight, Real) and not isinstance(weight, bool)
            # Compared as it is: float() fails for whole numbers beyond every float.
            if not is_number or not 0 <= weight <= sys.float_info.max:
                raise ConfigError(f"mix: weight {weight!r} of part {number}: expected a finite number of at least 0")
        values = np.array(weights, np.float64)
        if not 0 < (whole := sum(values.tolist())) < np.inf:
            raise ConfigError("mix: weights that add up to 0, or to no finite number; expected one above 0 at least")
        self.shares: Array = values / whole
        self._seed, self._random = seed, np.random.RandomState(seed)
        self.made = 0
        self._are_equal = len(set(weights)) == 1

    def take(self, count: int) -> Array:
        """[count] int64 numbers of parts."""
        self.made += count
        if self._are_equal:
            return self._random.randint(len(self.shares), size=count)
        return self._random.choice(len(self.shares), size=count, p=self.shares)

    def go_to(self, made: int) -> None:
        """Goes to the place after `made` draws."""
        # RandomState cannot jump: the draws before the place are made again.
        self._random, self.made = np.random.RandomState(self._seed), 0
        while self.made < made:
            self.take(min(_AT_ONCE, made - self.made))
