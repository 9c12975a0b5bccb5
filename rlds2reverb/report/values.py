"""The page's charts: lengths, returns, rewards, coverage, and what every column holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from rlds2reverb.episodes import REWARD
from rlds2reverb.report.charts import bars, histogram_of, reaching_chart, time_chart
from rlds2reverb.report.columns import Numbers, Sketch
from rlds2reverb.report.content import Content, section
from rlds2reverb.report.markup import NOTHING, Html, element, table, together
from rlds2reverb.report.shown import number
from rlds2reverb.report.texts import Texts
from rlds2reverb.specs import ArraySpec
from rlds2reverb.wording import counted

_TEXTS = 12


def episodes(content: Content) -> Html:
    """Lengths, returns and rewards."""
    inspections = [one.inspection for one in content.datasets]
    lengths = [histogram_of(one.lengths, True) for one in inspections]
    returns = [histogram_of(one.returns, False) for one in inspections]
    rewards = [one.collector.columns.get(REWARD) for one in content.datasets]
    figures = [
        content.charts.figure(bars(lengths, True, "steps"), "Episode lengths", _span(lengths, "steps")),
        content.charts.figure(bars(returns, False, "return"), "Returns", _span(returns, "")),
        _rewards(content, rewards),
    ]
    return section("episodes", "Episodes", _axes(content), element("div", *figures, class_="charts"))


def coverage(content: Content) -> Html:
    """How many episodes reach each time step, and the reward there."""
    inspections = [one.inspection for one in content.datasets]
    reached = reaching_chart([one.lengths for one in inspections])
    rewards = time_chart([one.collector.rewards for one in content.datasets])
    spread = "mean" if content.are_two else "mean, and the standard deviation around it"
    figures = [
        content.charts.figure(reached, "Episodes that reach a step", "in percent of all episodes"),
        content.charts.figure(rewards, "Reward by step", spread if rewards else "no rewards that are numbers"),
    ]
    return section("coverage", "Coverage over time steps", element("div", *figures, class_="charts"))


def columns(content: Content) -> Html:
    """What every column holds; narrow ones side by side."""
    specs = [one.inspection.step_spec for one in content.datasets]
    paths = list(dict.fromkeys(path for spec in specs for path in spec))
    shown_here = paths[: content.room.columns]
    left = content.room.dimensions
    made: list[tuple[bool, Html]] = []
    for path in shown_here:
        column = _Column(content, path, [spec.get(path) for spec in specs])
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


def _rewards(content: Content, found: Sequence[Sketch | None]) -> Html:
    numbers = [one if isinstance(one, Numbers) and one.dimensions == 1 else None for one in found]
    return _dimension(content, "Rewards", numbers, 0, "reward")


class _Column:
    """A column of one dataset or two."""

    def __init__(self, content: Content, path: str, specs: Sequence[ArraySpec | None]) -> None:
        self._content, self._path, self._specs = content, path, specs
        self._sketches = [one.collector.columns.get(path) for one in content.datasets]
        self._numbers = [one if isinstance(one, Numbers) else None for one in self._sketches]
        there = [one for one in self._numbers if one is not None]
        self.dimensions = max((one.dimensions for one in there), default=0)
        self.is_narrow = bool(there) and len(there) == len(self._sketches) and max(one.of for one in there) == 1

    def html(self, left: int) -> Html:
        """Its part of the page, with charts of at most `left` dimensions."""
        texts = ", and ".join(str(spec) if spec is not None else "absent" for spec in dict.fromkeys(self._specs))
        title = together([element("code", self._path), " ", element("span", texts, class_="quiet")])
        if self.is_narrow and left > 0:
            return _dimension(self._content, title, self._numbers, 0, "", _notes(self._numbers))
        parts: list[Html] = [element("h3", title)]
        if self.dimensions:
            parts.append(_dimensions(self._content, self._numbers, left))
        sketches = enumerate(self._sketches)
        parts += [_texts(self._content, place, one) for place, one in sketches if isinstance(one, Texts)]
        if len(parts) == 1:
            parts.append(element("p", _why_not(self._specs), class_="quiet"))
        return element("div", *parts, class_="column")


def _why_not(specs: Sequence[ArraySpec | None]) -> str:
    if any(spec is not None and spec.image is not None for spec in specs):
        return "encoded images: see the episodes below"
    return "its values are not shown"


def _dimensions(content: Content, numbers: Sequence[Numbers | None], left: int) -> Html:
    """A chart for each dimension, as far as there is room."""
    kept = max(one.dimensions for one in numbers if one is not None)
    there = max(one.of for one in numbers if one is not None)
    shown_here = max(0, min(kept, left))
    figures = [_dimension(content, _dimension_name(numbers, at), numbers, at) for at in range(shown_here)]
    notes = _notes(numbers)
    if there > shown_here:
        notes.append(f"the first {shown_here:,} of {there:,} dimensions")
    note = element("p", "; ".join(notes), class_="quiet") if notes else NOTHING
    return together([note, element("div", *figures, class_="charts small")])


def _notes(numbers: Sequence[Numbers | None]) -> list[str]:
    notes = []
    if any(one is not None and one.is_image for one in numbers):
        notes.append("pixels of every channel, of a grid of about 32 by 32 in each image")
    passed_over = sum(one.passed_over for one in numbers if one is not None)
    if passed_over:
        notes.append(f"{counted(passed_over, 'row')} of another shape or dtype passed over")
    return notes


def _dimension_name(numbers: Sequence[Numbers | None], at: int) -> str:
    first = next(one for one in numbers if one is not None)
    if first.is_image:
        return f"channel {at}"
    shape = first.row_shape
    place = np.unravel_index(at, shape) if at < first.of else (at,)
    return f"[{', '.join(str(one) for one in place)}]"


def _dimension(
    content: Content,
    title: str,
    numbers: Sequence[Numbers | None],
    at: int,
    x: str = "",
    notes: Sequence[str] = (),
) -> Html:
    """The chart of one dimension, with what it does not show in words."""
    there = [one if one is not None and at < one.dimensions else None for one in numbers]
    histograms = [None if one is None else one.histograms.histogram(at) for one in there]
    if all(one is None for one in there):
        return content.charts.figure(None, title, "no values that are numbers")
    are_flags = all(one is None or one.is_flag for one in there)
    chart = None if are_flags else bars(histograms, any(one is not None and one.is_whole for one in there), x)
    captions = [
        together([content.key(place), " " if content.are_two else None, _in_words(one, at)])
        for place, one in enumerate(there)
    ]
    return content.charts.figure(chart, title, *captions, *notes)


def _in_words(numbers: Numbers | None, at: int) -> str:
    if numbers is None:
        return "absent"
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


def _span(histograms: Sequence[Any], unit: str) -> str:
    spans = [f"{number(one.low)} to {number(one.high)} {unit}".strip() for one in histograms if one.total]
    return " and ".join(spans) or "none that are finite"


def _different(found: Texts) -> str:
    return f"{'about ' if found.is_estimate else ''}{counted(found.distinct, 'different text')}"


def _texts(content: Content, place: int, found: Texts) -> Html:
    """Which texts there are, and how often."""
    rows = [
        [text.decode("utf-8", "backslashreplace")[:160], f"{count:,}"] for count, text in found.most_frequent(_TEXTS)
    ]
    cells = [[element("code", text or "(empty)"), count] for text, count in rows]
    kept = "the most frequent of those that the seed chose" if found.is_estimate else "the most frequent first"
    other = f"; {counted(found.others, 'value')} that are no text" if found.others else ""
    words = f" {_different(found)} in {counted(found.total, 'value')}; {kept}{other}"
    return together([element("p", content.key(place), words, class_="quiet"), table([], cells, (1,))])
