"""The tables of docs/capacity.md: every kind of result finds its place in the page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.common import figure
from benchmarks.scale_plans import Machine, plan_of
from benchmarks.scale_tables import PAGE, sections
from benchmarks.tables import filled
from tests.packaging.benchmarks.points import COSTS, POINT

RESULTS = [
    figure("scale/driver", 0.01, "of the workers' processor time", parts=16),
    figure("scale_curve/vectors/9990/1", 1.0, "bytes", is_checked=True, **asdict(POINT)),
    figure("scale_cost/vectors", 6.0, "µs", **asdict(COSTS)),
    figure("scale_plan/vectors", 10, "servers", steps=10**9, **asdict(plan_of(COSTS, 10**9, Machine(128e9, 8, 1e9)))),
]


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("workers", "| `scale/driver` | **0.01** of the workers' processor time |  |"),
        ("curves", "| vectors | 1 | 9,990 | 0 | 1.0 | 0 | 0.0 | 1.0 | 9,990 | 1,000 |"),
        ("costs", "| vectors | 6 | 4 | 200 | 750 | 250 | 80 | 18 | 3.6 | 10 | 10 | 2,000 |"),
        ("plans", "| servers, one a machine | 10 |"),
        ("plans", "| memory of all, bytes | 755 G |"),
        ("machine", "Python"),
    ],
)
def test_a_result_is_a_line_of_its_table(section: str, line: str) -> None:
    assert line in sections(RESULTS)[section]


def test_a_small_table_has_no_line_beside_a_larger_one_of_its_kind() -> None:
    sizes = [9_990, 99_900, 999_000, 2_997_000]
    results = [figure(f"scale_curve/{n}", 1.0, "bytes", **{**asdict(POINT), "items": n}) for n in sizes]
    shown = [line.split(" | ")[2] for line in sections([*RESULTS[:1], *results])["curves"].splitlines()[2:]]
    assert shown == ["999,000", "2,997,000"]


def test_the_page_has_a_place_for_every_table() -> None:
    page: Any = filled(PAGE.read_text(), sections(RESULTS))
    assert all(table in page for table in sections(RESULTS).values())
