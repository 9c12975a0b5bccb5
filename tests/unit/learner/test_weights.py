"""Importance weights: the formulas, slowly, and what cannot be computed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.client import Client
from rlds2reverb.errors import ConfigError, WireError
from rlds2reverb.learner.options import FORMULAS, SampleOptions
from rlds2reverb.learner.weights import Weights
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.wire.messages import priority_exponent
from rlds2reverb.wire.sample.batches import SampleInfo

PRIORITIZED = table_info(sampler="prioritized(0.8)")


def info(probability: Any, sizes: Any = 10, priority: Any = 1.0) -> SampleInfo:
    probabilities = np.asarray(probability, np.float64)
    count = len(probabilities)
    full = np.broadcast_to
    return SampleInfo(
        np.arange(count, dtype=np.uint64),
        probabilities,
        np.array(full(sizes, count), np.int64),
        np.array(full(priority, count), np.float64),
        np.ones(count, np.int32),
    )


def slow(formula: str, samples: SampleInfo, beta: float, alpha: float, smallest: float) -> list[float]:
    """One sample after the other, as the formulas are written."""
    rows = list(zip(samples.probability, samples.table_size, samples.priority))
    if formula == "table_min":
        least = min([smallest, *(p for _, _, p in rows)])
        return [(p / least) ** (-alpha * beta) for _, _, p in rows]
    raw = [(1 / p) ** beta if formula == "acme" else (n * p) ** -beta for p, n, _ in rows]
    return raw if formula == "unscaled" else [weight / max(raw) for weight in raw]


@given(
    formula=st.sampled_from(FORMULAS),
    drawn=st.lists(st.tuples(st.floats(1e-6, 1), st.integers(1, 10**6), st.floats(1e-3, 1e3)), min_size=1),
    beta=st.floats(0, 1),
    smallest=st.floats(1e-3, 1e3),
)
def test_weights_are_those_of_the_formula(
    formula: str, drawn: list[tuple[float, int, float]], beta: float, smallest: float
) -> None:
    samples = info(*map(list, zip(*drawn)))
    given_smallest = smallest if formula == "table_min" else None
    found = Weights(PRIORITIZED, formula, beta, given_smallest).next(samples)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, slow(formula, samples, beta, 0.8, smallest), rtol=1e-5)


@given(st.lists(st.floats(1e-300, 1), min_size=1), st.floats(0, 4))
def test_the_largest_of_a_batch_is_1_however_small_a_probability_is(probabilities: list[float], beta: float) -> None:
    found = Weights(PRIORITIZED, "batch_max", beta).next(info(probabilities, 10**9))
    assert found.max() == 1
    assert (found >= 0).all()
    assert np.argmin(probabilities) in np.flatnonzero(found == 1)


def test_acme_differs_from_the_batch_max_only_where_the_table_grows() -> None:
    steady, growing = info([0.1, 0.4], 10), info([0.1, 0.1], [10, 20])
    one, other = (Weights(PRIORITIZED, formula, 0.5) for formula in ("acme", "batch_max"))
    np.testing.assert_allclose(one.next(steady), other.next(steady))
    np.testing.assert_allclose(one.next(growing), [1, 1])
    np.testing.assert_allclose(other.next(growing), [1, math.sqrt(0.5)], rtol=1e-6)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("sampler", ["uniform", "fifo", "lifo", "max_heap", "min_heap"])
def test_tables_that_are_not_prioritised_have_weights_of_1(formula: str, sampler: str) -> None:
    table = table_info(sampler=sampler)
    weights = Weights(table, formula, 0.7, 1e-6 if formula == "table_min" else None)
    assert weights.next(info([1, 0.1], [10, 20], [1.0, 5.0])).tolist() == [1, 1]


def test_a_table_whose_priorities_are_all_0_draws_alike() -> None:
    for formula, smallest in (("batch_max", None), ("unscaled", None), ("table_min", 1e-3)):
        assert Weights(PRIORITIZED, formula, 0.5, smallest).next(info([0.1] * 3, 10, 0.0)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("probability", [math.nan, 0.0, -0.1, 1.5, math.inf])
def test_what_is_no_probability_is_refused(probability: float) -> None:
    with pytest.raises(WireError, match="infinite priority"):
        Weights(PRIORITIZED, "batch_max", 0.5).next(info([0.1, probability]))


def test_a_weight_that_float32_does_not_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="too large for float32"):
        Weights(PRIORITIZED, "unscaled", 1.0).next(info([1e-300], 1))


def test_beta_may_be_a_schedule_over_the_batches() -> None:
    asked: list[int] = []

    def beta(batch: int) -> float:
        asked.append(batch)
        return batch / 2

    weights = Weights(PRIORITIZED, "unscaled", beta)
    found = [weights.next(info([0.4], 10)).item() for _ in range(3)]
    assert asked == [0, 1, 2]
    np.testing.assert_allclose(found, [1, 0.5, 0.25], rtol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "1", None, True, [0.5]])
def test_what_a_schedule_gives_is_checked(value: Any) -> None:
    with pytest.raises(ConfigError, match="beta"):
        Weights(PRIORITIZED, "unscaled", lambda _: value).next(info([0.4]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "batch_max"}, "go together"),
        ({"beta": 0.4}, "go together"),
        ({"weights": "best", "beta": 0.4}, "expected one of batch_max, unscaled, acme, table_min"),
        ({"weights": "torchrl", "beta": 0.4}, "which Reverb does not report.*table_min"),
        ({"weights": "rllib", "beta": 0.4}, "which Reverb does not report.*table_min"),
        ({"weights": "tf_agents", "beta": 0.4}, "computes none"),
        ({"weights": "reverb", "beta": 0.4}, "computes none"),
        ({"weights": "table_min", "beta": 0.4}, "min_priority"),
        ({"weights": "batch_max", "beta": 0.4, "min_priority": 0.1}, "with no other"),
        ({"weights": "batch_max", "beta": -0.1}, "beta -0.1: expected a finite number of at least 0"),
        ({"weights": "batch_max", "beta": math.nan}, "beta nan"),
        ({"weights": "table_min", "beta": 0.4, "min_priority": 0}, "min_priority 0: expected .* more than 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SampleOptions(**options)


def test_alpha_is_in_the_samplers_name() -> None:
    assert [priority_exponent(name) for name in ("prioritized(0.8)", "prioritized(1)", "uniform", "min_heap")] == [
        0.8,
        1,
        None,
        None,
    ]


def test_batches_carry_the_weights_of_their_samples() -> None:
    server = MemoryServer(PRIORITIZED)
    for key in range(1, 9):
        server.put("replay", key, (np.array(key),), priority=float(key))
    with (
        Client(MemoryTransport(server)) as client,
        client.sample("replay", 16, samples=64, weights="batch_max", beta=lambda batch: batch / 4) as sampler,
    ):
        batches = list(sampler)
    total = sum(key**0.8 for key in range(1, 9))
    differing = 0
    for number, (_, drawn) in enumerate(batches):
        raw = (8 * drawn.priority**0.8 / total) ** (-number / 4)
        assert drawn.weight is not None
        np.testing.assert_allclose(drawn.weight, raw / raw.max(), rtol=1e-6)
        differing += len(set(drawn.weight.tolist())) > 1
    assert differing == len(batches) - 1, "the first has a beta of 0"


def test_without_weights_there_are_none() -> None:
    server = MemoryServer(PRIORITIZED)
    server.put("replay", 1, (np.array(1),))
    with Client(MemoryTransport(server)) as client:
        assert client.sample_one("replay").info.weight is None
