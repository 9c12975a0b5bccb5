"""What a dataset's columns hold, in a line each; and what its actions, returns and instructions say together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.look.charts import Dataset, PageContent, list_names, scatter, section
from rlds2reverb.look.collector import is_instruction
from rlds2reverb.look.html import NOTHING, Html, element, table, text
from rlds2reverb.look.sketches import Texts
from rlds2reverb.numbers.distributions import join_histograms
from rlds2reverb.numbers.sketch import Numbers
from rlds2reverb.text import counted, number, shortened, visible

_HEAD = ("column", "dtype", "values", "min", "mean", "sd", "max", "constant")
_NUMERIC = range(3, 8)
_BARS_WIDTH, _BARS_HEIGHT = 96, 24
_CONSTANTS = 100
"""Names of constant columns in their line."""


def column_anchor(content: PageContent, path: str) -> str:
    """Where the page shows a column."""
    return f"column-{content.paths.index(path)}"


def is_constant(sketch: object) -> bool:
    """Whether a column of numbers or flags has one and the same value, in each of its dimensions, in the whole dataset."""
    if not isinstance(sketch, Numbers) or not sketch.moments.counts.any() or sketch.not_finite.any():
        return False
    return bool((sketch.histograms.low >= sketch.histograms.high).all()) and sketch.dimensions == sketch.of


def constants_line(datasets: Sequence[Dataset], paths: Sequence[str]) -> str:
    """Constant columns and, where all datasets have one number, its value: "2 constant columns: discount = 1, mask"."""
    named = []
    for path in paths:
        sketches = [
            sketch for dataset in datasets if isinstance(sketch := dataset.collector.columns.get(path), Numbers)
        ]
        values = {float(sketch.histograms.low[0]) for sketch in sketches if sketch.dimensions == 1}
        named.append(f"{path} = {number(min(values))}" if len(values) == 1 else path)
    return f"{counted(len(named), 'constant column')}: {list_names(named, _CONSTANTS)}"


def summary_section(content: PageContent) -> Html:
    """A table of all columns; those that never change stand folded below it."""
    parts = []
    for place, dataset in enumerate(content.datasets):
        paths = list(dataset.inspection.step_spec)
        shown_here = paths[: content.room.leaves]
        constant = [path for path in shown_here if is_constant(dataset.collector.columns.get(path))]
        varying = [path for path in shown_here if path not in constant]
        parts += [content.heading(place), _columns_table(content, dataset, varying)]
        if constant:
            head = element("summary", text(constants_line([dataset], constant), 2_000))
            parts.append(element("details", head, _columns_table(content, dataset, constant)))
        if more := len(paths) - len(shown_here):
            parts.append(element("p", f"and {counted(more, 'more column')}", class_="quiet"))
    words = (
        "min, mean, sd (standard deviation) and max are over all values of all dimensions; constant is the share of episodes "
        "in which the column keeps one value."
    )
    search_field = element("input", type="search", placeholder="part of a name", autocomplete="off", data_filter="")
    chosen = element("label", "Filter columns ", search_field, class_="filter")
    return section("summary", "Columns in short", chosen, *parts, element("p", words, class_="quiet"))


def _columns_table(content: PageContent, dataset: Dataset, paths: Sequence[str]) -> Html:
    return table(
        _HEAD,
        [_row(content, dataset, path) for path in paths],
        _NUMERIC,
        [{"data_path": shortened(path)} for path in paths],
    )


def _row(content: PageContent, dataset: Dataset, path: str) -> list[str]:
    collector, spec = dataset.collector, dataset.inspection.step_spec[path]
    sketch = collector.columns.get(path)
    link = element("code", path)
    if path in content.paths[: content.room.columns]:  # else the page has no chapter of it
        link = element("a", link, href=f"#{column_anchor(content, path)}")
    seen = collector.seen[path]
    share = f"{collector.kept_one[path] / seen:.0%}" if seen else ""
    if isinstance(sketch, Texts):
        about = "about " if sketch.is_estimate else ""
        return [link, str(spec), f"{about}{counted(sketch.distinct, 'different text')}", "", "", "", "", share]
    if sketch is None or not sketch.moments.counts.any():
        why = "encoded images" if spec.image is not None else "no finite values" if sketch else "not looked at"
        return [link, str(spec), why, "", "", "", "", share]
    low, high = float(sketch.histograms.low.min()), float(sketch.histograms.high.max())
    mean, deviation = _together(sketch)
    numbers = [number(value) for value in (low, mean, deviation, high)]
    return [link, str(spec), _small_bars(sketch, path), *numbers, share]


def _together(sketch: Numbers) -> tuple[float, float]:
    """Mean and standard deviation of the values of all dimensions."""
    moments = sketch.moments
    with np.errstate(over="ignore", invalid="ignore"):
        count = moments.counts.sum()
        mean = float((moments.counts / count * moments.means).sum())
        squares = moments.squares.sum() + (moments.counts * np.square(moments.means - mean)).sum()
        return mean, float(np.sqrt(squares / count))


def _small_bars(sketch: Numbers, path: str) -> Html:
    """The histogram of all dimensions together."""
    histograms = join_histograms([sketch.histograms.histogram(at) for at in range(sketch.dimensions)])
    counts = np.sum([numbers.counts for numbers in histograms], axis=0)  # [bins]
    most = int(counts.max(initial=1))
    width = _BARS_WIDTH / max(1, len(counts))
    bars = "".join(
        f"M{at * width:.4g} {_BARS_HEIGHT}v{-max(1.0, _BARS_HEIGHT * count / most):.3g}h{width:.3g}V{_BARS_HEIGHT}"
        for at, count in enumerate(counts.tolist())
        if count
    )
    said = f"histogram of {shortened(visible(path), 80)}"
    size = f"0 0 {_BARS_WIDTH} {_BARS_HEIGHT}"
    drawn = element("path", d=bars)
    return element("svg", drawn, class_="mini", viewBox=size, preserveAspectRatio="none", role="img", aria_label=said)


_INSTRUCTIONS = 20
_MATRIX = 12
"""Most dimensions of an action whose correlations are a table."""
_PAIRS = 5
_NEAR = 0.01
"""Of the range: how close to an end an action is saturated."""


def behaviour_section(content: PageContent) -> Html:
    """Instructions by frequency, returns against lengths, and how often and how much together actions are at their ends."""
    parts = []
    for place, dataset in enumerate(content.datasets):
        behaviour = [*_instructions(dataset), _returns(content, dataset), *_actions(dataset)]
        parts += [content.heading(place), *behaviour] if any(behaviour) else []
    return section("behaviour", "Actions, returns and instructions", *parts) if parts else NOTHING


def _instructions(dataset: Dataset) -> Iterator[Html]:
    for path, sketch in dataset.collector.columns.items():
        if not isinstance(sketch, Texts) or not is_instruction(path) or not sketch.total:
            continue
        rows = []
        for count, words in sketch.most_frequent(_INSTRUCTIONS):
            share = count / sketch.total
            rows.append([visible(words) or "(empty)", _share_bar(share), f"{share:.1%}", f"{count:,}"])
        about = "about " if sketch.is_estimate else ""
        more = sketch.distinct - len(rows)
        yield element("h3", f"Instructions by frequency: {about}{sketch.distinct:,} in ", element("code", path))
        yield table(["instruction", "", "share", "steps"], rows, (2, 3))
        if more > 0:
            yield element("p", f"and {about}{more:,} more", class_="quiet")


def _share_bar(share: float) -> Html:
    drawn = element("rect", width=f"{100 * share:.4g}", height=10)
    return element("svg", drawn, class_="share", viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")


def _returns(content: PageContent, dataset: Dataset) -> Html:
    lengths, returns = dataset.inspection.lengths, dataset.inspection.returns
    if len(lengths) != len(returns) or (len(set(lengths)) < 2 and len(set(returns)) < 2):
        return NOTHING
    chart = scatter(lengths, returns, ("length", "return"))
    if chart is None:
        return NOTHING
    count, pairs = len(chart["at"]), np.array([lengths, returns], np.float64)
    some = "every episode" if count == len(lengths) else f"{count:,} of {len(lengths):,} episodes"
    correlation = _correlations(pairs[:, np.isfinite(pairs).all(axis=0)].T)[0, 1]
    together_words = "" if np.isnan(correlation) else f"; correlation {correlation:.2f}"
    figure = content.charts.figure(chart, "Return against length", f"{some}{together_words}")
    return element("div", figure, class_="charts")


def _actions(dataset: Dataset) -> Iterator[Html]:
    sample = dataset.collector.actions
    rows = [values for values in sample.chosen.values() if len(values)]
    if not rows:
        return
    values = np.concatenate(rows)  # [n, dimensions]
    words = f"Of {counted(len(values), 'action')} in {counted(len(rows), 'episode')} that the seed chose."
    yield element("h3", "Action saturation")
    yield element(
        "p", f"How often an action is within {_NEAR:.0%} of its range of an end of it. {words}", class_="quiet"
    )
    low, high = sample.ends(dataset.collector.columns)
    room = _NEAR * (high / 2 - low / 2) * 2
    with np.errstate(invalid="ignore"):
        at_ends = [(values <= low + room).mean(axis=0), (values >= high - room).mean(axis=0)]
    table_rows = [
        [element("code", name), number(low[at]), f"{at_ends[0][at]:.1%}", number(high[at]), f"{at_ends[1][at]:.1%}"]
        for at, name in enumerate(sample.names)
        if low[at] < high[at]
    ]
    yield table(["action", "min", "at min", "max", "at max"], table_rows, range(1, 5))
    if len(sample.names) > 1:
        yield from _correlation_html(sample.names, _correlations(values))


def _correlations(values: Array) -> Array:
    """[n, dimensions] -> [dimensions, dimensions] of Pearson's; NaN beside a dimension that does not change."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        apart = values - values.mean(axis=0)
        together_sums = apart.T @ apart
        size = np.sqrt(np.diag(together_sums))
        size[values.min(axis=0) == values.max(axis=0)] = np.nan  # their mean may be off by a rounding
        return np.asarray(together_sums / np.outer(size, size))


def _correlation_html(names: Sequence[str], correlations: Array) -> Iterator[Html]:
    pairs = [
        (float(correlations[first, other]), names[first], names[other])
        for first in range(len(names))
        for other in range(first)
        if np.isfinite(correlations[first, other])
    ]
    if not pairs:
        return
    strongest = sorted(pairs, key=lambda pair: -abs(pair[0]))[:_PAIRS]
    yield element("h3", "Action correlation")
    yield element(
        "p", "Strongest: ", "; ".join(f"{first} and {other} {value:.2f}" for value, first, other in strongest)
    )
    if len(names) > _MATRIX:
        return
    rows = [[element("code", name), *map(_correlation_cell, row)] for name, row in zip(names, correlations.tolist())]
    head = ["", *(element("code", name) for name in names)]
    yield table(head, rows, range(1, 1 + len(names)))


def _correlation_cell(value: float) -> Html:
    """A number whose background is as strong as the correlation."""
    if not np.isfinite(value):
        return text("-")
    level = round(5 * abs(value))
    return element("span", f"{value:.2f}", class_=f"r {'plus' if value > 0 else 'minus'}{level}")
