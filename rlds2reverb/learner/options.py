"""How a table is sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from numbers import Real

from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import Nest
from rlds2reverb.transport.stream_user import Reason

LIST, PAD = "list", "pad"
RAGGED = (LIST, PAD)


def unheard(_: Reason) -> None:
    """Takes reasons to wait, and tells nobody."""


@dataclass(frozen=True)
class SampleOptions:
    """Everything about sampling but the table and the server. Each field is a keyword of `Client.sample`.

    Attributes:
      batch_size: samples per batch.
      streams: connections' streams that sample at the same time. With one, items come in the order of the table's sampler;
        "fifo" needs that.
      prefetch: batches per stream that are asked for, on their way, or ready, before they are read. So many samples the
        server counts as taken although nobody has seen them: `streams * prefetch * batch_size` at most.
      samples: how many in all; None for no end.
      drop_last: leave out the last batch where it is shorter than the others.
      timeout_seconds: give up with an error when no batch came for so long; None to wait for ever.
      end_after_seconds: end, without an error, when no batch came for so long; None for never.
      ragged: what becomes of columns whose items differ in shape: "list" of arrays, or "pad": zeros after the end, and
        `info.mask` tells the rows.
      spec: nest of what the columns are called, for tables without a signature; its leaves may be anything.
      decode: decode encoded images; False leaves their bytes.
      arena_bytes: most bytes of decoded chunks that are kept, all streams together.
      on_wait: told why no sample comes, and an empty reason once one does; from the caller's thread.

    Raises:
      ConfigError: a number out of its range, or a word that is none of those above.
    """

    batch_size: int = 256
    _: KW_ONLY
    streams: int = 1
    prefetch: int = 4
    samples: int | None = None
    drop_last: bool = False
    timeout_seconds: float | None = None
    end_after_seconds: float | None = None
    ragged: str = LIST
    spec: Nest | None = None
    decode: bool = True
    arena_bytes: int = 256 << 20
    on_wait: Callable[[Reason], object] = field(default=unheard, compare=False)

    def __post_init__(self) -> None:
        for name in ("batch_size", "streams", "prefetch", "arena_bytes"):
            check_count(name, getattr(self, name))
        if self.samples is not None:
            check_count("samples", self.samples)
        for name in ("timeout_seconds", "end_after_seconds"):
            _check_seconds(name, getattr(self, name))
        if self.timeout_seconds is not None and self.end_after_seconds is not None:
            raise ConfigError("sample: timeout_seconds is an error and end_after_seconds is none; give one of them")
        if self.ragged not in RAGGED:
            raise ConfigError(f"sample: ragged {self.ragged!r}: expected one of {', '.join(RAGGED)}")


def check_count(name: str, count: object) -> None:
    """Refuses what is no whole number of at least 1.

    Raises:
      ConfigError: says which option.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"sample: {name} {count!r}: expected a whole number of at least 1")


def _check_seconds(name: str, seconds: object) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) > 0:
        raise ConfigError(f"sample: {name} {seconds!r}: expected a positive number, or None")
