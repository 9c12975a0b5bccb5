"""What is told of an inspection."""

from __future__ import annotations

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.inspection.inspection import Inspection
from rlds2reverb.inspection.statistics import Range
from rlds2reverb.look.notebook import findings_html, inspection_html
from rlds2reverb.prepare.findings import Findings
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import ArraySpec
from tests.support.look.pages import Page
from tests.support.strategies import episode
from tests.unit.look.test_notebook_showing import MOST


def test_counts_columns_tables_and_problems_are_told() -> None:
    page = Page(inspection_html(rlds2reverb.inspect("bundled:cartpole", {"a": "two_step", "b": "episode"})))
    assert page.row("counts") == "25 episodes, 2,956 steps, 35 bytes per step, 103 kB in all"
    assert page.row("episode length") == "min 12  median 23  mean 118.2  max 501"
    assert page.row("ends").startswith("20 terminal, 5 truncated")
    assert "table a: 2,931 items of view two_step" in page.text
    assert "table b: 25 items of view episode" in page.text
    assert page.text.endswith("no problems")


def test_an_empty_dataset_has_no_lengths() -> None:
    page = Page(inspection_html(Inspection("nothing", {}, (), {})))
    assert page.row("counts").startswith("0 episodes")
    assert page.row("episode length") == "-"


def test_returns_that_are_not_finite_are_counted() -> None:
    one = Inspection("data", {}, (), {}, lengths=[1, 1], returns=[1.0, np.nan])
    assert Page(inspection_html(one)).row("return") == "min 1  median 1  mean 1  max 1  (left out: 1 not finite)"


@pytest.mark.parametrize(
    ("span", "told"),
    [(Range(), ""), (Range(0, 1, 3.0, 6), "0 to 1, mean 0.5"), (Range(not_finite=3), "3 not finite")],
)
def test_ranges(span: Range, told: str) -> None:
    one = Inspection("data", {"a": ArraySpec((), np.dtype(float))}, (), {}, ranges={"a": span})
    assert Page(inspection_html(one)).row("a") == f"float64[] | {told}"


def test_ten_thousand_columns_and_a_million_episodes_are_counted() -> None:
    spec = {f"column{number}": ArraySpec((2,), np.dtype(np.float32)) for number in range(10_000)}
    one = Inspection("data", spec, (), {}, lengths=[7] * 1_000_000, returns=[1.0] * 1_000_000)
    html = inspection_html(one)
    assert len(html) < MOST
    assert "and 9,960 more columns" in Page(html).text


def test_a_million_problems_are_counted_and_three_are_told() -> None:
    findings = Findings()
    bad = episode(np.random.default_rng(0), 3, episode_id="mine<b>")
    findings.add(bad, [Problem("nan", "reward", "row 3 is <NaN>")] * 1_000_000)
    page = Page(findings_html(findings))
    assert page.text.startswith("Findings 1,000,000 problems")
    assert page.text.count("mine<b>: reward: row 3 is <NaN>") == 3
    assert page.text.endswith("and 999,997 more")
    assert "problem nan: 1 episode a value is NaN" in page.text


def test_codes_that_nobody_knows_are_shown_all_the_same() -> None:
    findings = Findings()
    findings.episodes["new"] = findings.problems["new"] = 2
    assert "problem new: 2 episodes" in Page(findings_html(findings)).text
