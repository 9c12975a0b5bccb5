"""A rate limiter's state in words: who waits, and for what.

Source: reverb/cc/rate_limiter.cc. An insert may go on while the table holds fewer than min_size_to_sample items,
or while (inserts + 1) * samples_per_insert - samples <= max_diff. A sample may be taken when the table holds
min_size_to_sample items and inserts * samples_per_insert - samples - 1 >= min_diff. The counts of
ServerInfo go on from those of a restored checkpoint (observed in 0.14).
"""

from __future__ import annotations

import math
import sys

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


def _whole(count: float) -> int:
    """The positive count rounded up; `NEVER` for one that is not finite or that no counter reaches."""
    return math.ceil(count) if count < NEVER else NEVER


def explain_inserts(table: TableInfo) -> str:
    """One sentence: may inserts go on, and if not, what the limiter needs."""
    limiter = table.rate_limiter
    counts = f"{limiter.inserts} inserts and {limiter.samples} samples so far"
    needed = samples_needed(table)
    if not needed:
        return f'table "{table.name}": inserts may go on ({counts})'
    wanted = "what no number of samples gives" if needed == NEVER else f"{needed} more samples"
    return (
        f'table "{table.name}": its rate limiter waits for {wanted} before the next insert '
        f"({counts}, samples_per_insert {limiter.samples_per_insert:g}, max_diff {limiter.max_diff:g})"
    )


def explain_samples(table: TableInfo) -> str:
    """One sentence: may samples be taken, and if not, what the limiter needs."""
    needed = inserts_needed(table)
    if not needed:
        return f'table "{table.name}": samples may be taken ({table.current_size} items)'
    wanted = "no number of inserts is enough" if needed == NEVER else f"{needed} more inserts"
    return (
        f'table "{table.name}": blocked: {wanted} before sampling may go on '
        f"({table.current_size} of at least {table.rate_limiter.min_size_to_sample} items)"
    )
