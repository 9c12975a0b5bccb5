"""How a table is sampled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from numbers import Real

from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import Nest
from rlds2reverb.transport.stream_user import Reason
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.wire.messages import TableInfo

LIST, PAD = "list", "pad"
RAGGED = (LIST, PAD)

PREFETCH = 4
PREFETCH_ONCE = 1
"""Of tables whose items leave with their samples: what was taken and not read is gone for good."""


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
        default 4, and 1 for tables with a max_times_sampled: what such a table gave and nobody read is gone.
      samples: how many in all; None for no end.
      drop_last: leave out the last batch where it is shorter than the others.
      timeout_seconds: give up with an error when a batch does not come within so long; None to wait for ever. The error says
        what the table waits for; asking the server for that takes a call's deadline more at most. Iterating may go on after it.
      end_after_seconds: end, without an error, when a batch does not come within so long; None for never. The samples that
        came are the last, short batch. Iterating again goes on with what comes later.
      reconnect_seconds: how long a server may be away, when the stream of samples breaks, before that is an error; a question
        that is under way then is not cut short.
      ragged: what becomes of columns whose items differ in shape: "list" of arrays, or "pad": zeros after the end, and
        `info.mask` tells the rows.
      spec: nest of what the columns are called, for tables without a signature; its leaves may be anything.
      decode: decode encoded images; False leaves their bytes.
      arena_bytes: most bytes of decoded chunks that are kept, all streams together.
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
    drop_last: bool = False
    timeout_seconds: float | None = None
    end_after_seconds: float | None = None
    reconnect_seconds: float = Deadlines.reconnect
    ragged: str = LIST
    spec: Nest | None = None
    decode: bool = True
    arena_bytes: int = 256 << 20
    on_wait: Callable[[Reason], object] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("batch_size", "streams", "arena_bytes"):
            check_count(name, getattr(self, name))
        for name in ("prefetch", "samples"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("timeout_seconds", "end_after_seconds"):
            if getattr(self, name) is not None:
                _check_seconds(name, getattr(self, name))
        _check_seconds("reconnect_seconds", self.reconnect_seconds)
        if self.timeout_seconds is not None and self.end_after_seconds is not None:
            raise ConfigError("sample: timeout_seconds is an error and end_after_seconds is none; give one of them")
        if self.ragged not in RAGGED:
            raise ConfigError(f"sample: ragged {self.ragged!r}: expected one of {', '.join(RAGGED)}")

    def prefetch_of(self, table: TableInfo) -> int:
        """`prefetch`, or what a careful learner would choose for the table."""
        if self.prefetch is not None:
            return self.prefetch
        return PREFETCH_ONCE if table.max_times_sampled > 0 else PREFETCH


def check_count(name: str, count: object) -> None:
    """Refuses what is no whole number of at least 1.

    Raises:
      ConfigError: says which option.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"sample: {name} {count!r}: expected a whole number of at least 1")


def _check_seconds(name: str, seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 < float(seconds) < math.inf:
        raise ConfigError(f"sample: {name} {seconds!r}: expected a positive number of seconds")
