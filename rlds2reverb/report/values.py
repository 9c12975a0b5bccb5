"""The page's charts: lengths, returns, rewards, coverage, and what every column holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

from rlds2reverb.episodes import REWARD
from rlds2reverb.look.html import NOTHING, Html, element, table, together
from rlds2reverb.report.charts import bars, histogram_of, reaching_chart, time_chart
from rlds2reverb.report.columns import Numbers
from rlds2reverb.report.content import Content, section
from rlds2reverb.report.histograms import Histogram
from rlds2reverb.report.texts import Texts
from rlds2reverb.specs import ArraySpec
from rlds2reverb.wording import counted, number, shortened, visible

_TEXTS = 12


def episodes(content: Content) -> Html:
    """Lengths, returns and rewards."""
    inspections = [one.inspection for one in content.datasets]
    lengths = [histogram_of(one.lengths, True) for one in inspections]
    returns = [histogram_of(one.returns, False) for one in inspections]
    rewards = _Column(content, REWARD)
    figures = [
        content.charts.figure(bars(lengths, "steps"), "Episode lengths", *_spans(content, lengths, "steps")),
        content.charts.figure(bars(returns, "return"), "Returns", *_spans(content, returns)),
        rewards.figure(0, "Rewards", "reward", rewards.left_out(1)),
    ]
    return section("episodes", "Episodes", _axes(content), element("div", *figures, class_="charts"))


def coverage(content: Content) -> Html:
    """How many episodes reach each time step, and the reward there."""
    inspections = [one.inspection for one in content.datasets]
    reached = reaching_chart([one.lengths for one in inspections])
    rewards = time_chart([one.collector.rewards for one in content.datasets])
    spread = "mean" if content.are_two else "mean, and the standard deviation around it"
    if rewards is None:
        are_there = any(one.collector.rewards.moments.counts.any() for one in content.datasets)
        spread = "no episode has rewards at two steps" if are_there else "no rewards that are numbers"
    figures = [
        content.charts.figure(reached, "Episodes that reach a step", "in percent of all episodes"),
        content.charts.figure(rewards, "Reward by step", spread),
    ]
    return section("coverage", "Coverage over time steps", element("div", *figures, class_="charts"))


def columns(content: Content) -> Html:
    """What every column holds; narrow ones side by side."""
    paths = list(dict.fromkeys(path for one in content.datasets for path in one.inspection.step_spec))
    shown_here = paths[: content.room.columns]
    left = content.room.dimensions
    made: list[tuple[bool, Html]] = []
    for path in shown_here:
        column = _Column(content, path)
        made.append((column.is_narrow, column.html(left)))
        left -= column.dimensions
    parts = [
        element("div", *(html for _, html in run), class_="charts" if is_narrow else "")
        for is_narrow, run in groupby(made, key=itemgetter(0))
    ]
    if more := len(paths) - len(shown_here):
        parts.append(element("p", f"and {counted(more, 'more column')}, of which no values are shown"))
    return section("columns", "Columns", _axes(content), *parts)


def _axes(content: Content) -> Html:
    if not content.are_two:
        return NOTHING
    words = " Both have the same axes; heights are percent of each dataset's values."
    return element("p", content.key(0), " ", content.key(1), words, class_="quiet")


class _Column:
    """A column of one dataset or two."""

    def __init__(self, content: Content, path: str) -> None:
        self._content, self._path = content, path
        self._specs = [one.inspection.step_spec.get(path) for one in content.datasets]
        self._sketches = [one.collector.columns.get(path) for one in content.datasets]
        self._numbers = [one if isinstance(one, Numbers) else None for one in self._sketches]
        self._there = [one for one in self._numbers if one is not None]
        self.dimensions = max((one.dimensions for one in self._there), default=0)
        have_numbers = sum(spec is not None for spec in self._specs) == len(self._there)
        self.is_narrow = have_numbers and max((one.of for one in self._there), default=0) == 1

    def html(self, left: int) -> Html:
        """Its part of the page, with charts of at most `left` dimensions."""
        texts = ", and ".join(str(spec) if spec is not None else "absent" for spec in dict.fromkeys(self._specs))
        title = together([element("code", self._path), " ", element("span", texts, class_="quiet")])
        if self.is_narrow and left > 0:
            return self.figure(0, title, notes=self._notes())
        parts: list[Html] = [element("h3", title)]
        if self.dimensions:
            parts.append(self._figures(left))
        sketches = enumerate(self._sketches)
        parts += [_texts(self._content, place, one) for place, one in sketches if isinstance(one, Texts)]
        if len(parts) == 1:
            parts.append(element("p", _why_not(self._specs), class_="quiet"))
        return element("div", *parts, class_="column")

    def figure(self, at: int, title: str, x: str = "", notes: Sequence[str] = ()) -> Html:
        """The chart of one dimension, with what it does not show in words."""
        there = [one if one is not None and at < one.dimensions else None for one in self._numbers]
        histograms = [None if one is None else one.histograms.histogram(at) for one in there]
        are_flags = all(one is None or one.is_flag for one in there)
        captions = [
            together([_key(self._content, place), self._in_words(place, at)]) for place in range(len(self._specs))
        ]
        return self._content.charts.figure(None if are_flags else bars(histograms, x), title, *captions, *notes)

    def left_out(self, shown_here: int) -> list[str]:
        """Says that there are more dimensions than are shown."""
        of = max((one.of for one in self._there), default=0)
        return [f"the first {shown_here:,} of {of:,} dimensions"] if of > shown_here else []

    def _figures(self, left: int) -> Html:
        """A chart for each dimension, as far as there is room."""
        shown_here = max(0, min(self.dimensions, left))
        figures = [self.figure(at, _dimension_name(self._there, at)) for at in range(shown_here)]
        notes = [*self._notes(), *self.left_out(shown_here)]
        note = element("p", "; ".join(notes), class_="quiet") if notes else NOTHING
        return together([note, element("div", *figures, class_="charts small")])

    def _notes(self) -> list[str]:
        notes = []
        if any(one.is_image for one in self._there):
            notes.append("pixels of every channel, of a grid of about 32 by 32 in each image")
        passed_over = sum(one.passed_over for one in self._there)
        if passed_over:
            notes.append(f"{counted(passed_over, 'row')} of another shape or dtype passed over")
        return notes

    def _in_words(self, place: int, at: int) -> str:
        """What one dataset has in a dimension, or why nothing is known of it."""
        spec, sketch = self._specs[place], self._sketches[place]
        if spec is None:
            return "absent"
        if isinstance(sketch, Texts):
            return "texts"
        if sketch is None:
            return "encoded images" if spec.image is not None else "its values are not shown"
        if at < sketch.dimensions:
            return _in_words(sketch, at)
        return "not looked at" if at < sketch.of else "no such dimension"


def _why_not(specs: Sequence[ArraySpec | None]) -> str:
    if any(spec is not None and spec.image is not None for spec in specs):
        return "encoded images: see the episodes below"
    return "its values are not shown"


def _dimension_name(numbers: Sequence[Numbers], at: int) -> str:
    """Its place in a row, which two datasets of different shapes have different ones of; "" where a row is one number."""
    names = dict.fromkeys(_name_in(one, at) for one in numbers if at < one.of)
    return " and ".join(filter(None, names))


def _name_in(numbers: Numbers, at: int) -> str:
    if numbers.is_image:
        return f"channel {at}"
    places = np.unravel_index(at, numbers.row_shape) if numbers.row_shape else ()
    return f"[{', '.join(str(one) for one in places)}]" if places else ""


def _in_words(numbers: Numbers, at: int) -> str:
    found = numbers.histograms.histogram(at)
    total, bad = found.total, int(numbers.not_finite[at])
    not_finite = f"; {bad:,} not finite" if bad else ""
    if not total:
        return f"no finite values{not_finite}"
    if numbers.is_flag:
        true = round(float(numbers.moments.means[at]) * total)
        return f"true in {true:,} of {counted(total, 'value')} ({true / total:.2%})"
    if found.low == found.high:
        return f"always {number(found.low)}, {counted(total, 'value')}{not_finite}"
    mean, deviation = float(numbers.moments.means[at]), float(numbers.moments.deviations[at])
    span = f"{number(found.low)} to {number(found.high)}"
    return f"{span}, mean {number(mean)}, standard deviation {number(deviation)}, {counted(total, 'value')}{not_finite}"


def _spans(content: Content, histograms: Sequence[Histogram], unit: str = "") -> list[Html]:
    """What the values of each dataset span."""
    spans = [
        "none that are finite"
        if not one.total
        else f"always {number(one.low)} {unit}"
        if one.low == one.high
        else f"{number(one.low)} to {number(one.high)} {unit}"
        for one in histograms
    ]
    return [together([_key(content, place), span.strip()]) for place, span in enumerate(spans)]


def _key(content: Content, place: int) -> Html:
    return together([content.key(place), " "]) if content.are_two else NOTHING


def _different(found: Texts) -> str:
    return f"{'about ' if found.is_estimate else ''}{counted(found.distinct, 'different text')}"


def _texts(content: Content, place: int, found: Texts) -> Html:
    """Which texts there are, and how often."""
    rows = [[shortened(visible(text), 160), f"{count:,}"] for count, text in found.most_frequent(_TEXTS)]
    cells = [[element("code", text or "(empty)"), count] for text, count in rows]
    kept = "the most frequent of those that the seed chose" if found.is_estimate else "the most frequent first"
    other = f"; {counted(found.others, 'value')} that are no text" if found.others else ""
    words = f" {_different(found)} in {counted(found.total, 'value')}; {kept}{other}"
    return together([element("p", content.key(place), words, class_="quiet"), table([], cells, (1,))])
