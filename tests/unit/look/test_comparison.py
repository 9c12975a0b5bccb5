"""Two datasets compared: what changed comes first, and what is spread alike is the same."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.cli import output
from rlds2reverb.episode import Episode
from rlds2reverb.inspection.inspection import Inspection
from rlds2reverb.look.charts import histogram_of
from rlds2reverb.look.comparison import compare_inspections, rows_of
from rlds2reverb.look.sketches import Texts
from rlds2reverb.numbers.distributions import largest_gap
from rlds2reverb.views import view_of
from tests.support.look.reported import HOSTILE, by_workers, dataset, page, robot, robots

SLICES = {"replay": view_of("slices:length=2")}


def bounds(steps: int) -> dict[str, Any]:
    """The columns that every dataset has, and a reward."""
    rows = np.arange(steps)
    return {"reward": np.ones(steps, np.float32), "is_first": rows == 0, "is_last": rows == steps - 1}


def inspected(count: int = 40, name: str = "a", **columns: Any) -> Inspection:
    """Of episodes with ten steps of these columns, each value made from a generator of random numbers."""
    rng = np.random.default_rng(count)
    episodes = [
        Episode({**bounds(10), **{path: make(rng) for path, make in columns.items()}}, id=f"e{at}")
        for at in range(count)
    ]
    return dataset(episodes, name, views=SLICES).inspection


def normal(mean: float = 0.0, sd: float = 1.0, *shape: int) -> Any:
    return lambda rng: rng.normal(mean, sd, (10, *shape))


def words(*texts: str) -> Any:
    return lambda rng: np.array([rng.choice(texts)] * 10, object)


def test_samples_of_the_same_values_are_the_same() -> None:
    found = compare_inspections(
        inspected(40, x=normal(), t=words("a", "b")), inspected(41, x=normal(), t=words("a", "b"))
    )
    assert found.same
    assert found.verdict == "the same: all 5 columns have one dtype and shape, and values that are spread alike"
    assert found.caution == ""


def test_what_changed_is_ordered_by_its_difference_and_has_its_shift() -> None:
    a = inspected(near=normal(), far=normal(), wide=normal(0, 1, 3), gone=normal(), text=words("a", "b"), same=normal())
    b = inspected(
        near=normal(0.5),
        far=normal(4),
        wide=lambda rng: rng.normal([0, 0, 9], 1, (10, 3)),
        new=normal(),
        text=words("b"),
        same=normal(),
    )
    found = compare_inspections(a, b)
    assert list(found.columns)[:6] == ["wide", "far", "text", "near", "gone", "new"]
    assert [column.state for column in found.columns.values()] == [*["changed"] * 4, "only_a", "only_b", *["same"] * 4]
    assert found.verdict == "not the same: 4 of 10 columns changed, 1 only in A, 1 only in B, 4 the same"
    wide, far, text, near, gone, *_ = found.columns.values()
    assert [dimension.name for dimension in wide.dimensions] == ["[0]", "[1]", "[2]"]
    assert wide.worst is not None
    assert wide.worst.name == "[2]"
    assert wide.difference == pytest.approx(1, abs=0.01)
    assert far.dimensions[0].shift == pytest.approx(4, abs=0.2)
    assert near.dimensions[0].shift == pytest.approx(0.5, abs=0.15)
    assert (text.texts_a, text.texts_b) == (2, 1)
    assert text.difference == pytest.approx(0.5, abs=0.2)
    assert (gone.spec_a, gone.spec_b, gone.difference) == ("float64[]", None, None)
    rows = {cells[0]: cells for _, _, cells in rows_of(found)}
    assert list(rows) == ["episode length", "episode return", "wide[2]", "far", "text", "near"]
    assert rows["text"][2:4] == ("2 texts", "1 text")
    assert rows["far"][4].endswith(" sd")


def test_another_shape_is_a_change_of_the_dimensions_that_both_have() -> None:
    found = compare_inspections(inspected(x=normal(0, 1, 2)), inspected(x=normal(0, 1, 3)))
    x = found.columns["x"]
    assert (x.state, x.has_other_spec, [dimension.name for dimension in x.dimensions]) == (
        "changed",
        True,
        ["[0]", "[1]"],
    )
    assert not found.same_signatures


@pytest.mark.parametrize(
    ("a", "b", "difference", "shift"),
    [
        ([0.0], [1.0], 1.0, None),
        ([np.nan], [np.nan], 0.0, None),
        ([np.nan, 1.0], [1.0, 1.0], 0.5, None),
        ([np.nan], [1.0], 1.0, None),
        ([-1.7e308, 1.7e308], [1.7e308, 1.7e308], 0.5, None),
        ([0.0, 2.0], [2.0, 4.0], 0.5, 2.0),
    ],
)
def test_odd_values(a: list[float], b: list[float], difference: float, shift: float | None) -> None:
    found = compare_inspections(*(inspected(2, x=lambda rng, of=of: np.resize(np.array(of), 10)) for of in (a, b)))
    (dimension,) = found.columns["x"].dimensions
    assert (dimension.difference, dimension.shift) == (difference, shift)
    assert json.loads(output.document(found))["columns"]["x"]["difference"] == difference


def test_numbers_beside_texts_have_changed_without_a_difference() -> None:
    found = compare_inspections(inspected(x=normal()), inspected(x=words("a")))
    assert (found.columns["x"].state, found.columns["x"].difference) == ("changed", None)


def test_few_episodes_are_no_proof_of_other_lengths() -> None:
    few, many = ([robot(n, steps) for n, steps in enumerate(lengths)] for lengths in ([8, 12], [8, 12] * 20))
    longer = [robot(n, 30) for n in range(40)]
    a, b, c = (dataset(of).inspection for of in (few, many, longer))
    assert compare_inspections(a, b).changed_episodes == []
    assert compare_inspections(a, b).caution == "A has 2 episodes, B 40: with so few, values may differ by chance"
    assert compare_inspections(b, c).changed_episodes == ["length", "return"]
    assert "episodes have another length and return" in compare_inspections(b, c).verdict


def test_workers_find_the_same() -> None:
    episodes = robots(11)
    read = (dataset(episodes), by_workers(episodes, 2, 3))
    one, other = (compare_inspections(each.inspection, dataset(robots(9)).inspection) for each in read)
    assert list(one.columns) == list(other.columns)
    assert [column.difference for column in one.columns.values()] == [
        column.difference for column in other.columns.values()
    ]


def test_an_inspection_that_nobody_watched_is_refused() -> None:
    unwatched = inspected()
    unwatched.watched = None
    with pytest.raises(TypeError, match="a Collector watched"):
        compare_inspections(unwatched, inspected())


@given(*[st.lists(st.floats(-9, 9), min_size=1, max_size=60)] * 2)
def test_the_gap_is_that_of_the_distributions_up_to_the_width_of_bins(a: list[float], b: list[float]) -> None:
    at = np.array(sorted({*a, *b}))
    exact = max(abs(np.mean(np.array(a) <= value) - np.mean(np.array(b) <= value)) for value in at)
    gap = largest_gap(histogram_of(a, False), histogram_of(b, False))
    assert gap is not None
    assert gap <= exact + 1e-9
    assert largest_gap(histogram_of(a, False), histogram_of(a, False)) == 0
    assert largest_gap(histogram_of(a, False), histogram_of([], False)) is None


@given(*[st.lists(st.integers(-20, 20), min_size=1, max_size=60)] * 2)
def test_the_gap_of_whole_numbers_is_exact(a: list[int], b: list[int]) -> None:
    at = np.array(sorted({*a, *b}))
    exact = max(abs(np.mean(np.array(a) <= value) - np.mean(np.array(b) <= value)) for value in at)
    assert largest_gap(histogram_of(a, True), histogram_of(b, True)) == pytest.approx(exact)


def test_texts_beyond_those_that_are_kept_are_compared_by_those_that_are() -> None:
    one, other = Texts(0), Texts(0)
    one.add(np.array([f"text {at}" for at in range(2_000)], object))
    other.add(np.array([f"text {at}" for at in range(1_000, 3_000)], object))
    assert one.difference(one) == 0
    assert one.difference(other) == pytest.approx(0.5, abs=0.1)
    assert (one.difference(Texts(0)), Texts(0).difference(Texts(0))) == (1, 0)


def test_few_texts_beside_many_are_no_texts_in_common_unless_they_are_among_those_that_decide() -> None:
    many, few = Texts(0), Texts(0)
    many.add(np.array([f"text {at}" for at in range(4_000)], object))
    few.add(np.array(["another"], object))
    assert many.difference(few) in (1, None)
    found = compare_inspections(
        inspected(400, t=lambda rng: np.array([f"{rng.random()}"] * 10, object)), inspected(t=words("a"))
    )
    assert found.columns["t"].state in ("changed", "not_compared")
    assert not found.same


def with_outlier(values: Any, rows: int = 10) -> Any:
    """Of which one in a dataset is 10,000."""
    done: list[bool] = []

    def make(rng: np.random.Generator) -> Any:
        made = values(rng)
        if not done:
            made[3] = 1e4
            done.append(True)
        return made

    return make


@pytest.mark.parametrize(
    ("a", "b", "state"),
    [
        (normal(5), normal(100), "changed"),
        (with_outlier(normal(5)), with_outlier(normal(100)), "not_compared"),
        (normal(), with_outlier(normal()), "changed"),
        (with_outlier(normal(5)), with_outlier(normal(5)), "not_compared"),
        (lambda rng: np.ones(10), lambda rng: np.r_[np.ones(9), 0.0], "changed"),
        (lambda rng: (rng.random(10) < 0.02) * 1.0, lambda rng: (rng.random(10) < 0.02) * 1.0, "same"),
        (lambda rng: np.full(10, 0.1), lambda rng: np.full(10, 0.1), "same"),
        (normal(0, 1), normal(0, 3), "changed"),
    ],
)
def test_what_bins_do_not_show(a: Any, b: Any, state: str) -> None:
    found = compare_inspections(inspected(60, x=a), inspected(61, x=b))
    assert found.columns["x"].state == state
    assert found.same == (state == "same")


def test_a_dataset_without_steps_is_not_the_same() -> None:
    found = (
        compare_inspections(inspected(x=normal()), inspected(1, x=lambda rng: np.zeros(10))),
        compare_inspections(inspected(), inspected()),
    )
    assert [difference.same for difference in found] == [False, True]


def test_columns_beyond_those_that_are_looked_at_are_not_compared() -> None:
    wide: dict[str, Any] = {f"c{at:03}": (lambda rng: np.zeros(10)) for at in range(300)}
    found = compare_inspections(inspected(1, **wide), inspected(1, **{**wide, "c280": lambda rng: np.full(10, 99.0)}))
    assert found.columns["c280"].state == "not_compared"
    assert not found.same
    assert re.fullmatch(r"no difference found: 2\d\d of 303 columns are the same, \d+ not compared", found.verdict)


def spark(text: str) -> list[str]:
    return re.findall(r'<svg[^>]*class="spark"', text)


def test_the_chapter_of_the_page() -> None:
    ours = [robot(number, 12).with_columns(**{f"extra {HOSTILE}": np.zeros(12)}) for number in range(6)]
    theirs = [robot(number, 30, reward=9.0) for number in range(6)]
    text = page(dataset(ours, f"ours {HOSTILE}"), dataset(theirs, "theirs"))
    chapter = text[text.index('id="comparison"') : text.index('id="what"')]
    assert chapter.index("not the same: ") < chapter.index("the largest difference first")
    assert "only in A" in chapter
    assert "only in B" not in chapter
    assert 'class="key key0">A: ours' in chapter
    assert 'class="key key1">B: theirs' in chapter
    assert len(spark(chapter)) >= 2
    assert '<a href="#comparison">' in text
    alone = page(dataset(ours))
    assert "comparison" not in alone[alone.index("<body") :]


def test_wide_datasets_are_cut_in_the_chapter() -> None:
    def wide(shift: float) -> Any:
        rng = np.random.default_rng(0)
        return dataset(
            [Episode({**bounds(4), **{f"c{n:04}": rng.normal(shift, 1, 4) for n in range(900)}}, id="e")],
            "wide",
            views=SLICES,
        )

    text = page(wide(0), wide(5))
    chapter = text[text.index('id="comparison"') : text.index('id="what"')]
    assert re.search(r"and [\d,]+ more", chapter)
    assert len(text) < 3_000_000
