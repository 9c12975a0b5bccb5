"""Parts of an inspection's page: its datasets, its bounds, and its charts as data for `assets/report.js`.

With two datasets every chart shows both, over the same bins or steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.inspection.inspection import Inspection
from rlds2reverb.inspection.statistics import Statistics
from rlds2reverb.look.collector import Collector
from rlds2reverb.look.html import NOTHING, Html, element, plain, together
from rlds2reverb.look.pictures import choose_steps
from rlds2reverb.numbers.distributions import ByTime, Histogram, Histograms, join_histograms, reaching, time_steps
from rlds2reverb.text import number, shortened, visible

_DIGITS = 4
_DIGIT = "0123456789abcdefghijklmnopqrstuvwxyz"
_POINTS = 1_000  # most points of a scatter plot
_WITHOUT_VALUES = Histogram(0, 0, np.zeros(0, np.int64), np.inf, -np.inf)


class Charts:
    """The charts of a page; `made` is what `assets/report.js` draws, in the order of the page."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def figure(self, chart: dict[str, Any] | None, title: str, *captions: str, name: str = "") -> Html:
        """A chart under a title, with words below; only the words where there is nothing to draw.

        Name, title and words are also the sentence for those who do not see it.
        """
        parts = [element("p", title, class_="title")] if title else []
        if chart is not None:
            parts.append(self._drawn(chart, name, title, *captions))
        words = (element("figcaption", caption) for caption in captions)
        return element("figure", *parts, *words, class_=chart is None and "words")

    def _drawn(self, chart: dict[str, Any], *words: str) -> Html:
        """The place of a chart without a frame, and the words that say what it shows."""
        self.made.append(chart)
        said = f"{_KINDS[chart['kind']]}: {'; '.join(plain(word) for word in words if word)}"
        place: dict[str, str | int] = {"class_": "chart", "data_chart": len(self.made) - 1, "tabindex": 0}
        drawn = element("div", **place, role="img", aria_label=shortened(said))
        return together([drawn, element("p", class_="reading")])


_KINDS = {"bars": "histogram", "lines": "curve", "heat": "heat map", "points": "scatter plot"}
"""What `assets/report.js` draws, and its name."""


def bars(histograms: Sequence[Histogram | None], x: str = "", of: str = "values") -> dict[str, Any] | None:
    """A histogram of one dataset or of two, with no counts for one that has no values; `x` names the axis, `of` what is counted.

    There is no chart where all values are the same, or there are none.
    """
    over_same_bins = [histogram if histogram is not None else _WITHOUT_VALUES for histogram in histograms]
    if not min(histogram.low for histogram in over_same_bins) < max(histogram.high for histogram in over_same_bins):
        return None
    over_same_bins = join_histograms(over_same_bins)
    exponent, filled = over_same_bins[0].exponent, [histogram for histogram in over_same_bins if histogram.total]
    counts = [histogram.counts.tolist() if histogram.total else [] for histogram in over_same_bins]
    chart = {"kind": "bars", "exponent": exponent, "first": over_same_bins[0].first, "counts": counts, "x": x, "of": of}
    return {**chart, "values": True} if all(histogram.has_a_bin_each for histogram in filled) else chart


def histogram_of(values: Sequence[float], is_whole: bool) -> Histogram:
    """The histogram of all finite values."""
    finite = np.array([value for value in values if math.isfinite(value)], np.float64)
    histograms = Histograms(1, is_whole)
    histograms.add(finite[:, None])
    return histograms.histogram(0)


def reaching_chart(lengths: Sequence[Sequence[int]]) -> dict[str, Any] | None:
    """The percentage of episodes that reach each time step."""
    steps = time_steps(max((max(numbers, default=0) for numbers in lengths), default=0))
    if len(steps) < 2:
        return None
    shares = [round_values(100 * reaching(numbers, steps) / max(1, len(numbers))) for numbers in lengths]
    return {"kind": "lines", "at": steps.tolist(), "y": shares, "x": "step", "zero": True, "unit": "%"}


def time_chart(times: Sequence[ByTime]) -> dict[str, Any] | None:
    """Means of a value by time step, with the standard deviation around that of a single dataset."""
    width = max(by_time.width for by_time in times)
    for by_time in times:
        by_time.widen(width)
    counts = [by_time.moments.counts for by_time in times]
    used = int(np.flatnonzero(sum(counts))[-1]) + 1 if any(count.any() for count in counts) else 0
    if used < 2:
        return None
    means = [np.where(by_time.moments.counts > 0, by_time.moments.means, np.nan)[:used] for by_time in times]
    chart = {"kind": "lines", "at": (np.arange(used) * width).tolist(), "y": [round_values(line) for line in means]}
    if len(times) == 1:
        spread = times[0].moments.deviations[:used]
        chart |= {"low": round_values(means[0] - spread), "high": round_values(means[0] + spread)}
    return {**chart, "x": "step"}


def curves(at: Array, columns: Array) -> dict[str, Any] | None:
    """Values [n, lines] of an episode at some of its steps."""
    if not len(at):
        return None
    return {"kind": "lines", "at": at.tolist(), "y": [round_values(column) for column in columns.T], "x": "step"}


def scatter(x: Sequence[float], y: Sequence[float], names: tuple[str, str]) -> dict[str, Any] | None:
    """A point for each pair of finite values, ordered by `x`; None with less than two."""
    pairs = sorted((first, other) for first, other in zip(x, y) if math.isfinite(first) and math.isfinite(other))
    if len(pairs) < 2:
        return None
    kept = [pairs[at] for at in choose_steps(len(pairs), _POINTS)]
    return {
        "kind": "points",
        "at": round_values(place for place, _ in kept),
        "y": [round_values(two for _, two in kept)],
        "x": names[0],
        "of": names[1],
    }


def heat_map(histograms: Sequence[Histogram], means: Array) -> dict[str, Any] | None:
    """The distributions of many dimensions over the same bins; None where all values are the same, or there are none.

    Cells are digits of base 36, one for each bin of each dimension in turn: 0 for no value, and 35 times the square root of its share.
    """
    span = min(histogram.low for histogram in histograms), max(histogram.high for histogram in histograms)
    if not span[0] < span[1]:
        return None
    over_same_bins = join_histograms(histograms)
    count = max(len(histogram.counts) for histogram in over_same_bins)
    cells = []
    for histogram in over_same_bins:
        shares = np.zeros(count)
        shares[: len(histogram.counts)] = histogram.counts / max(1, histogram.total)
        cells += [_DIGIT[round(digit)] for digit in np.ceil(35 * np.sqrt(shares)).tolist()]
    ends = [
        round_values(end for histogram in histograms for end in (histogram.low, histogram.high))[at::2] for at in (0, 1)
    ]
    chart = {
        "kind": "heat",
        "exponent": over_same_bins[0].exponent,
        "first": over_same_bins[0].first,
        "bins": count,
        "cells": "".join(cells),
    }
    return {**chart, "low": ends[0], "high": ends[1], "mean": round_values(means), "x": "dimension"}


def round_values(values: Iterable[float]) -> list[float | None]:
    """Numbers with as many digits as a chart shows; None for those that are not finite."""
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in map(float, values)]


@dataclass(frozen=True)
class Dataset:
    """One dataset of a page, with the config of a server that has its tables ("" where that is unknown)."""

    inspection: Inspection
    config: str = ""

    @property
    def collector(self) -> Collector:
        watched = self.inspection.watched
        assert isinstance(watched, Collector)  # whoever writes a page has it collected
        return watched


@dataclass(frozen=True)
class PageRoom:
    """Bounds of a page.

    Attributes:
      picture_bytes: of all images, as they stand in the page.
      columns: with charts.
      dimensions: with charts, of all columns together.
      leaves: of each spec.
      episodes: of each dataset.
    """

    picture_bytes: int = 1_500_000
    columns: int = 200
    dimensions: int = 600
    leaves: int = 300
    episodes: int = 60

    def less(self) -> PageRoom:
        """Half of these bounds, for a page that came out too large."""
        halves = (self.picture_bytes, self.columns, self.dimensions, self.leaves, self.episodes)
        return PageRoom(*(size // 2 for size in halves))


@dataclass
class PageContent:
    """A page that is being made.

    Attributes:
      datasets: one, or two that are compared.
      picture_bytes: of the page so far.
    """

    datasets: Sequence[Dataset]
    room: PageRoom
    charts: Charts = field(default_factory=Charts)
    picture_bytes: int = 0

    def takes_picture(self, uri: str) -> bool:
        """Counts one more image, and returns True, if it fits."""
        if self.picture_bytes + len(uri) > self.room.picture_bytes:
            return False
        self.picture_bytes += len(uri)
        return True

    @cached_property
    def paths(self) -> list[str]:
        """The columns of all datasets."""
        return list(dict.fromkeys(path for dataset in self.datasets for path in dataset.inspection.step_spec))

    @property
    def are_two(self) -> bool:
        return len(self.datasets) == 2

    def key(self, place: int) -> Html:
        """The name of a dataset with its colour, where there are two."""
        if not self.are_two:
            return NOTHING
        return element("span", shortened(visible(self.datasets[place].inspection.source), 60), class_=f"key key{place}")

    def heading(self, place: int) -> Html:
        """A heading that names the dataset, where there are two."""
        return element("h3", self.key(place)) if self.are_two else NOTHING


def section(anchor: str, title: str, *children: str | None) -> Html:
    return element("section", element("h2", title, id=anchor), together(children))


def statistics(numbers: Statistics | None) -> str:
    """min, median, mean and max on a line."""
    return "none" if numbers is None else ", ".join(f"{name} {number(value)}" for name, value in numbers.items())


def list_names(names: Sequence[str], most: int = 20, count: int | None = None) -> str:
    count = len(names) if count is None else count
    more = f" and {count - most:,} more" if count > most else ""
    return ", ".join(shortened(name, 60) for name in names[:most]) + more
