"""The cost model: what it fits it finds again."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from benchmarks.cost_model import (
    QUANTITIES,
    TERMS,
    Model,
    Point,
    checks_of,
    costs_of,
    fitted,
    model_of,
)
from tests.packaging.benchmarks.points import POINT

SHAPES = [
    POINT,
    replace(POINT, episodes=100, items=99_900, steps=100_000),
    replace(POINT, episodes=1_000, items=99_000, steps=100_000),
    replace(POINT, step_bytes=280.0, chunk_steps=14),
    replace(POINT, servers=3, step_bytes=824.0, chunk_steps=4, samples=5_000),
]


def _measured(quantity: str, coefficients: dict[str, float]) -> list[Point]:
    """The shapes, with a quantity that is exactly the sum of its terms."""
    sums = [sum(cost * TERMS[term](shape) for term, cost in coefficients.items()) for shape in SHAPES]
    return [Point(**{**asdict(shape), quantity: value}) for shape, value in zip(SHAPES, sums)]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_fit_of_exact_sums_finds_their_coefficients(quantity: str) -> None:
    coefficients = {term: 10.0**-number for number, term in enumerate(QUANTITIES[quantity])}
    points = _measured(quantity, coefficients)
    fit = fitted(quantity, points)
    assert fit.coefficients == pytest.approx(coefficients, rel=1e-6)
    assert fit.spread == pytest.approx(1.0)
    other = replace(POINT, servers=7, episodes=3, items=2_997, steps=3_000, step_bytes=99.0, samples=77)
    assert fit.predicted(other) == pytest.approx(sum(cost * TERMS[term](other) for term, cost in coefficients.items()))


def test_small_points_count_as_much_as_large_ones() -> None:
    points = [replace(shape, insert_processor=1e-5 * shape.items) for shape in SHAPES]
    points[1] = replace(points[1], insert_processor=1.1e-5 * points[1].items)  # the largest is 10 % off
    fit = fitted("insert_processor", points)
    assert fit.predicted(points[0]) == pytest.approx(points[0].insert_processor, rel=0.1)
    assert 1.0 < fit.spread <= 1.1


def test_no_coefficient_is_negative() -> None:
    points = [replace(shape, memory_bytes=round(1_000 * shape.items - 5 * shape.chunks)) for shape in SHAPES]
    fit = fitted("memory_bytes", points)
    assert min(fit.coefficients.values()) >= 0
    assert "chunk" not in fit.coefficients


def test_a_term_that_no_point_has_is_left_out() -> None:
    points = [replace(shape, learner_processor=1e-4 * shape.samples, servers=1) for shape in SHAPES]
    assert "sample of several servers" not in fitted("learner_processor", points).coefficients


@pytest.mark.parametrize(
    "points", [SHAPES[:2], [*SHAPES[:4], replace(POINT, insert_processor=0.0)]], ids=["few", "zero"]
)
def test_points_that_cannot_be_fitted_are_refused(points: list[Point]) -> None:
    with pytest.raises(ValueError, match="insert_processor: expected at least 3 points with positive values"):
        fitted("insert_processor", points)


def test_a_model_leaves_out_points_that_lack_a_quantity() -> None:
    points = [*SHAPES, replace(POINT, servers=2, received_bytes=0)]
    model = model_of(points)
    assert set(model) == set(QUANTITIES)
    assert model["received_bytes"] == fitted("received_bytes", SHAPES)


def test_a_point_is_held_against_the_model_in_all_that_it_has() -> None:
    model = model_of(_measured("memory_bytes", {"item": 1_000.0}))
    checks = checks_of(model, replace(POINT, memory_bytes=19_980_000, received_bytes=0))
    assert {check.quantity for check in checks} == set(QUANTITIES) - {"received_bytes"}
    (memory,) = [check for check in checks if check.quantity == "memory_bytes"]
    assert memory.predicted == pytest.approx(9_990_000)
    assert memory.ratio == pytest.approx(2.0)


def test_chunks_end_with_their_episode() -> None:
    assert replace(POINT, episodes=1_000, steps=100_000).chunks == 4_000
    assert replace(POINT, episodes=1, steps=32).chunks == 1


def test_few_samples_meet_a_chunk_each_and_many_meet_all_that_are_left() -> None:
    large = replace(POINT, episodes=10**6, steps=10**9)
    assert large.fresh_chunks == pytest.approx(large.samples, rel=1e-3)
    assert replace(POINT, warm_samples=0, samples=10**9).fresh_chunks == pytest.approx(POINT.chunks)
    assert replace(POINT, warm_samples=10**9).fresh_chunks == pytest.approx(0.0)


def _model(start: float) -> Model:
    return {"restore_processor": fitted("restore_processor", _measured("restore_processor", {"server": start}))}


def test_costs_are_those_of_a_step_without_the_start_of_a_server() -> None:
    point = replace(POINT, memory_bytes=10**7, restore_processor=3.2, serve_processor=0.5)
    costs = costs_of(point, _model(3.0))
    assert (costs.memory, costs.empty_bytes, costs.serve) == (1_000.0, 500.0, 0.0005)
    assert costs.restore == pytest.approx(0.2 / point.steps)
    assert costs_of(point, _model(4.0)).restore == 0.0
