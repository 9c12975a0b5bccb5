"""What a table's rate limiter waits for: as numbers, and as sentences made of them.

Source: reverb/cc/rate_limiter.cc. An insert may go on while the table holds fewer than min_size_to_sample items,
or while (inserts + 1) * samples_per_insert - samples <= max_diff. A sample may be taken when the table holds
min_size_to_sample items and inserts * samples_per_insert - samples - 1 >= min_diff. The counts of
ServerInfo go on from those of a restored checkpoint (observed in 0.14).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Literal

from rlds2reverb.text import counted
from rlds2reverb.wire.messages import TableInfo

NEVER = sys.maxsize
"""What the two counts are when no number is enough."""


def samples_needed(table: TableInfo) -> int:
    """Samples that must be taken before the next insert may go on; 0 when it may, `NEVER` when none help."""
    limiter = table.rate_limiter
    difference = (limiter.inserts + 1) * limiter.samples_per_insert - limiter.samples
    if table.current_size + 1 <= limiter.min_size_to_sample or difference <= limiter.max_diff:
        return 0
    return _whole(difference - limiter.max_diff)


def inserts_needed(table: TableInfo) -> int:
    """Inserts that must come before the next sample may be taken; 0 when it may, `NEVER` when none help."""
    limiter = table.rate_limiter
    missing = max(0, limiter.min_size_to_sample - table.current_size)
    if limiter.inserts * limiter.samples_per_insert - limiter.samples - 1 >= limiter.min_diff:
        return missing
    if not limiter.samples_per_insert > 0:
        return NEVER
    shortfall = (limiter.min_diff + 1 + limiter.samples) / limiter.samples_per_insert - limiter.inserts
    return max(missing, _whole(shortfall))


def inserts_allowed(table: TableInfo) -> int:
    """Inserts that may go on one after the other without a sample in between; `NEVER` for no bound."""
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
    """Samples that may be taken one after the other without an insert in between; `NEVER` for no bound.

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
    """The positive count rounded up; `NEVER` for one that is not finite or that no counter reaches."""
    return math.ceil(count) if count < NEVER else NEVER


@dataclass(frozen=True)
class Wait:
    """What the next insert, or the next sample, of a table waits for.

    Attributes:
      table: as the server last described it.
      of: who waits.
      needed: samples before the next insert, or inserts before the next sample; 0 when nobody waits, `NEVER` when no
        number is enough.
    """

    table: TableInfo
    of: Literal["insert", "sample"]
    needed: int

    @property
    def blocks(self) -> bool:
        """Whether the limiter lets none through now."""
        return self.needed > 0


def insert_wait(table: TableInfo) -> Wait:
    """What the next insert waits for."""
    return Wait(table, "insert", samples_needed(table))


def sample_wait(table: TableInfo) -> Wait:
    """What the next sample waits for."""
    return Wait(table, "sample", inserts_needed(table))


def sentence(wait: Wait) -> str:
    """One sentence that names the table: does it go on, and if not, what the limiter needs."""
    return f'table "{wait.table.name}": {clause(wait)}'


def clause(wait: Wait) -> str:
    """The same without the table's name, for a place that has it already."""
    return _insert_clause(wait) if wait.of == "insert" else _sample_clause(wait)


def _insert_clause(wait: Wait) -> str:
    limiter = wait.table.rate_limiter
    counts = f"{counted(limiter.inserts, 'insert')} and {counted(limiter.samples, 'sample')} so far"
    if not wait.blocks:
        return f"inserts may go on ({counts})"
    wanted = "what no number of samples gives" if wait.needed == NEVER else counted(wait.needed, "more sample")
    return (
        f"its rate limiter waits for {wanted} before the next insert "
        f"({counts}, samples_per_insert {limiter.samples_per_insert:g}, max_diff {limiter.max_diff:g})"
    )


def _sample_clause(wait: Wait) -> str:
    table = wait.table
    if not wait.blocks:
        return f"samples may be taken ({counted(table.current_size, 'item')})"
    wanted = "no number of inserts is enough" if wait.needed == NEVER else counted(wait.needed, "more insert")
    return (
        f"blocked: {wanted} before sampling may go on "
        f"({table.current_size:,} of at least {counted(table.rate_limiter.min_size_to_sample, 'item')})"
    )
