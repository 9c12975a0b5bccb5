"""How a table is sampled, and cut: all options of learners, checked, and what follows from them for a table."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np

from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import Reason
from rlds2reverb.views.base import StreamView, View
from rlds2reverb.views.registry import view_from
from rlds2reverb.wire.limiter import samples_allowed
from rlds2reverb.wire.messages import TableInfo

TRAJECTORY, STEP = "trajectory", "step"
ZERO, LAST_ROW = "zero", "last"

BATCH_MAX, UNSCALED, ACME, TABLE_MIN = "batch_max", "unscaled", "acme", "table_min"
FORMULAS = (BATCH_MAX, UNSCALED, ACME, TABLE_MIN)

Changing = float | Callable[[int], float]
"""A number; or a function of the batch's number, counted from 0, that is called once per batch."""

_BUFFER_MIN = (
    "it scales by the smallest probability of the whole buffer, which Reverb does not tell; "
    f'"{TABLE_MIN}" is that formula with min_priority, the smallest priority of the table, from you; '
    f'"{BATCH_MAX}" differs from it by one factor per batch'
)
_ELSEWHERE = {
    "torchrl": _BUFFER_MIN,
    "rllib": _BUFFER_MIN,
    "tf_agents": f'TF-Agents computes none; its agents take any, such as those of "{BATCH_MAX}"',
    "reverb": f'Reverb computes none; "{BATCH_MAX}" is made of what it tells',
}

UNKNOWN_YIELD = 8
"""Samples that are requested at a time where the number of items of one is not known."""

_Given = ParamSpec("_Given")
_Options = TypeVar("_Options")

LIST, PAD = "list", "pad"
RAGGED = (LIST, PAD)

GIVE_UP_SECONDS = Deadlines.stall
"""How long a learner waits for a batch by default: as long as a push waits for a confirmation."""


@dataclass(frozen=True)
class SliceSpec:
    """Which slices are cut out of sampled episodes.

    Attributes:
      length: rows of a slice.
      per_episode: by "trajectory": slices of each sampled episode, each start drawn for itself.
      strict: leave shorter episodes out; otherwise they give slices that are filled up at the end, and `info.mask` tells
        the rows that are the episode's.
      by: "trajectory" or "step", see `learner.slices`.
      every: by "step": one slice for so many starts on average; `length` by default.
      fill: what shorter episodes are filled up with: "zero" (or empty text), or "last", the last row again.
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
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"sample: slices: seed {self.seed!r}: expected a whole number")
        if self.by == STEP and self.per_episode != 1:
            raise ConfigError('sample: slices: per_episode goes with by="trajectory"; by="step" takes every')
        if self.every is not None and (self.by != STEP or not _is_positive(self.every)):
            raise ConfigError(
                f'sample: slices: every {self.every!r}: expected a positive number, and by="step" beside it'
            )


@dataclass(frozen=True)
class ViewSpec:
    """Which items are cut out of sampled episodes: `view="n_step:n=5"`.

    A table of whole episodes feeds learners that want other items, and every learner may want others. An item comes out as a push with
    that view would have stored it, to the bit, when the push made no other difference, with these exceptions:

    | what | why |
    | --- | --- |
    | a view that draws (slices, goal, jigsaw) draws otherwise | an item does not tell its episode's id; its key stands for that |
    | an episode ends terminal where its last discount is 0 | that is what a trajectory tells; items of steps have is_terminal |
    | extras are fields of policy_info | that is where a trajectory has them |

    Attributes:
      view: a view, or how configs write one: "n_step:n=5", or a mapping with `view` and its options.
      per_episode: so many items of each sampled episode, each drawn for itself; None for all, in order.
      seed: of the draws.

    Raises:
      ConfigError: a view of several episodes, or a number out of its range.
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
                f"sample: view {self.view}: its items hold steps of several episodes; a sample is one episode"
            )
        if self.per_episode is not None:
            check_count("view: per_episode", self.per_episode)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"sample: view: seed {self.seed!r}: expected a whole number")

    @staticmethod
    def of(given: ViewSpec | View | str | Mapping[str, Any]) -> ViewSpec:
        """What an option may be, as a spec; raises as the class does."""
        return given if isinstance(given, ViewSpec) else ViewSpec(given)


@dataclass(frozen=True)
class SampleOptions:
    """Everything about sampling but the table and the server. Each field is a keyword of `Client.sample`.

    Attributes:
      batch_size: samples per batch.
      streams: connections' streams that sample at the same time. With one, items come in the order of the table's sampler;
        "fifo" needs that.
      prefetch: batches per stream that are asked for, on their way, or ready, before they are read. So many samples the
        server counts as taken although they were not read: `streams * prefetch * batch_size` at most. Rate limiters count
        them, so do `times_sampled` and max_times_sampled, and priorities that change meanwhile come too late for them. By
        default 8 for small items of uniform samplers, else 4, and 1 for tables with a max_times_sampled: what such a table
        gave and was not read is gone. See `default_prefetch`.
      samples: how many in all; None for no end.
      epochs: sample every item that the table holds now so often, and end; needs a table that removes items after as many
        samples, see `owed`.
      drop_last: leave out the last batch where it is shorter than the others.
      timeout_seconds: give up with an error when a batch does not come within so long; None to wait for ever. The default is long
        enough for connections that died without a sign: they are given up for others after 10 seconds, or a minute where
        samples leave the table, and after twice as long the next time. The error says what the table waits for; asking the server for that takes
        a call's deadline more at most. Iterating may continue after it.
      end_after_seconds: end, without an error, when a batch does not come within so long, in place of `timeout_seconds`; None for
        never. The samples that came are the last, short batch. Iterating again continues with what comes later.
      reconnect_seconds: how long a server may be away, when the stream of samples breaks, before that is an error; a question
        that is under way then is not cut short.
      ragged: what becomes of columns whose items differ in shape: "list" of arrays, or "pad": zeros after the end, and
        `info.mask` tells the rows.
      spec: nest of what the columns are called, for tables without a signature; its leaves may be anything.
      decode: decode encoded images; False leaves their bytes.
      arena_bytes: most bytes of decoded chunks that are kept, all streams together.
      pad_to: with ragged="pad": rows of every column that is filled up, so that all batches have one shape; None for those of the
        longest item of the batch.
      slices: cut fixed-length slices out of sampled episodes, see `learner.slices`. `batch_size` then counts slices, and
        `samples` and `prefetch` count episodes, in batches of `request_size`.
      view: cut sampled episodes as a push with this view would have, see `ViewSpec`; counts as for `slices`.
      weights: importance weights in `info.weight`: "batch_max", "unscaled", "acme" or "table_min", see `learner.weights`; None
        for none.
      beta: their exponent, a number or a function of the batch's number (0, 1, ...), which is called when that batch is read.
      min_priority: of "table_min": the smallest priority of the table, a number or a function as for `beta`.
      on_wait: called with the reason why no batch comes, after two seconds and as often again, and with an empty reason once one
        does; from the thread that waits. By default the log `rlds2reverb.learner` has it.

    Raises:
      ConfigError: a number out of its range, or a word that is none of those above.
    """

    batch_size: int = 256
    _: KW_ONLY
    streams: int = 1
    prefetch: int | None = None
    samples: int | None = None
    epochs: int | None = None
    drop_last: bool = False
    timeout_seconds: float | None = GIVE_UP_SECONDS
    end_after_seconds: float | None = None
    reconnect_seconds: float = Deadlines.reconnect
    ragged: str = LIST
    spec: Nest | None = None
    decode: bool = True
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
        check_word("ragged", self.ragged, RAGGED)
        check_pad(self.pad_to, self.ragged)
        check_weights(self.weights, self.beta, self.min_priority)
        self._check_cuts()

    def _check_cuts(self) -> None:
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

    @property
    def cut(self) -> SliceSpec | ViewSpec | None:
        """How sampled episodes are cut, if they are."""
        return self.slices if self.view is None else ViewSpec.of(self.view)

    def in_samples(self, table: TableInfo) -> SampleOptions:
        """These options with the number of samples, where they say how many epochs.

        Raises:
          ConfigError: the table cannot give the epochs that are asked for.
        """
        return self if self.epochs is None else replace(self, samples=owed(table, self.epochs), epochs=None)

    @property
    def request_size(self) -> int:
        """Samples that make a batch; `UNKNOWN_YIELD` at most where the number of items of each is not known."""
        spec = self.cut
        if spec is None:
            return self.batch_size
        per_episode = None if isinstance(spec, SliceSpec) and spec.by == STEP else spec.per_episode
        return min(UNKNOWN_YIELD, self.batch_size) if per_episode is None else -(-self.batch_size // per_episode)

    def prefetch_of(self, table: TableInfo) -> int:
        """`prefetch`, or what a careful learner would choose for the table."""
        if self.prefetch is not None:
            return self.prefetch
        return default_prefetch(table, self.request_size)


def check_pad(pad_to: int | None, ragged: str) -> None:
    """Refuses a `pad_to` that is no whole number of at least 1, or that has nothing to fill up.

    Raises:
      ConfigError: says so.
    """
    if pad_to is None:
        return
    check_count("pad_to", pad_to)
    if ragged != PAD:
        raise ConfigError('sample: pad_to goes with ragged="pad"')


def _check_seconds(name: str, seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 < float(seconds) < math.inf:
        raise ConfigError(f"sample: {name} {seconds!r}: expected a positive number of seconds")


FEWEST, MOST = 4, 8
"""The server's answers are larger, and come with less waiting, the more it is asked for at a time."""

ONCE = 1
"""Of tables whose items leave with their samples: what was taken and not read is gone for good."""

_MOST_BYTES = 32 << 20
"""Of all batches beyond `FEWEST`, by what the table's signature says."""

_FREE_SIZE = 1_000
"""Steps of an episode, and bytes of a text, where the signature leaves them open."""


def default_prefetch(table: TableInfo, batch_size: int) -> int:
    """Batches of so many samples: more where items are small, and drawn whatever their priorities have become meanwhile."""
    if table.max_times_sampled > 0:
        return ONCE
    leaves = [] if table.signature is None else list(flatten(table.signature).values())
    if table.sampler != "uniform" or not leaves or not all(isinstance(leaf, ArraySpec) for leaf in leaves):
        return FEWEST
    batch_bytes = max(1, batch_size * sum(map(_item_bytes, leaves)))
    return min(MOST, max(FEWEST, _MOST_BYTES // batch_bytes))


def _item_bytes(leaf: ArraySpec) -> int:
    sizes = [_FREE_SIZE if size is None else size for size in leaf.shape]
    return math.prod(sizes) * (_FREE_SIZE if leaf.dtype.kind == "O" else leaf.dtype.itemsize)


def owed(table: TableInfo, epochs: int) -> int:
    """Samples of so many passes over a table that hands out every item as often and then removes it; when none was sampled before.

    The server counts, not the client. So it is exact with several learners, too: all of them together get every item n times. The
    table must have `max_times_sampled: n` and a rate limiter that lets all of that through. Any sampler will do:

    | sampler | the n times of an item |
    | --- | --- |
    | fifo, max_times_sampled 1 | one pass, in the order of insertion |
    | uniform, max_times_sampled 1 | one pass, shuffled: sampling without replacement |
    | fifo, max_times_sampled n | n times in a row, item after item, in the order of insertion |
    | uniform, max_times_sampled n | n times in all, anywhere |

    Sampling ends when as many samples came. Where others take some of them, where items were sampled before, or where a stream broke,
    fewer come. Then it ends when the table is empty: it was so at two looks in a row, some seconds apart, and nothing came in between.

    Raises:
      ConfigError: it does not hand out every item so often, or its rate limiter keeps some back, or it is empty.
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
    """Refuses options that do not go together.

    Raises:
      ConfigError: an unknown formula, one that cannot be computed from what Reverb tells, a number out of its range, or an
        option without the one that it belongs to.
    """
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
            checked_number(name, value)


def checked_number(name: str, value: object) -> float:
    """A weight's exponent or smallest priority as a number.

    Raises:
      ConfigError: it is not a number, or out of its range.
    """
    found = np.asarray(value)
    fits = found.ndim == 0 and found.dtype.kind in "iuf"
    number = float(found) if fits else math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and name == "min_priority"):
        least = "more than 0" if name == "min_priority" else "at least 0"
        raise ConfigError(
            f"sample: {name} {value!r}: expected a finite number of {least}, or a function of the batch's number"
        )
    return number


def _is_positive(number: object) -> bool:
    return isinstance(number, (int, float, np.number)) and number is not True and 0 < float(number) < np.inf


def options_of(kind: Callable[_Given, _Options], where: str, *given: _Given.args, **named: _Given.kwargs) -> _Options:
    """The options of a function that takes their fields as arguments of its own.

    Args:
      kind: the class of the options.
      where: the function, as its caller wrote it.
      given, named: the fields.

    Raises:
      TypeError: an argument that there is not, or one that is missing; names the function.
      ConfigError: as the options do.
    """
    try:
        inspect.signature(kind).bind(*given, **named)
    except TypeError as error:  # without this it would name a class that the caller has not called
        raise TypeError(f"{where}: {error}") from None
    return kind(*given, **named)


def check_count(name: str, count: object) -> None:
    """Refuses what is no whole number of at least 1.

    Raises:
      ConfigError: says which option.
    """
    if isinstance(count, bool) or not isinstance(count, Integral) or int(count) < 1:
        raise ConfigError(f"{name} {count!r}: expected a whole number of at least 1")


def check_word(name: str, word: object, known: Sequence[str]) -> None:
    """Refuses a word that is not known.

    Raises:
      ConfigError: says which there are.
    """
    if word not in known:
        raise ConfigError(f"{name} {word!r}: expected one of {', '.join(known)}")
