"""Messages are values: they cannot be changed, and compare by what they say."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlds2reverb.wire.messages import (
    NEVER,
    Chunk,
    InsertRequest,
    Item,
    ItemColumn,
    RateLimiter,
    ServerInfo,
    Slice,
    TableInfo,
    Wait,
    clause,
    insert_wait,
    inserts_allowed,
    inserts_needed,
    reason,
    sample_wait,
    samples_allowed,
    samples_needed,
    sentence,
    waiting,
    waits_when_full,
)

SLICE = Slice(chunk_key=1, offset=2, length=3, column=4)
ITEM = Item(5, "replay", 1.5, (ItemColumn((SLICE,)),))
CHUNK = Chunk(1, 2, 0, 3, (np.zeros(3),))
LIMITER = RateLimiter(1.0, 0.0, 5.0, 1, 0, 0)
TABLE = TableInfo("replay", "uniform", "fifo", 10, 0, 0, LIMITER, None, 0, 0, 0)
ALL = [SLICE, ITEM, ITEM.columns[0], CHUNK, InsertRequest((CHUNK,), (ITEM,), (1,)), LIMITER, TABLE, ServerInfo(1, {})]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_message_cannot_be_changed(message: Any) -> None:
    for field in dataclasses.fields(message):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, field.name, None)


def test_items_compare_by_value() -> None:
    assert dataclasses.replace(ITEM, columns=(ItemColumn((Slice(1, 2, 3, 4),)),)) == ITEM
    assert dataclasses.replace(ITEM, columns=(ItemColumn((SLICE,), squeeze=True),)) != ITEM
    assert len({ITEM, dataclasses.replace(ITEM)}) == 1


def test_a_column_keeps_its_first_axis_unless_told() -> None:
    assert not ItemColumn((SLICE,)).squeeze


# The limiter's counts against a simulation of Reverb's rule, one insert or sample at a time.

DBL_MAX = sys.float_info.max
PATIENCE = 1000


def table(limiter: RateLimiter, current_size: int = 0) -> TableInfo:
    return TableInfo("replay", "uniform", "fifo", 10**9, current_size, 0, limiter, None, 0, 0, 0)


def may_insert(size: int, limiter: RateLimiter) -> bool:
    """CanInsert of rate_limiter.cc, for one insert."""
    if size + 1 <= limiter.min_size_to_sample:
        return True
    return (limiter.inserts + 1) * limiter.samples_per_insert - limiter.samples <= limiter.max_diff


def may_sample(size: int, limiter: RateLimiter) -> bool:
    """CanSample of rate_limiter.cc, for one sample."""
    if size < limiter.min_size_to_sample:
        return False
    return limiter.inserts * limiter.samples_per_insert - limiter.samples - 1 >= limiter.min_diff


def simulated_samples(info: TableInfo) -> int | None:
    """Samples taken one by one until an insert may go on; None when they do not help."""
    for taken in range(PATIENCE):
        limiter = replace(info.rate_limiter, samples=info.rate_limiter.samples + taken)
        if may_insert(info.current_size, limiter):
            return taken
    return None


def simulated_inserts(info: TableInfo) -> int | None:
    """Inserts made one by one until a sample may be taken; None when they do not help."""
    for made in range(PATIENCE):
        limiter = replace(info.rate_limiter, inserts=info.rate_limiter.inserts + made)
        if may_sample(info.current_size + made, limiter):
            return made
    return None


def simulated_run(info: TableInfo) -> int | None:
    """Inserts made one by one without a sample; None when nothing stops them."""
    for made in range(PATIENCE):
        limiter = replace(info.rate_limiter, inserts=info.rate_limiter.inserts + made)
        if not may_insert(info.current_size + made, limiter):
            return made
    return None


def simulated_samplings(info: TableInfo) -> int | None:
    """Samples taken one by one without an insert; None when nothing stops them."""
    for taken in range(PATIENCE):
        limiter = replace(info.rate_limiter, samples=info.rate_limiter.samples + taken)
        left = info.current_size - taken if info.max_times_sampled == 1 else info.current_size
        if not left or not may_sample(left, limiter):
            return taken
    return None


# Multiples of 1/8 are exact in floating point, and so is the simulation.
eighths = st.integers(-400, 400).map(lambda number: number / 8)
bounds = st.one_of(eighths, st.sampled_from([DBL_MAX, -DBL_MAX, math.inf, -math.inf]))
ratios = st.one_of(st.integers(0, 80).map(lambda number: number / 8), st.sampled_from([0.25, 1.0, 0.0]))
limiters = st.builds(RateLimiter, ratios, bounds, bounds, st.integers(1, 60), st.integers(0, 60), st.integers(0, 60))
tables = st.builds(table, limiters, st.integers(0, 60))

MIN_SIZE = RateLimiter(1.0, -DBL_MAX, DBL_MAX, 5, 0, 0)
QUEUE = RateLimiter(1.0, 0.0, 4.0, 1, 0, 0)


@given(tables)
@settings(max_examples=150)
@example(table(QUEUE, 4))
@example(table(MIN_SIZE, 4))
def test_samples_needed_is_what_the_simulation_takes(info: TableInfo) -> None:
    expected = simulated_samples(info)
    assert samples_needed(info) == (NEVER if expected is None else expected)


@given(tables)
@settings(max_examples=150)
@example(table(QUEUE, 0))
@example(table(MIN_SIZE, 4))
def test_inserts_needed_is_what_the_simulation_makes(info: TableInfo) -> None:
    expected = simulated_inserts(info)
    assert inserts_needed(info) == (NEVER if expected is None else expected)


@settings(max_examples=300)
@given(tables)
def test_inserts_allowed_are_those_that_the_simulation_makes(info: TableInfo) -> None:
    simulated = simulated_run(info)
    allowed = inserts_allowed(info)
    assert (allowed >= PATIENCE) if simulated is None else (allowed == simulated)


@settings(max_examples=300)
@given(tables, st.integers(0, 2))
@example(table(replace(QUEUE, inserts=4), 4), 1)
@example(table(replace(MIN_SIZE, inserts=7), 7), 1)
@example(table(replace(MIN_SIZE, inserts=7), 7), 0)
def test_samples_allowed_are_those_that_the_simulation_takes(info: TableInfo, times: int) -> None:
    info = replace(info, max_times_sampled=times)
    simulated = simulated_samplings(info)
    allowed = samples_allowed(info)
    assert (allowed >= PATIENCE) if simulated is None else (allowed == simulated)


@settings(max_examples=300)
@given(tables, st.integers(1, 40), st.integers(0, 2), st.lists(st.booleans(), max_size=80))
def test_a_table_that_waits_when_full_is_never_larger_than_its_size(
    info: TableInfo, max_size: int, times: int, wishes: list[bool]
) -> None:
    """Inserts and samples as they come, where the limiter lets them; an item leaves with its last sample."""
    empty = replace(info.rate_limiter, inserts=0, samples=0)
    table = replace(info, rate_limiter=empty, current_size=0, max_size=max_size, max_times_sampled=times)
    if not waits_when_full(table):
        return
    for is_insert in wishes:
        limiter, size = table.rate_limiter, table.current_size
        if is_insert and may_insert(size, limiter):
            table = replace(table, rate_limiter=replace(limiter, inserts=limiter.inserts + 1), current_size=size + 1)
        elif not is_insert and size and may_sample(size, limiter):
            table = replace(table, rate_limiter=replace(limiter, samples=limiter.samples + 1), current_size=size - 1)
        assert table.current_size <= max_size


@pytest.mark.parametrize(
    ("limiter", "size", "samples", "inserts"),
    [
        (MIN_SIZE, 0, 0, 5),
        (MIN_SIZE, 4, 0, 1),
        (MIN_SIZE, 5, 0, 0),
        (replace(MIN_SIZE, inserts=10**15, samples=10**15), 5, 0, 0),
        (QUEUE, 0, 0, 1),
        (replace(QUEUE, inserts=3), 3, 0, 0),
        (replace(QUEUE, inserts=4), 4, 1, 0),
        (replace(QUEUE, inserts=4, samples=1), 3, 0, 0),
        (RateLimiter(8.0, -100.0, 100.0, 1, 12, 0), 12, 4, 0),
        (RateLimiter(8.0, -100.0, 100.0, 1, 0, 100), 1, 0, 1),  # (0 * 8 - 100 - 1) < -100
        (RateLimiter(1.0, -math.inf, math.inf, 1, 0, 0), 1, 0, 0),
        (RateLimiter(1.0, math.inf, -math.inf, 1, 0, 0), 1, NEVER, NEVER),
        (RateLimiter(0.0, 0.0, 0.0, 1, 5, 5), 5, 0, NEVER),
        (RateLimiter(math.inf, 0.0, 0.0, 1, 5, 5), 5, NEVER, 0),
        (RateLimiter(math.nan, math.nan, math.nan, 1, 5, 5), 5, NEVER, NEVER),
        (RateLimiter(1e-300, 1e300, 1e300, 1, 5, 5), 5, 0, NEVER),
    ],
)
def test_limiters_as_reverb_makes_them(limiter: RateLimiter, size: int, samples: int, inserts: int) -> None:
    assert samples_needed(table(limiter, size)) == samples
    assert inserts_needed(table(limiter, size)) == inserts


int64 = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(table, st.builds(RateLimiter, st.floats(), st.floats(), st.floats(), int64, int64, int64), int64))
def test_any_state_has_counts_and_an_explanation(info: TableInfo) -> None:
    assert isinstance(inserts_allowed(info), int)
    assert isinstance(samples_allowed(info), int)
    assert 0 <= samples_needed(info) <= NEVER
    assert inserts_needed(info) >= 0
    assert sentence(insert_wait(info)).startswith('table "replay": ')
    assert sentence(sample_wait(info)).startswith('table "replay": ')


def test_a_blocked_insert_is_explained_with_the_numbers() -> None:
    text = sentence(insert_wait(table(replace(QUEUE, inserts=6, samples=1), 5)))
    assert text == (
        'table "replay": inserting waits for 2 more samples '
        "(6 inserts and 1 sample so far, samples_per_insert 1, max_diff 4)"
    )


def test_a_free_insert_is_explained() -> None:
    assert sentence(insert_wait(table(QUEUE))) == 'table "replay": inserts may go on (0 inserts and 0 samples so far)'


def test_a_blocked_sample_is_explained_with_the_numbers() -> None:
    assert sentence(sample_wait(table(MIN_SIZE, 2))) == (
        'table "replay": sampling waits for 3 more inserts (2 of at least 5 items)'
    )


@pytest.mark.parametrize(
    ("limiter", "size", "told"),
    [
        (RateLimiter(4.0, 0.0, 1e9, 100, 2931, 13_336), 2931, "4.55 samples per insert, limit 4"),
        (
            RateLimiter(4.0, -400.0, 1e9, 100, 200, 1200),
            200,
            "6 samples per insert, limit 6 after 200 inserts, target 4",
        ),
        (RateLimiter(4.0, 0.0, 1e9, 100, 3, 20), 3, "3 of at least 100 items"),  # 97 more inserts, and 3 for the ratio
    ],
)
def test_the_reason_of_a_blocked_sample_is_the_condition_that_blocks(
    limiter: RateLimiter, size: int, told: str
) -> None:
    wait = sample_wait(table(limiter, size))
    assert clause(wait) == f"{waiting(wait)} ({told})"


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (insert_wait(table(RateLimiter(1.0, -2.0, 2.0, 1, 17, 16), 17)), ""),
        (insert_wait(table(RateLimiter(1.0, 0.0, 17.0, 1, 17, 0), 17)), "inserting waits for 1 more sample"),
        (
            insert_wait(replace(table(RateLimiter(1.0, 0.0, 64.0, 1, 64, 0), 64), max_times_sampled=1)),
            "inserting waits for 1 more sample",
        ),
        (sample_wait(table(MIN_SIZE, 2)), "sampling waits for 3 more inserts"),
        (
            sample_wait(table(RateLimiter(1.0, math.inf, 0.0, 1, 1, 0), 1)),
            "sampling waits for ever: no number of inserts is enough",
        ),
    ],
)
def test_what_is_waited_for_is_a_plain_sentence(wait: Wait, said: str) -> None:
    assert waiting(wait) == said


def test_a_free_sample_is_explained() -> None:
    assert sentence(sample_wait(table(MIN_SIZE, 7))) == 'table "replay": samples may be taken (7 items)'


def test_a_limiter_that_nothing_satisfies_is_said_to_block_for_ever() -> None:
    stuck = table(RateLimiter(1.0, math.inf, -math.inf, 1, 0, 0), 1)
    assert "no number of samples" in sentence(insert_wait(stuck))
    assert "no number of inserts" in sentence(sample_wait(stuck))


@given(tables, st.text())
def test_a_sentence_is_the_clause_after_the_tables_name_whatever_the_name_is(info: TableInfo, name: str) -> None:
    named = replace(info, name=name)
    for wait, plain in ((insert_wait(named), insert_wait(info)), (sample_wait(named), sample_wait(info))):
        assert clause(wait) == clause(plain)
        assert sentence(wait) == f'table "{name}": {clause(wait)}'


@pytest.mark.parametrize(
    ("limiter", "most", "told"),
    [
        (
            RateLimiter(4.0, 0.0, 800.0, 100, 200, 0),
            0,
            "0 samples per insert, at least 0.02 after 200 inserts, target 4",
        ),
        (RateLimiter(4.0, 0.0, 8.0, 1, 2000, 6000), 0, "3 samples per insert, at least 4"),
        (RateLimiter(1.0, 0.0, 64.0, 1, 64, 0), 1, "64 items not sampled yet, limit 64"),
    ],
)
def test_the_reason_of_a_blocked_insert_has_the_ratio_or_what_a_queue_holds(
    limiter: RateLimiter, most: int, told: str
) -> None:
    assert reason(insert_wait(replace(table(limiter, 64 if most else 1000), max_times_sampled=most))) == told
