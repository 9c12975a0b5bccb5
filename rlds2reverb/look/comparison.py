"""Two inspected datasets, A and B: what changed between them, the largest difference first.

The comparison is data; the command line prints it, and the page of two datasets has a chapter of it. Distributions are compared, not rows:
two halves of a dataset are the same where their values are spread alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from rlds2reverb.inspection.inspection import Inspection
from rlds2reverb.look.charts import PageContent, histogram_of, section
from rlds2reverb.look.collector import Collector
from rlds2reverb.look.html import NOTHING, Html, element, table, together
from rlds2reverb.look.sketches import Sketch, Texts
from rlds2reverb.numbers.distributions import Histogram, join_histograms, largest_gap
from rlds2reverb.numbers.sketch import Numbers
from rlds2reverb.plain import Count, members, printed
from rlds2reverb.text import counted, number, shortened, visible

ALIKE = 0.1
"""Values whose `difference` is at most this are spread alike."""

_SHIFT, _SPREAD = 0.25, 2.0
"""A mean that moved by more standard deviations, or a standard deviation that is so many times the other, is a change, too."""

_MOST_IN_A_BIN = 0.9
"""Of the values of both: where more lie in one bin, because outliers make the bins wide, what differs within it cannot be seen."""

_BY_CHANCE = 1.358
"""Times the square root of (n + m) / (n m), the gap that 5 % of samples of n and m values exceed. Source: Smirnov, "Table for estimating the goodness of fit" (1948)."""

_ENOUGH_EPISODES = 30
"""Steps of an episode resemble one another, so it is the number of episodes that makes a comparison certain."""

DIFFERENCE = (
    f"difference: the largest gap between the two cumulative distributions, 0 to 1 (Kolmogorov-Smirnov); of texts the share "
    f"that is not common. More than {ALIKE:g} counts as changed; so does a value that is constant in one dataset only and, where values share bins, "
    f"a mean that moved by {_SHIFT:g} standard deviations (sd), or a sd that is {_SPREAD:g} times the other."
)
ROWS = "Episodes, and the columns that changed, the largest difference first"
HEADS = ("column", "difference", "mean A", "mean B", "shift", "sd A", "sd B")
"""Of `row_of`."""

State = Literal["same", "changed", "only_a", "only_b", "not_compared"]
_ORDER: tuple[State, ...] = ("changed", "only_a", "only_b", "not_compared", "same")
NOT_COMPARED = "not compared: encoded images, columns beyond those that are looked at, too many texts, or outliers that hide the rest"


@printed("name", "difference", "mean_a", "mean_b", "shift", "sd_a", "sd_b")
@dataclass(frozen=True)
class DimensionChange:
    """How one dimension of a column differs.

    Attributes:
      name: its place in a row, such as [3]; empty where a row is one number.
      difference: as of a column; 1 where one dataset has no value.
      mean_a, mean_b: of the finite values; None without any.
      sd_a, sd_b: their standard deviations; None without any.
      histograms: of A and of B, over the same bins.
    """

    name: str
    difference: float
    mean_a: float | None
    mean_b: float | None
    sd_a: float | None
    sd_b: float | None
    histograms: tuple[Histogram, ...] = ()

    @property
    def shift(self) -> float | None:
        """Mean of B minus mean of A, in standard deviations (root mean square of the two); None where all values are one constant each."""
        if self.mean_a is None or self.mean_b is None or self.sd_a is None or self.sd_b is None:
            return None
        pooled = math.hypot(self.sd_a, self.sd_b) / math.sqrt(2)
        shift = (self.mean_b - self.mean_a) / pooled if pooled else math.nan
        return shift if math.isfinite(shift) else None

    @property
    def has_changed(self) -> bool:
        """Whether it differs by more than two parts of one dataset do; see `DIFFERENCE`."""
        if self.difference > ALIKE:
            return True
        if not self.sd_a or not self.sd_b:
            return self.sd_a is not None and self.sd_b is not None and self.sd_a != self.sd_b
        is_wider = max(self.sd_a, self.sd_b) > _SPREAD * min(self.sd_a, self.sd_b)
        return self._is_coarse and (is_wider or abs(self.shift or 0.0) > _SHIFT)

    @property
    def is_hidden(self) -> bool:
        """Whether nearly all values of both lie in one wide bin, so that their difference does not show."""
        if not self.sd_a or not self.sd_b or not self._is_coarse:
            return False
        shares = [histogram.counts / histogram.total for histogram in self.histograms]
        return float(np.minimum.reduce(shares).max()) > _MOST_IN_A_BIN

    @property
    def _is_coarse(self) -> bool:
        """Whether different values share bins, as far as is known: not flags, small whole numbers, or two values as those of a sparse reward."""
        means, deviations = (self.mean_a or 0.0, self.mean_b or 0.0), (self.sd_a or 0.0, self.sd_b or 0.0)
        if any(histogram.has_a_bin_each for histogram in self.histograms):
            return False
        return not all(map(_has_two_values, self.histograms, means, deviations))


@printed("state", "spec_a", "spec_b", "difference", "dimensions", "texts_a", "texts_b")
@dataclass(frozen=True)
class ColumnChange:
    """How a column differs.

    Attributes:
      state: changed where its dtype or shape has, or a dimension has, or more than 0.1 of its texts; only_a, only_b; not_compared where values
        cannot be compared, or outliers hide them; else same.
      spec_a, spec_b: dtype and shape of a row; None where the dataset has no such column.
      difference: of the dimension that differs most: the largest gap between the cumulative distributions of A and B, 0 to 1; of texts,
        the share that is not common. None where there is nothing to compare.
      dimensions: those that both have, of numbers.
      texts_a, texts_b: number of different texts; None for a column of another kind.
    """

    state: State
    spec_a: str | None
    spec_b: str | None
    difference: float | None = None
    dimensions: tuple[DimensionChange, ...] = ()
    texts_a: int | None = None
    texts_b: int | None = None

    @property
    def has_other_spec(self) -> bool:
        """Whether both datasets have it, with another dtype or shape."""
        return None not in (self.spec_a, self.spec_b) and self.spec_a != self.spec_b

    @property
    def worst(self) -> DimensionChange | None:
        """The dimension that differs most; None without any."""
        return (
            max(self.dimensions, key=lambda change: (change.has_changed, change.difference))
            if self.dimensions
            else None
        )


@printed("same", "verdict", "a", "b", "episodes_a", "episodes_b", "same_signatures", "episodes", "columns")
@dataclass(frozen=True)
class Comparison:
    """How two datasets differ.

    Attributes:
      a, b: their names.
      episodes_a, episodes_b: number of their episodes.
      same_signatures: whether tables made for A take the items of B.
      episodes: length and return of the episodes; a return where both have rewards.
      columns: path -> how it differs; those that changed first, the largest difference first.
      facts: name, of A, of B.
    """

    a: str
    b: str
    episodes_a: Count
    episodes_b: Count
    same_signatures: bool
    episodes: dict[str, DimensionChange]
    columns: dict[str, ColumnChange]
    facts: list[tuple[str, str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return members(self)

    def of_state(self, state: State) -> dict[str, ColumnChange]:
        """The columns of a state, in order."""
        return {path: column for path, column in self.columns.items() if column.state == state}

    @property
    def changed_episodes(self) -> list[str]:
        """What of the episodes has changed: length, return; where chance would make it differ so much in less than 5 % of cases."""
        count = self.episodes_a * self.episodes_b / max(1, self.episodes_a + self.episodes_b)
        least = max(ALIKE, _BY_CHANCE / math.sqrt(count)) if count else math.inf
        return [name for name, change in self.episodes.items() if (change.difference or 0.0) > least]

    @property
    def caution(self) -> str:
        """What makes the comparison uncertain; "" where nothing does."""
        if min(self.episodes_a, self.episodes_b) >= _ENOUGH_EPISODES:
            return ""
        return f"A has {counted(self.episodes_a, 'episode')}, B {self.episodes_b:,}: with so few, values may differ by chance"

    @property
    def same(self) -> bool:
        """Whether columns, lengths and returns were compared, and are the same."""
        return not self.changed_episodes and all(column.state == "same" for column in self.columns.values())

    @property
    def verdict(self) -> str:
        """One sentence: what is the same, and what is not."""
        columns = counted(len(self.columns), "column")
        if self.same:
            return f"the same: all {columns} have one dtype and shape, and values that are spread alike"
        counts = {state: len(self.of_state(state)) for state in _ORDER}
        if not self.changed_episodes and counts["same"] + counts["not_compared"] == len(self.columns):
            return f"no difference found: {counts['same']:,} of {columns} are the same, {counts['not_compared']:,} not compared"
        parts = [f"{counts['changed']:,} of {columns} changed"] if counts["changed"] else []
        parts += [f"{counts['only_a']:,} only in A"] if counts["only_a"] else []
        parts += [f"{counts['only_b']:,} only in B"] if counts["only_b"] else []
        parts += [f"{counts['not_compared']:,} not compared"] if counts["not_compared"] else []
        parts += [f"{counts['same']:,} the same" if parts else f"all {columns} are the same"]
        parts += [f"episodes have another {' and '.join(self.changed_episodes)}"] if self.changed_episodes else []
        return f"not the same: {', '.join(parts)}"


class _Values(NamedTuple):
    """Some values of one dataset: the histogram, mean and standard deviation of the finite ones, and the number of the rest."""

    histogram: Histogram
    mean: float
    sd: float
    not_finite: int = 0


def compare_inspections(a: Inspection, b: Inspection) -> Comparison:
    """Compares two inspections, each watched by a `Collector` of one seed, which reads no more after this.

    Columns beyond those that a collector looks at are compared by dtype and shape.
    """
    both = (a, b)
    sketches = [_sketches_of(inspection) for inspection in both]
    specs = [{path: str(spec) for path, spec in inspection.step_spec.items()} for inspection in both]
    columns = {
        path: _column(specs[0].get(path), specs[1].get(path), sketches[0].get(path), sketches[1].get(path))
        for path in dict.fromkeys((*specs[0], *specs[1]))
    }
    ranked = sorted(
        columns.items(),
        key=lambda item: (_ORDER.index(item[1].state), -(1.0 if item[1].difference is None else item[1].difference)),
    )
    episodes = {"length": _dimension("", *(_values_of(inspection.lengths, is_whole=True) for inspection in both))}
    if a.returns and b.returns:
        episodes["return"] = _dimension("", *(_values_of(inspection.returns) for inspection in both))
    signatures = [{name: output.trajectory_data_spec for name, output in of.outputs.items()} for of in both]
    return Comparison(
        a.source,
        b.source,
        a.episodes,
        b.episodes,
        signatures[0] == signatures[1],
        episodes,
        dict(ranked),
        list(_facts(*both)),
    )


def _sketches_of(inspection: Inspection) -> Mapping[str, Sketch]:
    watched = inspection.watched
    if not isinstance(watched, Collector):
        raise TypeError(f"{inspection.source}: expected an inspection that a Collector watched, got {watched!r}")
    watched.flush()
    return watched.columns


def _column(spec_a: str | None, spec_b: str | None, a: Sketch | None, b: Sketch | None) -> ColumnChange:
    if spec_a is None or spec_b is None:
        return ColumnChange("only_a" if spec_b is None else "only_b", spec_a, spec_b)
    dimensions: tuple[DimensionChange, ...] = ()
    difference: float | None = None
    texts: tuple[int | None, int | None] = (None, None)
    if isinstance(a, Texts) and isinstance(b, Texts):
        difference, texts = a.difference(b), (a.distinct, b.distinct)
    elif isinstance(a, Numbers) and isinstance(b, Numbers):
        values_of_b = dict(_dimensions(b))
        dimensions = tuple(
            _dimension(name, values, values_of_b[name]) for name, values in _dimensions(a) if name in values_of_b
        )
        difference = max((change.difference for change in dimensions if change.difference is not None), default=None)
    state: State = "same"
    if spec_a != spec_b or (difference or 0.0) > ALIKE or any(change.has_changed for change in dimensions):
        state = "changed"
    elif difference is None or any(change.is_hidden for change in dimensions):
        state = "not_compared"
    return ColumnChange(state, spec_a, spec_b, difference, dimensions, *texts)


def _dimensions(numbers: Numbers) -> Iterator[tuple[str, _Values]]:
    moments, not_finite = numbers.moments, numbers.not_finite
    for at in range(numbers.dimensions):
        histogram = numbers.histograms.histogram(at)
        deviation = 0.0 if histogram.low == histogram.high else float(moments.deviations[at])  # without a rounding
        yield numbers.dimension_name(at), _Values(histogram, float(moments.means[at]), deviation, int(not_finite[at]))


def _values_of(values: Sequence[float], is_whole: bool = False) -> _Values:
    finite = np.array([value for value in values if math.isfinite(value)], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = (float(finite.mean()), float(finite.std())) if len(finite) else (0.0, 0.0)
    sd = 0.0 if len(finite) and finite.min() == finite.max() else sd  # without a rounding
    return _Values(histogram_of(values, is_whole), mean, sd, len(values) - len(finite))


def _dimension(name: str, a: _Values, b: _Values) -> DimensionChange:
    has_a, has_b = a.histogram.total, b.histogram.total
    gap = largest_gap(a.histogram, b.histogram)
    difference = 0.0 if has_a + a.not_finite == has_b + b.not_finite == 0 else 1.0  # where one has no value
    if has_a + a.not_finite and has_b + b.not_finite:
        bad = (values.not_finite / (values.histogram.total + values.not_finite) for values in (a, b))
        difference = max(gap or 0.0, abs(next(bad) - next(bad)))
    return DimensionChange(
        name,
        difference,
        a.mean if has_a else None,
        b.mean if has_b else None,
        a.sd if has_a else None,
        b.sd if has_b else None,
        tuple(join_histograms([a.histogram, b.histogram])),
    )


def _has_two_values(histogram: Histogram, mean: float, deviation: float) -> bool:
    """Whether all values are the least or the largest one, as their mean and standard deviation say."""
    span = histogram.high - histogram.low
    share = (mean - histogram.low) / span if 0 < span < math.inf else 0.0
    return math.isclose(share * (1 - share) * span * span, deviation * deviation, rel_tol=1e-6)


def _facts(a: Inspection, b: Inspection) -> Iterator[tuple[str, str, str]]:
    def fact(name: str, *texts: str) -> tuple[str, str, str]:
        return (name, texts[0], texts[1])

    yield fact("episodes", *(f"{inspection.episodes:,}" for inspection in (a, b)))
    yield fact("steps", *(f"{inspection.steps:,}" for inspection in (a, b)))
    yield fact("terminal", *(f"{inspection.ends.terminal:,} of {inspection.ends.episodes:,}" for inspection in (a, b)))
    yield fact("problems", *map(_problems, (a, b)))
    for name in a.outputs:
        if name in b.outputs:
            counts = (counted(inspection.outputs[name].items_per_table, "item") for inspection in (a, b))
            yield fact(f"table {name}", *counts)


def _problems(inspection: Inspection) -> str:
    codes = inspection.findings.codes()
    if not codes:
        return "none"
    return (
        f"{inspection.findings.bad_episodes(codes):,} of {counted(inspection.episodes, 'episode')}: {', '.join(codes)}"
    )


def rows_of(comparison: Comparison) -> Iterator[tuple[str, DimensionChange | None, tuple[str, ...]]]:
    """Length and return of the episodes, then the columns that changed by the dimension that differs most; as text under `HEADS`.

    Yields:
      Path or name, the dimension whose numbers stand there, the cells.
    """
    for name, change in comparison.episodes.items():
        yield name, change, (f"episode {name}", *_cells(change.difference, change))
    for path, column in comparison.of_state("changed").items():
        worst = column.worst
        if column.texts_a is not None and column.texts_b is not None:
            texts = (counted(column.texts_a, "text"), counted(column.texts_b, "text"))
            yield path, None, (visible(path), _share(column.difference), *texts, "", "", "")
        elif worst is None:
            yield path, None, (visible(path), *_cells(column.difference, None))
        else:
            space = " " if worst.name[:1].isalpha() else ""  # "channel 1"
            yield path, worst, (f"{visible(path)}{space}{worst.name}", *_cells(worst.difference, worst))


def _cells(difference: float | None, change: DimensionChange | None) -> tuple[str, ...]:
    if change is None:
        return (_share(difference), *[""] * 5)
    shift = "" if change.shift is None else f"{change.shift:+.2f} sd"
    means, deviations = (
        [number(value) for value in pair] for pair in ((change.mean_a, change.mean_b), (change.sd_a, change.sd_b))
    )
    return (_share(difference), *means, shift, *deviations)


def _share(difference: float | None) -> str:
    return "-" if difference is None else f"{difference:.2f}"


def specs_of(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Path, and its dtype and shape in A and in B, of the columns of which these changed."""
    both = (
        (path, column.spec_a, column.spec_b) for path, column in comparison.columns.items() if column.has_other_spec
    )
    return [(visible(path), a or "", b or "") for path, a, b in both]


def signatures_text(comparison: Comparison) -> str:
    """Whether one table takes the items of both."""
    if comparison.same_signatures:
        return "A and B have the same signatures: tables made for one take the items of the other"
    return "A and B have different signatures: tables made for one refuse the items of the other"


_NAMES = ("A", "B")
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 28


def comparison_section(content: PageContent) -> Html:
    """The chapter of a page about two datasets; their `PageContent` has two."""
    comparison = compare_inspections(*(dataset.inspection for dataset in content.datasets))
    keys = [
        element("span", f"{name}: {shortened(visible(source), 60)}", class_=f"key key{place}")
        for place, (name, source) in enumerate(zip(_NAMES, (comparison.a, comparison.b)))
    ]
    most = content.room.columns
    verdict = element("p", element("span", comparison.verdict, class_="good" if comparison.same else "advice"))
    changed = list(rows_of(comparison))
    rows: list[list[str]] = [
        [_spark(change), element("code", cells[0]), *cells[1:]] for _, change, cells in changed[:most]
    ]
    parts = [
        verdict,
        element("p", comparison.caution) if comparison.caution else NOTHING,
        table(["", *keys], comparison.facts),
        element("p", signatures_text(comparison)),
        element("h3", ROWS),
        table(["", *(_color_heading(head) for head in HEADS)], rows, range(2, 2 + len(HEADS))),
        _more(len(changed) - most),
        element("p", DIFFERENCE, class_="quiet"),
    ]
    if specs := specs_of(comparison):
        rows = [[element("code", path), *both] for path, *both in specs[:most]]
        parts += [element("h3", "Another dtype or shape"), table(["column", *keys], rows), _more(len(specs) - most)]
    for name, states in zip(_NAMES, (comparison.of_state("only_a"), comparison.of_state("only_b"))):
        if states:
            rows = [
                [element("code", path), column.spec_a or column.spec_b or ""]
                for path, column in islice(states.items(), most)
            ]
            parts += [element("h3", _color_heading(f"only in {name}")), table([], rows), _more(len(states) - most)]
    for title, of_state in (
        (NOT_COMPARED, comparison.of_state("not_compared")),
        ("the same", comparison.of_state("same")),
    ):
        if of_state:
            names = [element("code", visible(path)) for path in islice(of_state, most)]
            listed = together(part for name in names for part in (", ", name))
            parts += [
                element("h3", f"{title[:1].upper()}{title[1:]} ({counted(len(of_state), 'column')})"),
                element("p", Html(listed.removeprefix(", ")), class_="quiet"),
                _more(len(of_state) - most),
            ]
    return section("comparison", "How they differ", element("div", *parts, class_="compare"))


def _color_heading(head: str) -> Html:
    """A heading that ends in "A" or "B", with the colour of that dataset."""
    place = _NAMES.index(head[-1]) if head[-1] in _NAMES else None
    return element("span", head, class_=place is not None and f"key key{place}")


def _more(count: int) -> Html:
    return element("p", f"and {count:,} more", class_="quiet") if count > 0 else NOTHING


def _spark(change: DimensionChange | None) -> Html:
    """Both histograms of a dimension as outlines, each as high as its largest bin."""
    if change is None or not change.histograms or not all(each.total for each in change.histograms):
        return NOTHING
    paths = []
    for place, histogram in enumerate(change.histograms):
        counts = histogram.counts
        width = _SPARK_WIDTH / len(counts)
        heights = (_SPARK_HEIGHT - 1) * (1 - counts / counts.max())
        steps = "".join(f"V{height + 0.5:.3g}H{(at + 1) * width:.4g}" for at, height in enumerate(heights.tolist()))
        paths.append(element("path", d=f"M0 {_SPARK_HEIGHT - 0.5}{steps}V{_SPARK_HEIGHT - 0.5}", class_=f"s{place}"))
    box = f"0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}"
    size = {"width": _SPARK_WIDTH, "height": _SPARK_HEIGHT}
    return element("svg", *paths, viewBox=box, class_="spark", role="img", aria_label="values of A and of B", **size)
