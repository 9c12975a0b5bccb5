"""Tables as plain values: what they hold, their selectors and rate limiters. `library` makes tables of Reverb of them."""

from __future__ import annotations

import random
import sys
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from msgspec import Meta, Struct

from rlds2reverb.specs import Nest

# Reverb lets an insert pass while (inserts + 1) * samples_per_insert - samples <= max_diff, and a sample while the table
# holds min_size_to_sample items and inserts * samples_per_insert - samples - 1 >= min_diff; see rlds2reverb.wire.messages.
# Source of the four kinds and their bounds: rate_limiters.py of dm-reverb 0.14.
#
# | kind | its table | dead ends | a new limiter's count of samples |
# | --- | --- | --- | --- |
# | min_size | any | min_size | as many as put the difference halfway between the bounds |
# | sample_to_insert_ratio | any | min_size, the ratio, its buffer | the same |
# | queue, stack | of its own: `Shape` | size | one per item that has left |
# | prefill | any | items, and those of `then` | as of the limiter that holds now |

MOST = 2**31 - 1  # items of a table, or samples of one: an int of C++

_UNBOUNDED = sys.float_info.max


class Bounds(Struct, frozen=True):
    """The four numbers that Reverb makes of any rate limiter."""

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float

    @property
    def differences(self) -> tuple[float, float, float]:
        """All but the items to wait for: what keeps samples and inserts in proportion."""
        return self.samples_per_insert, self.min_diff, self.max_diff

    @property
    def centre(self) -> float:
        """The best difference for a new table: halfway between the two bounds."""
        return (self.min_diff + self.max_diff) / 2 if self.min_diff > -_UNBOUNDED else 0.0

    @property
    def has_ratio(self) -> bool:
        return self.max_diff < _UNBOUNDED


@dataclass(frozen=True)
class Shape:
    """What a table must be where its limiter leaves no choice."""

    sampler: Selector
    remover: Selector
    max_size: int
    max_times_sampled: int


class DeadEnd(NamedTuple):
    """Why a table can never be filled or sampled: the limiter's key at fault, and a reason for people."""

    key: str
    reason: str


class _Kind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Base of all kinds, with the answers that most of them give; `kind` names one in YAML."""

    is_prefill: ClassVar[bool] = False  # only the limiter while the table fills

    @property
    def shape(self) -> Shape | None:
        """What its table must be; None where the config chooses."""
        return None

    @abstractmethod
    def bounds(self) -> Bounds:
        """As Reverb has them."""

    @abstractmethod
    def dead_ends(self, max_size: int, max_times_sampled: int) -> Iterator[DeadEnd]:
        """Everything that keeps a table with these limits from ever being filled or sampled."""

    def samples_at_start(self, inserts: int, held: int) -> int:
        """Where a limiter that is new to a restored table starts counting samples.

        Args:
          inserts: into the table, since its first day.
          held: items in it now.
        """
        bounds = self.bounds()
        return max(0, round(inserts * bounds.samples_per_insert - bounds.centre))

    def is_filled(self, held: int, before: Bounds) -> bool:
        """Whether a prefill ends at this start: the table holds `held` items, and its limiter had the bounds `before`."""
        return False

    def settled(self) -> Any:
        """The limiter once the table is filled."""
        return self

    def words(self) -> str:
        """Its kind, for people."""
        return type(self).__name__


class MinSize(_Kind, frozen=True, tag="min_size"):
    """Samples wait until the table holds `min_size` items; inserts never wait."""

    min_size: int = 1

    def bounds(self) -> Bounds:
        return Bounds(1.0, self.min_size, -_UNBOUNDED, _UNBOUNDED)

    def dead_ends(self, max_size: int, max_times_sampled: int) -> Iterator[DeadEnd]:
        return _too_small(self.min_size, max_size)


class SampleToInsertRatio(_Kind, frozen=True, tag="sample_to_insert_ratio"):
    """Keeps `samples_per_insert` samples per insert, within `error_buffer` samples, once there are `min_size` items."""

    samples_per_insert: float
    error_buffer: float
    min_size: int = 1

    def bounds(self) -> Bounds:
        centre = self.samples_per_insert * self.min_size
        return Bounds(self.samples_per_insert, self.min_size, centre - self.error_buffer, centre + self.error_buffer)

    def dead_ends(self, max_size: int, max_times_sampled: int) -> Iterator[DeadEnd]:
        yield from _too_small(self.min_size, max_size)
        ratio, buffer = self.samples_per_insert, self.error_buffer
        if not (ratio > 0 and isfinite(ratio)):
            yield DeadEnd("samples_per_insert", f"must be positive and finite, got {ratio:g}")
            return
        if not isfinite(buffer):
            yield DeadEnd("error_buffer", f"must be finite, got {buffer:g}; min_size is the limiter without a ratio")
        elif buffer < (least := max(1.0, ratio)):
            yield DeadEnd("error_buffer", f"{buffer:g} leaves no room for one insert or sample; at least {least:g}")
        if 0 < max_times_sampled < ratio:
            yield DeadEnd(
                "samples_per_insert",
                f"can never be kept: inserts wait for {ratio:g} samples per item, and an item is removed after "
                f"max_times_sampled = {max_times_sampled}; soon none passes but below min_size = {self.min_size}",
            )


class _Once(_Kind, frozen=True):
    """Base of queue and stack: each item is sampled once, and inserts wait while `size` items wait."""

    size: Annotated[int, Meta(le=MOST)]

    selector: ClassVar[Selector]

    @property
    def shape(self) -> Shape:
        return Shape(self.selector, self.selector, self.size, 1)

    def bounds(self) -> Bounds:
        return Bounds(1.0, 1, 0.0, float(self.size))

    def dead_ends(self, max_size: int, max_times_sampled: int) -> Iterator[DeadEnd]:
        if self.size < 1:
            yield DeadEnd("size", f"takes no item at all, its size is {self.size}")

    def samples_at_start(self, inserts: int, held: int) -> int:
        """Each item that it holds waits for its one sample; all others have had theirs."""
        return inserts - held


class Queue(_Once, frozen=True, tag="queue"):
    """First in, first out: each item is sampled once, and inserts wait while `size` items wait."""

    selector: ClassVar[Selector] = "fifo"


class Stack(_Once, frozen=True, tag="stack"):
    """Last in, first out: each item is sampled once, and inserts wait while `size` items wait."""

    selector: ClassVar[Selector] = "lifo"


class Prefill(_Kind, frozen=True, tag="prefill"):
    """MinSize(`items`) while a bulk push fills the table; `then`, from the first start that finds `items` items in it.

    Reverb cannot change the limiter of a running table, so the change comes with a restart; see docs/runbook.md.
    """

    items: int
    then: MinSize | SampleToInsertRatio

    is_prefill: ClassVar[bool] = True

    def bounds(self) -> Bounds:
        return MinSize(min_size=self.items).bounds()

    def dead_ends(self, max_size: int, max_times_sampled: int) -> Iterator[DeadEnd]:
        if self.items < 1:
            yield DeadEnd("items", f"needs at least 1 item before the first sample, got {self.items}")
        if self.items > max_size:
            yield DeadEnd("items", f"can never hold {self.items} items, its max_size is {max_size}")
        for key, reason in self.then.dead_ends(max_size, max_times_sampled):
            yield DeadEnd(f"then.{key}", reason)

    def is_filled(self, held: int, before: Bounds) -> bool:
        """There are enough items, or an earlier start has found that there were."""
        return held >= self.items or before == self.then.bounds()

    def settled(self) -> MinSize | SampleToInsertRatio:
        return self.then

    def words(self) -> str:
        return f"{self.then.words()} after a prefill of {self.items} items"


RateLimiter = MinSize | SampleToInsertRatio | Queue | Stack | Prefill


def _too_small(min_size: int, max_size: int) -> Iterator[DeadEnd]:
    if min_size < 1:
        yield DeadEnd("min_size", f"needs at least 1 item before the first sample, got {min_size}")
    if min_size > max_size:
        reason = f"can never be sampled: it needs {min_size} items and holds at most {max_size}"
        yield DeadEnd("min_size", reason)


@dataclass(frozen=True)
class TableConfig:
    """One table. The defaults here are those of the server's config and of every file that it writes.

    Attributes:
      name: the table's name.
      signature: nest of `ArraySpec` (`table_signature(view.signature(step_spec), view)`), or None for a table that takes anything.
      max_size: items; more inserted are removed by `remover`.
      sampler, remover: each one of `SELECTORS`; a queue or stack has its own.
      priority_exponent: of "prioritized" selectors.
      max_times_sampled: samples of one item before it is removed; 0 for no limit, 1 in a queue or stack.
      rate_limiter: one of the limiters above, a queue or a stack.
    """

    name: str
    signature: Nest | None = None
    max_size: int = 1_000_000
    sampler: Selector = "uniform"
    remover: Selector = "fifo"
    priority_exponent: float = 0.8
    max_times_sampled: int = 0
    rate_limiter: RateLimiter = MinSize()

    @staticmethod
    def queue(name: str, size: int, signature: Nest | None = None) -> TableConfig:
        """First in, first out; each item is sampled once."""
        return TableConfig(name, signature).with_limiter(Queue(size=size))

    @staticmethod
    def stack(name: str, size: int, signature: Nest | None = None) -> TableConfig:
        """Last in, first out; each item is sampled once."""
        return TableConfig(name, signature).with_limiter(Stack(size=size))

    def with_limiter(self, limiter: RateLimiter) -> TableConfig:
        """The table with this limiter, in the shape that the limiter requires."""
        return replace(self, rate_limiter=limiter, **({} if limiter.shape is None else asdict(limiter.shape)))

    def filled(self) -> TableConfig:
        """The table after its prefill; itself without a prefill."""
        return replace(self, rate_limiter=self.rate_limiter.settled())


Selector = Literal["uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized"]
SELECTORS: tuple[Selector, ...] = get_args(Selector)

Entries = list[tuple[float, int]]  # (priority, key) of items, in the order of their insertion


def removal_order(remover: str, entries: Entries) -> Entries:
    """The items in the order in which a remover would take them out; by chance for one that draws."""
    if remover == "fifo":
        return entries
    if remover == "lifo":
        return entries[::-1]
    if remover in ("min_heap", "max_heap"):
        return sorted(entries, reverse=remover == "max_heap")
    return random.sample(entries, len(entries))
