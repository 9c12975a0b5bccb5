"""The messages of Reverb as values, without bytes and sockets; and what a table's rate limiter waits for, in numbers and in sentences.

The nouns are Reverb's: a *chunk* holds consecutive rows of all columns, an *item* points into chunks.

Source of the limiter's rules: reverb/cc/rate_limiter.cc. An insert is let through while the table holds fewer than min_size_to_sample items,
or while (inserts + 1) * samples_per_insert - samples <= max_diff. A sample is let through when the table holds
min_size_to_sample items and inserts * samples_per_insert - samples - 1 >= min_diff. The counts of
ServerInfo continue those of a restored checkpoint (observed in 0.14).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from rlds2reverb.episode import Array
from rlds2reverb.specs import Nest
from rlds2reverb.text import as_html, counted


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
    """Consecutive rows of an episode."""

    key: int  # 64-bit key
    episode_id: int  # 64-bit number of the episode on the wire (not `Episode.id`)
    # rows [start, stop) of the episode
    start: int
    stop: int
    tensors: tuple[Array, ...]  # one array [stop - start, ...] per column


@dataclass(frozen=True, eq=False)
class InsertRequest:
    """One message of the insert stream."""

    chunks: tuple[Chunk, ...]
    items: tuple[Item, ...]
    keep_chunk_keys: tuple[int, ...]


@dataclass(frozen=True)
class SampleRequest:
    """One message to the sample stream."""

    table: str
    samples: int
    # how long the server's rate limiter may keep a batch of them waiting; None for ever
    timeout_seconds: float | None = None

    def without(self, taken: int) -> SampleRequest:
        """The rest of it after `taken` samples."""
        return replace(self, samples=self.samples - taken)


_UNBOUNDED = 1e300  # wider bounds are none: Reverb's own unbounded ones are the largest floats


@dataclass(frozen=True)
class RateLimiter:
    """A table's rate limiter. Inserts minus samples (in inserts' terms) stay in [min_diff, max_diff].

    Attributes:
      samples_per_insert, min_diff, max_diff: see the module for the inequality.
      min_size_to_sample: items needed before the first sample.
      inserts, samples: completed calls, those of a restored checkpoint included.
    """

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    inserts: int
    samples: int

    @property
    def wanted_ratio(self) -> float | None:
        """Samples per insert that it enforces; None for any."""
        is_free = self.min_diff <= -_UNBOUNDED and self.max_diff >= _UNBOUNDED
        return None if is_free or not self.samples_per_insert > 0 else self.samples_per_insert


@dataclass(frozen=True)
class WorkerTime:
    """How a table's worker thread has spent its time since the server started, in seconds."""

    running: float = 0.0  # all its work, sampling and inserting included
    # serving the one or the other
    sampling: float = 0.0
    inserting: float = 0.0
    sleeping: float = 0.0  # without a request
    waiting_for_samples: float = 0.0  # inserts waited for the rate limiter
    waiting_for_inserts: float = 0.0  # samples waited for it


@dataclass(frozen=True)
class TableInfo:
    """One table as ServerInfo describes it.

    Attributes:
      name: the table's name.
      sampler, remover: "uniform", "fifo", "lifo", "prioritized(0.8)", "max_heap" or "min_heap".
      max_size: items; more inserted removes by the remover.
      current_size: items held now.
      max_times_sampled: samples of one item before it is removed; 0 or less for no limit.
      rate_limiter: its state.
      signature: nest of `ArraySpec`, or None when the table has no signature.
      episodes, deleted_episodes, unique_samples: counts since the server started.
      worker: how its worker thread has spent its time.
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

    _repr_html_ = as_html

    @property
    def free(self) -> int:
        """Items that fit beside those it holds."""
        return self.max_size - self.current_size


def priority_exponent(selector: str) -> float | None:
    """The exponent of a prioritized selector; None for any other. The inverse of `codec`'s text."""
    kind, _, exponent = selector.rstrip(")").partition("(")
    return float(exponent) if kind == "prioritized" else None


JOURNAL = "rlds2reverb.journal"
"""The table in which `rlds2reverb serve` keeps its journal; see `servers.journal`."""

EPISODES, DELETED = "rlds2reverb.episodes", "rlds2reverb.deleted"
"""The tables in which it keeps what pushes have stored, and what stays out; see `servers.episodes`."""

OWN_TABLES = (JOURNAL, EPISODES, DELETED)
"""Names of the tables that `rlds2reverb serve` keeps for itself."""


def is_own(table: str) -> bool:
    """Whether `rlds2reverb serve` keeps a table of this name for itself. Other names that begin alike are anybody's."""
    return table in OWN_TABLES


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
    """An empty table, as a server describes it."""
    return TableInfo(name, sampler, remover, max_size, 0, 0, rate_limiter, signature, 0, 0, 0)


@dataclass(frozen=True)
class ServerInfo:
    """All tables, and a number that is drawn anew whenever a server process starts.

    Attributes:
      state_id: 128-bit `tables_state_id`; another value means another server process (observed in 0.14).
      tables: by name.
      own_tables: what `rlds2reverb serve` keeps for itself, by name; {} on any other server. They are in no list of tables, size or sum.
    """

    state_id: int
    tables: dict[str, TableInfo]
    own_tables: dict[str, TableInfo] = field(default_factory=dict)

    _repr_html_ = as_html

    @staticmethod
    def of(state_id: int, tables: Iterable[TableInfo]) -> ServerInfo:
        """From all tables of an answer."""
        own_tables, others = dict[str, TableInfo](), dict[str, TableInfo]()
        for table in tables:
            (own_tables if is_own(table.name) else others)[table.name] = table
        return ServerInfo(state_id, others, own_tables)


NEVER = sys.maxsize
"""A count when no number is enough, or when there is no bound."""


def samples_needed(table: TableInfo) -> int:
    """Samples that the next insert waits for; 0 when it is let through, `NEVER` when no number helps."""
    limiter = table.rate_limiter
    difference = (limiter.inserts + 1) * limiter.samples_per_insert - limiter.samples
    # Reverb lets inserts through freely until the table may be sampled: no sample could make place for them before.
    if table.current_size + 1 <= limiter.min_size_to_sample or difference <= limiter.max_diff:
        return 0
    return _whole(difference - limiter.max_diff)


def inserts_needed(table: TableInfo) -> int:
    """Inserts that the next sample waits for; 0 when it is let through, `NEVER` when no number helps."""
    limiter = table.rate_limiter
    missing = max(0, limiter.min_size_to_sample - table.current_size)
    if limiter.inserts * limiter.samples_per_insert - limiter.samples - 1 >= limiter.min_diff:
        return missing
    if not limiter.samples_per_insert > 0:
        return NEVER
    shortfall = (limiter.min_diff + 1 + limiter.samples) / limiter.samples_per_insert - limiter.inserts
    return max(missing, _whole(shortfall))


def inserts_allowed(table: TableInfo) -> int:
    """Inserts let through one after the other without a sample in between; `NEVER` for no bound."""
    limiter = table.rate_limiter
    before_sampling = max(0, limiter.min_size_to_sample - table.current_size)
    if not limiter.samples_per_insert > 0:
        difference = (limiter.inserts + 1) * limiter.samples_per_insert - limiter.samples
        return NEVER if difference <= limiter.max_diff else before_sampling
    count = (limiter.max_diff + limiter.samples) / limiter.samples_per_insert - limiter.inserts
    if count >= NEVER:
        return NEVER
    return max(before_sampling, math.floor(count)) if count > 0 else before_sampling


def samples_allowed(table: TableInfo) -> int:
    """Samples let through one after the other without an insert in between; `NEVER` for no bound.

    Of items that leave with their first sample there are no more than the table holds. With a max_times_sampled over 1 only the
    limiter counts here: how often items were sampled before is known of samples alone.
    """
    if inserts_needed(table):
        return 0
    limiter = table.rate_limiter
    count = limiter.inserts * limiter.samples_per_insert - limiter.samples - limiter.min_diff
    allowed = math.floor(count) if count < NEVER else NEVER
    if table.max_times_sampled == 1:
        return min(allowed, table.current_size - max(1, limiter.min_size_to_sample) + 1)
    return allowed


def waits_when_full(table: TableInfo) -> bool:
    """Whether inserts wait for samples before the table is larger than its max_size, so that it never evicts.

    So do queues and stacks: an item leaves with its first sample, and inserts are at most max_diff ahead of samples.
    """
    limiter = table.rate_limiter
    return (
        table.max_times_sampled == 1
        and limiter.samples_per_insert >= 1
        and max(limiter.max_diff, limiter.min_size_to_sample) <= table.max_size
    )


def _whole(count: float) -> int:
    """A positive count rounded up; `NEVER` for one that is not finite or that no counter reaches."""
    return math.ceil(count) if count < NEVER else NEVER


@dataclass(frozen=True)
class Wait:
    """What the next insert, or the next sample, of a table waits for."""

    table: TableInfo  # as the server last described it
    of: Literal["insert", "sample"]  # who waits
    # samples before the next insert, or inserts before the next sample; 0 for none, `NEVER` when no number is enough
    needed: int

    @property
    def blocks(self) -> bool:
        return self.needed > 0


def insert_wait(table: TableInfo) -> Wait:
    return Wait(table, "insert", samples_needed(table))


def sample_wait(table: TableInfo) -> Wait:
    return Wait(table, "sample", inserts_needed(table))


def sentence(wait: Wait) -> str:
    """One sentence with the table's name: whether it proceeds, and if not, what the limiter needs."""
    return f'table "{wait.table.name}": {clause(wait)}'


def waiting(wait: Wait) -> str:
    """The plain sentence, such as "sampling waits for 3 more inserts"; "" for what proceeds."""
    if not wait.blocks:
        return ""
    who, other = ("sampling", "insert") if wait.of == "sample" else ("inserting", "sample")
    if wait.needed == NEVER:
        return f"{who} waits for ever: no number of {other}s is enough"
    return f"{who} waits for {counted(wait.needed, f'more {other}')}"


def reason(wait: Wait) -> str:
    """What blocks, in a few words with numbers, such as "4.55 samples per insert, limit 4"; "" for what proceeds.

    Of a limiter's two conditions it is the one that needs more: the number of items, or the samples per insert.
    """
    table, limiter = wait.table, wait.table.rate_limiter
    if not wait.blocks:
        return ""
    missing = limiter.min_size_to_sample - table.current_size
    if wait.of == "sample" and (missing >= wait.needed or not limiter.inserts):
        return f"{table.current_size:,} of at least {counted(limiter.min_size_to_sample, 'item')}"
    if wait.of == "insert" and table.max_times_sampled == 1 and limiter.samples_per_insert == 1:
        return f"{counted(table.current_size, 'item')} not sampled yet, limit {limiter.max_diff:,g}"
    if not limiter.inserts:
        return f"no inserts yet, {counted(limiter.samples, 'sample')}"
    after, bound = (0, limiter.min_diff) if wait.of == "sample" else (1, limiter.max_diff)
    limit = ((limiter.inserts + after) * limiter.samples_per_insert - bound) / limiter.inserts
    words = "limit" if wait.of == "sample" else "at least"
    target = f"{limiter.samples_per_insert:.3g}"
    ratio = f"{limiter.samples / limiter.inserts:.3g} samples per insert, {words} {limit:.3g}"
    # The limit of so many inserts nears the target as they grow; until then, the target alone would seem to contradict it.
    return ratio if f"{limit:.3g}" == target else f"{ratio} after {counted(limiter.inserts, 'insert')}, target {target}"


def clause(wait: Wait) -> str:
    """`sentence` without the table's name: `waiting` with its numbers, or that it proceeds."""
    table, limiter = wait.table, wait.table.rate_limiter
    if wait.of == "sample":
        if not wait.blocks:
            return f"samples may be taken ({counted(table.current_size, 'item')})"
        return f"{waiting(wait)} ({reason(wait)})"
    counts = f"{counted(limiter.inserts, 'insert')} and {counted(limiter.samples, 'sample')} so far"
    if not wait.blocks:
        return f"inserts may go on ({counts})"
    return (
        f"{waiting(wait)} ({counts}, samples_per_insert {limiter.samples_per_insert:g}, max_diff {limiter.max_diff:g})"
    )
