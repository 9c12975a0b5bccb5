"""How a table is sampled: options, how far ahead, how often each item."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Real
from typing import Any

from rlds2reverb.errors import ConfigError, TransportError
from rlds2reverb.learner.checks import check_count, check_word
from rlds2reverb.learner.slices import STEP, UNKNOWN_YIELD, SliceSpec, ViewSpec
from rlds2reverb.learner.weights import Changing, check_weights
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import Reason
from rlds2reverb.views.base import View
from rlds2reverb.wire.limiter import samples_allowed
from rlds2reverb.wire.messages import TableInfo

LIST, PAD = "list", "pad"
RAGGED = (LIST, PAD)

GIVE_UP_SECONDS = Deadlines.stall
"""How long a learner waits for a batch, where nobody says: as long as a push waits for a confirmation."""


@dataclass(frozen=True)
class SampleOptions:
    """Everything about sampling but the table and the server. Each field is a keyword of `Client.sample`.

    Attributes:
      batch_size: samples per batch.
      streams: connections' streams that sample at the same time. With one, items come in the order of the table's sampler;
        "fifo" needs that.
      prefetch: batches per stream that are asked for, on their way, or ready, before they are read. So many samples the
        server counts as taken although nobody has seen them: `streams * prefetch * batch_size` at most. Rate limiters count
        them, so do `times_sampled` and max_times_sampled, and priorities that change meanwhile come too late for them. By
        default 8 for small items of uniform samplers, else 4, and 1 for tables with a max_times_sampled: what such a table
        gave and nobody read is gone. See `default_prefetch`.
      samples: how many in all; None for no end.
      epochs: sample every item that the table holds now so often, and end; needs a table that removes items after as many
        samples, see `owed`.
      drop_last: leave out the last batch where it is shorter than the others.
      timeout_seconds: give up with an error when a batch does not come within so long; None to wait for ever. The default is long
        enough for connections that died without a sign: they are given up for others after 10 seconds, or a minute where
        samples leave the table, and after twice as long the next time. The error says what the table waits for; asking the server for that takes
        a call's deadline more at most. Iterating may go on after it.
      end_after_seconds: end, without an error, when a batch does not come within so long, in place of `timeout_seconds`; None for
        never. The samples that came are the last, short batch. Iterating again goes on with what comes later.
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
      on_wait: told why no batch comes, after two seconds and as often again, and an empty reason once one does; from the
        thread that waits. By default the log `rlds2reverb.learner` is told.

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
        """Samples that make a batch, or that are asked for at a time where each gives nobody knows how many items."""
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


LOOK_SECONDS = 2.5
"""How long nothing comes before the table is looked at; longer than learners wait until they are told why."""


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


def look_at(transport: Transport, table: TableInfo) -> TableInfo | None:
    """The table as the server tells of it now, None when it is gone; as it was at first when the server does not answer.

    Streams wait for a server that is away as long as they may, and a table that cannot be seen is not an empty one.
    """
    try:
        return transport.server_info().tables.get(table.name)
    except TransportError as error:
        if not error.retryable:
            raise
        return table


class Drained:
    """Tells when a table is empty for good. Ask it when nothing came for `LOOK_SECONDS`.

    Args:
      look: the table, as the server tells of it now; None when it is gone.

    Attributes:
      was_over: what it said last.
    """

    def __init__(self, look: Callable[[], TableInfo | None]) -> None:
        self._look = look
        self._received_when_empty: int | None = None
        self.was_over = False

    def is_over(self, received: int) -> bool:
        """Whether it was empty at the look before, too, and no sample came in between.

        Args:
          received: samples that have come so far.
        """
        table = self._look()
        was = self._received_when_empty
        self._received_when_empty = received if table is None or not table.current_size else None
        self.was_over = self._received_when_empty is not None and was == received
        return self.was_over
