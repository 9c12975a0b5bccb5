"""What travels, as values: no bytes, no sockets.

The nouns are Reverb's: a *chunk* holds consecutive rows of all columns, an *item* points into chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlds2reverb.display import as_html
from rlds2reverb.episode import Array
from rlds2reverb.specs import Nest


@dataclass(frozen=True)
class Slice:
    """Rows [offset, offset + length) of tensor `column` in the chunk `chunk_key`."""

    chunk_key: int
    offset: int
    length: int
    column: int


@dataclass(frozen=True)
class ItemColumn:
    """One column of an item: its slices joined along the rows; `squeeze` drops that axis."""

    slices: tuple[Slice, ...]
    squeeze: bool = False


@dataclass(frozen=True)
class Item:
    """One prioritized item of a table; the columns stand in the order of the table's signature."""

    key: int
    table: str
    priority: float
    columns: tuple[ItemColumn, ...]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows of an episode.

    Attributes:
      key: 64-bit key.
      episode_id: 64-bit number of the episode on the wire (not `Episode.id`).
      start, stop: rows [start, stop) of the episode.
      tensors: one array [stop - start, ...] per column.
    """

    key: int
    episode_id: int
    start: int
    stop: int
    tensors: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class InsertRequest:
    """One message of the insert stream."""

    chunks: tuple[Chunk, ...]
    items: tuple[Item, ...]
    keep_chunk_keys: tuple[int, ...]


@dataclass(frozen=True)
class SampleRequest:
    """One message to the sample stream.

    Attributes:
      table: its name.
      samples: how many are wanted.
      timeout_seconds: how long the server's rate limiter may keep a batch of them waiting; None for ever.
    """

    table: str
    samples: int
    timeout_seconds: float | None = None

    def without(self, taken: int) -> SampleRequest:
        """What is left of it after so many samples."""
        return replace(self, samples=self.samples - taken)


@dataclass(frozen=True)
class RateLimiter:
    """A table's rate limiter. Inserts minus samples (in inserts' terms) stay in [min_diff, max_diff].

    Attributes:
      samples_per_insert, min_diff, max_diff: see `wire.limiter` for the inequality.
      min_size_to_sample: items needed before the first sample.
      inserts, samples: completed calls, those of a restored checkpoint included.
    """

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    inserts: int
    samples: int


@dataclass(frozen=True)
class WorkerTime:
    """What a table's worker thread has done since the server started, in seconds.

    Attributes:
      running: all its work, sampling and inserting included.
      sampling, inserting: serving the one or the other.
      sleeping: nothing was asked of it.
      waiting_for_samples: inserts waited for the rate limiter.
      waiting_for_inserts: samples waited for it.
    """

    running: float = 0.0
    sampling: float = 0.0
    inserting: float = 0.0
    sleeping: float = 0.0
    waiting_for_samples: float = 0.0
    waiting_for_inserts: float = 0.0


@dataclass(frozen=True)
class TableInfo:
    """One table as ServerInfo tells it.

    Attributes:
      name: the table's name.
      sampler, remover: "uniform", "fifo", "lifo", "prioritized(0.8)", "max_heap" or "min_heap".
      max_size: items; more inserted removes by the remover.
      current_size: items held now.
      max_times_sampled: samples of one item before it is removed; 0 or less for no limit.
      rate_limiter: its state.
      signature: nest of `ArraySpec`, or None when the table has no signature.
      episodes, deleted_episodes, unique_samples: counts since the server started.
      worker: what its worker thread has done.
    """

    name: str
    sampler: str
    remover: str
    max_size: int
    current_size: int
    max_times_sampled: int
    rate_limiter: RateLimiter
    signature: Nest | None
    episodes: int
    deleted_episodes: int
    unique_samples: int
    worker: WorkerTime = WorkerTime()

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def free(self) -> int:
        """Items that fit beside those it holds."""
        return self.max_size - self.current_size


FREE_LIMITER = RateLimiter(1.0, -1e300, 1e300, 1, 0, 0)
"""A rate limiter that lets everything through once there is an item."""


def table_info(
    name: str = "replay",
    signature: Nest | None = None,
    max_size: int = 1000,
    sampler: str = "uniform",
    remover: str = "fifo",
    rate_limiter: RateLimiter = FREE_LIMITER,
) -> TableInfo:
    """An empty table, as a server tells of it."""
    return TableInfo(name, sampler, remover, max_size, 0, 0, rate_limiter, signature, 0, 0, 0)


@dataclass(frozen=True)
class ServerInfo:
    """All tables, and a number that is drawn anew whenever a server process starts.

    Attributes:
      state_id: 128-bit `tables_state_id`; another value means another server process (observed in 0.14).
      tables: by name.
    """

    state_id: int
    tables: dict[str, TableInfo]

    def _repr_html_(self) -> str:
        return as_html(self)
