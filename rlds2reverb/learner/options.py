"""Options of sampling and of cutting samples, checked, and what follows from them for a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, TypedDict

import numpy as np

from rlds2reverb.errors import ConfigError
from rlds2reverb.images import Size, SizeLike
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.text import did_you_mean
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import Reason
from rlds2reverb.views import view_from
from rlds2reverb.views.base import StreamView, View, spell_view
from rlds2reverb.wire.messages import TableInfo, samples_allowed

TRAJECTORY, STEP = "trajectory", "step"
ZERO, LAST_ROW = "zero", "last"

BATCH_MAX, UNSCALED, ACME, TABLE_MIN = "batch_max", "unscaled", "acme", "table_min"
FORMULAS = (BATCH_MAX, UNSCALED, ACME, TABLE_MIN)

Changing = float | Callable[[int], float]
"""A number, or a function of the batch's number, counted from 0, that is called once per batch."""

_BUFFER_MIN = (
    "it scales by the smallest probability of the whole buffer, which Reverb does not report; "
    f'"{TABLE_MIN}" is that formula with min_priority, the smallest priority of the table, from you; '
    f'"{BATCH_MAX}" differs from it by one factor per batch'
)
_ELSEWHERE = {
    "torchrl": _BUFFER_MIN,
    "rllib": _BUFFER_MIN,
    "tf_agents": f'TF-Agents computes none; its agents take any, such as those of "{BATCH_MAX}"',
    "reverb": f'Reverb computes none; "{BATCH_MAX}" is computed from what it reports',
}

UNKNOWN_YIELD = 8  # samples that are requested at a time where the number of items of one is not known

LIST, PAD = "list", "pad"
RAGGED = (LIST, PAD)

GIVE_UP_SECONDS = Deadlines.stall
"""Default wait of a learner for a batch: as long as a push waits for a confirmation."""


@dataclass(frozen=True)
class SliceSpec:
    """Slices to cut out of sampled episodes.

    Attributes:
      length: rows of a slice.
      per_episode: by "trajectory": slices of each sampled episode, whose starts are drawn independently.
      strict: leave shorter episodes out; otherwise they give slices that are filled up at the end, and `info.mask` is true for
        the episode's own rows.
      by: "trajectory" or "step", see `learner.slices`.
      every: by "step": the number of starts per slice on average; `length` by default.
      fill: filling of shorter episodes: "zero" (or empty text), or "last", the last row again.
      seed: of the draws.

    Raises:
      ConfigError: a number out of its range, or options that do not go together.
    """

    length: int
    per_episode: int = 1
    strict: bool = True
    by: str = TRAJECTORY
    every: float | None = None
    fill: str = ZERO
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("slices: length", self.length)
        check_count("slices: per_episode", self.per_episode)
        check_word("slices: by", self.by, (TRAJECTORY, STEP))
        check_word("slices: fill", self.fill, (ZERO, LAST_ROW))
        if not isinstance(self.strict, bool):
            raise ConfigError(f"sample: slices: strict {self.strict!r}: expected true or false")
        _check_seed("slices", self.seed)
        if self.by == STEP and self.per_episode != 1:
            raise ConfigError('sample: slices: per_episode goes with by="trajectory"; by="step" takes every')
        every = self.every
        is_number = isinstance(every, (int, float, np.number)) and every is not True
        if every is not None and (self.by != STEP or not is_number or not 0 < float(every) < np.inf):
            raise ConfigError(f'sample: slices: every {every!r}: expected a positive number, and by="step" beside it')


@dataclass(frozen=True)
class ViewSpec:
    """A view whose items are cut out of sampled episodes: `view="n_step:n=5"`.

    So a table of whole episodes feeds learners of different items. An item is the same to the bit as one stored by a push with that
    view and otherwise equal options, with these exceptions:

    | what | why |
    | --- | --- |
    | views that draw (slices, goal, jigsaw) draw differently | an item does not hold its episode's id; its key replaces the id |
    | an episode is terminal where its last discount is 0 | a trajectory holds nothing else; items of steps have is_terminal |
    | extras are fields of policy_info | a trajectory has them there |

    Attributes:
      view: a view, or its form in configs: "n_step:n=5", or a mapping with `view` and its options.
      per_episode: number of items of each sampled episode, drawn independently; None for all, in order.
      seed: of the draws.

    Raises:
      ConfigError: a view over several episodes, or a number out of its range.
      ViewError: no such view, or options of it that make no sense.
    """

    view: View | str | Mapping[str, Any]
    per_episode: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.view, View):
            object.__setattr__(self, "view", view_from(self.view, "sample: view"))
        if isinstance(self.view, StreamView):
            raise ConfigError(
                f"sample: view {spell_view(self.view)}: its items hold steps of several episodes; a sample is one episode"
            )
        if self.per_episode is not None:
            check_count("view: per_episode", self.per_episode)
        _check_seed("view", self.seed)

    @staticmethod
    def of(view: ViewSpec | View | str | Mapping[str, Any]) -> ViewSpec:
        """Makes a spec of any form of the option `view`; raises as the class does."""
        return view if isinstance(view, ViewSpec) else ViewSpec(view)


@dataclass(frozen=True)
class SampleOptions:
    """Options of sampling. Each field is a keyword of `Client.sample`.

    Attributes:
      batch_size: samples per batch.
      streams: streams that sample at the same time, each with batches of its own. With one, items come in the order of the table's
        sampler; "fifo" needs that.
      prefetch: batches per stream that are requested, on their way, or ready, before they are read. The server counts these
        `streams * prefetch * batch_size` samples at most as taken although they were not read: in rate limiters, in
        `times_sampled` and for max_times_sampled, and changed priorities come too late for them. By
        default 8 for small items of uniform samplers (up to 16 for batches below 32), else 4, and 1 for tables with a
        max_times_sampled, whose unread samples are gone. See `default_prefetch`.
      samples: in all; None for no end.
      epochs: sample every item that the table holds now so often, and end; needs a table that removes items after as many
        samples, see `count_owed_samples`.
      drop_last: leave out the last batch where it is shorter than the rest.
      rank, world_size: this process of a training run of so many. `samples` are those of all ranks together, of which each gives an equal
        number. The server draws for each rank by itself: independently, or each item for one of them if the table hands items out once.
      timeout_seconds: raise an error when a batch does not come in time; None to wait for ever. The default is long
        enough for connections that died without a sign: they are replaced after 10 seconds, or a minute where
        samples leave the table, and after twice as long the next time. The error says what the table waits for; asking the server
        for that takes a call's deadline more at most. Iterating may continue after it.
      end_after_seconds: end, without an error, when a batch does not come in time, in place of `timeout_seconds`; None for
        never. The samples that came are the last, short batch. Iterating again continues with later samples.
      reconnect_seconds: how long a server may be away, when the stream of samples breaks, before that is an error; a call
        that is under way then is not cut short.
      ragged: form of columns whose items differ in shape: "list" of arrays, or "pad": zeros after the end, and
        `info.mask` is true for the rows of an item.
      spec: nest of the columns' names, for tables without a signature; its leaves may be anything.
      decode: decode encoded images; False leaves their bytes. A size, (128, 128) or "128x128", decodes them to that size, JPEG by the
        decoder's own scaling first, see `images.decode_images`.
      arena_bytes: most bytes of decoded chunks that are kept, all streams together.
      pad_to: with ragged="pad": rows of every column that is filled up, so that all batches have one shape; None for the rows of the
        longest item of the batch.
      slices: cut fixed-length slices out of sampled episodes, see `learner.slices`. `batch_size` then counts slices, and
        `samples` and `prefetch` count episodes, in batches of `request_size`.
      view: cut sampled episodes as a push with this view would have, see `ViewSpec`; counts as for `slices`.
      weights: importance weights in `info.weight`: "batch_max", "unscaled", "acme" or "table_min", see `learner.weights`; None
        for no weights.
      beta: their exponent, a number or a function of the batch's number (0, 1, ...), which is called when that batch is read.
      min_priority: of "table_min": the smallest priority of the table, a number or a function as for `beta`.
      on_wait: called with the reason of a wait every two seconds, and with an empty reason once a batch comes; from the thread that
        waits. By default waits are logged to `rlds2reverb.learner`.

    Raises:
      ConfigError: a number out of its range, or an unknown word.
    """

    batch_size: int = 256
    _: KW_ONLY
    streams: int = 1
    prefetch: int | None = None
    samples: int | None = None
    epochs: int | None = None
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    timeout_seconds: float | None = GIVE_UP_SECONDS
    end_after_seconds: float | None = None
    reconnect_seconds: float = Deadlines.reconnect
    ragged: str = LIST
    spec: Nest | None = None
    decode: bool | SizeLike = True
    arena_bytes: int = 256 << 20
    pad_to: int | None = None
    slices: SliceSpec | None = None
    view: ViewSpec | View | str | Mapping[str, Any] | None = None
    weights: str | None = None
    beta: Changing | None = None
    min_priority: Changing | None = None
    on_wait: Callable[[Reason], object] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("batch_size", "streams", "arena_bytes"):
            check_count(name, getattr(self, name))
        for name in ("prefetch", "samples", "epochs"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        rank, world_size = check_rank("sample", self.rank, self.world_size)
        vars(self).update(rank=rank, world_size=world_size)
        if self.world_size > 1 and self.epochs is not None:
            raise ConfigError(
                f"sample: epochs, with world_size={self.world_size}: each rank would wait for all samples of an epoch; give samples=, the "
                "number for all ranks together"
            )
        if self.samples is not None and self.samples < self.world_size:
            raise ConfigError(
                f"sample: samples {self.samples}, for all ranks together: expected at least world_size={self.world_size}"
            )
        if self.samples is not None and self.epochs is not None:
            raise ConfigError("sample: samples and epochs both say how many samples there are; give one of them")
        for name in ("timeout_seconds", "end_after_seconds"):
            if getattr(self, name) is not None:
                _check_seconds(name, getattr(self, name))
        _check_seconds("reconnect_seconds", self.reconnect_seconds)
        if self.end_after_seconds is not None:
            if self.timeout_seconds not in (None, GIVE_UP_SECONDS):
                raise ConfigError("sample: timeout_seconds is an error and end_after_seconds is none; give one of them")
            object.__setattr__(self, "timeout_seconds", None)
        object.__setattr__(self, "decode", read_decode(self.decode))
        check_word("ragged", self.ragged, RAGGED)
        check_pad(self.pad_to, self.ragged)
        check_weights(self.weights, self.beta, self.min_priority)
        if self.view is not None:
            object.__setattr__(self, "view", ViewSpec.of(self.view))
        if self.slices is None:
            return
        if not isinstance(self.slices, SliceSpec):
            raise ConfigError(f"sample: slices {self.slices!r}: expected SliceSpec(length=...)")
        if self.view is not None:
            raise ConfigError("sample: slices and view are two ways to cut episodes; give one of them")
        if self.slices.by == STEP and self.weights is not None:
            raise ConfigError(
                'sample: weights make up for the probabilities of a sampler, and so does slices by="step"; give one of them'
            )

    def share_out(self) -> SampleOptions:
        """The options of this rank alone: its part of `samples`, equal on every rank."""
        if self.world_size == 1:
            return self
        samples = None if self.samples is None else self.samples // self.world_size
        return replace(self, samples=samples, rank=0, world_size=1)

    @property
    def cut(self) -> SliceSpec | ViewSpec | None:
        """Slices or view to cut; None for whole samples."""
        return self.slices if self.view is None else ViewSpec.of(self.view)

    @property
    def request_size(self) -> int:
        """Samples per batch; `UNKNOWN_YIELD` at most where the number of items of each is not known."""
        spec = self.cut
        if spec is None:
            return self.batch_size
        per_episode = None if isinstance(spec, SliceSpec) and spec.by == STEP else spec.per_episode
        return min(UNKNOWN_YIELD, self.batch_size) if per_episode is None else -(-self.batch_size // per_episode)

    def choose_prefetch(self, table: TableInfo) -> int:
        """Returns `prefetch`, or the default for the table."""
        return default_prefetch(table, self.request_size) if self.prefetch is None else self.prefetch


class SampleKeywords(TypedDict, total=False):
    """`SampleOptions` as keywords, without `batch_size`."""

    streams: int
    prefetch: int | None
    samples: int | None
    epochs: int | None
    drop_last: bool
    rank: int
    world_size: int
    timeout_seconds: float | None
    end_after_seconds: float | None
    reconnect_seconds: float
    ragged: str
    spec: Nest | None
    decode: bool | SizeLike
    arena_bytes: int
    pad_to: int | None
    slices: SliceSpec | None
    view: ViewSpec | View | str | Mapping[str, Any] | None
    weights: str | None
    beta: Changing | None
    min_priority: Changing | None
    on_wait: Callable[[Reason], object] | None


def read_decode(value: bool | SizeLike) -> bool | Size:
    """Reads the option `decode`: true, false or a size. Raises ConfigError for a size that makes no sense."""
    if isinstance(value, bool):
        return value
    try:
        return Size.of(value)
    except ConfigError as error:
        raise ConfigError(f"sample: decode: {error}") from error


def check_pad(pad_to: int | None, ragged: str) -> None:
    """Raises ConfigError for a `pad_to` that is no whole number of at least 1, or without ragged="pad"."""
    if pad_to is None:
        return
    check_count("pad_to", pad_to)
    if ragged != PAD:
        raise ConfigError('sample: pad_to goes with ragged="pad"')


def _check_seed(where: str, seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"sample: {where}: seed {seed!r}: expected a whole number")


def _check_seconds(name: str, seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 < float(seconds) < math.inf:
        raise ConfigError(f"sample: {name} {seconds!r}: expected a positive number of seconds")


_FEWEST, _MOST = 4, 8  # answers are larger, and come with less waiting, the more is requested at a time
_MOST_OF_SMALL, _MOST_SAMPLES = 16, 256  # more of small batches: 128 samples are sent without a pause
_MOST_BYTES = 32 << 20  # of all batches beyond `_FEWEST`, by the table's signature
_FREE_SIZE = 1_000  # steps of an episode, and bytes of a text, where the signature leaves them open


def default_prefetch(table: TableInfo, batch_size: int) -> int:
    """Batches to prefetch: more where items are small, and drawn independently of their priorities; 1 where unread samples are gone."""
    if table.max_times_sampled > 0:
        return 1
    leaves = [] if table.signature is None else list(flatten(table.signature).values())
    if table.sampler != "uniform" or not leaves or not all(isinstance(leaf, ArraySpec) for leaf in leaves):
        return _FEWEST
    batch_bytes = max(1, batch_size * sum(map(_item_bytes, leaves)))
    most = max(_MOST, min(_MOST_OF_SMALL, _MOST_SAMPLES // batch_size))
    return min(most, max(_FEWEST, _MOST_BYTES // batch_bytes))


def _item_bytes(leaf: ArraySpec) -> int:
    sizes = [_FREE_SIZE if size is None else size for size in leaf.shape]
    return math.prod(sizes) * (_FREE_SIZE if leaf.dtype.kind == "O" else leaf.dtype.itemsize)


def count_owed_samples(table: TableInfo, epochs: int) -> int:
    """Counts the samples of all epochs over a table that hands out every item as often and then removes it; if none was sampled before.

    The server counts, not the client. So the number is exact for several learners together, too: they share the n samples of every item.
    The table must have `max_times_sampled: n` and a rate limiter that never holds samples back. Any sampler will do:

    | sampler | the n times of an item |
    | --- | --- |
    | fifo, max_times_sampled 1 | one pass, in the order of insertion |
    | uniform, max_times_sampled 1 | one pass, shuffled: sampling without replacement |
    | fifo, max_times_sampled n | n times in a row, item after item, in the order of insertion |
    | uniform, max_times_sampled n | n times in all, anywhere |

    Sampling ends after this number. Fewer come where another learner takes some, where items were sampled before, or where a stream
    broke. Then it ends when the table is empty: at two looks in a row, some seconds apart, with no sample between them.

    Raises:
      ConfigError: the table does not hand out every item so often, its rate limiter holds some back, or it is empty.
    """
    where = f'table "{table.name}": epochs={epochs}'
    if table.max_times_sampled != epochs:
        limit = "no limit" if table.max_times_sampled < 1 else f"max_times_sampled {table.max_times_sampled}"
        raise ConfigError(
            f"{where}: the table has {limit}; expected max_times_sampled: {epochs}, for the server counts how often an item was"
            " sampled. A table with other counts is sampled with samples=, for ever, or with end_after_seconds"
        )
    if not table.current_size:
        raise ConfigError(f"{where}: the table is empty; fill it first, for an epoch is over the items that are there")
    least = table.rate_limiter.min_size_to_sample
    if least > 1:
        raise ConfigError(
            f"{where}: items leave with their last sample, and the rate limiter lets none be taken below {least} items, so the last"
            f" {least - 1} would never come; expected min_size 1"
        )
    count = table.current_size * epochs
    allowed = samples_allowed(table)
    if allowed < count:
        raise ConfigError(
            f"{where}: the rate limiter allows {allowed:,} more samples, of {count:,} that {table.current_size:,} items give; expected"
            " one that never holds samples back, such as {kind: min_size, min_size: 1}"
        )
    return count


def check_weights(weights: str | None, beta: object, min_priority: object) -> None:
    """Raises ConfigError for a formula that is unknown or that Reverb's answers do not suffice for, and for options that do not go together."""
    if weights is not None and weights not in FORMULAS:
        why = _ELSEWHERE.get(str(weights), "expected one of " + ", ".join(FORMULAS))
        raise ConfigError(f"sample: weights {weights!r}: {why}")
    if (weights is None) != (beta is None):
        raise ConfigError(
            "sample: weights and beta go together; give both or none, such as weights='batch_max', beta=0.4"
        )
    if (weights == TABLE_MIN) != (min_priority is not None):
        raise ConfigError(f'sample: min_priority goes with weights "{TABLE_MIN}", and with no other')
    for name, value in (("beta", beta), ("min_priority", min_priority)):
        if value is not None and not callable(value):
            check_number(name, value)


def check_number(name: str, value: object) -> float:
    """Returns `beta` or `min_priority` as a number; raises ConfigError if it is no number, or out of its range."""
    array = np.asarray(value)
    is_number = array.ndim == 0 and array.dtype.kind in "iuf"
    number = float(array) if is_number else math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and name == "min_priority"):
        least = "more than 0" if name == "min_priority" else "at least 0"
        raise ConfigError(
            f"sample: {name} {value!r}: expected a finite number of {least}, or a function of the batch's number"
        )
    return number


def check_count(name: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, Integral) or int(count) < 1:
        raise ConfigError(f"{name} {count!r}: expected a whole number of at least 1")


def check_rank(where: str, rank: object, world_size: object) -> tuple[int, int]:
    """Returns both as numbers of Python; raises ConfigError for a rank outside the world, or numbers that are not whole."""
    check_count(f"{where}: world_size", world_size)
    if isinstance(rank, bool) or not isinstance(rank, Integral) or not 0 <= rank < world_size:  # type: ignore[operator]
        raise ConfigError(
            f"{where}: rank {rank!r} of world_size={world_size}: expected a whole number from 0, below world_size"
        )
    return int(rank), int(world_size)  # type: ignore[call-overload]  # `check_count` has seen that it is a number


def check_word(name: str, word: object, words: Sequence[str]) -> None:
    if word not in words:
        raise ConfigError(f"{name} {word!r}: expected one of {', '.join(words)}{did_you_mean(str(word), words)}")
