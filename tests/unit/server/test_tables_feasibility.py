"""Dead ends are refused with the reason, and a simulation of the limiter agrees with every verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from replay_server.config import check
from replay_server.tables import DeadEnd, MinSize, Prefill, Queue, RateLimiter, SampleToInsertRatio, Stack, TableConfig

from rlds2reverb.errors import ConfigError

INFINITE, NAN = float("inf"), float("nan")


def ratio(samples: float, buffer: float, min_size: int = 1) -> SampleToInsertRatio:
    return SampleToInsertRatio(samples_per_insert=samples, error_buffer=buffer, min_size=min_size)


def table(limiter: RateLimiter, max_size: int = 10, max_times_sampled: int = 0) -> TableConfig:
    return TableConfig("t", max_size=max_size, max_times_sampled=max_times_sampled, rate_limiter=limiter)


DEAD_ENDS: dict[str, tuple[TableConfig, str, str]] = {
    "no item before a sample": (table(MinSize(min_size=0)), "min_size", "needs at least 1 item .* got 0"),
    "fewer than no item": (table(MinSize(min_size=-4)), "min_size", "needs at least 1 item .* got -4"),
    "more items than it holds": (table(MinSize(min_size=11)), "min_size", "it needs 11 items and holds at most 10"),
    "a ratio that waits for too many": (table(ratio(2, 5, 11)), "min_size", "it needs 11 items and holds at most 10"),
    "a ratio that waits for none": (table(ratio(2, 5, 0)), "min_size", "needs at least 1 item"),
    "no samples an insert": (table(ratio(0, 5)), "samples_per_insert", "must be positive and finite, got 0"),
    "fewer than none": (table(ratio(-3, 1)), "samples_per_insert", "must be positive and finite, got -3"),
    "endless samples": (table(ratio(INFINITE, INFINITE)), "samples_per_insert", "must be positive and finite, got inf"),
    "a ratio of nothing": (table(ratio(NAN, 5)), "samples_per_insert", "must be positive and finite, got nan"),
    "no room": (table(ratio(4, 3)), "error_buffer", "3 leaves no room for one insert or sample; at least 4"),
    "no room for a sample": (table(ratio(0.1, 0.5)), "error_buffer", "0.5 leaves no room .* at least 1"),
    "endless room": (table(ratio(2, INFINITE)), "error_buffer", "must be finite"),
    "room of nothing": (table(ratio(2, NAN)), "error_buffer", "must be finite"),
    "items gone too early": (
        table(ratio(4, 8), max_times_sampled=3),
        "samples_per_insert",
        "inserts wait for 4 samples per item, and an item is removed after max_times_sampled = 3",
    ),
    "an empty queue": (TableConfig.queue("t", 0), "size", "takes no item at all, its size is 0"),
    "an empty stack": (TableConfig.stack("t", -1), "size", "takes no item at all, its size is -1"),
    "a prefill beyond its size": (
        table(Prefill(items=11, then=MinSize())),
        "items",
        "can never hold 11 items, its max_size is 10",
    ),
    "a prefill of nothing": (table(Prefill(items=0, then=MinSize())), "items", "needs at least 1 item"),
    "too much after the prefill": (table(Prefill(items=5, then=ratio(2, 5, 12))), "then.min_size", "it needs 12 items"),
    "nothing after the prefill": (table(Prefill(items=5, then=MinSize(min_size=0))), "then.min_size", "at least 1"),
    "no room after the prefill": (table(Prefill(items=5, then=ratio(2, 1))), "then.error_buffer", "leaves no room"),
}


def dead_ends(config: TableConfig) -> list[DeadEnd]:
    return list(config.rate_limiter.dead_ends(config.max_size, config.max_times_sampled))


@pytest.mark.parametrize(("config", "key", "reason"), DEAD_ENDS.values(), ids=DEAD_ENDS)
def test_a_dead_end_is_refused_with_its_reason_and_path(config: TableConfig, key: str, reason: str) -> None:
    assert [found for found, _ in dead_ends(config)] == [key]
    with pytest.raises(ConfigError, match=f'^table "t": .*{reason}') as caught:
        check([TableConfig("fine"), config])
    assert str(caught.value).endswith(f" - at `$.tables[1].rate_limiter.{key}`")


def test_all_dead_ends_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check([config for config, _, _ in DEAD_ENDS.values()])
    assert len(str(caught.value).splitlines()) == len(DEAD_ENDS)


def test_sensible_tables_are_allowed() -> None:
    check(
        [
            TableConfig("a"),
            TableConfig.queue("q", 1),
            TableConfig.stack("s", 3),
            table(MinSize(min_size=10)),
            table(ratio(4, 4, 10), max_times_sampled=4),
            table(Prefill(items=10, then=ratio(0.5, 1, 10))),
        ]
    )


@dataclass
class Simulated:
    """A table by the rule of `rlds2reverb.wire.messages`: samples go to the oldest item, which is also what goes when full."""

    config: TableConfig
    inserts: int = 0
    samples: int = 0
    items: list[int] = field(default_factory=list)
    """How often each item was sampled."""

    def may_insert(self) -> bool:
        bounds = self.config.rate_limiter.bounds()
        difference = (self.inserts + 1) * bounds.samples_per_insert - self.samples
        return len(self.items) + 1 <= bounds.min_size_to_sample or difference <= bounds.max_diff

    def may_sample(self) -> bool:
        bounds = self.config.rate_limiter.bounds()
        difference = self.inserts * bounds.samples_per_insert - self.samples - 1
        return bool(self.items) and len(self.items) >= bounds.min_size_to_sample and difference >= bounds.min_diff

    def insert(self) -> None:
        self.inserts += 1
        if len(self.items) >= self.config.max_size:
            self.items.pop(0)
        if self.config.max_size > 0:
            self.items.append(0)

    def sample(self) -> None:
        self.samples += 1
        self.items[0] += 1
        if self.items[0] == self.config.max_times_sampled:
            self.items.pop(0)


ROUNDS, MOST = 80, 60
"""Rounds of a simulation, and inserts or samples of one; enough for the small tables here to come to rest."""


def is_alive(config: TableConfig) -> bool:
    """Whether, after many rounds of inserts and samples as long as they may, both still go on.

    An insert counts that fills the table past min_size: below, Reverb lets each one pass, whatever the limiter says.
    """
    simulated, min_size = Simulated(config), config.rate_limiter.bounds().min_size_to_sample
    enough = min(min_size + 1, config.max_size)
    grown = sampled = 0
    for number in range(ROUNDS):
        counts = number >= ROUNDS - 10
        for _ in range(MOST):
            if not simulated.may_insert():
                break
            simulated.insert()
            grown += counts and len(simulated.items) >= enough
        for _ in range(MOST):
            if not simulated.may_sample():
                break
            sampled += counts
            simulated.sample()
    return grown > 0 and sampled > 0


QUARTERS = st.integers(-4, 24).map(lambda n: n / 4)
LIMITERS = (
    st.builds(lambda n: MinSize(min_size=n), st.integers(1, 8))
    | st.builds(ratio, QUARTERS, QUARTERS, st.integers(1, 8))
    | st.builds(lambda r, b, n: ratio(r, max(1.0, r) + b, n), st.integers(1, 8).map(float), QUARTERS, st.integers(1, 6))
)


def prefilled(config: TableConfig, items: int) -> TableConfig:
    settled: Any = config.rate_limiter
    return replace(config, rate_limiter=Prefill(items=items, then=settled))


@given(LIMITERS, st.integers(1, 8), st.integers(0, 8))
@example(ratio(4, 4), 8, 3)
@example(ratio(4, 4), 8, 4)
@example(ratio(2, 1.75), 8, 0)
@example(ratio(0.25, 1), 1, 1)
def test_a_table_is_refused_when_it_comes_to_rest_and_allowed_when_it_goes_on(
    limiter: RateLimiter, max_size: int, max_times_sampled: int
) -> None:
    config = table(limiter, max_size, max_times_sampled)
    refused = dead_ends(config)
    assert bool(refused) or is_alive(config)
    if refused and not only_narrow(refused) and max_size > limiter.min_size:
        assert not is_alive(config)


def only_narrow(refused: list[DeadEnd]) -> bool:
    """Reverb refuses every buffer below max(1, ratio), some of which would do."""
    return [key for key, _ in refused] == ["error_buffer"]


@given(st.builds(ratio, QUARTERS, QUARTERS, st.integers(1, 8)), st.integers(1, 8))
def test_a_buffer_below_half_of_what_one_insert_and_one_sample_need_comes_to_rest(
    limiter: SampleToInsertRatio, max_size: int
) -> None:
    config = table(limiter, max_size)
    if not is_alive(config):
        assert dead_ends(config)


@given(st.integers(-2, 6), st.sampled_from([TableConfig.queue, TableConfig.stack]))
def test_a_queue_or_stack_is_refused_when_nothing_gets_through(size: int, make: Callable[..., TableConfig]) -> None:
    config = make("t", size)
    through = 0
    if size > 0:
        simulated = Simulated(config)
        for _ in range(20):
            while simulated.may_insert():
                simulated.insert()
            assert len(simulated.items) == size
            while simulated.may_sample():
                simulated.sample()
                through += 1
            assert simulated.items == []
    assert bool(dead_ends(config)) == (through == 0)
    assert isinstance(config.rate_limiter, (Queue, Stack))


@given(LIMITERS, st.integers(1, 8), st.integers(0, 8), st.integers(-1, 10))
def test_a_prefill_is_refused_when_it_cannot_end_or_what_follows_is_refused(
    limiter: RateLimiter, max_size: int, max_times_sampled: int, items: int
) -> None:
    settled = table(limiter, max_size, max_times_sampled)
    simulated = Simulated(prefilled(settled, items))
    for _ in range(20):
        assert items < 1 or simulated.may_insert()
        simulated.insert()
    ends = 1 <= items <= len(simulated.items)
    refused = [key for key, _ in dead_ends(prefilled(settled, items))]
    assert ("items" in refused) == (not ends)
    after = [f"then.{key}" for key, _ in dead_ends(settled)]
    assert [key for key in refused if key != "items"] == after
